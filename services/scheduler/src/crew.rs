//! The live workers of a route, as sums.
//!
//! Leaves to others: the workers themselves (`fleet`) and the effect on the route's window (`window`).

use muster_wire::v1::Heartbeat;

/// The live workers of a route, taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crew {
    pub(crate) workers: u64,
    pub(crate) slots: u64,
    /// Slots that run no job.
    pub(crate) free: u64,
}

impl Crew {
    pub(crate) fn of(said: &Heartbeat) -> Crew {
        Crew { workers: 1, slots: said.slots.into(), free: said.slots.saturating_sub(said.busy).into() }
    }

    pub(crate) fn join(&mut self, other: Crew) {
        self.workers += other.workers;
        self.slots += other.slots;
        self.free += other.free;
    }

    pub(crate) fn leave(&mut self, other: Crew) {
        self.workers = self.workers.saturating_sub(other.workers);
        self.slots = self.slots.saturating_sub(other.slots);
        self.free = self.free.saturating_sub(other.free);
    }
}
