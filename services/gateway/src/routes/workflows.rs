//! Workflows: the format of their definitions, the check of one, storing and deleting them.
//!
//! Promises: a stored definition has no fault, and its topics are covered by the key that stored it. A write that names
//! the version it has seen (`If-Match`) never replaces another version. A version never changes, and a deletion ends no
//! run. Reading what is stored is in `views`.

pub(super) mod views;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use muster_domain::{ProblemCode, Topic, WorkflowName};
use muster_store::{DeletedDefinition, PutDefinition, SeenVersion};
use sha2::{Digest, Sha256};

use super::{
    Named,
    if_match::{IfMatch, changed_meanwhile},
    json,
};
use crate::{
    auth::Caller,
    body::{DEFINITION, PostedDefinition},
    definitions::served,
    json::Faults,
    problem::Problem,
    query::Params,
    runs::topics,
    schema,
    state::Gateway,
    view,
};
use views::{named, no_workflow, shown, stored};

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

/// Store a definition under this name. One that means the same as the latest version makes no new version.
/// Runs keep the version that they started with. The key must cover every topic of the definition.
#[utoipa::path(
    put, path = "/api/v1/workflows/{name}", tag = "workflows",
    params(
        ("name" = String, Path, description = "The workflow"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that was read: another one is refused; `\"0\"` is a workflow that is not there"),
    ),
    request_body(
        description = "A definition of a workflow; `GET /api/v1/schemas/workflow` has its schema",
        content((schema::WorkflowDefinition = "application/json"), (schema::WorkflowDefinition = "application/yaml")),
    ),
    responses(
        (status = 200, description = "The version now: a new one, or the latest if it means the same", body = schema::Workflow),
        (status = 201, description = "The workflow was not there", body = schema::Workflow),
        (status = 412, description = "Somebody else wrote meanwhile", body = schema::Problem),
        (status = 422, description = "The faults, each with line and column", body = schema::Problem),
    )
)]
pub(super) async fn put(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
    headers: HeaderMap,
    given: PostedDefinition,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let name = named(&name)?;
    let asked = IfMatch::read(&headers)?;
    let (text, own) = (given.posted.bytes.clone(), Some(name.as_str().to_owned()));
    let definition = gateway.definitions.read(text, given.format, own).await?;
    served(&definition)?;
    topics(&definition).into_iter().try_for_each(|topic| caller.may_touch(topic))?;
    let before = standing(&gateway, &caller, &name).await?;
    if let Some(Standing { version, uncovered: Some(topic) }) = &before {
        let why = format!("version {version} has the topic `{topic}`, which this key lacks");
        return Err(Problem::new(ProblemCode::MissingScope, why));
    }
    let stands = before.as_ref().map_or(0, |before| before.version.into());
    let seen = asked.map_or(Ok(SeenVersion::Any), |asked| asked.against(stands))?;

    let canonical = Bytes::from(definition.canonical());
    if canonical.len() > DEFINITION {
        let why = format!("as JSON the definition has {} bytes; at most {DEFINITION}", canonical.len());
        return Err(Problem::new(ProblemCode::PayloadTooLarge, why));
    }
    let hash: [u8; 32] = Sha256::digest(&canonical).into();
    gateway.tell(gateway.act(&caller, "workflow_set").target(format!("workflow/{name}"))).await?;
    match gateway.flow.store.put_definition(&caller.tenant, &name, seen, &canonical, &hash).await? {
        PutDefinition::Mismatch(now) => Err(changed_meanwhile(now.map_or(0, u64::from))),
        PutDefinition::Stored { version, new } => {
            let (tenant, by) = (&caller.tenant, &caller.key.id);
            tracing::info!(event = "workflow_set", %tenant, workflow = %name, by, version, new, "a definition was stored");
            let workflow = stored(&gateway, &caller, &name, Some(version)).await?.ok_or_else(|| no_workflow(&name))?;
            let created = new && before.is_none();
            let mut response = shown(if created { StatusCode::CREATED } else { StatusCode::OK }, &name, &workflow);
            if created && let Ok(place) = HeaderValue::try_from(format!("/api/v1/workflows/{name}")) {
                response.headers_mut().insert(header::LOCATION, place);
            }
            Ok(response)
        }
    }
}

/// Delete a workflow. Its runs continue, and its versions can still be read; nothing starts it any more.
#[utoipa::path(
    delete, path = "/api/v1/workflows/{name}", tag = "workflows",
    params(
        ("name" = String, Path, description = "The workflow"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that was read: another one is refused"),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "No such workflow, or not yours", body = schema::Problem),
        (status = 412, description = "Somebody else wrote meanwhile", body = schema::Problem),
    )
)]
pub(super) async fn delete(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let name = named(&name)?;
    let asked = IfMatch::read(&headers)?;
    let stands = standing(&gateway, &caller, &name).await?.filter(|stands| stands.uncovered.is_none());
    let stands = stands.ok_or_else(|| no_workflow(&name))?;
    let seen = asked.map_or(Ok(SeenVersion::Any), |asked| asked.against(stands.version.into()))?;
    gateway.tell(gateway.act(&caller, "workflow_delete").target(format!("workflow/{name}"))).await?;
    match gateway.flow.store.delete_definition(&caller.tenant, &name, seen).await? {
        DeletedDefinition::Mismatch(now) => Err(changed_meanwhile(now.into())),
        DeletedDefinition::Missing => Err(no_workflow(&name)),
        DeletedDefinition::Hidden(version) => {
            let (tenant, by) = (&caller.tenant, &caller.key.id);
            tracing::info!(event = "workflow_deleted", %tenant, workflow = %name, by, version, "a workflow was deleted");
            Ok(json(StatusCode::NO_CONTENT, Bytes::new()))
        }
    }
}

/// The version of a workflow that is shown now.
struct Standing {
    version: u32,
    /// A topic that the caller's key does not cover: a key for some topics changes no workflow with others.
    uncovered: Option<Topic>,
}

/// A key for all topics may replace or delete also what this version of the program cannot read.
async fn standing(gateway: &Gateway, caller: &Caller, name: &WorkflowName) -> Result<Option<Standing>, Problem> {
    let shown = gateway.flow.store.shown_versions(&caller.tenant, std::slice::from_ref(name)).await?;
    let Some(version) = shown.into_iter().next().flatten() else { return Ok(None) };
    let mut uncovered = None;
    if !caller.covers_all()
        && let Some(workflow) = stored(gateway, caller, name, Some(version)).await?
    {
        let topics = topics(&workflow.definition);
        uncovered = topics.into_iter().find(|topic| !caller.covers(topic.as_str())).cloned();
    }
    Ok(Some(Standing { version, uncovered }))
}
