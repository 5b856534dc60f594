//! The gateway's loops that one replica alone runs: one file each, and the list that starts them.

mod retention;

use muster_chassis::Chassis;
use muster_flow::Flow;
use muster_store::LeaderLock;

use crate::{leaders::Leader, settings};

/// Registers and starts all of them.
pub(crate) fn start(chassis: &Chassis, flow: &Flow) {
    let values = &chassis.values;
    let leader = Leader::campaign(&chassis.tasks, flow, LeaderLock::Retention, &chassis.instance);
    let body = retention::RetentionLoop::new(flow.store.clone(), settings::retention(values));
    chassis.loops.register(values.duration("loop_retention_interval")).start(body, leader);
}
