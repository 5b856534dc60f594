//! Enqueues jobs: for any replica to release, or claimed by this replica.
//!
//! Promises: returns the places of jobs that could not be written, so that they are delivered again; pokes a route
//! whose backlog grew if it can release. Leaves to others: the choice of jobs (`dispatch`), and their release
//! (`backlog`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_store::QueueEntry;

use crate::{
    context::Context,
    local_claims::Copied,
    route_state::{PerRoute, RouteState},
};

/// How long this replica's claim on a job that it enqueues lasts. The job normally waits for less; only if this replica
/// freezes does the job wait that long.
const OWN: Duration = Duration::from_secs(5);

/// Jobs that this replica enqueues and claims.
#[derive(Default)]
pub(super) struct Keeping {
    pub(super) entries: Vec<QueueEntry>,
    /// Place, route and submit of each entry.
    pub(super) rest: Vec<(usize, Arc<RouteState>, Copied)>,
}

/// Puts held jobs into the backlog. Returns all places if that failed.
pub(super) async fn hold(context: &Context, held: Vec<(usize, Arc<RouteState>, QueueEntry)>) -> Vec<usize> {
    if held.is_empty() {
        return Vec::new();
    }
    muster_flow::failpoint!("hold.after_apply");
    let (mut places, mut entries, mut routes) = (Vec::new(), Vec::new(), PerRoute::default());
    for (place, route, entry) in held {
        places.push(place);
        entries.push(entry);
        routes.add(&route);
    }
    if context.store().enqueue(&entries).await.is_err() {
        return places;
    }
    routes.iter().for_each(|(route, _)| route.local_claims.look_again());
    in_line(context, &routes);
    Vec::new()
}

/// Puts jobs into the backlog with a claim of this replica. Returns all places if that failed.
pub(super) async fn keep(context: &Context, kept: Keeping) -> Vec<usize> {
    let Keeping { entries, rest } = kept;
    if entries.is_empty() {
        return Vec::new();
    }
    if context.store().enqueue_claimed(&entries, OWN).await.is_err() {
        return rest.into_iter().map(|(place, ..)| place).collect();
    }
    let (began, now, mut routes) = (Instant::now(), context.store().now(), PerRoute::default());
    for (entry, (_, route, copy)) in entries.into_iter().zip(rest) {
        let claimed_until = began + (entry.since + OWN).remaining(now).min(OWN);
        routes.add(&route);
        route.local_claims.keep(entry, copy, claimed_until);
    }
    in_line(context, &routes);
    Vec::new()
}

/// Counts the enqueued jobs in the windows of these routes.
fn in_line(context: &Context, routes: &PerRoute) {
    for (route, n) in routes.iter() {
        route.window().queued(*n);
        if route.can_release() {
            context.routes.poke(route);
        }
    }
}
