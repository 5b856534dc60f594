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

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use muster_bus::subjects;
use muster_chassis::Chassis;
use muster_flow::Flow;
use muster_wire::{Body, v1::Wake};

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
    candidacies: Arc<Mutex<Vec<Candidacy>>>,
}

/// A lock, sharded or not, that this replica asks for.
#[derive(Clone)]
struct Candidacy {
    lock: &'static str,
    /// Called when a hint names the lock.
    nudge: Arc<dyn Fn() + Send + Sync>,
    /// Leaves the lock to other replicas until this instant. Returns whether this replica held it.
    stand_aside: Arc<dyn Fn(Instant) -> bool + Send + Sync>,
}

impl Member {
    /// Creates a replica over these stores.
    pub fn new(chassis: &Chassis, flow: Flow) -> Member {
        Member { chassis: chassis.clone(), flow, candidacies: Arc::default() }
    }

    /// Connects both stores as set in the settings. Does not fail if a store is down: the connections are made when the
    /// store comes up.
    pub async fn connect(chassis: &Chassis) -> anyhow::Result<Member> {
        Ok(Member::new(chassis, stores::connect(&chassis.values, &chassis.instance).await?))
    }

    /// Gives up every lock that this replica holds, sharded or not, and leaves them to the other replicas until
    /// `until`. A hint makes the others ask at once.
    pub async fn stand_aside(&self, until: Instant) {
        let all = self.candidacies().clone();
        for candidacy in all.iter().filter(|candidacy| (candidacy.stand_aside)(until)) {
            let wake = Wake { r#loop: candidacy.lock.to_owned(), in_us: 0 };
            let _ = self.flow.bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
        }
    }

    fn candidacies(&self) -> MutexGuard<'_, Vec<Candidacy>> {
        self.candidacies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
