//! Dead letters and bulk operations.

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// A page of dead letters.
#[derive(ToSchema)]
pub(crate) struct DeadLetterPage {
    /// The dead letters, newest first.
    items: Vec<DeadLetter>,
    /// Ids of jobs on this part of the list whose records are damaged; absent if there are none.
    unreadable: Option<Vec<String>>,
    /// The cursor of the next page; absent at the end.
    next_cursor: Option<String>,
}

/// A job that ended badly, with all the fields of a job; or a message that could not be read.
#[derive(ToSchema)]
pub(crate) struct DeadLetter {
    /// `job` or `message`.
    kind: String,
    /// The id of the job or the message.
    id: String,
    /// Why it is a dead letter, in words.
    reason: String,
    /// The state of a job.
    state: Option<String>,
    /// The topic of a job.
    topic: Option<String>,
    /// Why the last failed attempt of a job failed.
    error: Option<super::JobError>,
    /// The subject on the bus that a message was sent to.
    subject: Option<String>,
    /// The size of a message in bytes.
    size: Option<u64>,
    /// When a message was found.
    found_at: Option<String>,
}

/// Counts of dead letters, the most frequent first.
#[derive(ToSchema)]
pub(crate) struct DeadLetterSummary {
    /// How many jobs were counted: those of the most recent 2,000 that pass the filter.
    counted: u64,
    /// Whether there are more dead letters than were counted.
    more: bool,
    /// Counts by cause, at most 500.
    by_cause: Vec<CauseCount>,
    /// Counts by topic.
    by_topic: Vec<TopicCount>,
    /// Counts by error code.
    by_error_code: Vec<CodeCount>,
    /// Counts by state.
    by_state: Vec<StateCount>,
    /// How many messages could not be read; only for keys for all tenants.
    messages: Option<u64>,
}

/// The number of dead letters with one cause.
#[derive(ToSchema)]
pub(crate) struct CauseCount {
    /// `job`, or `message` for messages that could not be read, which only keys for all tenants see.
    kind: String,
    /// The error code of the jobs, or their state if they have no error code; `undecodable` for messages.
    cause: String,
    /// The final state of the jobs.
    state: Option<String>,
    /// The subject on the bus that the messages were sent to.
    subject: Option<String>,
    /// What is wrong with the messages.
    reason: Option<String>,
    /// The number of dead letters.
    count: u64,
    /// When the last of the jobs ended, or the last message was found.
    last_seen: String,
}

/// The number of dead letters of one topic.
#[derive(ToSchema)]
pub(crate) struct TopicCount {
    /// The topic.
    topic: String,
    /// The number of dead letters.
    count: u64,
}

/// The number of dead letters with one error code.
#[derive(ToSchema)]
pub(crate) struct CodeCount {
    /// The error code.
    error_code: String,
    /// The number of dead letters.
    count: u64,
}

/// The number of dead letters in one state.
#[derive(ToSchema)]
pub(crate) struct StateCount {
    /// The state.
    state: String,
    /// The number of dead letters.
    count: u64,
}

/// An action on many jobs.
#[derive(ToSchema)]
pub(crate) struct BulkRequest {
    /// `retry`, `cancel` or `delete`.
    action: String,
    /// Which jobs are changed.
    filter: BulkFilter,
    /// If true, the jobs are only counted.
    dry_run: Option<bool>,
    /// How many jobs are handled per second, 1 to 5,000; 100 by default.
    rate_per_s: Option<u32>,
    /// Handle only this many jobs; then the operation ends as `canary`.
    canary: Option<u64>,
}

/// Which jobs an operation handles: those that match every field that is given.
#[derive(ToSchema)]
pub(crate) struct BulkFilter {
    /// One of these states, which must fit the action. By default a retry handles jobs that ended badly, and a cancel
    /// those that have not ended; a delete must name its states.
    state: Option<Vec<String>>,
    /// The topic.
    topic: Option<String>,
    /// All of these labels.
    labels: Option<BTreeMap<String, String>>,
    /// The error code.
    error_code: Option<String>,
    /// The worker that ran the job last.
    worker: Option<String>,
    /// The run of a workflow that the job belongs to.
    run_id: Option<String>,
    /// Created at or after this time (RFC 3339).
    created_after: Option<String>,
    /// Created before this time (RFC 3339).
    created_before: Option<String>,
    /// Ended at or after this time (RFC 3339).
    finished_after: Option<String>,
    /// Ended before this time (RFC 3339).
    finished_before: Option<String>,
}

/// The result of a dry run.
#[derive(ToSchema)]
pub(crate) struct DryRun {
    /// Always true.
    dry_run: bool,
    /// The action of the request.
    action: String,
    /// How many jobs match the filter.
    matched: u64,
    /// How many of the matching jobs have a retry already.
    skipped: u64,
    /// Whether there are more records than were checked.
    more: bool,
}

/// A page of bulk operations.
#[derive(ToSchema)]
pub(crate) struct OperationPage {
    /// The operations, newest first.
    items: Vec<Operation>,
    /// The cursor of the next page; absent at the end.
    next_cursor: Option<String>,
}

/// A bulk operation.
#[derive(ToSchema)]
pub(crate) struct Operation {
    /// The id of the operation.
    id: String,
    /// The tenant that owns the jobs.
    tenant: String,
    /// `retry`, `cancel` or `delete`; for runs `cancel`, `pause` or `rerun`.
    action: String,
    /// What is handled: `jobs` or `runs`.
    of: String,
    /// The filter of the request.
    filter: BulkFilter,
    /// `running`, `done`, `canary`, `cancelled` or `failed`.
    status: String,
    /// Whether the operation has ended.
    done: bool,
    /// How many jobs were handled, and how.
    counts: OperationCounts,
    /// How many jobs are handled per second.
    rate_per_s: u32,
    /// The number of jobs after which the operation ends as `canary`.
    canary: Option<u64>,
    /// The gateway that carries out the operation, or did last.
    carried_by: Option<String>,
    /// The last error.
    last_error: Option<String>,
    /// When the operation was requested. Jobs that are created later are not handled.
    created_at: String,
    /// When the operation ended.
    finished_at: Option<String>,
}

/// How many jobs an operation handled, and how.
#[derive(ToSchema)]
pub(crate) struct OperationCounts {
    /// How many jobs have matched the filter so far.
    matched: u64,
    /// How many jobs were handled.
    done: u64,
    /// How many jobs had a retry already, or had changed their state before they were handled.
    skipped: u64,
    /// How many jobs could not be handled; `last_error` has the reason of the last one.
    failed: u64,
}
