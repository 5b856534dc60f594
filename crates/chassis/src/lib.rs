//! Turns a service into a well-behaved process.
//!
//! This crate knows settings, logs, the admin port, named tasks, periodic loops, and a stop in stages. It checks all
//! settings before anything binds. A panic ends one task only. A stop ends within 15 s and names the tasks and stages
//! that were late; metrics stop last. The service decides what to do. This crate knows no job, no Redis and no NATS:
//! health comes in as parts, leadership as a trait.

pub mod admin;
mod descriptors;
pub mod health;
pub mod listen;
pub mod loops;
mod probe;
mod process;
pub mod reach;
pub mod settings;
pub mod stop;
pub mod tasks;

pub use health::{Health, Part};
pub use loops::{Budget, Counts, Declared, Everyone, Holder, Leadership, Loop, Registry, Safety, Slot, Waker};
pub use probe::Probe;
pub use process::{Chassis, run};
pub use reach::Reach;
pub use settings::{Setting, Values};
pub use stop::Stop;
pub use tasks::Tasks;
