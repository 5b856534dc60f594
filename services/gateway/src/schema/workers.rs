//! The shapes of the five worker calls.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

use super::Progress;

/// A request of a worker for jobs.
#[derive(ToSchema)]
pub(crate) struct LeaseRequest {
    /// 1 to 128 visible characters. A repeat with the same id gets the same jobs.
    request_id: String,
    /// The name of the worker: `[A-Za-z0-9_-]{1,64}`.
    worker_id: String,
    /// The topics that the worker runs, 1 to 100 different ones.
    topics: Vec<String>,
    /// What the worker provides, for jobs that require it, at most 16 labels.
    provides: Option<BTreeMap<String, String>>,
    /// How many jobs the worker takes, 1 to 100; 1 by default.
    max: Option<u64>,
    /// How long the call waits for jobs, at most 30,000; 0 by default.
    wait_ms: Option<u64>,
    /// The lease of each job, 5,000 to 900,000; by default that of the topic, or 30,000. The worker loses a job whose
    /// lease it does not extend in time.
    lease_ms: Option<u64>,
}

/// The jobs for a worker.
#[derive(ToSchema)]
pub(crate) struct LeaseAnswer {
    /// The jobs to run. Their attempts have started.
    items: Vec<LeasedJob>,
    /// If true, the worker must take no more jobs, finish its running jobs and end.
    drain: bool,
}

/// A job to run.
#[derive(ToSchema)]
pub(crate) struct LeasedJob {
    /// The id of the job.
    job_id: String,
    /// The kind of work.
    topic: String,
    /// The payload as it was submitted.
    payload: Option<Value>,
    /// The labels as they were submitted.
    labels: BTreeMap<String, String>,
    /// The number of this attempt.
    attempt: u32,
    /// How many attempts may start.
    max_attempts: u32,
    /// The number that identifies this attempt in every later call.
    fence: u64,
    /// How long the lease still lasts. Use this instead of a clock.
    lease_ms: u64,
    /// The longest time of this attempt.
    timeout_ms: Option<u32>,
    /// The time by which the job must have ended.
    deadline: Option<String>,
    /// The W3C trace context of the job.
    traceparent: Option<String>,
}

/// A request of a worker to keep its jobs.
#[derive(ToSchema)]
pub(crate) struct ExtendRequest {
    /// The name of the worker.
    worker_id: String,
    /// How long the call waits for the cancel of one of the jobs, at most 30,000; 0 by default.
    wait_ms: Option<u64>,
    /// The new lease from now on; by default that of the topic, or 30,000.
    lease_ms: Option<u64>,
    /// The jobs, 1 to 100.
    items: Vec<ExtendItem>,
}

/// One job to keep.
#[derive(ToSchema)]
pub(crate) struct ExtendItem {
    /// The id of the job.
    job_id: String,
    /// The fence of the attempt.
    fence: u64,
    /// A progress report.
    progress: Option<Progress>,
}

/// A report of a worker about jobs that succeeded.
#[derive(ToSchema)]
pub(crate) struct CompleteRequest {
    /// The name of the worker; optional.
    worker_id: Option<String>,
    /// The jobs, 1 to 100.
    items: Vec<CompleteItem>,
}

/// One job that succeeded.
#[derive(ToSchema)]
pub(crate) struct CompleteItem {
    /// The id of the job.
    job_id: String,
    /// The fence of the attempt.
    fence: u64,
    /// The result: any JSON, at most 128 levels deep.
    result: Option<Value>,
    /// Instead of a result of more than 262,144 bytes: its size in bytes.
    result_size: Option<u64>,
    /// With `result_size`: the beginning of the result, at most 4,096 bytes.
    result_preview: Option<String>,
}

/// A report of a worker about jobs that failed.
#[derive(ToSchema)]
pub(crate) struct FailRequest {
    /// The name of the worker; optional.
    worker_id: Option<String>,
    /// The jobs, 1 to 100.
    items: Vec<FailItem>,
}

/// One job that failed.
#[derive(ToSchema)]
pub(crate) struct FailItem {
    /// The id of the job.
    job_id: String,
    /// The fence of the attempt.
    fence: u64,
    /// Why it failed.
    error: Failure,
}

/// Why an attempt failed, as its worker reports it.
#[derive(ToSchema)]
pub(crate) struct Failure {
    /// The error code, for programs: 1 to 128 bytes; `handler_error` by default.
    code: Option<String>,
    /// A message for people; at most 4,000 bytes are kept.
    message: Option<String>,
    /// Any JSON, at most 64 KiB and 128 levels deep.
    details: Option<Value>,
    /// Whether another attempt makes sense; true by default.
    retryable: Option<bool>,
    /// The wait before the next attempt, instead of that of the retry policy.
    retry_in_ms: Option<u64>,
}

/// A request of a worker to give back jobs that it has not begun.
#[derive(ToSchema)]
pub(crate) struct ReleaseRequest {
    /// The name of the worker; optional.
    worker_id: Option<String>,
    /// The jobs, 1 to 100.
    items: Vec<ReleaseItem>,
}

/// One job to give back.
#[derive(ToSchema)]
pub(crate) struct ReleaseItem {
    /// The id of the job.
    job_id: String,
    /// The fence of the attempt.
    fence: u64,
    /// The job is not offered again before this many milliseconds from now.
    delay_ms: Option<u64>,
}

/// The states of attempts.
#[derive(ToSchema)]
pub(crate) struct StandingList {
    /// The attempts, in the order of the request.
    items: Vec<StandingItem>,
}

/// The state of one attempt.
#[derive(ToSchema)]
pub(crate) struct StandingItem {
    /// The id of the job.
    job_id: String,
    /// `ok`, `stale` or `invalid`. If it is not `ok`, the worker must stop the job.
    status: String,
    /// Why it is not `ok`: `lost`, `cancelled`, `timed_out` or `unknown`.
    reason: Option<String>,
    /// How long the lease still lasts.
    lease_ms: Option<u64>,
}
