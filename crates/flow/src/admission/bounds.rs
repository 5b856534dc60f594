//! The bounds of the fields of a job, for every submitter.
//!
//! Knows: the bounds of payloads; those of numbers, spans, names, labels and keys are in `domain`. Promises: only a
//! job within all bounds becomes a [`Bounded`], and admission takes nothing else, so no submitter can skip them: neither
//! a reader of JSON or protobuf nor a step of a workflow. [`check`] allocates nothing for a job within its bounds, and a
//! payload is scanned once. Leaves to others: naming every wrong field of a request (its reader).

use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use muster_domain::{
    JobSpec, Labels, WorkerId, job::When, line::MAX_REQUIRES, slot::check_key, topic::MAX_LABELS, topic::check_label,
};

pub use muster_domain::job::bounds::{ATTEMPTS, DELAY_MS, FACTOR, JITTER, SPAN_MS, TIMEOUT_MS};

/// The most bytes of a payload. For larger data the payload carries a URL.
pub const MOST_PAYLOAD: usize = 512 * 1024;
/// How deep a payload may nest. Many JSON parsers, including the one used here, stop at this depth.
pub const MOST_DEPTH: usize = 128;
/// Why a payload is refused before anything else is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadFault {
    /// It has too many bytes.
    #[error("has {0} bytes; at most {MOST_PAYLOAD} are taken, larger data goes by URL")]
    TooLarge(usize),
    /// It nests too deeply.
    #[error("nests deeper than {MOST_DEPTH} levels")]
    TooDeep,
}

/// A payload within its bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload(Bytes);

impl Payload {
    /// Checks the size and the depth of a payload, which is JSON, or empty if there is none.
    pub fn check(json: Bytes) -> Result<Payload, PayloadFault> {
        if json.len() > MOST_PAYLOAD {
            return Err(PayloadFault::TooLarge(json.len()));
        }
        if depth(&json) > MOST_DEPTH { Err(PayloadFault::TooDeep) } else { Ok(Payload(json)) }
    }

    /// The JSON.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A job whose fields are within their bounds. Only [`check`] makes one.
#[derive(Clone, Debug)]
pub struct Bounded {
    pub(super) spec: JobSpec,
    pub(super) payload: Bytes,
}

impl Bounded {
    /// The spec of the job.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }
}

/// A field beyond its bounds. A reader names such a field by itself; this is for submitters that do not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct OutOfBounds {
    /// The JSON pointer to the field in a submit.
    pub field: &'static str,
    /// What the field must be.
    pub why: Cow<'static, str>,
}

/// Checks every field of a job.
pub fn check(spec: JobSpec, Payload(payload): Payload) -> Result<Bounded, OutOfBounds> {
    labels("/labels", &spec.labels, MAX_LABELS)?;
    labels("/requires", &spec.requires, MAX_REQUIRES)?;
    if let Some(Err(why)) = spec.requires.get("worker").map(|name| WorkerId::parse(name)) {
        return Err(beyond("/requires/worker", why.to_string()));
    }
    if !spec.concurrency_key.is_empty() {
        check_key(&spec.concurrency_key).map_err(|why| beyond("/concurrency_key", why))?;
    }
    moment("/run_at", spec.run_at, &DELAY_MS)?;
    moment("/start_by", spec.start_by, &SPAN_MS)?;
    moment("/deadline", spec.deadline, &SPAN_MS)?;
    let (retry, backoff) = (&spec.retry, &spec.retry.backoff);
    let fine = [
        ("/retry/max_attempts", ATTEMPTS.contains(&retry.max_attempts.into())),
        ("/retry/backoff/initial_ms", within(backoff.initial, &DELAY_MS)),
        ("/retry/backoff/factor", FACTOR.contains(&backoff.factor)),
        ("/retry/backoff/max_ms", within(backoff.max, &DELAY_MS)),
        ("/retry/backoff/jitter", JITTER.contains(&backoff.jitter)),
    ];
    match fine.iter().find(|(_, fine)| !fine) {
        Some((field, _)) => Err(beyond(field, "is beyond its bounds")),
        None => Ok(Bounded { spec, payload }),
    }
}

fn beyond(field: &'static str, why: impl Into<Cow<'static, str>>) -> OutOfBounds {
    OutOfBounds { field, why: why.into() }
}

fn labels(field: &'static str, labels: &Labels, most: usize) -> Result<(), OutOfBounds> {
    if labels.len() > most {
        return Err(beyond(field, "has too many labels"));
    }
    labels.iter().try_for_each(|(key, value)| check_label(key, value)).map_err(|why| beyond(field, why.to_string()))
}

fn moment(field: &'static str, when: Option<When>, range: &RangeInclusive<u64>) -> Result<(), OutOfBounds> {
    match when {
        Some(When::In(span)) if !within(span, range) => Err(beyond(field, "is beyond its bounds")),
        Some(When::At(at)) if !at.is_storable() => Err(beyond(field, "must be between 1970 and 2255")),
        _ => Ok(()),
    }
}

fn within(span: Duration, range: &RangeInclusive<u64>) -> bool {
    u64::try_from(span.as_millis()).is_ok_and(|ms| range.contains(&ms))
}

/// The nesting depth of JSON text. The parser that splits out verbatim values does not limit it.
pub fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for &byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use muster_domain::{Backoff, Tenant, Time, Topic};

    use super::*;

    #[test]
    fn depth_counts_brackets_outside_strings() {
        assert_eq!(depth(b"1"), 0);
        assert_eq!(depth(br#"{"a":[1,{"b":"[[[[\"[[["}]}"#), 3);
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert_eq!(depth(deep.as_bytes()), 500);
    }

    #[test]
    fn a_payload_is_bounded_in_bytes_and_depth() {
        let fault = |json: String| Payload::check(json.into()).err();
        assert_eq!(fault("1".repeat(MOST_PAYLOAD)), None);
        assert_eq!(fault("1".repeat(MOST_PAYLOAD + 1)), Some(PayloadFault::TooLarge(MOST_PAYLOAD + 1)));
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(fault(nested(MOST_DEPTH)), None);
        assert_eq!(fault(nested(MOST_DEPTH + 1)), Some(PayloadFault::TooDeep));
    }

    type Change = fn(&mut JobSpec);

    fn refused(change: Change) -> Option<&'static str> {
        let mut spec = JobSpec::new(Tenant::default(), Topic::parse("t").unwrap());
        change(&mut spec);
        check(spec, Payload::default()).err().map(|fault| fault.field)
    }

    const LONGEST: Duration = Duration::from_millis(*DELAY_MS.end());
    const STEP: Duration = Duration::from_millis(1);

    fn many(n: usize) -> Labels {
        (0..n).map(|n| (format!("k{n}"), "v".to_owned())).collect()
    }

    #[test]
    fn a_job_at_every_bound_is_taken() {
        let changes: [Change; 9] = [
            |_| (),
            |spec| spec.labels = many(MAX_LABELS),
            |spec| spec.requires = many(MAX_REQUIRES),
            |spec| spec.concurrency_key = "k".repeat(128),
            |spec| spec.run_at = Some(When::In(LONGEST)),
            |spec| spec.deadline = Some(When::At(Time((1 << 53) - 1))),
            |spec| spec.timeout_ms = u32::MAX,
            |spec| spec.retry.max_attempts = 1_000,
            |spec| spec.retry.backoff = Backoff { initial: LONGEST, factor: 100.0, max: LONGEST, jitter: 1.0 },
        ];
        assert!(changes.into_iter().all(|change| refused(change).is_none()));
    }

    #[test]
    fn a_job_beyond_any_bound_is_refused_and_the_field_is_named() {
        let changes: [(&str, Change); 17] = [
            ("/labels", |spec| spec.labels = many(MAX_LABELS + 1)),
            ("/labels", |spec| drop(spec.labels.insert("a b".into(), String::new()))),
            ("/labels", |spec| drop(spec.labels.insert("k".into(), "v".repeat(257)))),
            ("/requires", |spec| spec.requires = many(MAX_REQUIRES + 1)),
            ("/requires/worker", |spec| drop(spec.requires.insert("worker".into(), "a b".into()))),
            ("/concurrency_key", |spec| spec.concurrency_key = "k".repeat(129)),
            ("/concurrency_key", |spec| spec.concurrency_key = "a b".into()),
            ("/run_at", |spec| spec.run_at = Some(When::In(LONGEST + STEP))),
            ("/run_at", |spec| spec.run_at = Some(When::At(Time(1 << 53)))),
            ("/start_by", |spec| spec.start_by = Some(When::In(Duration::ZERO))),
            ("/deadline", |spec| spec.deadline = Some(When::In(Duration::MAX))),
            ("/retry/max_attempts", |spec| spec.retry.max_attempts = 0),
            ("/retry/max_attempts", |spec| spec.retry.max_attempts = 1_001),
            ("/retry/backoff/initial_ms", |spec| spec.retry.backoff.initial = LONGEST + STEP),
            ("/retry/backoff/factor", |spec| spec.retry.backoff.factor = f64::NAN),
            ("/retry/backoff/max_ms", |spec| spec.retry.backoff.max = LONGEST + STEP),
            ("/retry/backoff/jitter", |spec| spec.retry.backoff.jitter = -0.1),
        ];
        for (field, change) in changes {
            assert_eq!(refused(change), Some(field));
        }
    }
}
