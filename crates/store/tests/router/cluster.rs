//! The router on a cluster of six nodes.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use muster_store::{Kept, RedisSettings, Router, StoreError, router::Command};
use muster_testkit::{RedisCluster, until};
use redis::Value;
use tokio::task::JoinSet;

use super::{BUSY, ONCE, PATIENCE, add, get, hasty, router, set, text};

#[tokio::test]
async fn a_pipeline_reaches_keys_on_every_shard() {
    let router = router(muster_testkit::cluster().await.url()).await;
    assert!(router.is_cluster());
    let (writes, reads): (Vec<_>, Vec<_>) =
        (0..3000).map(|n| (set(&format!("spread:{n}"), &n.to_string()), get(&format!("spread:{n}")))).unzip();
    assert!(router.many(writes).await.iter().all(|outcome| *outcome == Ok(Value::Okay)));
    for (n, outcome) in router.many(reads).await.into_iter().enumerate() {
        assert_eq!(outcome, Ok(text(&n.to_string())));
    }
    let primaries = router.primaries().await.unwrap();
    assert_eq!(primaries.len(), 3);
    let mut keys = 0;
    for primary in &primaries {
        match router.call_node(primary, &redis::cmd("DBSIZE")).await {
            Ok(Value::Int(count)) => keys += count,
            other => panic!("{other:?}"),
        }
    }
    assert!(keys >= 3000, "{keys}");
    until(PATIENCE, "one connection per primary", async || (router.connections().shared == 3).then_some(())).await;
}

#[tokio::test]
async fn one_seed_is_enough_to_find_the_whole_cluster() {
    let cluster = muster_testkit::cluster().await;
    let router = router(format!("redis+cluster://127.0.0.1:{}", cluster.nodes[4].port())).await;
    let outcomes = router.many((0..100).map(|n| add(&format!("seed:{n}"), 1)).collect()).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(Value::Int(1))), "{outcomes:?}");
}

#[tokio::test]
async fn a_durable_write_is_acknowledged_only_by_replicas_that_have_it() {
    let cluster = RedisCluster::start().await;
    let router = router(cluster.url()).await;
    let commands: Vec<Command> = (0..30).map(|n| add(&format!("d{n}"), 1)).collect();
    let outcomes = router.durable(commands, Kept::ByReplicas(1), PATIENCE).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Ok((Value::Int(1), 1))), "{outcomes:?}");

    for node in &cluster.nodes {
        if node.cli(&["ROLE"]).await.starts_with("slave") {
            node.pause();
        }
    }
    let once = || vec![Command::script(&ONCE, b"once")];
    let wait = Duration::from_millis(100);
    assert_eq!(router.durable(once(), Kept::ByReplicas(1), wait).await, [Ok((Value::Int(1), 0))]);
    // The repeat writes nothing itself; it must not claim what the first could not.
    assert_eq!(router.durable(once(), Kept::ByReplicas(1), wait).await, [Ok((Value::Int(0), 0))]);
    cluster.nodes.iter().for_each(muster_testkit::RedisServer::resume);
    until(PATIENCE, "an acknowledged repeat", async || {
        (router.durable(once(), Kept::ByReplicas(1), Duration::from_millis(500)).await == [Ok((Value::Int(0), 1))])
            .then_some(())
    })
    .await;
}

/// What the load on one shard saw.
#[derive(Default)]
struct Seen {
    done: AtomicU64,
    last: AtomicU64,
    longest_gap: AtomicU64,
}

impl Seen {
    fn success(&self, began: Instant) {
        let now = u64::try_from(began.elapsed().as_millis()).unwrap();
        let gap = now.saturating_sub(self.last.fetch_max(now, Ordering::SeqCst));
        self.longest_gap.fetch_max(gap, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_killed_primary_stalls_no_other_shard_and_its_own_recovers() {
    const TASKS_PER_SHARD: usize = 20;
    // Far longer than a busy machine holds anybody up, so that whoever waited for the dead node is told from that.
    const OUTAGE: Duration = Duration::from_secs(10);
    let cluster = RedisCluster::start().await;
    let router = hasty(cluster.url()).await;
    let mut keys: [Vec<String>; 3] = Default::default();
    for n in 0.. {
        let key = format!("load:{n}");
        let shard = &mut keys[cluster.primary_of(&key).await];
        if shard.len() < TASKS_PER_SHARD {
            shard.push(key);
        }
        if keys.iter().all(|shard| shard.len() == TASKS_PER_SHARD) {
            break;
        }
    }

    let began = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let seen: [Arc<Seen>; 3] = Default::default();
    let mut tasks = JoinSet::new();
    for (shard, seen) in keys.iter().zip(&seen) {
        for (n, key) in shard.iter().cloned().enumerate() {
            let (router, seen, stop) = (router.clone(), Arc::clone(seen), Arc::clone(&stop));
            tasks.spawn(async move {
                let mut after_stop = 0;
                while after_stop < 3 {
                    let outcome = match n % 2 {
                        0 => router.call(add(&key, 1)).await,
                        _ => router.many(vec![add(&key, 1), get(&key), add(&key, 1)]).await.remove(2),
                    };
                    match outcome {
                        Ok(_) => {
                            seen.success(began);
                            after_stop += u32::from(stop.load(Ordering::SeqCst));
                        }
                        Err(StoreError::Unavailable { .. }) => {}
                        Err(other) => panic!("{key}: {other:?}"),
                    }
                }
            });
        }
    }
    let warm = async || seen.iter().all(|seen| seen.done.load(Ordering::SeqCst) > 2000).then_some(());
    until(2 * PATIENCE, "a warm load", warm).await;

    let before = router.topology();
    cluster.set_node_timeout(OUTAGE).await;
    let done_before = seen[0].done.load(Ordering::SeqCst);
    cluster.kill9(0);
    until(2 * PATIENCE, "the killed shard's recovery", async || {
        (seen[0].done.load(Ordering::SeqCst) > done_before + 2000).then_some(())
    })
    .await;
    assert!(before.has_changed().unwrap(), "the failover is announced");

    // Every single task, on every shard, must still get through.
    stop.store(true, Ordering::SeqCst);
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap()
        }
    };
    tokio::time::timeout(2 * PATIENCE, all).await.expect("no task is wedged");
    for (shard, seen) in seen.iter().enumerate() {
        let gap = Duration::from_millis(seen.longest_gap.load(Ordering::SeqCst));
        eprintln!("shard {shard}: {} calls, longest gap {gap:?}", seen.done.load(Ordering::SeqCst));
        let silent = gap >= OUTAGE / 2;
        assert_eq!(silent, shard == 0, "shard {shard} of which the first was killed was silent for {gap:?}");
    }

    cluster.restart(0).await;
    cluster.wait_healthy().await;
    until(PATIENCE, "all shards", async || {
        let outcomes = router.many(keys.iter().flatten().map(|key| add(key, 1)).collect()).await;
        outcomes.iter().all(Result::is_ok).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_silent_primary_stalls_no_other_shard() {
    const BUDGET: Duration = Duration::from_secs(3);
    // Nobody takes over before the calls have ended.
    let cluster = RedisCluster::start_steady().await;
    let router = Router::connect(RedisSettings { budget: BUDGET, ..RedisSettings::new(cluster.url()) }).await.unwrap();
    let (mut silent, mut healthy) = (Vec::new(), Vec::new());
    for n in 0..60 {
        let key = format!("silence:{n}");
        if cluster.primary_of(&key).await == 1 { silent.push(key) } else { healthy.push(key) }
    }
    assert!(router.many(healthy.iter().map(|key| add(key, 1)).collect()).await.iter().all(Result::is_ok));
    cluster.nodes[1].pause();
    let (began, over) = (Instant::now(), Cell::new(false));
    let stuck = async {
        let outcomes = router.many(silent.iter().map(|key| add(key, 1)).collect()).await;
        over.set(true);
        (outcomes, began.elapsed())
    };
    let served = async {
        let mut rounds = 0;
        while !over.get() {
            let outcomes = router.many(healthy.iter().map(|key| add(key, 1)).collect()).await;
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            rounds += 1;
        }
        rounds
    };
    let ((outcomes, took), rounds) = tokio::join!(stuck, served);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(StoreError::Unavailable { .. }))), "{outcomes:?}");
    assert!(took < BUDGET + BUSY, "{took:?}");
    assert!(rounds > 10, "healthy shards were asked {rounds} times while one was silent");
    for node in [0, 2, 3, 4, 5] {
        assert_eq!(cluster.cli(node, &["CONFIG", "SET", "cluster-node-timeout", "1500"]).await, "OK");
    }
    until(2 * PATIENCE, "the failover", async || router.call(get(&silent[0])).await.ok()).await;
    cluster.nodes[1].resume();
}

#[tokio::test]
async fn a_slot_that_moves_under_load_gives_no_error() {
    const KEYS: usize = 300;
    let cluster = RedisCluster::start().await;
    let router = router(cluster.url()).await;
    let keys: Vec<String> = (0..KEYS).map(|n| format!("{{moving}}:{n}")).collect();
    assert!(router.many(keys.iter().map(|key| add(key, 0)).collect()).await.iter().all(Result::is_ok));
    let slot = cluster.cli(0, &["CLUSTER", "KEYSLOT", "moving"]).await;
    let from = cluster.primary_of("moving").await;
    let to = (from + 1) % 3;
    let ids = [cluster.cli(from, &["CLUSTER", "MYID"]).await, cluster.cli(to, &["CLUSTER", "MYID"]).await];

    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..20_usize {
        let (router, keys, stop) = (router.clone(), keys.clone(), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut added = vec![0_i64; KEYS];
            while !stop.load(Ordering::SeqCst) {
                let chosen: Vec<usize> = (0..10).map(|n| fastrand::usize(..KEYS) / 10 * 10 + n).collect();
                let outcomes = router.many(chosen.iter().map(|&n| add(&keys[n], 1)).collect()).await;
                for (outcome, n) in outcomes.into_iter().zip(chosen) {
                    assert!(matches!(outcome, Ok(Value::Int(_))), "task {task}: {outcome:?}");
                    added[n] += 1;
                }
            }
            added
        });
    }

    let ok = |answer: String| assert_eq!(answer, "OK");
    ok(cluster.cli(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]).await);
    ok(cluster.cli(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]).await);
    let port = cluster.nodes[to].port().to_string();
    loop {
        let batch = cluster.cli(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "5"]).await;
        let batch: Vec<&str> = batch.lines().collect();
        if batch.is_empty() {
            break;
        }
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(batch);
        ok(cluster.cli(from, &migrate).await);
    }
    ok(cluster.cli(to, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]).await);
    ok(cluster.cli(from, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]).await);
    until(PATIENCE, "the map to say so", async || {
        (cluster.primary_of("moving").await == to && router.call(add(&keys[0], 0)).await.is_ok()).then_some(())
    })
    .await;

    stop.store(true, Ordering::SeqCst);
    let mut added = vec![0_i64; KEYS];
    while let Some(task) = tasks.join_next().await {
        added.iter_mut().zip(task.unwrap()).for_each(|(sum, part)| *sum += part);
    }
    assert!(added.iter().sum::<i64>() > 1000, "there was load: {}", added.iter().sum::<i64>());
    let counts = router.many(keys.iter().map(|key| add(key, 0)).collect()).await;
    let counts: Vec<i64> = counts
        .into_iter()
        .map(|count| match count {
            Ok(Value::Int(count)) => count,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, added, "a redirected command is carried out exactly once");
}
