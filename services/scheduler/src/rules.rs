//! Applies the run-time settings of topics to their routes: pause, rate, concurrency.
//!
//! Knows: when a route lets no job pass, how many jobs its rate grants, and when to ask for tokens again. Promises: a
//! change reaches every route of this replica as soon as the replica knows it, and the end of a pause releases the held
//! jobs at once; a topic without settings costs one load of a pointer. All replicas share one rate, counted in Redis by
//! its clock. Leaves to others: storing and distributing the settings (`flow`), the window (`window`), moving jobs
//! (`backlog`).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use muster_store::Want;
use tokio_util::sync::CancellationToken;

use crate::{context::Context, route_state::RouteState};

/// The longest pause before a route without tokens asks again: its settings may change meanwhile.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// How often a replica without settings polls for them.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Waits until the topics' settings are known: before that a paused topic would look free. False if stopped meanwhile.
pub(crate) async fn are_known(context: &Context, stop: &CancellationToken) -> bool {
    loop {
        tokio::select! {
            biased;
            () = context.flow.settings.known() => return true,
            () = stop.cancelled() => return false,
            () = tokio::time::sleep(ASK_AGAIN) => {}
        }
        // The loop that polls has too long an interval for a scheduler that waits for its store. The store logs a
        // fault.
        let _ = context.flow.poll_settings().await;
    }
}

/// Gives every route the settings of its topic, now and after every change, until stopped.
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

/// Takes tokens of the topic's rate for `wanted` places in the window. Gives the other places back, and pokes the route
/// when there are more tokens. Without a rate, grants all.
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
        // Without Redis, nothing can be released either.
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
