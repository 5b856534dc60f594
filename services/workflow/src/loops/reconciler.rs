//! Looks at every run that is due: timers, operations that a gateway saved, commands that were not carried out, and
//! ends of jobs that were never told.
//!
//! Promises: the home of a run that has not ended is re-scored, by compare, and never dropped; an entry without a run is
//! removed only when it is due and nothing hides the run. A run that cannot be handled is postponed and blocks no other
//! run. The loop continues until nothing is due, then sleeps until the next home is due.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join_all, stream};
use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_domain::RunId;
use muster_replica::{LoopOf, Member, Shards};
use muster_runs::RECONCILER;
use muster_store::{DueHomes, Lease, Rescore, ShardedLock};
use muster_telemetry::{Gauge, set};

use crate::{
    context::Context,
    turn::{Cause, Turn, take_turn},
};

/// Homes read at once from one shard.
const BATCH: usize = 500;
/// Runs handled at the same time.
const AT_ONCE: usize = 64;
/// Next look at a run that could not be handled.
const AFTER_A_FAULT: Duration = Duration::from_secs(1);
/// Runs that become due within this time of each other are handled together.
const TOGETHER: Duration = Duration::from_millis(2);
/// The longest sleep worth remembering: the loop's own interval is much shorter.
const HORIZON: Duration = Duration::from_secs(3600);

pub(super) struct Reconciler(Arc<Context>);

impl LoopOf<Arc<Context>> for Reconciler {
    fn make(_: &Member, context: &Arc<Context>) -> Option<Reconciler> {
        Some(Reconciler(context.clone()))
    }
}

impl Loop for Reconciler {
    const NAME: &'static str = RECONCILER;
    const SAFE: Safety = Safety::Leader {
        lock: ShardedLock::Runs.as_str(),
        why: "a save compares the version that was read, and every command has an id of its own",
        duplicate_costs: "a second look at the same runs",
    };
    type Lease = Shards;

    async fn run_once(&mut self, shards: &Shards, budget: Budget) -> anyhow::Result<Counts> {
        let context = &self.0;
        let _pass = context.pass.lock().await;
        if context.stop.is_cancelled() {
            return Ok(Counts::none());
        }
        let held: Vec<(u8, Lease)> = shards.held().map(|(shard, lease)| (shard, lease.clone())).collect();
        context.owned.set(held.clone());
        set(Gauge::RunShards, &[], held.len() as f64);
        let mut pass = Pass { context, counts: Counts::none(), due_at: None, faults: 0, looked: 0 };
        let mut left = held;
        while !left.is_empty() {
            let store = &context.runs.flow.store;
            let dues = join_all(left.iter().map(|(shard, _)| store.due_homes_of::<RunId>(*shard, BATCH))).await;
            let mut again = Vec::new();
            for ((shard, lease), due) in left.into_iter().zip(dues) {
                match due {
                    Ok(due) => {
                        if pass.shard(&lease, due).await {
                            again.push((shard, lease));
                        }
                    }
                    Err(_) => pass.faults += 1,
                }
            }
            if budget.spent() || context.stop.is_cancelled() {
                pass.due_in(Duration::ZERO);
                break;
            }
            left = again;
        }
        let Pass { mut counts, due_at, faults, looked, .. } = pass;
        if looked > 0 {
            counts.add("looked", looked);
        }
        if let Some(due_at) = due_at {
            counts.due_in(due_at.saturating_duration_since(Instant::now()));
        }
        if faults > 0 {
            counts.add("faults", faults);
            counts.due_in(AFTER_A_FAULT);
        }
        Ok(counts)
    }

    fn stands_down(&mut self) {
        self.0.owned.set(Vec::new());
        set(Gauge::RunShards, &[], 0.0);
    }
}

/// One pass over the owned shards.
struct Pass<'a> {
    context: &'a Arc<Context>,
    counts: Counts,
    due_at: Option<Instant>,
    faults: u64,
    looked: u64,
}

impl Pass<'_> {
    fn due_in(&mut self, after: Duration) {
        let at = Instant::now() + after.min(HORIZON);
        self.due_at = Some(self.due_at.map_or(at, |due| due.min(at)));
    }

    /// Handles the runs that are due in one shard. True if more may be due now.
    async fn shard(&mut self, lease: &Lease, due: DueHomes<RunId>) -> bool {
        let DueHomes { entries, now, next } = due;
        if let Some(next) = next {
            self.due_in(next.remaining(now).max(TOGETHER));
        }
        if entries.is_empty() {
            return false;
        }
        let full = entries.len() == BATCH;
        self.looked += entries.len() as u64;
        let context = self.context;
        let begun = entries.into_iter().take_while(|_| !context.stop.is_cancelled());
        let turns = stream::iter(begun).map(|(run, read)| async move {
            let done = take_turn(context, run, Cause::Due).await;
            (run, read, done)
        });
        let done: Vec<_> = turns.buffer_unordered(AT_ONCE).collect().await;
        muster_flow::failpoint!("run.look.before_rescore");
        let (mut rescores, mut over) = (Vec::new(), Vec::new());
        for (run, read, done) in done {
            match done {
                Ok(Turn::Waits(after)) => rescores.push(Rescore { job: run, read, after }),
                Ok(Turn::Over | Turn::Gone) => over.push((run, read)),
                Err(fault) => {
                    let after = if fault.is_retryable() { AFTER_A_FAULT } else { 60 * AFTER_A_FAULT };
                    if !fault.is_retryable() {
                        tracing::error!(event = "run_unreadable", %run, %fault, "a run cannot be handled");
                    }
                    self.faults += u64::from(fault.is_retryable());
                    rescores.push(Rescore { job: run, read, after });
                }
            }
        }
        let store = &self.context.runs.flow.store;
        let soonest = rescores.iter().map(|rescore| rescore.after).min();
        let mut moved = false;
        if let Some(soonest) = soonest {
            match store.rescore_homes(lease, &rescores).await {
                Ok(()) => self.due_in(soonest.max(TOGETHER)),
                Err(_) => self.faults += 1,
            }
        }
        if !over.is_empty() {
            muster_flow::failpoint!("run.look.before_drop");
        }
        // By compare: whoever forwarded a home in the meantime wants another look.
        let dropped = join_all(over.iter().map(|(run, read)| store.drop_orphan_home(lease, *run, *read))).await;
        for done in &dropped {
            match done {
                Ok(gone) => moved |= gone,
                Err(_) => self.faults += 1,
            }
        }
        full && (moved || soonest.is_some())
    }
}
