//! Tells workers of the lines that only some of them may pull from.
//!
//! Every worker of a topic pulls its tenant's plain line by itself. A line whose jobs require something
//! is pulled only by those who provide it, a line of another tenant's shared topic only by those who take
//! the jobs of all tenants, and they learn of it from here: from the scheduler that has
//! offers for it, at once and then every second while there are any, and with each of their
//! heartbeats. A notice that is lost is healed by the next; a worker that hears no more of a line
//! stops pulling from it. Any scheduler may tell, and telling twice is harmless. Leaves to others:
//! who provides what (`fleet`), what a line has to do (`routes`).

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

/// Tells all who may run this route's jobs that there are some, unless they have just heard.
pub(crate) async fn tell(bus: &Bus, fleet: &Fleet, route: &RouteState) {
    if !(route.is_pooled() || route.is_shared()) || route.window().is_idle() || !route.to_be_told(Instant::now()) {
        return;
    }
    let takers = fleet.takers(route);
    join_all(takers.iter().map(|worker| notice(bus, worker, vec![pool(route)]))).await;
}

/// Counts offers of these routes that now stand on the stream, in messages of up to so many, and notifies workers.
pub(crate) async fn published(context: &Context, offers: &PerRoute, most: usize) {
    for (route, n) in offers.iter() {
        let messages = n.div_ceil(most as u64);
        route.window().published(*n, messages);
        tell(context.bus(), &context.fleet, route).await;
    }
}

/// Tells a worker that was just heard what there is for it.
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
