//! The root: a first page, health, the API's document and its rendering. Nothing is loaded from
//! elsewhere, so the pages work on a machine without a way out.

use axum::{
    extract::State,
    response::{Html, IntoResponse, Response},
};
use http::{StatusCode, header};

use super::json;
use crate::Gateway;

/// The first page, with links.
#[utoipa::path(get, path = "/", tag = "root", responses((status = 200, description = "A page", content_type = "text/html")))]
pub(super) async fn landing(State(gateway): State<Gateway>) -> Response {
    let page = include_str!("pages/landing.html")
        .replace("{{version}}", env!("CARGO_PKG_VERSION"))
        .replace("{{instance}}", &gateway.instance);
    page_of(page)
}

/// Whether the process lives.
#[utoipa::path(get, path = "/livez", tag = "root", responses((status = 200, description = "It lives")))]
pub(super) async fn livez() -> Response {
    json(StatusCode::OK, bytes::Bytes::from_static(br#"{"status":"alive"}"#))
}

/// Whether this gateway may be sent requests. Stays 200, with `degraded`, when a store is away. Says
/// which parts are ready; why one is not stands on the admin port, because here anybody may ask.
#[utoipa::path(
    get, path = "/readyz", tag = "root",
    responses((status = 200, description = "Ready or degraded"), (status = 503, description = "Stopping"))
)]
pub(super) async fn readyz(State(gateway): State<Gateway>) -> Response {
    let (status, mut body) = gateway.health.show();
    for part in body["parts"].as_object_mut().into_iter().flat_map(|parts| parts.values_mut()) {
        part.as_object_mut().into_iter().for_each(|part| part.retain(|name, _| name == "ready"));
    }
    json(status, body.to_string().into())
}

/// This API as OpenAPI 3.1.
#[utoipa::path(get, path = "/openapi.json", tag = "root", responses((status = 200, description = "The document")))]
pub(super) async fn openapi(State(gateway): State<Gateway>) -> Response {
    json(StatusCode::OK, gateway.openapi.clone())
}

/// This API for people.
#[utoipa::path(get, path = "/docs", tag = "root", responses((status = 200, description = "A page", content_type = "text/html")))]
pub(super) async fn docs() -> Response {
    page_of(include_str!("pages/docs.html").to_owned())
}

fn page_of(page: String) -> Response {
    // Inline style and script of our own, and the document from here: nothing else may load.
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'";
    ([(header::CONTENT_SECURITY_POLICY, POLICY), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Html(page))
        .into_response()
}
