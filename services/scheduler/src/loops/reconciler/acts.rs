//! Carries out what the look says, in pipelines: publish again, wake, put back, offer again, end.
//!
//! Promises: every event compares the version that was read; whatever a job's standing is
//! afterwards decides when it is looked at next; an end has its effects done, home last. Leaves to
//! others: re-scoring the homes that stay.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_domain::{
    Event, Head, JobId, Outcome, State,
    job::{Action, FailedAttempt},
};
use muster_flow::{End, Offering, offer_of};
use muster_store::{Fields, Lease, Moved, QueueEntry, Record, Rescore, Step, StoreError};
use muster_telemetry::{Counter, Emit, count, events::Replayed};

use super::{AFTER_A_FAULT, Faulty, Item, Moment, SOON, wait_of};
use crate::{desk::Desk, events, lanes::PerLane};

/// What is to be done in one shard.
#[derive(Default)]
pub(super) struct Plan {
    nothing: Vec<Item>,
    resubmit: Vec<Item>,
    wake: Vec<Item>,
    requeue: Vec<Item>,
    reoffer: Vec<Item>,
    apply: Vec<(Item, FailedAttempt)>,
    finish: Vec<Item>,
}

impl Plan {
    /// One more job.
    pub(super) fn add(&mut self, item: Item, action: Action) {
        match action {
            Action::Nothing => self.nothing.push(item),
            Action::Resubmit => self.resubmit.push(item),
            Action::Wake => self.wake.push(item),
            Action::Requeue => self.requeue.push(item),
            Action::Reoffer => self.reoffer.push(item),
            Action::Apply(failed) => self.apply.push((item, failed)),
            Action::Finish => self.finish.push(item),
        }
    }
}

/// What was done.
pub(super) struct Done {
    /// When the jobs were read.
    read: Moment,
    /// Each with when its wait began.
    rescores: Vec<(Rescore, Instant)>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// Something moved, and may be due again at once.
    pub(super) moved: bool,
    pub(super) faults: u64,
}

impl Done {
    fn count(&mut self, action: &'static str) {
        *self.counts.entry(action).or_default() += 1;
    }

    /// The homes to re-score, now: what the pass itself took is no longer waited for.
    pub(super) fn rescores(self) -> Vec<Rescore> {
        let left = |(rescore, since): (Rescore, Instant)| Rescore {
            after: rescore.after.saturating_sub(since.elapsed()),
            ..rescore
        };
        self.rescores.into_iter().map(left).collect()
    }

    /// It stands as it did: look again as planned.
    fn as_planned(&mut self, item: &Item) {
        let Moment { time: now, here } = self.read;
        let after = match item.record.head.state() {
            State::Queued | State::Pending | State::Dispatched => wait_of(&item.record.head, now),
            _ => item.next.remaining(now),
        };
        self.look_from(here, item, after.max(SOON));
    }

    fn fault(&mut self, item: &Item) {
        self.faults += 1;
        self.look_in(item, AFTER_A_FAULT);
    }

    fn look_in(&mut self, item: &Item, after: Duration) {
        self.look_from(Instant::now(), item, after);
    }

    fn look_from(&mut self, since: Instant, item: &Item, after: Duration) {
        self.rescores.push((Rescore { job: item.record.id, read: item.read, after }, since));
    }

    /// What the script said decides when to look next. The head, if the event holds.
    fn applied<'m>(&mut self, item: &Item, moved: &'m Result<Moved, StoreError>) -> Option<(&'m Moved, &'m Head)> {
        let moved = match moved {
            Ok(moved) => moved,
            Err(_) => {
                self.fault(item);
                return None;
            }
        };
        let Some(head) = &moved.head else {
            // Gone since it was read: the next look finds an orphan.
            self.look_in(item, SOON);
            return None;
        };
        match moved.outcome {
            Outcome::Applied | Outcome::Already => {
                self.moved |= moved.outcome == Outcome::Applied;
                self.look_in(item, wait_of(head, moved.now));
                Some((moved, head))
            }
            // Somebody was faster, or its moment has not come by its own node's clock.
            _ => {
                self.look_in(item, wait_of(head, moved.now).max(SOON));
                None
            }
        }
    }
}

/// Does it all; the lease is checked before each kind of write.
pub(super) async fn carry_out(desk: &Desk, lease: &Lease, plan: Plan, read: Moment) -> anyhow::Result<Done> {
    let Plan { nothing, resubmit, wake, requeue, reoffer, apply, finish } = plan;
    let mut done = Done { read, rescores: Vec::new(), counts: BTreeMap::new(), moved: false, faults: 0 };
    for item in &nothing {
        done.as_planned(item);
    }
    let held = || lease.is_held().then_some(()).ok_or_else(|| anyhow::anyhow!("the lease is lost"));
    if !resubmit.is_empty() {
        held()?;
        republish(desk, resubmit, &mut done).await;
    }
    if !wake.is_empty() {
        held()?;
        awaken(desk, wake, &mut done).await;
    }
    if !requeue.is_empty() {
        held()?;
        put_back(desk, requeue, &mut done).await;
    }
    if !reoffer.is_empty() {
        held()?;
        offer_again(desk, reoffer, &mut done).await;
    }
    if !apply.is_empty() {
        held()?;
        end_attempts(desk, apply, &mut done).await;
    }
    if !finish.is_empty() {
        held()?;
        finish_ends(desk, finish, &mut done).await;
    }
    Ok(done)
}

fn ids(items: &[Item]) -> Vec<JobId> {
    items.iter().map(|item| item.record.id).collect()
}

/// Pending, and the submit must be lost: published again under a fresh id.
async fn republish(desk: &Desk, items: Vec<Item>, done: &mut Done) {
    let records = desk.store().read(&ids(&items), Fields::PAYLOAD).await;
    let (mut todo, mut lost) = (Vec::new(), Vec::new());
    for (item, record) in items.iter().zip(records) {
        match record {
            Ok(Some(record)) if record.head.version == item.record.head.version => {
                todo.push(record);
                lost.push(item);
            }
            Ok(_) => done.look_in(item, SOON),
            Err(_) => done.fault(item),
        }
    }
    let n = todo.len() as u64;
    let unsent: Faulty = desk.flow.publish_submits(todo).await.into_iter().collect();
    for item in lost {
        if unsent.contains(&item.record.id) {
            done.fault(item);
        } else {
            done.count("resubmit");
            done.as_planned(item);
        }
    }
    let sent = n - unsent.len() as u64;
    if sent > 0 {
        Replayed { n: sent }.emit();
    }
}

/// Scheduled or retrying, and the time has come: pending, and its submit published. One that the
/// bus does not take is published again by the look at a pending job.
async fn awaken(desk: &Desk, items: Vec<Item>, done: &mut Done) {
    let steps = items.iter().map(|i| Step::new(i.record.id, Event::Wake, i.record.head.version.into())).collect();
    let all = ids(&items);
    let (moved, records) = tokio::join!(desk.store().apply(steps), desk.store().read(&all, Fields::PAYLOAD));
    muster_flow::failpoint!("wake.after_apply");
    let mut todo = Vec::new();
    for ((item, moved), record) in items.iter().zip(&moved).zip(records) {
        let Some((_, head)) = done.applied(item, moved) else { continue };
        done.count("wake");
        if let Ok(Some(record)) = record {
            todo.push(Record { head: head.clone(), ..record });
        }
    }
    desk.flow.publish_submits(todo).await;
}

/// Queued: its entry is put back if it is gone, and its lane made known here.
async fn put_back(desk: &Desk, items: Vec<Item>, done: &mut Done) {
    let entry = |item: &Item| QueueEntry {
        tenant: item.record.spec.tenant.clone(),
        topic: item.record.spec.topic.clone(),
        priority: item.record.spec.priority,
        job: item.record.id,
        version: item.record.head.version,
        since: item.record.head.created_at,
    };
    let entries: Vec<QueueEntry> = items.iter().map(entry).collect();
    let stored = desk.store().enqueue(&entries).await;
    for (item, entry) in items.iter().zip(&entries) {
        if stored.is_err() {
            done.fault(item);
            continue;
        }
        done.count("requeue");
        done.as_planned(item);
        // Its use alone has it surveyed, and what waits there released. Names in records are good.
        let _ = desk.lanes.lane(entry.tenant.as_str(), entry.topic.as_str());
    }
}

/// Dispatched, and the offer must be lost: offered again, under a new version.
async fn offer_again(desk: &Desk, items: Vec<Item>, done: &mut Done) {
    let steps = items.iter().map(|i| Step::new(i.record.id, Event::Reoffer, i.record.head.version.into())).collect();
    let all = ids(&items);
    let (moved, records) = tokio::join!(desk.store().apply(steps), desk.store().read(&all, Fields::PAYLOAD));
    let (mut offers, mut stand) = (Vec::new(), PerLane::default());
    for ((item, moved), record) in items.iter().zip(&moved).zip(records) {
        let Some((_, head)) = done.applied(item, moved) else { continue };
        done.count("reoffer");
        if let Ok(Some(record)) = record {
            if let Ok(lane) = desk.lanes.lane(record.spec.tenant.as_str(), record.spec.topic.as_str()) {
                stand.add(&lane);
            }
            offers.push(offer_of(&record, head));
        }
    }
    // One that the bus does not take is found again by the next look.
    desk.flow.offer(offers, Offering { many: false, again: true }).await;
    desk.published(&stand, false);
}

/// Out of time, or its worker fell silent.
async fn end_attempts(desk: &Desk, items: Vec<(Item, FailedAttempt)>, done: &mut Done) {
    let step = |(item, failed): &(Item, FailedAttempt)| {
        let step = Step::new(item.record.id, failed.event, item.record.head.version.into());
        Step { wait: failed.wait, ..step }.with_error(failed.error.clone())
    };
    let moved = desk.store().apply(items.iter().map(step).collect()).await;
    let (mut ends, mut ended, mut news) = (Vec::new(), Vec::new(), Vec::new());
    for ((item, failed), moved) in items.iter().zip(&moved) {
        let Some((moved, head)) = done.applied(item, moved) else { continue };
        done.count(failed.event.as_str());
        let worker = item.record.head.lease().map(|lease| lease.worker.clone());
        let first = moved.outcome == Outcome::Applied;
        if first && worker.is_some() {
            let labels = [("topic", item.record.spec.topic.as_str()), ("outcome", outcome_of(failed.event))];
            count(Counter::JobAttempts, &labels, 1);
        }
        if head.state().is_end() {
            let record = &item.record;
            ends.push(End {
                id: record.id,
                tenant: record.spec.tenant.clone(),
                topic: record.spec.topic.clone(),
                head: head.clone(),
                error_code: Some(failed.error.code.clone()),
                first,
                tell: worker,
            });
            ended.push(record.id);
            continue;
        }
        let spec = &item.record.spec;
        news.push(muster_flow::job_event(item.record.id, &spec.tenant, &spec.topic, head, Some(&failed.error.code)));
        if let Some(worker) = worker {
            desk.flow.stop_attempt(&worker, item.record.id, head).await;
        }
    }
    if desk.flow.finish(ends).await.is_ok() {
        // Their homes are gone; re-scoring would find nothing.
        done.rescores.retain(|(rescore, _)| !ended.contains(&rescore.job));
    } else {
        done.faults += ended.len() as u64;
    }
    events::tell(desk.bus(), news).await;
}

/// What became of an attempt, as a metric says it.
fn outcome_of(event: Event) -> &'static str {
    match event {
        Event::Rescue | Event::Abandon | Event::Poison => "lost",
        _ => "timed_out",
    }
}

/// Ended, but its home is still there: whoever ended it may not have come this far.
async fn finish_ends(desk: &Desk, items: Vec<Item>, done: &mut Done) {
    let end = |item: &Item| End { tell: cut_off(&item.record.head), ..End::of(&item.record, false) };
    let finished = desk.flow.finish(items.iter().map(end).collect()).await;
    for item in &items {
        match finished {
            Ok(()) => done.count("finish"),
            Err(_) => done.fault(item),
        }
    }
}

/// The worker whose attempt was ended from outside, and who may not have heard.
fn cut_off(head: &Head) -> Option<muster_domain::WorkerId> {
    use muster_domain::job::EndedBy;
    let outside = matches!(head.ended_by(), Some(EndedBy::Cancel | EndedBy::Clock | EndedBy::Silence));
    head.last_worker.clone().filter(|_| outside)
}
