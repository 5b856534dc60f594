//! Turns a service into a well-behaved process.
//!
//! Knows: settings, logs, the admin port, named tasks, periodic loops, a stop in stages.
//! Promises: settings are checked whole before anything binds; a panic costs one task; a
//! stop ends within 15 s and names who was late; metrics go last. Leaves to others: what the
//! service does. It knows no job, no Redis and no NATS: health comes in as parts, leadership
//! as a trait.

pub mod admin;
pub mod health;
pub mod listen;
pub mod loops;
mod process;
pub mod settings;
pub mod stop;
pub mod tasks;

pub use health::{Health, Part};
pub use loops::{Budget, Counts, Declared, Everyone, Holder, Leadership, Loop, Registry, Safety, Waker};
pub use process::{Chassis, run};
pub use settings::{Kind, Setting, Values};
pub use stop::Stop;
pub use tasks::Tasks;
