//! The shapes of workflows.

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
