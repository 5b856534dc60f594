//! The scheduler's periodic loops: one file each, and the list that starts them.

mod backlog;
mod config_watch;
mod reconciler;
mod reread;
mod scrub;
mod snapshot;
mod streams;

use std::{sync::Arc, time::Duration};

use muster_chassis::{Chassis, Declared, Everyone, Loop, Tasks, Waker};
use muster_store::{LeaderLock, LeaseKeeper, Store};

use crate::{desk::Desk, leaders::Leader};

/// All of them, for the docs.
pub const LOOPS: &[Declared] = &[
    Declared::of::<reconciler::Reconciler>("loop_reconciler_interval"),
    Declared::of::<streams::Streams>("loop_streams_interval"),
    Declared::of::<scrub::Scrub>("loop_scrub_interval"),
    Declared::of::<reread::Reread>("loop_reread_interval"),
    Declared::of::<backlog::Backlog>("loop_backlog_interval"),
    Declared::of::<snapshot::Snapshot>("loop_snapshot_interval"),
    Declared::of::<config_watch::ConfigWatch>("loop_config_interval"),
];

/// The loop that writes down who works, for those who have news for it.
pub(crate) const SNAPSHOT: &str = snapshot::Snapshot::NAME;
/// The loop that reads changed settings.
pub(crate) const CONFIG_WATCH: &str = config_watch::ConfigWatch::NAME;

/// How often the loops look when nothing wakes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intervals {
    pub(crate) reconciler: Duration,
    pub(crate) streams: Duration,
    pub(crate) scrub: Duration,
    pub(crate) reread: Duration,
    pub(crate) backlog: Duration,
    pub(crate) snapshot: Duration,
    pub(crate) config: Duration,
}

/// Registers and starts all of them. Returns who asks for which lock, to be nudged when one is free.
pub(crate) fn start(chassis: &Chassis, desk: &Arc<Desk>, every: Intervals) -> Vec<(LeaderLock, Arc<LeaseKeeper>)> {
    let loops = &chassis.loops;
    let lead = |lock| Leader::campaign(&chassis.tasks, desk.store(), desk.bus(), lock, &chassis.instance);
    let (reconciler, streams) = (lead(LeaderLock::Reconciler), lead(LeaderLock::Streams));
    let (scrub, reread, snapshot) = (lead(LeaderLock::Scrub), lead(LeaderLock::Reread), lead(LeaderLock::Snapshot));
    let keepers = vec![
        (LeaderLock::Reconciler, reconciler.keeper()),
        (LeaderLock::Streams, streams.keeper()),
        (LeaderLock::Scrub, scrub.keeper()),
        (LeaderLock::Reread, reread.keeper()),
        (LeaderLock::Snapshot, snapshot.keeper()),
    ];
    loops.register(every.reconciler).start(reconciler::Reconciler::new(desk.clone()), reconciler);
    loops.register(every.streams).start(streams::Streams::new(desk.clone()), streams);
    let (scrubs, rereads) = (loops.register(every.scrub), loops.register(every.reread));
    watch_topology(&chassis.tasks, desk.store(), [scrubs.waker(), rereads.waker()]);
    scrubs.start(scrub::Scrub::new(desk.clone()), scrub);
    rereads.start(reread::Reread::new(desk.clone()), reread);
    loops.register(every.backlog).start(backlog::Backlog::new(desk.clone()), Everyone);
    loops.register(every.snapshot).start(snapshot::Snapshot::new(desk.clone(), every.snapshot), snapshot);
    loops.register(every.config).start(config_watch::ConfigWatch::new(desk.flow.clone()), Everyone);
    keepers
}

/// Wakes those who mend what a failover may have lost, whenever slots have changed hands.
fn watch_topology(tasks: &Tasks, store: &Store, wakers: [Waker; 2]) {
    let (store, stop) = (store.clone(), tasks.stopping());
    tasks.supervise("topology", move || {
        let (mut topology, stop, wakers) = (store.router().topology(), stop.clone(), wakers.clone());
        async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    changed = topology.changed() => match changed {
                        Ok(()) => wakers.iter().for_each(Waker::wake),
                        Err(_) => return Ok(()),
                    },
                }
            }
        }
    });
}
