//! Settings that the cluster changes while it runs, and where each value of this gateway comes from.
//!
//! They hold for all tenants, so only a key for all tenants may touch them.

use axum::{extract::State, response::Response};
use http::{HeaderMap, StatusCode};
use muster_domain::ProblemCode;
use muster_store::{ConfigRecord, Put, SeenVersion};

use super::{
    if_match::{IfMatch, changed_meanwhile},
    json,
    topics::tagged,
};
use crate::{
    Gateway,
    auth::Caller,
    body::{Posted, SINGLE},
    config::read_values,
    json::Faults,
    problem::Problem,
    query::Params,
    schema, view,
};

/// Read what the cluster was told at run time. The `ETag` is its version.
#[utoipa::path(
    get, path = "/api/v1/config", tag = "operations",
    responses((status = 200, description = "Settings by name", body = schema::Config))
)]
pub(super) async fn get(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    for_all_tenants(&caller)?;
    Ok(shown(&gateway.flow.store.read_config().await?))
}

/// Replace what the cluster is told at run time: settings by name. What is not given falls back to
/// what each replica was started with. Every replica obeys without a restart.
#[utoipa::path(
    put, path = "/api/v1/config", tag = "operations",
    params(("If-Match" = Option<String>, Header, description = "The `ETag` that was read: another one is refused")),
    request_body(content = std::collections::BTreeMap<String, String>, description = "Settings by name"),
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
    // Names only: a value may be somebody's secret.
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

/// Read every setting of this gateway: its value, secrets masked, and where it comes from.
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
    let body = view::document(|json| {
        json.text("service", crate::SERVICE);
        json.text("instance", &gateway.instance);
        json.integer("version", gateway.flow.settings.config().version);
        json.list("items", |json| {
            for shown in gateway.config.now().shown() {
                json.object(None, |json| {
                    json.text("name", shown.key);
                    json.text("variable", shown.env);
                    if let Some(value) = &shown.value {
                        json.text("value", value);
                    }
                    json.text("source", shown.origin.as_str());
                    json.boolean("live", shown.live);
                });
            }
        });
    });
    Ok(json(StatusCode::OK, body))
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
