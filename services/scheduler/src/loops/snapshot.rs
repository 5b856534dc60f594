//! Writes down who works, for every gateway to show, and counts the fleet for everybody.
//!
//! Every scheduler hears every worker, but only one writes, so that all gateways show the same and
//! sums over replicas are right. A scheduler that has only just begun to listen knows few workers:
//! it leaves another's snapshot alone until it must have heard everybody. Its own it goes on with.
//! Names of lines that nobody uses any more are dropped on the way (`names`). How the stores are is
//! measured by it too (`vitals`).

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

/// A snapshot outlives this many intervals.
const KEPT_FOR: u32 = 7;
/// How soon a scheduler that still listens looks again.
const LISTENING: Duration = Duration::from_secs(1);

/// The loop.
pub(super) struct Snapshot {
    context: Arc<Context>,
    kept: Duration,
    /// The snapshot that stands is this replica's.
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
        why: "it writes down what every replica hears, and the later one stands; a line's name goes only if nobody noted it since it was read",
        duplicate_costs: "the same list written twice, workers counted twice until one stands down",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, _budget: Budget) -> anyhow::Result<Counts> {
        let (context, mut counts) = (self.context.clone(), Counts::none());
        // Who hears nobody must not tell that nobody is there.
        anyhow::ensure!(context.bus().is_connected(), "not connected to NATS, so no worker can be heard");
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
