//! Puts jobs in line: for anybody to release, or as this replica's own.
//!
//! Promises: what could not be written is told by its places, and comes again; a route whose line grew is poked if it can
//! release. Leaves to others: which jobs (`dispatch`), and their release (`backlog`).

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

/// How long jobs that this replica puts in line are its own to release. They wait for less than that; only a replica
/// that is frozen meanwhile makes them wait for all of it.
const OWN: Duration = Duration::from_secs(5);

/// Jobs that this replica puts in line and keeps.
#[derive(Default)]
pub(super) struct Keeping {
    pub(super) entries: Vec<QueueEntry>,
    /// Place, route and submit of each.
    pub(super) rest: Vec<(usize, Arc<RouteState>, Copied)>,
}

/// Puts held jobs into the backlog; all their places if that failed.
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

/// Puts jobs into the backlog that are ours to release; all their places if that failed.
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

/// So many more wait in these routes.
fn in_line(context: &Context, routes: &PerRoute) {
    for (route, n) in routes.iter() {
        route.window().queued(*n);
        if route.can_release() {
            context.routes.poke(route);
        }
    }
}
