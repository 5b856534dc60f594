//! Notes in Redis which lines a topic has, for the count of its waiting jobs.
//!
//! A line is noted before a job is put into it, and again every minute while it has jobs, so that a name that a
//! failover lost comes back. A crash in between leaves an unused name. If the store does not take the note at once, the
//! jobs of the line wait for a moment, at most once a second, and then continue without the note; the next use of the
//! line, or the survey, tries again. Plain lines are known by their topic and need no note. Leaves to others: dropping
//! names (`loops/snapshot/names`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_store::Store;

use crate::route_state::RouteState;

/// How long jobs wait for the note.
const PATIENCE: Duration = Duration::from_millis(200);

/// The routes that must be noted now: mostly none.
pub(crate) fn due<'a>(routes: impl Iterator<Item = &'a Arc<RouteState>>) -> Vec<Arc<RouteState>> {
    let (now, mut due) = (Instant::now(), Vec::new());
    for route in routes {
        if route.to_be_noted(now).is_some() && !due.iter().any(|known| Arc::ptr_eq(known, route)) {
            due.push(route.clone());
        }
    }
    due
}

/// Notes these routes, and remembers in each whether that succeeded.
pub(crate) async fn note(store: &Store, due: Vec<Arc<RouteState>>) {
    if due.is_empty() {
        return;
    }
    let now = Instant::now();
    let lines: Vec<_> = due.iter().filter_map(|route| Some((&route.tenant, &route.topic, route.requires()?))).collect();
    let noted = tokio::time::timeout(PATIENCE, store.note_lines(&lines)).await;
    let told = if matches!(noted, Ok(Ok(()))) { RouteState::set_noted } else { RouteState::set_not_noted };
    due.iter().for_each(|route| told(route, now));
}
