//! Jobs under a concurrency limit: admitted to a slot before they are dispatched, and who is next.
//!
//! Such a job never goes straight through: it is `queued`, its entry says that it needs a slot of its
//! key, or its topic that it needs a place, and a release takes them first. Knows: the order, which is
//! place, slot, dispatch by version (the record then names both), offer, forward, remove the entry.
//! Promises: a slot is given back only when the record of its job says that nobody runs under it
//! (`domain::slot`), whoever died on the way; who finds all slots taken looks at their holders, at most
//! once a second per limit. Who waits for a key is next in its line when a slot comes free, at once where
//! a scheduler gives it back and otherwise when its claim lapses. For a topic's place nobody waits but
//! in the backlog: no more is claimed than there are places, and whoever gets none in the end has its
//! turn back. Leaves to others: the sets (`store`), and slots of ended jobs whose worker may still be at
//! it (`flow`).

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

/// The least wait before a slot that is still held is looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// How many that are next in line one call sees to; the rest comes with its claim.
const MOST_NEXT: usize = 64;

/// Gives slots back, and sees to those who are next.
pub(crate) async fn free(context: &Context, slots: Vec<SlotRef>) {
    if slots.is_empty() {
        return;
    }
    // One that cannot be given back now is found by who needs it.
    let next = context.store().free_slots(&slots).await.into_iter().filter_map(|next| next.ok().flatten()).collect();
    freed(context, &slots, next).await;
}

/// These were given back: sees to those who are next in line for a key's, and to the backlogs of topics.
pub(crate) async fn freed(context: &Context, slots: &[SlotRef], next: Vec<SlotRef>) {
    stir(context, slots);
    hand_over(context, next).await;
}

/// Has the backlogs released whose places came free.
fn stir(context: &Context, slots: &[SlotRef]) {
    let mut stirred: Vec<(&Tenant, &Limit)> = Vec::new();
    for slot in slots {
        let Limit::Topic(topic) = &slot.limit else { continue };
        if stirred.contains(&(&slot.tenant, &slot.limit)) {
            continue;
        }
        stirred.push((&slot.tenant, &slot.limit));
        for route in context.routes.of_topic(&slot.tenant, topic) {
            // Whoever is counting places at this moment counts again.
            route.place_came_free.store(true, Ordering::Release);
            if route.can_release() {
                context.routes.poke(&route);
            }
        }
    }
}

/// Admits those who are next in line, and whoever is next after them.
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
                // A pause or a rate is asked by a release, not here.
                if let Some(route) = route.ok().filter(|route| !route.is_paused() && route.rate().is_none()) {
                    next.extend(round(context, &route, vec![QueueEntry::of(record)]).await);
                }
            }
            // It has moved on: out of the line with it. Unless a release was faster than this and admitted it:
            // then that very name holds the slot.
            None => {
                let holder = record.as_ref().map(Record::holder);
                if slot::judge(waiter.version, holder, context.store().now()) == Slot::Over {
                    next.extend(context.store().free_slot(&waiter, None).await.ok().flatten());
                }
            }
        }
    }
}

/// How many of so many places in the window may be used, as places of the topic are free; the others are
/// given back. All without a limit.
pub(crate) async fn room(context: &Context, route: &RouteState, wanted: u64) -> u64 {
    let Some(max) = route.max() else { return wanted };
    let limit = Limit::Topic(route.topic.clone());
    loop {
        route.place_came_free.store(false, Ordering::Release);
        let granted = match context.store().read_slots(&route.tenant, &limit).await {
            Ok((holders, held, _)) if held >= max.into() => {
                // Nobody waits in line for a place: who is next is the backlog's head.
                let _ = reclaim(context, holders, context.store().now()).await;
                // Somebody may have been refused a turn because of this one.
                if route.place_came_free.load(Ordering::Acquire) {
                    continue;
                }
                0
            }
            Ok((_, held, _)) => wanted.min(u64::from(max) - held),
            // Without Redis nothing can be released either.
            Err(_) => 0,
        };
        route.window().give_back(wanted - granted);
        return granted;
    }
}

/// Whether the job still stands in line under this version.
fn waits(record: &Record, version: u32) -> bool {
    matches!(record.head.state(), State::Queued | State::Pending) && record.head.version == version
}

/// A job on its way out of the backlog.
struct Leaving {
    entry: QueueEntry,
    record: Record,
    /// It has a place of its topic.
    placed: bool,
}

/// Releases entries that need a slot, as far as they get one. Returns who is next in line where slots
/// were found to be free.
pub(crate) async fn round(context: &Context, route: &Arc<RouteState>, entries: Vec<QueueEntry>) -> Vec<SlotRef> {
    let ids: Vec<JobId> = entries.iter().map(|entry| entry.job).collect();
    let records = context.store().read(&ids, Fields::NONE).await;
    let (mut sorted, mut admitted, mut waiting) = (Sorted::default(), Vec::new(), Vec::new());
    for (entry, record) in entries.into_iter().zip(records) {
        match record {
            Ok(Some(record)) if waits(&record, entry.version) => {
                waiting.push(Leaving { entry, record, placed: false });
            }
            // Dispatched under this very entry: whoever did it may have died before the offer.
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
            // It has moved on, or cannot be read and must not stand in the way.
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

/// Those who got a place of the topic, if they need one. Who got none has its turn in the backlog back:
/// it was claimed for a place that somebody else was faster to take.
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
            // Somebody else is about to dispatch it, or died on the way.
            Ok(SlotTaken::Before(holders, now)) => {
                sorted.unused += 1;
                let _ = reclaim(context, holders, now).await;
            }
            Err(_) => sorted.unused += 1,
        }
    }
    if !back.is_empty() {
        // Otherwise the claims lapse.
        let _ = context.store().unclaim_queued(&back).await;
    }
    placed
}

/// Those who got a slot of their key, if they have one. Who got none waits in that line, and keeps no
/// place of its topic meanwhile.
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

/// Dispatches what was admitted, by the version under which it was.
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
                let event = Some(events::moved(entry.job, route, head));
                sorted.offered.push(Ready { entry, look, event });
            }
            // Somebody was faster: what it was admitted under is over, or found by who needs it.
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
            // Not known: the entry stays, and so does the slot.
            _ => sorted.unused += 1,
        }
    }
}

/// Looks at who holds all slots of a limit, and gives back those that nobody runs under.
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

/// Admitted long ago and never dispatched: whoever did it may yet wake up, so the job gets another
/// version before the slot is given back. Who dies before its entry of that version stands in the backlog
/// leaves the old one, and whoever takes that puts the new one there.
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
