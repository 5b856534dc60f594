//! Reads query parameters one by one.
//!
//! Promises: as with bodies, the answer names every wrong or unknown parameter at once, with the pointer
//! `/query/<name>`. A misspelt filter is refused, instead of listing everything.

use std::{fmt, ops::RangeInclusive, time::Duration};

use axum::extract::{FromRequestParts, Query};
use http::request::Parts;
use muster_domain::{ProblemCode, Time};

use crate::{
    json::{Faults, integer},
    limits::WAIT_MS,
    problem::Problem,
};

const AT: &str = "/query";

/// The parameters of the query string.
#[derive(Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Params, Problem> {
        if parts.uri.query().is_none() {
            return Ok(Params::default());
        }
        Query::try_from_uri(&parts.uri)
            .map(|Query(pairs)| Params(pairs))
            .map_err(|why| Problem::field(ProblemCode::InvalidRequest, AT, why.to_string()))
    }
}

impl Params {
    /// Takes a parameter.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let place = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(place).1)
    }

    /// Takes a parameter and checks it by a rule.
    pub(crate) fn read<T, E: fmt::Display>(
        &mut self,
        name: &str,
        faults: &mut Faults,
        rule: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let given = self.take(name)?;
        rule(&given).map_err(|why| faults.invalid(AT, name, why)).ok()
    }

    /// Takes a whole number within bounds.
    pub(crate) fn integer(&mut self, name: &str, faults: &mut Faults, range: RangeInclusive<u64>) -> Option<u64> {
        self.read(name, faults, |given| {
            let fits = integer(given).filter(|n| range.contains(n));
            fits.ok_or_else(|| format!("must be a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// Takes an RFC 3339 time.
    pub(crate) fn moment(&mut self, name: &str, faults: &mut Faults) -> Option<Time> {
        self.read(name, faults, |given| {
            // An unescaped plus sign arrives as a space.
            Time::parse_rfc3339(&given.replace(' ', "+")).ok_or("must be an RFC 3339 time")
        })
    }

    /// Takes `wait_ms`.
    pub(crate) fn wait(&mut self, faults: &mut Faults) -> Option<Duration> {
        self.integer("wait_ms", faults, WAIT_MS).filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// Takes all parameters whose name begins with `prefix`, with the rest of the name. A repeated one is left, and
    /// `finish` refuses it.
    pub(crate) fn prefixed(&mut self, prefix: &str) -> Vec<(String, String)> {
        let (mut found, mut rest) = (Vec::<(String, String)>::new(), Vec::new());
        for (key, value) in std::mem::take(&mut self.0) {
            match key.strip_prefix(prefix) {
                Some(name) if found.iter().all(|(known, _)| known != name) => found.push((name.to_owned(), value)),
                _ => rest.push((key, value)),
            }
        }
        self.0 = rest;
        found
    }

    /// Ends the reading: every parameter that is left is unknown.
    pub(crate) fn finish(self, mut faults: Faults) -> Result<(), Problem> {
        for (name, _) in &self.0 {
            faults.add(ProblemCode::UnknownField, AT, name, "is not a parameter of this request, or is given twice");
        }
        faults.into_result()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        Params(Query::try_from_uri(&format!("/x?{query}").parse().unwrap()).unwrap().0)
    }

    #[test]
    fn wrong_and_unknown_parameters_are_named_together() {
        let mut given = params("limit=0&wait_ms=x&created_after=2026-01-01T00:00:00+01:00&stat=failed&limit=5");
        let mut faults = Faults::default();
        assert_eq!(given.integer("limit", &mut faults, 1..=500), None);
        assert_eq!(given.wait(&mut faults), None);
        assert!(given.moment("created_after", &mut faults).is_some(), "an unescaped plus is understood");
        let problem = given.finish(faults).unwrap_err();
        let pointers: Vec<&str> = problem.errors.iter().map(|f| f.pointer.as_str()).collect();
        assert_eq!(pointers, ["/query/limit", "/query/wait_ms", "/query/stat", "/query/limit"]);
        assert_eq!(problem.status(), 422);
    }

    #[test]
    fn waits_are_bounded() {
        let wait = |query: &str| params(query).wait(&mut Faults::default());
        assert_eq!(wait("wait_ms=30000"), Some(Duration::from_secs(30)));
        assert_eq!(wait("wait_ms=0"), None);
        assert_eq!(wait("wait_ms=30001"), None);
        assert_eq!(wait(""), None);
    }

    #[test]
    fn labels_are_found_by_their_prefix() {
        let mut given = params("label.a=1&topic=t&label.b%2Fc=2");
        assert_eq!(given.prefixed("label."), [("a".into(), "1".into()), ("b/c".into(), "2".into())]);
        assert_eq!(given.take("topic").as_deref(), Some("t"));
        given.finish(Faults::default()).unwrap();
        let mut twice = params("label.a=1&label.a=2");
        assert_eq!(twice.prefixed("label."), [("a".into(), "1".into())]);
        assert_eq!(twice.finish(Faults::default()).unwrap_err().errors[0].pointer, "/query/label.a");
    }
}
