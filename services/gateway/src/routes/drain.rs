//! Tells a worker to drain.
//!
//! Promises: a worker on NATS gets the request at once, and a worker that speaks HTTP gets it with its next call to
//! any gateway; asking again is harmless. Leaves to others: the draining itself (the worker takes no more jobs,
//! finishes those that it runs, and gives the others back).

use std::time::Duration;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_bus::subjects;
use muster_domain::{ProblemCode, WorkerId};
use muster_wire::{Body, v1::Control};

use super::{Named, fleet::visible, json};
use crate::{auth::Caller, json::Faults, problem::Problem, query::Params, schema, state::Gateway, view};

/// How long the drain request of an HTTP worker is kept for its calls: as long as the longest lease.
const HOLDS: Duration = Duration::from_secs(900);

/// Ask a worker to drain: it takes no more jobs, finishes those that it runs and gives the rest back.
/// A worker on NATS gets the request at once. A worker that speaks HTTP sees `drain` in the answer to its next lease,
/// for fifteen minutes.
#[utoipa::path(
    post, path = "/api/v1/workers/{id}/drain", tag = "workers",
    params(("id" = String, Path, description = "The worker, as it calls itself")),
    responses(
        (status = 202, description = "It was told", body = schema::Drained),
        (status = 404, description = "No such worker lives, or not yours", body = schema::Problem),
    )
)]
pub(super) async fn drain(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(id): Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let snapshot = gateway.flow.store.read_workers().await?.unwrap_or_default();
    let theirs = snapshot.workers.iter().filter(|worker| worker.tenant == caller.tenant.as_str());
    let seen = theirs.filter(|worker| !visible(&caller, worker).is_empty());
    let named = seen.map(|worker| WorkerId::trusted(worker.id.as_str())).filter(|worker| worker.own_name() == id);
    let named: Vec<WorkerId> = named.collect();
    if named.is_empty() {
        let why = format!("no worker {id:?} has been heard of in the last 30 s");
        return Err(Problem::new(ProblemCode::NotFound, why));
    }
    gateway.tell(gateway.act(&caller, "worker_drain").target(format!("worker/{id}"))).await?;
    for worker in &named {
        if worker.as_str() != worker.own_name() {
            gateway.flow.store.drain_worker(worker, HOLDS).await?;
        }
        let control = Control { drain: true, ..Default::default() };
        let told = gateway.flow.bus.broadcast(&subjects::worker_ctl(worker), Body::Control(control)).await;
        told.map_err(|_| Problem::bus_away())?;
    }
    let body = view::document(|json| {
        json.text("id", &id);
        json.boolean("draining", true);
    });
    Ok(json(StatusCode::ACCEPTED, body))
}
