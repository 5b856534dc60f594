//! Workflows as they are stored: the list, one workflow, its versions, its graph.
//!
//! Promises: a workflow of another tenant, or with topics that the caller's key does not cover, is answered like one that
//! does not exist. The versions of a deleted workflow can still be read, because runs may go on with them.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Path, State},
    response::Response,
};
use http::{StatusCode, request::Parts};
use muster_domain::{ProblemCode, WorkflowName};
use muster_engine::definition::{GraphFormat, graph as draw};
use muster_runs::Workflow;
use muster_store::StoreError;

use super::super::{
    Named,
    drawing::{drawing, read_format},
    json,
    topics::tagged,
};
use crate::{
    auth::Caller,
    json::Faults,
    limits::{PAGE, VERSION},
    problem::Problem,
    query::Params,
    runs::covers,
    schema,
    state::Gateway,
    view,
};

const USUAL_PAGE: u64 = 50;
/// The beginning of a cursor of this list.
const CURSOR: &str = "w.";

/// List workflows by their names. A page may be short, even empty: only a missing `next_cursor` ends the list.
#[utoipa::path(
    get, path = "/api/v1/workflows", tag = "workflows",
    params(
        ("limit" = Option<u64>, Query, description = "1 to 500; 50 unless given"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = schema::WorkflowPage),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let limit = params.integer("limit", &mut faults, PAGE).unwrap_or(USUAL_PAGE);
    let after = params.read("cursor", &mut faults, read_cursor).flatten();
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let _turn = gateway.listings.turn().await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (names, next) = gateway.flow.store.list_definitions(&caller.tenant, after.as_ref(), limit).await?;
    let (mut items, mut unreadable) = (Vec::with_capacity(names.len()), Vec::new());
    for (name, version) in names {
        match gateway.runs.workflow(&caller.tenant, &name, Some(version)).await {
            // Another version of this program may have stored it.
            Err(StoreError::Decode(fault)) => {
                tracing::error!(event = "definition_unreadable", workflow = %name, version, fault, "a definition cannot be read");
                unreadable.push(name);
            }
            found => {
                let theirs = found?.filter(|workflow| covers(&caller, &workflow.definition));
                items.extend(theirs.map(|workflow| (name, workflow)));
            }
        }
    }
    let body = view::document(|json| {
        json.list("items", |json| {
            for (name, workflow) in &items {
                json.object(None, |json| {
                    json.text("name", name.as_str());
                    json.integer("version", workflow.version.into());
                    if !workflow.definition.description.is_empty() {
                        json.text("description", &workflow.definition.description);
                    }
                    json.moment("updated_at", workflow.stored_at.some());
                    json.integer("steps", workflow.definition.step_count() as u64);
                });
            }
        });
        // The topics of these workflows are unknown, so only a caller who may see every topic learns about them.
        if !unreadable.is_empty() && caller.covers_all() {
            json.list("unreadable", |json| unreadable.iter().for_each(|name| json.item(name.as_str())));
        }
        if let Some(next) = &next {
            json.text("next_cursor", &format!("{CURSOR}{next}"));
        }
    });
    Ok(json(StatusCode::OK, body))
}

fn read_cursor(given: &str) -> Result<Option<WorkflowName>, &'static str> {
    if given.is_empty() {
        return Ok(None);
    }
    let name = given.strip_prefix(CURSOR).and_then(|name| WorkflowName::parse(name).ok());
    name.map(Some).ok_or("is not a cursor of this list")
}

/// Read the latest version of a workflow. The `ETag` is its number.
#[utoipa::path(
    get, path = "/api/v1/workflows/{name}", tag = "workflows",
    params(("name" = String, Path, description = "The workflow")),
    responses(
        (status = 200, description = "The workflow", body = schema::Workflow),
        (status = 404, description = "No such workflow, or not yours", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let name = named(&name)?;
    Ok(shown(StatusCode::OK, &name, &*find(&gateway, &caller, &name, None).await?))
}

/// List the versions of a workflow, newest first, also if it is deleted.
#[utoipa::path(
    get, path = "/api/v1/workflows/{name}/versions", tag = "workflows",
    params(("name" = String, Path, description = "The workflow")),
    responses(
        (status = 200, description = "Its versions", body = schema::WorkflowVersionList),
        (status = 404, description = "No such workflow, or not yours", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn versions(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let name = named(&name)?;
    let versions = gateway.flow.store.definition_versions(&caller.tenant, &name).await?;
    let latest = versions.first().ok_or_else(|| no_workflow(&name))?;
    find(&gateway, &caller, &name, Some(latest.version)).await?;
    let body = view::document(|json| {
        json.list("items", |json| {
            for version in &versions {
                json.object(None, |json| {
                    json.integer("version", version.version.into());
                    json.moment("created_at", version.stored_at.some());
                });
            }
        });
    });
    Ok(json(StatusCode::OK, body))
}

/// Read a version of a workflow, also if it is deleted.
#[utoipa::path(
    get, path = "/api/v1/workflows/{name}/versions/{version}", tag = "workflows",
    params(
        ("name" = String, Path, description = "The workflow"),
        ("version" = u32, Path, description = "The number of the version"),
    ),
    responses(
        (status = 200, description = "The version", body = schema::Workflow),
        (status = 404, description = "No such version, or not yours", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn version(
    State(gateway): State<Gateway>,
    caller: Caller,
    VersionPath(name, version): VersionPath,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    Ok(shown(StatusCode::OK, &name, &*find(&gateway, &caller, &name, Some(version)).await?))
}

/// Draw a workflow: its steps, and the lines between them.
#[utoipa::path(
    get, path = "/api/v1/workflows/{name}/graph", tag = "workflows",
    params(
        ("name" = String, Path, description = "The workflow"),
        ("format" = Option<String>, Query, description = "`svg` (the default) or `mermaid`"),
        ("version" = Option<u32>, Query, description = "Draw this version; the latest unless given"),
    ),
    responses(
        (status = 200, description = "The graph", content((String = "image/svg+xml"), (String = "text/vnd.mermaid"))),
        (status = 404, description = "No such workflow, or not yours", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn graph(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let format = params.read("format", &mut faults, read_format).unwrap_or(GraphFormat::Svg);
    let version = params.integer("version", &mut faults, VERSION).and_then(|n| u32::try_from(n).ok());
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let workflow = find(&gateway, &caller, &named(&name)?, version).await?;
    Ok(drawing(format, draw(&workflow.definition, None, format)))
}

/// The name of a workflow in a path, and the number of a version behind it.
pub(in crate::routes) struct VersionPath(WorkflowName, u32);

impl FromRequestParts<Gateway> for VersionPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<VersionPath, Problem> {
        let none = || Problem::new(ProblemCode::NotFound, "there is no such version");
        let path = Path::<(String, String)>::from_request_parts(parts, gateway).await;
        let (name, version) = path.map_err(|_| none())?.0;
        Ok(VersionPath(named(&name)?, version.parse().map_err(|_| none())?))
    }
}

/// The name of a workflow in a path. An invalid name is answered as not found.
pub(in crate::routes) fn named(name: &str) -> Result<WorkflowName, Problem> {
    let none = |why| Problem::new(ProblemCode::NotFound, format!("there is no such workflow: {why}"));
    WorkflowName::parse(name).map_err(none)
}

/// The workflow does not exist, or is not the caller's: the answer does not distinguish the two.
pub(in crate::routes) fn no_workflow(name: &WorkflowName) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is no workflow {name}"))
}

/// Reads a version of a workflow of the caller's tenant, also of a deleted one; without a number the latest, unless the
/// workflow is deleted.
pub(in crate::routes) async fn stored(
    gateway: &Gateway,
    caller: &Caller,
    name: &WorkflowName,
    version: Option<u32>,
) -> Result<Option<Arc<Workflow>>, Problem> {
    Ok(gateway.runs.workflow(&caller.tenant, name, version).await?)
}

/// As [`stored`], if the caller may see it.
pub(in crate::routes) async fn find(
    gateway: &Gateway,
    caller: &Caller,
    name: &WorkflowName,
    version: Option<u32>,
) -> Result<Arc<Workflow>, Problem> {
    let found = stored(gateway, caller, name, version).await?;
    found.filter(|workflow| covers(caller, &workflow.definition)).ok_or_else(|| match version {
        None => no_workflow(name),
        Some(version) => {
            Problem::new(ProblemCode::NotFound, format!("there is no version {version} of workflow {name}"))
        }
    })
}

/// A version of a workflow as an answer.
pub(in crate::routes) fn shown(status: StatusCode, name: &WorkflowName, workflow: &Workflow) -> Response {
    let body = view::document(|json| {
        json.text("name", name.as_str());
        json.integer("version", workflow.version.into());
        json.moment("created_at", workflow.stored_at.some());
        json.raw("definition", workflow.definition.canonical().as_bytes());
    });
    tagged(json(status, body), workflow.version.into())
}
