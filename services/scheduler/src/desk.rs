//! What the parts of the scheduler share: the stores, the lanes, the fleet, the hints.
//!
//! Leaves to others: all work. Each part is a file of its own that is handed the desk.

use std::time::Duration;

use muster_bus::Bus;
use muster_chassis::{Registry, Tasks};
use muster_domain::{Head, JobId, Outcome, job::next_look};
use muster_flow::Flow;
use muster_store::{Moved, Store, StoreError};

use crate::{
    consult::Consults,
    decide::Decide,
    fleet::Fleet,
    hints::Hints,
    kept::Memory,
    lanes::{Lanes, PerLane},
    pools,
    silence::Silence,
    slots::Judged,
};

/// What every part is handed.
pub(crate) struct Desk {
    pub(crate) flow: Flow,
    pub(crate) decider: Box<dyn Decide>,
    /// Those who have to be asked first, if there are any.
    pub(crate) consults: Option<Consults>,
    /// When the holders of concurrency limits were last looked at.
    pub(crate) judged: Judged,
    pub(crate) lanes: Lanes,
    /// Room for submits of jobs that this replica has put in line.
    pub(crate) memory: Memory,
    pub(crate) fleet: Fleet,
    pub(crate) hints: Hints,
    pub(crate) silence: Silence,
    /// This replica's loops, one of which may be the leader.
    pub(crate) loops: Registry,
    /// Where work in flight runs: drained after those who take it.
    pub(crate) in_flight: Tasks,
}

impl Desk {
    /// Redis.
    pub(crate) fn store(&self) -> &Store {
        &self.flow.store
    }

    /// NATS.
    pub(crate) fn bus(&self) -> &Bus {
        &self.flow.bus
    }

    /// Brings homes nearer, and hints the reconciler if one of them is due soon.
    pub(crate) async fn forward(&self, homes: &[(JobId, Duration)]) -> Result<(), StoreError> {
        let Some(soonest) = homes.iter().map(|(_, after)| *after).min() else { return Ok(()) };
        self.store().forward_homes(homes).await?;
        self.hints.due_in(&self.loops, self.bus(), soonest).await;
        Ok(())
    }

    /// Offers of these lanes now stand on the stream, in messages of up to so many.
    pub(crate) async fn published(&self, offers: &PerLane, most: usize) {
        for (lane, n) in offers.iter() {
            let messages = n.div_ceil(most as u64);
            lane.window().published(*n, messages);
            pools::tell(self, lane).await;
        }
    }
}

/// Whether and how far the home must be forwarded after an event that holds. A repeat forwards
/// too: the first try may have died in between.
pub(crate) fn forward_of(moved: &Moved, head: &Head) -> Option<Duration> {
    match moved.outcome {
        Outcome::Already | Outcome::Stale if !head.state().is_end() => {
            Some(next_look(head, moved.now).remaining(moved.now))
        }
        _ => moved.forward,
    }
}
