//! The caller's own key, and the state of this gateway.

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_chassis::health::Readiness;

use super::json;
use crate::{auth::Caller, json::Faults, problem::Problem, query::Params, schema, state::Gateway, view};

/// Show the presented key, its tenant and its scopes.
#[utoipa::path(
    get, path = "/api/v1/whoami", tag = "operations",
    responses(
        (status = 200, description = "The key", body = schema::WhoAmI),
        (status = 401, description = "No key, or an unknown one", body = schema::Problem),
    )
)]
pub(super) async fn whoami(caller: Caller, params: Params) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let key = &caller.key;
    let body = view::document(|json| {
        json.text("key_id", &key.id);
        json.text("name", &key.name);
        json.text("tenant", caller.tenant.as_str());
        json.boolean("all_tenants", key.tenant.is_none());
        json.list("scopes", |json| key.scopes.words().into_iter().for_each(|scope| json.item(scope)));
        json.list("topics", |json| key.topics.iter().for_each(|topic| json.item(topic)));
        json.moment("expires_at", key.expires_at);
    });
    Ok(json(StatusCode::OK, body))
}

/// Show the status of this gateway. Needs no key, and shows nothing else.
#[utoipa::path(
    get, path = "/api/v1/status", tag = "operations",
    responses((status = 200, description = "Status, version, instance", body = schema::Status))
)]
pub(super) async fn status(State(gateway): State<Gateway>) -> Response {
    let word = match gateway.health.readiness() {
        Readiness::Ready => "ok",
        Readiness::Degraded => "degraded",
        Readiness::Unready => "unready",
    };
    let body = view::document(|json| {
        json.text("status", word);
        json.text("version", env!("CARGO_PKG_VERSION"));
        json.text("instance", &gateway.instance);
    });
    json(StatusCode::OK, body)
}
