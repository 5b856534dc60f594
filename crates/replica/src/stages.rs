//! Stops a replica in order.
//!
//! The loops begin to give up their leases as soon as the stop begins, because nothing in flight needs a lock; so a
//! successor leads within a second, however long the stages take. A task that does not end within its limit is cut off
//! and named in the log.

use std::time::Duration;

use muster_chassis::Tasks;

use crate::Member;

/// How long the loops may take to end their tick and give up their leases.
const STOP_LOOPS: Duration = Duration::from_secs(3);
/// How long the bus may take to write out the last messages.
const FLUSH: Duration = Duration::from_secs(1);

impl Member {
    /// Adds the stage `name`: asks these tasks to end, and cuts off the remaining ones at `limit`.
    pub fn drain_stage(&self, name: &'static str, tasks: &Tasks, limit: Duration) {
        let tasks = tasks.clone();
        self.chassis.stop.stage(name, async move { name_late(name, &tasks.drain(limit).await) });
    }

    /// Adds the stage `leases`, usually the last: waits until the loops have given up their leases, which they begin
    /// when the stop begins, and writes out the hints to their successors.
    pub fn leases_stage(&self) {
        let (loops, requested) = (self.chassis.loops.clone(), self.chassis.stop.requested());
        let letting_go = self.chassis.tasks.spawn("leases", async move {
            requested.cancelled().await;
            loops.stop(STOP_LOOPS).await
        });
        let bus = self.flow.bus.clone();
        self.chassis.stop.stage("leases", async move {
            name_late("leases", &letting_go.await.ok().flatten().unwrap_or_default());
            bus.flush(FLUSH).await;
        });
    }
}

impl Member {
    /// The same for a service whose work in flight needs the leases: its loops stop, and their leases are given up, only
    /// when this stage begins. Until then the loops must take no work, once a stop was requested.
    pub fn leases_last_stage(&self) {
        let (loops, bus) = (self.chassis.loops.clone(), self.flow.bus.clone());
        self.chassis.stop.stage("leases", async move {
            name_late("leases", &loops.stop(STOP_LOOPS).await);
            bus.flush(FLUSH).await;
        });
    }
}

/// Names the tasks that did not end in time in the log.
pub fn name_late(stage: &'static str, tasks: &[&'static str]) {
    for task in tasks {
        tracing::warn!(event = "task_late", stage, task, "cut off");
    }
}
