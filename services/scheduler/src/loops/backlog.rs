//! Measures the routes that this replica knows, and releases waiting jobs where there is room.
//!
//! Starts, submits and heartbeats release at once. This loop finds what they missed: a backlog that a stopped replica
//! left, a claim that expired. Every entry is claimed by a script, so any number of replicas may run it.

use std::{sync::Arc, time::Instant};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_replica::{LoopOf, Member};

use crate::{context::Context, survey};

pub(super) struct Backlog {
    context: Arc<Context>,
}

impl LoopOf<Arc<Context>> for Backlog {
    fn make(_: &Member, context: &Arc<Context>) -> Option<Backlog> {
        Some(Backlog { context: context.clone() })
    }
}

impl Loop for Backlog {
    const NAME: &'static str = "backlog";
    const SAFE: Safety = Safety::Claim {
        why: "a script claims each entry, and a job is dispatched only at the version that was read",
        duplicate_costs: "a dispatch that Redis refuses, because the other replica's came first",
    };
    type Lease = ();

    async fn run_once(&mut self, (): &(), _budget: Budget) -> anyhow::Result<Counts> {
        self.context.routes.forget_idle(Instant::now());
        let routes = self.context.routes.all();
        let waiting = survey::measure(&self.context, &routes).await;
        let mut counts = Counts::none();
        counts.add("lanes", routes.len() as u64);
        counts.add("waiting", waiting);
        Ok(counts)
    }
}
