//! Reads the body of a submit.
//!
//! Knows: every submit field of the contract in its JSON form. Promises: a spec from here holds only checked values;
//! the payload is a slice of the body, byte for byte; fields that do not work yet are refused, never ignored. Leaves to
//! others: identifying the caller (`auth`), the bounds of fields, and admitting and storing the job (`flow::admission`).

use std::{ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use muster_domain::{
    Backoff, Durability, JobSpec, Labels, OnLostLease, Priority, ProblemCode, RetryPolicy, Tenant, Topic, TraceParent,
    WorkerId,
    job::When,
    line::MAX_REQUIRES,
    slot::check_key,
    topic::{MAX_LABELS, check_label},
};
use muster_flow::admission::{
    Refusal,
    bounds::{self, Payload, PayloadFault},
};

use crate::{
    canonical::hash_fields,
    json::{Faults, Object, join, text},
    limits::{MOST_IDEMPOTENCY_KEY, MOST_REASON},
};

/// Fields of the contract that this version does not support yet.
const NOT_YET: [&str; 2] = ["unique", "callback"];

/// A job as the client requested it.
#[derive(Clone, Debug)]
pub(crate) struct ReadJob {
    pub(crate) spec: JobSpec,
    pub(crate) payload: Payload,
    /// The hash of the whole request except its idempotency key.
    pub(crate) hash: [u8; 16],
    /// The item's own idempotency key, in a batch.
    pub(crate) key: Option<String>,
}

/// Whether a job is read alone, or as an item of a batch, which may carry its own key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Alone,
    InBatch,
}

/// Returns a new spec with the defaults of its topic, or why the topic may not be used.
pub(crate) type Defaults<'a> = &'a dyn Fn(Topic) -> Result<JobSpec, Refusal>;

/// Reads one job. Returns `None` if anything is wrong with it, and adds all faults to `faults`. `keyed` says whether
/// the hash will be compared.
pub(crate) fn read_job(
    body: &Bytes,
    mut object: Object<'_>,
    tenant: &Tenant,
    defaults: Defaults<'_>,
    place: Place,
    keyed: bool,
    faults: &mut Faults,
) -> Option<ReadJob> {
    let may_hash = keyed || place == Place::InBatch;
    let fields = may_hash.then(|| object.fields());
    let o = &mut object;

    let payload = read_payload(body, o, "payload", faults);
    o.require("topic", faults);
    let topic = o.name("topic", faults, Topic::parse);
    let spec = topic.and_then(|topic| defaults(topic).map_err(|why| faults.invalid(o.at(), "topic", why)).ok());
    // The stand-in spec is never used: the fault of its topic is noted, and the spec is dropped.
    let mut spec = match spec {
        Some(spec) => spec,
        None => JobSpec::new(tenant.clone(), Topic::parse("refused").ok()?),
    };
    if let Some(priority) = o.word("priority", faults, "critical, high, normal, low", Priority::parse) {
        spec.priority = priority;
    }
    spec.labels = read_labels(o, "labels", MAX_LABELS, faults);
    spec.requires = read_labels(o, "requires", MAX_REQUIRES, faults);
    if let Some(Err(why)) = spec.requires.get("worker").map(|name| WorkerId::parse(name)) {
        faults.invalid(&join(o.at(), "requires"), "worker", why);
    }
    let key = o.name("concurrency_key", faults, |given| check_key(given).map(|()| given.to_owned()));
    spec.concurrency_key = key.unwrap_or_default();
    spec.run_at = read_when(o, "run_at", "delay_ms", bounds::DELAY_MS, faults);
    spec.start_by = read_when(o, "start_by", "start_within_ms", bounds::SPAN_MS, faults);
    spec.deadline = read_when(o, "deadline", "expire_in_ms", bounds::SPAN_MS, faults);
    if let Some(limit) = o.integer("timeout_ms", faults, bounds::TIMEOUT_MS) {
        spec.timeout_ms = u32::try_from(limit).unwrap_or(u32::MAX);
    }
    if let Some(retry) = o.object("retry", faults) {
        spec.retry = read_retry(retry, spec.retry, faults);
    }
    if let Some(choice) = o.word("on_lost_lease", faults, "retry, fail", OnLostLease::parse) {
        spec.on_lost_lease = choice;
    }
    if let Some(level) = o.word("durability", faults, "memory, replicated, fsynced", Durability::parse) {
        spec.durability = level;
    }
    spec.trace = o.name("traceparent", faults, |given| {
        TraceParent::parse(given).ok_or("must be a W3C traceparent of version 00")
    });
    let key = match place {
        Place::InBatch => o.name("idempotency_key", faults, |given| read_key(given).map(str::to_owned)),
        Place::Alone => None,
    };
    for name in NOT_YET {
        if o.take(name).is_some() {
            faults.add(ProblemCode::UnsupportedField, o.at(), name, "is not honoured by this version");
        }
    }
    object.finish(faults);
    if !faults.none() {
        return None;
    }
    let hash = match fields {
        Some(fields) if keyed || key.is_some() => hash_fields(
            fields.iter().filter(|(name, _)| name != "idempotency_key").map(|(name, value)| (name.as_ref(), *value)),
        ),
        _ => [0; 16],
    };
    Some(ReadJob { spec, payload: payload?, hash, key })
}

/// Checks an idempotency key, bare or quoted: 1 to 256 visible characters.
pub(crate) fn read_key(given: &str) -> Result<&str, &'static str> {
    let bare = match given.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"').ok_or("ends without its closing quote")?,
        None => given,
    };
    let visible = bare.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    if bare.is_empty() || bare.len() > MOST_IDEMPOTENCY_KEY || !visible || bare.trim() != bare {
        return Err("must be 1 to 256 visible ASCII characters");
    }
    Ok(bare)
}

/// Reads a payload, or another value with the same bounds; an empty one if it is not given.
pub(crate) fn read_payload(body: &Bytes, o: &mut Object<'_>, name: &str, faults: &mut Faults) -> Option<Payload> {
    let Some(raw) = o.verbatim(name).map(serde_json::value::RawValue::get) else {
        return Some(Payload::default());
    };
    let checked = Payload::check(body.slice_ref(raw.as_bytes()));
    if let Err(fault) = &checked {
        let code = match fault {
            PayloadFault::TooLarge(_) => ProblemCode::PayloadTooLarge,
            PayloadFault::TooDeep => ProblemCode::InvalidRequest,
        };
        faults.add(code, o.at(), name, fault.to_string());
    }
    checked.ok()
}

/// Reads labels, or what a worker must provide.
pub(crate) fn read_labels(o: &mut Object<'_>, name: &str, most: usize, faults: &mut Faults) -> Labels {
    let mut labels = Labels::new();
    let Some(given) = o.object(name, faults) else { return labels };
    if given.len() > most {
        faults.invalid(o.at(), name, format_args!("has {} labels; at most {most}", given.len()));
        return labels;
    }
    let at = join(o.at(), name);
    for (key, raw) in given.into_fields() {
        let Some(value) = text(raw.get()) else {
            faults.invalid(&at, &key, "must be a string");
            continue;
        };
        match check_label(&key, &value) {
            Ok(()) if labels.insert(key.to_string(), value.into_owned()).is_some() => {
                faults.invalid(&at, &key, "is given twice");
            }
            Ok(()) => {}
            Err(why) => faults.invalid(&at, &key, why),
        }
    }
    labels
}

/// Reads one time that has two forms; a request with both is a fault.
fn read_when(
    o: &mut Object<'_>,
    at: &str,
    span: &str,
    range: RangeInclusive<u64>,
    faults: &mut Faults,
) -> Option<When> {
    let moment = o.moment(at, faults).map(When::At);
    let given = o.integer(span, faults, range);
    if moment.is_some() && given.is_some() {
        faults.invalid(o.at(), span, format_args!("give {at} or {span}, not both"));
    }
    moment.or_else(|| given.filter(|ms| *ms > 0).map(|ms| When::In(Duration::from_millis(ms))))
}

/// Reads the retry policy. Fields that are not given come from `policy`.
pub(crate) fn read_retry(mut o: Object<'_>, mut policy: RetryPolicy, faults: &mut Faults) -> RetryPolicy {
    if let Some(n) = o.integer("max_attempts", faults, bounds::ATTEMPTS) {
        policy.max_attempts = u16::try_from(n).unwrap_or(u16::MAX);
    }
    if let Some(mut b) = o.object("backoff", faults) {
        let usual = policy.backoff;
        let span = |given: Option<u64>, usual: Duration| given.map_or(usual, Duration::from_millis);
        policy.backoff = Backoff {
            initial: span(b.integer("initial_ms", faults, bounds::DELAY_MS), usual.initial),
            factor: b.number("factor", faults, bounds::FACTOR).unwrap_or(usual.factor),
            max: span(b.integer("max_ms", faults, bounds::DELAY_MS), usual.max),
            jitter: b.number("jitter", faults, bounds::JITTER).unwrap_or(usual.jitter),
        };
        b.finish(faults);
    }
    o.finish(faults);
    policy
}

/// What a retry by hand may change.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) payload: Option<Payload>,
    pub(crate) topic: Option<Topic>,
    pub(crate) priority: Option<Priority>,
    /// The hash of the overrides: a second retry of the same job with other overrides is refused.
    pub(crate) hash: [u8; 16],
}

impl Overrides {
    /// Overrides that change nothing.
    pub(crate) fn none() -> Overrides {
        Overrides { hash: hash_fields(std::iter::empty()), ..Overrides::default() }
    }
}

/// Reads the body of a retry; an empty body changes nothing.
pub(crate) fn read_overrides(body: &Bytes, faults: &mut Faults) -> Result<Overrides, crate::problem::Problem> {
    if body.is_empty() {
        return Ok(Overrides::none());
    }
    let mut o = Object::from_body(body)?;
    let fields = o.fields();
    let payload = read_payload(body, &mut o, "payload", faults).filter(|given| !given.as_bytes().is_empty());
    let topic = o.name("topic", faults, Topic::parse);
    let priority = o.word("priority", faults, "critical, high, normal, low", Priority::parse);
    o.finish(faults);
    let hash = if faults.none() {
        hash_fields(fields.iter().filter(|(_, v)| *v != "null").map(|(n, v)| (n.as_ref(), *v)))
    } else {
        [0; 16]
    };
    Ok(Overrides { payload, topic, priority, hash })
}

/// Reads the reason of a cancel: any text, which the store truncates. The body may be empty.
pub(crate) fn read_reason(body: &Bytes, faults: &mut Faults) -> Result<String, crate::problem::Problem> {
    if body.is_empty() {
        return Ok(String::new());
    }
    let mut o = Object::from_body(body)?;
    let reason = take_reason(&mut o, faults);
    o.finish(faults);
    Ok(reason)
}

/// Takes the reason out of a body; empty if there is none.
pub(crate) fn take_reason(o: &mut Object<'_>, faults: &mut Faults) -> String {
    let reason = o.name("reason", faults, |given| {
        let odd = given.len() > MOST_REASON || given.contains('\0');
        if odd { Err(format!("has at most {MOST_REASON} bytes and no NUL")) } else { Ok(given.to_owned()) }
    });
    reason.unwrap_or_default()
}

#[cfg(test)]
mod tests;
