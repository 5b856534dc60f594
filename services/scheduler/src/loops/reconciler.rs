//! Checks every job that is due, and does what the check says.
//!
//! Knows: the homes. Promises: the home of every job that was read is re-scored, by compare, and no home of a live job
//! is dropped. An entry without a record is removed only when it is due and no outage may have hidden the record. Each
//! write compares the version that was read, so a leader that was paused and wakes up changes nothing. A job whose
//! record cannot be read is postponed and blocks no other job. The loop continues until nothing is due, then sleeps
//! until the next home is due. Leaves to others: what a job needs (`look` in `domain`), how it is done (`acts`), what
//! the bus holds (`view`).

mod acts;
mod view;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_domain::{
    Head, JobId, Phase, Time,
    ids::SHARDS,
    job::{DISPATCHED_LOOK, PENDING_LOOK, QUEUED_LOOK, look, next_look},
};
use muster_replica::{LoopOf, Member};
use muster_store::{DueHomes, Fields, LeaderLock, Lease, Record, Rescore};
use muster_telemetry::{Counter, count};

use crate::{context::Context, loop_names::RECONCILER};
use acts::Plan;
use view::View;

/// Homes read at once from one shard.
const BATCH: usize = 500;
/// Next check of a job for which an action failed.
const AFTER_A_FAULT: Duration = Duration::from_secs(1);
/// Next check of a job whose Redis node does not answer. The jobs behind it in its shard do not wait for it.
const OUT_OF_REACH: Duration = Duration::from_secs(2);
/// Next check of a job whose record is unreadable: only a person can repair it.
const UNREADABLE_LOOK: Duration = Duration::from_secs(60);
/// Jobs that become due within this time of each other are checked together.
const TOGETHER: Duration = Duration::from_millis(10);
/// The least wait before a job that did not move is checked again.
const SOON: Duration = Duration::from_millis(50);
/// The longest sleep worth remembering: the loop's own interval is much shorter.
const HORIZON: Duration = Duration::from_secs(3600);

pub(super) struct Reconciler {
    context: Arc<Context>,
    /// The first shard of the next pass: the one that the last pass was handling. A pass that runs out of time is
    /// continued, so that slow shards never starve the ones behind them.
    first: u8,
}

impl LoopOf<Arc<Context>> for Reconciler {
    fn make(_: &Member, context: &Arc<Context>) -> Option<Reconciler> {
        Some(Reconciler { context: context.clone(), first: 0 })
    }
}

impl Loop for Reconciler {
    const NAME: &'static str = RECONCILER;
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Reconciler.as_str(),
        why: "each write is one script that first compares what was read, and every effect has its own id",
        duplicate_costs: "a second check of the same jobs",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, budget: Budget) -> anyhow::Result<Counts> {
        muster_flow::failpoint!("reconciler.begin");
        let (view, counts) = (View::new(&self.context), Counts::none());
        let mut pass = Pass { context: &self.context, lease, view, counts, due_at: None, faults: 0 };
        let mut shards: Vec<u8> = (0..SHARDS).map(|n| (self.first + n) % SHARDS).collect();
        while !shards.is_empty() {
            if budget.spent() {
                pass.due_in(Duration::ZERO);
                break;
            }
            let store = self.context.store();
            // Skip nodes that are known to be down.
            let (there, away): (Vec<u8>, Vec<u8>) = shards
                .into_iter()
                .partition(|shard| !self.context.lease_guard.is_away(store.node_of_homes(*shard).as_ref()));
            pass.faults += away.len() as u64;
            let dues = join_all(there.iter().map(|shard| store.due_homes(*shard, BATCH))).await;
            let read_at = Instant::now();
            let mut again = Vec::new();
            for (shard, due) in there.into_iter().zip(dues) {
                self.first = shard;
                if budget.spent() {
                    pass.due_in(Duration::ZERO);
                    again.clear();
                    break;
                }
                let Ok(due) = due else {
                    pass.faults += 1;
                    continue;
                };
                if pass.shard(due, read_at).await? {
                    again.push(shard);
                }
            }
            shards = again;
        }
        let Pass { mut counts, due_at, faults, .. } = pass;
        if let Some(due_at) = due_at {
            counts.due_in(due_at.saturating_duration_since(Instant::now()));
        }
        if faults > 0 {
            counts.add("faults", faults);
            counts.due_in(AFTER_A_FAULT);
        }
        Ok(counts)
    }
}

/// One job that is due.
struct Item {
    /// The score of its home, as read.
    read: u64,
    record: Record,
    /// When to check again if nothing changes.
    next: Time,
}

/// A moment of Redis time, and the same moment by the local clock.
#[derive(Clone, Copy)]
struct Moment {
    time: Time,
    here: Instant,
}

/// One pass over the shards.
struct Pass<'a> {
    context: &'a Arc<Context>,
    lease: &'a Lease,
    view: View<'a>,
    counts: Counts,
    /// When the next home is due, by the local clock: a pass may take a while.
    due_at: Option<Instant>,
    faults: u64,
}

impl Pass<'_> {
    /// Checks the jobs that were due in one shard at `read_at`. True if more may be due now.
    async fn shard(&mut self, due: DueHomes, read_at: Instant) -> anyhow::Result<bool> {
        let DueHomes { entries, now, next } = due;
        // The shards are read together and handled one after the other.
        let here = Instant::now();
        let now = now + here.saturating_duration_since(read_at);
        if let Some(next) = next {
            self.due_in(next.remaining(now).max(TOGETHER));
        }
        if entries.is_empty() {
            return Ok(false);
        }
        self.check()?;
        let full = entries.len() == BATCH;
        let store = self.context.store();
        let (entries, mut out_of_reach): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(id, _)| !self.context.lease_guard.is_away(store.node_of(*id).as_ref()));
        let ids: Vec<JobId> = entries.iter().map(|(id, _)| *id).collect();
        let records = store.read(&ids, Fields::NONE).await;
        let (mut plan, mut orphans, mut unreadable) = (Plan::default(), Vec::new(), Vec::new());
        for ((id, read), record) in entries.into_iter().zip(records) {
            match record {
                Err(fault) if fault.is_unreadable() => unreadable.push((id, read)),
                Err(_) => out_of_reach.push((id, read)),
                Ok(None) => orphans.push((id, read)),
                Ok(Some(record)) => {
                    let view = self.view.of(&record, now).await;
                    let looked = look(id, &record.head, &record.spec, now, &view);
                    plan.add(Item { read, record, next: looked.next }, looked.action);
                }
            }
        }
        muster_flow::failpoint!("look.after_read");
        let moved = self.act(plan, Moment { time: now, here }).await?;
        let dropped = self.drop_orphans(orphans).await?;
        self.faults += out_of_reach.len() as u64;
        self.count("unreadable", unreadable.len() as u64);
        let put_off =
            self.put_off(out_of_reach, OUT_OF_REACH).await? && self.put_off(unreadable, UNREADABLE_LOOK).await?;
        Ok(moved || ((full || dropped) && put_off))
    }

    /// Postpones jobs that cannot be checked now. False if they are still due.
    async fn put_off(&mut self, jobs: Vec<(JobId, u64)>, after: Duration) -> anyhow::Result<bool> {
        if jobs.is_empty() {
            return Ok(true);
        }
        self.check()?;
        let later = |(job, read)| Rescore { job, read, after };
        Ok(self.rescore(&jobs.into_iter().map(later).collect::<Vec<_>>(), after).await)
    }

    fn count(&mut self, action: &'static str, n: u64) {
        if n > 0 {
            self.counts.add(action, n);
            count(Counter::Reconciled, &[("action", action)], n);
        }
    }

    /// Carries out the plan, and re-scores the homes. True if a job moved: it may be due again at once.
    async fn act(&mut self, mut plan: Plan, now: Moment) -> anyhow::Result<bool> {
        if plan.wakes() && !self.view.bus_answers().await {
            plan.put_off_wakes();
        }
        let done = acts::carry_out(self.context, self.lease, plan, now).await?;
        for (action, n) in &done.counts {
            self.count(action, *n);
        }
        self.faults += done.faults;
        muster_flow::failpoint!("look.before_rescore");
        self.check()?;
        let moved = done.moved;
        let rescores = done.rescores();
        let Some(after) = rescores.iter().map(|rescore| rescore.after).min() else { return Ok(moved) };
        Ok(self.rescore(&rescores, after).await && moved)
    }

    /// Re-scores homes. Homes that could not be re-scored stay due; other shards do not wait for them.
    async fn rescore(&mut self, rescores: &[Rescore], soonest: Duration) -> bool {
        let done = self.context.store().rescore_homes(self.lease, rescores).await.is_ok();
        if done {
            self.due_in(soonest.max(TOGETHER));
        } else {
            self.faults += 1;
        }
        done
    }

    fn due_in(&mut self, after: Duration) {
        let at = Instant::now() + after.min(HORIZON);
        self.due_at = Some(self.due_at.map_or(at, |due| due.min(at)));
    }

    /// Removes homes without a record. While an outage may have hidden records, postpones them instead. True if one was
    /// removed.
    async fn drop_orphans(&mut self, orphans: Vec<(JobId, u64)>) -> anyhow::Result<bool> {
        if orphans.is_empty() {
            return Ok(false);
        }
        self.check()?;
        let (store, now) = (self.context.store(), Instant::now());
        let (mut waiting, mut gone) = (Vec::new(), Vec::new());
        for (job, read) in orphans {
            match self.context.lease_guard.disturbed_for(store.node_of(job).as_ref(), now) {
                Duration::ZERO => gone.push((job, read)),
                after => waiting.push(Rescore { job, read, after }),
            }
        }
        if let Some(soonest) = waiting.iter().map(|rescore| rescore.after).min() {
            self.rescore(&waiting, soonest).await;
        }
        let dropped = join_all(gone.iter().map(|(id, read)| store.drop_orphan_home(self.lease, *id, *read))).await;
        let n = dropped.iter().filter(|done| matches!(done, Ok(true))).count() as u64;
        self.count("orphan", n);
        self.faults += dropped.iter().filter(|done| done.is_err()).count() as u64;
        Ok(n > 0)
    }

    fn check(&self) -> anyhow::Result<()> {
        Ok(self.lease.leads(LeaderLock::Reconciler)?)
    }
}

/// Time until the next check of a job with this head.
fn wait_of(head: &Head, now: Time) -> Duration {
    let wait = next_look(head, now).remaining(now);
    // If the home became due slightly before the job counts as overdue, check again shortly, not a full interval later.
    let missed = |after: Duration| Some((head.since + after).remaining(now)).filter(|left| !left.is_zero());
    match head.phase {
        Phase::Pending { .. } => missed(PENDING_LOOK).map_or(wait, |left| wait.min(left + SOON)),
        Phase::Dispatched => missed(DISPATCHED_LOOK).map_or(wait, |left| wait.min(left + SOON)),
        // Spread the checks of a backlog that was queued all at once.
        Phase::Queued if wait == QUEUED_LOOK => {
            let spread = QUEUED_LOOK.mul_f64(0.5 + fastrand::f64());
            let start_by = head.start_by.filter(|_| !head.was_started());
            let bounds = [head.deadline, start_by].into_iter().flatten();
            bounds.fold(spread, |wait, bound| wait.min(bound.remaining(now)))
        }
        _ => wait,
    }
}

/// Ids of jobs for which an action failed.
type Faulty = HashSet<JobId>;

#[cfg(test)]
mod tests {
    use muster_domain::State;

    use super::*;

    const NOW: Time = Time(1_800_000_000_000_000);

    fn queued() -> Head {
        standing(Phase::Queued, Duration::ZERO)
    }

    fn standing(phase: Phase, age: Duration) -> Head {
        Head {
            version: 2,
            attempt: 0,
            max_attempts: 1,
            lost: 0,
            released: 0,
            timeout: None,
            fence: 0,
            since: NOW.before(age),
            deadline: None,
            start_by: None,
            started_at: None,
            created_at: NOW.before(age),
            last_event: None,
            attempt_ended_by: None,
            last_worker: None,
            phase,
        }
    }

    #[test]
    fn looks_at_a_backlog_are_spread_and_never_past_a_deadline() {
        let waits: Vec<Duration> = (0..200).map(|_| wait_of(&queued(), NOW)).collect();
        assert!(waits.iter().all(|w| (QUEUED_LOOK / 2..=QUEUED_LOOK * 3 / 2).contains(w)));
        assert!(waits.iter().any(|w| *w < QUEUED_LOOK) && waits.iter().any(|w| *w > QUEUED_LOOK));
        let mut bound = queued();
        bound.deadline = Some(NOW + QUEUED_LOOK + Duration::from_secs(1));
        assert!((0..200).all(|_| wait_of(&bound, NOW) <= QUEUED_LOOK + Duration::from_secs(1)));
        assert_eq!(bound.state(), State::Queued);
    }

    #[test]
    fn what_was_looked_at_a_moment_too_early_is_looked_at_in_a_moment() {
        let almost = DISPATCHED_LOOK - Duration::from_millis(3);
        for phase in [Phase::Dispatched, Phase::Pending { run_at: Time::NONE }] {
            assert_eq!(wait_of(&standing(phase.clone(), almost), NOW), Duration::from_millis(3) + SOON);
            assert_eq!(wait_of(&standing(phase, DISPATCHED_LOOK), NOW), DISPATCHED_LOOK);
        }
    }
}
