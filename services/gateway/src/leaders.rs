//! Leadership of the loops that one gateway alone runs, over the store's leases.
//!
//! Promises: what a loop's pass is handed is the store's own [`Lease`]; giving up tells the other
//! gateways, so that a successor starts within a second instead of a lease's time to live. Leaves
//! to others: the lease protocol (`store`), when to tick (`chassis`).

use std::sync::{Arc, Mutex, PoisonError};

use muster_bus::{Bus, subjects};
use muster_chassis::{Leadership, Tasks};
use muster_flow::Flow;
use muster_store::{LEADER_TTL, LeaderLock, Lease, LeaseKeeper};
use muster_wire::{Body, v1::Wake};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// One loop's leadership on this replica.
pub(crate) struct Leader {
    keeper: Arc<LeaseKeeper>,
    lock: LeaderLock,
    bus: Bus,
    enough: CancellationToken,
    keeping: Mutex<Option<JoinHandle<Option<()>>>>,
}

impl Leader {
    /// Begins to ask for the lock, and keeps it while it can.
    pub(crate) fn campaign(tasks: &Tasks, flow: &Flow, lock: LeaderLock, replica: &str) -> Leader {
        let keeper = Arc::new(LeaseKeeper::new(flow.store.clone(), lock, replica, LEADER_TTL));
        let enough = CancellationToken::new();
        let (kept, ended, stop) = (keeper.clone(), enough.clone(), tasks.stopping());
        let keeping = tasks.spawn("lease", async move {
            tokio::select! {
                () = kept.run() => {}
                () = ended.cancelled() => {}
                () = stop.cancelled() => {}
            }
        });
        let (nudged, bus, ended, stop) = (keeper.clone(), flow.bus.clone(), enough.clone(), tasks.stopping());
        tasks.supervise("lease hints", move || {
            let (keeper, bus, ended, stop) = (nudged.clone(), bus.clone(), ended.clone(), stop.clone());
            async move {
                tokio::select! {
                    heard = listen(&bus, lock, &keeper) => heard,
                    () = ended.cancelled() => Ok(()),
                    () = stop.cancelled() => Ok(()),
                }
            }
        });
        Leader { keeper, lock, bus: flow.bus.clone(), enough, keeping: Mutex::new(Some(keeping)) }
    }
}

/// Asks for the lock whenever somebody says that they let go of it.
async fn listen(bus: &Bus, lock: LeaderLock, keeper: &LeaseKeeper) -> anyhow::Result<()> {
    let mut hints = bus.subscribe(&subjects::wake(), None).await?;
    while let Some(received) = hints.next().await {
        if matches!(received.body, Body::Wake(wake) if wake.r#loop == lock.as_str()) {
            keeper.nudge();
        }
    }
    anyhow::bail!("the subscription to hints ended")
}

impl Leadership for Leader {
    type Lease = Lease;

    async fn lease(&self) -> Option<Lease> {
        self.keeper.lease()
    }

    async fn changed(&self) {
        // The sender lives as long as the keeper, so this ends by a change only.
        let _ = self.keeper.subscribe().changed().await;
    }

    async fn release(&self) {
        self.enough.cancel();
        let keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeping) = keeping {
            let _ = keeping.await;
        }
        let held = self.keeper.lease().is_some();
        // If it cannot be given up it runs out by itself.
        if self.keeper.release().await.is_ok() && held {
            let wake = Wake { r#loop: self.lock.as_str().to_owned(), in_us: 0 };
            let _ = self.bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
        }
    }
}
