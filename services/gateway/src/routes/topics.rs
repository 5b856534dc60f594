//! Topics: their settings, their numbers, and the switch that pauses them.
//!
//! Promises: the settings in a response are those in Redis. The numbers need calls in proportion to the number of the
//! topic's lines, however many jobs wait. A write that names the version it has seen (`If-Match`) never replaces
//! another version.

use axum::{extract::State, response::Response};
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use muster_bus::subjects;
use muster_domain::{Line, ProblemCode, Tenant, Time, Topic, job::Known, slot::Limit, topic::Paused};
use muster_flow::{LineWaiting, Waits};
use muster_store::{Put, SeenVersion, TopicChange, TopicRecord, WorkerSeen, WorkerSnapshot};

use super::{
    Named,
    if_match::{IfMatch, changed_meanwhile},
    json,
};
use crate::{
    auth::Caller,
    body::{Posted, SINGLE},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    submit::read_reason,
    topics::{names, read_settings},
    view::{self, Json},
};

/// The most lines with offers that are asked for their oldest offer.
const MOST_ASKED: usize = 64;

/// List the tenant's topics: those with settings, and those that live workers take.
#[utoipa::path(
    get, path = "/api/v1/topics", tag = "topics",
    responses((status = 200, description = "The topics, in the order of their names", body = schema::TopicList))
)]
pub(super) async fn list(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    gateway.flow.know_settings().await?;
    let snapshot = gateway.flow.store.read_workers().await?;
    let names = names(&gateway.flow.settings, &caller, snapshot.as_ref());
    let body = view::document(|json| {
        json.list("items", |json| {
            for (topic, told) in &names {
                json.object(None, |json| {
                    write_settings(json, &caller.tenant, topic, told.as_deref());
                    let workers = workers_of(&gateway, snapshot.as_ref(), &caller.tenant, topic);
                    json.integer("workers", workers.len() as u64);
                });
            }
        });
    });
    Ok(json(StatusCode::OK, body))
}

/// Read a topic: its settings and its numbers. The `ETag` is the version of its settings.
#[utoipa::path(
    get, path = "/api/v1/topics/{topic}", tag = "topics",
    params(("topic" = String, Path, description = "The topic")),
    responses(
        (status = 200, description = "The topic", body = schema::Topic),
        (status = 404, description = "No such topic can be, or it is not yours", body = schema::Problem),
    )
)]
pub(super) async fn get(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let topic = named(&caller, &name)?;
    let names = [(caller.tenant.clone(), topic.clone())];
    let told = gateway.flow.store.read_topics(&names).await.pop().unwrap_or(Ok(None))?;
    shown(&gateway, &caller, &topic, told.as_ref()).await
}

/// Replace a topic's settings. A setting that is not given is no longer set; a pause stays.
#[utoipa::path(
    put, path = "/api/v1/topics/{topic}", tag = "topics",
    params(
        ("topic" = String, Path, description = "The topic"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that was read: another one is refused"),
    ),
    request_body = schema::TopicSettings,
    responses(
        (status = 200, description = "As it is now", body = schema::Topic),
        (status = 412, description = "Somebody else wrote meanwhile", body = schema::Problem),
        (status = 422, description = "A field was refused", body = schema::Problem),
    )
)]
pub(super) async fn put(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
    headers: HeaderMap,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let topic = named(&caller, &name)?;
    let asked = IfMatch::read(&headers)?;
    let settings = read_settings(&body.bytes)?;
    may_share(&gateway, &caller, &topic, settings.shared).await?;
    let seen = match asked {
        None => SeenVersion::Any,
        Some(asked) => {
            let names = [(caller.tenant.clone(), topic.clone())];
            let told = gateway.flow.store.read_topics(&names).await.pop().unwrap_or(Ok(None))?;
            asked.against(told.map_or(0, |told| told.version))?
        }
    };
    change(&gateway, &caller, &topic, seen, TopicChange::Settings(settings)).await
}

/// Checks whether the caller may share the topic or end the sharing: that affects the jobs of all tenants.
async fn may_share(gateway: &Gateway, caller: &Caller, topic: &Topic, shared: bool) -> Result<(), Problem> {
    let default = Tenant::default();
    if caller.tenant != default {
        let why = "is said of the topic of tenant default, and holds for the topics of that name of all tenants";
        let refused = Problem::field(ProblemCode::InvalidRequest, "/shared", why);
        return if shared { Err(refused) } else { Ok(()) };
    }
    if caller.key.tenant.is_none() {
        return Ok(());
    }
    let told = gateway.flow.store.read_topics(&[(default, topic.clone())]).await.pop().unwrap_or(Ok(None))?;
    if told.is_some_and(|told| told.settings.shared) == shared {
        return Ok(());
    }
    let why = "this key lacks all tenants: whether a topic is shared is about the jobs of every one of them";
    Err(Problem::new(ProblemCode::MissingScope, why))
}

/// Pause a topic: its jobs wait as `queued` from now on. Running jobs continue.
#[utoipa::path(
    post, path = "/api/v1/topics/{topic}/pause", tag = "topics",
    params(("topic" = String, Path, description = "The topic")),
    request_body = schema::CancelRequest,
    responses((status = 200, description = "As it is now", body = schema::Topic))
)]
pub(super) async fn pause(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let topic = named(&caller, &name)?;
    let mut faults = Faults::default();
    let reason = read_reason(&body.bytes, &mut faults)?;
    faults.into_result()?;
    let since = gateway.flow.store.ping().await?.0;
    let paused = Paused { since, by: caller.key.id.clone(), reason };
    change(&gateway, &caller, &topic, SeenVersion::Any, TopicChange::Pause(paused)).await
}

/// Resume a topic: waiting jobs are released at once, in order.
#[utoipa::path(
    post, path = "/api/v1/topics/{topic}/resume", tag = "topics",
    params(("topic" = String, Path, description = "The topic")),
    responses((status = 200, description = "As it is now", body = schema::Topic))
)]
pub(super) async fn resume(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(name): Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let topic = named(&caller, &name)?;
    change(&gateway, &caller, &topic, SeenVersion::Any, TopicChange::Resume).await
}

async fn change(
    gateway: &Gateway,
    caller: &Caller,
    topic: &Topic,
    seen: SeenVersion,
    change: TopicChange,
) -> Result<Response, Problem> {
    let what = match &change {
        TopicChange::Settings(_) => "topic_set",
        TopicChange::Pause(_) => "topic_paused",
        TopicChange::Resume => "topic_resumed",
    };
    let action = match &change {
        TopicChange::Settings(_) => "topic_set",
        TopicChange::Pause(_) => "topic_pause",
        TopicChange::Resume => "topic_resume",
    };
    gateway.tell(gateway.act(caller, action).target(format!("topic/{topic}"))).await?;
    match gateway.flow.put_topic(&caller.tenant, topic, seen, &change).await? {
        Put::Stored(told) => {
            let (tenant, by, version) = (&caller.tenant, &caller.key.id, told.version);
            tracing::info!(event = what, %tenant, %topic, by, version, "a topic was told something");
            shown(gateway, caller, topic, Some(&told)).await
        }
        Put::Mismatch(told) => Err(changed_meanwhile(told.version)),
    }
}

/// The topic in a path, if the caller may touch it. An invalid topic name is answered as not found.
fn named(caller: &Caller, name: &str) -> Result<Topic, Problem> {
    let none = |why: String| Problem::new(ProblemCode::NotFound, format!("there is no such topic: {why}"));
    let topic = Topic::parse(name).map_err(|why| none(why.to_string()))?;
    caller.may_touch(&topic)?;
    Ok(topic)
}

/// Adds the version to a response as its ETag.
pub(super) fn tagged(mut response: Response, version: u64) -> Response {
    if let Ok(tag) = HeaderValue::try_from(format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// The response with the whole topic and its numbers.
async fn shown(
    gateway: &Gateway,
    caller: &Caller,
    topic: &Topic,
    told: Option<&TopicRecord>,
) -> Result<Response, Problem> {
    let store = &gateway.flow.store;
    let names = [(caller.tenant.clone(), topic.clone())];
    let max = told.and_then(|told| told.settings.concurrency?.max);
    let (lines, snapshot) = tokio::join!(gateway.flow.waiting(&names), store.read_workers());
    let lines: Vec<LineWaiting> = lines?.into_iter().flatten().collect();
    let snapshot = snapshot?;
    let oldest = oldest(gateway, &caller.tenant, &lines).await?;
    let places = match max {
        Some(max) => {
            let (_, held, _) = store.read_slots(&caller.tenant, &Limit::Topic(topic.clone())).await?;
            Some(u64::from(max).saturating_sub(held))
        }
        None => None,
    };
    let workers = workers_of(gateway, snapshot.as_ref(), &caller.tenant, topic);
    let (waits, worth) = (Waits::of(&lines), Waits::worth_workers(&lines, &workers));
    let body = view::document(|json| {
        write_settings(json, &caller.tenant, topic, told);
        json.integer("backlog", waits.sum());
        json.integer("runnable", runnable(told, worth, places));
        if let Some(oldest) = oldest {
            let age = store.now().since(oldest).as_millis();
            json.integer("oldest_age_ms", u64::try_from(age).unwrap_or(u64::MAX));
        }
        json.object(Some("counts"), |json| {
            json.integer("queued", waits.queued);
            if let Some(offered) = waits.offered {
                json.integer("dispatched", offered);
            }
        });
        json.integer("workers", workers.len() as u64);
    });
    Ok(tagged(json(StatusCode::OK, body), told.map_or(0, |told| told.version)))
}

/// The time since which the oldest job waits: in the backlogs, since it was accepted; on the bus, since it was
/// offered.
async fn oldest(gateway: &Gateway, tenant: &Tenant, lines: &[LineWaiting]) -> Result<Option<Time>, Problem> {
    let names: Vec<(Tenant, Line)> = lines.iter().map(|line| (tenant.clone(), line.known.line.clone())).collect();
    let offered = lines.iter().filter(|line| line.offered != Some(0)).take(MOST_ASKED);
    let asked = offered.map(async |line| gateway.flow.bus.oldest(&subjects::offer(tenant, &line.known.line)).await);
    let (queued, offered) = tokio::join!(gateway.flow.store.oldest_queued(&names), join_all(asked));
    let offered = offered.into_iter().filter_map(|first| if let Known::Oldest(at) = first { Some(at) } else { None });
    Ok(queued?.into_iter().flatten().chain(offered).min())
}

/// How many jobs more workers could run now: the waiting jobs, less those that a pause, a rate or a limit holds back.
fn runnable(told: Option<&TopicRecord>, worth: Waits, places: Option<u64>) -> u64 {
    match told {
        Some(told) if told.paused.is_some() => 0,
        Some(TopicRecord { settings, .. }) => {
            let most = settings.rate.map(|rate| u64::from(rate.burst)).into_iter().chain(places).min();
            worth.offered.unwrap_or(0) + most.map_or(worth.queued, |most| worth.queued.min(most))
        }
        None => worth.sum(),
    }
}

fn workers_of<'a>(
    gateway: &Gateway,
    snapshot: Option<&'a WorkerSnapshot>,
    tenant: &Tenant,
    topic: &Topic,
) -> Vec<&'a WorkerSeen> {
    let shared = gateway.flow.settings.is_shared(topic.as_str());
    let all = snapshot.into_iter().flat_map(|snapshot| &snapshot.workers);
    all.filter(|worker| worker.serves(tenant.as_str(), shared) && worker.takes(topic.as_str())).collect()
}

fn write_settings(json: &mut Json, tenant: &Tenant, topic: &Topic, told: Option<&TopicRecord>) {
    json.text("topic", topic.as_str());
    json.text("tenant", tenant.as_str());
    json.boolean("declared", told.is_some());
    json.integer("version", told.map_or(0, |told| told.version));
    json.moment("updated_at", told.and_then(|told| told.updated_at.some()));
    let paused = told.and_then(|told| told.paused.as_ref());
    json.boolean("paused", paused.is_some());
    if let Some(paused) = paused {
        json.object(Some("pause"), |json| {
            json.moment("since", paused.since().some());
            json.text("by", &paused.by);
            if !paused.reason.is_empty() {
                json.text("reason", &paused.reason);
            }
        });
    }
    let settings = told.map(|told| &told.settings);
    if let Some(limits) = settings.and_then(|settings| settings.concurrency) {
        json.object(Some("concurrency"), |json| {
            limits.max.into_iter().for_each(|n| json.integer("max", n.into()));
            limits.per_key.into_iter().for_each(|n| json.integer("per_key", n.into()));
        });
    }
    if let Some(rate) = settings.and_then(|settings| settings.rate) {
        json.object(Some("rate"), |json| {
            json.number("per_s", rate.per_s);
            json.integer("burst", rate.burst.into());
        });
    }
    let Some(settings) = settings else { return };
    settings.max_backlog.into_iter().for_each(|n| json.integer("max_backlog", n));
    if let Some(retry) = settings.retry {
        json.object(Some("retry"), |json| {
            json.integer("max_attempts", retry.max_attempts.into());
            json.object(Some("backoff"), |json| {
                json.integer("initial_ms", retry.initial_ms);
                json.number("factor", retry.factor);
                json.integer("max_ms", retry.max_ms);
                json.number("jitter", retry.jitter);
            });
        });
    }
    if settings.shared {
        json.boolean("shared", true);
    }
    if let Some(schema) = &settings.schema {
        json.raw("schema", schema.to_string().as_bytes());
    }
    settings.timeout_ms.into_iter().for_each(|ms| json.integer("timeout_ms", ms.into()));
    settings.lease_ms.into_iter().for_each(|ms| json.integer("lease_ms", ms.into()));
    if let Some(kept) = settings.retention {
        json.object(Some("retention"), |json| {
            kept.succeeded_ms.into_iter().for_each(|ms| json.integer("succeeded_ms", ms));
            kept.failed_ms.into_iter().for_each(|ms| json.integer("failed_ms", ms));
        });
    }
}
