//! An empty service with everything that makes it a replica: settings, both stores, one leader loop,
//! one sharded loop, an admin port and a stop in order. The tests run it as processes.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use muster_chassis::{
    Budget, Chassis, Counts, Declared, Loop, Safety, Setting,
    loops::with_loops,
    settings::{self, Declaration},
};
use muster_replica::{ConfigWatch, LoopOf, Member, Row, Shards, declared};
use muster_store::{LeaderLock, Lease, ShardedLock};

const SERVICE: &str = "muster-tally";

const SETTINGS: &[Declaration] = &with_loops::<{ OWN.len() + LOOPS.len() }>(OWN, LOOPS);

muster_chassis::settings! {
    const OWN = these;
    const ADMIN_ADDR: Setting<SocketAddr> = settings::admin_addr("127.0.0.1:0");
    const STEP: Setting<usize> = Setting::count("step", "MUSTER_STEP", 1..=100, "What each pass adds.").or("1");
}

const ROWS: [Row<Arc<Shared>>; 3] = [Row::of::<Tally>(), Row::of::<Shares>(), Row::of::<ConfigWatch>()];
const LOOPS: &[Declared] = &declared(&ROWS);

/// The state that the parts of the service share.
struct Shared {
    step: u64,
}

/// A loop that counts. No other service asks for its lock in the test's own Redis.
struct Tally {
    shared: Arc<Shared>,
    total: u64,
}

impl LoopOf<Arc<Shared>> for Tally {
    fn make(_: &Member, shared: &Arc<Shared>) -> Option<Tally> {
        Some(Tally { shared: shared.clone(), total: 0 })
    }
}

impl Loop for Tally {
    const NAME: &'static str = "tally";
    const EVERY: &'static str = "1s";
    const SAFE: Safety = Safety::Leader {
        lock: LeaderLock::Scrub.as_str(),
        why: "it counts in its own memory",
        duplicate_costs: "a count",
    };
    type Lease = Lease;

    async fn run_once(&mut self, lease: &Lease, _: Budget) -> anyhow::Result<Counts> {
        lease.leads(LeaderLock::Scrub)?;
        self.total += self.shared.step;
        let mut counts = Counts::none();
        counts.add("total", self.total);
        Ok(counts)
    }
}

/// Counts the shards that this replica owns.
struct Shares;

impl LoopOf<Arc<Shared>> for Shares {
    fn make(_: &Member, _: &Arc<Shared>) -> Option<Shares> {
        Some(Shares)
    }
}

impl Loop for Shares {
    const NAME: &'static str = "shares";
    const EVERY: &'static str = "1s";
    const SAFE: Safety = Safety::Leader {
        lock: ShardedLock::Runs.as_str(),
        why: "it only counts its own leases",
        duplicate_costs: "a count",
    };
    type Lease = Shards;

    async fn run_once(&mut self, shards: &Shards, _: Budget) -> anyhow::Result<Counts> {
        let mut counts = Counts::none();
        counts.add("shards", shards.held().count() as u64);
        Ok(counts)
    }
}

async fn run(chassis: Chassis) -> anyhow::Result<()> {
    let member = Member::connect(&chassis).await?;
    let taking = chassis.tasks.group();
    let shared = Arc::new(Shared { step: chassis.values.get(STEP) as u64 });
    member.probe(&taking);
    member.hear_hints(&taking);
    member.follow_settings(&taking);
    member.start_loops(&ROWS, &shared);
    let values = chassis.values.clone();
    member.announce(move || values.told());
    member.drain_stage("taking", &taking, Duration::from_secs(4));
    member.leases_stage();
    chassis.run_until_stopped().await;
    Ok(())
}

fn main() -> ExitCode {
    muster_chassis::run(SERVICE, SETTINGS, LOOPS, run)
}
