//! Releases queued jobs onto the bus when their window has room.
//!
//! Knows: the order of a release, which a model has verified: claim the head of the queue for a few seconds, dispatch
//! by version, publish, forward the home, and only then remove the entry. Promises: no entry is popped, so if a replica
//! dies on the way, the next claim of the entry finishes the work. A replica that cannot dispatch leaves the entry. If
//! the job is queued under another version, an entry with that version is written before the old one is removed. If the
//! job is `dispatched` already, it is published again before its entry is removed. On a hot topic, a `pending` job is
//! offered as it is, without a dispatch step. Leaves to others: how many jobs fit (`window`), the run-time settings of
//! the topic (`rules`), the order of the jobs (the queue).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_domain::{Event, Head, JobId, Outcome, State, Time, job::next_look};
use muster_flow::offer_of;
use muster_store::{Fields, Moved, QueueEntry, Record, Step, StoreError};
use muster_wire::v1::{Offer, Submit};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    context::{Context, forward_of},
    events, offers,
    release::{Ready, Renewed, Sorted, publish},
    route_state::RouteState,
    rules, slots,
};

/// How long a claim lasts. A replica that freezes while it holds a claim delays its jobs by this time.
pub(crate) const CLAIM: Duration = Duration::from_secs(2);
/// Entries released in one round.
const ROUND: u64 = 256;
/// The version of a job that is still as it was accepted.
const ACCEPTED: u32 = 1;

/// Answers pokes until stopped.
pub(crate) async fn run(
    context: &Arc<Context>,
    pokes: &mut mpsc::UnboundedReceiver<Arc<RouteState>>,
    stop: &CancellationToken,
) {
    loop {
        let route = tokio::select! {
            () = stop.cancelled() => return,
            route = pokes.recv() => route,
        };
        let Some(route) = route else { return };
        context.routes.answered(&route);
        if !context.fitness.is_fit() {
            continue;
        }
        // Enough rounds are running; they see the room that this poke is about.
        let Some(turn) = route.turn() else { continue };
        let (context_of_round, stopping) = (context.clone(), stop.clone());
        context.in_flight.spawn("release", async move {
            let drained = release(&context_of_round, &route, &stopping).await;
            drop(turn);
            // Room or jobs may have arrived after the last look of this round, while a poke got no turn.
            if !drained && route.can_release() && !stopping.is_cancelled() {
                context_of_round.routes.poke(&route);
            }
        });
    }
}

/// Runs rounds while jobs wait and there is room. False if the window or ration had no room; true in all other cases.
async fn release(context: &Arc<Context>, route: &Arc<RouteState>, stop: &CancellationToken) -> bool {
    while !stop.is_cancelled() {
        if !route.may_release() || (route.local_claims.len() == 0 && !should_look(route)) {
            return true;
        }
        let wanted = {
            let mut window = route.window();
            let wanted = window.waiting().min(ROUND).min(route.ration(&window));
            window.take(wanted)
        };
        if wanted == 0 {
            return false;
        }
        let wanted = slots::room(context, route, wanted).await;
        if wanted == 0 {
            return true;
        }
        let wanted = rules::take_tokens(context, route, wanted, stop).await;
        if wanted == 0 {
            return true;
        }
        let Ok((taken, all)) = claim(context, route, wanted as usize).await else {
            route.window().give_back(wanted);
            return true;
        };
        let found = taken.len() as u64;
        {
            let mut window = route.window();
            window.give_back(wanted.saturating_sub(found));
            window.claimed(found, all.then(|| route.local_claims.len() as u64));
        }
        if !taken.is_empty() {
            muster_flow::failpoint!("release.after_claim");
            round(context, route, taken).await;
        }
        route.window().unclaimed(found);
        if found < wanted {
            return true;
        }
    }
    true
}

/// An entry that this replica has claimed.
struct Taken {
    entry: QueueEntry,
    /// The submit, if this replica keeps it in memory.
    known: Option<Submit>,
}

impl Taken {
    fn others(entry: QueueEntry) -> Taken {
        Taken { entry, known: None }
    }
}

/// Claims up to `wanted` entries. Order: unclaimed entries that are more urgent or older than this replica's local
/// claims, the local claims, the rest. The bool is true if the queue has no more.
async fn claim(context: &Context, route: &RouteState, wanted: usize) -> Result<(Vec<Taken>, bool), StoreError> {
    let now = Instant::now();
    let ask = async |n: usize, ahead_of: Option<Time>| {
        let claimed = context.store().claim_queued(&route.tenant, &route.line, n, CLAIM, ahead_of).await?;
        if claimed.is_empty() {
            route.local_claims.found_nothing(now);
        }
        Ok::<_, StoreError>(claimed.into_iter().map(Taken::others))
    };
    let (first, look) = (route.local_claims.first(now), should_look(route));
    let mut taken = Vec::with_capacity(wanted);
    if look && first.is_some() {
        taken.extend(ask(wanted, first).await?);
    }
    let kept = route.local_claims.take(wanted.saturating_sub(taken.len()), Instant::now());
    taken.extend(kept.into_iter().map(|(entry, submit)| Taken { entry, known: Some(submit) }));
    if look && taken.len() < wanted {
        match ask(wanted - taken.len(), None).await {
            Ok(rest) => taken.extend(rest),
            Err(fault) if taken.is_empty() => return Err(fault),
            // The entries claimed so far are released all the same.
            Err(_) => return Ok((taken, false)),
        }
    }
    let all = look && taken.len() < wanted;
    Ok((taken, all))
}

/// Whether to look for unclaimed entries in Redis. A hot route skips it for a moment after a look that found none: with
/// hundreds of starts a second, that delay does not matter.
fn should_look(route: &RouteState) -> bool {
    !route.window().is_hot() || route.local_claims.should_look(Instant::now())
}

/// Gives back this replica's local claims, so that other replicas need not wait until they expire.
pub(crate) async fn give_up(context: &Context) {
    for route in context.routes.all() {
        let entries = route.local_claims.give_up(Instant::now());
        if !entries.is_empty() {
            // If the store does not answer, the claims expire.
            let _ = context.store().unclaim_queued(&entries).await;
        }
    }
}

async fn round(context: &Context, route: &Arc<RouteState>, taken: Vec<Taken>) {
    let bounded = route.max().is_some();
    let (limited, taken): (Vec<_>, Vec<_>) = taken.into_iter().partition(|taken| bounded || taken.entry.limited);
    if !limited.is_empty() {
        let next = slots::round(context, route, limited.into_iter().map(|taken| taken.entry).collect()).await;
        slots::hand_over(context, next).await;
    }
    let fast = route.window().is_hot() && !context.is_decided_outside(route);
    let (lined, held): (Vec<_>, Vec<_>) = taken.into_iter().partition(|taken| fast && taken.entry.version == ACCEPTED);
    let mut held: Vec<QueueEntry> = held.into_iter().map(|taken| taken.entry).collect();
    let mut sorted = Sorted::default();
    if !lined.is_empty() {
        held.extend(as_they_are(context, route, lined, &mut sorted).await);
    }
    if !held.is_empty() {
        dispatch(context, route, held, &mut sorted).await;
    }
    route.window().give_back(sorted.unused);
    publish(context, route, sorted).await;
}

/// Dispatches by version. Offers the jobs from their records, which are read at the same time.
async fn dispatch(context: &Context, route: &Arc<RouteState>, entries: Vec<QueueEntry>, sorted: &mut Sorted) {
    let ids: Vec<JobId> = entries.iter().map(|entry| entry.job).collect();
    let steps = entries.iter().map(|e| Step::new(e.job, Event::Dispatch, e.version.into())).collect();
    // Spec and payload never change, so they may be read while the job moves.
    let (moved, records) = tokio::join!(context.store().apply(steps), context.store().read(&ids, Fields::PAYLOAD));
    muster_flow::failpoint!("release.after_apply");
    for ((entry, moved), record) in entries.into_iter().zip(moved).zip(records) {
        match standing(&moved) {
            Standing::Offered { head, look, first } => match record {
                Ok(Some(record)) => {
                    route.learn(&record.spec.requires);
                    if first {
                        let due = record.spec.run_at.map_or(head.created_at, |at| at.resolve(head.created_at));
                        events::observe_first_dispatch(head, due.max(head.created_at));
                    }
                    sorted.again |= !first;
                    let event = Some(events::moved(entry.job, route, head, record.spec.run));
                    sorted.offers.push(offer_of(&record, head));
                    sorted.offered.push(Ready { entry, look, event });
                }
                // The record cannot be read, so no replica can offer the job, and its entry must not block the queue.
                // If the record is repaired, the check offers the job.
                Err(fault) if fault.is_unreadable() => {
                    sorted.unused += 1;
                    sorted.over.push(entry);
                }
                // Dispatched but not offered: the entry stays, and its next claim offers the job.
                _ => sorted.unused += 1,
            },
            Standing::Elsewhere { look } => {
                sorted.unused += 1;
                sorted.nearer.extend(look.map(|look| (entry.job, look)));
                sorted.over.push(entry);
            }
            Standing::Queued(head) => {
                sorted.unused += 1;
                let new = QueueEntry { version: head.version, since: head.created_at, ..entry.clone() };
                sorted.renewed.push(Renewed { old: entry, new });
            }
            Standing::Unknown => sorted.unused += 1,
        }
    }
}

/// Offers jobs that are still as they were accepted, without a dispatch step; the start compares the version. Uses the
/// submit where this replica keeps it, and reads the other records. Returns the entries whose jobs need a dispatch
/// step.
async fn as_they_are(
    context: &Context,
    route: &Arc<RouteState>,
    taken: Vec<Taken>,
    sorted: &mut Sorted,
) -> Vec<QueueEntry> {
    let unknown = taken.iter().filter(|taken| taken.known.is_none());
    let ids: Vec<JobId> = unknown.map(|taken| taken.entry.job).collect();
    let records = if ids.is_empty() { Vec::new() } else { context.store().read(&ids, Fields::PAYLOAD).await };
    let (now, mut records, mut others) = (context.store().now(), records.into_iter(), Vec::new());
    for Taken { entry, known } in taken {
        if let Some(submit) = known {
            events::observe_dispatch(Time(submit.pending_since), now);
            sorted.offers.push(offers::as_it_is(submit, now, &route.line));
            sorted.offered.push(Ready { entry, look: None, event: None });
            continue;
        }
        let stands = |record: &Record| record.head.state() == State::Pending && record.head.version == entry.version;
        let Some(record) = records.next().and_then(Result::ok).flatten().filter(stands) else {
            others.push(entry);
            continue;
        };
        route.learn(&record.spec.requires);
        events::observe_dispatch(record.head.created_at, now);
        sorted.offers.push(Offer { dispatched_at: now.0, ..offer_of(&record, &record.head) });
        sorted.offered.push(Ready { entry, look: None, event: None });
    }
    others
}

enum Standing<'a> {
    /// The job is `dispatched`, by this replica or by another one that may have died before it published.
    Offered { head: &'a Head, look: Option<Duration>, first: bool },
    /// The job is queued under another version.
    Queued(&'a Head),
    /// The job has moved on, is gone, or cannot be read, so the entry is a leftover. `look` is the time until the job's
    /// next check, if it has not ended.
    Elsewhere { look: Option<Duration> },
    /// The store did not answer: the entry stays.
    Unknown,
}

fn standing(moved: &Result<Moved, StoreError>) -> Standing<'_> {
    match moved {
        Err(fault) if fault.is_unreadable() => Standing::Elsewhere { look: None },
        Err(_) => Standing::Unknown,
        Ok(moved) => match &moved.head {
            Some(head) if head.state() == State::Dispatched => {
                Standing::Offered { head, look: forward_of(moved, head), first: moved.outcome == Outcome::Applied }
            }
            Some(head) if head.state() == State::Queued => Standing::Queued(head),
            head => {
                let lives = head.as_ref().filter(|head| !head.state().is_end());
                Standing::Elsewhere { look: lives.map(|head| next_look(head, moved.now).remaining(moved.now)) }
            }
        },
    }
}
