//! Finds out whether the stores are there, and tells readiness. A gateway stays up without them.
//!
//! Each store is asked a question that only a living one answers, within a second: a connection
//! that stands says nothing about a server that hangs.

use std::time::Duration;

use muster_chassis::{Health, Part};
use muster_flow::Flow;
use muster_store::StoreError;
use muster_telemetry::{Gauge, set};
use tokio_util::sync::CancellationToken;

use crate::doctor;

/// Between two questions to a store that is there.
const EVERY: Duration = Duration::from_secs(2);
/// Between two questions to one that is not: it should not be missed for longer than it is away.
const AGAIN: Duration = Duration::from_millis(250);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(1);
/// A bus that is not there so long after Redis is looked at as one that is away.
const BUS_COMES: Duration = Duration::from_secs(10);

/// What is told.
#[derive(Clone)]
pub(crate) struct Parts {
    redis: Part,
    nats: Part,
    data: Part,
}

impl Parts {
    pub(crate) fn new(health: &Health) -> Parts {
        let parts =
            Parts { redis: health.part("redis"), nats: health.part("nats"), data: health.required("data format") };
        // Until Redis says otherwise: a gateway stays up without it.
        parts.data.ready();
        parts
    }
}

/// Asks both stores at once and then again and again, each by itself, until the stop; makes the
/// streams when the bus comes.
pub(crate) async fn probe(flow: &Flow, parts: &Parts, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = watch_redis(flow, &parts.redis, &parts.data) => {}
        () = watch_nats(flow, &parts.nats) => {}
        () = look_once(flow) => {}
    }
}

/// Once the stores are there: says in the log what of them is not as it should be.
async fn look_once(flow: &Flow) {
    while flow.store.ping().await.is_err() {
        tokio::time::sleep(AGAIN).await;
    }
    let _ = tokio::time::timeout(BUS_COMES, async {
        flow.bus.connected().await;
        flow.bus.ensure_streams().await
    })
    .await;
    doctor::tell(&doctor::examine(flow).await);
    std::future::pending().await
}

async fn watch_redis(flow: &Flow, part: &Part, data: &Part) {
    loop {
        let there = match flow.store.ping().await {
            Ok(_) => {
                part.ready();
                match flow.store.check_format().await {
                    Ok(()) => data.ready(),
                    Err(newer @ StoreError::Newer { .. }) => data.not_ready(newer.to_string()),
                    // What is not known changes nothing.
                    Err(_) => {}
                }
                true
            }
            Err(fault) => {
                part.not_ready(fault.to_string());
                false
            }
        };
        let connections = flow.store.router().connections();
        set(Gauge::RedisConnections, &[("state", "shared")], connections.shared as f64);
        set(Gauge::RedisConnections, &[("state", "busy")], connections.busy as f64);
        set(Gauge::RedisConnections, &[("state", "idle")], connections.idle as f64);
        tokio::time::sleep(if there { EVERY } else { AGAIN }).await;
    }
}

async fn watch_nats(flow: &Flow, part: &Part) {
    let mut state = flow.bus.watch_state();
    let mut streams = false;
    loop {
        let asked = match (flow.bus.is_connected(), streams) {
            (false, _) => Err("not connected".to_owned()),
            (true, false) => flow.bus.ensure_streams().await.map_err(|fault| fault.to_string()),
            (true, true) => flow.bus.ping(ANSWER).await.map_err(|fault| fault.to_string()),
        };
        streams = asked.is_ok();
        let pause = if streams { EVERY } else { AGAIN };
        match asked {
            Ok(()) => part.ready(),
            Err(detail) => part.not_ready(detail),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = state.changed() => {}
        }
    }
}
