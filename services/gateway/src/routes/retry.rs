//! Retry by hand: creates a new job with the old job's spec. An ended job never changes its state again.

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_flow::failpoint;
use muster_store::Fields;

use super::{
    Id, Submitter,
    control::not_done,
    jobs::{find, note_acceptance, visible},
    json,
};
use crate::{
    body::{Posted, SINGLE},
    json::Faults,
    problem::Problem,
    query::Params,
    refusals::retry_refused,
    retries::{commit, prepare},
    schema,
    state::Gateway,
    submit::read_overrides,
    view::JobView,
};

/// Retry an ended job as a new one, perhaps with another payload, topic or priority. The new id is
/// derived from the old one, so that a double click makes one job.
#[utoipa::path(
    post, path = "/api/v1/jobs/{id}/retry", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    request_body = schema::RetryRequest,
    responses(
        (status = 202, description = "The new job", body = schema::Job),
        (status = 404, description = "No such job, or not yours", body = schema::Problem),
        (status = 409, description = "`job_not_done`, or `already_retried` with other overrides", body = schema::Problem),
    )
)]
pub(super) async fn retry(
    State(gateway): State<Gateway>,
    Submitter { caller, trace, .. }: Submitter,
    Id(id): Id,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let mut faults = Faults::default();
    let overrides = read_overrides(&body.bytes, &mut faults)?;
    faults.into_result()?;
    let old = find(&gateway, &caller, id, Fields::PAYLOAD).await?;
    if !old.head.state().is_end() {
        return Err(not_done(&old));
    }
    let first = old.retried_as.is_none();
    let admitted = prepare(&gateway, &caller, old, overrides, trace).await?;
    // Write the act once only the stores can still refuse the retry.
    if first {
        gateway.tell(gateway.act(&caller, "job_retry_by_hand").job(id)).await?;
        failpoint!("retry.after_audit");
    }
    let made = commit(&gateway, id, admitted).await?;
    let (job, accepted) = made.map_err(retry_refused)?;
    let record = if accepted.replayed { find(&gateway, &caller, job.id, visible(&caller)).await.ok() } else { None };
    let mut response = json(StatusCode::ACCEPTED, JobView::accepted(&job, &accepted, record.as_ref()).document());
    note_acceptance(&mut response, job.id, &accepted);
    Ok(response)
}
