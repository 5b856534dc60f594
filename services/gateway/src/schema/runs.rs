//! The shapes of lists of runs, of operations on runs, and of what is told about a run.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

use super::run::{Run, RunError};

/// A page of runs.
#[derive(ToSchema)]
pub(crate) struct RunPage {
    /// The runs, newest first, without their steps.
    items: Vec<Run>,
    /// Ids of runs on this part of the list that are damaged, so that they cannot be compared with the filter; absent if
    /// there are none.
    unreadable: Option<Vec<String>>,
    /// The cursor of the next page; absent at the end.
    next_cursor: Option<String>,
}

/// How a run is cancelled.
#[derive(ToSchema)]
pub(crate) struct RunCancelRequest {
    /// Whether its compensations run; true unless given.
    compensate: Option<bool>,
    /// For people, at most 1,000 bytes.
    reason: Option<String>,
}

/// The body of a signal: any JSON, at most 256 KiB. No body is `null`.
#[derive(ToSchema)]
pub(crate) struct RunSignal(Value);

/// The result of a step that is ended by hand.
#[derive(ToSchema)]
pub(crate) struct StepCompleteRequest {
    /// Any JSON, at most 256 KiB; `null` unless given.
    output: Option<Value>,
    /// For people, at most 1,000 bytes.
    reason: Option<String>,
}

/// What runs again. Give either `from` or `failed_items`. The results of every step that ended well, is neither `from` nor
/// behind it, and was not undone are taken over.
#[derive(ToSchema)]
pub(crate) struct RerunRequest {
    /// This step and every step behind it.
    from: Option<String>,
    /// The items of this `for_each` that did not succeed, and every step behind it.
    failed_items: Option<String>,
    /// The input of the new run, at most 512 KiB; that of the old run unless given.
    input: Option<Value>,
    /// The version of the workflow; that of the old run unless given.
    version: Option<u32>,
    /// Store nothing, and say what would run again.
    dry_run: Option<bool>,
}

/// What a rerun would do.
#[derive(ToSchema)]
pub(crate) struct RerunOutlook {
    /// Always true.
    dry_run: bool,
    /// The name of the workflow.
    workflow: String,
    /// The version of the workflow.
    version: u32,
    /// The outermost steps that would run again, or for the first time.
    again: Vec<String>,
    /// The outermost steps whose results would be taken over.
    taken: Vec<String>,
    /// How many items would run again, with `failed_items`.
    items: Option<u64>,
}

/// What happened in a run.
#[derive(ToSchema)]
pub(crate) struct RunTimeline {
    /// The entries, oldest first: the first 1,000 and the last 1,000.
    items: Vec<RunEntry>,
    /// How many entries are missing between them.
    dropped: u64,
}

/// One entry of the timeline of a run.
#[derive(ToSchema)]
pub(crate) struct RunEntry {
    /// When it happened.
    at: String,
    /// The step with the numbers of its item and iteration; absent for the run.
    step: Option<String>,
    /// The new state of the run or of the step, or what happened.
    what: String,
    /// Why.
    why: Option<String>,
}

/// Why a run stands where it stands.
#[derive(ToSchema)]
pub(crate) struct RunExplanation {
    /// The id of the run.
    run_id: String,
    /// The state of the run.
    state: String,
    /// Whether the run has ended.
    done: bool,
    /// When this was true.
    as_of: String,
    /// The first of the sentences.
    summary: String,
    /// The run as a whole, for people.
    sentences: Vec<String>,
    /// What the run waits for, at most 100 things.
    waits_for: Vec<RunWait>,
    /// When the workflow service looks at the run at the latest.
    next_look: Option<String>,
}

/// One thing that a run waits for.
#[derive(ToSchema)]
pub(crate) struct RunWait {
    /// The step; absent for the run.
    step: Option<String>,
    /// `start`, `resume`, `command`, `job`, `run`, `signal`, `approval` or `time`.
    r#for: String,
    /// The time.
    until: Option<String>,
    /// The job.
    job_id: Option<String>,
    /// The run that the step started.
    run_id: Option<String>,
    /// The same for people.
    sentence: String,
}

/// A part of the items of a step.
#[derive(ToSchema)]
pub(crate) struct RunItemPage {
    /// How many items the step has; 0 before it begins.
    total: u64,
    /// The items, in order.
    items: Vec<RunItem>,
    /// The index of the next item; absent at the end.
    next_from: Option<u64>,
}

/// One item of a step with `for_each`.
#[derive(ToSchema)]
pub(crate) struct RunItem {
    /// Its number; 0 is the first.
    index: u64,
    /// The state of the item.
    state: String,
    /// Why it failed.
    error: Option<RunError>,
    /// The job that it submitted.
    job_id: Option<String>,
    /// The run that it started.
    run_id: Option<String>,
    /// What `collect` kept of it. Needs the scope `payloads`.
    value: Option<Value>,
}

/// An action on many runs.
#[derive(ToSchema)]
pub(crate) struct RunBulkRequest {
    /// `cancel` (with compensations), `pause` or `rerun` (from the step that failed).
    action: String,
    /// Which runs are handled.
    filter: RunBulkFilter,
    /// If true, the runs are only counted.
    dry_run: Option<bool>,
    /// How many runs are handled per second, 1 to 5,000; 100 by default.
    rate_per_s: Option<u32>,
    /// Handle only this many runs; then the operation ends as `canary`.
    canary: Option<u64>,
}

/// Which runs an operation handles: those that match every field that is given.
#[derive(ToSchema)]
pub(crate) struct RunBulkFilter {
    /// One of these states, which must fit the action. By default a cancel handles runs that have not ended, a pause
    /// those that are running, and a rerun those that failed or timed out.
    state: Option<Vec<String>>,
    /// The workflow.
    workflow: Option<String>,
    /// The version of the workflow.
    version: Option<u32>,
    /// All of these labels.
    labels: Option<BTreeMap<String, String>>,
    /// The error code.
    error_code: Option<String>,
    /// The run with the step that started the run.
    parent_run_id: Option<String>,
    /// Created at or after this time (RFC 3339).
    created_after: Option<String>,
    /// Created before this time (RFC 3339).
    created_before: Option<String>,
    /// Ended at or after this time (RFC 3339).
    finished_after: Option<String>,
    /// Ended before this time (RFC 3339).
    finished_before: Option<String>,
}
