//! Why one job stands where it stands.

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::State as JobState;
use muster_store::{Fields, QueueEntry, Record};

use super::{Id, jobs::find, json};
use crate::{
    Gateway,
    auth::Caller,
    explain::{Seen, Serving, explain as explained},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
};

/// Explain a job: what it waits for, who holds it, what happens next and when; in sentences and as
/// data.
#[utoipa::path(
    get, path = "/api/v1/jobs/{id}/explain", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "Why it stands where it stands", body = schema::Explanation),
        (status = 404, description = "No such job, or not yours", body = schema::Problem),
    )
)]
pub(super) async fn explain(
    State(gateway): State<Gateway>,
    caller: Caller,
    Id(id): Id,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let store = &gateway.flow.store;
    let record = find(&gateway, &caller, id, Fields::NONE).await?;
    let home = store.home_of(id).await?;
    let place = match record.head.state() {
        JobState::Queued => store.queue_place(&entry(&record)).await?,
        _ => None,
    };
    // Nice to know: an explanation without it is still one.
    let workers = store.read_workers().await.ok().flatten().map(|snapshot| Serving::of(&record, &snapshot));
    let seen = Seen { record: &record, home, place, workers, now: store.now() };
    Ok(json(StatusCode::OK, explained(&seen).document()))
}

/// The job's entry in the backlog.
fn entry(record: &Record) -> QueueEntry {
    QueueEntry {
        tenant: record.spec.tenant.clone(),
        topic: record.spec.topic.clone(),
        priority: record.spec.priority,
        job: record.id,
        version: record.head.version,
        since: record.head.since,
    }
}
