//! Workers, replicas, loops and locks: what the cluster knows about itself, the same on every gateway.
//!
//! Promises: a caller sees only the workers of its own tenant, by the names that the workers gave themselves; all
//! times are absolute, although replicas report ages. Leaves to others: writing this data (the leader of the snapshot
//! loop, and each replica for itself).

use std::time::Duration;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::{Time, Topic, WorkerId};
use muster_store::{LockHolder, LockSeen, Replica, ShardedLock, WorkerSeen};
use serde_json::Value;

use super::json;
use crate::{
    auth::Caller,
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view::{self, Json},
};

/// List the tenant's live workers, in the order of their names.
/// All gateways show the same list, which is written every 5 s. A worker without a heartbeat for 30 s is not in it.
#[utoipa::path(
    get, path = "/api/v1/workers", tag = "workers",
    responses((status = 200, description = "The workers", body = schema::WorkerList))
)]
pub(super) async fn workers(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let snapshot = gateway.flow.store.read_workers().await?;
    let body = view::document(|json| {
        json.moment("as_of", snapshot.as_ref().map(|snapshot| snapshot.at));
        json.list("items", |json| {
            let all = snapshot.iter().flat_map(|snapshot| &snapshot.workers);
            let mut own: Vec<&WorkerSeen> = all.filter(|worker| worker.tenant == caller.tenant.as_str()).collect();
            // Sort by the names that are shown: on the bus an HTTP worker has another name.
            own.sort_by_key(|worker| shown_name(worker));
            for worker in own {
                let topics = visible(&caller, worker);
                if !topics.is_empty() {
                    json.object(None, |json| write_worker(json, worker, &topics));
                }
            }
        });
    });
    Ok(json(StatusCode::OK, body))
}

/// The topics of a worker that the caller's key covers.
pub(super) fn visible<'a>(caller: &Caller, worker: &'a WorkerSeen) -> Vec<&'a str> {
    let fine = |topic: &&str| Topic::parse(topic).is_ok_and(|topic| caller.may_touch(&topic).is_ok());
    worker.topics.iter().map(String::as_str).filter(fine).collect()
}

/// The name that a worker gave itself.
fn shown_name(worker: &WorkerSeen) -> String {
    WorkerId::trusted(worker.id.as_str()).own_name().to_owned()
}

fn write_worker(json: &mut Json, worker: &WorkerSeen, topics: &[&str]) {
    json.text("id", &shown_name(worker));
    json.text("tenant", &worker.tenant);
    if worker.all_tenants {
        json.boolean("all_tenants", true);
    }
    json.list("topics", |json| topics.iter().for_each(|topic| json.item(topic)));
    json.integer("slots", worker.slots.into());
    json.integer("busy", worker.busy.into());
    json.boolean("healthy", worker.healthy);
    if !worker.version.is_empty() {
        json.text("version", &worker.version);
    }
    json.object(Some("labels"), |json| worker.labels.iter().for_each(|(name, value)| json.text(name, value)));
    json.moment("last_seen", worker.last_seen.some());
}

/// List the live replicas of all services.
#[utoipa::path(
    get, path = "/api/v1/replicas", tag = "operations",
    responses((status = 200, description = "The replicas", body = schema::ReplicaList))
)]
pub(super) async fn replicas(
    State(gateway): State<Gateway>,
    caller: Caller,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let replicas = gateway.flow.store.replicas().await?;
    let locks = gateway.flow.store.leader_locks().await?;
    let body = view::document(|json| {
        json.list("items", |json| {
            replicas.iter().for_each(|it| json.object(None, |json| write_replica(json, it, &locks)));
        });
    });
    Ok(json(StatusCode::OK, body))
}

fn write_replica(json: &mut Json, replica: &Replica, locks: &[LockSeen]) {
    json.text("service", &replica.service);
    json.text("instance", &replica.instance);
    json.text("version", &replica.version);
    json.text("admin", &replica.admin);
    json.moment("started_at", replica.started_at.some());
    json.moment("seen_at", replica.seen_at.some());
    json.integer("loops", replica.loops.len() as u64);
    json.list("leads", |json| {
        let led = replica.loops.iter().filter(|entry| entry["state"] == "leading");
        led.filter_map(|entry| entry["name"].as_str()).for_each(|name| json.item(name));
    });
    json.list("holds", |json| {
        for entry in &replica.loops {
            let own = locks_of(entry, locks).filter(|(_, holder)| holder.instance() == replica.instance);
            for (seen, holder) in own {
                json.object(None, |json| {
                    json.text("loop", entry["name"].as_str().unwrap_or_default());
                    json.text("lock", &seen.key);
                    write_holding(json, holder);
                });
            }
        }
    });
    json.list("deciding", |json| replica.deciding.iter().for_each(|job| json.item(job)));
}

/// The held locks of a loop, one for each shard if it has shards, as Redis reports them now. They may be newer than what
/// the replica last announced.
fn locks_of<'a>(entry: &'a Value, locks: &'a [LockSeen]) -> impl Iterator<Item = (&'a LockSeen, &'a LockHolder)> {
    let name = entry["lock"].as_str();
    let of_loop = move |seen: &&LockSeen| match seen.shard {
        Some((lock, _)) => name == Some(lock.as_str()),
        None => name == Some(seen.key.as_str()),
    };
    locks.iter().filter(of_loop).filter_map(|seen| Some((seen, seen.holder.as_ref()?)))
}

fn write_holding(json: &mut Json, holder: &LockHolder) {
    json.integer("fence", holder.fence);
    json.moment("since", holder.since().some());
}

/// List every loop of every replica: why it is safe, which replica leads it, what it last did.
#[utoipa::path(
    get, path = "/api/v1/loops", tag = "operations",
    responses((status = 200, description = "One row for each loop of each replica", body = schema::LoopList))
)]
pub(super) async fn loops(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let replicas = gateway.flow.store.replicas().await?;
    let locks = gateway.flow.store.leader_locks().await?;
    let mut rows: Vec<(&Value, &Replica)> =
        replicas.iter().flat_map(|replica| replica.loops.iter().map(move |entry| (entry, replica))).collect();
    rows.sort_by_key(|(entry, replica)| (entry["name"].as_str(), &replica.service, &replica.instance));
    let body = view::document(|json| {
        json.list("items", |json| {
            for (entry, replica) in rows {
                json.object(None, |json| write_loop(json, entry, replica, &locks));
            }
        });
    });
    Ok(json(StatusCode::OK, body))
}

fn write_loop(json: &mut Json, entry: &Value, replica: &Replica, locks: &[LockSeen]) {
    let said_at = replica.seen_at;
    let before = |ms: &Value| Some(said_at.before(Duration::from_millis(ms.as_u64()?)));
    let after = |ms: &Value| Some(Time(said_at.0.saturating_add(ms.as_u64()?.saturating_mul(1000))));
    let word = |json: &mut Json, name: &str, value: &Value| {
        if let Some(text) = value.as_str() {
            json.text(name, text);
        }
    };
    let number = |json: &mut Json, name: &str, value: &Value| {
        if let Some(n) = value.as_u64() {
            json.integer(name, n);
        }
    };
    word(json, "loop", &entry["name"]);
    json.text("service", &replica.service);
    json.text("instance", &replica.instance);
    for name in ["class", "why_safe", "duplicate_costs", "state"] {
        word(json, name, &entry[name]);
    }
    match entry["lock"].as_str() {
        Some(lock) => {
            json.text("lock", lock);
            // A loop with shards has a leader for each: its row shows the shards of its own replica.
            let own = |(_, holder): &(_, &LockHolder)| holder.instance() == replica.instance;
            let sharded = ShardedLock::named(lock).is_some();
            let mut held = locks_of(entry, locks).filter(|it| !sharded || own(it)).peekable();
            if let Some((_, holder)) = held.peek() {
                json.text("holder", holder.instance());
                write_holding(json, holder);
            }
            if sharded {
                let shards: Vec<u8> = held.filter_map(|(seen, _)| seen.shard.map(|(_, shard)| shard)).collect();
                json.raw("shards", format!("{shards:?}").as_bytes());
            }
        }
        None => json.moment("since", before(&entry["held_for_ms"])),
    }
    for name in ["interval_ms", "budget_ms", "ticks", "merged_hints", "running_for_ms"] {
        number(json, name, &entry[name]);
    }
    let last = &entry["last"];
    json.moment("last_tick_at", before(&last["ago_ms"]));
    number(json, "last_took_ms", &last["took_ms"]);
    word(json, "outcome", &last["outcome"]);
    word(json, "error", &last["error"]);
    if last["counts"].is_object() {
        json.raw("counts", last["counts"].to_string().as_bytes());
    }
    json.moment("next_tick_at", after(&entry["next_in_ms"]));
    json.moment("said_at", said_at.some());
}

/// List the locks as Redis has them now.
/// These are the locks of the leaders, held or not, and the locks on jobs about which a scheduler asks a decider.
#[utoipa::path(
    get, path = "/api/v1/locks", tag = "operations",
    responses((status = 200, description = "The locks", body = schema::LockList))
)]
pub(super) async fn locks(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.take_read(&caller).await?;
    let locks = gateway.flow.store.locks().await?;
    let body = view::document(|json| {
        json.list("items", |json| locks.iter().for_each(|seen| json.object(None, |json| write_lock(json, seen))));
    });
    Ok(json(StatusCode::OK, body))
}

fn write_lock(json: &mut Json, seen: &LockSeen) {
    json.text("key", &seen.key);
    if let Some(job) = seen.job {
        json.text("job_id", &job.to_string());
    }
    json.boolean("held", seen.holder.is_some());
    if let Some(holder) = &seen.holder {
        json.text("holder", holder.instance());
        json.text("owner", &holder.owner);
        write_holding(json, holder);
        json.integer("ttl_ms", u64::try_from(seen.left.as_millis()).unwrap_or(u64::MAX));
    }
}
