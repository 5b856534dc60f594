//! Reads and checks the settings of a topic in a request.

use bytes::Bytes;
use muster_domain::{
    ProblemCode, RetryPolicy, TopicSettings,
    topic::{Concurrency, TopicRate, TopicRetention},
};
use muster_flow::admission::{SchemaFault, bounds::TIMEOUT_MS, read_schema};

use crate::{
    json::{Faults, Object},
    limits::{BACKLOG, BURST, CONCURRENCY, LEASE_MS, RATE, RETENTION_MS},
    problem::Problem,
    submit::read_retry,
};

/// Reads a whole body. A field that is not given is not set; all faults are named at once.
pub(crate) fn read_settings(body: &Bytes) -> Result<TopicSettings, Problem> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let mut o = Object::from_body(body)?;
    let whole = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let settings = TopicSettings {
        concurrency: o.object("concurrency", f).map(|mut o| {
            let read = Concurrency {
                max: o.integer("max", f, CONCURRENCY).map(whole),
                per_key: o.integer("per_key", f, CONCURRENCY).map(whole),
            };
            o.finish(f);
            read
        }),
        rate: o.object("rate", f).and_then(|o| read_rate(o, f)),
        max_backlog: o.integer("max_backlog", f, BACKLOG),
        retry: o.object("retry", f).map(|o| read_retry(o, RetryPolicy::default(), f).into()),
        timeout_ms: o.integer("timeout_ms", f, TIMEOUT_MS).map(whole),
        lease_ms: o.integer("lease_ms", f, LEASE_MS).map(whole),
        retention: o.object("retention", f).map(|mut o| {
            let read = TopicRetention {
                succeeded_ms: o.integer("succeeded_ms", f, RETENTION_MS),
                failed_ms: o.integer("failed_ms", f, RETENTION_MS),
            };
            o.finish(f);
            read
        }),
        schema: o.take("schema").and_then(|raw| {
            let note = |fault: SchemaFault| {
                f.note(ProblemCode::InvalidRequest, format!("/schema{}", fault.pointer), fault.detail)
            };
            read_schema(raw.get()).map_err(|faults| faults.into_iter().for_each(note)).ok()
        }),
        shared: o.boolean("shared", f) == Some(true),
    };
    o.finish(f);
    faults.into_result()?;
    Ok(settings)
}

fn read_rate(mut o: Object<'_>, f: &mut Faults) -> Option<TopicRate> {
    o.require("per_s", f);
    let per_s = o.number("per_s", f, RATE);
    let burst = o.integer("burst", f, BURST);
    o.finish(f);
    let per_s = per_s?;
    // The default burst is one second's worth.
    let burst = burst.unwrap_or_else(|| (per_s.ceil() as u64).max(1));
    Some(TopicRate { per_s, burst: u32::try_from(burst).unwrap_or(u32::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<TopicSettings, Problem> {
        read_settings(&Bytes::from(body.to_owned()))
    }

    #[test]
    fn every_field_is_read_and_nothing_is_all_defaults() {
        assert_eq!(read("{}").unwrap(), TopicSettings::default());
        assert_eq!(read(r#"{"rate":null,"shared":false}"#).unwrap(), TopicSettings::default());
        let all = read(
            r#"{"concurrency":{"max":3,"per_key":1},"rate":{"per_s":0.5},"max_backlog":10,
                "retry":{"max_attempts":2,"backoff":{"initial_ms":5}},"timeout_ms":1,"lease_ms":5000,
                "retention":{"succeeded_ms":1200000},"schema":{"type":"object","maximum":1.50}}"#,
        )
        .unwrap();
        assert_eq!(all.concurrency, Some(Concurrency { max: Some(3), per_key: Some(1) }));
        assert_eq!(all.rate, Some(TopicRate { per_s: 0.5, burst: 1 }));
        assert_eq!((all.max_backlog, all.timeout_ms, all.lease_ms), (Some(10), Some(1), Some(5_000)));
        let retry = RetryPolicy::from(all.retry.unwrap());
        assert_eq!((retry.max_attempts, retry.backoff.initial.as_millis()), (2, 5));
        assert_eq!(retry.backoff.factor, RetryPolicy::default().backoff.factor, "what is not said has its default");
        assert_eq!(all.schema.unwrap().to_string(), r#"{"maximum":1.50,"type":"object"}"#);
        assert_eq!(all.retention.unwrap().succeeded_ms, Some(1_200_000));
        assert!(read(r#"{"shared":true}"#).unwrap().shared);
        assert_eq!(read(r#"{"rate":{"per_s":7.2}}"#).unwrap().rate.unwrap().burst, 8);
    }

    #[test]
    fn every_wrong_value_is_refused_at_its_place() {
        for (body, pointer, code) in [
            (r#"{"concurrency":3}"#, "/concurrency", ProblemCode::InvalidRequest),
            (r#"{"concurrency":{"max":0}}"#, "/concurrency/max", ProblemCode::InvalidRequest),
            (r#"{"concurrency":{"maximum":1}}"#, "/concurrency/maximum", ProblemCode::UnknownField),
            (r#"{"rate":{}}"#, "/rate/per_s", ProblemCode::InvalidRequest),
            (r#"{"rate":{"per_s":0}}"#, "/rate/per_s", ProblemCode::InvalidRequest),
            (r#"{"rate":{"per_s":"5"}}"#, "/rate/per_s", ProblemCode::InvalidRequest),
            (r#"{"rate":{"per_s":1e999}}"#, "/rate/per_s", ProblemCode::InvalidRequest),
            (r#"{"rate":{"per_s":1,"burst":0}}"#, "/rate/burst", ProblemCode::InvalidRequest),
            (r#"{"max_backlog":-1}"#, "/max_backlog", ProblemCode::InvalidRequest),
            (r#"{"max_backlog":1.5}"#, "/max_backlog", ProblemCode::InvalidRequest),
            (r#"{"retry":{"max_attempts":0}}"#, "/retry/max_attempts", ProblemCode::InvalidRequest),
            (r#"{"retry":{"backoff":{"factor":0.5}}}"#, "/retry/backoff/factor", ProblemCode::InvalidRequest),
            (r#"{"timeout_ms":0}"#, "/timeout_ms", ProblemCode::InvalidRequest),
            (r#"{"lease_ms":4999}"#, "/lease_ms", ProblemCode::InvalidRequest),
            (r#"{"lease_ms":900001}"#, "/lease_ms", ProblemCode::InvalidRequest),
            (r#"{"retention":{"failed_ms":1000}}"#, "/retention/failed_ms", ProblemCode::InvalidRequest),
            (r#"{"retention":7}"#, "/retention", ProblemCode::InvalidRequest),
            (r#"{"schema":{"properties":{"a":{"type":7}}}}"#, "/schema/properties/a/type", ProblemCode::InvalidRequest),
            (r#"{"shared":1}"#, "/shared", ProblemCode::InvalidRequest),
            (r#"{"paused":true}"#, "/paused", ProblemCode::UnknownField),
            (r#"{"lease_ms":5000,"lease_ms":6000}"#, "/lease_ms", ProblemCode::UnknownField),
        ] {
            let fault = &read(body).expect_err(body).errors[0];
            assert_eq!((fault.pointer.as_str(), fault.code), (pointer, code), "{body}");
        }
        assert_eq!(read("[]").unwrap_err().code, ProblemCode::InvalidRequest);
        assert_eq!(read("{").unwrap_err().code, ProblemCode::InvalidJson);
        let many = read(r#"{"lease_ms":1,"timeout_ms":0,"x":1}"#).unwrap_err();
        assert_eq!(many.errors.len(), 3, "all at once");
    }
}
