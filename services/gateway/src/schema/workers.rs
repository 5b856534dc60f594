//! The shapes of the five worker calls.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

use super::{JobError, Progress};

/// A worker asks for work.
#[derive(ToSchema)]
pub(crate) struct LeaseRequest {
    /// The same one gets the same jobs again: 1 to 128 visible characters.
    request_id: String,
    /// `[A-Za-z0-9_-]{1,64}`.
    worker_id: String,
    /// What it can do.
    topics: Vec<String>,
    /// What it has, for jobs that require it.
    provides: Option<BTreeMap<String, String>>,
    /// Jobs it takes now, 1 to 100; 1 unless given.
    max: Option<u64>,
    /// How long it waits, at most 30,000.
    wait_ms: Option<u64>,
    /// How long it holds them without a word: 5,000 to 900,000; the topic's unless given, or 30,000.
    lease_ms: Option<u64>,
}

/// Work.
#[derive(ToSchema)]
pub(crate) struct LeaseAnswer {
    /// Now running.
    items: Vec<LeasedJob>,
    /// Take no more, and end.
    drain: bool,
}

/// A job to be run now.
#[derive(ToSchema)]
pub(crate) struct LeasedJob {
    /// The id of the job.
    job_id: String,
    /// What kind of work.
    topic: String,
    /// As it was submitted.
    payload: Option<Value>,
    /// As it was submitted.
    labels: BTreeMap<String, String>,
    /// Which attempt this is.
    attempt: u32,
    /// How many there may be.
    max_attempts: u32,
    /// Names this attempt in every later call.
    fence: u64,
    /// What remains of the lease; trust it, not a clock.
    lease_ms: u64,
    /// Longest time of this attempt.
    timeout_ms: Option<u32>,
    /// The whole job is over by then.
    deadline: Option<String>,
    /// Its trace.
    traceparent: Option<String>,
}

/// A worker keeps its jobs.
#[derive(ToSchema)]
pub(crate) struct ExtendRequest {
    /// The name of the worker.
    worker_id: String,
    /// Answer when a held job is cancelled, or after so long, at most 30,000.
    wait_ms: Option<u64>,
    /// From now; the topic's unless given, or 30,000.
    lease_ms: Option<u64>,
    /// At most 100.
    items: Vec<ExtendItem>,
}

/// One to keep.
#[derive(ToSchema)]
pub(crate) struct ExtendItem {
    /// The id of the job.
    job_id: String,
    /// Of its attempt.
    fence: u64,
    /// How far it is.
    progress: Option<Progress>,
}

/// A worker has finished jobs.
#[derive(ToSchema)]
pub(crate) struct CompleteRequest {
    /// The name of the worker; may be left out.
    worker_id: Option<String>,
    /// At most 100.
    items: Vec<CompleteItem>,
}

/// One that is finished.
#[derive(ToSchema)]
pub(crate) struct CompleteItem {
    /// The id of the job.
    job_id: String,
    /// Of its attempt.
    fence: u64,
    /// Any JSON.
    result: Option<Value>,
    /// Instead of a result of more than 262,144 bytes: how many it has.
    result_size: Option<u64>,
    /// And how it begins, at most 4,096 bytes.
    result_preview: Option<String>,
}

/// A worker has failed at jobs.
#[derive(ToSchema)]
pub(crate) struct FailRequest {
    /// The name of the worker; may be left out.
    worker_id: Option<String>,
    /// At most 100.
    items: Vec<FailItem>,
}

/// One that failed.
#[derive(ToSchema)]
pub(crate) struct FailItem {
    /// The id of the job.
    job_id: String,
    /// Of its attempt.
    fence: u64,
    /// Why it failed. May also carry `retry_in_ms`.
    error: JobError,
}

/// A worker gives jobs back, unbegun.
#[derive(ToSchema)]
pub(crate) struct ReleaseRequest {
    /// The name of the worker; may be left out.
    worker_id: Option<String>,
    /// At most 100.
    items: Vec<ReleaseItem>,
}

/// One given back.
#[derive(ToSchema)]
pub(crate) struct ReleaseItem {
    /// The id of the job.
    job_id: String,
    /// Of its attempt.
    fence: u64,
    /// Not before so long from now.
    delay_ms: Option<u64>,
}

/// How each attempt stands. Anything but `ok` means stop.
#[derive(ToSchema)]
pub(crate) struct StandingList {
    /// In the order of the request.
    items: Vec<StandingItem>,
}

/// How one attempt stands.
#[derive(ToSchema)]
pub(crate) struct StandingItem {
    /// The id of the job.
    job_id: String,
    /// `ok`, `stale` or `invalid`.
    status: String,
    /// `lost`, `cancelled`, `timed_out` or `unknown`.
    reason: Option<String>,
    /// What remains of the lease.
    lease_ms: Option<u64>,
}
