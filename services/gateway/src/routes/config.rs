//! Settings that the cluster can change while it runs, and the source of each value of this gateway.
//!
//! They apply to all tenants, so only a key for all tenants may use these routes.

use axum::{extract::State, response::Response};
use http::{HeaderMap, StatusCode};
use muster_domain::ProblemCode;
use muster_store::{ConfigRecord, Put, Replica, SeenVersion};

use super::{
    if_match::{IfMatch, changed_meanwhile},
    json,
    topics::tagged,
};
use crate::{
    auth::Caller,
    body::{Posted, SINGLE},
    config::read_values,
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view::{self, Json},
};

/// Read the run-time settings of the cluster. The `ETag` is their version.
#[utoipa::path(
    get, path = "/api/v1/config", tag = "operations",
    responses((status = 200, description = "Settings by name", body = schema::Config))
)]
pub(super) async fn get(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    for_all_tenants(&caller)?;
    Ok(shown(&gateway.flow.store.read_config().await?))
}

/// Replace the run-time settings of the cluster: values by name.
/// A setting that is not given falls back to the value that each replica was started with. Every replica applies the
/// change without a restart.
#[utoipa::path(
    put, path = "/api/v1/config", tag = "operations",
    params(("If-Match" = Option<String>, Header, description = "The `ETag` that was read: another one is refused")),
    request_body(content = std::collections::BTreeMap<String, schema::SettingValue>, description = "Settings by name"),
    responses(
        (status = 200, description = "As it is now", body = schema::Config),
        (status = 412, description = "Somebody else wrote meanwhile", body = schema::Problem),
        (status = 422, description = "A setting was refused", body = schema::Problem),
    )
)]
pub(super) async fn put(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
    headers: HeaderMap,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    for_all_tenants(&caller)?;
    let asked = IfMatch::read(&headers)?;
    let values = read_values(&gateway.config, &body.bytes)?;
    let seen = match asked {
        None => SeenVersion::Any,
        Some(asked) => asked.against(gateway.flow.store.read_config().await?.version)?,
    };
    // Only the names: a value may be a secret.
    let names = values.keys().cloned().collect::<Vec<_>>().join(",");
    gateway.tell(gateway.act(&caller, "config_set").target("config").with("names", names)).await?;
    match gateway.flow.put_config(seen, &values).await? {
        Put::Stored(told) => {
            let names = told.values.keys().cloned().collect::<Vec<_>>().join(",");
            tracing::info!(
                event = "config_set",
                by = caller.key.id,
                version = told.version,
                names,
                "the cluster was told something"
            );
            Ok(shown(&told))
        }
        Put::Mismatch(told) => Err(changed_meanwhile(told.version)),
    }
}

/// Read every setting of this gateway, and of every other replica of every service.
/// Each has its value, with secrets masked, and the source of the value. The settings of other replicas are up to 5 s
/// old, and absent while Redis does not answer.
#[utoipa::path(
    get, path = "/api/v1/config/effective", tag = "operations",
    responses((status = 200, description = "The settings, in the order of their names", body = schema::EffectiveConfig))
)]
pub(super) async fn effective(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    for_all_tenants(&caller)?;
    let ourselves = |it: &Replica| it.service == crate::SERVICE && it.instance == gateway.instance;
    // The gateway shows its own settings even if Redis does not answer.
    let others = gateway.flow.store.replicas().await.ok();
    let others = others.map(|all| all.into_iter().filter(|it| !ourselves(it)).collect::<Vec<_>>());
    let body = view::document(|json| {
        json.text("service", crate::SERVICE);
        json.text("instance", &gateway.instance);
        json.integer("version", gateway.flow.settings.config().version);
        json.raw("items", &listed(&gateway.config.now().told()));
        if let Some(others) = &others {
            json.list("others", |json| others.iter().for_each(|it| json.object(None, |json| write_other(json, it))));
        }
    });
    Ok(json(StatusCode::OK, body))
}

/// Another replica's settings, as it announced them.
fn write_other(json: &mut Json, replica: &Replica) {
    json.text("service", &replica.service);
    json.text("instance", &replica.instance);
    json.moment("seen_at", replica.seen_at.some());
    json.raw("items", &listed(&replica.settings));
}

fn listed(settings: &[serde_json::Value]) -> Vec<u8> {
    serde_json::to_vec(settings).unwrap_or_else(|_| b"[]".to_vec())
}

fn for_all_tenants(caller: &Caller) -> Result<(), Problem> {
    match caller.key.tenant {
        None => Ok(()),
        Some(_) => Err(Problem::new(
            ProblemCode::MissingScope,
            "this key lacks all tenants: these settings hold for every one of them",
        )),
    }
}

fn shown(told: &ConfigRecord) -> Response {
    let body = view::document(|json| {
        json.integer("version", told.version);
        json.moment("updated_at", told.updated_at.some());
        json.object(Some("settings"), |json| told.values.iter().for_each(|(name, value)| json.text(name, value)));
    });
    tagged(json(StatusCode::OK, body), told.version)
}
