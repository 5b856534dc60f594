//! Conversion of specs, errors and progress between their domain types and their bytes.

use std::time::Duration;

use bytes::Bytes;
use muster_domain::{
    Backoff, Durability, JobError, JobId, JobSpec, OnLostLease, Priority, Progress, RetryPolicy, RunId, Tenant, Topic,
    TraceParent,
    job::{EndedBy, Head, When},
};
use prost::Message;

use crate::{WireError, v1};

/// Reads a job id from its raw bytes.
pub fn job_id(bytes: &[u8]) -> Result<JobId, WireError> {
    JobId::from_slice(bytes)
        .ok_or_else(|| WireError::Field { field: "job_id", fault: format!("{} bytes instead of 16", bytes.len()) })
}

/// Reads the id of a run from its raw bytes; empty bytes are none.
pub fn run_id(bytes: &[u8]) -> Result<Option<RunId>, WireError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let wrong = || WireError::Field { field: "run_id", fault: format!("{} bytes instead of 16", bytes.len()) };
    RunId::from_slice(bytes).map(Some).ok_or_else(wrong)
}

/// The raw bytes of the id of a run; empty for none.
pub fn run_bytes(run: Option<RunId>) -> Bytes {
    run.map_or_else(Bytes::new, |id| Bytes::copy_from_slice(id.as_bytes()))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl From<&JobSpec> for v1::Spec {
    fn from(spec: &JobSpec) -> v1::Spec {
        let retry = (spec.retry != RetryPolicy::default()).then(|| v1::Retry {
            max_attempts: spec.retry.max_attempts.into(),
            initial_ms: millis(spec.retry.backoff.initial),
            factor: spec.retry.backoff.factor,
            max_ms: millis(spec.retry.backoff.max),
            jitter: spec.retry.backoff.jitter,
        });
        v1::Spec {
            tenant: spec.tenant.to_string(),
            topic: spec.topic.to_string(),
            principal: spec.principal.clone(),
            priority: spec.priority.code(),
            labels: spec.labels.clone(),
            requires: spec.requires.clone(),
            concurrency_key: spec.concurrency_key.clone(),
            run_at: When::signed(spec.run_at),
            start_by: When::signed(spec.start_by),
            deadline: When::signed(spec.deadline),
            timeout_ms: spec.timeout_ms,
            retry,
            on_lost_lease: spec.on_lost_lease.code(),
            durability: spec.durability.code(),
            traceparent: spec.trace.map(|t| t.to_string()).unwrap_or_default(),
            retry_of: spec.retry_of.map(|id| id.as_bytes().to_vec().into()).unwrap_or_default(),
            run_id: run_bytes(spec.run),
        }
    }
}

impl TryFrom<v1::Spec> for JobSpec {
    type Error = WireError;
    fn try_from(spec: v1::Spec) -> Result<JobSpec, WireError> {
        let name = |field, fault: muster_domain::NameFault| WireError::Field { field, fault: fault.to_string() };
        let retry = match spec.retry {
            None => RetryPolicy::default(),
            Some(r) => RetryPolicy {
                max_attempts: u16::try_from(r.max_attempts).unwrap_or(u16::MAX).max(1),
                backoff: Backoff {
                    initial: Duration::from_millis(r.initial_ms),
                    factor: r.factor,
                    max: Duration::from_millis(r.max_ms),
                    jitter: r.jitter,
                },
            },
        };
        Ok(JobSpec {
            tenant: Tenant::parse(&spec.tenant).map_err(|f| name("tenant", f))?,
            topic: Topic::parse(&spec.topic).map_err(|f| name("topic", f))?,
            principal: spec.principal,
            priority: Priority::from_code(spec.priority),
            labels: spec.labels,
            requires: spec.requires,
            concurrency_key: spec.concurrency_key,
            run_at: When::from_signed(spec.run_at),
            start_by: When::from_signed(spec.start_by),
            deadline: When::from_signed(spec.deadline),
            timeout_ms: spec.timeout_ms,
            retry,
            on_lost_lease: OnLostLease::from_code(spec.on_lost_lease),
            durability: Durability::from_code(spec.durability),
            trace: TraceParent::parse(&spec.traceparent),
            retry_of: if spec.retry_of.is_empty() { None } else { Some(job_id(&spec.retry_of)?) },
            run: run_id(&spec.run_id)?,
        })
    }
}

impl v1::Spec {
    /// The bytes that a record holds. The default tenant is left out to save space, because most of the millions of
    /// records belong to it.
    pub fn into_bytes(mut self) -> Vec<u8> {
        if self.tenant == Tenant::DEFAULT {
            self.tenant.clear();
        }
        self.encode_to_vec()
    }

    /// Reads a record's spec.
    pub fn from_bytes(bytes: &[u8]) -> Result<JobSpec, WireError> {
        let mut spec = v1::Spec::decode(bytes).map_err(|e| WireError::Malformed(e.to_string()))?;
        if spec.tenant.is_empty() {
            spec.tenant.push_str(Tenant::DEFAULT);
        }
        spec.try_into()
    }
}

impl From<&JobError> for v1::Failure {
    fn from(error: &JobError) -> v1::Failure {
        v1::Failure {
            code: error.code.clone(),
            message: error.message.clone(),
            details: error.details.clone().unwrap_or_default(),
            retryable: error.retryable,
        }
    }
}

impl From<v1::Failure> for JobError {
    fn from(failure: v1::Failure) -> JobError {
        let code = if failure.code.is_empty() { "handler_error".to_owned() } else { failure.code };
        let details = (!failure.details.is_empty()).then_some(failure.details);
        JobError { details, ..JobError::new(code, &failure.message, failure.retryable) }
    }
}

impl v1::Failure {
    /// The bytes that a record holds.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Reads a record's error.
    pub fn from_bytes(bytes: &[u8]) -> Result<JobError, WireError> {
        v1::Failure::decode(bytes).map(JobError::from).map_err(|e| WireError::Malformed(e.to_string()))
    }
}

impl v1::Success {
    /// The bytes that a record holds.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Reads a record's result.
    pub fn from_bytes(bytes: &[u8]) -> Result<v1::Success, WireError> {
        v1::Success::decode(bytes).map_err(|e| WireError::Malformed(e.to_string()))
    }
}

impl From<&Progress> for v1::Progress {
    fn from(p: &Progress) -> v1::Progress {
        v1::Progress {
            percent: p.percent,
            message: p.message.clone().unwrap_or_default(),
            data: p.data.clone().unwrap_or_default(),
        }
    }
}

impl From<v1::Progress> for Progress {
    fn from(p: v1::Progress) -> Progress {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Progress { percent: p.percent, message: some(p.message), data: some(p.data) }
    }
}

impl v1::Progress {
    /// The bytes that a record holds.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Reads a record's progress.
    pub fn from_bytes(bytes: &[u8]) -> Result<Progress, WireError> {
        v1::Progress::decode(bytes).map(Progress::from).map_err(|e| WireError::Malformed(e.to_string()))
    }
}

/// The standing of the attempt with this fence, for the worker that runs it.
pub fn standing_of(head: &Head, fence: u64) -> v1::Standing {
    if head.fence != fence {
        return v1::Standing::Lost;
    }
    if head.lease().is_some() {
        return v1::Standing::Ok;
    }
    match head.ended_by() {
        Some(EndedBy::Cancel) => v1::Standing::Cancelled,
        Some(EndedBy::Clock) => v1::Standing::TimedOut,
        Some(EndedBy::Worker(_)) => v1::Standing::Ok,
        Some(EndedBy::Silence) | None => v1::Standing::Lost,
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::Time;

    use super::*;

    #[test]
    fn a_spec_survives_its_bytes() {
        let mut spec = JobSpec::new(Tenant::parse("acme").unwrap(), Topic::parse("a.b").unwrap());
        let plain = v1::Spec::from(&spec);
        assert!(plain.retry.is_none(), "defaults are left out");
        assert_eq!(v1::Spec::from_bytes(&plain.into_bytes()).unwrap(), spec);

        let unnamed = JobSpec { tenant: Tenant::default(), ..spec.clone() };
        let bytes = v1::Spec::from(&unnamed).into_bytes();
        assert!(!bytes.windows(7).any(|text| text == b"default"), "as is the tenant that most have");
        assert_eq!(v1::Spec::from_bytes(&bytes).unwrap(), unnamed);
        assert_eq!(v1::Spec::from_bytes(&v1::Spec::from(&unnamed).encode_to_vec()).unwrap(), unnamed, "named or not");

        spec.labels.insert("k".into(), "v".into());
        spec.requires.insert("gpu".into(), "a100".into());
        spec.concurrency_key = "customer:17".into();
        spec.priority = Priority::Critical;
        spec.run_at = Some(When::In(Duration::from_secs(3)));
        spec.deadline = Some(When::At(Time(77)));
        spec.retry.max_attempts = 1;
        spec.on_lost_lease = OnLostLease::Fail;
        spec.durability = Durability::Replicated;
        spec.trace = Some(TraceParent::fresh());
        spec.retry_of = Some(JobId::mint(1));
        spec.run = Some(RunId::mint(2));
        assert_eq!(v1::Spec::from_bytes(&v1::Spec::from(&spec).into_bytes()).unwrap(), spec);
    }

    #[test]
    fn a_spec_with_a_bad_name_is_refused() {
        let spec = v1::Spec { tenant: "default".into(), topic: "job.>".into(), ..Default::default() };
        assert!(matches!(v1::Spec::from_bytes(&spec.into_bytes()), Err(WireError::Field { field: "topic", .. })));
    }
}
