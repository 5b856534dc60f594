//! Looks through the lanes this replica knows, and releases what waits where there is room.
//!
//! Starts, submits and heartbeats release at once; this finds what they missed: a backlog that a
//! stopped replica left, a claim that lapsed. Every entry is claimed by a script, so any number of
//! replicas may do it.

use std::{sync::Arc, time::Instant};

use muster_chassis::{Budget, Counts, Loop, Safety};

use crate::{desk::Desk, survey};

/// The loop.
pub(super) struct Backlog {
    desk: Arc<Desk>,
}

impl Backlog {
    pub(super) fn new(desk: Arc<Desk>) -> Backlog {
        Backlog { desk }
    }
}

impl Loop for Backlog {
    const NAME: &'static str = "backlog";
    const SAFE: Safety = Safety::Claim {
        why: "an entry is claimed by a script and its job dispatched by version",
        duplicate_costs: "a dispatch that is refused, because the other one's came first",
    };
    type Lease = ();

    async fn run_once(&mut self, (): &(), _budget: Budget) -> anyhow::Result<Counts> {
        self.desk.lanes.forget_idle(Instant::now());
        let lanes = self.desk.lanes.all();
        let waiting = survey::measure(&self.desk, &lanes).await;
        let mut counts = Counts::none();
        counts.add("lanes", lanes.len() as u64);
        counts.add("waiting", waiting);
        Ok(counts)
    }
}
