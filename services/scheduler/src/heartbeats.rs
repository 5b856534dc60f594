//! Listens to the heartbeats and handshakes of workers.
//!
//! Promises: a heartbeat updates the fleet and the windows of the worker's topics, and starts the
//! release of a backlog that waited for this worker. Leaves to others: the fleet's state (`fleet`),
//! notices to workers (`route_notices`).

use std::time::{Duration, Instant};

use muster_bus::subjects;
use muster_wire::{Body, v1::Heartbeat};
use tokio_util::sync::CancellationToken;

use crate::{context::Context, loop_names::SNAPSHOT, route_notices};

/// Changes of the fleet within this time share one snapshot.
const GATHER: Duration = Duration::from_millis(100);
/// How often the fleet is swept for silent workers.
const SWEEP: Duration = Duration::from_secs(1);

/// Listens to heartbeats and handshakes until stopped. A heartbeat creates the routes of the worker's topics in this
/// replica, so that a backlog that waited for the worker is found and released at once.
pub(crate) async fn listen(context: &Context, stop: &CancellationToken) -> anyhow::Result<()> {
    let mut beats = context.bus().subscribe(&subjects::heartbeat(), None).await?;
    let mut hands = context.bus().subscribe(&subjects::handshake(), None).await?;
    context.fleet.listens(Instant::now());
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = sweep.tick() => {
                if context.fleet.sweep(Instant::now()) {
                    context.loops.wake(SNAPSHOT, GATHER);
                }
                continue;
            }
            received = beats.next() => received,
            received = hands.next() => received,
        };
        let Some(received) = received else { anyhow::bail!("the subscription to heartbeats ended") };
        if let Body::Heartbeat(beat) = received.body {
            note(context, beat).await;
        }
    }
}

async fn note(context: &Context, beat: Heartbeat) {
    route_notices::greet(context, &beat).await;
    let (tenant, topics) = (beat.tenant.clone(), beat.topics.clone());
    let leaving = beat.leaving;
    if context.fleet.heard(beat, Instant::now()) {
        context.loops.wake(SNAPSHOT, GATHER);
    }
    for topic in topics {
        // This replica does not validate a worker's topic names; an invalid one has no route.
        let Ok(route) = context.routes.route(&tenant, &topic) else { continue };
        route.window().served_by(context.fleet.crew_of(&route));
        if !leaving && route.can_release() {
            context.routes.poke(&route);
        }
    }
}
