//! What operators see: who is there, what Prometheus scrapes, what the audit log tells. One program,
//! because these tests wait more than they work.

#[path = "seen/audit.rs"]
mod audit;
#[path = "seen/fleet.rs"]
mod fleet;
#[path = "seen/metrics.rs"]
mod metrics;
