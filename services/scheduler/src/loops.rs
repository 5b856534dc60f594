//! The scheduler's periodic loops: one file and one row each.

mod backlog;
mod reconciler;
mod reread;
mod scrub;
mod snapshot;
mod streams;

use std::sync::Arc;

use muster_chassis::{Declared, Loop, Tasks, Waker};
use muster_replica::{ConfigWatch, Member, Row, declared};
use muster_store::Store;

use crate::context::Context;

const ROWS: [Row<Arc<Context>>; 7] = [
    Row::of::<reconciler::Reconciler>(),
    Row::of::<streams::Streams>(),
    Row::of::<scrub::Scrub>(),
    Row::of::<reread::Reread>(),
    Row::of::<backlog::Backlog>(),
    Row::of::<snapshot::Snapshot>(),
    Row::of::<ConfigWatch>(),
];

/// The loops, for settings and docs.
pub const LOOPS: &[Declared] = &declared(&ROWS);

/// Registers and starts all loops.
pub(crate) fn start(member: &Member, context: &Arc<Context>) {
    let wakers = [scrub::Scrub::NAME, reread::Reread::NAME].map(|name| member.chassis.loops.waker(name));
    watch_topology(&member.chassis.tasks, context.store(), wakers);
    member.start_loops(&ROWS, context);
}

/// Wakes the loops that repair what a failover may have lost, whenever hash slots have moved to another node.
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
