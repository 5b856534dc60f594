//! Writes the list of live workers, for every gateway to show, and the gauges of the whole fleet.
//!
//! Every scheduler hears every worker, but only one writes, so that all gateways show the same list and sums over
//! replicas are right. A scheduler that has just begun to listen knows few workers: it keeps another replica's snapshot
//! until it must have heard every worker, but continues its own snapshot at once. This loop also drops the names of
//! unused lines (`names`) and measures the state of the stores (`vitals`).

mod gauges;
mod names;
mod shown;
mod vitals;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_replica::{LoopOf, Member};
use muster_store::{LeaderLock, Lease, WorkerSnapshot};

use self::{gauges::FleetGauges, vitals::VitalGauges};
use crate::{context::Context, loop_names::SNAPSHOT};

/// The lifetime of a snapshot, in intervals.
const KEPT_FOR: u32 = 7;
/// How soon a scheduler that does not know all workers yet runs again.
const LISTENING: Duration = Duration::from_secs(1);

pub(super) struct Snapshot {
    context: Arc<Context>,
    kept: Duration,
    /// Whether this replica has written the current snapshot.
    own: bool,
    gauges: FleetGauges,
    vitals: VitalGauges,
}

impl LoopOf<Arc<Context>> for Snapshot {
    fn make(member: &Member, context: &Arc<Context>) -> Option<Snapshot> {
        let (gauges, vitals) = (FleetGauges::default(), VitalGauges::default());
        Some(Snapshot {
            context: context.clone(),
            kept: KEPT_FOR * member.interval::<Snapshot>(),
            own: false,
            gauges,
            vitals,
        })
    }
}

impl Loop for Snapshot {
    const NAME: &'static str = SNAPSHOT;
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Snapshot.as_str(),
        why: "every replica hears the same heartbeats, and the later write wins; a line's name is removed only if no \
              replica has noted it since it was read",
        duplicate_costs: "the same list is written twice, and workers are counted twice until one replica stops \
                          leading",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, _budget: Budget) -> anyhow::Result<Counts> {
        let (context, mut counts) = (self.context.clone(), Counts::none());
        // A replica that hears no worker must not report that there are none.
        anyhow::ensure!(context.bus().is_connected(), "not connected to NATS, so no heartbeat can arrive");
        let knows_all = self.own || context.fleet.has_heard_all(Instant::now());
        if !knows_all && context.store().read_workers().await?.is_some() {
            counts.add("still_listening", 1);
            counts.due_in(LISTENING);
            return Ok(counts);
        }
        let at = context.store().now();
        let workers = context.fleet.live(Instant::now(), at);
        counts.add("workers", workers.len() as u64);
        counts.add("unhealthy", workers.iter().filter(|worker| !worker.healthy).count() as u64);
        let snapshot = WorkerSnapshot { at, workers };
        context.store().put_workers(lease, &snapshot, self.kept).await?;
        self.own = true;
        self.vitals.measure(&context).await;
        self.gauges.measure(&context, lease, &snapshot.workers).await?;
        Ok(counts)
    }

    fn stands_down(&mut self) {
        self.own = false;
        self.gauges.stand_down();
        self.vitals.stand_down();
    }
}
