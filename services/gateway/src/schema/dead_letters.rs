//! Dead letters and bulk operations.

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// A page of dead letters.
#[derive(ToSchema)]
pub(crate) struct DeadLetterPage {
    /// Newest first.
    items: Vec<DeadLetter>,
    /// Jobs on this part of the list whose records are damaged; absent if none.
    unreadable: Option<Vec<String>>,
    /// Where to go on; absent at the end.
    next_cursor: Option<String>,
}

/// A job that ended badly, with all the fields of a job; or a message that could not be read.
#[derive(ToSchema)]
pub(crate) struct DeadLetter {
    /// `job` or `message`.
    kind: String,
    /// Of the job or message.
    id: String,
    /// Why it is here, in words.
    reason: String,
    /// A job's state.
    state: Option<String>,
    /// A job's topic.
    topic: Option<String>,
    /// Why a job's last failed attempt failed.
    error: Option<super::JobError>,
    /// Where a message was sent.
    subject: Option<String>,
    /// A message's bytes.
    size: Option<u64>,
    /// When a message was found.
    found_at: Option<String>,
}

/// Dead letters, counted. The most frequent come first.
#[derive(ToSchema)]
pub(crate) struct DeadLetterSummary {
    /// How many jobs were counted: those of the most recent 2,000 that pass the filter.
    counted: u64,
    /// There are dead letters beyond those.
    more: bool,
    /// By cause: at most 500.
    by_cause: Vec<CauseCount>,
    /// By topic.
    by_topic: Vec<TopicCount>,
    /// By error code.
    by_error_code: Vec<CodeCount>,
    /// By state.
    by_state: Vec<StateCount>,
    /// Messages that could not be read; for keys of all tenants only.
    messages: Option<u64>,
}

/// How many for one reason.
#[derive(ToSchema)]
pub(crate) struct CauseCount {
    /// `job`, or `message`: one that could not be read; these for keys of all tenants only.
    kind: String,
    /// A job's error code, or its state if it has none; `undecodable` for messages.
    cause: String,
    /// How the jobs ended.
    state: Option<String>,
    /// Where the messages were sent.
    subject: Option<String>,
    /// What is wrong with the messages.
    reason: Option<String>,
    /// How many.
    count: u64,
    /// When the last of them ended, or was found.
    last_seen: String,
}

/// How many of a topic.
#[derive(ToSchema)]
pub(crate) struct TopicCount {
    /// The topic.
    topic: String,
    /// How many.
    count: u64,
}

/// How many with an error code.
#[derive(ToSchema)]
pub(crate) struct CodeCount {
    /// The code.
    error_code: String,
    /// How many.
    count: u64,
}

/// How many in a state.
#[derive(ToSchema)]
pub(crate) struct StateCount {
    /// The state.
    state: String,
    /// How many.
    count: u64,
}

/// What to do to which jobs.
#[derive(ToSchema)]
pub(crate) struct BulkRequest {
    /// `retry`, `cancel` or `delete`.
    action: String,
    /// Which jobs.
    filter: BulkFilter,
    /// Only count.
    dry_run: Option<bool>,
    /// Jobs a second, 1 to 5,000; 100 unless given.
    rate_per_s: Option<u32>,
    /// Only the first so many; then the operation ends as `canary`.
    canary: Option<u64>,
}

/// Which jobs: those that pass all of it.
#[derive(ToSchema)]
pub(crate) struct BulkFilter {
    /// One of these states. A retry is for bad ends unless given, a cancel for what has not ended; a delete needs it.
    state: Option<Vec<String>>,
    /// This topic.
    topic: Option<String>,
    /// All of these labels.
    labels: Option<BTreeMap<String, String>>,
    /// This error code.
    error_code: Option<String>,
    /// Last run by this worker.
    worker: Option<String>,
    /// Of this run of a workflow.
    run_id: Option<String>,
    /// At or after, RFC 3339.
    created_after: Option<String>,
    /// Before, RFC 3339.
    created_before: Option<String>,
    /// At or after, RFC 3339.
    finished_after: Option<String>,
    /// Before, RFC 3339.
    finished_before: Option<String>,
}

/// What a dry run found.
#[derive(ToSchema)]
pub(crate) struct DryRun {
    /// True.
    dry_run: bool,
    /// As asked.
    action: String,
    /// Jobs that pass the filter.
    matched: u64,
    /// Of those, how many have a retry already.
    skipped: u64,
    /// There are more records than were looked at.
    more: bool,
}

/// A page of operations.
#[derive(ToSchema)]
pub(crate) struct OperationPage {
    /// Newest first.
    items: Vec<Operation>,
    /// Where to go on; absent at the end.
    next_cursor: Option<String>,
}

/// A bulk operation.
#[derive(ToSchema)]
pub(crate) struct Operation {
    /// For reading and cancelling it.
    id: String,
    /// Whose jobs.
    tenant: String,
    /// `retry`, `cancel` or `delete`.
    action: String,
    /// As asked.
    filter: BulkFilter,
    /// `running`, `done`, `canary`, `cancelled` or `failed`.
    status: String,
    /// Whether it has ended.
    done: bool,
    /// How many jobs fared how.
    counts: OperationCounts,
    /// As asked.
    rate_per_s: u32,
    /// As asked.
    canary: Option<u64>,
    /// The gateway that carries it out, or did last.
    carried_by: Option<String>,
    /// What went wrong last.
    last_error: Option<String>,
    /// When it was asked for. Later jobs are not touched.
    created_at: String,
    /// When it ended.
    finished_at: Option<String>,
}

/// How many jobs fared how.
#[derive(ToSchema)]
pub(crate) struct OperationCounts {
    /// Passed the filter so far.
    matched: u64,
    /// Were dealt with.
    done: u64,
    /// Had a retry already, or moved on before their turn came.
    skipped: u64,
    /// Could not be dealt with; `last_error` has the last one's reason.
    failed: u64,
}
