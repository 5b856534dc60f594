//! The request for a job, with its options.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{Backoff, Durability, OnLostLease, Priority, RetryPolicy, Time, TraceParent};
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::ClientError;

/// A job to be submitted. Only the topic is required; every other field has the API's default.
///
/// ```
/// use std::time::Duration;
/// use muster_sdk::{JobRequest, Priority};
///
/// let request = JobRequest::new("mail.send")
///     .payload(&serde_json::json!({ "to": "ada@example.org" }))
///     .priority(Priority::High)
///     .label("campaign", "spring")
///     .delay(Duration::from_secs(60))
///     .max_attempts(3)
///     .idempotency_key("order-4711");
/// # drop(request);
/// ```
#[derive(Clone, Debug, Default, Serialize)]
#[must_use]
pub struct JobRequest {
    topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requires: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_within_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_lost_lease: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// Sent as a header with a single submit, as a field in a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idempotency_key: Option<String>,
    #[serde(skip)]
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Retry {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Waits>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Waits {
    initial_ms: u64,
    factor: f64,
    max_ms: u64,
    jitter: f64,
}

impl From<Backoff> for Waits {
    fn from(backoff: Backoff) -> Waits {
        let Backoff { initial, factor, max, jitter } = backoff;
        Waits { initial_ms: millis(initial), factor, max_ms: millis(max), jitter }
    }
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl JobRequest {
    /// A job of this topic.
    pub fn new(topic: impl Into<String>) -> JobRequest {
        JobRequest { topic: topic.into(), ..JobRequest::default() }
    }

    /// Sets the handler's input. If it cannot be written as JSON, the submit fails.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::value::to_raw_value(payload) {
            Ok(json) => self.payload = Some(json),
            Err(error) => self.fault = Some(format!("the payload cannot be written as JSON: {error}")),
        }
        self
    }

    /// Sets the handler's input as JSON text, which is sent unchanged.
    pub fn payload_json(mut self, json: impl Into<String>) -> Self {
        match RawValue::from_string(json.into()) {
            Ok(json) => self.payload = Some(json),
            Err(error) => self.fault = Some(format!("the payload is not JSON: {error}")),
        }
        self
    }

    /// Sets the order in which jobs leave the backlog.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority.as_str());
        self
    }

    /// Adds a label for finding the job again.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Only workers that provide this may run the job. May be called several times; the key `worker` matches a worker's
    /// own name.
    pub fn requires(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.requires.insert(key.into(), value.into());
        self
    }

    /// Jobs with the same key run one at a time, unless the topic's `concurrency.per_key` allows more.
    pub fn concurrency_key(mut self, key: impl Into<String>) -> Self {
        self.concurrency_key = Some(key.into());
        self
    }

    /// Adds several labels.
    pub fn labels<K: Into<String>, V: Into<String>>(mut self, labels: impl IntoIterator<Item = (K, V)>) -> Self {
        self.labels.extend(labels.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// The job runs at the earliest this long from now.
    pub fn delay(mut self, delay: Duration) -> Self {
        (self.delay_ms, self.run_at) = (Some(millis(delay)), None);
        self
    }

    /// The job runs at the earliest at this moment.
    pub fn run_at(mut self, moment: Time) -> Self {
        (self.run_at, self.delay_ms) = (Some(moment.rfc3339()), None);
        self
    }

    /// The job expires if it has not started by this moment.
    pub fn start_by(mut self, moment: Time) -> Self {
        (self.start_by, self.start_within_ms) = (Some(moment.rfc3339()), None);
        self
    }

    /// The job expires if it has not started within this time.
    pub fn start_within(mut self, span: Duration) -> Self {
        (self.start_within_ms, self.start_by) = (Some(millis(span)), None);
        self
    }

    /// The whole job must have ended by this moment.
    pub fn deadline(mut self, moment: Time) -> Self {
        (self.deadline, self.expire_in_ms) = (Some(moment.rfc3339()), None);
        self
    }

    /// The whole job must have ended within this time.
    pub fn expire_in(mut self, span: Duration) -> Self {
        (self.expire_in_ms, self.deadline) = (Some(millis(span)), None);
        self
    }

    /// Sets the longest time of one attempt.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout_ms = Some(millis(limit));
        self
    }

    /// Sets how many attempts may be started.
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.retry.get_or_insert_default().max_attempts = Some(attempts);
        self
    }

    /// Sets how long to wait between attempts.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.retry.get_or_insert_default().backoff = Some(backoff.into());
        self
    }

    /// Sets both the number of attempts and the backoff.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.max_attempts(policy.max_attempts).backoff(policy.backoff)
    }

    /// Sets what happens to a job after its worker has stopped responding and its lease has expired.
    pub fn on_lost_lease(mut self, then: OnLostLease) -> Self {
        self.on_lost_lease = Some(then.as_str());
        self
    }

    /// Sets how safely the submit must be stored before it is answered.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability.as_str());
        self
    }

    /// Sets the trace that the job belongs to.
    pub fn trace(mut self, trace: TraceParent) -> Self {
        self.traceparent = Some(trace.to_string());
        self
    }

    /// Two submits with the same key are one job. Without a key, a random one makes the client's own repetitions
    /// harmless.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// The request with an idempotency key, or its fault.
    pub(super) fn ready(mut self) -> Result<JobRequest, ClientError> {
        if let Some(fault) = self.fault.take() {
            return Err(ClientError::Invalid(fault));
        }
        self.idempotency_key.get_or_insert_with(|| uuid::Uuid::new_v4().to_string());
        Ok(self)
    }
}

/// What a retry of an ended job changes. By default nothing.
#[derive(Clone, Debug, Default, Serialize)]
#[must_use]
pub struct RetryRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<&'static str>,
}

impl RetryRequest {
    /// The same job again, without changes.
    pub fn new() -> RetryRequest {
        RetryRequest::default()
    }

    /// Uses another topic.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Uses another payload.
    pub fn payload(mut self, payload: Box<RawValue>) -> Self {
        self.payload = Some(payload);
        self
    }

    /// Uses another priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority.as_str());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_said_is_sent_and_a_payload_goes_verbatim() {
        let plain = JobRequest::new("t");
        assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"topic":"t"}"#);

        let full = JobRequest::new("t")
            .payload_json(r#"{"n": 123456789012345678901234567890, "x":1.0}"#)
            .priority(Priority::Low)
            .label("k", "v")
            .delay(Duration::from_millis(5))
            .expire_in(Duration::from_secs(1))
            .start_within(Duration::from_secs(2))
            .timeout(Duration::from_secs(3))
            .max_attempts(2)
            .on_lost_lease(OnLostLease::Fail)
            .durability(Durability::Replicated);
        assert_eq!(
            serde_json::to_string(&full).unwrap(),
            concat!(
                r#"{"topic":"t","payload":{"n": 123456789012345678901234567890, "x":1.0},"priority":"low","#,
                r#""labels":{"k":"v"},"delay_ms":5,"start_within_ms":2000,"expire_in_ms":1000,"timeout_ms":3000,"#,
                r#""retry":{"max_attempts":2},"on_lost_lease":"fail","durability":"replicated"}"#
            )
        );
    }

    #[test]
    fn a_moment_and_a_span_exclude_each_other_and_a_bad_payload_is_told() {
        let request = JobRequest::new("t").delay(Duration::from_secs(1)).run_at(Time(1_700_000_000_000_000));
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"topic":"t","run_at":"2023-11-14T22:13:20.000Z"}"#);
        assert!(matches!(JobRequest::new("t").payload_json("{").ready(), Err(ClientError::Invalid(_))));
        let (a, b) = (JobRequest::new("t").ready().unwrap(), JobRequest::new("t").ready().unwrap());
        assert_ne!(a.idempotency_key, b.idempotency_key);
    }
}
