//! Keeps the streams and the schedulers' consumers configured and present.
//!
//! Creating one is idempotent, so a second leader only costs a second check. The reconciler, and workers that still
//! hold results, restore the messages of a stream that vanished. The loop also removes offers that a killed server
//! brought back after they had been acked.

use std::{sync::Arc, time::Duration};

use muster_bus::{ConsumerSpec, subjects};
use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_replica::{LoopOf, Member};
use muster_store::{LeaderLock, Lease};

use crate::context::Context;

pub(super) struct Streams {
    context: Arc<Context>,
}

impl LoopOf<Arc<Context>> for Streams {
    fn make(_: &Member, context: &Arc<Context>) -> Option<Streams> {
        Some(Streams { context: context.clone() })
    }
}

impl Loop for Streams {
    const NAME: &'static str = "streams";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Streams.as_str(),
        why: "it creates what is missing; creating what exists changes nothing",
        duplicate_costs: "a second check of streams and consumers",
    };
    const BUDGET: Duration = Duration::from_secs(20);
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, _budget: Budget) -> anyhow::Result<Counts> {
        let bus = self.context.bus();
        bus.ensure_streams().await?;
        for subject in [subjects::submit(), subjects::result(), subjects::cancel()] {
            // `consumer_state` creates a missing consumer.
            bus.consumer_state(&ConsumerSpec::scheduler(subject)).await?;
        }
        let mut counts = Counts::none();
        lease.leads(LeaderLock::Streams)?;
        counts.add("acked_offers_removed", bus.sweep_acked_offers(lease).await?);
        Ok(counts)
    }
}
