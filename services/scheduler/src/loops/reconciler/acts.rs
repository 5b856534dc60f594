//! Carries out what the checks say, in pipelines: publish again, wake, put back, offer again, end.
//!
//! Promises: every event compares the version that was read. A job's state after the action decides when it is checked
//! next. An end gets all its effects, the removal of the home last. An action is in the audit log before its effects
//! are visible, and an entry that an earlier pass may have missed because it died is written before the job moves on.
//! Leaves to others: re-scoring the homes that stay.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_domain::{
    Act, Event, Head, JobId, Outcome, Phase, State, audit,
    job::{Action, FailedAttempt},
};
use muster_flow::{End, Offering, offer_of};
use muster_store::{Fields, LeaderLock, Lease, Moved, QueueEntry, Record, Rescore, SlotRef, Step, StoreError};
use muster_telemetry::{Counter, Emit, count, events::Replayed};

use super::{AFTER_A_FAULT, Faulty, Item, Moment, SOON, wait_of};
use crate::{context::Context, events, route_notices, route_state::PerRoute, slots};

/// The longest time to the next check of a job that was not woken because the bus does not answer. It must not be much
/// longer: scripts take the time that such a job waits for as its latest check, so they would not forward its home.
const PUT_OFF: Duration = Duration::from_secs(4);

/// When to check a job again that was not woken, from how late it is already: ever more rarely, so that a long outage
/// costs few writes, and seldom much later than it is already.
fn put_off_for(late: Duration) -> Duration {
    (late / 4).clamp(AFTER_A_FAULT, PUT_OFF)
}

/// The actions for the jobs of one shard.
#[derive(Default)]
pub(super) struct Plan {
    nothing: Vec<Item>,
    resubmit: Vec<Item>,
    wake: Vec<Item>,
    requeue: Vec<Item>,
    reoffer: Vec<Item>,
    apply: Vec<(Item, FailedAttempt)>,
    finish: Vec<Item>,
    put_off: Vec<Item>,
}

impl Plan {
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

    pub(super) fn wakes(&self) -> bool {
        !self.wake.is_empty()
    }

    /// Leaves the jobs to wake for a later pass, of this replica or of another.
    pub(super) fn put_off_wakes(&mut self) {
        self.put_off.append(&mut self.wake);
    }
}

/// The result of a plan.
pub(super) struct Done {
    /// When the jobs were read.
    read: Moment,
    /// Each with the start of its wait.
    rescores: Vec<(Rescore, Instant)>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// A job moved, and may be due again at once.
    pub(super) moved: bool,
    pub(super) faults: u64,
}

impl Done {
    fn count(&mut self, action: &'static str) {
        *self.counts.entry(action).or_default() += 1;
    }

    /// The homes to re-score now: the time that the pass itself took is subtracted from each wait.
    pub(super) fn rescores(self) -> Vec<Rescore> {
        let left = |(rescore, since): (Rescore, Instant)| Rescore {
            after: rescore.after.saturating_sub(since.elapsed()),
            ..rescore
        };
        self.rescores.into_iter().map(left).collect()
    }

    /// The job has not moved: check it again as planned.
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

    /// A fault of a job that has a planned check already: replaces it by an earlier one.
    fn fault_of(&mut self, item: &Item) {
        self.rescores.retain(|(rescore, _)| rescore.job != item.record.id);
        self.fault(item);
    }

    /// The bus does not answer: check the job again after a while.
    fn put_off(&mut self, item: &Item) {
        let (Phase::Scheduled { run_at } | Phase::Retrying { run_at }) = item.record.head.phase else {
            return self.fault(item);
        };
        self.faults += 1;
        self.look_in(item, put_off_for(self.read.time.since(run_at)));
    }

    fn look_in(&mut self, item: &Item, after: Duration) {
        self.look_from(Instant::now(), item, after);
    }

    fn look_from(&mut self, since: Instant, item: &Item, after: Duration) {
        self.rescores.push((Rescore { job: item.record.id, read: item.read, after }, since));
    }

    /// Plans the next check by the script's answer. Returns the head if the event holds.
    fn applied<'m>(&mut self, item: &Item, moved: &'m Result<Moved, StoreError>) -> Option<(&'m Moved, &'m Head)> {
        let moved = match moved {
            Ok(moved) => moved,
            Err(_) => {
                self.fault(item);
                return None;
            }
        };
        let Some(head) = &moved.head else {
            // The job has gone since it was read: the next check finds an orphan.
            self.look_in(item, SOON);
            return None;
        };
        match moved.outcome {
            Outcome::Applied | Outcome::Already => {
                self.moved |= moved.outcome == Outcome::Applied;
                self.look_in(item, wait_of(head, moved.now));
                Some((moved, head))
            }
            // Another process was faster, or the job's time has not come by its own node's clock.
            _ => {
                self.look_in(item, wait_of(head, moved.now).max(SOON));
                None
            }
        }
    }
}

/// Carries out the plan. Each kind of action checks the lease before it writes.
pub(super) async fn carry_out(context: &Context, lease: &Lease, mut plan: Plan, read: Moment) -> anyhow::Result<Done> {
    let mut done = Done { read, rescores: Vec::new(), counts: BTreeMap::new(), moved: false, faults: 0 };
    tell_owed(context, lease, &mut plan, &mut done).await?;
    let Plan { nothing, resubmit, wake, requeue, reoffer, apply, finish, put_off } = plan;
    put_off.iter().for_each(|item| done.put_off(item));
    for item in &nothing {
        done.as_planned(item);
    }
    if !resubmit.is_empty() {
        republish(context, lease, resubmit, &mut done).await?;
    }
    if !wake.is_empty() {
        awaken(context, lease, wake, &mut done).await?;
    }
    if !requeue.is_empty() {
        put_back(context, lease, requeue, &mut done).await?;
    }
    if !reoffer.is_empty() {
        offer_again(context, lease, reoffer, &mut done).await?;
    }
    if !apply.is_empty() {
        end_attempts(context, lease, apply, &mut done).await?;
    }
    if !finish.is_empty() {
        finish_ends(context, lease, finish, &mut done).await?;
    }
    Ok(done)
}

/// The audit entries that an earlier pass may have missed because it died: the last transition, if a loop caused it;
/// and, for a cancelled job, every retry, because the cancel may have come between a retry and its entry.
fn owed(item: &Item) -> Vec<Act> {
    let Record { id, spec, head, history, .. } = &item.record;
    let mut acts: Vec<Act> = audit::owed(*id, spec, head, history).into_iter().collect();
    if head.last_event == Some(Event::Cancel) && head.fence > 0 {
        acts.extend(audit::retries(*id, spec, head, history));
    }
    acts
}

/// Writes the missing audit entries before the jobs move on. If that fails, the jobs concerned wait.
async fn tell_owed(context: &Context, lease: &Lease, plan: &mut Plan, done: &mut Done) -> Result<(), StoreError> {
    lease.leads(LeaderLock::Reconciler)?;
    let Plan { resubmit, wake, reoffer, apply, finish, .. } = plan;
    let moving =
        resubmit.iter().chain(&*wake).chain(&*reoffer).chain(&*finish).chain(apply.iter().map(|(item, _)| item));
    let acts: Vec<Act> = moving.flat_map(owed).collect();
    if tell(context, &acts).await {
        return Ok(());
    }
    let mut waits = |item: &Item| {
        let waits = !owed(item).is_empty();
        if waits {
            done.fault(item);
        }
        waits
    };
    for items in [resubmit, wake, reoffer, finish] {
        items.retain(|item| !waits(item));
    }
    apply.retain(|(item, _)| !waits(item));
    Ok(())
}

/// Writes to the audit log. False if that failed.
async fn tell(context: &Context, acts: &[Act]) -> bool {
    match acts {
        [] => true,
        acts => context.store().audit(acts).await.is_ok(),
    }
}

/// The audit entry for a transition of this job, if it needs one.
fn act_of(item: &Item, head: &Head) -> Option<Act> {
    audit::of_transition(item.record.id, &item.record.spec, item.record.head.state(), head)
}

fn ids(items: &[Item]) -> Vec<JobId> {
    items.iter().map(|item| item.record.id).collect()
}

/// For pending jobs whose submit must be lost: publishes it again under a new id.
async fn republish(context: &Context, lease: &Lease, items: Vec<Item>, done: &mut Done) -> Result<(), StoreError> {
    lease.leads(LeaderLock::Reconciler)?;
    let records = context.store().read(&ids(&items), Fields::PAYLOAD).await;
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
    let help = |item: &&Item| {
        let record = &item.record;
        audit::of_help(record.id, &record.spec, &record.head, "resubmit", done.read.time)
    };
    let acts: Vec<Act> = lost.iter().map(help).collect();
    if !tell(context, &acts).await {
        lost.into_iter().for_each(|item| done.fault(item));
        return Ok(());
    }
    muster_flow::failpoint!("resubmit.after_audit");
    let n = todo.len() as u64;
    let unsent: Faulty = context.flow.publish_submits(todo).await.into_iter().collect();
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
    Ok(())
}

/// For scheduled or retrying jobs whose time has come: makes them pending and publishes their submits. If the bus does
/// not take a submit, the check of the pending job publishes it again.
async fn awaken(context: &Context, lease: &Lease, items: Vec<Item>, done: &mut Done) -> Result<(), StoreError> {
    lease.leads(LeaderLock::Reconciler)?;
    let steps = items.iter().map(|i| Step::new(i.record.id, Event::Wake, i.record.head.version.into())).collect();
    let all = ids(&items);
    let (moved, records) = tokio::join!(context.store().apply(steps), context.store().read(&all, Fields::PAYLOAD));
    muster_flow::failpoint!("wake.after_apply");
    let (mut todo, mut acts, mut retried) = (Vec::new(), Vec::new(), Vec::new());
    for ((item, moved), record) in items.iter().zip(&moved).zip(records) {
        let Some((_, head)) = done.applied(item, moved) else { continue };
        done.count("wake");
        if let Some(act) = act_of(item, head) {
            acts.push(act);
            retried.push(item);
        }
        if let Ok(Some(record)) = record {
            todo.push(Record { head: head.clone(), ..record });
        }
    }
    if !tell(context, &acts).await {
        // Do not publish before the audit entry is written; the next check writes it.
        retried.iter().for_each(|item| done.fault_of(item));
        todo.retain(|record| retried.iter().all(|item| item.record.id != record.id));
    }
    muster_flow::failpoint!("wake.after_audit");
    context.flow.publish_submits(todo).await;
    Ok(())
}

/// For queued jobs: puts a missing entry back, and creates the route in this replica.
async fn put_back(context: &Context, lease: &Lease, items: Vec<Item>, done: &mut Done) -> Result<(), StoreError> {
    lease.leads(LeaderLock::Reconciler)?;
    let entries: Vec<QueueEntry> = items.iter().map(|item| QueueEntry::of(&item.record)).collect();
    let stored = context.store().enqueue(&entries).await;
    for item in &items {
        if stored.is_err() {
            done.fault(item);
            continue;
        }
        done.count("requeue");
        done.as_planned(item);
        // The lookup is enough: the route is then surveyed and its waiting jobs released. Names in records are valid.
        let spec = &item.record.spec;
        let _ = context.routes.route_for(spec.tenant.as_str(), spec.topic.as_str(), &spec.requires);
    }
    Ok(())
}

/// For dispatched jobs whose offer must be lost: offers them again, under a new version.
async fn offer_again(context: &Context, lease: &Lease, items: Vec<Item>, done: &mut Done) -> Result<(), StoreError> {
    lease.leads(LeaderLock::Reconciler)?;
    let steps = items.iter().map(|i| Step::new(i.record.id, Event::Reoffer, i.record.head.version.into())).collect();
    let all = ids(&items);
    let (moved, records) = tokio::join!(context.store().apply(steps), context.store().read(&all, Fields::PAYLOAD));
    muster_flow::failpoint!("reoffer.after_apply");
    let heads = moved.iter().map(|moved| moved.as_ref().ok().and_then(|moved| moved.done()));
    let acts: Vec<Act> = items.iter().zip(heads).filter_map(|(item, head)| act_of(item, head?)).collect();
    let told = tell(context, &acts).await;
    let (mut offers, mut stand) = (Vec::new(), PerRoute::default());
    for ((item, moved), record) in items.iter().zip(&moved).zip(records) {
        let Some((_, head)) = done.applied(item, moved) else { continue };
        if !told {
            done.fault_of(item);
            continue;
        }
        done.count("reoffer");
        if let Ok(Some(record)) = record {
            let spec = &record.spec;
            if let Ok(route) = context.routes.route_for(spec.tenant.as_str(), spec.topic.as_str(), &spec.requires) {
                stand.add(&route);
            }
            offers.push(offer_of(&record, head));
        }
    }
    muster_flow::failpoint!("reoffer.after_audit");
    // If the bus does not take an offer, the next check finds the job again.
    context.flow.offer(offers, Offering { most: 1, again: true }).await;
    route_notices::published(context, &stand, 1).await;
    Ok(())
}

/// Ends attempts that are out of time or whose worker is silent.
async fn end_attempts(
    context: &Context,
    lease: &Lease,
    items: Vec<(Item, FailedAttempt)>,
    done: &mut Done,
) -> Result<(), StoreError> {
    lease.leads(LeaderLock::Reconciler)?;
    let step = |(item, failed): &(Item, FailedAttempt)| {
        let step = Step::new(item.record.id, failed.event, item.record.head.version.into());
        Step { wait: failed.wait, ..step }.with_error(failed.error.clone())
    };
    let moved = context.store().apply(items.iter().map(step).collect()).await;
    muster_flow::failpoint!("end.after_apply");
    let heads = moved.iter().map(|moved| moved.as_ref().ok().and_then(|moved| moved.done()));
    let acts: Vec<Act> = items.iter().zip(heads).filter_map(|((item, _), head)| act_of(item, head?)).collect();
    let told = tell(context, &acts).await;
    if !acts.is_empty() {
        muster_flow::failpoint!("end.after_audit");
    }
    let (mut ends, mut ended, mut news, mut freed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for ((item, failed), moved) in items.iter().zip(&moved) {
        let Some((moved, head)) = done.applied(item, moved) else { continue };
        if !told {
            done.fault_of(item);
            continue;
        }
        done.count(failed.event.as_str());
        let worker = item.record.head.lease().map(|lease| lease.worker.clone());
        let first = moved.outcome == Outcome::Applied;
        if first && worker.is_some() {
            let labels = [("topic", item.record.spec.topic.as_str()), ("outcome", outcome_of(failed.event))];
            count(Counter::JobAttempts, &labels, 1);
        }
        if head.state().is_end() {
            let record = Record { head: head.clone(), ..item.record.clone() };
            let error_code = Some(failed.error.code.clone());
            ends.push(End::of(&record, first).error(error_code).tell(worker));
            ended.push(record.id);
            continue;
        }
        let spec = &item.record.spec;
        news.push({
            let (route, code) = ((&spec.tenant, &spec.topic), Some(failed.error.code.as_str()));
            muster_flow::job_event(item.record.id, route, head, spec.run, code)
        });
        if let Some(worker) = worker {
            context.flow.stop_attempt(&worker, item.record.id, head).await;
        }
        // The worker was silent for a whole lease, so its concurrency slot is free. A worker that was only too slow
        // keeps it for now.
        if failed.event == Event::Rescue {
            freed.extend(SlotRef::of(&item.record));
        }
    }
    match context.flow.finish(ends).await {
        Ok(finished) => {
            // Their homes are gone; a re-score would find nothing.
            let kept = |job: &JobId| finished.held.iter().any(|(held, _)| held == job);
            done.rescores.retain(|(rescore, _)| !ended.contains(&rescore.job) || kept(&rescore.job));
            slots::freed(context, &finished.freed, finished.next).await;
        }
        Err(_) => done.faults += ended.len() as u64,
    }
    if !freed.is_empty() {
        muster_flow::failpoint!("end.after_finish");
    }
    slots::free(context, freed).await;
    events::tell(context.bus(), news).await;
    Ok(())
}

/// The outcome of an attempt, as a metric label.
fn outcome_of(event: Event) -> &'static str {
    match event {
        Event::Rescue | Event::Abandon | Event::Poison => "lost",
        _ => "timed_out",
    }
}

/// For ended jobs that still have a home: the process that ended them may have stopped before it did all effects.
async fn finish_ends(context: &Context, lease: &Lease, items: Vec<Item>, done: &mut Done) -> Result<(), StoreError> {
    lease.leads(LeaderLock::Reconciler)?;
    let end = |item: &Item| End::of(&item.record, false).tell(cut_off(&item.record.head));
    let finished = context.flow.finish(items.iter().map(end).collect()).await;
    let Ok(finished) = finished else {
        items.iter().for_each(|item| done.fault(item));
        return Ok(());
    };
    for item in &items {
        match finished.held.iter().find(|(held, _)| *held == item.record.id) {
            // The worker may still run the job and keeps the slot until then: the end is finished later.
            Some((_, left)) => done.look_in(item, (*left).max(SOON)),
            None => done.count("finish"),
        }
    }
    slots::freed(context, &finished.freed, finished.next).await;
    Ok(())
}

/// The worker whose attempt was ended from outside, and which may not know.
fn cut_off(head: &Head) -> Option<muster_domain::WorkerId> {
    use muster_domain::job::EndedBy;
    let outside = matches!(head.ended_by(), Some(EndedBy::Cancel | EndedBy::Clock | EndedBy::Silence));
    head.last_worker.clone().filter(|_| outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_the_bus_cannot_have_yet_is_checked_ever_more_rarely() {
        let outage = Duration::from_secs(600);
        let (mut late, mut checks) = (Duration::ZERO, 0);
        while late < outage {
            let next = put_off_for(late);
            assert!(next <= PUT_OFF && next <= (late / 4).max(AFTER_A_FAULT), "{next:?} after {late:?}");
            (late, checks) = (late + next, checks + 1);
        }
        assert!(checks < 170, "{checks} checks in {outage:?}");
    }
}
