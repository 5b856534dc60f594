//! What people do to a run: cancel, pause, resume, compensate, signal, and end a step by hand.
//!
//! Promises: an operation is saved and published before it is answered, and the workflow service goes on from there. The
//! same `Idempotency-Key` twice is one operation. A refused operation changes nothing and leaves no entry in the audit
//! log.

use axum::{extract::State, response::Response};
use muster_domain::ProblemCode;
use muster_engine::definition::check_signal_name;
use muster_runs::{Ask, InputFault};

use super::{
    super::{RunPath, Submitter},
    asked::{
        Asked, RunPartPath, answer, carry_out, hand_id, op_id, read_cancel, read_complete, read_nothing, read_signal,
    },
};
use crate::{
    body::{Posted, SINGLE},
    json::Faults,
    problem::{Fault, Problem},
    query::Params,
    runs::seen,
    schema,
    state::Gateway,
    submit::read_reason,
};

/// Cancel a run. What it did is undone by its compensations, unless the request says otherwise. Repeating it is fine; a
/// run that ended otherwise is a conflict.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/cancel", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    request_body = schema::RunCancelRequest,
    responses(
        (status = 200, description = "The run, which is cancelled or being stopped", body = schema::Run),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
        (status = 409, description = "It ended otherwise: `run_done`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn cancel(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPath(id): RunPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let (compensate, reason) = read_cancel(&body.bytes)?;
    let act = gateway.act(&by.caller, "run_cancel").with("compensate", compensate).with("reason", reason.as_str());
    let asked = Asked { id, op: op_id(&by, id, "cancel"), ask: Ask::Cancel { compensate, reason }, act };
    carry_out(&gateway, &by, asked).await
}

/// Pause a run: it starts no step and no job until it is resumed. What runs, runs on.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/pause", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    responses(
        (status = 200, description = "The run, which is paused", body = schema::Run),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
        (status = 409, description = "It has ended: `run_done`, or it is queued or stopping: `wrong_state`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn pause(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPath(id): RunPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    read_nothing(&body.bytes)?;
    let act = gateway.act(&by.caller, "run_pause");
    carry_out(&gateway, &by, Asked { id, op: op_id(&by, id, "pause"), ask: Ask::Pause, act }).await
}

/// Resume a paused run.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/resume", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    responses(
        (status = 200, description = "The run, which goes on", body = schema::Run),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
        (status = 409, description = "It has ended: `run_done`, or it is queued or stopping: `wrong_state`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn resume(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPath(id): RunPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    read_nothing(&body.bytes)?;
    let act = gateway.act(&by.caller, "run_resume");
    carry_out(&gateway, &by, Asked { id, op: op_id(&by, id, "resume"), ask: Ask::Resume, act }).await
}

/// Run the compensations of an ended run that are missing: those that failed, and those that a cancel left out. The
/// state of the run stays.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/compensate", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    responses(
        (status = 200, description = "The run; `compensation.state` says how far they are", body = schema::Run),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
        (status = 409, description = "It has not ended: `run_not_done`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn compensate(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPath(id): RunPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    read_nothing(&body.bytes)?;
    let act = gateway.act(&by.caller, "run_compensate");
    let asked = Asked { id, op: op_id(&by, id, "compensate"), ask: Ask::Compensate { tell: None }, act };
    carry_out(&gateway, &by, asked).await
}

/// End a running step with a result, whatever it waits for.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/steps/{step}/complete", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("step" = String, Path, description = "The place of the step"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    request_body = schema::StepCompleteRequest,
    responses(
        (status = 200, description = "The run", body = schema::Run),
        (status = 404, description = "No such run, or not yours; or no such step", body = schema::Problem),
        (status = 409, description = "The step is not running: `wrong_state`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn complete(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPartPath(id, step): RunPartPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let (result, reason) = read_complete(&body.bytes)?;
    let act = gateway.act(&by.caller, "run_step_complete").with("step", step.as_str()).with("reason", reason.as_str());
    let op = hand_id(&by, id, "complete", &step, &body.bytes);
    carry_out(&gateway, &by, Asked { id, op, ask: Ask::Complete { step, result, reason }, act }).await
}

/// Pass over a running step: it counts as skipped.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/steps/{step}/skip", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("step" = String, Path, description = "The place of the step"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    request_body = schema::CancelRequest,
    responses(
        (status = 200, description = "The run", body = schema::Run),
        (status = 404, description = "No such run, or not yours; or no such step", body = schema::Problem),
        (status = 409, description = "The step is not running: `wrong_state`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn skip(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPartPath(id, step): RunPartPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let mut faults = Faults::default();
    let reason = read_reason(&body.bytes, &mut faults)?;
    faults.into_result()?;
    let act = gateway.act(&by.caller, "run_step_skip").with("step", step.as_str()).with("reason", reason.as_str());
    let op = hand_id(&by, id, "skip", &step, &body.bytes);
    carry_out(&gateway, &by, Asked { id, op, ask: Ask::Skip { step, reason }, act }).await
}

/// Send a run a signal. It is kept until a step reads it, also if no step waits for it yet or the run is paused. With an
/// `Idempotency-Key` a repeat is the same signal.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/signals/{name}", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("name" = String, Path, description = "The name of the signal"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    request_body = schema::RunSignal,
    responses(
        (status = 200, description = "The run", body = schema::Run),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
        (status = 409, description = "It has ended: `run_done`, or holds too many signals: `signals_full`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn signal(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPartPath(id, name): RunPartPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    check_signal_name(&name).map_err(|why| Problem::field(ProblemCode::InvalidRequest, "/path/name", why))?;
    let value = read_signal(&body.bytes)?;
    let (run, ()) = seen(&gateway, &by.caller, id, |_| Ok(())).await?;
    let faults = gateway.runs.check_signal(&run, &name, &value).await?;
    if !faults.is_empty() {
        let fault = |InputFault { pointer, detail }| Fault { code: ProblemCode::InvalidRequest, pointer, detail };
        return Err(Problem::fields(faults.into_iter().map(fault).collect()));
    }
    let op = op_id(&by, id, &format!("signal {name}"));
    let done = gateway.runs.operate(&by.caller.tenant, id, &op, &Ask::Signal { name, body: value }).await;
    answer(&by, id, done)
}
