//! Follows settings that change at run time, in case the news of a change was missed.
//!
//! Every replica reads for itself what Redis says, so any number may do it. Told at once, it has
//! nothing left to find; this is what heals a broadcast that was lost.

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_flow::Flow;

/// The loop.
pub(super) struct ConfigWatch {
    flow: Flow,
}

impl ConfigWatch {
    pub(super) fn new(flow: Flow) -> ConfigWatch {
        ConfigWatch { flow }
    }
}

impl Loop for ConfigWatch {
    const NAME: &'static str = "config watch";
    const SAFE: Safety = Safety::Idempotent {
        why: "reads only: each replica keeps what Redis says for itself",
        duplicate_costs: "nothing: every replica has to know",
    };
    type Lease = ();

    async fn run_once(&mut self, (): &(), _budget: Budget) -> anyhow::Result<Counts> {
        let polled = self.flow.poll_settings().await?;
        let mut counts = Counts::none();
        counts.add("read", polled.read);
        counts.add("changed", polled.changed);
        counts.add("topics", polled.topics);
        if polled.unreadable > 0 {
            counts.add("unreadable", polled.unreadable);
        }
        Ok(counts)
    }
}
