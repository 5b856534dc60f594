//! A job: its request ([`JobSpec`]), its current state ([`Head`]), and the rules that move it.

mod ahead;
pub mod bounds;
mod head;
mod look;
mod retry;
mod spec;
mod state;
mod unmoved;

pub use ahead::{LONGEST_LEASE, asked_delay, ran_ahead};
pub use head::{EndedBy, Head, Lease, Phase, Transition};
pub use look::{
    Action, BusView, CLOCK_SLACK, DISPATCHED_LOOK, Known, Look, PENDING_LOOK, PENDING_LOOK_MAX, QUEUED_LOOK,
    is_too_late, latest_look, look, next_look,
};
pub use retry::{
    Backoff, FailedAttempt, MAX_RELEASES, RetryPolicy, USUAL_ATTEMPTS, after_failure, after_lost_lease, after_time_out,
};
pub use spec::{Durability, JobError, JobSpec, MAX_ERROR_MESSAGE, OnLostLease, Priority, Progress, When};
pub use state::{Due, Ending, Event, Outcome, Seen, State, TABLE, transition};
pub use unmoved::Unmoved;
