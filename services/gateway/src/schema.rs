//! The shapes of requests and answers, for the OpenAPI document only.
//!
//! Bodies are read by `json` and written by `view`, because both have to keep JSON verbatim and
//! name every wrong field; these types describe what those do and are never filled.
#![expect(dead_code, reason = "described, never filled")]

mod audit;
pub(crate) mod bounds;
mod config;
mod dead_letters;
mod doctor;
mod events;
mod explain;
mod fields;
mod fleet;
mod keys;
pub(crate) mod refusals;
mod run;
mod runs;
mod topics;
mod workers;
mod workflows;

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::{
    Modify, OpenApi, ToSchema,
    openapi::{
        SecurityRequirement,
        security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme},
    },
};

pub(crate) use audit::{AuditPage, AuditVerdict};
pub(crate) use config::{Config, EffectiveConfig, SettingValue};
pub(crate) use dead_letters::{BulkRequest, DeadLetterPage, DeadLetterSummary, DryRun, Operation, OperationPage};
pub(crate) use doctor::Diagnosis;
pub(crate) use events::CloudEvent;
pub(crate) use explain::Explanation;
pub(crate) use fleet::{Drained, LockList, LoopList, ReplicaList, WorkerList};
pub(crate) use keys::{KeyList, KeyRequest, NewKey, RotateRequest, WhoAmI};
pub(crate) use run::Run;
pub(crate) use runs::{
    RerunOutlook, RerunRequest, RunBulkRequest, RunCancelRequest, RunExplanation, RunItemPage, RunPage, RunSignal,
    RunTimeline, StepCompleteRequest,
};
pub(crate) use topics::{Topic, TopicList, TopicSettings};
pub(crate) use workers::{
    CompleteRequest, ExtendRequest, FailRequest, LeaseAnswer, LeaseRequest, ReleaseRequest, StandingList,
};
pub(crate) use workflows::{
    RunRequest, ValidWorkflow, Workflow, WorkflowDefinition, WorkflowPage, WorkflowVersionList,
};

/// The document's frame; the routes add themselves.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Muster",
        description = "A distributed job coordinator. Clients must ignore unknown fields and states, and loop on `done`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    modifiers(&Keys),
)]
pub(crate) struct Api;

struct Keys;

impl Modify for Keys {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let header = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key")));
        components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        components.add_security_scheme("api_key", header);
        let none: [&str; 0] = [];
        openapi.security =
            Some(vec![SecurityRequirement::new("bearer", none), SecurityRequirement::new("api_key", none)]);
    }
}

/// A job to submit.
#[derive(ToSchema)]
pub(crate) struct Submit {
    /// The kind of work: parts of `[a-z0-9][a-z0-9_-]*` joined by dots, at most 128 characters.
    topic: String,
    /// Any JSON, at most 512 KiB and 128 levels deep. It is kept byte for byte.
    payload: Option<Value>,
    /// `critical`, `high`, `normal` (the default) or `low`.
    priority: Option<String>,
    /// Labels for finding the job again, at most 32.
    labels: Option<BTreeMap<String, String>>,
    /// What the worker must provide, at most 16 labels; the label `worker` is the name of a worker.
    requires: Option<BTreeMap<String, String>>,
    /// Jobs of the tenant with the same key run one at a time; 1 to 128 visible characters.
    concurrency_key: Option<String>,
    /// The job does not start before this time (RFC 3339, 1970 to 2255). Give either this or `delay_ms`.
    run_at: Option<String>,
    /// The job does not start before this many milliseconds from now.
    delay_ms: Option<u64>,
    /// The job expires if it has not started by this time. Give either this or `start_within_ms`.
    start_by: Option<String>,
    /// The job expires if it has not started within this many milliseconds.
    start_within_ms: Option<u64>,
    /// The time by which the job must have ended. Give either this or `expire_in_ms`.
    deadline: Option<String>,
    /// The job must have ended within this many milliseconds.
    expire_in_ms: Option<u64>,
    /// The longest time of one attempt.
    timeout_ms: Option<u64>,
    /// How failed attempts are retried.
    retry: Option<Retry>,
    /// What happens when the worker stops responding: `retry` (the default) or `fail`.
    on_lost_lease: Option<String>,
    /// How safely the job is stored before the response: `memory` (the default), `replicated` or `fsynced`. The
    /// response says which level was reached.
    durability: Option<String>,
    /// The W3C trace context of the job; by default that of the request header `traceparent`.
    traceparent: Option<String>,
}

/// How failed attempts are retried.
#[derive(ToSchema)]
pub(crate) struct Retry {
    /// How many attempts may start, 1 to 1,000; 5 by default.
    max_attempts: Option<u16>,
    /// The waits between attempts.
    backoff: Option<Backoff>,
}

/// The waits between attempts.
#[derive(ToSchema)]
pub(crate) struct Backoff {
    /// The wait before the second attempt; 1,000 by default.
    initial_ms: Option<u64>,
    /// Each further wait is the previous one multiplied by this factor, 1 to 100; 2 by default.
    factor: Option<f64>,
    /// The longest wait; 300,000 by default.
    max_ms: Option<u64>,
    /// The share of a wait, 0 to 1, by which it is moved at random; 0.2 by default.
    jitter: Option<f64>,
}

/// A job. Fields that do not apply are absent.
#[derive(ToSchema)]
pub(crate) struct Job {
    /// UUIDv7, or derived from an idempotency key and then not time-ordered.
    id: String,
    /// The tenant that owns the job.
    tenant: String,
    /// The kind of work.
    topic: String,
    /// The state of the job.
    state: String,
    /// Whether the job has ended.
    done: bool,
    /// How many attempts have started; 0 before the first start.
    attempt: u16,
    /// How many attempts may start.
    max_attempts: u16,
    /// The order in which waiting jobs start.
    priority: String,
    /// Labels for finding the job again.
    labels: BTreeMap<String, String>,
    /// What the worker must provide.
    requires: Option<BTreeMap<String, String>>,
    /// Jobs with the same key run one at a time.
    concurrency_key: Option<String>,
    /// The payload as it was submitted.
    payload: Option<Value>,
    /// The result as the worker sent it.
    result: Option<Value>,
    /// True if the result was too large to keep.
    result_truncated: Option<bool>,
    /// The size in bytes of a result that was too large to keep.
    result_size: Option<u64>,
    /// The beginning of a result that was too large to keep.
    result_preview: Option<String>,
    /// Why the last failed attempt failed.
    error: Option<JobError>,
    /// The last progress report.
    progress: Option<Progress>,
    /// The worker that runs the job, or ran it last.
    worker: Option<String>,
    /// When the lease of the running attempt ends.
    lease_until: Option<String>,
    /// When the job was accepted.
    created_at: String,
    /// When the last attempt began.
    started_at: Option<String>,
    /// When the job ended.
    finished_at: Option<String>,
    /// The time from `started_at` to `finished_at`.
    duration_ms: Option<u64>,
    /// When the next attempt may begin.
    next_retry_at: Option<String>,
    /// The job does not start before this time.
    run_at: Option<String>,
    /// The time by which the job must have ended.
    deadline: Option<String>,
    /// How safely the job was stored when it was accepted.
    durability: String,
    /// The job that this one is a retry of.
    retry_of: Option<String>,
    /// The job that is the retry of this one.
    retried_as: Option<String>,
    /// The run of a workflow that it belongs to.
    run_id: Option<String>,
}

/// Why an attempt failed.
#[derive(ToSchema)]
pub(crate) struct JobError {
    /// The error code, for programs.
    code: Option<String>,
    /// A message for people; at most 4,000 bytes are kept.
    message: Option<String>,
    /// Any JSON.
    details: Option<Value>,
    /// Whether another attempt makes sense.
    retryable: Option<bool>,
}

/// The progress of a job.
#[derive(ToSchema)]
pub(crate) struct Progress {
    /// 0 to 100.
    percent: Option<f64>,
    /// A message for people, at most 4,000 bytes.
    message: Option<String>,
    /// Any JSON, at most 64 KiB.
    data: Option<Value>,
}

/// A page of jobs.
#[derive(ToSchema)]
pub(crate) struct JobPage {
    /// The jobs, newest first.
    items: Vec<Job>,
    /// Ids of jobs on this part of the list whose records are damaged, so that they cannot be compared with the filter;
    /// absent if there are none.
    unreadable: Option<Vec<String>>,
    /// The cursor of the next page; absent at the end.
    next_cursor: Option<String>,
}

/// The history of a job.
#[derive(ToSchema)]
pub(crate) struct History {
    /// The id of the job.
    job_id: String,
    /// The transitions that are kept: the first, and the last 63.
    transitions: Vec<HistoryLine>,
    /// The attempts, in order.
    attempts: Vec<Attempt>,
}

/// One transition of a job.
#[derive(ToSchema)]
pub(crate) struct HistoryLine {
    /// The event.
    event: String,
    /// The state after the event.
    state: String,
    /// When it happened.
    at: String,
    /// The number of the attempt.
    attempt: u16,
    /// The worker of a start, the error of a failure, or the reason of a cancel.
    note: Option<String>,
}

/// One attempt to run a job.
#[derive(ToSchema)]
pub(crate) struct Attempt {
    /// The number of the attempt.
    attempt: u16,
    /// The worker that ran the attempt.
    worker: String,
    /// When the attempt started.
    started_at: String,
    /// When the attempt ended.
    ended_at: Option<String>,
    /// The event that ended the attempt.
    outcome: Option<String>,
    /// Why the attempt failed.
    error: Option<JobError>,
}

/// Jobs to submit together.
#[derive(ToSchema)]
pub(crate) struct BatchRequest {
    /// At most 1,000 jobs. Each gets its own answer.
    items: Vec<BatchItem>,
}

/// One job of a batch.
#[derive(ToSchema)]
pub(crate) struct BatchItem {
    /// The fields of a single submit.
    #[serde(flatten)]
    job: Submit,
    /// As the header `Idempotency-Key` of a single submit. The header of the batch applies to items without a key.
    idempotency_key: Option<String>,
}

/// The answers to a batch.
#[derive(ToSchema)]
pub(crate) struct BatchAnswer {
    /// One answer for each job, in the order of the request.
    items: Vec<BatchOutcome>,
}

/// The answer to one job of a batch.
#[derive(ToSchema)]
pub(crate) struct BatchOutcome {
    /// The HTTP status that a single submit would have had.
    status: u16,
    /// True if the job was stored before by the same key.
    replayed: Option<bool>,
    /// The accepted job in its current state, without payload and result.
    job: Option<Job>,
    /// Why the job was refused.
    error: Option<Problem>,
}

/// Why a job is cancelled, or a topic is paused.
#[derive(ToSchema)]
pub(crate) struct CancelRequest {
    /// For people, at most 1,000 bytes.
    reason: Option<String>,
}

/// What the new job changes.
#[derive(ToSchema)]
pub(crate) struct RetryRequest {
    /// Another payload.
    payload: Option<Value>,
    /// Another topic.
    topic: Option<String>,
    /// Another priority.
    priority: Option<String>,
}

/// The status of this gateway.
#[derive(ToSchema)]
pub(crate) struct Status {
    /// `ok`, `degraded` or `unready`.
    status: String,
    /// The version of the software.
    version: String,
    /// The name of this replica.
    instance: String,
}

/// Why a request was refused, as in RFC 9457.
#[derive(ToSchema)]
pub(crate) struct Problem {
    /// A URN that contains the code.
    r#type: String,
    /// The code in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What is wrong with this request.
    detail: String,
    /// The path of the request.
    instance: Option<String>,
    /// The stable code, for programs.
    code: String,
    /// The same as the header `X-Request-Id`.
    request_id: Option<String>,
    /// The trace of the request.
    trace_id: Option<String>,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// Every wrong field.
    errors: Option<Vec<FieldFault>>,
}

/// One wrong field.
#[derive(ToSchema)]
pub(crate) struct FieldFault {
    /// A JSON pointer into the body; `/query/..` and `/header/..` name parameters and headers.
    pointer: String,
    /// What is wrong with the field.
    detail: String,
}
