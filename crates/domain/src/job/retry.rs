//! What follows a failed attempt: a pure function of policy, attempt and job, with the same result on every replica and
//! in every repetition. Jitter is derived from the job's id, not from a random number.

pub(super) mod policy;

use std::time::Duration;

use super::{
    head::Head,
    spec::{JobError, JobSpec, OnLostLease},
    state::Event,
};
use crate::{JobErrorCode, JobId};

pub use policy::{Backoff, RetryPolicy, USUAL_ATTEMPTS};

/// What to apply to a job after an attempt that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedAttempt {
    /// The event to apply.
    pub event: Event,
    /// How long to wait before the next attempt, if there is one.
    pub wait: Duration,
    /// The error to store in the record.
    pub error: JobError,
}

/// How many times workers may release a job before a release counts as a failure.
pub const MAX_RELEASES: u8 = 10;

/// After a worker reported a failure. `retry_in`, the wait that the worker asks for, takes precedence over the backoff.
pub fn after_failure(
    id: JobId,
    head: &Head,
    policy: &RetryPolicy,
    error: JobError,
    retry_in: Option<Duration>,
) -> FailedAttempt {
    if error.retryable && head.attempt < head.max_attempts {
        let wait = retry_in.unwrap_or_else(|| policy.backoff.wait(id, head.attempt));
        FailedAttempt { event: Event::Retry, wait, error }
    } else {
        FailedAttempt { event: Event::Fail, wait: Duration::ZERO, error }
    }
}

/// After the lease of an attempt ran out. `head.lost` counts the earlier attempts that ended the same way.
pub fn after_lost_lease(head: &Head, spec: &JobSpec) -> FailedAttempt {
    let silent = |text: &str| JobError::new(JobErrorCode::StaleTimeout.as_str(), text, true);
    let left = head.attempt < head.max_attempts;
    if spec.on_lost_lease == OnLostLease::Retry && left {
        let error = silent("the worker stopped responding and its lease expired");
        return FailedAttempt { event: Event::Rescue, wait: Duration::ZERO, error };
    }
    let every_attempt = head.lost.saturating_add(1) >= head.attempt;
    if spec.on_lost_lease == OnLostLease::Retry && every_attempt {
        let error = silent("the worker of every attempt stopped responding");
        return FailedAttempt { event: Event::Poison, wait: Duration::ZERO, error };
    }
    let error = silent(match left {
        true => "the worker stopped responding and its lease expired; `on_lost_lease` is `fail`, so there is no retry",
        false => "the worker stopped responding and its lease expired; no attempt is left",
    });
    FailedAttempt { event: Event::Abandon, wait: Duration::ZERO, error }
}

/// After an attempt ran longer than its timeout.
pub fn after_time_out(id: JobId, head: &Head, policy: &RetryPolicy) -> FailedAttempt {
    let error = JobError::new(JobErrorCode::AttemptTimeout.as_str(), "the attempt took longer than timeout_ms", true);
    if head.attempt < head.max_attempts {
        FailedAttempt { event: Event::CutShort, wait: policy.backoff.wait(id, head.attempt), error }
    } else {
        FailedAttempt { event: Event::TimeOut, wait: Duration::ZERO, error }
    }
}

#[cfg(test)]
mod tests;
