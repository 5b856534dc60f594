//! How an operation on a run is read, carried out and answered.
//!
//! Promises: an operation is tried on a copy of the run first, so that a refused one leaves no entry in the audit log; the
//! entry is written before the operation is saved. Leaves to others: what each operation takes (`operations`), and what it
//! does (`muster_runs`, `muster_engine`).

use axum::{extract::FromRequestParts, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, request::Parts};
use muster_domain::{Act, OperationId, ProblemCode, RunId};
use muster_engine::{
    run::{Event, Outcome, Refusal, Run},
    value::{self, ParseFault},
};
use muster_runs::{Ask, OperateRefused, Operated};
use serde_json::{Value, value::RawValue};

use super::super::{Submitter, json};
use crate::{
    access::Scope,
    json::{Faults, Object},
    limits::MOST_RESULT,
    problem::Problem,
    runs::find,
    state::Gateway,
    submit::take_reason,
    view::run::{RunParts, run},
};

/// The id of a run in a path, and the name behind it.
pub(in crate::routes) struct RunPartPath(pub(super) RunId, pub(super) String);

impl FromRequestParts<Gateway> for RunPartPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<RunPartPath, Problem> {
        let none = || Problem::new(ProblemCode::NotFound, "there is no such run");
        let path = axum::extract::Path::<(String, String)>::from_request_parts(parts, gateway).await;
        let (id, name) = path.map_err(|_| none())?.0;
        Ok(RunPartPath(id.parse().map_err(|_| none())?, name))
    }
}

/// An operation that somebody asks for.
pub(super) struct Asked {
    pub(super) id: RunId,
    /// The id of the operation.
    pub(super) op: String,
    pub(super) ask: Ask,
    /// Its entry in the audit log.
    pub(super) act: Act,
}

/// Carries out an operation of an operator, if the run as it is now allows it.
pub(super) async fn carry_out(gateway: &Gateway, by: &Submitter, asked: Asked) -> Result<Response, Problem> {
    let Asked { id, op, ask, act } = asked;
    let kept = find(gateway, &by.caller, id).await?;
    if let Ask::Complete { step, .. } | Ask::Skip { step, .. } = &ask
        && kept.run.plan().place(step).is_none()
    {
        return Err(Problem::new(ProblemCode::NotFound, format!("run {id} has no step {step}")));
    }
    let at = gateway.flow.store.now().max(kept.run.now());
    let mut trial = kept.clone();
    match trial.apply(&Event { at, what: ask.event(&op) })?.outcome {
        // Only this operation can be refused although its aim is reached.
        Outcome::Refused(Refusal::NothingToUndo) => return respond(by, &kept.run, true),
        Outcome::Refused(why) => return Err(refused(id, why, &kept.run)),
        Outcome::Nothing => {}
        // The id of the act is derived, so that a repeated request writes the same act.
        Outcome::Applied => {
            gateway.tell(Act { id: format!("run:{id}:{op}"), ..act.target(format!("run/{id}")) }).await?;
        }
    }
    let done = gateway.runs.operate(&by.caller.tenant, id, &op, &ask).await;
    answer(by, id, done)
}

pub(super) fn answer(by: &Submitter, id: RunId, done: Result<Operated, OperateRefused>) -> Result<Response, Problem> {
    match done {
        Ok(Operated { kept, before }) => respond(by, &kept.run, before),
        Err(OperateRefused::NotFound) => Err(Problem::no_run(id)),
        Err(OperateRefused::Refused { why: Refusal::NothingToUndo, kept }) => respond(by, &kept.run, true),
        Err(OperateRefused::Refused { why, kept }) => Err(refused(id, why, &kept.run)),
        Err(OperateRefused::Fault(fault)) => Err(fault.into()),
    }
}

/// The run after an operation, without its steps.
fn respond(by: &Submitter, after: &Run, before: bool) -> Result<Response, Problem> {
    let values = by.caller.has(Scope::Payloads);
    let parts = RunParts { input: values, output: values, ..RunParts::HEAD };
    let mut response = json(StatusCode::OK, run(after, parts)?);
    if before && by.key.is_some() {
        response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

pub(in crate::routes) fn refused(id: RunId, why: Refusal, run: &Run) -> Problem {
    let state = run.state();
    match why {
        Refusal::RunDone => Problem::new(ProblemCode::RunDone, format!("run {id} ended before, as {state}")),
        Refusal::RunNotDone => Problem::new(ProblemCode::RunNotDone, format!("run {id} is {state}")),
        Refusal::NotRunning if state.is_end() => {
            Problem::new(ProblemCode::RunDone, format!("run {id} ended before, as {state}"))
        }
        Refusal::NotRunning => Problem::new(ProblemCode::WrongState, format!("the step of run {id} is not running")),
        Refusal::WrongState | Refusal::NothingToUndo => {
            Problem::new(ProblemCode::WrongState, format!("run {id} is {state}"))
        }
        Refusal::TooManySignals => {
            Problem::new(ProblemCode::SignalsFull, format!("run {id} holds 1,000 unread signals, or 1 MiB of them"))
        }
        Refusal::SignalTooLarge => {
            Problem::new(ProblemCode::PayloadTooLarge, format!("a signal has at most {MOST_RESULT} bytes"))
        }
        Refusal::Value(fault) => Problem::new(ProblemCode::InvalidRequest, format!("the value {fault}")),
    }
}

/// The id of an operation: the same for the same key.
pub(in crate::routes) fn op_id(by: &Submitter, run: RunId, what: &str) -> String {
    match &by.key {
        Some(key) => OperationId::derive("run", &by.caller.tenant, &format!("{run}\0{what}\0{key}")),
        None => OperationId::mint(0),
    }
    .to_string()
}

/// The id of an operation that ends a step by hand. A step ends once, so the same request is the same operation even
/// without a key.
pub(super) fn hand_id(by: &Submitter, run: RunId, what: &str, step: &str, body: &Bytes) -> String {
    match &by.key {
        Some(_) => op_id(by, run, &format!("{what} {step}")),
        None => {
            let text = String::from_utf8_lossy(body);
            OperationId::derive("run-step", &by.caller.tenant, &format!("{run}\0{what}\0{step}\0{text}")).to_string()
        }
    }
}

/// Takes a field that holds any JSON of at most `most` bytes.
pub(in crate::routes) fn take_value(o: &mut Object<'_>, name: &str, most: usize, faults: &mut Faults) -> Option<Value> {
    let raw = o.take(name)?;
    read_value(raw, (o.at(), name), most, faults)
}

/// Reads a value of at most `most` bytes that a run is to hold: a field of the object at a pointer.
pub(in crate::routes) fn read_value(
    raw: &RawValue,
    (at, name): (&str, &str),
    most: usize,
    faults: &mut Faults,
) -> Option<Value> {
    if raw.get().len() > most {
        faults.add(ProblemCode::PayloadTooLarge, at, name, format_args!("has at most {most} bytes"));
        return None;
    }
    value::parse(raw.get().as_bytes()).map_err(|why| faults.invalid(at, name, why)).ok()
}

/// Checks the body of an operation without fields: it is empty, or an object without any.
pub(super) fn read_nothing(body: &Bytes) -> Result<(), Problem> {
    if body.is_empty() {
        return Ok(());
    }
    let mut faults = Faults::default();
    Object::from_body(body)?.finish(&mut faults);
    faults.into_result()
}

pub(in crate::routes) fn read_cancel(body: &Bytes) -> Result<(bool, String), Problem> {
    if body.is_empty() {
        return Ok((true, String::new()));
    }
    let mut faults = Faults::default();
    let mut o = Object::from_body(body)?;
    let compensate = o.boolean("compensate", &mut faults).unwrap_or(true);
    let reason = take_reason(&mut o, &mut faults);
    o.finish(&mut faults);
    faults.into_result()?;
    Ok((compensate, reason))
}

pub(in crate::routes) fn read_complete(body: &Bytes) -> Result<(Value, String), Problem> {
    if body.is_empty() {
        return Ok((Value::Null, String::new()));
    }
    let mut faults = Faults::default();
    let mut o = Object::from_body(body)?;
    let output = take_value(&mut o, "output", MOST_RESULT, &mut faults);
    let reason = take_reason(&mut o, &mut faults);
    o.finish(&mut faults);
    faults.into_result()?;
    Ok((output.unwrap_or(Value::Null), reason))
}

pub(in crate::routes) fn read_signal(body: &Bytes) -> Result<Value, Problem> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    value::parse(body).map_err(|why| match why {
        ParseFault::Json(_) => Problem::new(ProblemCode::InvalidJson, why.to_string()),
        ParseFault::Value(fault) => Problem::field(ProblemCode::InvalidRequest, "", fault.to_string()),
    })
}
