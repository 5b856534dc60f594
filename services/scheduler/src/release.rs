//! The last steps of a release: publish offers, forward homes, remove entries from the backlog.
//!
//! Promises: this order, so that a replica that dies on the way leaves an entry that the next claim
//! finishes. Leaves to others: claiming and dispatching (`backlog`, and `slots` for jobs under a limit).

use std::{sync::Arc, time::Duration};

use muster_domain::JobId;
use muster_flow::Offering;
use muster_store::QueueEntry;
use muster_wire::v1::{JobEvent, Offer};

use crate::{
    context::Context,
    events, route_notices, route_registry,
    route_state::{PerRoute, RouteState},
};

/// What to do with the claimed entries of a round.
#[derive(Default)]
pub(crate) struct Sorted {
    pub(crate) offers: Vec<Offer>,
    pub(crate) offered: Vec<Ready>,
    /// Some offers may be on the stream already; under the same message id the stream would drop them.
    pub(crate) again: bool,
    /// Entries of jobs that are no longer in the backlog.
    pub(crate) over: Vec<QueueEntry>,
    /// Homes to forward, of those jobs in `over` that have not ended: the replica that released them may have died
    /// between offer and forward, and a queued job's home is far ahead.
    pub(crate) nearer: Vec<(JobId, Duration)>,
    /// Entries of jobs that are queued under another version.
    pub(crate) renewed: Vec<Renewed>,
    /// Places in the window that stay empty.
    pub(crate) unused: u64,
}

/// An entry to be replaced: the process that gave the job its new version may have died before it wrote the new entry.
/// The home stays, because it is no later than that of any queued job.
pub(crate) struct Renewed {
    pub(crate) old: QueueEntry,
    pub(crate) new: QueueEntry,
}

/// A job that is about to be offered.
pub(crate) struct Ready {
    pub(crate) entry: QueueEntry,
    /// How far to forward its home; none if the home is near enough.
    pub(crate) look: Option<Duration>,
    /// None if the release writes no transition to the record.
    pub(crate) event: Option<JobEvent>,
}

/// Publishes, forwards and removes, in this order.
pub(crate) async fn publish(context: &Context, route: &Arc<RouteState>, sorted: Sorted) {
    let Sorted { offers, mut offered, over, nearer: mut homes, renewed, again, .. } = sorted;
    let how = Offering { most: route.window().per_message(), again };
    route_registry::note(context.store(), route_registry::due(std::iter::once(route))).await;
    // Publish the events before a worker can start the jobs, so that watchers see both in this order.
    events::tell(context.bus(), offered.iter_mut().filter_map(|ready| ready.event.take()).collect()).await;
    let published = if offers.is_empty() { Vec::new() } else { context.flow.offer(offers, how).await };
    muster_flow::failpoint!("release.after_offer");
    let (mut stand, mut finished) = (PerRoute::default(), over);
    for (ready, result) in offered.into_iter().zip(published) {
        if result.is_err() {
            route.window().give_back(1);
            continue;
        }
        stand.add(route);
        homes.extend(ready.look.map(|look| (ready.entry.job, look)));
        finished.push(ready.entry);
    }
    route_notices::published(context, &stand, how.most).await;
    finished.extend(renew(context, route, renewed).await);
    let forwarded = context.forward(&homes).await.is_ok();
    muster_flow::failpoint!("release.after_forward");
    if forwarded && !finished.is_empty() && context.store().remove_queued(&finished).await.is_ok() {
        route.window().dequeued(finished.len() as u64);
    }
}

/// Enqueues jobs under their current versions. Returns the old entries, which may be removed; none if that failed,
/// because they are then the only way to those jobs.
async fn renew(context: &Context, route: &Arc<RouteState>, renewed: Vec<Renewed>) -> Vec<QueueEntry> {
    let (old, new): (Vec<_>, Vec<_>) = renewed.into_iter().map(|Renewed { old, new }| (old, new)).unzip();
    if new.is_empty() || context.store().enqueue(&new).await.is_err() {
        return Vec::new();
    }
    route.window().queued(new.len() as u64);
    if route.can_release() {
        context.routes.poke(route);
    }
    old
}
