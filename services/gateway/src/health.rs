//! Finds out whether the stores are there, and tells readiness. A gateway stays up without them.

use std::time::Duration;

use muster_chassis::Part;
use muster_flow::Flow;
use muster_telemetry::{Gauge, set};
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(2);

/// Asks both stores every two seconds and whenever the bus comes or goes, until the stop; makes the
/// streams when the bus comes.
pub(crate) async fn probe(flow: &Flow, redis: &Part, nats: &Part, stop: &CancellationToken) {
    let mut streams = false;
    let mut state = flow.bus.watch_state();
    loop {
        match flow.store.ping().await {
            Ok(_) => redis.ready(),
            Err(fault) => redis.not_ready(fault.to_string()),
        }
        let connections = flow.store.router().connections();
        set(Gauge::RedisConnections, &[("state", "shared")], connections.shared as f64);
        set(Gauge::RedisConnections, &[("state", "busy")], connections.busy as f64);
        set(Gauge::RedisConnections, &[("state", "idle")], connections.idle as f64);
        if !flow.bus.is_connected() {
            streams = false;
            nats.not_ready("not connected");
        } else if streams {
            nats.ready();
        } else {
            match flow.bus.ensure_streams().await {
                Ok(()) => {
                    streams = true;
                    nats.ready();
                }
                Err(fault) => nats.not_ready(fault.to_string()),
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
            Ok(()) = state.changed() => {}
        }
    }
}
