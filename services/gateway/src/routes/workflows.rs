//! Workflows: the format of their definitions, and the check of one.

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;

use super::json;
use crate::{
    auth::Caller, body::PostedDefinition, json::Faults, problem::Problem, query::Params, schema, state::Gateway, view,
};

/// Check a definition without storing it. Every fault is named with its line and its column.
#[utoipa::path(
    post, path = "/api/v1/workflows/validate", tag = "workflows",
    params(("name" = Option<String>, Query, description = "The name of the workflow, which must not start itself")),
    request_body(
        description = "A definition of a workflow; `GET /api/v1/schemas/workflow` has its schema",
        content((schema::WorkflowDefinition = "application/json"), (schema::WorkflowDefinition = "application/yaml")),
    ),
    responses(
        (status = 200, description = "The definition has no fault", body = schema::ValidWorkflow),
        (status = 422, description = "The faults, each with line and column", body = schema::Problem),
    )
)]
pub(super) async fn validate(
    State(gateway): State<Gateway>,
    caller: Caller,
    mut params: Params,
    given: PostedDefinition,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let name = params.read("name", &mut faults, |name| {
        muster_engine::definition::check_workflow_name(name).map(|()| name.to_owned())
    });
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let definition = gateway.definitions.read(given.posted.bytes.clone(), given.format, name).await?;
    let body = view::document(|json| {
        json.boolean("valid", true);
        json.integer("steps", definition.step_count() as u64);
        json.raw("definition", definition.canonical().as_bytes());
    });
    Ok(json(StatusCode::OK, body))
}

/// The JSON Schema of definitions, for editors.
#[utoipa::path(
    get, path = "/api/v1/schemas/workflow", tag = "workflows",
    responses((status = 200, description = "A JSON Schema", body = schema::WorkflowDefinition))
)]
pub(super) async fn format(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    Ok(json(StatusCode::OK, Bytes::from(muster_engine::definition::schema().to_string())))
}
