//! The gateway's periodic loops: one file each, and the list that starts them.

mod audit_relay;
mod audit_retention;
mod config_watch;
mod retention;

use muster_chassis::{Chassis, Everyone, Loop};
use muster_store::LeaderLock;

use crate::{Gateway, leaders::Leader, settings};

/// The loop that reads changed settings.
pub(crate) const CONFIG_WATCH: &str = config_watch::ConfigWatch::NAME;

/// Registers and starts all of them.
pub(crate) fn start(chassis: &Chassis, gateway: &Gateway) {
    let (values, flow) = (&chassis.values, &gateway.flow);
    let leader = Leader::campaign(&chassis.tasks, flow, LeaderLock::Retention, &chassis.instance);
    // Asked before every pass: how long may change while it runs.
    let keeping = gateway.clone();
    let keep = move || keeping.topics.retention(&settings::retention(&keeping.config.now()));
    let body = retention::RetentionLoop::new(flow.store.clone(), keep);
    chassis.loops.register(values.duration("loop_retention_interval")).start(body, leader);
    let watch = config_watch::ConfigWatch::new(flow.clone());
    chassis.loops.register(values.duration("loop_config_interval")).start(watch, Everyone);
    let body = audit_retention::AuditRetentionLoop::new(flow.store.clone(), settings::audit_retention(values));
    chassis.loops.register(values.duration("loop_audit_retention_interval")).start(body, Everyone);
    if values.text("audit_transport") == "nats" {
        let body = audit_relay::AuditRelay::new(flow.clone());
        chassis.loops.register(values.duration("loop_audit_relay_interval")).start(body, Everyone);
    }
}
