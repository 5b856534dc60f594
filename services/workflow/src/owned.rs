//! The shards that this replica owns, as its loop last learned.

use muster_store::Lease;
use tokio::sync::watch;

/// The shards that this replica owns.
#[derive(Default)]
pub(crate) struct Owned(watch::Sender<Vec<(u8, Lease)>>);

impl Owned {
    /// Notes the shards that are held now.
    pub(crate) fn set(&self, leases: Vec<(u8, Lease)>) {
        self.0.send_replace(leases);
    }

    /// Whether this replica owns the shard now.
    pub(crate) fn has(&self, shard: u8) -> bool {
        holds(&self.0.borrow(), shard)
    }

    /// Resolves when this replica owns the shard.
    pub(crate) async fn gained(&self, shard: u8) {
        let mut leases = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = leases.wait_for(|leases| holds(leases, shard)).await;
    }
}

fn holds(leases: &[(u8, Lease)], shard: u8) -> bool {
    leases.iter().any(|(owned, lease)| *owned == shard && lease.is_held())
}
