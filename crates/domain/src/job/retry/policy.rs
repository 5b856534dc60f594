//! How failed attempts of a job are retried: how many attempts, and the waits between them.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::{JobId, topic::TopicRetry};

/// How long to wait before attempt n + 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The wait before the second attempt.
    pub initial: Duration,
    /// Each further wait is the previous one multiplied by this factor.
    pub factor: f64,
    /// The longest wait.
    pub max: Duration,
    /// The share of the wait, 0 to 1, by which jitter moves it up or down.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { initial: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(300), jitter: 0.2 }
    }
}

/// How failed attempts are retried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// How many attempts may be started, at least 1.
    pub max_attempts: u16,
    /// The waits between attempts.
    pub backoff: Backoff,
}

/// The number of attempts where neither the request nor the topic sets one.
pub const USUAL_ATTEMPTS: u16 = 5;

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { max_attempts: USUAL_ATTEMPTS, backoff: Backoff::default() }
    }
}

impl Backoff {
    /// The wait after the given attempt (1 = the first) of this job. It never exceeds `max`, whatever the jitter: a
    /// wait that has grown to `max` is only spread downwards.
    pub fn wait(&self, job: JobId, attempt: u16) -> Duration {
        let steps = i32::from(attempt.max(1) - 1);
        // Bounded, because zero times infinity is not a number.
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

impl From<TopicRetry> for RetryPolicy {
    fn from(retry: TopicRetry) -> RetryPolicy {
        RetryPolicy {
            max_attempts: retry.max_attempts.max(1),
            backoff: Backoff {
                initial: Duration::from_millis(retry.initial_ms),
                factor: retry.factor,
                max: Duration::from_millis(retry.max_ms),
                jitter: retry.jitter,
            },
        }
    }
}

impl From<RetryPolicy> for TopicRetry {
    fn from(policy: RetryPolicy) -> TopicRetry {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        TopicRetry {
            max_attempts: policy.max_attempts,
            initial_ms: millis(policy.backoff.initial),
            factor: policy.backoff.factor,
            max_ms: millis(policy.backoff.max),
            jitter: policy.backoff.jitter,
        }
    }
}
