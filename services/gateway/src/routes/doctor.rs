//! Reports whether the stores are configured so that Muster can keep its promises.

use axum::{extract::State, response::Response};
use http::StatusCode;

use super::json;
use crate::{
    auth::Caller,
    doctor::{self, Finding},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view::{self, Json},
};

/// Check Redis and NATS, node by node.
/// Finds settings with which jobs may be lost, versions that are too old, and what is missing, each with its remedy.
/// For keys for all tenants.
#[utoipa::path(
    get, path = "/api/v1/doctor", tag = "operations",
    responses((status = 200, description = "What was found, the worst first", body = schema::Diagnosis))
)]
pub(super) async fn examine(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let findings = doctor::examine(&gateway.flow).await;
    let body = view::document(|json| {
        json.text("level", doctor::worst(&findings).as_str());
        json.text("instance", &gateway.instance);
        json.list("items", |json| findings.iter().for_each(|it| json.object(None, |json| write(json, it))));
    });
    Ok(json(StatusCode::OK, body))
}

fn write(json: &mut Json, finding: &Finding) {
    json.text("level", finding.level.as_str());
    json.text("check", finding.check);
    json.text("place", &finding.place);
    json.text("found", &finding.found);
    if let Some(mend) = finding.mend {
        json.text("mend", mend);
    }
}
