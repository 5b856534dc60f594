//! Makes a process one of several replicas of a service.
//!
//! This crate knows how a replica connects both stores from its settings, leads loops by leases,
//! receives hints, follows run-time settings, probes the stores, announces itself and stops in
//! order. A service that uses a [`Member`] repeats none of this code. A replica that stops gives up
//! its leases, so that a successor leads within a second. The services decide what a loop does,
//! `store` has the lease protocol, and `chassis` decides when a loop ticks and when a stage runs.

mod announce;
mod config_watch;
mod hints;
mod leaders;
pub mod probe;
mod rows;
mod shards;
mod share;
mod stages;
pub mod stores;
mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_chassis::Chassis;
use muster_flow::Flow;
use muster_store::{LeaderLock, LeaseKeeper};

pub use config_watch::ConfigWatch;
pub use leaders::Leader;
pub use rows::{Grant, LoopOf, Row, declared};
pub use shards::{ShardedLeases, Shards};
pub use stages::name_late;
pub use work::supervise;

/// This process as a replica: its chassis and both stores. Clones are the same replica.
#[derive(Clone)]
pub struct Member {
    /// The process.
    pub chassis: Chassis,
    /// Both stores.
    pub flow: Flow,
    locks: Arc<Mutex<Locks>>,
    nudges: Arc<Mutex<Vec<Nudge>>>,
}

/// Leader locks, each with its keeper.
type Locks = Vec<(LeaderLock, Arc<LeaseKeeper>)>;

/// What to do when a hint names a lock that this replica asks for.
struct Nudge {
    lock: &'static str,
    act: Arc<dyn Fn() + Send + Sync>,
}

impl Member {
    /// Creates a replica over these stores.
    pub fn new(chassis: &Chassis, flow: Flow) -> Member {
        Member { chassis: chassis.clone(), flow, locks: Arc::default(), nudges: Arc::default() }
    }

    /// Connects both stores as set in the settings. Does not fail if a store is down: the connections are made when the
    /// store comes up.
    pub async fn connect(chassis: &Chassis) -> anyhow::Result<Member> {
        Ok(Member::new(chassis, stores::connect(&chassis.values, &chassis.instance).await?))
    }

    /// The leader locks that this replica asks for, each with its keeper.
    pub fn leader_locks(&self) -> Vec<(LeaderLock, Arc<LeaseKeeper>)> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn nudges(&self) -> MutexGuard<'_, Vec<Nudge>> {
        self.nudges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
