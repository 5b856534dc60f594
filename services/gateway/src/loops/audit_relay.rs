//! Publishes every entry of the audit log on `sys.audit.export`, at least once, in approximately the order of the
//! log.
//!
//! A consumer group of the Redis stream records which entries were handed out: each entry goes to one replica, and to
//! another replica if the first does not confirm it in time. The Msg-Id is the id of the entry, so a second try that
//! follows soon does not create a second message. The loop creates the durable consumer that exporters share, so that
//! an exporter that starts later still finds what the stream keeps. Leaves to others: exporting the entries from the
//! bus, and recognising duplicates by their id.

use std::time::Duration;

use futures_util::future::join_all;
use muster_bus::{ConsumerSpec, subjects};
use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_flow::{Flow, failpoint};
use muster_replica::{LoopOf, Member};
use muster_store::AuditEntry;
use muster_wire::{Body, v1};

use crate::{settings, state::Gateway};

/// The most entries that are handed out at once.
const BATCH: usize = 100;
/// How long a replica may take to publish the entries that it was handed.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long one publish may take; less than `PATIENCE`.
const PUBLISH: Duration = Duration::from_secs(5);

/// The loop that publishes audit entries.
pub(super) struct AuditRelay {
    flow: Flow,
}

impl LoopOf<Gateway> for AuditRelay {
    fn make(member: &Member, _: &Gateway) -> Option<AuditRelay> {
        let wanted = settings::audit_is_relayed(&member.chassis.values);
        wanted.then(|| AuditRelay { flow: member.flow.clone() })
    }
}

impl AuditRelay {
    /// Publishes an entry. Returns the entry's id in the Redis stream if the bus has stored it.
    async fn publish(&self, entry: AuditEntry) -> Option<String> {
        let body = Body::Audit(v1::AuditEntry {
            id: entry.id.clone(),
            number: entry.number.parse().unwrap_or(0),
            body: entry.body,
            previous: entry.previous,
            hash: entry.hash,
        });
        let sent = self.flow.bus.publish_within(&subjects::audit_export(), Some(&entry.id), None, body, PUBLISH).await;
        sent.is_ok().then_some(entry.cursor)
    }
}

impl Loop for AuditRelay {
    const NAME: &'static str = "audit relay";
    const SAFE: Safety = Safety::Claim {
        why: "each entry is handed to one replica, and again only if it was not confirmed in time",
        duplicate_costs: "an entry exported twice; exporters know it by its id",
    };
    const BUDGET: Duration = Duration::from_secs(20);
    type Lease = ();

    async fn run_once(&mut self, (): &(), budget: Budget) -> anyhow::Result<Counts> {
        let mut counts = Counts::none();
        // Create the consumer before taking entries: an entry that is handed out and cannot be published has to wait
        // for another turn.
        self.flow.bus.consumer_state(&ConsumerSpec::audit_exporters()).await?;
        loop {
            let entries = self.flow.store.audit_to_export(BATCH, PATIENCE).await?;
            let asked = entries.len();
            let sent: Vec<String> =
                join_all(entries.into_iter().map(|entry| self.publish(entry))).await.into_iter().flatten().collect();
            if sent.is_empty() && asked == 0 {
                counts.add("exported", 0);
                return Ok(counts);
            }
            failpoint!("audit.before_confirm");
            self.flow.store.audit_exported(&sent).await?;
            counts.add("exported", sent.len() as u64);
            if sent.len() < asked {
                counts.add("unsent", (asked - sent.len()) as u64);
                counts.due_in(PATIENCE);
                return Ok(counts);
            }
            if asked < BATCH {
                return Ok(counts);
            }
            if budget.spent() {
                counts.due_in(Duration::ZERO);
                return Ok(counts);
            }
        }
    }
}
