//! Which faults a chaos run injects, and when. A pure function of the seed and the shape of the
//! stack, so that a seed that found something finds it again. Leaves to others: doing it (`faults`).

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    mem::discriminant,
    time::Duration,
};

use fastrand::Rng;
use serde::Serialize;

/// Nothing happens before the load runs, nor so late that it could not matter.
const EDGE_MS: u64 = 4_000;
/// From one fault to the next.
const GAP_MS: std::ops::RangeInclusive<u64> = 2_000..=6_000;
/// Two faults of the stores are at least this far apart: one must be able to end before the next.
const STORE_GAP_MS: u64 = 9_000;
/// A run of this length has every kind of fault at that pace, on one server of each and on a cluster. In a shorter
/// one they come closer together until each had its turn.
const WHOLE_MS: [u64; 2] = [78_000, 106_000];

/// What the plan is made for.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) lasts: Duration,
    pub(super) cluster: bool,
    /// The replicas of all services, and the workers, by name.
    pub(super) processes: Vec<String>,
}

/// Where a line leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Store {
    Redis,
    Nats,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub(super) enum Fault {
    /// `kill -9`; the supervisor starts it again.
    Kill { process: String },
    /// SIGTERM: it leaves in order and is started again.
    Leave { process: String },
    /// SIGSTOP, and SIGCONT later.
    Pause { process: String, ms: u64 },
    /// Its connections to a store drop and new ones are closed at once.
    Cut { process: String, store: Store, ms: u64 },
    /// Its connections to a store stay, and nothing comes through.
    Stall { process: String, store: Store, ms: u64 },
    /// What it sends to a store arrives 300 ms later.
    Slow { process: String, store: Store, ms: u64 },
    /// Every JetStream stream is deleted.
    DropStreams,
    /// Every NATS node is killed, its store removed, and started again.
    WipeNats,
    /// One NATS node is killed with -9 and comes back with its store.
    KillNats { node: u64 },
    /// The one Redis stops in order, is away for a while, and comes back with its data.
    RestartRedis { ms: u64 },
    /// A replica is asked to take over; no write is lost.
    HandOver { shard: u64 },
    /// A primary is killed with -9 and its replica takes over; writes it had not passed on are lost.
    KillPrimary { shard: u64 },
}

impl Fault {
    fn of_a_store(&self) -> bool {
        use Fault::{Cut, Kill, Leave, Pause, Slow, Stall};
        !matches!(self, Kill { .. } | Leave { .. } | Pause { .. } | Cut { .. } | Stall { .. } | Slow { .. })
    }

    /// Its kind, for counting.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Fault::Kill { .. } => "kill",
            Fault::Leave { .. } => "leave",
            Fault::Pause { .. } => "pause",
            Fault::Cut { .. } => "cut",
            Fault::Stall { .. } => "stall",
            Fault::Slow { .. } => "slow",
            Fault::DropStreams => "drop_streams",
            Fault::WipeNats => "wipe_nats",
            Fault::KillNats { .. } => "kill_nats",
            Fault::RestartRedis { .. } => "restart_redis",
            Fault::HandOver { .. } => "hand_over",
            Fault::KillPrimary { .. } => "kill_primary",
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Store::Redis => "Redis",
            Store::Nats => "NATS",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |ms: &u64| *ms as f64 / 1_000.0;
        match self {
            Fault::Kill { process } => write!(f, "kill -9 {process}"),
            Fault::Leave { process } => write!(f, "stop {process} with SIGTERM"),
            Fault::Pause { process, ms } => write!(f, "pause {process} for {:.1} s", s(ms)),
            Fault::Cut { process, store, ms } => write!(f, "cut {process} off from {store} for {:.1} s", s(ms)),
            Fault::Stall { process, store, ms } => {
                write!(f, "block all traffic between {process} and {store} for {:.1} s", s(ms))
            }
            Fault::Slow { process, store, ms } => {
                write!(f, "delay the traffic from {process} to {store} for {:.1} s", s(ms))
            }
            Fault::DropStreams => f.write_str("delete every JetStream stream"),
            Fault::WipeNats => f.write_str("restart NATS with an empty store"),
            Fault::KillNats { node } => write!(f, "kill -9 NATS node {}", node + 1),
            Fault::RestartRedis { ms } => write!(f, "restart Redis, down for {:.1} s", s(ms)),
            Fault::HandOver { shard } => write!(f, "fail Redis shard {} over to its replica", shard + 1),
            Fault::KillPrimary { shard } => write!(f, "kill -9 the Redis primary of shard {}", shard + 1),
        }
    }
}

/// A fault and when it begins, from the start of the load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    pub(super) at_ms: u64,
    #[serde(flatten)]
    pub(super) fault: Fault,
}

/// The kinds of faults, as cards of a deck: each kind comes once before any comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card {
    Kill,
    Leave,
    Pause,
    Cut(Store),
    Stall(Store),
    Slow(Store),
    DropStreams,
    WipeNats,
    KillNats,
    Redis,
}

const DECK: &[Card] = &[
    Card::Kill,
    Card::Kill,
    Card::Kill,
    Card::Kill,
    Card::Leave,
    Card::Pause,
    Card::Pause,
    Card::Cut(Store::Redis),
    Card::Cut(Store::Nats),
    Card::Stall(Store::Redis),
    Card::Stall(Store::Nats),
    Card::Slow(Store::Redis),
    Card::Slow(Store::Nats),
    Card::DropStreams,
    Card::WipeNats,
    Card::KillNats,
    Card::Redis,
];

/// The plan of a seed.
pub(super) fn plan(seed: u64, stage: &Stage) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let lasts = u64::try_from(stage.lasts.as_millis()).unwrap_or(u64::MAX);
    let (end, whole) = (lasts.saturating_sub(EDGE_MS), WHOLE_MS[usize::from(stage.cluster)]);
    let (mut steps, mut deck, mut late) = (Vec::new(), Vec::new(), Vec::new());
    let (mut at_ms, mut store_from) = (EDGE_MS, 0);
    // How much closer together in the first round.
    let hurried =
        |ms: u64, seen: &[Step]| if kinds(seen) < all_kinds(stage) { ms * lasts.min(whole) / whole } else { ms };
    // On a cluster a failover comes first, and a replica of another shard is asked as soon as it may be,
    // so that no run is without them, however short.
    if stage.cluster && at_ms < end {
        let shard = rng.u64(..3);
        steps.push(Step { at_ms, fault: Fault::KillPrimary { shard } });
        late.push(Fault::HandOver { shard: (shard + rng.u64(1..=2)) % 3 });
        store_from = at_ms + hurried(STORE_GAP_MS, &steps);
        at_ms += hurried(rng.u64(GAP_MS), &steps);
    }
    while at_ms < end {
        if deck.is_empty() {
            deck = shuffled(&mut rng, stage);
        }
        // A store's fault that would come too soon waits for its turn.
        let ripe = late.iter().position(|_| at_ms >= store_from);
        let fault = match ripe {
            Some(index) => late.remove(index),
            None => match deal(&mut rng, deck.pop().unwrap_or(Card::Kill), stage, end - at_ms) {
                Some(fault) => fault,
                None => continue,
            },
        };
        if fault.of_a_store() && at_ms < store_from {
            late.push(fault);
            continue;
        }
        let of_a_store = fault.of_a_store();
        steps.push(Step { at_ms, fault });
        if of_a_store {
            store_from = at_ms + hurried(STORE_GAP_MS, &steps);
        }
        at_ms += hurried(rng.u64(GAP_MS), &steps);
    }
    steps
}

/// How many kinds of faults these are.
fn kinds(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.fault.kind()).collect::<BTreeSet<_>>().len()
}

/// How many kinds this stage has: on a cluster Redis fails in two ways.
fn all_kinds(stage: &Stage) -> usize {
    DECK.iter().map(discriminant).collect::<HashSet<_>>().len() + usize::from(stage.cluster)
}

/// A deck, to be dealt from its end. Each kind comes before any comes again, and those of the stores
/// first: they must wait for each other, so they need the longest to be done.
fn shuffled(rng: &mut Rng, stage: &Stage) -> Vec<Card> {
    let mut cards = DECK.to_vec();
    // On a cluster every node tells its own address, so only NATS has lines that can be cut.
    let of_redis = |card: &Card| {
        use Card::{Cut, Slow, Stall};
        matches!(card, Cut(Store::Redis) | Stall(Store::Redis) | Slow(Store::Redis))
    };
    cards.retain(|card| !stage.cluster || !of_redis(card));
    rng.shuffle(&mut cards);
    let (mut once, mut again) = (Vec::new(), Vec::new());
    for card in cards {
        let kind = discriminant(&card);
        let known = once.iter().any(|other| discriminant(other) == kind);
        if known { again.push(card) } else { once.push(card) }
    }
    once.sort_by_key(|card| match card {
        // A node of NATS 2.9 that dies just after a stream was made anew may not find into it again: first the
        // node, and last what makes all of NATS new.
        Card::KillNats if stage.cluster => 3,
        Card::DropStreams | Card::Redis if stage.cluster => 2,
        Card::DropStreams | Card::WipeNats | Card::KillNats | Card::Redis => 1,
        _ => 0,
    });
    again.into_iter().chain(once).collect()
}

/// Turns a card into a fault of this stage; `None` where the stage has no such thing.
fn deal(rng: &mut Rng, card: Card, stage: &Stage, left: u64) -> Option<Fault> {
    let mut process = |services_only: bool| {
        let fits = |name: &&String| !services_only || !name.contains("worker");
        let names: Vec<&String> = stage.processes.iter().filter(fits).collect();
        names.get(rng.usize(..names.len().max(1))).map(|name| (*name).clone())
    };
    Some(match card {
        Card::Kill => Fault::Kill { process: process(false)? },
        Card::Leave => Fault::Leave { process: process(false)? },
        Card::Pause => {
            let process = process(false)?;
            // Shorter than a job's lease; longer than that; longer than a leader's lease.
            let spans = [500..=3_000, 5_500..=9_000, 16_000..=20_000];
            let span = spans[rng.usize(..spans.len())].clone();
            Fault::Pause { process, ms: rng.u64(span).min(left) }
        }
        Card::Cut(store) => {
            let process = process(store == Store::Redis)?;
            Fault::Cut { process, store, ms: rng.u64(500..=12_000).min(left) }
        }
        Card::Stall(store) => {
            let process = process(store == Store::Redis)?;
            Fault::Stall { process, store, ms: rng.u64(500..=12_000).min(left) }
        }
        Card::Slow(store) => {
            let process = process(store == Store::Redis)?;
            Fault::Slow { process, store, ms: rng.u64(2_000..=12_000).min(left) }
        }
        Card::DropStreams => Fault::DropStreams,
        Card::WipeNats => Fault::WipeNats,
        Card::KillNats => Fault::KillNats { node: if stage.cluster { rng.u64(..3) } else { 0 } },
        Card::Redis if !stage.cluster => Fault::RestartRedis { ms: rng.u64(0..=5_000) },
        Card::Redis if rng.bool() => Fault::HandOver { shard: rng.u64(..3) },
        Card::Redis => Fault::KillPrimary { shard: rng.u64(..3) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(minutes: u64, cluster: bool) -> Stage {
        let names = ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2", "worker-1", "http-worker-1"];
        let processes = names.map(str::to_owned).to_vec();
        Stage { lasts: Duration::from_secs(60 * minutes), cluster, processes }
    }

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_seed_another() {
        for cluster in [false, true] {
            assert_eq!(plan(7, &stage(10, cluster)), plan(7, &stage(10, cluster)));
            assert_ne!(plan(7, &stage(10, cluster)), plan(8, &stage(10, cluster)));
        }
    }

    /// What was printed for a seed yesterday must be what it does today.
    #[test]
    fn a_plan_is_the_same_in_every_build() {
        let first: Vec<String> =
            plan(42, &stage(2, false)).iter().take(3).map(|s| format!("{} {}", s.at_ms, s.fault)).collect();
        assert_eq!(
            first,
            [
                "4000 restart Redis, down for 3.7 s",
                "9806 block all traffic between gateway-1 and Redis for 10.6 s",
                "14075 kill -9 NATS node 1",
            ]
        );
    }

    #[test]
    fn a_run_has_every_kind_of_fault_and_ends_in_time() {
        let everywhere = ["cut", "drop_streams", "kill", "kill_nats", "leave", "pause", "slow", "stall", "wipe_nats"];
        let (single, cluster) = (vec!["restart_redis"], vec!["hand_over", "kill_primary"]);
        let stages = [(false, 78, &single), (false, 24, &single), (true, 106, &cluster), (true, 24, &cluster)];
        for (cluster, seconds, own) in stages {
            let lasts = Duration::from_secs(seconds);
            let mut kinds: Vec<&str> = everywhere.into_iter().chain(own.iter().copied()).collect();
            kinds.sort_unstable();
            for seed in 0..500 {
                let steps = plan(seed, &Stage { lasts, ..stage(1, cluster) });
                let mut seen: Vec<&str> = steps.iter().map(|s| s.fault.kind()).collect();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen, kinds, "seed {seed}");
                assert!(steps.iter().all(|s| (EDGE_MS..seconds * 1_000 - EDGE_MS).contains(&s.at_ms)));
            }
        }
    }

    #[test]
    fn no_run_on_a_cluster_is_without_a_failover_and_a_hand_over() {
        for seed in 0..50 {
            let steps = plan(seed, &Stage { lasts: Duration::from_secs(24), ..stage(1, true) });
            assert!(matches!(steps[0].fault, Fault::KillPrimary { .. }), "seed {seed}: {steps:?}");
            assert!(steps.iter().any(|s| matches!(s.fault, Fault::HandOver { .. })), "seed {seed}: {steps:?}");
        }
    }

    #[test]
    fn faults_of_the_stores_leave_each_other_time() {
        for seed in 0..50 {
            let steps = plan(seed, &stage(10, true));
            let stores: Vec<u64> = steps.iter().filter(|s| s.fault.of_a_store()).map(|s| s.at_ms).collect();
            assert!(stores.windows(2).all(|pair| pair[1] - pair[0] >= STORE_GAP_MS), "seed {seed}: {stores:?}");
        }
    }
}
