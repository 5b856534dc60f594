//! One job: submit it, read it, wait for it, read its history.

use std::time::Duration;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use muster_domain::{JobId, ProblemCode};
use muster_flow::{
    Accepted,
    admission::{Asked, Open, PayloadCheck, bounds},
};
use muster_store::{Fields, Record};

use super::{Id, Submitter, json};
use crate::{
    access::{Access, Scope},
    auth::Caller,
    body::{Posted, SINGLE},
    json::{Faults, Object},
    problem::{MUSTER_BUS, Problem},
    query::Params,
    refusals::out_of_bounds,
    schema,
    state::Gateway,
    submit::{Place, ReadJob, read_job},
    view::{JobView, history as story},
};

/// Submit a job. With an `Idempotency-Key` a repeat finds the same job; with `wait_ms` the answer
/// waits for the job's end.
#[utoipa::path(
    post, path = "/api/v1/jobs", tag = "jobs",
    params(
        ("wait_ms" = Option<u64>, Query, description = "Wait so long for the end, at most 30,000"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    request_body = schema::Submit,
    responses(
        (status = 202, description = "Accepted", body = schema::Job),
        (status = 200, description = "It ended within wait_ms", body = schema::Job),
        (status = "4XX", description = "Refused", body = schema::Problem),
        (status = 503, description = "Overloaded, or a store is away", body = schema::Problem),
    )
)]
pub(super) async fn submit(
    State(gateway): State<Gateway>,
    submitter: Submitter,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    // Every layer between here and the connection moves the handler's future, so the future is boxed to keep it
    // small.
    Box::pin(accept(gateway, submitter, params, body)).await
}

async fn accept(
    gateway: Gateway,
    submitter: Submitter,
    mut params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let wait = params.wait(&mut faults);
    params.finish(faults)?;

    let open = gateway.admission.open().await?;
    let admitted = open.admit(read_asked(&open, &submitter, &body)?).await?;
    let (job, accepted) = gateway.admission.submit(admitted).await?;
    let caller = &submitter.caller;
    let record = match wait {
        Some(wait) => Some(Box::pin(wait_for(&gateway, caller, job.id, visible(caller), wait)).await),
        None if accepted.replayed => Some(Box::pin(find(&gateway, caller, job.id, visible(caller))).await),
        None => None,
    };
    // The job is accepted, even if it was deleted meanwhile or Redis does not answer. Then the response shows what
    // the commit returned.
    let record = record.and_then(Result::ok);
    let view = JobView::accepted(&job, &accepted, record.as_ref());
    let ended = wait.is_some() && view.head.state().is_end();
    let mut response = json(if ended { StatusCode::OK } else { StatusCode::ACCEPTED }, view.document());
    note_acceptance(&mut response, job.id, &accepted);
    Ok(response)
}

/// Reads the job that a body describes.
fn read_asked(open: &Open<'_>, submitter: &Submitter, body: &Posted<SINGLE>) -> Result<Asked, Problem> {
    let Submitter { caller, key, trace } = submitter;
    let mut faults = Faults::default();
    let object = Object::from_body(&body.bytes)?;
    let defaults = |topic| open.spec(&caller.tenant, topic);
    let read = read_job(&body.bytes, object, &caller.tenant, &defaults, Place::Alone, key.is_some(), &mut faults);
    faults.into_result()?;
    let Some(ReadJob { mut spec, payload, hash, .. }) = read else {
        return Err(Problem::new(ProblemCode::Internal, "a job was lost while it was read"));
    };
    caller.may_touch(&spec.topic)?;
    spec.principal.clone_from(&caller.key.id);
    spec.trace = spec.trace.or(*trace);
    let id = key.as_ref().map(|key| JobId::derive("job", &caller.tenant, key));
    let hash = key.is_some().then_some(hash);
    let job = bounds::check(spec, payload).map_err(|fault| out_of_bounds(&fault, ""))?;
    Ok(Asked { id, job, hash, payload_check: PayloadCheck::Schema })
}

/// The headers of an accepted job.
pub(super) fn note_acceptance(response: &mut Response, id: JobId, accepted: &Accepted) {
    let headers = response.headers_mut();
    if let Ok(place) = HeaderValue::from_maybe_shared(Bytes::from(id.text_within("/api/v1/jobs/", ""))) {
        headers.insert(header::LOCATION, place);
    }
    if accepted.replayed {
        headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    if accepted.bus_deferred {
        headers.insert(MUSTER_BUS, HeaderValue::from_static("deferred"));
    }
}

/// Read a job. With `wait_ms` the answer waits for its end. Payload and result need the scope
/// `payloads`; without it they are left out.
#[utoipa::path(
    get, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(
        ("id" = String, Path, description = "The job"),
        ("wait_ms" = Option<u64>, Query, description = "Wait so long for the end, at most 30,000"),
        ("include" = Option<String>, Query, description = "`payload`, `result`, or both with a comma; both unless given"),
    ),
    responses(
        (status = 200, description = "The job", body = schema::Job),
        (status = 404, description = "No such job, or not yours", body = schema::Problem),
        (status = 500, description = "Its record is damaged: `job_unreadable`, for keys of all tenants; others get 404", body = schema::Problem),
    )
)]
pub(super) async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    Id(id): Id,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let wait = params.wait(&mut faults);
    let include = params.read("include", &mut faults, read_include);
    params.finish(faults)?;
    let fields = match include {
        Some(fields) => included(&caller, fields)?,
        None => visible(&caller),
    };
    gateway.take_read(&caller).await?;
    let record = match wait {
        Some(wait) => wait_for(&gateway, &caller, id, fields, wait).await?,
        None => find(&gateway, &caller, id, fields).await?,
    };
    Ok(json(StatusCode::OK, JobView::of(&record).document()))
}

/// Read a job's history: every transition that is kept, and each attempt with its worker, times and error.
#[utoipa::path(
    get, path = "/api/v1/jobs/{id}/history", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "Its story", body = schema::History),
        (status = 404, description = "No such job, or not yours", body = schema::Problem),
    )
)]
pub(super) async fn history(
    State(gateway): State<Gateway>,
    caller: Caller,
    Id(id): Id,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let record = find(&gateway, &caller, id, Fields::NONE).await?;
    Ok(json(StatusCode::OK, story(id, &record.history)))
}

/// The large fields of a job that the caller may see.
pub(super) fn visible(caller: &Caller) -> Fields {
    if caller.has(Scope::Payloads) { Fields::ALL } else { Fields::NONE }
}

/// The large fields that the request names. The caller needs the scope for them.
pub(super) fn included(caller: &Caller, asked: Fields) -> Result<Fields, Problem> {
    if asked != Fields::NONE {
        caller.may(Access::Scope(Scope::Payloads))?;
    }
    Ok(asked)
}

/// Parses `include=payload,result`.
pub(super) fn read_include(given: &str) -> Result<Fields, &'static str> {
    let mut fields = Fields::NONE;
    for word in given.split(',').filter(|word| !word.is_empty()) {
        match word {
            "payload" => fields.payload = true,
            "result" => fields.result = true,
            _ => return Err("names `payload` and `result` only"),
        }
    }
    Ok(fields)
}

/// Reads a job that the caller may see. The tenant of an unreadable job is unknown, so only keys for all tenants
/// learn about it.
pub(super) async fn find(gateway: &Gateway, caller: &Caller, id: JobId, fields: Fields) -> Result<Record, Problem> {
    let found = match gateway.flow.store.read_one(id, fields).await {
        Err(fault) if fault.is_unreadable() && caller.key.tenant.is_some() => None,
        found => found?,
    };
    let theirs = |record: &Record| {
        !record.deleted && record.spec.tenant == caller.tenant && caller.may_touch(&record.spec.topic).is_ok()
    };
    found.filter(theirs).ok_or_else(|| Problem::no_job(id))
}

/// The job once it has ended, or its current record when the time is up or this gateway stops.
async fn wait_for(
    gateway: &Gateway,
    caller: &Caller,
    id: JobId,
    fields: Fields,
    limit: Duration,
) -> Result<Record, Problem> {
    let deadline = tokio::time::Instant::now() + limit;
    let waiting = gateway.waits.enter(id).await;
    loop {
        let record = find(gateway, caller, id, fields).await?;
        if record.head.state().is_end() {
            return Ok(record);
        }
        tokio::select! {
            () = waiting.woken() => {}
            () = tokio::time::sleep_until(deadline) => break,
            () = gateway.stop.cancelled() => break,
        }
    }
    find(gateway, caller, id, fields).await
}
