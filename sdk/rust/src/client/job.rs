//! A job as the gateways show it. Unknown fields and states are ignored, so a newer gateway does
//! not break an older client. Payloads and results are kept as the text that was received.

use std::collections::BTreeMap;

use muster_domain::{JobId, State, Time};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    error::{ClientError, Problem},
    fields::{as_text, moment, present, read},
};

/// A job.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Job {
    /// The id of the job.
    #[serde(with = "as_text")]
    pub id: JobId,
    /// The tenant that owns the job.
    #[serde(default)]
    pub tenant: String,
    /// The kind of work.
    #[serde(default)]
    pub topic: String,
    /// The state, as the gateway names it; see [`Job::known_state`].
    pub state: String,
    /// Whether the job has ended. Check this in a loop, not the state.
    #[serde(default)]
    pub done: bool,
    /// Attempts started; 0 until the first start.
    #[serde(default)]
    pub attempt: u32,
    /// How many attempts may be started.
    #[serde(default)]
    pub max_attempts: u32,
    /// The order in which the job leaves the backlog.
    #[serde(default)]
    pub priority: String,
    /// The labels of the job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The handler's input, exactly as it was sent. Lists have it only on request.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    /// The handler's output, exactly as it was sent. Lists have it only on request.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// The result was too large to be kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub result_truncated: bool,
    /// The size of the result that was too large, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_size: Option<u64>,
    /// The beginning of the result that was too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_preview: Option<String>,
    /// Why the job, or its last attempt, failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobFailure>,
    /// The progress of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// The worker that runs the job, or ran it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When the worker's lease ends.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Time>,
    /// When the job was accepted.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// When the last attempt began.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the job ended.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// How long the last attempt took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// When the job will be tried again.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Time>,
    /// When the job may run at the earliest.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Time>,
    /// When the job must have ended.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// How safely the submit was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// The job that this job retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
    /// The job that retries this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried_as: Option<String>,
    /// The run of a workflow that the job belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
}

impl Job {
    /// The state, if this release knows it.
    pub fn known_state(&self) -> Option<State> {
        State::parse(&self.state)
    }

    /// Whether the job ended well.
    pub fn succeeded(&self) -> bool {
        self.known_state() == Some(State::Succeeded)
    }

    /// The result as a value.
    pub fn result_as<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        read(self.result.as_deref(), "result of the job")
    }

    /// The payload as a value.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        read(self.payload.as_deref(), "payload of the job")
    }
}

/// Why a job or an attempt failed.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct JobFailure {
    /// The code to match on.
    #[serde(default)]
    pub code: String,
    /// A message for people.
    #[serde(default)]
    pub message: String,
    /// JSON details from the handler.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<RawValue>>,
    /// Whether another attempt made sense.
    #[serde(default)]
    pub retryable: bool,
}

/// The progress of a job.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct JobProgress {
    /// 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// A message for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// JSON data from the handler.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

/// One answer of a batch.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct BatchItem {
    #[serde(default)]
    status: u16,
    #[serde(default)]
    job: Option<Job>,
    #[serde(default)]
    error: Option<Box<Problem>>,
}

impl BatchItem {
    pub(super) fn outcome(self) -> Result<Job, ClientError> {
        match (self.job, self.error) {
            (Some(job), None) => Ok(job),
            (_, Some(mut problem)) => {
                problem.status = self.status;
                Err(ClientError::Refused(problem))
            }
            (None, None) => Err(ClientError::Unexpected("an item of the batch has neither job nor error".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_whatever_else_it_says_and_its_result_stays_as_it_was() {
        let text = r#"{"id":"0198c0de-0000-7000-8000-000000000001","state":"hibernating","done":false,"topic":"t",
            "result":{"n": 123456789012345678901234567890,"f":1.10},"payload":null,"shape":{"new":[1]},
            "created_at":"2026-01-02T03:04:05.678Z","error":{"code":"x","message":"y","details":[1, 2]}}"#;
        let job: Job = serde_json::from_str(text).unwrap();
        assert_eq!((job.known_state(), job.done, job.attempt), (None, false, 0));
        assert_eq!(job.result.as_ref().unwrap().get(), r#"{"n": 123456789012345678901234567890,"f":1.10}"#);
        assert_eq!(job.payload.as_ref().unwrap().get(), "null");
        assert_eq!(job.created_at.unwrap().rfc3339(), "2026-01-02T03:04:05.678Z");
        assert_eq!(job.error.as_ref().unwrap().details.as_ref().unwrap().get(), "[1, 2]");
        assert_eq!(job.payload_as::<Option<u8>>().unwrap(), None);
        assert!(job.result_as::<u8>().is_err());

        let again: Job = serde_json::from_str(&serde_json::to_string(&job).unwrap()).unwrap();
        assert_eq!(again.result.unwrap().get(), job.result.unwrap().get());
        assert!(again.started_at.is_none());
    }
}
