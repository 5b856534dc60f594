//! What the fields of requests may hold beyond their types: one row per field.
//!
//! Promises: a number or a word here is the one that the reader of the field uses. A test tries every field against
//! both its reader and this description (`routes/agreement.rs`). Leaves to others: rules between fields, and sizes in
//! bytes of text or JSON; the descriptions of the fields state those.

use std::ops::RangeInclusive;

use muster_domain::{Durability, OnLostLease, Priority, State, line::MAX_REQUIRES, slot::MAX_KEY, topic::MAX_LABELS};
use muster_engine::run::RunState;
use muster_flow::admission::bounds;
use muster_store::Action;
use serde_json::{Value, json};

use crate::{access::Scope, limits};

const TOPIC: &str = r"^[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*$";
const TENANT: &str = "^[a-z0-9][a-z0-9_-]{0,63}$";
const WORKER: &str = "^[A-Za-z0-9_-]{1,64}$";
/// The key of a label.
const LABEL: &str = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$";
/// Any text without control characters.
const PRINTABLE: &str = r"^[^\x00-\x1f\x7f-\x9f]*$";
/// Visible ASCII characters without spaces.
const VISIBLE: &str = "^[!-~]+$";
/// A `traceparent` of W3C Trace Context whose ids are not zero.
const TRACEPARENT: &str = "^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$";
/// An idempotency key, bare or quoted. Spaces may be inside, not at an end.
pub(super) const IDEMPOTENCY_KEY: &str = r#"^([!#-~]([ -~]{0,254}[!-~])?|"[!-~]([ -~]{0,254}[!-~])?")$"#;

/// Every field with a bound: the schema, the field, and what its JSON Schema says in addition.
fn rows() -> Vec<(&'static str, &'static str, Value)> {
    let call = json!({"minItems": 1, "maxItems": limits::MOST_CALL});
    let worker = json!({"pattern": WORKER});
    let fence = whole(&limits::FENCE);
    let job = json!({"format": "uuid"});
    let lease = whole(&limits::LEASE_MS);
    let wait = whole(&limits::WAIT_MS);
    let kept = whole(&limits::RETENTION_MS);
    vec![
        ("Submit", "topic", topic()),
        ("Submit", "priority", words(Priority::ALL.iter().map(|word| word.as_str()))),
        ("Submit", "labels", labels(MAX_LABELS)),
        ("Submit", "requires", requires()),
        ("Submit", "concurrency_key", json!({"pattern": VISIBLE, "maxLength": MAX_KEY})),
        ("Submit", "run_at", moment()),
        ("Submit", "delay_ms", whole(&bounds::DELAY_MS)),
        ("Submit", "start_by", moment()),
        ("Submit", "start_within_ms", whole(&bounds::SPAN_MS)),
        ("Submit", "deadline", moment()),
        ("Submit", "expire_in_ms", whole(&bounds::SPAN_MS)),
        ("Submit", "timeout_ms", whole(&bounds::TIMEOUT_MS)),
        ("Submit", "on_lost_lease", words(OnLostLease::ALL.iter().map(|word| word.as_str()))),
        ("Submit", "durability", words(Durability::ALL.iter().map(|word| word.as_str()))),
        ("Submit", "traceparent", json!({"pattern": TRACEPARENT})),
        ("Retry", "max_attempts", whole(&bounds::ATTEMPTS)),
        ("Backoff", "initial_ms", whole(&bounds::DELAY_MS)),
        ("Backoff", "factor", number(&bounds::FACTOR)),
        ("Backoff", "max_ms", whole(&bounds::DELAY_MS)),
        ("Backoff", "jitter", number(&bounds::JITTER)),
        ("BatchRequest", "items", json!({"maxItems": limits::MOST_BATCH})),
        ("BatchItem", "idempotency_key", json!({"pattern": IDEMPOTENCY_KEY})),
        ("CancelRequest", "reason", reason()),
        ("RetryRequest", "topic", topic()),
        ("RetryRequest", "priority", words(Priority::ALL.iter().map(|word| word.as_str()))),
        ("LeaseRequest", "request_id", json!({"pattern": VISIBLE, "maxLength": 128})),
        ("LeaseRequest", "worker_id", worker.clone()),
        ("LeaseRequest", "topics", json!({"minItems": 1, "items": topic()})),
        ("LeaseRequest", "provides", labels(MAX_REQUIRES)),
        ("LeaseRequest", "max", whole(&(1..=limits::MOST_CALL as u64))),
        ("LeaseRequest", "wait_ms", wait.clone()),
        ("LeaseRequest", "lease_ms", lease.clone()),
        ("ExtendRequest", "worker_id", worker.clone()),
        ("ExtendRequest", "wait_ms", wait),
        ("ExtendRequest", "lease_ms", lease.clone()),
        ("ExtendRequest", "items", call.clone()),
        ("ExtendItem", "job_id", job.clone()),
        ("ExtendItem", "fence", fence.clone()),
        ("Progress", "percent", number(&limits::PERCENT)),
        ("Progress", "message", json!({"maxLength": limits::MOST_PROGRESS_MESSAGE})),
        ("CompleteRequest", "worker_id", worker.clone()),
        ("CompleteRequest", "items", call.clone()),
        ("CompleteItem", "job_id", job.clone()),
        ("CompleteItem", "fence", fence.clone()),
        ("CompleteItem", "result_size", whole(&limits::CUT_RESULT)),
        ("CompleteItem", "result_preview", json!({"maxLength": limits::MOST_PREVIEW})),
        ("FailRequest", "worker_id", worker.clone()),
        ("FailRequest", "items", call.clone()),
        ("FailItem", "job_id", job.clone()),
        ("FailItem", "fence", fence.clone()),
        ("Failure", "code", json!({"pattern": PRINTABLE, "minLength": 1, "maxLength": limits::MOST_ERROR_CODE})),
        ("Failure", "retry_in_ms", whole(&limits::WORKER_DELAY_MS)),
        ("ReleaseRequest", "worker_id", worker),
        ("ReleaseRequest", "items", call),
        ("ReleaseItem", "job_id", job.clone()),
        ("ReleaseItem", "fence", fence),
        ("ReleaseItem", "delay_ms", whole(&limits::WORKER_DELAY_MS)),
        ("BulkRequest", "action", words(Action::OF_JOBS.iter().map(|word| word.as_str()))),
        ("BulkRequest", "rate_per_s", whole(&limits::BULK_RATE)),
        ("BulkRequest", "canary", whole(&limits::CANARY)),
        ("BulkFilter", "state", json!({"items": words(State::ALL.iter().map(|word| word.as_str()))})),
        ("RunBulkRequest", "action", words(Action::OF_RUNS.iter().map(|word| word.as_str()))),
        ("RunBulkRequest", "rate_per_s", whole(&limits::BULK_RATE)),
        ("RunBulkRequest", "canary", whole(&limits::CANARY)),
        ("RunBulkFilter", "state", json!({"items": words(RunState::ALL.iter().map(|word| word.as_str()))})),
        ("RunBulkFilter", "workflow", topic()),
        ("RunBulkFilter", "version", whole(&limits::VERSION)),
        ("RunBulkFilter", "parent_run_id", job.clone()),
        ("RunBulkFilter", "created_after", moment()),
        ("RunBulkFilter", "created_before", moment()),
        ("RunBulkFilter", "finished_after", moment()),
        ("RunBulkFilter", "finished_before", moment()),
        ("BulkFilter", "topic", topic()),
        ("BulkFilter", "run_id", job),
        ("BulkFilter", "created_after", moment()),
        ("BulkFilter", "created_before", moment()),
        ("BulkFilter", "finished_after", moment()),
        ("BulkFilter", "finished_before", moment()),
        ("RunCancelRequest", "reason", reason()),
        ("StepCompleteRequest", "reason", reason()),
        ("RerunRequest", "version", whole(&limits::VERSION)),
        ("RunRequest", "labels", labels(MAX_LABELS)),
        ("RunRequest", "version", whole(&limits::VERSION)),
        ("TopicSettings", "max_backlog", whole(&limits::BACKLOG)),
        ("TopicSettings", "timeout_ms", whole(&bounds::TIMEOUT_MS)),
        ("TopicSettings", "lease_ms", lease),
        ("TopicSettings", "schema", json!({"type": ["object", "null"]})),
        ("Concurrency", "max", whole(&limits::CONCURRENCY)),
        ("Concurrency", "per_key", whole(&limits::CONCURRENCY)),
        ("Rate", "per_s", number(&limits::RATE)),
        ("Rate", "burst", whole(&limits::BURST)),
        ("TopicRetention", "succeeded_ms", kept.clone()),
        ("TopicRetention", "failed_ms", kept),
        ("KeyRequest", "name", json!({"pattern": PRINTABLE, "maxLength": limits::MOST_KEY_NAME})),
        ("KeyRequest", "tenant", json!({"pattern": TENANT})),
        ("KeyRequest", "scopes", json!({"minItems": 1, "items": words(Scope::ALL.iter().map(|scope| scope.as_str()))})),
        ("KeyRequest", "topics", json!({"maxItems": limits::MOST_GLOBS, "items": glob()})),
        ("KeyRequest", "expires_at", moment()),
        ("RotateRequest", "overlap_ms", whole(&limits::OVERLAP_MS)),
    ]
}

/// Adds all rows to a document. `own` gives the name of the schema that requests use. A repeat changes nothing.
pub(super) fn add(document: &mut Value, own: impl Fn(&str) -> String) {
    for (schema, field, bounds) in rows() {
        let schema = &mut document["components"]["schemas"][own(schema)];
        let Some(property) = schema.get_mut("properties").and_then(|all| all.get_mut(field)) else { continue };
        // A nullable field may be null whatever its words are.
        let nullable = property["type"].as_array().is_some_and(|types| types.contains(&json!("null")));
        merge(property, &bounds);
        if let Some(words) = property.get_mut("enum").and_then(Value::as_array_mut).filter(|_| nullable) {
            words.push(Value::Null);
        }
    }
}

/// Adds every member of `more`, and the members of its objects.
fn merge(into: &mut Value, more: &Value) {
    for (name, value) in more.as_object().into_iter().flatten() {
        match (into.get_mut(name), value) {
            (Some(Value::Object(_)), Value::Object(_)) => merge(&mut into[name], value),
            _ => into[name] = value.clone(),
        }
    }
}

/// A text for people.
fn reason() -> Value {
    json!({"pattern": r"^[^\x00]*$", "maxLength": limits::MOST_REASON})
}

fn topic() -> Value {
    json!({"pattern": TOPIC, "maxLength": 128})
}

/// A topic with stars for any characters.
fn glob() -> Value {
    let (plain, stars) = ("[a-z0-9._-]*", limits::MOST_STARS);
    json!({"pattern": format!(r"^{plain}(\*{plain}){{0,{stars}}}$"), "minLength": 1, "maxLength": limits::MOST_GLOB})
}

fn moment() -> Value {
    json!({"format": "date-time"})
}

fn labels(most: usize) -> Value {
    let value = json!({"maxLength": 256, "pattern": PRINTABLE});
    json!({"maxProperties": most, "propertyNames": {"pattern": LABEL}, "additionalProperties": value})
}

/// Labels of which one names a worker.
fn requires() -> Value {
    let mut labels = labels(MAX_REQUIRES);
    labels["properties"] = json!({"worker": {"type": "string", "pattern": WORKER}});
    labels
}

fn words<'a>(words: impl Iterator<Item = &'a str>) -> Value {
    json!({"enum": words.collect::<Vec<_>>()})
}

fn whole(range: &RangeInclusive<u64>) -> Value {
    json!({"minimum": range.start(), "maximum": range.end()})
}

fn number(range: &RangeInclusive<f64>) -> Value {
    json!({"minimum": range.start(), "maximum": range.end()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_bounds_a_field_that_exists() {
        let document: Value = serde_json::from_slice(&crate::routes::document(None)).unwrap();
        for (schema, field, bounds) in rows() {
            let schemas = &document["components"]["schemas"];
            let of = [format!("{schema}Input"), schema.to_owned()].into_iter().find(|name| schemas.get(name).is_some());
            let property = &schemas[of.expect(schema)]["properties"][field];
            assert!(
                property.as_object().is_some_and(|had| had.len() > bounds.as_object().unwrap().len()),
                "{schema}.{field}: {property}"
            );
        }
    }
}
