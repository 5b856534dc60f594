//! Explains the state of one job.

use std::time::Duration;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_bus::{Bus, subjects};
use muster_domain::{JobId, Line, State as JobState, job::Known, slot::Limit};
use muster_store::{Fields, LeaderLock, LockHolder, QueueEntry, Record, SlotHeld};
use tokio::time::timeout;

use super::{Id, jobs::find, json};
use crate::{
    auth::Caller,
    explain::{PlacesSeen, Seen, Serving, SlotsSeen, explain as explained, may_be_offered_as_it_is},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
};

/// How soon after it was stored a submit is on the bus.
const SENT_WITHIN: Duration = Duration::from_secs(1);
/// How long the bus may take to answer a question about its messages.
const BUS_LIMIT: Duration = Duration::from_millis(500);
/// How many holders of slots are named.
const NAMED: usize = 16;

/// Explain a job: what it waits for, which worker holds it, what happens next and when; in sentences and as data.
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
    let mut record = find(&gateway, &caller, id, Fields::NONE).await?;
    let told = gateway.flow.settings.topic(record.spec.tenant.as_str(), record.spec.topic.as_str());
    let may_stand = may_be_offered_as_it_is(&record, told.as_deref(), store.now());
    let decided = may_stand && is_decided(&gateway.flow.bus, &record).await;
    if decided {
        // Read the record again: only a read after the check shows what the scheduler decided.
        record = find(&gateway, &caller, id, Fields::NONE).await?;
    }
    let home = store.home_of(id).await?;
    let place = match record.head.state() {
        // A pending job may be in the backlog although its record does not say so.
        JobState::Queued | JobState::Pending => store.queue_place(&QueueEntry::of(&record)).await?,
        _ => None,
    };
    let leader = match home {
        Some(_) => store.leader(LeaderLock::Reconciler).await?,
        None => None,
    };
    let shared = gateway.flow.settings.is_shared(record.spec.topic.as_str());
    let workers = store.read_workers().await?.map(|seen| Serving::of(&record, &seen, shared));
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
    let max = told.as_ref().and_then(|told| told.settings.concurrency?.max);
    let places = match max.filter(|_| record.head.state() == JobState::Queued) {
        Some(max) => {
            let limit = Limit::Topic(record.spec.topic.clone());
            let (holders, held, _) = store.read_slots(&record.spec.tenant, &limit).await?;
            Some(PlacesSeen { max: max.into(), held_by: named(holders), held })
        }
        None => None,
    };
    let as_it_is = decided && place.is_none() && deciding.is_none() && record.head.state() == JobState::Pending;
    let offers = if as_it_is { offers(&gateway.flow.bus, &record).await } else { None };
    let (deciding, told) = (deciding.as_ref().map(LockHolder::instance), told.as_deref());
    let (slots, places) = (slots.as_ref(), places.as_ref());
    let leader = leader.as_ref().map(LockHolder::instance);
    let now = store.now();
    let seen = Seen { record: &record, home, place, offers, workers, deciding, leader, told, slots, places, now };
    Ok(json(StatusCode::OK, explained(&seen).document()))
}

/// Whether a scheduler has handled the submit of a job. False if the bus does not answer.
async fn is_decided(bus: &Bus, record: &Record) -> bool {
    match timeout(BUS_LIMIT, bus.oldest_unhandled_submit()).await {
        Ok(Known::Empty) => true,
        Ok(Known::Oldest(sent)) => record.head.since + SENT_WITHIN < sent,
        Ok(Known::Unknown) | Err(_) => false,
    }
}

/// The number of messages with offers on the job's line; `None` if the bus does not answer.
async fn offers(bus: &Bus, record: &Record) -> Option<u64> {
    let subject = subjects::offer(&record.spec.tenant, Line::of(&record.spec.topic, &record.spec.requires));
    timeout(BUS_LIMIT, bus.subject_count(&subject)).await.ok()?.ok()
}

fn named(holders: Vec<SlotHeld>) -> Vec<JobId> {
    holders.into_iter().take(NAMED).map(|held| held.slot.job).collect()
}
