//! The shape of a run.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

/// A run of a workflow. Fields that do not apply are absent.
#[derive(ToSchema)]
pub(crate) struct Run {
    /// UUIDv7, or derived from an idempotency key and then not time-ordered.
    id: String,
    /// The tenant that owns the run.
    tenant: String,
    /// The name of the workflow.
    workflow: String,
    /// The version of the workflow that the run began with, and ends with.
    version: u32,
    /// The state of the run.
    state: String,
    /// Whether the run has ended.
    done: bool,
    /// Labels for finding the run again.
    labels: BTreeMap<String, String>,
    /// The id of the key that started the run, and whose rights the run has.
    principal: String,
    /// When the run was accepted.
    created_at: String,
    /// When its first step began.
    started_at: Option<String>,
    /// When the run ended.
    ended_at: Option<String>,
    /// The time from `started_at` to `ended_at`.
    duration_ms: Option<u64>,
    /// The input as it was given. Needs the scope `payloads`.
    input: Option<Value>,
    /// The output of a run that succeeded. Needs the scope `payloads`.
    output: Option<Value>,
    /// Why the run failed.
    error: Option<RunError>,
    /// The run that this one is a rerun of.
    rerun_of: Option<String>,
    /// The run with the step that started this one.
    parent_run_id: Option<String>,
    /// How many runs are above this one.
    depth: Option<u32>,
    /// What became of its compensations.
    compensation: RunCompensation,
    /// Its steps, those inside of other steps behind them. Lists and answers to operations have none.
    steps: Option<Vec<RunStep>>,
}

/// Why a run or a step failed.
#[derive(ToSchema)]
pub(crate) struct RunError {
    /// The error code, for programs.
    code: String,
    /// A message for people.
    message: String,
    /// The step that failed first.
    step: Option<String>,
}

/// What became of the compensations of a run.
#[derive(ToSchema)]
pub(crate) struct RunCompensation {
    /// Their state together.
    state: String,
    /// How many failed for good.
    failed: u64,
}

/// A step of a run.
#[derive(ToSchema)]
pub(crate) struct RunStep {
    /// The step with its iteration and branch, unique in the run.
    place: String,
    /// The id of the step in the definition.
    id: String,
    /// The kind of the step.
    kind: String,
    /// The state of the step.
    state: String,
    /// When it started.
    started_at: Option<String>,
    /// When it ended.
    ended_at: Option<String>,
    /// The time from `started_at` to `ended_at`.
    duration_ms: Option<u64>,
    /// How many attempts there were.
    attempts: Option<u32>,
    /// Why it failed.
    error: Option<RunError>,
    /// Why it was skipped.
    reason: Option<String>,
    /// The job that it submitted.
    job_id: Option<String>,
    /// The run that it started.
    run_id: Option<String>,
    /// The numbers of its items, for a step with `for_each`.
    items: Option<RunItems>,
    /// The iteration, for a loop.
    iteration: Option<u64>,
    /// The branch that was taken, for a switch.
    branch: Option<u64>,
    /// What became of its compensation.
    compensation: Option<String>,
    /// True if its result was too large to keep.
    truncated: Option<bool>,
    /// Its result. Needs the scope `payloads`.
    result: Option<Value>,
}

/// The numbers of the items of a step.
#[derive(ToSchema)]
pub(crate) struct RunItems {
    /// How many items there are.
    total: u64,
    /// How many were started.
    issued: u64,
    /// How many succeeded.
    succeeded: u64,
    /// How many failed.
    failed: u64,
    /// How many run.
    running: u64,
}
