//! What is told about one run: its timeline, its explanation, its graph, and the items of a step.

use std::collections::HashMap;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::ProblemCode;
use muster_engine::{
    definition::{GraphFormat, graph as draw},
    run::{ItemView, StepState},
};

use super::{
    super::{
        RunPath,
        drawing::{drawing, read_format},
        json,
    },
    asked::RunPartPath,
};
use crate::{
    access::Scope,
    auth::Caller,
    json::Faults,
    limits::PAGE,
    problem::Problem,
    query::Params,
    runs::{find, seen},
    schema,
    state::Gateway,
    view::{
        self, Json,
        run::{write_error, write_value},
    },
};

const USUAL_PAGE: u64 = 50;

/// Read what happened in a run, when and why. Items of a `for_each` are left out unless they fail.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/timeline", tag = "runs",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 200, description = "Its timeline, oldest first", body = schema::RunTimeline),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn timeline(
    State(gateway): State<Gateway>,
    caller: Caller,
    RunPath(id): RunPath,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    seen(&gateway, &caller, id, |_| Ok(())).await?;
    let story = gateway.runs.story(id).await?;
    let body = view::document(|json| {
        json.list("items", |json| {
            for entry in &story.entries {
                json.object(None, |json| {
                    json.moment("at", entry.at.some());
                    if !entry.step.is_empty() {
                        json.text("step", &entry.step);
                    }
                    json.text("what", &entry.what);
                    if !entry.why.is_empty() {
                        json.text("why", &entry.why);
                    }
                });
            }
        });
        json.integer("dropped", story.dropped);
    });
    Ok(json(StatusCode::OK, body))
}

/// Explain a run: what it waits for, in sentences and as data, and when the workflow service looks at it next.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/explain", tag = "runs",
    params(("id" = String, Path, description = "The run")),
    responses(
        (status = 200, description = "Why it stands where it stands", body = schema::RunExplanation),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn explain(
    State(gateway): State<Gateway>,
    caller: Caller,
    RunPath(id): RunPath,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let kept = find(&gateway, &caller, id).await?;
    let told = gateway.runs.explain(&kept).await?;
    let body = view::document(|json| {
        json.text("run_id", &id.to_string());
        json.text("state", kept.run.state().as_str());
        json.boolean("done", kept.run.state().is_end());
        json.moment("as_of", gateway.flow.store.now().some());
        json.text("summary", told.sentences.first().map_or("", String::as_str));
        json.list("sentences", |json| told.sentences.iter().for_each(|sentence| json.item(sentence)));
        json.list("waits_for", |json| {
            for wait in &told.waits {
                json.object(None, |json| {
                    if !wait.step.is_empty() {
                        json.text("step", &wait.step);
                    }
                    json.text("for", wait.what);
                    json.moment("until", wait.until);
                    wait.job.iter().for_each(|job| json.text("job_id", &job.to_string()));
                    wait.run.iter().for_each(|run| json.text("run_id", &run.to_string()));
                    json.text("sentence", &wait.sentence);
                });
            }
        });
        json.moment("next_look", told.next_look);
    });
    Ok(json(StatusCode::OK, body))
}

/// Draw a run: the graph of its workflow, with its steps in the colours of their states.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/graph", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("format" = Option<String>, Query, description = "`svg` (the default) or `mermaid`"),
    ),
    responses(
        (status = 200, description = "The graph", content((String = "image/svg+xml"), (String = "text/vnd.mermaid"))),
        (status = 404, description = "No such run, or not yours", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn graph(
    State(gateway): State<Gateway>,
    caller: Caller,
    RunPath(id): RunPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let format = params.read("format", &mut faults, read_format).unwrap_or(GraphFormat::Svg);
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let drawn = seen(&gateway, &caller, id, |run| {
        // Of the iterations of a loop, the latest one is shown.
        let states: HashMap<String, StepState> =
            run.view_steps()?.into_iter().map(|step| (step.id, step.state)).collect();
        let state = |step: &str| states.get(step).map(|state| state.as_str());
        Ok(draw(run.plan().definition(), Some(&state), format))
    });
    Ok(drawing(format, drawn.await?.1))
}

/// Read the items of a step with `for_each`, page by page. What `collect` kept of them needs the scope `payloads`.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/steps/{step}/items", tag = "runs",
    params(
        ("id" = String, Path, description = "The run"),
        ("step" = String, Path, description = "The place of the step"),
        ("from" = Option<u64>, Query, description = "The index of the first item; 0 unless given"),
        ("limit" = Option<u64>, Query, description = "1 to 500; 50 unless given"),
    ),
    responses(
        (status = 200, description = "Some items", body = schema::RunItemPage),
        (status = 404, description = "No such run, or not yours; or no such step with `for_each`", body = schema::Problem),
    )
)]
pub(in crate::routes) async fn items(
    State(gateway): State<Gateway>,
    caller: Caller,
    RunPartPath(id, step): RunPartPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let limit = params.integer("limit", &mut faults, PAGE).unwrap_or(USUAL_PAGE);
    let from = params.integer("from", &mut faults, 0..=u64::from(u32::MAX)).unwrap_or(0);
    params.finish(faults)?;
    gateway.take_read(&caller).await?;
    let (from, limit) = (u32::try_from(from).unwrap_or(u32::MAX), u32::try_from(limit).unwrap_or(u32::MAX));
    let (_, found) = seen(&gateway, &caller, id, |run| run.view_items(&step, from, limit)).await?;
    let none = || Problem::new(ProblemCode::NotFound, format!("run {id} has no step {step} with `for_each`"));
    let page = found.ok_or_else(none)?;
    let values = caller.has(Scope::Payloads);
    let next = page.items.last().map(|item| item.index + 1).filter(|next| *next < page.total);
    let body = view::document(|json| {
        json.integer("total", page.total.into());
        json.list("items", |json| {
            page.items.iter().for_each(|item| json.object(None, |json| write(json, item, values)))
        });
        next.into_iter().for_each(|next| json.integer("next_from", next.into()));
    });
    Ok(json(StatusCode::OK, body))
}

fn write(json: &mut Json, item: &ItemView, values: bool) {
    json.integer("index", item.index.into());
    json.text("state", item.state.as_str());
    write_error(json, item.error.as_ref());
    item.job.iter().for_each(|job| json.text("job_id", &job.to_string()));
    item.sub_run.iter().for_each(|run| json.text("run_id", &run.to_string()));
    write_value(json, "value", item.value.as_deref().filter(|_| values));
}
