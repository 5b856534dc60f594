//! Measures routes: how many offers are on the stream, how many jobs wait in Redis.
//!
//! Promises: a route in use is measured at most every 100 ms, one with offers or a backlog every second, a new one
//! before its first decision. If a store does not answer, the old view stays. Between two measures the windows count
//! this replica's own actions. Leaves to others: conclusions from the view.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::{context::Context, route_notices, route_registry, route_state::RouteState};

/// How often a route in use is measured.
const ACTIVE: Duration = Duration::from_millis(100);
/// How often a route that only has offers or a backlog is measured.
const OCCUPIED: Duration = Duration::from_secs(1);
/// Most questions to the bus at one time.
const AT_ONCE: usize = 16;
/// Routes in one call to Redis.
const CHUNK: usize = 256;

/// Measures routes that were never measured: otherwise, after a restart, new jobs would overtake a backlog that this
/// replica does not know.
pub(crate) async fn unknown<'a>(context: &Context, routes: impl Iterator<Item = &'a Arc<RouteState>>) {
    let mut fresh: Vec<Arc<RouteState>> = Vec::new();
    for route in routes {
        if !route.is_surveyed() && !fresh.iter().any(|known| Arc::ptr_eq(known, route)) {
            fresh.push(route.clone());
        }
    }
    if !fresh.is_empty() {
        measure(context, &fresh).await;
    }
}

/// Measures these routes, and requests a release where jobs wait and there is room. Returns how many jobs wait in all
/// of them.
pub(crate) async fn measure(context: &Context, routes: &[Arc<RouteState>]) -> u64 {
    let counts = async {
        for chunk in routes.chunks(AT_ONCE) {
            join_all(chunk.iter().map(|route| count(context, route))).await;
        }
    };
    let lengths = async {
        for chunk in routes.chunks(CHUNK) {
            lengths(context, chunk).await;
        }
    };
    tokio::join!(counts, lengths);
    let mut waiting = 0;
    for route in routes {
        let crew = context.fleet.crew_of(route);
        {
            let mut window = route.window();
            window.served_by(crew);
            window.tick(Instant::now());
            waiting += window.waiting();
        }
        route.local_claims.forget(Instant::now());
        if route.can_release() {
            context.routes.poke(route);
        }
        route_notices::tell(context.bus(), &context.fleet, route).await;
    }
    route_registry::note(
        context.store(),
        route_registry::due(routes.iter().filter(|route| route.is_pooled() && !route.window().is_idle())),
    )
    .await;
    waiting
}

async fn count(context: &Context, route: &RouteState) {
    let mark = route.window().mark();
    if let Ok(messages) = context.bus().subject_count(&route.subject).await {
        route.window().counted(mark, messages);
    }
}

async fn lengths(context: &Context, routes: &[Arc<RouteState>]) {
    let marks: Vec<_> = routes.iter().map(|route| route.window().mark()).collect();
    let lines: Vec<_> = routes.iter().map(|route| (route.tenant.clone(), route.line.clone())).collect();
    let Ok(lengths) = context.store().queue_lens(&lines).await else { return };
    for ((route, mark), length) in routes.iter().zip(marks).zip(lengths) {
        route.window().measured(mark, length);
        route.set_surveyed();
    }
}

/// Measures routes in use until stopped; sleeps while none is.
pub(crate) async fn run(context: &Context, stop: &CancellationToken) {
    let mut last_full = Instant::now();
    loop {
        let stirred = context.routes.stirred.notified();
        tokio::pin!(stirred);
        let mut routes = context.routes.take_active();
        if last_full.elapsed() >= OCCUPIED {
            last_full = Instant::now();
            let more = context.routes.occupied();
            routes.extend(
                more.into_iter()
                    .filter(|route| routes.iter().all(|known| !Arc::ptr_eq(known, route)))
                    .collect::<Vec<_>>(),
            );
        }
        let pause = if routes.is_empty() {
            OCCUPIED
        } else {
            measure(context, &routes).await;
            ACTIVE
        };
        // While routes are in use, wait for the whole pause; otherwise the first use ends it.
        let idle = routes.is_empty();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = stirred.as_mut(), if idle => {}
        }
    }
}
