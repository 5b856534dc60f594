//! Why one job stands where it stands.

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::{JobId, State as JobState, slot::Limit};
use muster_store::{Fields, QueueEntry, SlotHeld};

use super::{Id, jobs::find, json};
use crate::{
    Gateway,
    auth::Caller,
    explain::{PlacesSeen, Seen, Serving, SlotsSeen, explain as explained},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
};

/// Holders that are named.
const NAMED: usize = 16;

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
        // A pending job may stand in line without a word of it in its record.
        JobState::Queued | JobState::Pending => store.queue_place(&QueueEntry::of(&record)).await?,
        _ => None,
    };
    // Nice to know: an explanation without it is still one.
    let shared = gateway.flow.settings.is_shared(record.spec.topic.as_str());
    let workers = store.read_workers().await.ok().flatten().map(|seen| Serving::of(&record, &seen, shared));
    let deciding = match record.head.state() {
        JobState::Pending => store.deciding(id).await?,
        _ => None,
    };
    let slots = match record.head.state() {
        JobState::Queued if !record.spec.concurrency_key.is_empty() => {
            let key = record.spec.concurrency_key.clone();
            let limit = Limit::Key(key.clone());
            let (holders, held, waiting) = store.read_slots(&record.spec.tenant, &limit).await?;
            Some(SlotsSeen { key, held_by: named(holders), held, waiting })
        }
        _ => None,
    };
    let told = gateway.flow.settings.topic(record.spec.tenant.as_str(), record.spec.topic.as_str());
    let max = told.as_ref().and_then(|told| told.settings.concurrency?.max);
    let places = match max.filter(|_| record.head.state() == JobState::Queued) {
        Some(max) => {
            let limit = Limit::Topic(record.spec.topic.clone());
            let (holders, held, _) = store.read_slots(&record.spec.tenant, &limit).await?;
            Some(PlacesSeen { max: max.into(), held_by: named(holders), held })
        }
        None => None,
    };
    let (deciding, told) = (deciding.as_deref(), told.as_deref());
    let (slots, places) = (slots.as_ref(), places.as_ref());
    let seen = Seen { record: &record, home, place, workers, deciding, told, slots, places, now: store.now() };
    Ok(json(StatusCode::OK, explained(&seen).document()))
}

fn named(holders: Vec<SlotHeld>) -> Vec<JobId> {
    holders.into_iter().take(NAMED).map(|held| held.slot.job).collect()
}
