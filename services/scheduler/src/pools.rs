//! Tells workers of the lines that only some of them may pull from.
//!
//! Every worker of a topic pulls its tenant's plain line by itself. A line whose jobs require something
//! is pulled only by those who provide it, a line of another tenant's shared topic only by those who take
//! the jobs of all tenants, and they learn of it from here: from the scheduler that has
//! offers for it, at once and then every second while there are any, and with each of their
//! heartbeats. A notice that is lost is healed by the next; a worker that hears no more of a line
//! stops pulling from it. Any scheduler may tell, and telling twice is harmless. Leaves to others:
//! who provides what (`fleet`), what a line has to do (`lanes`).

use std::time::Instant;

use futures_util::future::join_all;
use muster_bus::subjects;
use muster_domain::WorkerId;
use muster_wire::{
    Body,
    v1::{Control, Heartbeat, Pool},
};

use crate::{desk::Desk, lanes::Lane};

/// Tells all who may run this lane's jobs that there are some, unless they have just heard.
pub(crate) async fn tell(desk: &Desk, lane: &Lane) {
    if !(lane.is_pooled() || lane.is_shared()) || lane.window().is_idle() || !lane.to_be_told(Instant::now()) {
        return;
    }
    let takers = desk.fleet.takers(lane);
    join_all(takers.iter().map(|worker| notice(desk, worker, vec![pool(lane)]))).await;
}

/// Tells a worker that was just heard what there is for it.
pub(crate) async fn greet(desk: &Desk, beat: &Heartbeat) {
    if beat.leaving {
        return;
    }
    let worker = WorkerId::trusted(beat.worker.as_str());
    let mut lanes = desk.lanes.pooled(&beat.tenant, &beat.topics);
    if beat.all_tenants {
        lanes.extend(desk.lanes.shared(&beat.tenant, &beat.topics));
    }
    let fitting = lanes.iter().filter(|lane| lane.fits(worker.own_name(), &beat.labels));
    let pools: Vec<Pool> = fitting.map(|lane| pool(lane)).collect();
    if !pools.is_empty() {
        notice(desk, &worker, pools).await;
    }
}

async fn notice(desk: &Desk, worker: &WorkerId, pools: Vec<Pool>) {
    let control = Control { pools, ..Default::default() };
    let _ = desk.bus().broadcast(&subjects::worker_ctl(worker), Body::Control(control)).await;
}

fn pool(lane: &Lane) -> Pool {
    Pool { topic: lane.topic.to_string(), pool: lane.line.pool().to_owned(), tenant: lane.tenant.to_string() }
}
