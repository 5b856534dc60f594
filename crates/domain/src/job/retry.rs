//! What follows a failed attempt: a pure function of policy, attempt and job, the same on every
//! replica and in every repetition. Jitter comes from the job's id, not from a die.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{
    head::Head,
    spec::{JobError, JobSpec, OnLostLease},
    state::Event,
};
use crate::{JobErrorCode, JobId};

/// How long to wait before attempt n + 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Before the second attempt.
    pub initial: Duration,
    /// Times this for each one after.
    pub factor: f64,
    /// But never longer.
    pub max: Duration,
    /// Spread by this share of the wait, up and down: 0 to 1.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { initial: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(300), jitter: 0.2 }
    }
}

/// How failures are retried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// How many starts there may be, at least 1.
    pub max_attempts: u16,
    /// The waits between them.
    pub backoff: Backoff,
}

/// How often a job is started at most, where nobody says otherwise.
pub const USUAL_ATTEMPTS: u16 = 5;

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { max_attempts: USUAL_ATTEMPTS, backoff: Backoff::default() }
    }
}

impl Backoff {
    /// The wait after the given attempt (1 = the first) of this job. Never more than `max`, whatever the jitter:
    /// a wait that has grown that long is spread below it.
    pub fn wait(&self, job: JobId, attempt: u16) -> Duration {
        let steps = i32::from(attempt.max(1) - 1);
        // Bounded, because nothing times without end is no number.
        let grown = self.factor.max(1.0).powi(steps).min(f64::MAX);
        let max = self.max.as_secs_f64();
        let plain = (self.initial.as_secs_f64() * grown).min(max);
        let mut hash = Sha256::new();
        hash.update(job.as_bytes());
        hash.update(attempt.to_be_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let dice = f64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])) / f64::from(u32::MAX);
        let spread = plain * self.jitter.clamp(0.0, 1.0);
        let (least, most) = (plain - spread, (plain + spread).min(max));
        Duration::try_from_secs_f64(least + dice * (most - least)).unwrap_or(self.max).min(self.max)
    }
}

/// What to apply after an attempt that did not end well.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedAttempt {
    /// The event.
    pub event: Event,
    /// How long to wait before the next attempt, where there is one.
    pub wait: Duration,
    /// What the record is to say.
    pub error: JobError,
}

/// How many times a job may be given back before a release counts as a failure.
pub const MAX_RELEASES: u8 = 10;

/// After its worker reported a failure. `retry_in` is the worker's own wish and wins over the backoff.
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

/// After its lease ran out. `lost` counts the attempts before this one that ended the same way.
pub fn after_lost_lease(head: &Head, spec: &JobSpec) -> FailedAttempt {
    let silent = |text: &str| JobError::new(JobErrorCode::StaleTimeout.as_str(), text, true);
    let left = head.attempt < head.max_attempts;
    if spec.on_lost_lease == OnLostLease::Retry && left {
        let error = silent("the worker fell silent and its lease ran out");
        return FailedAttempt { event: Event::Rescue, wait: Duration::ZERO, error };
    }
    let every_attempt = head.lost.saturating_add(1) >= head.attempt;
    if spec.on_lost_lease == OnLostLease::Retry && every_attempt {
        let error = silent("every attempt lost its worker");
        return FailedAttempt { event: Event::Poison, wait: Duration::ZERO, error };
    }
    let error = silent(match left {
        true => "the worker fell silent and its lease ran out; `on_lost_lease` is `fail`, so it is not tried again",
        false => "the worker fell silent and its lease ran out; no attempt is left",
    });
    FailedAttempt { event: Event::Abandon, wait: Duration::ZERO, error }
}

/// After the attempt took longer than it may.
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
