//! What topics were told, as it bears on who may go onto the bus: a pause, a rate, how many at once.
//!
//! Knows: when a route lets nobody through, how many its rate grants, and when it may be asked
//! again. Promises: a change reaches every route of this replica as soon as the replica knows it,
//! and what a pause held is released at once when it ends; a topic that was told nothing costs one
//! look at a pointer. The rate is one for all replicas, counted in Redis on its clock. Leaves to
//! others: storing and spreading it (`flow`), the window (`window`), moving jobs (`backlog`).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use muster_store::Want;
use tokio_util::sync::CancellationToken;

use crate::{context::Context, route_state::RouteState};

/// A route whose rate has run out is asked again after this at the latest: it may be told otherwise.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// How often a replica that knows nothing yet asks.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Waits until it is known what topics were told: before that a paused one would look free. False
/// if stopped meanwhile.
pub(crate) async fn are_known(context: &Context, stop: &CancellationToken) -> bool {
    loop {
        tokio::select! {
            biased;
            () = context.flow.settings.known() => return true,
            () = stop.cancelled() => return false,
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
        // The loop that polls has a longer breath than a scheduler that waits for its store. What
        // went wrong is told by the store.
        let _ = context.flow.poll_settings().await;
    }
}

/// Hands every route what its topic was told, now and whenever it changes, until stopped.
pub(crate) async fn obey(context: &Context, stop: &CancellationToken) {
    let mut changes = context.flow.settings.changes();
    loop {
        changes.mark_unchanged();
        for route in context.routes.all() {
            route.set_shared(context.flow.settings.is_shared(route.topic.as_str()));
            let told = context.flow.settings.topic(route.tenant.as_str(), route.topic.as_str());
            let version = |told: Option<&Arc<_>>| told.map(|told: &Arc<muster_store::TopicRecord>| told.version);
            if version(route.rules.load().as_ref()) == version(told.as_ref()) {
                continue;
            }
            route.rules.store(told);
            route.resting.store(false, Ordering::Release);
            if route.can_release() {
                context.routes.poke(&route);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Takes tokens of the topic's rate for so many places of its window; gives the rest of the
/// places back, and has the route asked again once there are more. All of them without a rate.
pub(crate) async fn take_tokens(
    context: &Arc<Context>,
    route: &Arc<RouteState>,
    wanted: u64,
    stop: &CancellationToken,
) -> u64 {
    let Some(limit) = route.rate() else { return wanted };
    let n = u32::try_from(wanted).unwrap_or(u32::MAX);
    let scope = format!("topic:{}", route.topic);
    let (granted, rest) = match context.store().take_tokens(&route.tenant, &scope, n, Want::Some, limit).await {
        Ok(taken) => (u64::from(taken.granted), taken.retry_after),
        // Without Redis nothing can be released either.
        Err(_) => (0, LONGEST_REST),
    };
    if granted < wanted {
        route.window().give_back(wanted - granted);
        rest_for(context, route, rest.min(LONGEST_REST), stop);
    }
    granted
}

fn rest_for(context: &Arc<Context>, route: &Arc<RouteState>, rest: Duration, stop: &CancellationToken) {
    if route.resting.swap(true, Ordering::AcqRel) {
        return;
    }
    let (context_then, route, stop) = (context.clone(), route.clone(), stop.clone());
    context.in_flight.spawn("rest", async move {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(rest) => {}
        }
        route.resting.store(false, Ordering::Release);
        if route.can_release() {
            context_then.routes.poke(&route);
        }
    });
}
