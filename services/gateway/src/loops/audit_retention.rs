//! Lets old entries of the audit log leave: its storage is bounded, by age and by number.
//!
//! Leaves to others: that the chain stays whole (`store`).

use std::time::Duration;

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_store::{AuditRetention, Store};

/// Entries that leave in one step.
const BATCH: usize = 500;

/// The loop.
pub(super) struct AuditRetentionLoop {
    store: Store,
    keep: AuditRetention,
}

impl AuditRetentionLoop {
    pub(super) fn new(store: Store, keep: AuditRetention) -> AuditRetentionLoop {
        AuditRetentionLoop { store, keep }
    }
}

impl Loop for AuditRetentionLoop {
    const NAME: &'static str = "audit retention";
    const SAFE: Safety = Safety::Idempotent {
        why: "entries leave only if the log still ends where the replica read it; of several, one is heard",
        duplicate_costs: "a read of the log's oldest entries",
    };
    type Lease = ();

    async fn run_once(&mut self, (): &(), budget: Budget) -> anyhow::Result<Counts> {
        let mut counts = Counts::none();
        loop {
            let removed = self.store.trim_audit(&self.keep, BATCH).await?;
            counts.add("removed", removed);
            if removed < BATCH as u64 {
                return Ok(counts);
            }
            if budget.spent() {
                counts.due_in(Duration::ZERO);
                return Ok(counts);
            }
        }
    }
}
