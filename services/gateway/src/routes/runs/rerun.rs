//! Reruns: a new run that takes over what an ended one did.

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use muster_domain::{Act, ProblemCode, RunId, ids::SHARDS};
use muster_engine::run::Again;
use muster_flow::admission::bounds::MOST_PAYLOAD;
use muster_runs::{Kept, Rerun, RerunPlan, RerunRefused, StartRefused, Started};
use serde_json::Value;

use super::{
    super::{RunPath, Submitter, json, run::visible, run_start},
    asked::take_value,
};
use crate::{
    auth::Caller,
    body::{Posted, SINGLE},
    canonical::hash_fields,
    json::{Faults, Object},
    limits::VERSION,
    problem::{MUSTER_BUS, Problem},
    query::Params,
    runs::{find, topics},
    schema,
    state::Gateway,
    view::{self, run::run},
};

/// Run an ended run again from a step on, or the items of a `for_each` that failed, as a new run. It takes over the
/// results of every step that ended well, is neither that step nor behind it, and was not undone; a step whose
/// compensation began runs again, with the steps behind it. With `dry_run` nothing is stored, and the answer says what
/// would run again.
#[utoipa::path(
    post, path = "/api/v1/runs/{id}/rerun", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 256 visible characters, bare or quoted"),
    ),
    request_body = schema::RerunRequest,
    responses(
        (status = 202, description = "The new run", body = schema::Run),
        (status = 200, description = "What a dry run found", body = schema::RerunOutlook),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
        (status = 409, description = "It has not ended: `run_not_done`, or no slot is free: `concurrency_full`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn rerun(
    State(gateway): State<Gateway>,
    by: Submitter,
    RunPath(id): RunPath,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let asked = read(&body.bytes)?;
    let caller = &by.caller;
    let old = find(&gateway, caller, id).await?;
    let rerun = Rerun {
        id: match &by.key {
            Some(key) => RunId::derive("rerun", &caller.tenant, &format!("{id}\0{key}")),
            None => RunId::mint(fastrand::u8(..SHARDS)),
        },
        again: asked.again,
        version: asked.version,
        input: asked.input,
        principal: caller.key.id.clone(),
        topics: caller.key.topics.clone(),
        hash: by.key.as_ref().map(|_| asked.hash),
    };
    if !asked.dry_run
        && let Some(known) = gateway.runs.known_rerun(&old, &rerun).await.map_err(|why| refused(id, why))?
    {
        may_run(caller, &known.kept)?;
        return accepted(&by, &known);
    }
    let plan = gateway.runs.plan_rerun(&old, &rerun).await.map_err(|why| refused(id, why))?;
    may_run(caller, &plan.kept)?;
    if asked.dry_run {
        gateway.take_read(caller).await?;
        return Ok(json(StatusCode::OK, outlook(&plan)));
    }
    gateway.take_submit(caller).await?;
    let act = gateway.act(caller, "run_rerun").target(format!("run/{id}")).with("run_id", rerun.id.to_string());
    gateway.tell(Act { id: format!("run:{}:start", rerun.id), ..act }).await?;
    let started = gateway.runs.rerun(&old, &rerun, plan).await.map_err(|why| refused(id, why))?;
    accepted(&by, &started)
}

/// Refuses a caller whose key does not cover every topic of the new run. Its version may have other topics than that of
/// the old run.
fn may_run(caller: &Caller, new: &Kept) -> Result<(), Problem> {
    topics(new.run.plan().definition()).into_iter().try_for_each(|topic| caller.may_touch(topic))
}

fn accepted(by: &Submitter, started: &Started) -> Result<Response, Problem> {
    let mut response = json(StatusCode::ACCEPTED, run(&started.kept.run, visible(&by.caller))?);
    let headers = response.headers_mut();
    if let Ok(place) = HeaderValue::try_from(format!("/api/v1/runs/{}", started.kept.id)) {
        headers.insert(header::LOCATION, place);
    }
    if started.replayed {
        headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
    }
    if started.bus_deferred {
        headers.insert(MUSTER_BUS, HeaderValue::from_static("deferred"));
    }
    Ok(response)
}

fn outlook(plan: &RerunPlan) -> Bytes {
    let about = plan.kept.run.about();
    view::document(|json| {
        json.boolean("dry_run", true);
        json.text("workflow", &about.workflow);
        json.integer("version", about.version.into());
        json.list("again", |json| plan.again.iter().for_each(|step| json.item(step)));
        json.list("taken", |json| plan.taken.iter().for_each(|step| json.item(step)));
        if let Some(items) = plan.items {
            json.integer("items", items.into());
        }
    })
}

fn refused(id: RunId, why: RerunRefused) -> Problem {
    let field =
        |pointer: &str, why: &RerunRefused| Problem::field(ProblemCode::InvalidRequest, pointer, why.to_string());
    match why {
        RerunRefused::NotDone(state) => Problem::new(ProblemCode::RunNotDone, format!("run {id} is {state}")),
        RerunRefused::UnknownStep | RerunRefused::ResultGone { .. } => field("/from", &why),
        RerunRefused::NoItems => field("/failed_items", &why),
        RerunRefused::UnknownVersion(_) => field("/version", &why),
        RerunRefused::Input(faults) => run_start::refused(StartRefused::Input(faults)),
        RerunRefused::Start(why) => run_start::refused(why),
    }
}

pub(in crate::routes) struct Asked {
    again: Again,
    version: Option<u32>,
    input: Option<Value>,
    dry_run: bool,
    hash: [u8; 16],
}

pub(in crate::routes) fn read(body: &Bytes) -> Result<Asked, Problem> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let mut o = Object::from_body(body)?;
    let fields = o.fields();
    let from = o.text("from", f).map(|step| Again::From(step.into_owned()));
    let items = o.text("failed_items", f).map(|step| Again::FailedItems(step.into_owned()));
    let again = match (from, items) {
        (Some(again), None) | (None, Some(again)) => Some(again),
        (Some(_), Some(_)) => {
            f.invalid("", "failed_items", "give either `from` or `failed_items`");
            None
        }
        (None, None) => {
            if f.none() {
                f.invalid("", "from", "is required, or `failed_items`");
            }
            None
        }
    };
    let input = take_value(&mut o, "input", MOST_PAYLOAD, f);
    let version = o.integer("version", f, VERSION).and_then(|version| u32::try_from(version).ok());
    let dry_run = o.boolean("dry_run", f).unwrap_or(false);
    o.finish(f);
    faults.into_result()?;
    // A request that says `"dry_run": false` is the same as one that says nothing of it.
    let told = fields.iter().filter(|(name, value)| *value != "null" && name != "dry_run");
    let hash = hash_fields(told.map(|(name, value)| (name.as_ref(), *value)));
    let again = again.ok_or_else(|| Problem::new(ProblemCode::Internal, "a rerun was lost while it was read"))?;
    Ok(Asked { again, version, input, dry_run, hash })
}
