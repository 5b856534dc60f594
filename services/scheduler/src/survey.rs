//! Measures lanes: how many offers stand on the stream, how many jobs wait in Redis.
//!
//! Promises: a lane in use is measured at most every 100 ms, one with offers or a backlog every
//! second, one never seen before its first decision; a store that does not answer leaves the old
//! view standing. Between two measures the windows count this replica's own doings. Leaves to
//! others: what follows from the view.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::{desk::Desk, lanes::Lane, lines, pools};

/// How often a lane in use is measured.
const ACTIVE: Duration = Duration::from_millis(100);
/// How often one that is only occupied is measured.
const OCCUPIED: Duration = Duration::from_secs(1);
/// Questions to the bus at one time.
const AT_ONCE: usize = 16;
/// Lanes asked about in one call to Redis.
const CHUNK: usize = 256;

/// Measures lanes that nobody has measured yet: without that a restarted replica would let
/// newcomers pass a backlog it does not know.
pub(crate) async fn unknown<'a>(desk: &Desk, lanes: impl Iterator<Item = &'a Arc<Lane>>) {
    let mut fresh: Vec<Arc<Lane>> = Vec::new();
    for lane in lanes {
        if !lane.is_surveyed() && !fresh.iter().any(|known| Arc::ptr_eq(known, lane)) {
            fresh.push(lane.clone());
        }
    }
    if !fresh.is_empty() {
        measure(desk, &fresh).await;
    }
}

/// Measures these lanes, and asks for a release where jobs wait and there is room. Returns how
/// many jobs wait in all of them.
pub(crate) async fn measure(desk: &Desk, lanes: &[Arc<Lane>]) -> u64 {
    let counts = async {
        for chunk in lanes.chunks(AT_ONCE) {
            join_all(chunk.iter().map(|lane| count(desk, lane))).await;
        }
    };
    let lengths = async {
        for chunk in lanes.chunks(CHUNK) {
            lengths(desk, chunk).await;
        }
    };
    tokio::join!(counts, lengths);
    let mut waiting = 0;
    for lane in lanes {
        let crew = desk.fleet.crew_of(lane);
        {
            let mut window = lane.window();
            window.served_by(crew);
            window.tick(Instant::now());
            waiting += window.waiting();
        }
        lane.kept.forget(Instant::now());
        if lane.can_release() {
            desk.lanes.poke(lane);
        }
        pools::tell(desk, lane).await;
    }
    lines::note(desk, lines::due(lanes.iter().filter(|lane| lane.is_pooled() && !lane.window().is_idle()))).await;
    waiting
}

async fn count(desk: &Desk, lane: &Lane) {
    let mark = lane.window().mark();
    if let Ok(messages) = desk.bus().subject_count(&lane.subject).await {
        lane.window().counted(mark, messages);
    }
}

async fn lengths(desk: &Desk, lanes: &[Arc<Lane>]) {
    let marks: Vec<_> = lanes.iter().map(|lane| lane.window().mark()).collect();
    let lines: Vec<_> = lanes.iter().map(|lane| (lane.tenant.clone(), lane.line.clone())).collect();
    let Ok(lengths) = desk.store().queue_lens(&lines).await else { return };
    for ((lane, mark), length) in lanes.iter().zip(marks).zip(lengths) {
        lane.window().measured(mark, length);
        lane.set_surveyed();
    }
}

/// Measures lanes in use until stopped; sleeps while none is.
pub(crate) async fn run(desk: &Desk, stop: &CancellationToken) {
    let mut last_full = Instant::now();
    loop {
        let stirred = desk.lanes.stirred.notified();
        tokio::pin!(stirred);
        let mut lanes = desk.lanes.take_active();
        if last_full.elapsed() >= OCCUPIED {
            last_full = Instant::now();
            let more = desk.lanes.occupied();
            lanes.extend(
                more.into_iter().filter(|lane| lanes.iter().all(|known| !Arc::ptr_eq(known, lane))).collect::<Vec<_>>(),
            );
        }
        let pause = if lanes.is_empty() {
            OCCUPIED
        } else {
            measure(desk, &lanes).await;
            ACTIVE
        };
        // While lanes are in use the pause holds; when none is, the first use ends it.
        let idle = lanes.is_empty();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = stirred.as_mut(), if idle => {}
        }
    }
}
