//! Puts back index entries that a failover or a person removed. Reads records, never judges them.
//!
//! Walks all records endlessly, a few each second, so that its cost does not grow with their number. It makes a fast
//! pass after its start, and when a hash slot has moved or a primary has restarted: index writes may have been lost
//! then. Even then it works only half of the time. Leaves to others: the walk and its writes (`store`), what a job then
//! needs (`reconciler`), and releasing waiting jobs (`backlog`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_replica::{LoopOf, Member};
use muster_store::{LeaderLock, Lease, ScrubPass, ScrubWalk, Scrubbed};
use muster_telemetry::{Counter, count};
use tokio::sync::watch;

use crate::context::Context;

/// Records in one step. Without an urgent pass a tick makes one step.
const BATCH: usize = 500;
/// Pause before a page with a fault is tried again.
const AFTER_A_FAULT: Duration = Duration::from_secs(1);

pub(super) struct Scrub {
    context: Arc<Context>,
    walk: ScrubWalk,
    topology: watch::Receiver<u64>,
    /// What the current pass has found so far.
    found: ScrubPass,
}

impl LoopOf<Arc<Context>> for Scrub {
    fn make(_: &Member, context: &Arc<Context>) -> Option<Scrub> {
        let topology = context.store().router().topology();
        Some(Scrub { context: context.clone(), walk: ScrubWalk::new(), topology, found: ScrubPass::default() })
    }
}

impl Scrub {
    /// Makes one step and reports what it found.
    async fn step(&mut self, lease: &Lease, counts: &mut Counts) -> anyhow::Result<Scrubbed> {
        let done = self.context.store().scrub(lease, &mut self.walk, BATCH).await?;
        counts.add("scanned", done.scanned);
        let put_back = [
            ("scrub_home", done.homes),
            ("scrub_late", done.late),
            ("scrub_clock", done.ahead),
            ("scrub_queued", done.queued),
            ("scrub_listing", done.listings),
            ("scrub_stray", done.strays),
        ];
        for (action, n) in put_back {
            counts.add(action, n);
            if n > 0 {
                count(Counter::Reconciled, &[("action", action)], n);
                tracing::warn!(
                    event = "scrubbed",
                    action,
                    n,
                    "entries of an index were missing or at the wrong place; repaired them"
                );
            }
        }
        if done.unreadable > 0 {
            counts.add("unreadable", done.unreadable);
        }
        if let Some(soonest) = done.soonest {
            self.context.hints.due_in(&self.context.loops, self.context.bus(), soonest).await;
        }
        for (tenant, line) in &done.lines {
            // The lookup is enough: the route is then surveyed and its waiting jobs released.
            self.context.routes.of_line(tenant, line);
        }
        self.found.scanned += done.scanned;
        self.found.homeless += done.homes.saturating_sub(done.unfinished) + done.late;
        if done.passed {
            let pass = ScrubPass { at: self.context.store().now().0, ..std::mem::take(&mut self.found) };
            self.context.store().put_scrub_pass(lease, &pass).await?;
        }
        Ok(done)
    }
}

impl Loop for Scrub {
    const NAME: &'static str = "scrub";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Scrub.as_str(),
        why: "it adds an entry only where one is missing, and changes a record only where its script finds it wrong",
        duplicate_costs: "a second scan",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, budget: Budget) -> anyhow::Result<Counts> {
        muster_flow::failpoint!("scrub.begin");
        let mut counts = Counts::none();
        if self.topology.has_changed().unwrap_or(false) {
            self.topology.mark_unchanged();
            self.walk.hurry();
        }
        loop {
            let began = Instant::now();
            let done = self.step(lease, &mut counts).await?;
            counts.add("passes", u64::from(done.passed));
            if done.faults > 0 {
                counts.add("faults", done.faults);
                counts.due_in(AFTER_A_FAULT);
                return Ok(counts);
            }
            if !self.walk.is_urgent() {
                return Ok(counts);
            }
            if budget.spent() {
                counts.due_in(Duration::ZERO);
                return Ok(counts);
            }
            tokio::time::sleep(began.elapsed()).await;
        }
    }
}
