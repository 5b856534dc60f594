//! Writes down who works, for every gateway to show, and counts the fleet for everybody.
//!
//! Every scheduler hears every worker, but only one writes, so that all gateways show the same and
//! sums over replicas are right. A scheduler that has only just begun to listen knows few workers:
//! it leaves another's snapshot alone until it must have heard everybody. Its own it goes on with.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_chassis::{Budget, Counts, Loop, Safety};
use muster_store::{LeaderLock, Lease, WorkerSeen, WorkerSnapshot};
use muster_telemetry::{Gauge, set};

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
    /// What the gauges show.
    shown: BTreeMap<String, u64>,
}

impl Snapshot {
    pub(super) fn new(desk: Arc<Desk>, interval: Duration) -> Snapshot {
        Snapshot { desk, kept: KEPT_FOR * interval, own: false, shown: BTreeMap::new() }
    }

    fn show(&mut self, now: BTreeMap<String, u64>) {
        for topic in self.shown.keys().filter(|topic| !now.contains_key(*topic)) {
            set(Gauge::Workers, &[("topic", topic)], 0.0);
        }
        for (topic, workers) in &now {
            set(Gauge::Workers, &[("topic", topic)], *workers as f64);
        }
        self.shown = now;
    }
}

impl Loop for Snapshot {
    const NAME: &'static str = "snapshot";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Snapshot.as_str(),
        duplicate_costs: "the same list written twice, workers counted twice until one stands down",
    };
    type Lease = Lease;

    async fn run_once(&mut self, _lease: &Lease, _budget: Budget) -> anyhow::Result<Counts> {
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
        let topics = by_topic(&workers);
        desk.store().put_workers(&WorkerSnapshot { at, workers }, self.kept).await?;
        self.own = true;
        self.show(topics);
        Ok(counts)
    }

    fn stands_down(&mut self) {
        self.own = false;
        self.show(BTreeMap::new());
    }
}

fn by_topic(workers: &[WorkerSeen]) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for topic in workers.iter().flat_map(|worker| &worker.topics) {
        *counted.entry(topic.clone()).or_default() += 1;
    }
    counted
}
