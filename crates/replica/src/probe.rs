//! Checks whether the stores answer, and updates readiness.
//!
//! Each store is asked, with a limit of one second, a question that only a working server answers:
//! an open connection says nothing about a server that hangs.
//! [`muster_chassis::Health::stay_up_degraded`] decides whether a replica stays up without a store.

use std::time::Duration;

use muster_chassis::{Health, Part, Tasks};
use muster_flow::Flow;
use muster_store::{Store, StoreError};
use muster_telemetry::{Gauge, set};

use crate::Member;

/// The time between two questions to a store that answers.
const EVERY: Duration = Duration::from_secs(2);
/// The time between two questions to a store that is down; short, so that its return is noticed soon.
const AGAIN: Duration = Duration::from_millis(250);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(1);
/// If the bus does not come up within this time after Redis, it counts as down.
const BUS_COMES: Duration = Duration::from_secs(10);

/// The parts of readiness that the probe sets.
#[derive(Clone)]
struct Parts {
    redis: Part,
    nats: Part,
    data: Part,
}

impl Parts {
    fn new(health: &Health) -> Parts {
        let parts =
            Parts { redis: health.part("redis"), nats: health.part("nats"), data: health.required("data format") };
        // Ready until Redis says otherwise: a replica may stay up without Redis.
        parts.data.ready();
        parts
    }
}

impl Member {
    /// Asks both stores repeatedly, each in its own loop, until `tasks` stop; creates the streams
    /// when the bus comes up. Adds the parts `redis`, `nats` and `data format` to readiness.
    pub fn probe(&self, tasks: &Tasks) {
        let parts = Parts::new(&self.chassis.health);
        let (flow, stop) = (self.flow.clone(), tasks.stopping());
        tasks.supervise("probe", move || {
            let (flow, parts, stop) = (flow.clone(), parts.clone(), stop.clone());
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = watch_redis(&flow.store, &parts.redis, &parts.data) => {}
                    () = watch_nats(&flow, &parts.nats) => {}
                }
                Ok(())
            }
        });
    }
}

/// Returns once Redis answers and the bus has its streams, or the wait for the bus has timed out.
pub async fn stores_came(flow: &Flow) {
    while flow.store.ping().await.is_err() {
        tokio::time::sleep(AGAIN).await;
    }
    let _ = tokio::time::timeout(BUS_COMES, async {
        flow.bus.connected().await;
        flow.bus.ensure_streams().await
    })
    .await;
}

/// Sets the metric for the number of connections to Redis.
pub fn show_connections(store: &Store) {
    let connections = store.router().connections();
    for (state, n) in [("shared", connections.shared), ("busy", connections.busy), ("idle", connections.idle)] {
        set(Gauge::RedisConnections, &[("state", state)], n as f64);
    }
}

async fn watch_redis(store: &Store, part: &Part, data: &Part) {
    loop {
        let there = match store.ping().await {
            Ok(_) => {
                part.ready();
                match store.check_format().await {
                    Ok(()) => data.ready(),
                    Err(newer @ StoreError::Newer { .. }) => data.not_ready(newer.to_string()),
                    // An unknown format changes nothing.
                    Err(_) => {}
                }
                true
            }
            Err(fault) => {
                part.not_ready(fault.to_string());
                false
            }
        };
        show_connections(store);
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
