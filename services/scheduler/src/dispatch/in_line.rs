//! Puts jobs in line: for anybody to release, or as this replica's own.
//!
//! Promises: what could not be written is told by its places, and comes again; a lane whose line grew is poked if it can
//! release. Leaves to others: which jobs (`dispatch`), and their release (`backlog`).

use std::{sync::Arc, time::Instant};

use muster_store::QueueEntry;

use crate::{
    backlog::CLAIM,
    desk::Desk,
    kept::Copied,
    lanes::{Lane, PerLane},
};

/// Jobs that this replica puts in line and keeps.
#[derive(Default)]
pub(super) struct Keeping {
    pub(super) entries: Vec<QueueEntry>,
    /// Place, lane and submit of each.
    pub(super) rest: Vec<(usize, Arc<Lane>, Copied)>,
}

/// Puts held jobs into the backlog; all their places if that failed.
pub(super) async fn hold(desk: &Desk, held: Vec<(usize, Arc<Lane>, QueueEntry)>) -> Vec<usize> {
    if held.is_empty() {
        return Vec::new();
    }
    muster_flow::failpoint!("hold.after_apply");
    let (mut places, mut entries, mut lanes) = (Vec::new(), Vec::new(), PerLane::default());
    for (place, lane, entry) in held {
        places.push(place);
        entries.push(entry);
        lanes.add(&lane);
    }
    if desk.store().enqueue(&entries).await.is_err() {
        return places;
    }
    lanes.iter().for_each(|(lane, _)| lane.kept.look_again());
    in_line(desk, &lanes);
    Vec::new()
}

/// Puts jobs into the backlog that are ours to release; all their places if that failed.
pub(super) async fn keep(desk: &Desk, kept: Keeping) -> Vec<usize> {
    let Keeping { entries, rest } = kept;
    if entries.is_empty() {
        return Vec::new();
    }
    if desk.store().enqueue_claimed(&entries, CLAIM).await.is_err() {
        return rest.into_iter().map(|(place, ..)| place).collect();
    }
    let (began, now, mut lanes) = (Instant::now(), desk.store().now(), PerLane::default());
    for (entry, (_, lane, copy)) in entries.into_iter().zip(rest) {
        let claimed_until = began + (entry.since + CLAIM).remaining(now).min(CLAIM);
        lanes.add(&lane);
        lane.kept.keep(entry, copy, claimed_until);
    }
    in_line(desk, &lanes);
    Vec::new()
}

/// So many more wait in these lanes.
fn in_line(desk: &Desk, lanes: &PerLane) {
    for (lane, n) in lanes.iter() {
        lane.window().queued(*n);
        if lane.can_release() {
            desk.lanes.poke(lane);
        }
    }
}
