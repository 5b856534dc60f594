//! Leadership of the loops, over the store's leases.
//!
//! Promises: what a loop's pass is handed is the store's own [`Lease`]; giving up tells the other
//! replicas, so that a successor starts within a second instead of a lease's time to live. Leaves
//! to others: the lease protocol (`store`), when to tick (`chassis`).

use std::sync::{Arc, Mutex, PoisonError};

use muster_bus::{Bus, subjects};
use muster_chassis::{Holder, Leadership, Tasks};
use muster_store::{LEADER_TTL, LeaderLock, Lease, LeaseKeeper, Store};
use muster_wire::{Body, v1::Wake};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// One loop's leadership on this replica.
pub(crate) struct Leader {
    keeper: Arc<LeaseKeeper>,
    lock: LeaderLock,
    bus: Bus,
    /// What the loop last looked at: a change since then is never missed.
    seen: Mutex<watch::Receiver<Option<Lease>>>,
    enough: CancellationToken,
    keeping: Mutex<Option<JoinHandle<Option<()>>>>,
}

impl Leader {
    /// Begins to ask for the lock, and keeps it while it can.
    pub(crate) fn campaign(tasks: &Tasks, store: &Store, bus: &Bus, lock: LeaderLock, replica: &str) -> Leader {
        let keeper = Arc::new(LeaseKeeper::new(store.clone(), lock, replica, LEADER_TTL));
        let enough = CancellationToken::new();
        let (kept, ended, stop) = (keeper.clone(), enough.clone(), tasks.stopping());
        let keeping = tasks.supervise("lease", move || {
            let (keeper, ended, stop) = (kept.clone(), ended.clone(), stop.clone());
            async move {
                tokio::select! {
                    () = keeper.run() => {}
                    () = ended.cancelled() => {}
                    () = stop.cancelled() => {}
                }
                Ok(())
            }
        });
        let seen = Mutex::new(keeper.subscribe());
        Leader { keeper, lock, bus: bus.clone(), seen, enough, keeping: Mutex::new(Some(keeping)) }
    }

    /// Who asks for the lock: to be nudged when somebody lets go.
    pub(crate) fn keeper(&self) -> Arc<LeaseKeeper> {
        self.keeper.clone()
    }
}

impl Leadership for Leader {
    type Lease = Lease;

    async fn lease(&self) -> Option<Lease> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).mark_unchanged();
        self.keeper.lease()
    }

    async fn changed(&self) {
        // The sender lives as long as the keeper, so this ends by a change only.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = seen.changed().await;
    }

    fn holder(&self) -> Option<Holder> {
        let holder = self.keeper.holder()?;
        let (instance, since) = (holder.instance().to_owned(), holder.since().rfc3339());
        Some(Holder { instance, fence: holder.fence, since })
    }

    async fn release(&self) {
        self.enough.cancel();
        let keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeping) = keeping {
            let _ = keeping.await;
        }
        // If it cannot be given up it runs out by itself.
        if self.keeper.release().await == Ok(true) {
            let wake = Wake { r#loop: self.lock.as_str().to_owned(), in_us: 0 };
            let _ = self.bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
        }
    }
}
