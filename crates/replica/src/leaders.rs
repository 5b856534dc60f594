//! Leadership of the loops that only one replica runs, over the store's leases.
//!
//! A pass of a loop receives the store's own [`Lease`]. A replica that gives up a lease announces it to the other
//! replicas, so that a successor starts within a second instead of a lease's time to live. `store` has the lease
//! protocol, and `chassis` decides when to tick.

use std::sync::{Arc, Mutex, PoisonError};

use muster_bus::{Bus, subjects};
use muster_chassis::{Holder, Leadership};
use muster_store::{LEADER_TTL, LeaderLock, Lease, LeaseKeeper};
use muster_wire::{Body, v1::Wake};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{Candidacy, Member};

/// One loop's leadership on this replica.
pub struct Leader {
    keeper: Arc<LeaseKeeper>,
    lock: LeaderLock,
    bus: Bus,
    /// The lease that the loop last read: a change since then is never missed.
    seen: Mutex<watch::Receiver<Option<Lease>>>,
    enough: CancellationToken,
    keeping: Mutex<Option<JoinHandle<Option<()>>>>,
}

impl Member {
    /// Starts asking for the lock, and keeps the lock while possible.
    pub fn campaign(&self, lock: LeaderLock) -> Leader {
        let (tasks, store, bus) = (&self.chassis.tasks, self.flow.store.clone(), self.flow.bus.clone());
        let keeper = Arc::new(LeaseKeeper::new(store, lock, &self.chassis.instance, LEADER_TTL));
        let (nudged, aside) = (keeper.clone(), keeper.clone());
        self.candidacies().push(Candidacy {
            lock: lock.as_str(),
            nudge: Arc::new(move || nudged.nudge()),
            stand_aside: Arc::new(move |until| aside.stand_aside(until)),
        });
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
        Leader { keeper, lock, bus, seen, enough, keeping: Mutex::new(Some(keeping)) }
    }
}

impl Leadership for Leader {
    type Lease = Lease;

    async fn lease(&self) -> Option<Lease> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).mark_unchanged();
        self.keeper.lease()
    }

    async fn changed(&self) {
        // The sender lives as long as the keeper, so only a change ends this wait.
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
        // If the lease cannot be given up, it expires by itself.
        if self.keeper.release().await == Ok(true) {
            let wake = Wake { r#loop: self.lock.as_str().to_owned(), in_us: 0 };
            let _ = self.bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
        }
    }
}
