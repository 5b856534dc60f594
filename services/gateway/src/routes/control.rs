//! Cancels and deletes jobs.

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use muster_domain::{JobId, ProblemCode};
use muster_flow::Cancelled;
use muster_store::{Deleted, Fields, StoreError};

use super::{Id, jobs::find, json};
use crate::{
    access::Access,
    auth::Caller,
    body::{Posted, SINGLE},
    json::Faults,
    problem::Problem,
    query::Params,
    removal::remove,
    schema,
    state::Gateway,
    submit::read_reason,
    view::JobView,
};

/// Cancel a job. Repeating it is fine; a job that ended otherwise is a conflict.
#[utoipa::path(
    post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    request_body = schema::CancelRequest,
    responses(
        (status = 200, description = "Cancelled, now or before", body = schema::Job),
        (status = 404, description = "No such job, or not yours", body = schema::Problem),
        (status = 409, description = "It ended otherwise: `job_done`", body = schema::Problem),
    )
)]
pub(super) async fn cancel(
    State(gateway): State<Gateway>,
    caller: Caller,
    Id(id): Id,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let mut faults = Faults::default();
    let reason = read_reason(&body.bytes, &mut faults)?;
    faults.into_result()?;
    let found = find(&gateway, &caller, id, Fields::NONE).await?;
    if !found.head.state().is_end() {
        let act = gateway.act(&caller, "job_cancel").job(id).with("reason", reason.as_str());
        gateway.tell(act).await?;
    }
    match gateway.flow.cancel(&caller.tenant, id, &reason).await? {
        Cancelled::Now(record) | Cancelled::Before(record) => Ok(json(StatusCode::OK, JobView::of(&record).document())),
        Cancelled::EndedOtherwise(record) => {
            Err(Problem::new(ProblemCode::JobDone, format!("job {id} ended before, as {}", record.head.state())))
        }
        Cancelled::NotFound => Err(Problem::no_job(id)),
    }
}

/// Delete an ended job. Its idempotency key stays taken for a while.
/// A job whose record cannot be read can be deleted in any state, by a key for all tenants with the scope `admin`.
#[utoipa::path(
    delete, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "No such job, or not yours, or it cannot be read and the key is one tenant's", body = schema::Problem),
        (status = 409, description = "It has not ended: `job_not_done`, or its run is kept: `job_in_run`", body = schema::Problem),
    )
)]
pub(super) async fn delete(
    State(gateway): State<Gateway>,
    caller: Caller,
    Id(id): Id,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let record = match find(&gateway, &caller, id, Fields::NONE).await {
        Err(problem) if problem.code == ProblemCode::JobUnreadable => return discard(&gateway, &caller, id).await,
        Err(problem) if problem.code == ProblemCode::NotFound => {
            forget(&gateway, &caller, id).await?;
            return Err(problem);
        }
        found => found?,
    };
    if !record.head.state().is_end() {
        return Err(not_done(&record));
    }
    if !gateway.flow.store.in_stored_runs(&[(id, record.spec.run)]).await?.is_empty() {
        return Err(Problem::new(ProblemCode::JobInRun, format!("job {id} is deleted after its run")));
    }
    gateway.tell(gateway.act(&caller, "job_delete").job(id)).await?;
    match remove(&gateway.flow, &caller.tenant, id).await? {
        Deleted::Deleted => Ok(json(StatusCode::NO_CONTENT, Bytes::new())),
        Deleted::Alive => Err(not_done(&record)),
        Deleted::Missing => Err(Problem::no_job(id)),
    }
}

/// Finishes an earlier delete that may have been interrupted after the record was gone. Otherwise the job's dead
/// letter would stay until its retention time ends.
async fn forget(gateway: &Gateway, caller: &Caller, id: JobId) -> Result<(), StoreError> {
    let store = &gateway.flow.store;
    match store.read_one(id, Fields::NONE).await {
        Err(fault) if fault.is_unreadable() => Ok(()),
        Err(fault) => Err(fault),
        Ok(Some(record)) if !record.deleted => Ok(()),
        Ok(_) => store.drop_dead_letter(&caller.tenant, id).await,
    }
}

/// Removes a job whose record cannot be read, in whatever state it is. Its tenant is unknown, so only a key for the
/// whole fleet may do this.
async fn discard(gateway: &Gateway, caller: &Caller, id: JobId) -> Result<Response, Problem> {
    caller.may(Access::Fleet)?;
    gateway.tell(gateway.act(caller, "job_delete").job(id).with("unreadable", true)).await?;
    match gateway.flow.store.delete_unreadable(id).await? {
        true => Ok(json(StatusCode::NO_CONTENT, Bytes::new())),
        false => Err(Problem::no_job(id)),
    }
}

/// The refusal for a job that has not ended yet.
pub(super) fn not_done(record: &muster_store::Record) -> Problem {
    Problem::new(ProblemCode::JobNotDone, format!("job {} is {}", record.id, record.head.state()))
}
