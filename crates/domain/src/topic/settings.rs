//! The settings that an operator gives a topic: limits, defaults for its jobs, a pause.
//!
//! This module knows the fields and what each means when it is absent. Any later version can read
//! the JSON of these types, because unknown fields are skipped and absent fields have defaults. The
//! gateway validates what people write, `store` stores it, and gateway and scheduler apply it.

use serde::{Deserialize, Serialize};

use crate::Time;

/// A topic's settings. An absent field means no limit, or the system's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicSettings {
    /// How many jobs run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// How many jobs begin per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<TopicRate>,
    /// How many jobs may wait; beyond this number the gateway refuses submits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backlog: Option<u64>,
    /// How failed attempts are retried, where the submit gives no policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<TopicRetry>,
    /// The longest time of one attempt, where the submit gives none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// How long a worker may be silent, where the worker gives no lease time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// How long ended jobs are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<TopicRetention>,
    /// A JSON Schema that payloads must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<serde_json::Value>,
    /// Whether workers of all tenants share one queue.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// How many jobs of a topic run at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Concurrency {
    /// All jobs of the topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Jobs with the same `concurrency_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_key: Option<u32>,
}

/// How fast jobs of a topic are released to its workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopicRate {
    /// Jobs per second, over all replicas; above zero.
    pub per_s: f64,
    /// Jobs that may be released at once; at least one.
    pub burst: u32,
}

/// How failed attempts are retried, in stored form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopicRetry {
    /// How many attempts may be started.
    pub max_attempts: u16,
    /// The wait before the second attempt, in milliseconds.
    pub initial_ms: u64,
    /// Each further wait is the previous one multiplied by this factor.
    pub factor: f64,
    /// The longest wait, in milliseconds.
    pub max_ms: u64,
    /// The share of the wait by which jitter moves it up or down.
    pub jitter: f64,
}

/// How long ended jobs of a topic are kept after their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicRetention {
    /// Jobs that succeeded or were cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded_ms: Option<u64>,
    /// Jobs that ended badly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_ms: Option<u64>,
}

/// The pause of a topic: its jobs wait until the topic is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// When the pause began, in microseconds of Redis time.
    pub since: u64,
    /// The id of the API key that requested the pause.
    pub by: String,
    /// The reason for the pause, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Paused {
    /// When the pause began.
    pub fn since(&self) -> Time {
        Time(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RetryPolicy;

    #[test]
    fn settings_are_read_back_as_written_and_defaults_are_left_out() {
        assert_eq!(serde_json::to_string(&TopicSettings::default()).unwrap(), "{}");
        let all = TopicSettings {
            concurrency: Some(Concurrency { max: Some(3), per_key: Some(1) }),
            rate: Some(TopicRate { per_s: 0.5, burst: 2 }),
            max_backlog: Some(7),
            retry: Some(RetryPolicy::default().into()),
            timeout_ms: Some(1),
            lease_ms: Some(5_000),
            retention: Some(TopicRetention { succeeded_ms: Some(1), failed_ms: None }),
            schema: Some(serde_json::json!({"type": "object", "maximum": 1.50})),
            shared: true,
        };
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<TopicSettings>(&text).unwrap(), all);
        assert_eq!(RetryPolicy::from(all.retry.unwrap()), RetryPolicy::default());
    }

    #[test]
    fn what_a_later_version_wrote_is_read_as_far_as_it_is_known() {
        let read: TopicSettings = serde_json::from_str(r#"{"max_backlog":1,"colour":"red"}"#).unwrap();
        assert_eq!(read, TopicSettings { max_backlog: Some(1), ..TopicSettings::default() });
    }
}
