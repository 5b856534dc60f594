//! Vocabulary and pure rules of Muster.
//!
//! This crate knows what a job is, which events move it to which state, what a job needs when its look is due, and how
//! names and numbers in requests are validated. It reads no clock and does no I/O, and takes any randomness as an
//! argument, so the same input gives the same answer on every replica. Other crates own Redis (`store`), NATS (`bus`),
//! bytes (`wire`) and processes (`chassis`).

pub mod audit;
pub mod error;
pub mod ids;
pub mod job;
pub mod lead;
pub mod line;
pub mod slot;
pub mod time;
pub mod topic;
pub mod trace;

pub use audit::{Act, ActorType};
pub use error::{JobErrorCode, ProblemCode};
pub use ids::{JobId, OperationId, RequestId, RunId, ScheduleId, ShardedId, StartId, WorkerId};
pub use job::{
    Backoff, Durability, Ending, Event, Head, JobError, JobSpec, OnLostLease, Outcome, Phase, Priority, Progress,
    RetryPolicy, Seen, State,
};
pub use lead::Leads;
pub use line::Line;
pub use time::Time;
pub use topic::{Labels, NameFault, Tenant, Topic, TopicSettings, WorkflowName};
pub use trace::TraceParent;
