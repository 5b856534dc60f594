//! Removes old entries from the audit log, to bound its storage by age and by number of entries.
//!
//! Leaves to others: keeping the chain of entries intact (`store`).

use std::time::Duration;

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_replica::{LoopOf, Member};
use muster_store::{AuditRetention, Store};

use crate::{settings, state::Gateway};

/// The most entries that one step removes.
const BATCH: usize = 500;

/// The loop that removes old audit entries.
pub(super) struct AuditRetentionLoop {
    store: Store,
    keep: AuditRetention,
}

impl LoopOf<Gateway> for AuditRetentionLoop {
    fn make(member: &Member, _: &Gateway) -> Option<AuditRetentionLoop> {
        let keep = settings::audit_retention(&member.chassis.values);
        Some(AuditRetentionLoop { store: member.flow.store.clone(), keep })
    }
}

impl Loop for AuditRetentionLoop {
    const NAME: &'static str = "audit retention";
    const EVERY: &'static str = "60s";
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
