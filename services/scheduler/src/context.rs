//! What the parts of the scheduler share: the stores, the routes, the fleet, the hints.
//!
//! Leaves to others: all work. Each part is a file of its own that gets the context.

use std::time::Duration;

use muster_bus::Bus;
use muster_chassis::{Registry, Tasks};
use muster_domain::{Head, JobId, Outcome, job::next_look};
use muster_flow::Flow;
use muster_store::{Moved, Store, StoreError};

use crate::{
    decide::Decide,
    fitness::Fitness,
    fleet::Fleet,
    hints::Hints,
    judged_slots::JudgedSlots,
    lease_guard::LeaseGuard,
    local_claims::Memory,
    questions::Questions,
    route_state::{RouteState, RouteStates},
};

/// The state that all parts share.
pub(crate) struct Context {
    pub(crate) flow: Flow,
    pub(crate) decider: Box<dyn Decide>,
    /// Open questions to the counsel; none if no counsel is configured.
    pub(crate) questions: Option<Questions>,
    /// When the holders of concurrency limits were last checked.
    pub(crate) judged_slots: JudgedSlots,
    pub(crate) routes: RouteStates,
    /// Memory for the submits of jobs that this replica enqueues and keeps.
    pub(crate) memory: Memory,
    pub(crate) fleet: Fleet,
    pub(crate) hints: Hints,
    pub(crate) lease_guard: LeaseGuard,
    /// Whether this replica may take work.
    pub(crate) fitness: Fitness,
    /// This replica's loops. This replica may be the leader of some of them.
    pub(crate) loops: Registry,
    /// Runs the work in flight; drained after the tasks that take work.
    pub(crate) in_flight: Tasks,
}

impl Context {
    /// The connection to Redis.
    pub(crate) fn store(&self) -> &Store {
        &self.flow.store
    }

    /// The connection to NATS.
    pub(crate) fn bus(&self) -> &Bus {
        &self.flow.bus
    }

    /// Whether a decider has a say in the jobs of this route. Their transitions are always written, so that a
    /// redelivery does not ask twice.
    pub(crate) fn is_decided_outside(&self, route: &RouteState) -> bool {
        let concern = |questions: &Questions| questions.concern(route.tenant.as_str(), route.topic.as_str());
        self.questions.as_ref().is_some_and(concern)
    }

    /// Forwards homes, and hints the reconciler if one of them is due soon.
    pub(crate) async fn forward(&self, homes: &[(JobId, Duration)]) -> Result<(), StoreError> {
        let Some(soonest) = homes.iter().map(|(_, after)| *after).min() else { return Ok(()) };
        self.store().forward_homes(homes).await?;
        self.hints.due_in(&self.loops, self.bus(), soonest).await;
        Ok(())
    }
}

/// How far to forward the home after an event that holds; none if it need not move. A repeated event forwards too: the
/// first try may have died before its forward.
pub(crate) fn forward_of(moved: &Moved, head: &Head) -> Option<Duration> {
    match moved.outcome {
        Outcome::Already | Outcome::Stale if !head.state().is_end() => {
            Some(next_look(head, moved.now).remaining(moved.now))
        }
        _ => moved.forward,
    }
}
