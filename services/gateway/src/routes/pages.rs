//! The root: a landing page, health, the API's document and its rendering. The pages load nothing from other hosts,
//! so they work on a machine without internet access.

use axum::{
    extract::State,
    response::{Html, IntoResponse, Response},
};
use http::{StatusCode, header};
use muster_domain::ProblemCode;

use super::{Named, json};
use crate::{problem::Problem, state::Gateway};

/// The first page, with links.
#[utoipa::path(get, path = "/", tag = "root", responses((status = 200, description = "A page", content_type = "text/html")))]
pub(super) async fn landing(State(gateway): State<Gateway>) -> Response {
    let page = include_str!("pages/landing.html")
        .replace("{{version}}", env!("CARGO_PKG_VERSION"))
        .replace("{{instance}}", &gateway.instance);
    page_of(page)
}

/// Whether the process is alive.
#[utoipa::path(get, path = "/livez", tag = "root", responses((status = 200, description = "It lives")))]
pub(super) async fn livez() -> Response {
    json(StatusCode::OK, bytes::Bytes::from_static(br#"{"status":"alive"}"#))
}

/// Whether this gateway may be sent requests.
/// The status stays 200, with `degraded`, while a store does not answer. The answer names the parts that are ready.
/// Only the admin port gives reasons, because this port needs no key.
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

/// Script and style of the pages.
#[utoipa::path(
    get, path = "/assets/{file}", tag = "root",
    params(("file" = String, Path, description = "As a page names it")),
    responses((status = 200, description = "The file", content((String = "text/css"), (String = "text/javascript"))))
)]
pub(super) async fn asset(Named(file): Named) -> Result<Response, Problem> {
    let found = ASSETS.iter().find(|(name, _, _)| *name == file);
    let (_, kind, text) = found.ok_or_else(|| Problem::new(ProblemCode::NotFound, "there is no such file"))?;
    Ok(([(header::CONTENT_TYPE, *kind), NOSNIFF], *text).into_response())
}

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const ASSETS: [(&str, &str, &str); 4] = [
    ("landing.css", CSS, include_str!("pages/landing.css")),
    ("landing.js", SCRIPT, include_str!("pages/landing.js")),
    ("docs.css", CSS, include_str!("pages/docs.css")),
    ("docs.js", SCRIPT, include_str!("pages/docs.js")),
];
const NOSNIFF: (header::HeaderName, &str) = (header::X_CONTENT_TYPE_OPTIONS, "nosniff");

fn page_of(page: String) -> Response {
    // Only the gateway's own files and document may load or run.
    const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    ([(header::CONTENT_SECURITY_POLICY, POLICY), NOSNIFF], Html(page)).into_response()
}
