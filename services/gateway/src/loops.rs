//! The gateway's periodic loops: one file each, and the list that starts them.

mod audit_relay;
mod audit_retention;
mod config_watch;
mod retention;

use muster_chassis::{Chassis, Declared, Everyone, Loop};
use muster_store::LeaderLock;

use crate::{Gateway, bulk::Bulk, leaders::Leader, settings};

/// All of them, for the docs.
pub const LOOPS: &[Declared] = &[
    Declared::of::<retention::RetentionLoop>("loop_retention_interval"),
    Declared::of::<config_watch::ConfigWatch>("loop_config_interval"),
    Declared::of::<audit_retention::AuditRetentionLoop>("loop_audit_retention_interval"),
    Declared::of::<audit_relay::AuditRelay>("loop_audit_relay_interval"),
    Declared::of::<Bulk>("loop_bulk_interval"),
];

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
