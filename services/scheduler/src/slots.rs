//! Admits jobs under a concurrency limit: takes their slots before they are dispatched, and hands free slots to the
//! next jobs.
//!
//! Such a job never skips the backlog: it is `queued`. Its entry says that it needs a concurrency slot of its key, or
//! its topic's settings say that it needs a place, and a release takes these first. Knows: the order, which is place,
//! slot, dispatch by version (the record then names both), offer, forward, remove the entry. Promises: a slot is given
//! back only when the record of its job says that no attempt uses it (`domain::slot`), whichever process died on the
//! way. A job that finds all slots taken has their holders checked, at most once a second per limit. A job that waits
//! for a key gets the next free slot of the key in its order: at once if a scheduler gives the slot back, otherwise
//! when the claim of its entry expires. Jobs that wait for a place wait only in the backlog: no more entries are
//! claimed than there are places, and a claimed job that gets no place returns to its position. Leaves to others: the
//! sets (`store`), and slots of ended jobs whose worker may still run (`flow`).

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use muster_domain::{
    Event, JobId, Outcome, State, Tenant, Time,
    job::next_look,
    slot::{self, Limit, Slot},
};
use muster_flow::offer_of;
use muster_store::{Fields, QueueEntry, Record, SlotAsk, SlotHeld, SlotRef, SlotTaken, Step};

use crate::{
    context::Context,
    events,
    release::{Ready, Renewed, Sorted, publish},
    route_state::RouteState,
};

/// The least wait before a slot that is still held is checked again.
const AGAIN: Duration = Duration::from_secs(1);
/// Most waiting jobs that one call admits; the others are released when their claims expire.
const MOST_NEXT: usize = 64;

/// Gives slots back, and admits the next jobs.
pub(crate) async fn free(context: &Context, slots: Vec<SlotRef>) {
    if slots.is_empty() {
        return;
    }
    // A slot that cannot be given back now is found when another job needs it.
    let next = context.store().free_slots(&slots).await.into_iter().filter_map(|next| next.ok().flatten()).collect();
    freed(context, &slots, next).await;
}

/// Handles slots that were given back: admits the next jobs of a key, and pokes the backlogs of topics.
pub(crate) async fn freed(context: &Context, slots: &[SlotRef], next: Vec<SlotRef>) {
    stir(context, slots);
    hand_over(context, next).await;
}

/// Requests a release of the backlogs whose places became free.
fn stir(context: &Context, slots: &[SlotRef]) {
    let mut stirred: Vec<(&Tenant, &Limit)> = Vec::new();
    for slot in slots {
        let Limit::Topic(topic) = &slot.limit else { continue };
        if stirred.contains(&(&slot.tenant, &slot.limit)) {
            continue;
        }
        stirred.push((&slot.tenant, &slot.limit));
        for route in context.routes.of_topic(&slot.tenant, topic) {
            // A task that counts places at this moment counts them again.
            route.place_came_free.store(true, Ordering::Release);
            if route.can_release() {
                context.routes.poke(&route);
            }
        }
    }
}

/// Admits the waiting jobs in `next`, and those that follow them.
pub(crate) async fn hand_over(context: &Context, mut next: Vec<SlotRef>) {
    if !next.is_empty() {
        muster_flow::failpoint!("slots.after_free");
    }
    let mut seen = 0;
    while let Some(waiter) = next.pop() {
        seen += 1;
        if seen > MOST_NEXT {
            return;
        }
        let Ok(record) = context.store().read_one(waiter.job, Fields::NONE).await else { continue };
        match record.as_ref().filter(|record| waits(record, waiter.version)) {
            Some(record) => {
                let spec = &record.spec;
                let route = context.routes.route_for(spec.tenant.as_str(), spec.topic.as_str(), &spec.requires);
                // Routes that are paused or have a rate are left to a release, which applies both.
                if let Some(route) = route.ok().filter(|route| !route.is_paused() && route.rate().is_none()) {
                    next.extend(round(context, &route, vec![QueueEntry::of(record)]).await);
                }
            }
            // The job has moved on, so it leaves the waiting list, unless a release was faster and has admitted it
            // under this version: then it holds the slot.
            None => {
                let holder = record.as_ref().map(Record::holder);
                if slot::judge(waiter.version, holder, context.store().now()) == Slot::Over {
                    next.extend(context.store().free_slot(&waiter, None).await.ok().flatten());
                }
            }
        }
    }
}

/// How many of `wanted` places in the window may be used, given the free places of the topic. Gives the others back.
/// Grants all if the topic has no limit.
pub(crate) async fn room(context: &Context, route: &RouteState, wanted: u64) -> u64 {
    let Some(max) = route.max() else { return wanted };
    let limit = Limit::Topic(route.topic.clone());
    loop {
        route.place_came_free.store(false, Ordering::Release);
        let granted = match context.store().read_slots(&route.tenant, &limit).await {
            Ok((holders, held, _)) if held >= max.into() => {
                // There is no waiting list for places: the head of the backlog is next.
                let _ = reclaim(context, holders, context.store().now()).await;
                // A place became free meanwhile, and its poke may have found no turn because of this round: count
                // again.
                if route.place_came_free.load(Ordering::Acquire) {
                    continue;
                }
                0
            }
            Ok((_, held, _)) => wanted.min(u64::from(max) - held),
            // Without Redis, nothing can be released either.
            Err(_) => 0,
        };
        route.window().give_back(wanted - granted);
        return granted;
    }
}

/// Whether the job still waits in the backlog under this version.
fn waits(record: &Record, version: u32) -> bool {
    matches!(record.head.state(), State::Queued | State::Pending) && record.head.version == version
}

/// A job that is being released from the backlog.
struct Leaving {
    entry: QueueEntry,
    record: Record,
    /// Whether it has a place of its topic.
    placed: bool,
}

/// Releases entries that need a slot, as far as they get one. Returns the next waiting jobs where slots were found to
/// be free.
pub(crate) async fn round(context: &Context, route: &Arc<RouteState>, entries: Vec<QueueEntry>) -> Vec<SlotRef> {
    let ids: Vec<JobId> = entries.iter().map(|entry| entry.job).collect();
    let records = context.store().read(&ids, Fields::NONE).await;
    let (mut sorted, mut admitted, mut waiting) = (Sorted::default(), Vec::new(), Vec::new());
    for (entry, record) in entries.into_iter().zip(records) {
        match record {
            Ok(Some(record)) if waits(&record, entry.version) => {
                waiting.push(Leaving { entry, record, placed: false });
            }
            // Dispatched under this entry: the replica that did it may have died before the offer.
            Ok(Some(record)) if record.head.state() == State::Dispatched && record.slot == Some(entry.version) => {
                sorted.again = true;
                let placed = record.placed;
                admitted.push(Leaving { entry, record, placed });
            }
            Ok(Some(record)) if record.head.state() == State::Queued => {
                sorted.unused += 1;
                sorted.renewed.push(Renewed { old: entry, new: QueueEntry::of(&record) });
            }
            Err(fault) if !fault.is_unreadable() => sorted.unused += 1,
            // The job has moved on, or its record is unreadable and must not block the queue.
            _ => {
                sorted.unused += 1;
                sorted.over.push(entry);
            }
        }
    }
    let mut next = Vec::new();
    let waiting = take_places(context, route, waiting, &mut sorted).await;
    if waiting.iter().any(|leaving| leaving.placed) {
        muster_flow::failpoint!("slots.after_places");
    }
    admitted.extend(take_keys(context, route, waiting, &mut sorted, &mut next).await);
    muster_flow::failpoint!("slots.after_take");
    dispatch(context, route, admitted, &mut sorted).await;
    route.window().give_back(sorted.unused);
    publish(context, route, sorted).await;
    next
}

fn ask(record: &Record, limit: Limit, max: u32) -> SlotAsk {
    SlotAsk {
        slot: SlotRef { tenant: record.spec.tenant.clone(), limit, job: record.id, version: record.head.version },
        max,
        priority: record.spec.priority,
        since: record.head.created_at,
    }
}

/// Takes a place of the topic for each job, if the topic has a limit, and returns the jobs that got one. A job that got
/// none returns to its position in the backlog: it was claimed for a place that another job took first.
async fn take_places(
    context: &Context,
    route: &RouteState,
    waiting: Vec<Leaving>,
    sorted: &mut Sorted,
) -> Vec<Leaving> {
    let Some(max) = route.max() else { return waiting };
    let limit = Limit::Topic(route.topic.clone());
    let asks: Vec<SlotAsk> = waiting.iter().map(|leaving| ask(&leaving.record, limit.clone(), max)).collect();
    let taken = context.store().take_slots(&asks).await;
    let (mut placed, mut back) = (Vec::with_capacity(waiting.len()), Vec::new());
    for (leaving, taken) in waiting.into_iter().zip(taken) {
        match taken {
            Ok(SlotTaken::Admitted) => placed.push(Leaving { placed: true, ..leaving }),
            Ok(SlotTaken::Full(holders, now)) => {
                sorted.unused += 1;
                back.push(QueueEntry { since: leaving.record.head.created_at, ..leaving.entry });
                let _ = reclaim(context, holders, now).await;
            }
            // Another replica is about to dispatch it, or died on the way.
            Ok(SlotTaken::Before(holders, now)) => {
                sorted.unused += 1;
                let _ = reclaim(context, holders, now).await;
            }
            Err(_) => sorted.unused += 1,
        }
    }
    if !back.is_empty() {
        // If this fails, the claims expire.
        let _ = context.store().unclaim_queued(&back).await;
    }
    placed
}

/// Takes a concurrency slot for each job that has a key, and returns the admitted jobs. A job that got none waits in
/// the key's list, and gives its place of the topic back meanwhile.
async fn take_keys(
    context: &Context,
    route: &RouteState,
    waiting: Vec<Leaving>,
    sorted: &mut Sorted,
    next: &mut Vec<SlotRef>,
) -> Vec<Leaving> {
    let (keyed, mut admitted): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(|leaving| !leaving.record.spec.concurrency_key.is_empty());
    if keyed.is_empty() {
        return admitted;
    }
    let key = |record: &Record| Limit::Key(record.spec.concurrency_key.clone());
    let asks: Vec<_> =
        keyed.iter().map(|leaving| ask(&leaving.record, key(&leaving.record), route.per_key())).collect();
    let mut unplaced = Vec::new();
    for (leaving, taken) in keyed.into_iter().zip(context.store().take_slots(&asks).await) {
        if let Ok(SlotTaken::Admitted) = taken {
            admitted.push(leaving);
            continue;
        }
        sorted.unused += 1;
        if leaving.placed {
            unplaced.push(ask(&leaving.record, Limit::Topic(route.topic.clone()), 0).slot);
        }
        if let Ok(SlotTaken::Full(holders, now) | SlotTaken::Before(holders, now)) = taken {
            next.extend(reclaim(context, holders, now).await);
        }
    }
    if !unplaced.is_empty() {
        context.store().free_slots(&unplaced).await;
        stir(context, &unplaced);
    }
    admitted
}

/// Dispatches the admitted jobs, by the version under which they were admitted.
async fn dispatch(context: &Context, route: &RouteState, admitted: Vec<Leaving>, sorted: &mut Sorted) {
    if admitted.is_empty() {
        return;
    }
    let step = |Leaving { entry, placed, .. }: &Leaving| Step {
        slot: true,
        place: *placed,
        ..Step::new(entry.job, Event::Dispatch, entry.version.into())
    };
    let ids: Vec<JobId> = admitted.iter().map(|leaving| leaving.entry.job).collect();
    let steps = admitted.iter().map(step).collect();
    let (moved, payloads) = tokio::join!(context.store().apply(steps), context.store().read(&ids, Fields::PAYLOAD));
    muster_flow::failpoint!("slots.after_apply");
    for ((Leaving { entry, placed, .. }, moved), payload) in admitted.into_iter().zip(moved).zip(payloads) {
        let head = moved.as_ref().ok().and_then(|moved| Some((moved, moved.done()?)));
        match (head, payload) {
            (Some((moved, head)), Ok(Some(record))) if head.state() == State::Dispatched => {
                sorted.again |= moved.outcome != Outcome::Applied;
                route.learn(&record.spec.requires);
                let record = Record { slot: Some(entry.version), placed, ..record };
                sorted.offers.push(offer_of(&record, head));
                let look = Some(next_look(head, moved.now).remaining(moved.now));
                let event = Some(events::moved(entry.job, route, head, record.spec.run));
                sorted.offered.push(Ready { entry, look, event });
            }
            // Another process was faster: the slot is over and given back, or is found when another job needs it.
            (None, Ok(record)) if moved.is_ok() => {
                sorted.unused += 1;
                let now = moved.as_ref().map_or(Time::NONE, |moved| moved.now);
                let verdict = slot::judge(entry.version, record.as_ref().map(Record::holder), now);
                if let (Some(record), Slot::Over) = (record, verdict) {
                    let under = Record { slot: Some(entry.version), placed, ..record };
                    let slots = SlotRef::of(&under);
                    context.store().free_slots(&slots).await;
                    stir(context, &slots);
                }
            }
            // The answer is not known: the entry and the slot stay.
            _ => sorted.unused += 1,
        }
    }
}

/// Checks the holders of all slots of a limit, and gives back the slots that no attempt uses.
async fn reclaim(context: &Context, holders: Vec<SlotHeld>, now: Time) -> Vec<SlotRef> {
    let Some(first) = holders.first() else { return Vec::new() };
    if !context.judged_slots.due(&first.slot, Instant::now()) {
        return Vec::new();
    }
    let ids: Vec<JobId> = holders.iter().map(|held| held.slot.job).collect();
    let records = context.store().read(&ids, Fields::NONE).await;
    let (store, mut next, mut freed) = (context.store(), Vec::new(), Vec::new());
    for (held, record) in holders.iter().zip(records) {
        let Ok(record) = record else { continue };
        let lapsed = held.look.reached(now);
        match slot::judge(held.slot.version, record.as_ref().map(Record::holder), now) {
            Slot::Over => {
                next.extend(store.free_slot(&held.slot, Some(held.look)).await.ok().flatten());
                freed.push(held.slot.clone());
            }
            Slot::Admitting if lapsed => {
                if let Some(record) = record {
                    next.extend(admit_anew(context, held, &record).await);
                    freed.push(held.slot.clone());
                }
            }
            Slot::Held(until) if lapsed => {
                let _ = store.keep_slot(held, until.remaining(now).max(AGAIN)).await;
            }
            Slot::Admitting | Slot::Held(_) => {}
        }
    }
    stir(context, &freed);
    next
}

/// For a job that was admitted long ago and never dispatched. The replica that admitted it may still wake up, so the
/// job gets a new version before the slot is given back. If this replica dies before the entry of that version is in
/// the backlog, the old entry stays, and its next claim writes the new one.
async fn admit_anew(context: &Context, held: &SlotHeld, record: &Record) -> Option<SlotRef> {
    let old = QueueEntry::of(record);
    let step = Step::new(record.id, Event::Hold, held.slot.version.into());
    let moved = context.store().apply_one(step).await.ok()?;
    let head = moved.done()?;
    muster_flow::failpoint!("anew.after_apply");
    let entry = QueueEntry { version: head.version, ..old.clone() };
    context.store().enqueue(&[entry]).await.ok()?;
    let _ = context.store().remove_queued(&[old]).await;
    context.store().free_slot(&held.slot, Some(held.look)).await.ok().flatten()
}
