//! Writes down which lines a topic has, for whoever counts what waits of it.
//!
//! A line is noted before a job is put into it, and again every minute while there is something in it, so
//! that a name which a failover forgot comes back. A crash in between leaves a name too many. A store that
//! does not take the note at once holds the jobs of a line up for a moment, once a second, and no more: they
//! go on without, and whoever next has to do with the line, or the survey, tries again. Plain lines are known
//! by their topic and cost nothing here. Leaves to others: dropping names (`loops/snapshot/names`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_store::Store;

use crate::route_state::RouteState;

/// How long jobs wait for the note.
const PATIENCE: Duration = Duration::from_millis(200);

/// Those of these routes that have to be noted: mostly none.
pub(crate) fn due<'a>(routes: impl Iterator<Item = &'a Arc<RouteState>>) -> Vec<Arc<RouteState>> {
    let (now, mut due) = (Instant::now(), Vec::new());
    for route in routes {
        if route.to_be_noted(now).is_some() && !due.iter().any(|known| Arc::ptr_eq(known, route)) {
            due.push(route.clone());
        }
    }
    due
}

/// Notes them, and remembers whether that was done.
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
