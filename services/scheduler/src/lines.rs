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

use crate::{desk::Desk, lanes::Lane};

/// How long jobs wait for the note.
const PATIENCE: Duration = Duration::from_millis(200);

/// Those of these lanes that have to be noted: mostly none.
pub(crate) fn due<'a>(lanes: impl Iterator<Item = &'a Arc<Lane>>) -> Vec<Arc<Lane>> {
    let (now, mut due) = (Instant::now(), Vec::new());
    for lane in lanes {
        if lane.to_be_noted(now).is_some() && !due.iter().any(|known| Arc::ptr_eq(known, lane)) {
            due.push(lane.clone());
        }
    }
    due
}

/// Notes them, and remembers whether that was done.
pub(crate) async fn note(desk: &Desk, due: Vec<Arc<Lane>>) {
    if due.is_empty() {
        return;
    }
    let now = Instant::now();
    let lines: Vec<_> = due.iter().filter_map(|lane| Some((&lane.tenant, &lane.topic, lane.requires()?))).collect();
    let noted = tokio::time::timeout(PATIENCE, desk.store().note_lines(&lines)).await;
    let told = if matches!(noted, Ok(Ok(()))) { Lane::set_noted } else { Lane::set_not_noted };
    due.iter().for_each(|lane| told(lane, now));
}
