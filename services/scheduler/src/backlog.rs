//! Releases queued jobs onto the bus as their window has room.
//!
//! Knows: the order of a release, which a model was asked about: claim the head of the queue for
//! a few seconds, dispatch by version, publish, forward the home, only then remove the entry.
//! Promises: nothing is popped, so whoever dies on the way leaves an entry that the next claim
//! finishes; an entry whose job is `dispatched` already is published again before it is removed;
//! whoever could not dispatch leaves the entry. Leaves to others: how many fit (`window`), who
//! goes first (the queue).

use std::{sync::Arc, time::Duration};

use muster_domain::{Event, Head, JobId, Outcome, State, Time, job::next_look};
use muster_flow::{Offering, offer_of};
use muster_store::{Fields, Moved, QueueEntry, Step, StoreError};
use muster_telemetry::{Histogram, observe};
use muster_wire::v1::{JobEvent, Offer};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    desk::Desk,
    events,
    lanes::{Lane, PerLane},
};

/// How long a claim holds.
const CLAIM: Duration = Duration::from_secs(5);
/// Entries released in one round.
const ROUND: u64 = 256;

/// Answers pokes until stopped.
pub(crate) async fn run(desk: &Arc<Desk>, pokes: &mut mpsc::UnboundedReceiver<Arc<Lane>>, stop: &CancellationToken) {
    loop {
        let lane = tokio::select! {
            () = stop.cancelled() => return,
            lane = pokes.recv() => lane,
        };
        let Some(lane) = lane else { return };
        desk.lanes.answered(&lane);
        // Enough rounds under way: they see the room that this poke is about.
        let Some(turn) = lane.turn() else { continue };
        let (desk_of_round, stopping) = (desk.clone(), stop.clone());
        desk.in_flight.spawn("release", async move {
            let drained = release(&desk_of_round, &lane, &stopping).await;
            drop(turn);
            // Room or jobs that came after the last look of this round, when a poke found no turn.
            if !drained && lane.can_release() && !stopping.is_cancelled() {
                desk_of_round.lanes.poke(&lane);
            }
        });
    }
}

/// Round after round, while jobs wait and there is room. True if the queue gave less than asked.
async fn release(desk: &Desk, lane: &Arc<Lane>, stop: &CancellationToken) -> bool {
    while !stop.is_cancelled() {
        let wanted = {
            let mut window = lane.window();
            let wanted = window.waiting().min(ROUND);
            window.take(wanted)
        };
        if wanted == 0 {
            return false;
        }
        let claimed = desk.store().claim_queued(&lane.tenant, &lane.topic, wanted as usize, CLAIM).await;
        let Ok(entries) = claimed else {
            lane.window().give_back(wanted);
            return true;
        };
        let found = entries.len() as u64;
        {
            let mut window = lane.window();
            window.give_back(wanted.saturating_sub(found));
            window.claimed(found, found < wanted);
        }
        if !entries.is_empty() {
            muster_flow::failpoint!("release.after_claim");
            round(desk, lane, entries).await;
        }
        lane.window().unclaimed(found);
        if found < wanted {
            return true;
        }
    }
    true
}

/// What becomes of claimed entries.
#[derive(Default)]
struct Sorted {
    offers: Vec<Offer>,
    offered: Vec<Ready>,
    /// Some may stand on the stream already: the same message id would swallow them.
    again: bool,
    /// Of jobs that are somewhere else by now.
    over: Vec<QueueEntry>,
    /// Places in the window that stay empty.
    unused: u64,
}

struct Ready {
    entry: QueueEntry,
    look: Duration,
    event: JobEvent,
}

async fn round(desk: &Desk, lane: &Arc<Lane>, entries: Vec<QueueEntry>) {
    let ids: Vec<JobId> = entries.iter().map(|entry| entry.job).collect();
    let steps = entries.iter().map(|e| Step::new(e.job, Event::Dispatch, e.version.into())).collect();
    // Spec and payload never change, so they may be read while the job moves.
    let (moved, records) = tokio::join!(desk.store().apply(steps), desk.store().read(&ids, Fields::PAYLOAD));
    muster_flow::failpoint!("release.after_apply");
    let mut sorted = Sorted::default();
    for ((entry, moved), record) in entries.into_iter().zip(moved).zip(records) {
        match standing(&moved) {
            Standing::Offered { head, now, first } => match record {
                Ok(Some(record)) => {
                    if first {
                        observe_wait(head);
                    }
                    sorted.again |= !first;
                    let look = next_look(head, now).remaining(now);
                    let event = events::moved(entry.job, lane, head);
                    sorted.offers.push(offer_of(&record, head));
                    sorted.offered.push(Ready { entry, look, event });
                }
                // Dispatched, not offered: the entry stays, and its next claim offers it.
                _ => sorted.unused += 1,
            },
            Standing::Elsewhere => {
                sorted.unused += 1;
                sorted.over.push(entry);
            }
            Standing::Unknown => sorted.unused += 1,
        }
    }
    lane.window().give_back(sorted.unused);
    publish(desk, lane, sorted).await;
}

/// Publish, forward, remove: in this order.
async fn publish(desk: &Desk, lane: &Arc<Lane>, sorted: Sorted) {
    let Sorted { offers, offered, over: mut finished, again, .. } = sorted;
    let how = Offering { many: lane.window().is_hot(), again };
    let published = if offers.is_empty() { Vec::new() } else { desk.flow.offer(offers, how).await };
    muster_flow::failpoint!("release.after_offer");
    let (mut stand, mut homes, mut news) = (PerLane::default(), Vec::new(), Vec::new());
    let mut entries = Vec::new();
    for (ready, result) in offered.into_iter().zip(published) {
        if result.is_err() {
            lane.window().give_back(1);
            continue;
        }
        stand.add(lane);
        homes.push((ready.entry.job, ready.look));
        news.push(ready.event);
        entries.push(ready.entry);
    }
    desk.published(&stand, how.many);
    if desk.forward(&homes).await.is_ok() {
        finished.extend(entries);
    }
    muster_flow::failpoint!("release.after_forward");
    if !finished.is_empty() && desk.store().remove_queued(&finished).await.is_ok() {
        lane.window().dequeued(finished.len() as u64);
    }
    events::tell(desk.bus(), news).await;
}

enum Standing<'a> {
    /// It is `dispatched`, by us or by somebody who may have died before publishing.
    Offered { head: &'a Head, now: Time, first: bool },
    /// It has moved on, or is gone: the entry is a leftover.
    Elsewhere,
    /// The store did not say: the entry stays.
    Unknown,
}

fn standing(moved: &Result<Moved, StoreError>) -> Standing<'_> {
    match moved {
        Err(_) => Standing::Unknown,
        Ok(moved) => match &moved.head {
            Some(head) if head.state() == State::Dispatched => {
                Standing::Offered { head, now: moved.now, first: moved.outcome == Outcome::Applied }
            }
            _ => Standing::Elsewhere,
        },
    }
}

/// From acceptance to dispatch, where nothing but the backlog lay between: pending, queued and
/// dispatched are a job's first three versions.
fn observe_wait(head: &Head) {
    if head.version == 3 {
        observe(Histogram::DispatchLatency, &[], head.since.since(head.created_at).as_secs_f64());
    }
}
