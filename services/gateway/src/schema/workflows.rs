//! The shapes of workflows, and of what starts a run.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

/// A definition of a workflow. `GET /api/v1/schemas/workflow` has the schema of all its fields.
#[derive(ToSchema)]
pub(crate) struct WorkflowDefinition(BTreeMap<String, Value>);

/// A definition without a fault.
#[derive(ToSchema)]
pub(crate) struct ValidWorkflow {
    /// Always true.
    valid: bool,
    /// How many steps the definition has, with those inside of other steps.
    steps: u64,
    /// The definition as the server reads it: JSON, every field in its longest form.
    definition: WorkflowDefinition,
}

/// A version of a workflow.
#[derive(ToSchema)]
pub(crate) struct Workflow {
    /// The name of the workflow.
    name: String,
    /// The number of the version; 1 is the first.
    version: u32,
    /// When the version was stored.
    created_at: String,
    /// The definition as the server reads it: JSON, every field in its longest form.
    definition: WorkflowDefinition,
}

/// A page of workflows.
#[derive(ToSchema)]
pub(crate) struct WorkflowPage {
    /// The workflows, in the order of their names.
    items: Vec<WorkflowSummary>,
    /// The names of workflows whose definitions this version of Muster cannot read; absent if there are none.
    unreadable: Option<Vec<String>>,
    /// The cursor of the next page; absent at the end.
    next_cursor: Option<String>,
}

/// A workflow in a list.
#[derive(ToSchema)]
pub(crate) struct WorkflowSummary {
    /// The name of the workflow.
    name: String,
    /// The number of the latest version.
    version: u32,
    /// What the definition says about itself.
    description: Option<String>,
    /// When the latest version was stored.
    updated_at: String,
    /// How many steps the latest version has, with those inside of other steps.
    steps: u64,
}

/// The versions of a workflow.
#[derive(ToSchema)]
pub(crate) struct WorkflowVersionList {
    /// The versions, newest first.
    items: Vec<WorkflowVersion>,
}

/// A version in a list.
#[derive(ToSchema)]
pub(crate) struct WorkflowVersion {
    /// The number of the version.
    version: u32,
    /// When the version was stored.
    created_at: String,
}

/// What a run starts with.
#[derive(ToSchema)]
pub(crate) struct RunRequest {
    /// Any JSON that fits the schema of the workflow, at most 512 KiB and 128 levels deep. Do not put secrets into it.
    input: Option<Value>,
    /// Labels for finding the run again, at most 32.
    labels: Option<BTreeMap<String, String>>,
    /// The version of the workflow; the latest unless given.
    version: Option<u32>,
    /// The body of the signal that the parameter `signal` names: any JSON, at most 256 KiB; `null` unless given.
    signal: Option<Value>,
}
