//! Vocabulary and pure rules of Muster.
//!
//! Knows: what a job is, which events move it where, what a job that is due needs next,
//! how names and numbers that people write are judged. Promises: no clock, no I/O, no
//! randomness that is not handed in; the same input gives the same answer on every replica.
//! Leaves to others: Redis (`store`), NATS (`bus`), bytes (`wire`), processes (`chassis`).

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
pub use ids::{JobId, RequestId, StartId, WorkerId};
pub use job::{
    Backoff, Durability, Ending, Event, Head, JobError, JobSpec, OnLostLease, Outcome, Phase, Priority, Progress,
    RetryPolicy, Seen, State,
};
pub use lead::Leads;
pub use line::Line;
pub use time::Time;
pub use topic::{Labels, NameFault, Tenant, Topic, TopicSettings};
pub use trace::TraceParent;
