//! Announces lines to workers, where only some workers may pull from them.
//!
//! Every worker of a topic pulls its tenant's plain line by itself. A line whose jobs have requirements is pulled only
//! by workers that provide them, and a line of another tenant's shared topic only by workers for all tenants. The
//! scheduler that has offers for such a line announces it to these workers: at once, then every second while there are
//! offers, and with each of their heartbeats. The next notice makes up for a lost one; a worker that gets no more
//! notices of a line stops pulling from it. Any scheduler may announce, and a second notice does no harm. Leaves to
//! others: which worker provides what (`fleet`), the work of a line (`route_state`).

use std::time::Instant;

use futures_util::future::join_all;
use muster_bus::{Bus, subjects};
use muster_domain::WorkerId;
use muster_wire::{
    Body,
    v1::{Control, Heartbeat, Pool},
};

use crate::{
    context::Context,
    fleet::Fleet,
    route_state::{PerRoute, RouteState},
};

/// Announces this route to all workers that may run its jobs, unless it has just been announced or is idle.
pub(crate) async fn tell(bus: &Bus, fleet: &Fleet, route: &RouteState) {
    if !(route.is_pooled() || route.is_shared()) || route.window().is_idle() || !route.to_be_told(Instant::now()) {
        return;
    }
    let takers = fleet.takers(route);
    join_all(takers.iter().map(|worker| notice(bus, worker, vec![pool(route)]))).await;
}

/// Counts offers that are now on the stream, in messages of up to `most` offers, and announces their routes.
pub(crate) async fn published(context: &Context, offers: &PerRoute, most: usize) {
    for (route, n) in offers.iter() {
        let messages = n.div_ceil(most as u64);
        route.window().published(*n, messages);
        tell(context.bus(), &context.fleet, route).await;
    }
}

/// Announces to a worker the routes that it may pull from, after a heartbeat.
pub(crate) async fn greet(context: &Context, beat: &Heartbeat) {
    if beat.leaving {
        return;
    }
    let worker = WorkerId::trusted(beat.worker.as_str());
    let mut routes = context.routes.pooled(&beat.tenant, &beat.topics);
    if beat.all_tenants {
        routes.extend(context.routes.shared(&beat.tenant, &beat.topics));
    }
    let fitting = routes.iter().filter(|route| route.fits(worker.own_name(), &beat.labels));
    let pools: Vec<Pool> = fitting.map(|route| pool(route)).collect();
    if !pools.is_empty() {
        notice(context.bus(), &worker, pools).await;
    }
}

async fn notice(bus: &Bus, worker: &WorkerId, pools: Vec<Pool>) {
    let control = Control { pools, ..Default::default() };
    let _ = bus.broadcast(&subjects::worker_ctl(worker), Body::Control(control)).await;
}

fn pool(route: &RouteState) -> Pool {
    Pool { topic: route.topic.to_string(), pool: route.line.pool().to_owned(), tenant: route.tenant.to_string() }
}
