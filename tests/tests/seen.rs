//! What operators see: workers and replicas, what Prometheus scrapes, the audit log, the findings of the doctor. All
//! in one program, because these tests wait more than they work.

#[path = "seen/audit.rs"]
mod audit;
#[path = "seen/doctor.rs"]
mod doctor;
#[path = "seen/fleet.rs"]
mod fleet;
#[path = "seen/metrics.rs"]
mod metrics;
#[path = "seen/shards.rs"]
mod shards;
#[path = "seen/vitals.rs"]
mod vitals;
