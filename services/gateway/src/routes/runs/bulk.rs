//! Bulk operations on runs. The operation that the answer names is read and cancelled as that of jobs (`routes/bulk`).

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use muster_domain::ProblemCode;
use muster_runs::{ListRefused, RunFilter};
use muster_store::Action;

use super::super::{Submitter, bulk, json};
use crate::{
    body::{Posted, SINGLE},
    bulk::runs::{dry_run, read_filter},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
};

/// Cancel, pause or rerun every run that passes a filter. The answer names an operation that goes on in the background,
/// on any gateway. With `dry_run` nothing is touched and the matches are counted.
#[utoipa::path(
    post, path = "/api/v1/runs/bulk", tag = "operations",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted")),
    request_body = schema::RunBulkRequest,
    responses(
        (status = 202, description = "The operation", body = schema::Operation),
        (status = 200, description = "What a dry run found", body = schema::DryRun),
        (status = 422, description = "A field is wrong", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn ask(
    State(gateway): State<Gateway>,
    Submitter { caller, key, .. }: Submitter,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let asked = read(&body.bytes)?;
    if !asked.dry_run {
        return bulk::begin(&gateway, &caller, key, asked).await;
    }
    gateway.take_read(&caller).await?;
    let _turn = gateway.listings.turn().await?;
    let found = dry_run(&gateway, &caller, &asked.filter).await.map_err(|fault| match fault {
        ListRefused::BadCursor => Problem::new(ProblemCode::Internal, fault.to_string()),
        ListRefused::Fault(fault) => fault.into(),
    })?;
    Ok(json(StatusCode::OK, bulk::outlook(asked.action, &found)))
}

pub(in crate::routes) fn read(body: &Bytes) -> Result<bulk::Asked<RunFilter>, Problem> {
    bulk::read_with(body, ("cancel, pause, rerun", Action::parse_of_runs), read_filter)
}
