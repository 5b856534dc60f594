//! Tries every field of every request against both its reader and its description in the OpenAPI document.
//!
//! Knows: a valid body, or several, for each operation with a body. Promises: together the bodies of an operation have
//! every field that the document describes; each field is left out, and replaced by values of every type, around every
//! bound and beyond every word; the reader and the document accept and refuse the same. A difference is a fault of one
//! of them, unless [`intended`] gives a reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use jsonschema::Validator;
use muster_chassis::settings::load;
use muster_domain::{JobSpec, Tenant, Topic, WorkflowName};
use muster_engine::definition::{Format, read_named};
use muster_flow::admission::{Refusal, bounds};
use serde_json::{Map, Value, json};

use super::{batch, bulk, keys, run_start, runs, workers::read as worker};
use crate::{
    access::{Operation, Scopes},
    auth::{Caller, Key},
    config::{Config, read_values},
    definitions,
    endpoints::HTTP,
    json::{Faults, Object},
    problem::Problem,
    submit::{Place, ReadJob, read_job, read_overrides, read_reason},
    topics::read_settings,
};

const JOB: &str = "0198c0de-0000-7000-8000-000000000000";
const AT: &str = "2026-11-16T06:00:00Z";

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_slice(&super::document(None)).expect("the document is JSON"));

/// Valid bodies of an operation; `None` if it takes none.
fn bodies(operation: Operation) -> Option<Vec<Value>> {
    let submit = json!({
        "topic": "a.b", "payload": {"a": [1]}, "priority": "high", "labels": {"k": "v"}, "requires": {"worker": "w", "gpu": "1"},
        "concurrency_key": "c", "run_at": AT, "start_by": AT, "deadline": AT, "timeout_ms": 1_000, "on_lost_lease": "fail",
        "durability": "memory", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "retry": {"max_attempts": 3, "backoff": {"initial_ms": 1, "factor": 2.5, "max_ms": 10, "jitter": 0.5}},
    });
    let relative = json!({"topic": "t", "delay_ms": 1, "start_within_ms": 2, "expire_in_ms": 3});
    let keyed = |job: &Value| {
        let mut job = job.clone();
        job["idempotency_key"] = json!("k 1");
        job
    };
    let attempt = |more: Value| {
        let mut item = json!({"job_id": JOB, "fence": 5});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"worker_id": "w-1", "items": [item]})
    };
    let filter = json!({
        "state": ["failed"], "topic": "t", "labels": {"k": "v"}, "error_code": "e", "worker": "w", "run_id": JOB,
        "created_after": AT, "created_before": AT, "finished_after": AT, "finished_before": AT,
    });
    Some(match operation {
        Operation::SubmitJob => vec![submit, relative],
        Operation::SubmitBatch => vec![json!({"items": [keyed(&submit)]}), json!({"items": [keyed(&relative)]})],
        Operation::CancelJob | Operation::PauseTopic | Operation::SkipStep => vec![json!({"reason": "why"})],
        Operation::CancelRun => vec![json!({"compensate": false, "reason": "why"})],
        Operation::CompleteStep => vec![json!({"output": {"a": [1]}, "reason": "why"})],
        Operation::SignalRun => vec![json!({"a": [1]})],
        Operation::StartRunBulk => {
            let filter = json!({
                "state": ["running"], "workflow": "order", "version": 1, "labels": {"k": "v"}, "error_code": "e",
                "parent_run_id": JOB, "created_after": AT, "created_before": AT, "finished_after": AT,
                "finished_before": AT,
            });
            vec![json!({"action": "cancel", "filter": filter, "dry_run": true, "rate_per_s": 1, "canary": 1})]
        }
        Operation::RerunRun => {
            vec![json!({"from": "a", "input": {"a": [1]}, "version": 1, "dry_run": true}), json!({"failed_items": "a"})]
        }
        Operation::RetryJob => vec![json!({"payload": [1], "topic": "t", "priority": "low"})],
        Operation::LeaseJobs => vec![json!({
            "request_id": "r", "worker_id": "w-1", "topics": ["t"], "provides": {"gpu": "1"}, "max": 2, "wait_ms": 3,
            "lease_ms": 5_000,
        })],
        Operation::ExtendLeases => {
            let mut body = attempt(json!({"progress": {"percent": 12.5, "message": "m", "data": [1]}}));
            body["wait_ms"] = json!(1);
            body["lease_ms"] = json!(5_000);
            vec![body]
        }
        Operation::CompleteJobs => {
            vec![attempt(json!({"result": {"a": 1}})), attempt(json!({"result_size": 300_000, "result_preview": "x"}))]
        }
        Operation::FailJobs => vec![attempt(json!({
            "error": {"code": "c", "message": "m", "details": [1], "retryable": false, "retry_in_ms": 1},
        }))],
        Operation::ReleaseJobs => vec![attempt(json!({"delay_ms": 1}))],
        Operation::StartBulk => {
            vec![json!({"action": "retry", "filter": filter, "dry_run": true, "rate_per_s": 1, "canary": 1})]
        }
        Operation::PutTopic => vec![json!({
            "concurrency": {"max": 2, "per_key": 1}, "rate": {"per_s": 1.5, "burst": 1}, "max_backlog": 1,
            "retry": {"max_attempts": 3, "backoff": {"initial_ms": 1, "factor": 2.5, "max_ms": 10, "jitter": 0.5}},
            "timeout_ms": 1, "lease_ms": 5_000, "retention": {"succeeded_ms": 1_200_000, "failed_ms": 1_200_000},
            "schema": {"type": "object"}, "shared": false,
        })],
        Operation::PutConfig => vec![json!({"topics": "open"})],
        Operation::CreateKey => {
            vec![json!({"name": "n", "tenant": "acme", "scopes": ["read"], "topics": ["mail.*"], "expires_at": AT})]
        }
        Operation::RotateKey => vec![json!({"overlap_ms": 1})],
        Operation::ValidateWorkflow | Operation::PutWorkflow => vec![json!({"steps": [{"id": "a", "set": 1}]})],
        Operation::StartRun => vec![json!({"input": {"a": [1]}, "labels": {"k": "v"}, "version": 1, "signal": [1]})],
        _ => return None,
    })
}

/// Reads a body as the route of the operation does.
fn read(operation: Operation, body: &Bytes) -> Result<(), Problem> {
    let defaults = |topic: Topic| Ok::<_, Refusal>(JobSpec::new(Tenant::default(), topic));
    let mut faults = Faults::default();
    match operation {
        Operation::SubmitJob => {
            let object = Object::from_body(body)?;
            let job = read_job(body, object, &Tenant::default(), &defaults, Place::Alone, true, &mut faults);
            faults.into_result()?;
            within_bounds(job.expect("no fault and no job"));
            Ok(())
        }
        Operation::SubmitBatch => batch::read_items(body, &caller(), &defaults, true)?
            .into_iter()
            .try_for_each(|item| item.map(within_bounds)),
        Operation::CancelRun => runs::asked::read_cancel(body).map(drop),
        Operation::CompleteStep => runs::asked::read_complete(body).map(drop),
        Operation::SignalRun => runs::asked::read_signal(body).map(drop),
        Operation::RerunRun => runs::rerun::read(body).map(drop),
        Operation::StartRunBulk => runs::bulk::read(body).map(drop),
        Operation::CancelJob | Operation::PauseTopic | Operation::SkipStep => {
            read_reason(body, &mut faults)?;
            faults.into_result()
        }
        Operation::RetryJob => {
            read_overrides(body, &mut faults)?;
            faults.into_result()
        }
        Operation::LeaseJobs => worker::lease(body).map(drop),
        Operation::ExtendLeases => worker::extend(body).map(drop),
        Operation::CompleteJobs => worker::completed(body).map(drop),
        Operation::FailJobs => worker::failed(body).map(drop),
        Operation::ReleaseJobs => worker::released(body).map(drop),
        Operation::StartBulk => bulk::read(body).map(drop),
        Operation::PutTopic => read_settings(body).map(drop),
        Operation::PutConfig => read_values(&CONFIG, body).map(drop),
        Operation::CreateKey => keys::read(body, &caller()).map(drop),
        Operation::RotateKey => keys::read_overlap(body).map(drop),
        Operation::ValidateWorkflow | Operation::PutWorkflow => {
            read_named(body, Format::Json, None).map(drop).map_err(definitions::refused)
        }
        Operation::StartRun => run_start::read(body, &WorkflowName::parse("order").expect("a name")).map(drop),
        other => panic!("{other:?} takes a body: it needs a reader here"),
    }
}

/// A job that a reader took is one that admission takes.
fn within_bounds(job: ReadJob) {
    bounds::check(job.spec, job.payload).expect("the reader knows every bound");
}

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let values = load(crate::SERVICE, crate::SETTINGS, &[], &BTreeMap::new()).expect("good settings").values;
    Config::new(Arc::new(values))
});

/// A caller with every scope, for all tenants.
fn caller() -> Caller {
    let key = Key {
        id: "k".into(),
        name: String::new(),
        tenant: None,
        scopes: Scopes::all(),
        topics: Vec::new(),
        expires_at: None,
    };
    Caller { tenant: Tenant::default(), named: false, key: Arc::new(key) }
}

/// Why the reader refuses a value that the document allows. There is no reason for the opposite.
fn intended(operation: Operation, at: &str, schema: &Value, value: Option<&Value>) -> Option<&'static str> {
    const RULE: &str = "a rule between two fields, which their descriptions state";
    if operation == Operation::CompleteJobs && at.ends_with("/result_size") && value.is_none_or(Value::is_null) {
        return Some(RULE);
    }
    if operation == Operation::RerunRun && ["", "/from", "/failed_items"].contains(&at) {
        return Some(RULE);
    }
    let value = value?;
    let text = value.as_str().unwrap_or_default();
    if value.as_f64().is_some_and(|n| n.fract() == 0.0) && !value.is_u64() && !value.is_i64() {
        return Some("whole numbers are written without a fraction: other parsers may lose digits of `1.0` or `1e3`");
    }
    if schema["maxLength"].as_u64().is_some_and(|most| text.len() as u64 > most) && !text.is_ascii() {
        return Some("the length of text counts bytes of UTF-8, and JSON Schema counts characters");
    }
    if schema["format"] == "date-time" && (text.starts_with("1969") || text.starts_with("2256")) {
        return Some("the description says that times are between 1970 and 2255");
    }
    match operation {
        Operation::ValidateWorkflow | Operation::PutWorkflow => {
            Some("definitions have a schema of their own, which `muster_engine` compares with its reader")
        }
        Operation::StartBulk | Operation::StartRunBulk if at == "/action" || at.starts_with("/filter/state") => {
            Some(RULE)
        }
        Operation::PutConfig if !at.is_empty() => {
            Some("each setting has its own form, which the reference of settings describes")
        }
        _ => None,
    }
}

/// One field with another value, or without one.
struct Mutant<'a> {
    at: String,
    /// What the document says of the field.
    schema: &'a Value,
    /// `None`: the field is left out.
    value: Option<Value>,
}

impl Mutant<'_> {
    fn apply(&self, body: &Value) -> Value {
        let mut body = body.clone();
        match (&self.value, self.at.rsplit_once('/')) {
            (Some(value), _) => *body.pointer_mut(&self.at).expect("the field is there") = value.clone(),
            (None, Some((parent, name))) => {
                drop(body.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object").remove(name));
            }
            (None, None) => panic!("a body cannot be left out"),
        }
        body
    }
}

/// The fields that the document describes, those that were tried, and every mutant.
#[derive(Default)]
struct Walk<'a> {
    described: BTreeSet<String>,
    tried: BTreeSet<String>,
    mutants: Vec<Mutant<'a>>,
}

impl<'a> Walk<'a> {
    fn push(&mut self, at: &str, schema: &'a Value, value: Option<Value>) {
        self.mutants.push(Mutant { at: at.to_owned(), schema, value });
    }

    /// Tries the field at `at`, and every field in it.
    fn field(&mut self, at: &str, schema: &'a Value, value: &Value) {
        let schema = resolved(schema);
        for probe in probes(schema) {
            self.push(at, schema, Some(probe));
        }
        match value {
            Value::Object(fields) => self.object(at, schema, fields),
            Value::Array(items) if schema["items"].is_object() => self.list(at, schema, items),
            _ => {}
        }
    }

    fn object(&mut self, at: &str, schema: &'a Value, fields: &Map<String, Value>) {
        let with = |name: &str, value: Value| {
            let mut fields = fields.clone();
            fields.insert(name.to_owned(), value);
            Some(Value::Object(fields))
        };
        for name in ["surprise", "", "a b", "-a", "Ä", &"a".repeat(63), &"a".repeat(64)] {
            self.push(at, schema, with(name, json!("1")));
            self.push(at, schema, with(name, Value::Null));
        }
        let described = schema["properties"].as_object();
        for (name, inner) in described.into_iter().flatten() {
            let inside = format!("{at}/{name}");
            self.described.insert(inside.clone());
            if let Some(value) = fields.get(name) {
                self.tried.insert(inside.clone());
                self.push(&inside, inner, None);
                self.field(&inside, inner, value);
            }
        }
        // A map: any name, and values of one kind.
        if schema["additionalProperties"].is_object() {
            for n in [16, 17, 32, 33, 200] {
                let many = (0..n).map(|n| (format!("k{n}"), json!("v"))).collect();
                self.push(at, schema, Some(Value::Object(many)));
            }
            let other = fields.iter().find(|(name, _)| described.is_none_or(|known| !known.contains_key(*name)));
            if let Some((name, value)) = other {
                self.field(&format!("{at}/{name}"), &schema["additionalProperties"], value);
            }
        }
    }

    fn list(&mut self, at: &str, schema: &'a Value, items: &[Value]) {
        for n in [0, 2, 100, 101, 1_000, 1_001] {
            self.push(at, schema, Some(vec![items[0].clone(); n].into()));
        }
        self.field(&format!("{at}/0"), &schema["items"], &items[0]);
    }
}

/// The schema that a reference leads to, or the one of two that is not null.
fn resolved(schema: &Value) -> &Value {
    if let Some(name) = schema["$ref"].as_str().and_then(|to| to.strip_prefix("#/components/schemas/")) {
        return resolved(&DOCUMENT["components"]["schemas"][name]);
    }
    for choice in ["oneOf", "anyOf"] {
        let other = schema[choice].as_array().and_then(|all| all.iter().find(|one| one["type"] != "null"));
        if let Some(other) = other {
            return resolved(other);
        }
    }
    assert!(schema.get("allOf").is_none(), "schemas of requests are not composed: {schema}");
    schema
}

/// Values to try in a field.
fn probes(schema: &Value) -> Vec<Value> {
    let mut all = vec![Value::Null, json!(true), json!(7), json!("x"), json!([]), json!([null]), json!([1]), json!({})];
    if schema.get("type").is_none() && schema.get("enum").is_none() {
        return all;
    }
    let texts = [
        "", " ", "X", "a b", " a", "a.b", "a..b", "-", "a/b", "ü", "a\nb", "\0", "\u{7f}", "\u{85}", "*", "a*b*c*",
        "****",
    ];
    let times = ["2026-01-01", "1969-12-31T23:59:59Z", "2256-01-01T00:00:00Z", "2026-01-01T00:00:00+02:00", "soon"];
    let traces = [
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
    ];
    let keys = ["\"a\"", "\"a", "a\"", "\"\"", "\" a\"", "\"a b\""];
    all.extend(texts.iter().chain(&times).chain(&traces).chain(&keys).map(|text| json!(text)));
    for n in [32, 33, 63, 64, 65, 100, 101, 128, 129, 256, 257, 258, 1_000, 1_001, 4_000, 4_001, 4_096, 4_097, 70_000] {
        all.push("a".repeat(n).into());
    }
    if let Some(most) = schema["maxLength"].as_u64() {
        all.push("ü".repeat(most as usize).into());
    }
    for word in schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        all.extend([json!(word), json!(word.to_uppercase()), json!(format!("{word} "))]);
    }
    let mut whole: BTreeSet<u64> =
        [0, 1, 1_000, 1_000_000, u32::MAX.into(), 1 << 32, (1 << 53) - 1, 1 << 53, u64::MAX].into();
    let mut parts = vec![-1.0, 0.5, 1.0, 1.5, 1e15, 1e300];
    for bound in ["minimum", "maximum"] {
        if let Some(n) = schema[bound].as_u64() {
            whole.extend([n.saturating_sub(1), n, n.saturating_add(1)]);
        }
        if let Some(n) = schema[bound].as_f64() {
            parts.extend([n - 0.0001, n, n + 0.0001]);
        }
    }
    all.extend(whole.into_iter().map(Value::from));
    all.extend(parts.into_iter().map(Value::from));
    all.push(json!(-1));
    all
}

/// The validator of one schema of the document.
fn validator(schema: &Value) -> Validator {
    let mut schema = schema.as_object().expect("a schema").clone();
    schema.insert("components".to_owned(), DOCUMENT["components"].clone());
    jsonschema::options().should_validate_formats(true).build(&schema.into()).expect("a schema")
}

/// Every operation with a body: its name, and what the document says of the body.
fn requests() -> impl Iterator<Item = (Operation, &'static Value)> {
    HTTP.iter().filter_map(|(method, path, operation)| {
        let body = DOCUMENT["paths"][path][method.as_str().to_lowercase()].get("requestBody")?;
        Some((*operation, body))
    })
}

#[test]
fn readers_and_the_document_agree_on_every_field_of_every_request() {
    let (mut tries, mut differences, mut reasons) = (0, Vec::new(), BTreeSet::new());
    for (operation, asked) in requests() {
        let schema = &asked["content"]["application/json"]["schema"];
        let validator = validator(schema);
        let mut walked = Walk::default();
        for body in bodies(operation).unwrap_or_else(|| panic!("{operation:?} takes a body: it needs one here")) {
            let mut walk = Walk::default();
            walk.field("", schema, &body);
            let whole = Mutant { at: String::new(), schema, value: Some(body.clone()) };
            for mutant in std::iter::once(whole).chain(walk.mutants) {
                let mutated = mutant.apply(&body);
                let (read, valid) = (read(operation, &mutated.to_string().into()), validator.is_valid(&mutated));
                tries += 1;
                if read.is_ok() == valid {
                    continue;
                }
                let reason = intended(operation, &mutant.at, mutant.schema, mutant.value.as_ref()).filter(|_| valid);
                match reason {
                    Some(reason) => drop(reasons.insert(reason)),
                    None => {
                        let value = mutant.value.map_or("left out".to_owned(), |value| value.to_string());
                        let value: String = value.chars().take(60).collect();
                        let says = read.err().map_or("accepts it".into(), |problem| problem.detail);
                        differences
                            .push(format!("{operation:?} {}: {value}: document {valid}, reader: {says}", mutant.at));
                    }
                }
            }
            walked.described.extend(walk.described);
            walked.tried.extend(walk.tried);
        }
        assert_eq!(walked.described, walked.tried, "{operation:?}: a field that no body has");
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    assert!(tries > 10_000, "only {tries} tries");
    assert_eq!(reasons.len(), 6, "a reason that nothing needs any more: {reasons:#?}");
}

#[test]
fn a_body_that_may_be_empty_is_optional() {
    for (operation, asked) in requests() {
        let may_be_empty = read(operation, &Bytes::new()).is_ok();
        assert_eq!(asked["required"], json!(!may_be_empty), "{operation:?}");
    }
}
