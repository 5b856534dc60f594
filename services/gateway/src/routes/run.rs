//! One run: read it, wait for its end.

use axum::{extract::State, response::Response};
use http::StatusCode;

use super::{RunPath, json};
use crate::{
    access::Scope,
    auth::Caller,
    json::Faults,
    problem::Problem,
    query::Params,
    runs, schema,
    state::Gateway,
    view::run::{self, RunParts},
};

/// Read a run with its steps. With `wait_ms` the answer waits for its end. Input, output and results need the scope
/// `payloads`; without it they are left out.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("wait_ms" = Option<u64>, Query, description = "Wait so long for the end, at most 30,000"),
    ),
    responses(
        (status = 200, description = "The run", body = schema::Run),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
    )
)]
pub(super) async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    RunPath(id): RunPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let wait = params.wait(&mut faults);
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let kept = match wait {
        Some(wait) => runs::wait_for(&gateway, &caller, id, wait).await?,
        None => runs::find(&gateway, &caller, id).await?,
    };
    Ok(json(StatusCode::OK, run::run(&kept.run, visible(&caller))?))
}

/// The parts of a run that the caller may see.
pub(super) fn visible(caller: &Caller) -> RunParts {
    if caller.has(Scope::Payloads) { RunParts::ALL } else { RunParts::STEPS }
}
