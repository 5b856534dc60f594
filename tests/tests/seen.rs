//! What operators see: who is there, what Prometheus scrapes, what the audit log tells, what the doctor
//! finds. One program, because these tests wait more than they work.

#[path = "seen/audit.rs"]
mod audit;
#[path = "seen/doctor.rs"]
mod doctor;
#[path = "seen/fleet.rs"]
mod fleet;
#[path = "seen/metrics.rs"]
mod metrics;
