//! Releases queued jobs onto the bus as their window has room.
//!
//! Knows: the order of a release, which a model was asked about: claim the head of the queue for
//! a few seconds, dispatch by version, publish, forward the home, only then remove the entry.
//! Promises: nothing is popped, so whoever dies on the way leaves an entry that the next claim
//! finishes; an entry whose job is queued under another version is put there under that one before it is
//! removed; who stands in line `pending` on a topic that moves fast is offered as it is; an entry
//! whose job is `dispatched` already is published again before it is removed; whoever could not
//! dispatch leaves the entry. Leaves to others: how many fit (`window`), what the topic was told
//! about it (`rules`), who goes first (the queue).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_domain::{Event, Head, JobId, Outcome, State, Time, job::next_look};
use muster_flow::{Offering, offer_of};
use muster_store::{Fields, Moved, QueueEntry, Record, Step, StoreError};
use muster_wire::v1::{JobEvent, Offer, Submit};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    desk::{Desk, forward_of},
    events,
    lanes::{Lane, PerLane},
    lines, offers, rules, slots,
};

/// How long a claim holds.
pub(crate) const CLAIM: Duration = Duration::from_secs(5);
/// Entries released in one round.
const ROUND: u64 = 256;
/// The version of a job that nothing has happened to yet.
const ACCEPTED: u32 = 1;

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
async fn release(desk: &Arc<Desk>, lane: &Arc<Lane>, stop: &CancellationToken) -> bool {
    while !stop.is_cancelled() {
        if !lane.may_release() || (lane.kept.len() == 0 && !should_look(lane)) {
            return true;
        }
        let wanted = {
            let mut window = lane.window();
            let wanted = window.waiting().min(ROUND).min(lane.ration(&window));
            window.take(wanted)
        };
        if wanted == 0 {
            return false;
        }
        let wanted = slots::room(desk, lane, wanted).await;
        if wanted == 0 {
            return true;
        }
        let wanted = rules::take_tokens(desk, lane, wanted, stop).await;
        if wanted == 0 {
            return true;
        }
        let Ok((taken, all)) = claim(desk, lane, wanted as usize).await else {
            lane.window().give_back(wanted);
            return true;
        };
        let found = taken.len() as u64;
        {
            let mut window = lane.window();
            window.give_back(wanted.saturating_sub(found));
            window.claimed(found, all.then(|| lane.kept.len() as u64));
        }
        if !taken.is_empty() {
            muster_flow::failpoint!("release.after_claim");
            round(desk, lane, taken).await;
        }
        lane.window().unclaimed(found);
        if found < wanted {
            return true;
        }
    }
    true
}

/// An entry that is ours to release.
struct Taken {
    entry: QueueEntry,
    /// What this replica has kept of it.
    known: Option<Submit>,
}

impl Taken {
    fn others(entry: QueueEntry) -> Taken {
        Taken { entry, known: None }
    }
}

/// Who goes next. First those that anybody may claim and that go before what this replica keeps: they are more urgent, or
/// have waited for longer. Then what it keeps, then the rest. True if there is no more.
async fn claim(desk: &Desk, lane: &Lane, wanted: usize) -> Result<(Vec<Taken>, bool), StoreError> {
    let now = Instant::now();
    let ask = async |n: usize, ahead_of: Option<Time>| {
        let claimed = desk.store().claim_queued(&lane.tenant, &lane.line, n, CLAIM, ahead_of).await?;
        if claimed.is_empty() {
            lane.kept.found_nothing(now);
        }
        Ok::<_, StoreError>(claimed.into_iter().map(Taken::others))
    };
    let (first, look) = (lane.kept.first(now), should_look(lane));
    let mut taken = Vec::with_capacity(wanted);
    if look && first.is_some() {
        taken.extend(ask(wanted, first).await?);
    }
    let kept = lane.kept.take(wanted.saturating_sub(taken.len()), Instant::now());
    taken.extend(kept.into_iter().map(|(entry, submit)| Taken { entry, known: Some(submit) }));
    if look && taken.len() < wanted {
        match ask(wanted - taken.len(), None).await {
            Ok(rest) => taken.extend(rest),
            Err(fault) if taken.is_empty() => return Err(fault),
            // What is ours already is released all the same.
            Err(_) => return Ok((taken, false)),
        }
    }
    let all = look && taken.len() < wanted;
    Ok((taken, all))
}

/// Whether to look for what anybody may claim. Only where starts come by the hundreds a second does it pay to have done
/// so a moment ago, and harm nobody.
fn should_look(lane: &Lane) -> bool {
    !lane.window().is_hot() || lane.kept.should_look(Instant::now())
}

/// Gives back what this replica keeps, so that others need not wait for its claims to lapse.
pub(crate) async fn give_up(desk: &Desk) {
    for lane in desk.lanes.all() {
        let entries = lane.kept.give_up(Instant::now());
        if !entries.is_empty() {
            // If the store does not answer, they lapse.
            let _ = desk.store().unclaim_queued(&entries).await;
        }
    }
}

/// What becomes of claimed entries.
#[derive(Default)]
pub(crate) struct Sorted {
    pub(crate) offers: Vec<Offer>,
    pub(crate) offered: Vec<Ready>,
    /// Some may stand on the stream already: the same message id would swallow them.
    pub(crate) again: bool,
    /// Of jobs that are somewhere else by now.
    pub(crate) over: Vec<QueueEntry>,
    /// Of these, how far ahead the homes of those must be brought that live: whoever released them may
    /// have died between offer and home, and a queued job's home is far away.
    pub(crate) nearer: Vec<(JobId, Duration)>,
    /// Of jobs that are queued under another version than their entry's.
    pub(crate) renewed: Vec<Renewed>,
    /// Places in the window that stay empty.
    pub(crate) unused: u64,
}

/// An entry that another is to stand for: whoever gave the job its version may have died before that was
/// written. Its home is no later than any queued job's, and stays.
pub(crate) struct Renewed {
    pub(crate) old: QueueEntry,
    pub(crate) new: QueueEntry,
}

/// A job that is about to be offered.
pub(crate) struct Ready {
    pub(crate) entry: QueueEntry,
    /// How far ahead its home must be brought; none where it is near enough.
    pub(crate) look: Option<Duration>,
    /// None where nothing was said in its record.
    pub(crate) event: Option<JobEvent>,
}

async fn round(desk: &Desk, lane: &Arc<Lane>, taken: Vec<Taken>) {
    let bounded = lane.max().is_some();
    let (limited, taken): (Vec<_>, Vec<_>) = taken.into_iter().partition(|taken| bounded || taken.entry.limited);
    if !limited.is_empty() {
        let next = slots::round(desk, lane, limited.into_iter().map(|taken| taken.entry).collect()).await;
        slots::hand_over(desk, next).await;
    }
    let fast = lane.window().is_hot() && desk.consults.is_none();
    let (lined, held): (Vec<_>, Vec<_>) = taken.into_iter().partition(|taken| fast && taken.entry.version == ACCEPTED);
    let mut held: Vec<QueueEntry> = held.into_iter().map(|taken| taken.entry).collect();
    let mut sorted = Sorted::default();
    if !lined.is_empty() {
        held.extend(as_they_are(desk, lane, lined, &mut sorted).await);
    }
    if !held.is_empty() {
        dispatch(desk, lane, held, &mut sorted).await;
    }
    lane.window().give_back(sorted.unused);
    publish(desk, lane, sorted).await;
}

/// Dispatches by version, then offers what was read meanwhile.
async fn dispatch(desk: &Desk, lane: &Arc<Lane>, entries: Vec<QueueEntry>, sorted: &mut Sorted) {
    let ids: Vec<JobId> = entries.iter().map(|entry| entry.job).collect();
    let steps = entries.iter().map(|e| Step::new(e.job, Event::Dispatch, e.version.into())).collect();
    // Spec and payload never change, so they may be read while the job moves.
    let (moved, records) = tokio::join!(desk.store().apply(steps), desk.store().read(&ids, Fields::PAYLOAD));
    muster_flow::failpoint!("release.after_apply");
    for ((entry, moved), record) in entries.into_iter().zip(moved).zip(records) {
        match standing(&moved) {
            Standing::Offered { head, look, first } => match record {
                Ok(Some(record)) => {
                    lane.learn(&record.spec.requires);
                    if first {
                        let due = record.spec.run_at.map_or(head.created_at, |at| at.resolve(head.created_at));
                        events::observe_first_dispatch(head, due.max(head.created_at));
                    }
                    sorted.again |= !first;
                    let event = Some(events::moved(entry.job, lane, head));
                    sorted.offers.push(offer_of(&record, head));
                    sorted.offered.push(Ready { entry, look, event });
                }
                // Nobody can offer it, so it must not stand in the way: should it be mended, the look does.
                Err(fault) if fault.is_unreadable() => {
                    sorted.unused += 1;
                    sorted.over.push(entry);
                }
                // Dispatched, not offered: the entry stays, and its next claim offers it.
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

/// Offers those that stand as they were accepted: whoever starts them compares the version. What this
/// replica has kept it knows; of the others it reads the records. Returns those of whose
/// records there is more to say.
async fn as_they_are(desk: &Desk, lane: &Arc<Lane>, taken: Vec<Taken>, sorted: &mut Sorted) -> Vec<QueueEntry> {
    let unknown = taken.iter().filter(|taken| taken.known.is_none());
    let ids: Vec<JobId> = unknown.map(|taken| taken.entry.job).collect();
    let records = if ids.is_empty() { Vec::new() } else { desk.store().read(&ids, Fields::PAYLOAD).await };
    let (now, mut records, mut others) = (desk.store().now(), records.into_iter(), Vec::new());
    for Taken { entry, known } in taken {
        if let Some(submit) = known {
            events::observe_dispatch(Time(submit.pending_since), now);
            sorted.offers.push(offers::as_it_is(submit, now, &lane.line));
            sorted.offered.push(Ready { entry, look: None, event: None });
            continue;
        }
        let stands = |record: &Record| record.head.state() == State::Pending && record.head.version == entry.version;
        let Some(record) = records.next().and_then(Result::ok).flatten().filter(stands) else {
            others.push(entry);
            continue;
        };
        lane.learn(&record.spec.requires);
        events::observe_dispatch(record.head.created_at, now);
        sorted.offers.push(Offer { dispatched_at: now.0, ..offer_of(&record, &record.head) });
        sorted.offered.push(Ready { entry, look: None, event: None });
    }
    others
}

/// Publish, forward, remove: in this order.
pub(crate) async fn publish(desk: &Desk, lane: &Arc<Lane>, sorted: Sorted) {
    let Sorted { offers, mut offered, over, nearer: mut homes, renewed, again, .. } = sorted;
    let how = Offering { most: lane.window().per_message(), again };
    lines::note(desk, lines::due(std::iter::once(lane))).await;
    // Before anybody can start them, so that watchers hear of both in this order.
    events::tell(desk.bus(), offered.iter_mut().filter_map(|ready| ready.event.take()).collect()).await;
    let published = if offers.is_empty() { Vec::new() } else { desk.flow.offer(offers, how).await };
    muster_flow::failpoint!("release.after_offer");
    let (mut stand, mut finished) = (PerLane::default(), over);
    for (ready, result) in offered.into_iter().zip(published) {
        if result.is_err() {
            lane.window().give_back(1);
            continue;
        }
        stand.add(lane);
        homes.extend(ready.look.map(|look| (ready.entry.job, look)));
        finished.push(ready.entry);
    }
    desk.published(&stand, how.most).await;
    finished.extend(renew(desk, lane, renewed).await);
    let forwarded = desk.forward(&homes).await.is_ok();
    muster_flow::failpoint!("release.after_forward");
    if forwarded && !finished.is_empty() && desk.store().remove_queued(&finished).await.is_ok() {
        lane.window().dequeued(finished.len() as u64);
    }
}

/// Puts jobs into the backlog under the versions that they have by now. Returns the entries that may go: none if
/// that failed, for they are all that leads to those jobs.
async fn renew(desk: &Desk, lane: &Arc<Lane>, renewed: Vec<Renewed>) -> Vec<QueueEntry> {
    let (old, new): (Vec<_>, Vec<_>) = renewed.into_iter().map(|Renewed { old, new }| (old, new)).unzip();
    if new.is_empty() || desk.store().enqueue(&new).await.is_err() {
        return Vec::new();
    }
    lane.window().queued(new.len() as u64);
    if lane.can_release() {
        desk.lanes.poke(lane);
    }
    old
}

enum Standing<'a> {
    /// It is `dispatched`, by us or by somebody who may have died before publishing.
    Offered { head: &'a Head, look: Option<Duration>, first: bool },
    /// It is queued, under another version.
    Queued(&'a Head),
    /// It has moved on, is gone, or cannot be read: the entry is a leftover. If it lives, this is when it
    /// has to be looked at.
    Elsewhere { look: Option<Duration> },
    /// The store did not say: the entry stays.
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
