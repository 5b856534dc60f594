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
mod fleet;
mod keys;
pub(crate) mod refusals;
mod topics;
mod workers;

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
pub(crate) use topics::{Topic, TopicList, TopicSettings};
pub(crate) use workers::{
    CompleteRequest, ExtendRequest, FailRequest, LeaseAnswer, LeaseRequest, ReleaseRequest, StandingList,
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

/// A job to be run.
#[derive(ToSchema)]
pub(crate) struct Submit {
    /// What kind of work: parts of `[a-z0-9][a-z0-9_-]*` joined by dots, at most 128 characters.
    topic: String,
    /// Any JSON, at most 512 KiB, kept byte for byte.
    payload: Option<Value>,
    /// `critical`, `high`, `normal` (the default) or `low`.
    priority: Option<String>,
    /// Up to 32, for finding it again.
    labels: Option<BTreeMap<String, String>>,
    /// What its worker must provide, up to 16 pairs; `worker` is a worker's own name.
    requires: Option<BTreeMap<String, String>>,
    /// Jobs of the tenant with the same key run one at a time; 1 to 128 visible characters.
    concurrency_key: Option<String>,
    /// Not before this moment (RFC 3339); or give `delay_ms`.
    run_at: Option<String>,
    /// Not before so long from now.
    delay_ms: Option<u64>,
    /// Expires if not started by then; or give `start_within_ms`.
    start_by: Option<String>,
    /// Expires if not started within.
    start_within_ms: Option<u64>,
    /// The whole job is over by then; or give `expire_in_ms`.
    deadline: Option<String>,
    /// The whole job is over within.
    expire_in_ms: Option<u64>,
    /// Longest time of one attempt.
    timeout_ms: Option<u64>,
    /// How failures are retried.
    retry: Option<Retry>,
    /// `retry` (the default) or `fail`.
    on_lost_lease: Option<String>,
    /// `memory` (the default), `replicated` or `fsynced`; the answer says which was reached.
    durability: Option<String>,
    /// W3C trace context; the header of that name unless given.
    traceparent: Option<String>,
}

/// How failures are retried.
#[derive(ToSchema)]
pub(crate) struct Retry {
    /// Starts in all, 1 to 1,000; 5 unless given.
    max_attempts: Option<u16>,
    /// The waits between them.
    backoff: Option<Backoff>,
}

/// Waits between attempts.
#[derive(ToSchema)]
pub(crate) struct Backoff {
    /// Before the second attempt; 1,000 unless given.
    initial_ms: Option<u64>,
    /// Times this for each one after; 2 unless given.
    factor: Option<f64>,
    /// But never longer; 300,000 unless given.
    max_ms: Option<u64>,
    /// Spread by this share, 0 to 1; 0.2 unless given.
    jitter: Option<f64>,
}

/// A job. Fields that do not apply are absent.
#[derive(ToSchema)]
pub(crate) struct Job {
    /// UUIDv7, or derived from an idempotency key and then not time-ordered.
    id: String,
    /// The tenant that owns the job.
    tenant: String,
    /// What kind of work.
    topic: String,
    /// Where it stands.
    state: String,
    /// Whether it has ended.
    done: bool,
    /// Attempts begun; 0 until the first start.
    attempt: u16,
    /// How many there may be.
    max_attempts: u16,
    /// Who goes first.
    priority: String,
    /// For finding it again.
    labels: BTreeMap<String, String>,
    /// What its worker must provide.
    requires: Option<BTreeMap<String, String>>,
    /// Jobs with the same key run one at a time.
    concurrency_key: Option<String>,
    /// As it was sent.
    payload: Option<Value>,
    /// As its worker sent it.
    result: Option<Value>,
    /// The result was too large to keep.
    result_truncated: Option<bool>,
    /// Its size in bytes then.
    result_size: Option<u64>,
    /// Its beginning then.
    result_preview: Option<String>,
    /// Why the last failed attempt failed.
    error: Option<JobError>,
    /// How far it is.
    progress: Option<Progress>,
    /// Who runs it, or ran it last.
    worker: Option<String>,
    /// Until when its worker holds it.
    lease_until: Option<String>,
    /// When it was accepted.
    created_at: String,
    /// When the last attempt began.
    started_at: Option<String>,
    /// When it ended.
    finished_at: Option<String>,
    /// From `started_at` to `finished_at`.
    duration_ms: Option<u64>,
    /// When the next attempt may begin.
    next_retry_at: Option<String>,
    /// Not before.
    run_at: Option<String>,
    /// Over by.
    deadline: Option<String>,
    /// How well the submit is kept.
    durability: String,
    /// The job that this one is a retry of.
    retry_of: Option<String>,
    /// The job that is its retry.
    retried_as: Option<String>,
    /// The run of a workflow that it belongs to.
    run_id: Option<String>,
}

/// Why an attempt failed.
#[derive(ToSchema)]
pub(crate) struct JobError {
    /// What to match on.
    code: Option<String>,
    /// For people; cut to 4,000 bytes.
    message: Option<String>,
    /// Any JSON.
    details: Option<Value>,
    /// Whether another attempt makes sense; true unless given.
    retryable: Option<bool>,
}

/// How far a job is.
#[derive(ToSchema)]
pub(crate) struct Progress {
    /// 0 to 100.
    percent: Option<f64>,
    /// For people.
    message: Option<String>,
    /// Any JSON.
    data: Option<Value>,
}

/// A page of jobs.
#[derive(ToSchema)]
pub(crate) struct JobPage {
    /// Newest first.
    items: Vec<Job>,
    /// Jobs on this part of the list whose records are damaged, so that nobody knows whether they match; absent if none.
    unreadable: Option<Vec<String>>,
    /// Where to go on; absent at the end.
    next_cursor: Option<String>,
}

/// A job's story.
#[derive(ToSchema)]
pub(crate) struct History {
    /// The id of the job.
    job_id: String,
    /// Every transition that is kept: the first, and the last 63.
    transitions: Vec<HistoryLine>,
    /// Each attempt.
    attempts: Vec<Attempt>,
}

/// One transition.
#[derive(ToSchema)]
pub(crate) struct HistoryLine {
    /// What happened.
    event: String,
    /// Where it led.
    state: String,
    /// When it happened.
    at: String,
    /// In which attempt.
    attempt: u16,
    /// The worker of a start, the error of a failure, the reason of a cancel.
    note: Option<String>,
}

/// One attempt.
#[derive(ToSchema)]
pub(crate) struct Attempt {
    /// The number of the attempt.
    attempt: u16,
    /// Who ran it.
    worker: String,
    /// When it began.
    started_at: String,
    /// When it ended.
    ended_at: Option<String>,
    /// The event that ended it.
    outcome: Option<String>,
    /// Why it failed.
    error: Option<JobError>,
}

/// Many jobs.
#[derive(ToSchema)]
pub(crate) struct BatchRequest {
    /// At most 1,000.
    items: Vec<BatchItem>,
}

/// One of many jobs.
#[derive(ToSchema)]
pub(crate) struct BatchItem {
    /// As for a single submit.
    #[serde(flatten)]
    job: Submit,
    /// As the header `Idempotency-Key` of a single submit; that of the batch counts for items that carry none.
    idempotency_key: Option<String>,
}

/// What became of each, in order.
#[derive(ToSchema)]
pub(crate) struct BatchAnswer {
    /// One for each item.
    items: Vec<BatchOutcome>,
}

/// What became of one.
#[derive(ToSchema)]
pub(crate) struct BatchOutcome {
    /// As for a single submit.
    status: u16,
    /// It was there before.
    replayed: Option<bool>,
    /// If it was accepted: the job as it stands now, without payload and result.
    job: Option<Job>,
    /// If it was not.
    error: Option<Problem>,
}

/// Why to cancel.
#[derive(ToSchema)]
pub(crate) struct CancelRequest {
    /// For the job's history.
    reason: Option<String>,
}

/// What the retry changes.
#[derive(ToSchema)]
pub(crate) struct RetryRequest {
    /// Another payload.
    payload: Option<Value>,
    /// Another topic.
    topic: Option<String>,
    /// Another priority.
    priority: Option<String>,
}

/// How this gateway is.
#[derive(ToSchema)]
pub(crate) struct Status {
    /// `ok`, `degraded` or `unready`.
    status: String,
    /// Of the software.
    version: String,
    /// This replica's name.
    instance: String,
}

/// RFC 9457.
#[derive(ToSchema)]
pub(crate) struct Problem {
    /// A URN of the code.
    r#type: String,
    /// The code in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What happened.
    detail: String,
    /// The path.
    instance: Option<String>,
    /// What to match on.
    code: String,
    /// As in the header `X-Request-Id`.
    request_id: Option<String>,
    /// The request's trace.
    trace_id: Option<String>,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// Each wrong field.
    errors: Option<Vec<FieldFault>>,
}

/// One wrong field.
#[derive(ToSchema)]
pub(crate) struct FieldFault {
    /// A JSON pointer; `/query/..` and `/header/..` for what is not in the body.
    pointer: String,
    /// What is wrong with it.
    detail: String,
}
