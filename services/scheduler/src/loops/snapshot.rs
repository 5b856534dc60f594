//! Writes down who works, for every gateway to show, and counts the fleet for everybody.
//!
//! Every scheduler hears every worker, but only one writes, so that all gateways show the same and
//! sums over replicas are right. A scheduler that has only just begun to listen knows few workers:
//! it leaves another's snapshot alone until it must have heard everybody. Its own it goes on with.
//! Names of lines that nobody uses any more are dropped on the way (`names`).

mod gauges;
mod names;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_store::{LeaderLock, Lease, WorkerSnapshot};

use self::gauges::FleetGauges;
use crate::desk::Desk;

/// A snapshot outlives this many intervals.
const KEPT_FOR: u32 = 7;
/// How soon a scheduler that still listens looks again.
const LISTENING: Duration = Duration::from_secs(1);

/// The loop.
pub(super) struct Snapshot {
    desk: Arc<Desk>,
    kept: Duration,
    /// The snapshot that stands is this replica's.
    own: bool,
    gauges: FleetGauges,
}

impl Snapshot {
    pub(super) fn new(desk: Arc<Desk>, interval: Duration) -> Snapshot {
        Snapshot { desk, kept: KEPT_FOR * interval, own: false, gauges: FleetGauges::default() }
    }
}

impl Loop for Snapshot {
    const NAME: &'static str = "snapshot";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Snapshot.as_str(),
        why: "it writes down what every replica hears, and the later one stands; a line's name goes only if nobody noted it since it was read",
        duplicate_costs: "the same list written twice, workers counted twice until one stands down",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, _budget: Budget) -> anyhow::Result<Counts> {
        let (desk, mut counts) = (self.desk.clone(), Counts::none());
        // Who hears nobody must not tell that nobody is there.
        anyhow::ensure!(desk.bus().is_connected(), "not connected to NATS, so no worker can be heard");
        let knows_all = self.own || desk.fleet.has_heard_all(Instant::now());
        if !knows_all && desk.store().read_workers().await?.is_some() {
            counts.add("still_listening", 1);
            counts.due_in(LISTENING);
            return Ok(counts);
        }
        let at = desk.store().now();
        let workers = desk.fleet.live(Instant::now(), at);
        counts.add("workers", workers.len() as u64);
        counts.add("unhealthy", workers.iter().filter(|worker| !worker.healthy).count() as u64);
        let snapshot = WorkerSnapshot { at, workers };
        desk.store().put_workers(lease, &snapshot, self.kept).await?;
        self.own = true;
        self.gauges.measure(&desk, lease, &snapshot.workers).await?;
        Ok(counts)
    }

    fn stands_down(&mut self) {
        self.own = false;
        self.gauges.stand_down();
    }
}
