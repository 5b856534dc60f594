//! Streams events as they happen.

use std::convert::Infallible;

use axum::{
    extract::State,
    response::{IntoResponse, Response, Sse},
};
use futures_util::stream;
use http::{HeaderMap, HeaderValue};
use muster_domain::{JobId, RunId, Topic};

use crate::{
    auth::Caller,
    events::{Filter, Kind, Point, Watcher},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
};

/// Watch events as they happen, by server-sent events. Each has an id from which any gateway can continue.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "events",
    params(
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was seen: go on after it"),
        ("last_event_id" = Option<String>, Query, description = "The same, for clients that cannot set headers"),
        ("topic" = Option<String>, Query, description = "This topic"),
        ("job_id" = Option<String>, Query, description = "This job"),
        ("run_id" = Option<String>, Query, description = "This run of a workflow: the run itself, its steps, and its jobs without their progress"),
        ("type" = Option<String>, Query, description = "One or more types with commas: `muster.job.<state>`, `muster.job.progress`, `muster.run.<state>`, `muster.step.<state>`, `muster.gap`, and types of your own, which `notify` steps emit"),
    ),
    responses(
        (status = 200, description = "Events until the client leaves or the gateway stops", body = schema::CloudEvent, content_type = "text/event-stream"),
        (status = 422, description = "A parameter is wrong", body = schema::Problem),
        (status = 503, description = "Too many watch here, in all or for this tenant, or the bus is away", body = schema::Problem),
    )
)]
pub(super) async fn watch(
    State(gateway): State<Gateway>,
    caller: Caller,
    headers: HeaderMap,
    params: Params,
) -> Result<Response, Problem> {
    let (filter, since) = read(caller, &headers, params)?;
    gateway.take_read(&filter.caller).await?;
    let watcher = Watcher::join(gateway.sources(), filter, headers, since).await?;
    let events = stream::unfold(watcher, async |mut watcher| {
        let event = watcher.next().await?;
        Some((Ok::<_, Infallible>(event), watcher))
    });
    let mut response = Sse::new(events).into_response();
    // A proxy that buffers a response until it is complete would hold this one for ever.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Reads which events the client wants, and from which position.
fn read(caller: Caller, headers: &HeaderMap, mut params: Params) -> Result<(Filter, Option<Point>), Problem> {
    let f = &mut Faults::default();
    let topic = params.read("topic", f, Topic::parse);
    let job = params.read("job_id", f, str::parse::<JobId>);
    let run = params.read("run_id", f, str::parse::<RunId>).map(|run| (run, run.to_string()));
    let kinds = params.read("type", f, read_kinds).unwrap_or_default();
    let asked = params.take("last_event_id");
    params.finish(std::mem::take(f))?;
    if let Some(topic) = &topic {
        caller.may_touch(topic)?;
    }
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    let since = header.or(asked).filter(|text| !text.trim().is_empty());
    // An unknown id is treated as a position that is gone: a client that gets an error might never reconnect.
    let since = since.map(|text| Point::parse(&text).unwrap_or(Point::NOWHERE));
    Ok((Filter { caller, topic, job, run, kinds }, since))
}

fn read_kinds(given: &str) -> Result<Vec<Kind>, String> {
    let word = |word: &str| Kind::parse(word).ok_or_else(|| format!("`{word}` is not a type of event"));
    given.split(',').filter(|text| !text.is_empty()).map(word).collect()
}
