//! Bulk operations: start one, follow it, end it.

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use muster_domain::{Act, OperationId, ProblemCode};
use muster_store::{Action, ListFilter, NewOperation, Operation, OperationStatus};

use super::{Named, Submitter, dead_letters::refused, json};
use crate::{
    auth::Caller,
    body::{Posted, SINGLE},
    bulk::{Outlook, dry_run, read_filter},
    canonical::hash_fields,
    json::{Faults, Object},
    limits::{BULK_RATE, CANARY, PAGE},
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view::{self, Json},
};

const USUAL_RATE: u64 = 100;
const USUAL_PAGE: u64 = 50;

/// Retry, cancel or delete every job that passes a filter. The answer names an operation that goes
/// on in the background, on any gateway. With `dry_run` nothing is touched and the matches are counted.
#[utoipa::path(
    post, path = "/api/v1/jobs/bulk", tag = "operations",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted")),
    request_body = schema::BulkRequest,
    responses(
        (status = 202, description = "The operation", body = schema::Operation),
        (status = 200, description = "What a dry run found", body = schema::DryRun),
        (status = 422, description = "A field is wrong", body = schema::Problem),
    )
)]
pub(super) async fn ask(
    State(gateway): State<Gateway>,
    Submitter { caller, key, .. }: Submitter,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let asked = read(&body.bytes)?;
    if let Some(topic) = &asked.filter.topic {
        caller.may_touch(topic)?;
    }
    if asked.dry_run {
        gateway.take_read(&caller).await?;
        let found = dry_run(&gateway, &caller, asked.action, &asked.filter).await.map_err(refused)?;
        return Ok(json(StatusCode::OK, outlook(asked.action, &found)));
    }
    begin(&gateway, &caller, key, asked).await
}

/// Stores an operation, and answers with it.
pub(super) async fn begin<F>(
    gateway: &Gateway,
    caller: &Caller,
    key: Option<String>,
    asked: Asked<F>,
) -> Result<Response, Problem> {
    let named = key.is_some();
    let new = NewOperation {
        id: match key {
            Some(key) => OperationId::derive("operation", &caller.tenant, &key),
            None => OperationId::mint(0),
        },
        tenant: caller.tenant.clone(),
        action: asked.action,
        filter: asked.text,
        topics: caller.key.topics.clone(),
        principal: caller.key.id.clone(),
        rate: asked.rate,
        canary: asked.canary,
        hash: asked.hash,
    };
    // The id of the act is derived, so that a repeated request writes the same act.
    let act = gateway.act(caller, "bulk_start").target(format!("operation/{}", new.id));
    let act = act.with("action", new.action.as_str()).with("filter", new.filter.as_str());
    gateway.tell(Act { id: format!("operation:{}", new.id), ..act }).await?;
    let (created, operation) = gateway.flow.store.create_operation(&new).await?;
    if operation.asked.hash != new.hash {
        return Err(Problem::new(ProblemCode::IdempotencyMismatch, "this idempotency key was used with another body"));
    }
    gateway.bulk.wake();
    let mut response = json(StatusCode::ACCEPTED, view::document(|json| write(json, &operation)));
    if let Ok(place) = HeaderValue::try_from(format!("/api/v1/operations/{}", new.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    if named && !created {
        response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// List bulk operations, newest first. They are kept for 30 days.
#[utoipa::path(
    get, path = "/api/v1/operations", tag = "operations",
    params(
        ("limit" = Option<u64>, Query, description = "1 to 500; 50 unless given"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = schema::OperationPage),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
    )
)]
pub(super) async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let limit = params.integer("limit", &mut faults, PAGE).unwrap_or(USUAL_PAGE);
    let cursor = params.take("cursor").filter(|cursor| !cursor.is_empty());
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let page = gateway.flow.store.list_operations(&caller.tenant, cursor.as_deref(), limit).await;
    let (items, next) = page.map_err(refused)?;
    let body = view::document(|json| {
        json.list("items", |json| {
            let theirs = items.iter().filter(|operation| visible(&caller, operation));
            theirs.for_each(|operation| json.object(None, |json| write(json, operation)));
        });
        if let Some(next) = next {
            json.text("next_cursor", &next);
        }
    });
    Ok(json(StatusCode::OK, body))
}

/// Read how far a bulk operation is.
#[utoipa::path(
    get, path = "/api/v1/operations/{id}", tag = "operations",
    params(("id" = String, Path, description = "The operation")),
    responses(
        (status = 200, description = "The operation", body = schema::Operation),
        (status = 404, description = "No such operation, or not yours", body = schema::Problem),
    )
)]
pub(super) async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    name: Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let operation = find(&gateway, &caller, &name).await?;
    Ok(json(StatusCode::OK, view::document(|json| write(json, &operation))))
}

/// End a bulk operation. What it has done stays done. Repeating it is fine.
#[utoipa::path(
    post, path = "/api/v1/operations/{id}/cancel", tag = "operations",
    params(("id" = String, Path, description = "The operation")),
    responses(
        (status = 200, description = "Cancelled, now or before", body = schema::Operation),
        (status = 404, description = "No such operation, or not yours", body = schema::Problem),
        (status = 409, description = "It ended otherwise: `job_done`", body = schema::Problem),
    )
)]
pub(super) async fn cancel(
    State(gateway): State<Gateway>,
    caller: Caller,
    name: Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let id = find(&gateway, &caller, &name).await?.asked.id;
    gateway.tell(gateway.act(&caller, "bulk_cancel").target(format!("operation/{id}"))).await?;
    let operation = gateway.flow.store.cancel_operation(id).await?.ok_or_else(|| nothing(&name))?;
    match operation.status {
        OperationStatus::Cancelled => Ok(json(StatusCode::OK, view::document(|json| write(json, &operation)))),
        other => {
            let words = format!("operation {id} ended before, as {}", other.as_str());
            Err(Problem::new(ProblemCode::JobDone, words))
        }
    }
}

/// A request for an operation on jobs, or on runs.
pub(super) struct Asked<F> {
    pub(super) action: Action,
    pub(super) filter: F,
    /// The filter as the client wrote it.
    text: String,
    pub(super) dry_run: bool,
    rate: u32,
    canary: u64,
    hash: [u8; 16],
}

pub(super) fn read(body: &Bytes) -> Result<Asked<ListFilter>, Problem> {
    read_with(body, ("retry, cancel, delete", Action::parse), read_filter)
}

/// Reads a request with these actions, given by their words, and this kind of filter.
pub(super) fn read_with<F>(
    body: &Bytes,
    (words, parse): (&str, fn(&str) -> Option<Action>),
    read_filter: fn(Object<'_>, Action, &mut Faults) -> F,
) -> Result<Asked<F>, Problem> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let mut o = Object::from_body(body)?;
    let fields = o.fields();
    let text = fields.iter().find(|(name, _)| name == "filter").map(|(_, text)| (*text).to_owned());
    o.require("action", f);
    o.require("filter", f);
    let action = o.word("action", f, words, parse);
    let filter = o.object("filter", f);
    let dry_run = o.boolean("dry_run", f).unwrap_or(false);
    let rate = o.integer("rate_per_s", f, BULK_RATE).unwrap_or(USUAL_RATE);
    let canary = o.integer("canary", f, CANARY).unwrap_or(0);
    o.finish(f);
    let read = action.zip(filter).map(|(action, filter)| (action, read_filter(filter, action, f)));
    faults.into_result()?;
    let hash = hash_fields(fields.iter().filter(|(_, v)| *v != "null").map(|(n, v)| (n.as_ref(), *v)));
    let (Some((action, filter)), Some(text)) = (read, text) else {
        return Err(Problem::new(ProblemCode::Internal, "an operation was lost while it was read"));
    };
    Ok(Asked { action, filter, text, dry_run, rate: u32::try_from(rate).unwrap_or(u32::MAX), canary, hash })
}

/// The answer to a dry run.
pub(super) fn outlook(action: Action, found: &Outlook) -> Bytes {
    view::document(|json| {
        json.boolean("dry_run", true);
        json.text("action", action.as_str());
        json.integer("matched", found.matched);
        json.integer("skipped", found.skipped);
        json.boolean("more", found.more);
    })
}

async fn find(gateway: &Gateway, caller: &Caller, name: &Named) -> Result<Operation, Problem> {
    let id: OperationId = name.0.parse().map_err(|_| nothing(name))?;
    let found = gateway.flow.store.operation(id).await?;
    found.filter(|operation| visible(caller, operation)).ok_or_else(|| nothing(name))
}

/// A caller sees the operations of its tenant. A key that is bound to topics sees only operations bound to the same
/// topics.
fn visible(caller: &Caller, operation: &Operation) -> bool {
    let topics = &caller.key.topics;
    operation.asked.tenant == caller.tenant && (topics.is_empty() || *topics == operation.asked.topics)
}

fn nothing(name: &Named) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is no operation {}", name.0))
}

fn write(json: &mut Json, operation: &Operation) {
    let (asked, tally) = (&operation.asked, operation.tally);
    json.text("id", &asked.id.to_string());
    json.text("tenant", asked.tenant.as_str());
    json.text("action", asked.action.as_str());
    json.text("of", if asked.action.is_of_runs() { "runs" } else { "jobs" });
    json.raw("filter", asked.filter.as_bytes());
    json.text("status", operation.status.as_str());
    json.boolean("done", operation.status != OperationStatus::Running);
    json.object(Some("counts"), |json| {
        json.integer("matched", tally.matched);
        json.integer("done", tally.done);
        json.integer("skipped", tally.skipped);
        json.integer("failed", tally.failed);
    });
    json.integer("rate_per_s", asked.rate.into());
    if asked.canary > 0 {
        json.integer("canary", asked.canary);
    }
    if let Some(owner) = &operation.owner {
        json.text("carried_by", owner.rsplit_once('/').map_or(owner.as_str(), |(instance, _)| instance));
    }
    if !operation.detail.is_empty() {
        json.text("last_error", &operation.detail);
    }
    json.moment("created_at", operation.created_at.some());
    json.moment("finished_at", operation.finished_at);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Result<Asked<ListFilter>, Vec<String>> {
        read(&Bytes::copy_from_slice(body.as_bytes()))
            .map_err(|problem| problem.errors.into_iter().map(|fault| fault.pointer).collect())
    }

    #[test]
    fn every_field_is_read_and_has_a_default() {
        let asked = |body| asked(body).ok().unwrap();
        let full = asked(r#"{"action":"retry","filter":{"topic":"t"},"dry_run":true,"rate_per_s":7,"canary":3}"#);
        assert_eq!((full.action, full.dry_run, full.rate, full.canary), (Action::Retry, true, 7, 3));
        assert_eq!(full.text, r#"{"topic":"t"}"#);
        let bare = asked(r#"{"action":"cancel","filter":{}}"#);
        assert_eq!((bare.dry_run, bare.rate, bare.canary), (false, 100, 0));
        assert_ne!(bare.hash, full.hash);
    }

    #[test]
    fn nothing_is_done_to_everything_by_accident() {
        for (body, pointers) in [
            ("{}", vec!["/action", "/filter"]),
            (r#"{"action":"cancel"}"#, vec!["/filter"]),
            (r#"{"action":"delete","filter":{}}"#, vec!["/filter/state"]),
            (r#"{"action":"explode","filter":{}}"#, vec!["/action"]),
            (r#"{"action":"retry","filter":{"topics":"t"}}"#, vec!["/filter/topics"]),
            (r#"{"action":"retry","filter":{},"rate_per_s":5001,"canary":0}"#, vec!["/rate_per_s", "/canary"]),
        ] {
            assert_eq!(asked(body).err().expect(body), pointers, "{body}");
        }
    }
}
