//! The routes: one file per resource, merged here.
//!
//! Promises: the OpenAPI document and the list of `endpoints` contain exactly the routes defined here. Leaves to
//! others: what applies to every request (`front`).

#[cfg(test)]
mod agreement;
mod audit;
mod batch;
mod bulk;
mod config;
pub(crate) mod control;
mod dead_letters;
mod doctor;
mod drain;
mod drawing;
mod events;
mod explain;
mod fleet;
mod if_match;
mod jobs;
mod keys;
mod lists;
mod operations;
mod pages;
pub(crate) mod retry;
mod run;
mod run_start;
mod runs;
mod topics;
mod workers;
mod workflows;

use axum::{Router, extract::FromRequestParts, middleware};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header, request::Parts};
use muster_domain::{JobId, ProblemCode, RunId, TraceParent};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{auth::Caller, front, problem::Problem, schema, state::Gateway, submit::read_key};

/// All routes with their OpenAPI document.
fn documented() -> OpenApiRouter<Gateway> {
    OpenApiRouter::with_openapi(schema::Api::openapi())
        .routes(routes!(jobs::submit, lists::list))
        .routes(routes!(batch::submit))
        .routes(routes!(jobs::get, control::delete))
        .routes(routes!(jobs::history))
        .routes(routes!(explain::explain))
        .routes(routes!(control::cancel))
        .routes(routes!(retry::retry))
        .routes(routes!(bulk::ask))
        .routes(routes!(bulk::list))
        .routes(routes!(bulk::get))
        .routes(routes!(bulk::cancel))
        .routes(routes!(events::watch))
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::summary))
        .routes(routes!(dead_letters::delete_message))
        .routes(routes!(topics::list))
        .routes(routes!(topics::get, topics::put))
        .routes(routes!(topics::pause))
        .routes(routes!(topics::resume))
        .routes(routes!(workflows::validate))
        .routes(routes!(workflows::format))
        .routes(routes!(workflows::views::list))
        .routes(routes!(workflows::views::get, workflows::put, workflows::delete))
        .routes(routes!(workflows::views::versions))
        .routes(routes!(workflows::views::version))
        .routes(routes!(workflows::views::graph))
        .routes(routes!(run_start::start))
        .routes(routes!(run::get))
        .routes(routes!(runs::list))
        .routes(routes!(runs::bulk::ask))
        .routes(routes!(runs::operations::cancel))
        .routes(routes!(runs::operations::pause))
        .routes(routes!(runs::operations::resume))
        .routes(routes!(runs::operations::compensate))
        .routes(routes!(runs::operations::signal))
        .routes(routes!(runs::operations::complete))
        .routes(routes!(runs::operations::skip))
        .routes(routes!(runs::rerun::rerun))
        .routes(routes!(runs::views::timeline))
        .routes(routes!(runs::views::explain))
        .routes(routes!(runs::views::graph))
        .routes(routes!(runs::views::items))
        .routes(routes!(fleet::workers))
        .routes(routes!(drain::drain))
        .routes(routes!(fleet::replicas))
        .routes(routes!(fleet::loops))
        .routes(routes!(fleet::locks))
        .routes(routes!(doctor::examine))
        .routes(routes!(config::get, config::put))
        .routes(routes!(config::effective))
        .routes(routes!(audit::list))
        .routes(routes!(audit::verify))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::delete))
        .routes(routes!(keys::rotate))
        .routes(routes!(operations::whoami))
        .routes(routes!(operations::status))
        .routes(routes!(workers::lease))
        .routes(routes!(workers::extend))
        .routes(routes!(workers::complete))
        .routes(routes!(workers::fail))
        .routes(routes!(workers::release))
        .routes(routes!(pages::landing))
        .routes(routes!(pages::livez))
        .routes(routes!(pages::readyz))
        .routes(routes!(pages::openapi))
        .routes(routes!(pages::docs))
        .routes(routes!(pages::asset))
}

/// The OpenAPI document that `/openapi.json` serves.
pub(crate) fn document(public_url: Option<&str>) -> Bytes {
    let mut openapi = documented().into_openapi();
    if let Some(url) = public_url {
        openapi.servers = Some(vec![utoipa::openapi::Server::new(url.trim_end_matches('/'))]);
    }
    let mut document = serde_json::to_value(openapi).unwrap_or_default();
    schema::refusals::declare(&mut document);
    schema::bounds::add(&mut document);
    document.to_string().into()
}

/// The router of the public port.
pub(crate) fn app(gateway: Gateway) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .fallback(front::nowhere)
        .method_not_allowed_fallback(front::wrong_method)
        .layer(middleware::from_fn_with_state(gateway.clone(), front::door))
        .with_state(gateway)
}

/// A response with an already encoded JSON body.
pub(crate) fn json(status: StatusCode, body: Bytes) -> axum::response::Response {
    let mut response = axum::response::Response::new(axum::body::Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The one variable part of a path. A part that cannot be decoded is answered as not found.
pub(crate) struct Named(pub(crate) String);

impl FromRequestParts<Gateway> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Named, Problem> {
        let none = |_| Problem::new(ProblemCode::NotFound, "there is no such thing");
        axum::extract::Path::from_request_parts(parts, gateway).await.map(|path| Named(path.0)).map_err(none)
    }
}

/// The job id in a path. A part that is not an id is answered as not found.
pub(crate) struct Id(pub(crate) JobId);

impl FromRequestParts<Gateway> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Id, Problem> {
        let Named(text) = Named::from_request_parts(parts, gateway).await?;
        text.parse().map(Id).map_err(|_| Problem::new(ProblemCode::NotFound, "there is no such job"))
    }
}

/// The id of a run in a path. A part that is not an id is answered as not found.
pub(crate) struct RunPath(pub(crate) RunId);

impl FromRequestParts<Gateway> for RunPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<RunPath, Problem> {
        let Named(text) = Named::from_request_parts(parts, gateway).await?;
        text.parse().map(RunPath).map_err(|_| Problem::new(ProblemCode::NotFound, "there is no such run"))
    }
}

/// The sender of a submit: the caller, its idempotency key and its trace.
pub(crate) struct Submitter {
    pub(crate) caller: Caller,
    pub(crate) key: Option<String>,
    pub(crate) trace: Option<TraceParent>,
}

impl FromRequestParts<Gateway> for Submitter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Submitter, Problem> {
        let caller = Caller::from_request_parts(parts, gateway).await?;
        let wrong = |why: &str| Problem::field(ProblemCode::InvalidRequest, "/header/Idempotency-Key", why);
        let key = match parts.headers.get("idempotency-key") {
            None => None,
            Some(value) => {
                let text = value.to_str().map_err(|_| wrong("must be visible ASCII"))?;
                Some(read_key(text).map_err(wrong)?.to_owned())
            }
        };
        let trace = parts.extensions.get::<front::Traced>().map(|traced| traced.0);
        Ok(Submitter { caller, key, trace })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_domain::Durability;

    use super::*;
    use crate::endpoints::HTTP;

    #[test]
    fn routes_document_and_endpoints_are_the_same() {
        let document: serde_json::Value = serde_json::from_slice(&document(None)).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let mut documented = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                documented.insert((method.to_uppercase(), path.clone()));
            }
        }
        let table: BTreeSet<_> = HTTP.iter().map(|(m, p, _)| (m.to_string(), (*p).to_owned())).collect();
        assert_eq!(documented, table);
    }

    #[test]
    fn what_a_submit_may_say_is_described() {
        let document: serde_json::Value = serde_json::from_slice(&document(None)).unwrap();
        let schemas = &document["components"]["schemas"];
        let levels = schemas["Submit"]["properties"]["durability"]["description"].as_str().unwrap();
        assert!(Durability::ALL.iter().all(|level| levels.contains(&format!("`{level}`"))), "{levels}");
        let (submit, item) = (&schemas["Submit"]["properties"], &schemas["BatchItem"]["properties"]);
        assert!(submit.as_object().unwrap().iter().all(|(name, field)| item[name] == *field), "{item}");
        assert!(item["idempotency_key"].is_object(), "{item}");
    }

    #[test]
    fn every_schema_that_is_named_is_there() {
        let text = String::from_utf8(document(Some("https://muster.example/")).to_vec()).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["servers"][0]["url"], "https://muster.example");
        let known = document["components"]["schemas"].as_object().unwrap();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(known.contains_key(name), "{name} is not described");
        }
    }
}
