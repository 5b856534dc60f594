//! Jobs under a concurrency limit: admitted to a slot before they are dispatched, and who is next.
//!
//! Such a job never goes straight through: it is `queued`, its entry says that it needs a slot, and a
//! release takes one first. Knows: the order, which is slot, dispatch by version (the record then names
//! the slot), offer, forward, remove the entry. Promises: a slot is given back only when the record of
//! its job says that nobody runs under it (`domain::slot`), whoever died on the way; who finds all
//! slots taken looks at their holders, at most once a second per limit; who waits is next in line when
//! a slot comes free, at once where a scheduler gives it back and otherwise when its claim lapses.
//! Leaves to others: the sets (`store`), and slots of ended jobs whose worker may still be at it
//! (`flow`).

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_domain::{
    Event, JobId, Outcome, State, Tenant, Time,
    job::next_look,
    slot::{self, PER_KEY, Slot},
};
use muster_flow::offer_of;
use muster_store::{Fields, QueueEntry, Record, SlotAsk, SlotHeld, SlotRef, SlotTaken, Step};

use crate::{
    backlog::{Ready, Sorted, publish},
    desk::Desk,
    events,
    lanes::Lane,
};

/// How often the holders of one limit are looked at.
const JUDGE: Duration = Duration::from_secs(1);
/// The least wait before a slot that is still held is looked at again.
const AGAIN: Duration = Duration::from_secs(1);
/// How many that are next in line one call sees to; the rest comes with its claim.
const MOST_NEXT: usize = 64;

/// When the holders of each limit were last looked at.
#[derive(Debug, Default)]
pub(crate) struct Judged(Mutex<HashMap<(Tenant, String), Instant>>);

impl Judged {
    fn due(&self, slot: &SlotRef, now: Instant) -> bool {
        let mut judged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        judged.retain(|_, at| now.saturating_duration_since(*at) < JUDGE);
        judged.insert((slot.tenant.clone(), slot.key.clone()), now).is_none()
    }
}

/// Gives slots back, and sees to those who are next.
pub(crate) async fn free(desk: &Desk, slots: Vec<SlotRef>) {
    let mut next = Vec::new();
    for slot in &slots {
        // One that cannot be given back now is found by who needs it.
        next.extend(desk.store().free_slot(slot, None).await.ok().flatten());
    }
    hand_over(desk, next).await;
}

/// Admits those who are next in line, and whoever is next after them.
pub(crate) async fn hand_over(desk: &Desk, mut next: Vec<SlotRef>) {
    let mut seen = 0;
    while let Some(slot) = next.pop() {
        seen += 1;
        if seen > MOST_NEXT {
            return;
        }
        let Ok(record) = desk.store().read_one(slot.job, Fields::NONE).await else { continue };
        let waits = |r: &&Record| r.head.state() == State::Queued && r.head.version == slot.version;
        match record.as_ref().filter(waits) {
            Some(record) => {
                let spec = &record.spec;
                let lane = desk.lanes.lane_for(spec.tenant.as_str(), spec.topic.as_str(), &spec.requires);
                // A pause or a rate is asked by a release, not here.
                if let Some(lane) = lane.ok().filter(|lane| !lane.holds_newcomers()) {
                    next.extend(round(desk, &lane, vec![QueueEntry::of(record)]).await);
                }
            }
            // It has moved on: out of the line with it.
            None => next.extend(desk.store().free_slot(&slot, None).await.ok().flatten()),
        }
    }
}

/// Releases entries that need a slot, as far as they get one. Returns who is next in line where slots
/// were found to be free.
pub(crate) async fn round(desk: &Desk, lane: &std::sync::Arc<Lane>, entries: Vec<QueueEntry>) -> Vec<SlotRef> {
    let ids: Vec<JobId> = entries.iter().map(|entry| entry.job).collect();
    let records = desk.store().read(&ids, Fields::NONE).await;
    let (mut sorted, mut asks, mut waiting) = (Sorted::default(), Vec::new(), Vec::new());
    for (entry, record) in entries.into_iter().zip(records) {
        match record {
            Ok(Some(record)) if record.head.state() == State::Queued && record.head.version == entry.version => {
                asks.push(ask(&record, lane.per_key()));
                waiting.push((entry, record));
            }
            // Dispatched under this very entry: whoever did it may have died before the offer.
            Ok(Some(record)) if record.head.state() == State::Dispatched && record.slot == Some(entry.version) => {
                sorted.again = true;
                waiting.push((entry, record));
            }
            Ok(_) => {
                sorted.unused += 1;
                sorted.over.push(entry);
            }
            Err(_) => sorted.unused += 1,
        }
    }
    let mut taken = desk.store().take_slots(&asks).await.into_iter();
    muster_flow::failpoint!("slots.after_take");
    let (mut admitted, mut next) = (Vec::new(), Vec::new());
    for (entry, record) in waiting {
        if record.head.state() == State::Dispatched {
            admitted.push((entry, record));
            continue;
        }
        match taken.next() {
            Some(Ok(SlotTaken::Admitted)) => admitted.push((entry, record)),
            Some(Ok(SlotTaken::Full(holders, now) | SlotTaken::Before(holders, now))) => {
                sorted.unused += 1;
                next.extend(reclaim(desk, holders, now).await);
            }
            _ => sorted.unused += 1,
        }
    }
    dispatch(desk, lane, admitted, &mut sorted).await;
    lane.window().give_back(sorted.unused);
    publish(desk, lane, sorted).await;
    next
}

impl Lane {
    /// How many jobs with the same key may run at once.
    fn per_key(&self) -> u32 {
        let told = self.rules.load();
        let limits = told.as_ref().and_then(|told| told.settings.concurrency);
        limits.and_then(|limits| limits.per_key).unwrap_or(PER_KEY)
    }
}

fn ask(record: &Record, max: u32) -> SlotAsk {
    let (tenant, key) = (record.spec.tenant.clone(), record.spec.concurrency_key.clone());
    SlotAsk {
        slot: SlotRef { tenant, key, job: record.id, version: record.head.version },
        max,
        priority: record.spec.priority,
        since: record.head.created_at,
    }
}

/// Dispatches what was admitted, by the version under which it was.
async fn dispatch(desk: &Desk, lane: &Lane, admitted: Vec<(QueueEntry, Record)>, sorted: &mut Sorted) {
    if admitted.is_empty() {
        return;
    }
    let step = |(entry, _): &(QueueEntry, Record)| Step {
        slot: true,
        ..Step::new(entry.job, Event::Dispatch, entry.version.into())
    };
    let ids: Vec<JobId> = admitted.iter().map(|(entry, _)| entry.job).collect();
    let steps = admitted.iter().map(step).collect();
    let (moved, payloads) = tokio::join!(desk.store().apply(steps), desk.store().read(&ids, Fields::PAYLOAD));
    muster_flow::failpoint!("slots.after_apply");
    for (((entry, _), moved), payload) in admitted.into_iter().zip(moved).zip(payloads) {
        let head = moved.as_ref().ok().and_then(|moved| Some((moved, moved.done()?)));
        match (head, payload) {
            (Some((moved, head)), Ok(Some(record))) if head.state() == State::Dispatched => {
                sorted.again |= moved.outcome != Outcome::Applied;
                let record = Record { slot: Some(entry.version), ..record };
                sorted.offers.push(offer_of(&record, head));
                let (look, event) =
                    (next_look(head, moved.now).remaining(moved.now), events::moved(entry.job, lane, head));
                sorted.offered.push(Ready { entry, look: Some(look), event });
            }
            // Somebody was faster: what it was admitted under is over, or found by who needs it.
            (None, Ok(record)) if moved.is_ok() => {
                sorted.unused += 1;
                let now = moved.as_ref().map_or(Time::NONE, |moved| moved.now);
                let key = record.as_ref().map(|r| (r.spec.tenant.clone(), r.spec.concurrency_key.clone()));
                let verdict = slot::judge(entry.version, record.as_ref().map(Record::holder), now);
                if let (Some((tenant, key)), Slot::Over) = (key, verdict) {
                    let slot = SlotRef { tenant, key, job: entry.job, version: entry.version };
                    let _ = desk.store().free_slot(&slot, None).await;
                }
            }
            // Not known: the entry stays, and so does the slot.
            _ => sorted.unused += 1,
        }
    }
}

/// Looks at who holds all slots of a limit, and gives back those that nobody runs under.
async fn reclaim(desk: &Desk, holders: Vec<SlotHeld>, now: Time) -> Vec<SlotRef> {
    let Some(first) = holders.first() else { return Vec::new() };
    if !desk.judged.due(&first.slot, Instant::now()) {
        return Vec::new();
    }
    let ids: Vec<JobId> = holders.iter().map(|held| held.slot.job).collect();
    let records = desk.store().read(&ids, Fields::NONE).await;
    let (store, mut next) = (desk.store(), Vec::new());
    for (held, record) in holders.iter().zip(records) {
        let Ok(record) = record else { continue };
        let lapsed = held.look.reached(now);
        match slot::judge(held.slot.version, record.as_ref().map(Record::holder), now) {
            Slot::Over => next.extend(store.free_slot(&held.slot, Some(held.look)).await.ok().flatten()),
            Slot::Admitting if lapsed => {
                if let Some(record) = record {
                    next.extend(admit_anew(desk, held, &record).await);
                }
            }
            Slot::Held(until) if lapsed => {
                let _ = store.keep_slot(held, until.remaining(now).max(AGAIN)).await;
            }
            Slot::Admitting | Slot::Held(_) => {}
        }
    }
    next
}

/// Admitted long ago and never dispatched: whoever did it may yet wake up, so the job gets another
/// version before the slot is given back.
async fn admit_anew(desk: &Desk, held: &SlotHeld, record: &Record) -> Option<SlotRef> {
    let old = QueueEntry::of(record);
    let step = Step::new(record.id, Event::Hold, held.slot.version.into());
    let moved = desk.store().apply_one(step).await.ok()?;
    let head = moved.done()?;
    let entry = QueueEntry { version: head.version, ..old.clone() };
    desk.store().enqueue(&[entry]).await.ok()?;
    let _ = desk.store().remove_queued(&[old]).await;
    desk.store().free_slot(&held.slot, Some(held.look)).await.ok().flatten()
}
