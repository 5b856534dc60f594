//! Starts of runs.
//!
//! Promises: a start that is answered with 2xx is in Redis, and its run comes to an end whatever fails; a repeat with the
//! same `Idempotency-Key` finds the same run, also if the workflow was changed or deleted meanwhile, and costs no token of
//! the tenant's rate. A start that is refused stores nothing; only its signal may be refused by a run that was there
//! before. Leaves to others: the order of writes (`muster_runs`).

use std::time::Duration;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use muster_domain::{Labels, ProblemCode, RunId, WorkflowName, ids::SHARDS, topic::MAX_LABELS};
use muster_engine::definition::check_signal_name;
use muster_flow::admission::bounds::MOST_PAYLOAD;
use muster_runs::{Ask, InputFault, OperateRefused, Operated, Start, StartRefused, Started};
use serde_json::Value;

use super::{
    Named, Submitter, json,
    run::visible,
    runs::asked::{op_id, read_value, refused as not_now, take_value},
    workflows::views::{named, no_workflow, stored},
};
use crate::{
    body::{Posted, SINGLE},
    canonical::hash_fields,
    json::{Faults, Object},
    limits::{MOST_RESULT, VERSION},
    problem::{Fault, MUSTER_BUS, Problem},
    query::Params,
    runs::{self, topics},
    schema,
    state::Gateway,
    submit::read_labels,
    view::run::{self, RunParts},
};

/// Start a run of a workflow: of its latest version, or of another one. With an `Idempotency-Key` a repeat finds the same
/// run; with `wait_ms` the answer waits for the run's end. With `signal` the run is started if it is not there, and gets
/// the signal, which is the field `signal` of the body; this needs an `Idempotency-Key`. The same key with another signal
/// signals the same run. The API key must cover every topic of the definition.
#[utoipa::path(
    post, path = "/api/v1/workflows/{name}/runs", tag = "workflows",
    params(
        ("name" = String, Path, description = "The workflow"),
        ("wait_ms" = Option<u64>, Query, description = "Wait so long for the end, at most 30,000"),
        ("signal" = Option<String>, Query, description = "The name of a signal that the run gets"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    request_body = schema::RunRequest,
    responses(
        (status = 202, description = "Started", body = schema::Run),
        (status = 200, description = "It ended within wait_ms", body = schema::Run),
        (status = 404, description = "No such workflow, or not yours", body = schema::Problem),
        (status = 409, description = "As many runs go on as the workflow allows: `concurrency_full`; or the run takes no signal: `run_done`, `signals_full`", body = schema::Problem),
        (status = 422, description = "A field was refused, or the input does not fit its schema", body = schema::Problem),
    )
)]
pub(super) async fn start(
    State(gateway): State<Gateway>,
    submitter: Submitter,
    Named(name): Named,
    mut params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let wait = params.wait(&mut faults);
    let signal = params.read("signal", &mut faults, |name| check_signal_name(name).map(|()| name.to_owned()));
    if signal.is_some() && submitter.key.is_none() {
        faults.invalid("/header", "Idempotency-Key", "is required with the parameter `signal`");
    }
    params.finish(faults)?;
    let name = named(&name)?;
    let mut asked = read(&body.bytes, &name)?;
    let signal = match (signal, asked.signal.take()) {
        (None, Some(_)) => {
            let why = "is the body of a signal, which the parameter `signal` must name";
            return Err(Problem::field(ProblemCode::InvalidRequest, "/signal", why));
        }
        (name, body) => name.map(|name| Signal { name, body: body.unwrap_or(Value::Null) }),
    };
    let mut started = Box::pin(begin(&gateway, &submitter, name, asked, signal.as_ref())).await?;
    if let Some(signal) = signal {
        started = Box::pin(deliver(&gateway, &submitter, started, signal)).await?;
    }
    Box::pin(answer(&gateway, &submitter, started, wait)).await
}

/// A start as the client requested it.
pub(super) struct Asked {
    input: Option<Value>,
    labels: Labels,
    version: Option<u32>,
    signal: Option<Value>,
    /// The hash of the request without its signal.
    hash: [u8; 16],
}

/// A signal that the run gets with its start.
struct Signal {
    name: String,
    body: Value,
}

/// Reads the body of a start; an empty body is a start without input.
pub(super) fn read(body: &Bytes, name: &WorkflowName) -> Result<Asked, Problem> {
    let body = if body.is_empty() { &Bytes::from_static(b"{}") } else { body };
    let mut faults = Faults::default();
    let mut o = Object::from_body(body)?;
    let fields = o.fields();
    let input = o.verbatim("input").and_then(|raw| read_value(raw, (o.at(), "input"), MOST_PAYLOAD, &mut faults));
    let labels = read_labels(&mut o, "labels", MAX_LABELS, &mut faults);
    let version = o.integer("version", &mut faults, VERSION).and_then(|n| u32::try_from(n).ok());
    let signal = take_value(&mut o, "signal", MOST_RESULT, &mut faults);
    o.finish(&mut faults);
    faults.into_result()?;
    let own = Value::from(name.as_str()).to_string();
    let told = fields
        .iter()
        .filter(|(name, value)| *value != "null" && name != "signal")
        .map(|(name, value)| (name.as_ref(), *value));
    Ok(Asked { input, labels, version, signal, hash: hash_fields(told.chain([("workflow", own.as_str())])) })
}

/// Starts the run, or finds the one that an earlier try has started.
async fn begin(
    gateway: &Gateway,
    submitter: &Submitter,
    workflow: WorkflowName,
    asked: Asked,
    signal: Option<&Signal>,
) -> Result<Started, Problem> {
    let Submitter { caller, key, .. } = submitter;
    let derived = key.as_ref().map(|key| RunId::derive("run", &caller.tenant, key));
    let known = match derived {
        Some(id) => gateway.flow.store.have_runs(&[id]).await.pop().unwrap_or(Ok(false))?,
        None => false,
    };
    let version = match known {
        true => asked.version,
        false => Some(choose(gateway, submitter, &workflow, asked.version, signal).await?),
    };
    let started = gateway.runs.start(Start {
        id: derived.unwrap_or_else(|| RunId::mint(fastrand::u8(..SHARDS))),
        tenant: caller.tenant.clone(),
        workflow,
        version,
        input: asked.input,
        labels: asked.labels,
        principal: caller.key.id.clone(),
        topics: caller.key.topics.clone(),
        hash: derived.is_some().then_some(asked.hash),
        parent: None,
        depth: 0,
    });
    let started = started.await.map_err(refused)?;
    topics(started.kept.run.plan().definition()).into_iter().try_for_each(|topic| caller.may_touch(topic))?;
    Ok(started)
}

/// The version that a new run begins with, if the caller may start it. Takes a token of the tenant's rate.
async fn choose(
    gateway: &Gateway,
    submitter: &Submitter,
    name: &WorkflowName,
    asked: Option<u32>,
    signal: Option<&Signal>,
) -> Result<u32, Problem> {
    let caller = &submitter.caller;
    let shown = gateway.flow.store.shown_versions(&caller.tenant, std::slice::from_ref(name)).await?;
    let latest = shown.into_iter().next().flatten().ok_or_else(|| no_workflow(name))?;
    let version = asked.unwrap_or(latest);
    let workflow = stored(gateway, caller, name, Some(version)).await?.ok_or_else(|| {
        let why = format!("workflow {name} has no version {version}; the latest is {latest}");
        Problem::field(ProblemCode::InvalidRequest, "/version", why)
    })?;
    topics(&workflow.definition).into_iter().try_for_each(|topic| caller.may_touch(topic))?;
    if let Some(signal) = signal {
        fits(workflow.check_signal(&signal.name, &signal.body))?;
    }
    gateway.take_submit(caller).await?;
    Ok(version)
}

/// Refuses a signal that does not fit the schema of the steps that wait for it.
fn fits(faults: Vec<InputFault>) -> Result<(), Problem> {
    let fault = |InputFault { pointer, detail }: InputFault| Fault {
        code: ProblemCode::InvalidRequest,
        pointer: format!("/signal{pointer}"),
        detail,
    };
    if faults.is_empty() { Ok(()) } else { Err(Problem::fields(faults.into_iter().map(fault).collect())) }
}

/// Sends the run its signal. A repeat of the request is the same signal.
async fn deliver(
    gateway: &Gateway,
    submitter: &Submitter,
    started: Started,
    signal: Signal,
) -> Result<Started, Problem> {
    let (id, Signal { name, body }) = (started.kept.id, signal);
    fits(gateway.runs.check_signal(&started.kept.run, &name, &body).await?)?;
    let op = op_id(submitter, id, &format!("start {name} {body}"));
    match gateway.runs.operate(&submitter.caller.tenant, id, &op, &Ask::Signal { name, body }).await {
        Ok(Operated { kept, .. }) => Ok(Started { kept, ..started }),
        Err(OperateRefused::NotFound) => Err(Problem::no_run(id)),
        Err(OperateRefused::Refused { why, kept }) => Err(not_now(id, why, &kept.run)),
        Err(OperateRefused::Fault(fault)) => Err(fault.into()),
    }
}

pub(super) fn refused(refusal: StartRefused) -> Problem {
    let detail = refusal.to_string();
    match refusal {
        StartRefused::UnknownWorkflow(_) => Problem::new(ProblemCode::NotFound, detail),
        StartRefused::Input(faults) => {
            let fault = |InputFault { pointer, detail }: InputFault| Fault {
                code: ProblemCode::InvalidRequest,
                pointer: format!("/input{pointer}"),
                detail: format!("{detail} (the schema of the workflow)"),
            };
            Problem::fields(faults.into_iter().map(fault).collect())
        }
        StartRefused::TooDeep => Problem::new(ProblemCode::InvalidRequest, detail),
        StartRefused::Key(_) => {
            let why = format!("gives no key for the concurrency of the workflow: {detail}");
            Problem::field(ProblemCode::InvalidRequest, "/input", why)
        }
        StartRefused::Full { .. } => Problem::new(ProblemCode::ConcurrencyFull, detail),
        StartRefused::Mismatch => Problem::new(ProblemCode::IdempotencyMismatch, detail),
        StartRefused::Fault(fault) => fault.into(),
    }
}

/// The answer to a start that is stored, whatever happens from now on. A run that was there before, or was waited for, is
/// shown with the values that the caller may see; a new one without those that its client has just sent.
async fn answer(
    gateway: &Gateway,
    submitter: &Submitter,
    started: Started,
    wait: Option<Duration>,
) -> Result<Response, Problem> {
    let caller = &submitter.caller;
    let Started { kept, replayed, bus_deferred } = started;
    let id = kept.id;
    let parts = if replayed || wait.is_some() { visible(caller) } else { RunParts::STEPS };
    let ended = kept.run.state().is_end();
    let (body, ended) = match wait {
        Some(wait) if !ended => {
            // A request that waits holds no whole run. If none can be read later, the answer is the run as it is now.
            let now = run::run(&kept.run, RunParts::STEPS)?;
            drop(kept);
            match runs::wait_for(gateway, caller, id, wait).await {
                Ok(kept) => (run::run(&kept.run, parts)?, kept.run.state().is_end()),
                Err(_) => (now, false),
            }
        }
        _ => (run::run(&kept.run, parts)?, wait.is_some() && ended),
    };
    let status = if ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = json(status, body);
    let headers = response.headers_mut();
    if let Ok(place) = HeaderValue::try_from(format!("/api/v1/runs/{id}")) {
        headers.insert(header::LOCATION, place);
    }
    if replayed {
        headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    if bus_deferred {
        headers.insert(MUSTER_BUS, HeaderValue::from_static("deferred"));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: &str, body: &str) -> [u8; 16] {
        read(&Bytes::from(body.to_owned()), &WorkflowName::parse(name).unwrap()).unwrap().hash
    }

    #[test]
    fn the_hash_tells_starts_apart_and_repeats_not() {
        let one = hash("order", r#"{"input": {"a": 1, "b": [2]}, "labels": {"k": "v"}}"#);
        assert_eq!(one, hash("order", r#"{"labels":{"k":"v"},"version":null,"input":{"b":[2],"a":1}}"#));
        assert_ne!(one, hash("other", r#"{"input": {"a": 1, "b": [2]}, "labels": {"k": "v"}}"#));
        assert_ne!(one, hash("order", r#"{"input": {"a": 1, "b": [3]}, "labels": {"k": "v"}}"#));
        assert_ne!(one, hash("order", r#"{"input": {"a": 1, "b": [2]}, "labels": {"k": "v"}, "version": 1}"#));
        assert_eq!(hash("order", ""), hash("order", "{}"));
        assert_eq!(hash("order", r#"{"signal": 1}"#), hash("order", "{}"), "another signal is for the same run");
    }

    #[test]
    fn wrong_fields_are_named_together() {
        let name = WorkflowName::parse("order").unwrap();
        let body = Bytes::from_static(br#"{"input": 1, "labels": {"a b": "v"}, "version": 0, "x": 1}"#);
        let refused = read(&body, &name).err().unwrap();
        let pointers: Vec<&str> = refused.errors.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/labels/a b", "/version", "/x"]);
    }
}
