//! The five calls of a worker that speaks HTTP. This file reads requests and writes responses; `workers` does the
//! rest.

pub(super) mod read;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;

use super::json;
use crate::{
    auth::Caller,
    body::{BATCH, Posted, SINGLE},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view,
    workers::{Leased, Stands},
};

/// Ask for work. The jobs in the answer run from now on; the same `worker_id` and `request_id` get
/// the same jobs again, so a lost answer costs nothing.
#[utoipa::path(
    post, path = "/api/v1/worker/lease", tag = "workers",
    request_body = schema::LeaseRequest,
    responses(
        (status = 200, description = "Jobs to run, perhaps none", body = schema::LeaseAnswer),
        (status = "4XX", description = "Refused", body = schema::Problem),
        (status = 503, description = "A store is away; repeat the call as it is", body = schema::Problem),
    )
)]
pub(super) async fn lease(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let asked = read::lease(&body.bytes)?;
    asked.topics.iter().try_for_each(|topic| caller.may_touch(topic))?;
    let (items, drain) = gateway.workers.lease(&caller, &asked).await?;
    let body = view::document(|json| {
        json.list("items", |json| {
            items.iter().for_each(|leased| json.object(None, |json| write_leased(json, leased)));
        });
        json.boolean("drain", drain);
    });
    Ok(json(StatusCode::OK, body))
}

/// Extend the leases of jobs, and report progress. With `wait_ms` it answers early when a held job is cancelled.
#[utoipa::path(
    post, path = "/api/v1/worker/extend", tag = "workers",
    request_body = schema::ExtendRequest,
    responses(
        (status = 200, description = "How each attempt stands", body = schema::StandingList),
        (status = 503, description = "A store is away; repeat the call as it is", body = schema::Problem),
    )
)]
pub(super) async fn extend(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
    body: Posted<BATCH>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let asked = read::extend(&body.bytes)?;
    Ok(answer(&gateway.workers.extend(&caller, &asked).await?))
}

/// Report success. Answered once it is settled; a repeat is `ok`.
#[utoipa::path(
    post, path = "/api/v1/worker/complete", tag = "workers",
    request_body = schema::CompleteRequest,
    responses(
        (status = 200, description = "How each attempt stands", body = schema::StandingList),
        (status = 503, description = "Not settled yet; repeat the call as it is", body = schema::Problem),
    )
)]
pub(super) async fn complete(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
    body: Posted<BATCH>,
) -> Result<Response, Problem> {
    settle(&gateway, &caller, params, &body.bytes, read::completed).await
}

/// Report failure. Answered once it is settled; a repeat is `ok`.
#[utoipa::path(
    post, path = "/api/v1/worker/fail", tag = "workers",
    request_body = schema::FailRequest,
    responses(
        (status = 200, description = "How each attempt stands", body = schema::StandingList),
        (status = 503, description = "Not settled yet; repeat the call as it is", body = schema::Problem),
    )
)]
pub(super) async fn fail(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
    body: Posted<BATCH>,
) -> Result<Response, Problem> {
    settle(&gateway, &caller, params, &body.bytes, read::failed).await
}

/// Give jobs back; the attempt is not counted. Never after complete or fail: repeat those instead.
#[utoipa::path(
    post, path = "/api/v1/worker/release", tag = "workers",
    request_body = schema::ReleaseRequest,
    responses(
        (status = 200, description = "How each attempt stands", body = schema::StandingList),
        (status = 503, description = "Not settled yet; repeat the call as it is", body = schema::Problem),
    )
)]
pub(super) async fn release(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    settle(&gateway, &caller, params, &body.bytes, read::released).await
}

async fn settle(
    gateway: &Gateway,
    caller: &Caller,
    params: Params,
    body: &Bytes,
    read: impl Fn(&Bytes) -> Result<read::Reports, Problem>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let read::Reports { worker, items } = read(body)?;
    Ok(answer(&gateway.workers.settle(caller, worker.as_ref(), &items).await?))
}

fn write_leased(json: &mut view::Json, leased: &Leased) {
    json.text("job_id", &leased.job.to_string());
    json.text("topic", &leased.topic);
    if !leased.payload.is_empty() {
        json.raw("payload", &leased.payload);
    }
    json.object(Some("labels"), |json| leased.labels.iter().for_each(|(key, value)| json.text(key, value)));
    json.integer("attempt", leased.attempt.into());
    json.integer("max_attempts", leased.max_attempts.into());
    json.integer("fence", leased.fence);
    json.integer("lease_ms", millis(leased.lease));
    if leased.timeout_ms > 0 {
        json.integer("timeout_ms", leased.timeout_ms.into());
    }
    json.moment("deadline", leased.deadline);
    if !leased.traceparent.is_empty() {
        json.text("traceparent", &leased.traceparent);
    }
}

fn answer(stands: &[Stands]) -> Response {
    let body = view::document(|json| {
        json.list("items", |json| {
            for one in stands {
                json.object(None, |json| {
                    let (status, reason) = one.words();
                    json.text("job_id", &one.job.to_string());
                    json.text("status", status);
                    if let Some(reason) = reason {
                        json.text("reason", reason);
                    }
                    if let Some(lease) = one.lease {
                        json.integer("lease_ms", millis(lease));
                    }
                });
            }
        });
    });
    json(StatusCode::OK, body)
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
