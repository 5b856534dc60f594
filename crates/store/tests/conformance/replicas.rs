//! What the cluster tells of itself: the snapshot of the workers, the replicas, the locks.

use std::time::Duration;

use muster_domain::{JobId, Time};
use muster_store::{
    Held, LeaderLock, LeaseKeeper, Lock, LockSeen, Replica, ShardedLock, Store, WorkerSeen, WorkerSnapshot,
};
use muster_testkit::until;
use serde_json::json;
use tokio::{sync::oneshot, task::JoinSet};

use crate::bench::{Bench, PATIENCE};

pub(crate) async fn a_snapshot_is_read_as_written_and_runs_out(bench: &Bench) {
    let (writer, reader) = (bench.replica().await, bench.replica().await);
    assert_eq!(reader.read_workers().await.unwrap(), None);
    let worker = WorkerSeen {
        id: "h~acme~w 1".into(),
        tenant: "acme".into(),
        all_tenants: true,
        topics: vec!["mail".into()],
        slots: 4,
        busy: 1,
        healthy: true,
        version: "1.2".into(),
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        last_seen: Time(1_700_000_000_000_001),
    };
    let lease = bench.leads(LeaderLock::Snapshot).await;
    let snapshot = WorkerSnapshot { at: Time(1_700_000_000_000_002), workers: vec![worker] };
    writer.put_workers(&lease, &snapshot, PATIENCE).await.unwrap();
    assert_eq!(reader.read_workers().await.unwrap(), Some(snapshot));
    writer.put_workers(&lease, &WorkerSnapshot::default(), Duration::from_millis(50)).await.unwrap();
    until(PATIENCE, "it to run out", async || reader.read_workers().await.unwrap().is_none().then_some(())).await;
}

pub(crate) async fn a_replica_is_known_while_it_speaks(bench: &Bench) {
    let (store, reader) = (bench.replica().await, bench.replica().await);
    let about = |service: &str, instance: &str| Replica {
        service: service.into(),
        instance: instance.into(),
        version: "1.2".into(),
        admin: "127.0.0.1:9090".into(),
        started_at: Time(1),
        seen_at: store.now(),
        loops: vec![json!({"name": "scrub", "state": "standby"})],
        deciding: Vec::new(),
        settings: vec![json!({"name": "x", "source": "default"})],
    };
    store.put_replica(&about("muster-b", "host 2")).await.unwrap();
    store.put_replica(&about("muster-b", "host 1")).await.unwrap();
    let (state, wins) = (std::sync::Arc::new(std::sync::Mutex::new("standby")), store.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let (told, speaker) = (state.clone(), about("muster-a", "x"));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let now = |about: &mut Replica| about.loops = vec![json!({"name": "scrub", "state": *told.lock().unwrap()})];
        wins.announce(speaker, now, async { drop(stopped.await) }).await;
    });
    let names = async || {
        let all = reader.replicas().await.unwrap();
        all.into_iter().map(|it| format!("{}/{}", it.service, it.instance)).collect::<Vec<_>>()
    };
    let all = ["muster-a/x", "muster-b/host 1", "muster-b/host 2"];
    until(PATIENCE, "all three, in order", async || (names().await == all).then_some(())).await;
    store
        .put_replica(&Replica { seen_at: Time(store.now().0 - 20_000_000), ..about("muster-b", "dead") })
        .await
        .unwrap();
    let mut counts = Vec::new();
    for service in ["muster-a", "muster-b", "muster", "muster-c"] {
        counts.push(reader.count_replicas(service).await.unwrap());
    }
    assert_eq!(counts, [1, 2, 0, 0], "of each service, those that speak");
    store.drop_replica("muster-b", "dead").await.unwrap();
    // A change of leadership is told without waiting for the next word.
    *state.lock().unwrap() = "leading";
    let since = std::time::Instant::now();
    until(PATIENCE, "the news", async || {
        (reader.replicas().await.unwrap()[0].loops[0]["state"] == "leading").then_some(())
    })
    .await;
    assert!(since.elapsed() < Duration::from_secs(4), "it took {:?}", since.elapsed());
    a_lock_on_a_job_is_told(&store, &reader).await;
    stop.send(()).unwrap();
    tasks.join_next().await.unwrap().unwrap();
    // Well before it would run out by itself.
    until(Duration::from_secs(8), "its word to be taken back", async || (names().await == all[1..]).then_some(()))
        .await;
    store.drop_replica("muster-b", "host 1").await.unwrap();
    store.drop_replica("muster-b", "host 2").await.unwrap();
    assert!(names().await.is_empty());
}

/// While somebody who announces itself holds it, and since when Redis granted it.
async fn a_lock_on_a_job_is_told(announcer: &Store, reader: &Store) {
    let job = JobId::mint(7);
    let seen = async || reader.locks().await.unwrap().into_iter().find(|seen| seen.job == Some(job));
    let keeper = LeaseKeeper::new(announcer.clone(), Lock::deciding(job), "x", PATIENCE);
    let before = reader.ping().await.unwrap();
    let held = keeper.hold(async {
        let (granted, told) = (reader.ping().await.unwrap(), std::time::Instant::now());
        let lock = until(PATIENCE, "the lock", async || seen().await).await;
        assert!(told.elapsed() < Duration::from_secs(4), "it took {:?}", told.elapsed());
        let holder = lock.holder.clone().unwrap();
        assert_eq!((holder.instance(), lock.key), ("x", format!("muster:scheduler:job:{job}")));
        assert_eq!(reader.deciding(job).await.unwrap(), Some(holder.clone()));
        assert!((before..=granted).contains(&holder.since()), "{before:?} {holder:?} {granted:?}");
        assert!(lock.left > Duration::ZERO && lock.left <= PATIENCE, "{:?}", lock.left);
    });
    assert_eq!(held.await, Held::Done(()));
    assert_eq!(seen().await, None, "one that is let go is not shown, told or not");
    until(PATIENCE, "nobody to tell of it", async || {
        reader.replicas().await.unwrap().iter().all(|it| !it.deciding.contains(&job.to_string())).then_some(())
    })
    .await;
}

pub(crate) async fn every_lock_is_shown_with_its_holder(bench: &Bench) {
    let store = bench.replica().await;
    // Of which no other test of this server is the keeper; theirs come and go.
    let lock = LeaderLock::Reread;
    let keys = |all: &[LockSeen]| all.iter().map(|seen| seen.key.clone()).collect::<Vec<_>>();
    let own = async || store.leader_locks().await.unwrap().into_iter().find(|seen| seen.key == lock.as_str()).unwrap();
    bench.command("SET", lock.as_str(), &[&b"host:1~abcd:42"[..], b"PX", b"60000"]).await;
    let whole = |all: Vec<LockSeen>| all.into_iter().filter(|seen| seen.shard.is_none()).collect::<Vec<_>>();
    assert_eq!(keys(&whole(store.leader_locks().await.unwrap())), LeaderLock::ALL.map(LeaderLock::as_str));
    assert!(keys(&store.locks().await.unwrap()).starts_with(&LeaderLock::ALL.map(|lock| lock.as_str().to_owned())));
    let LockSeen { holder, left, job, .. } = own().await;
    let holder = holder.unwrap();
    assert_eq!((holder.instance(), holder.owner.as_str(), holder.fence), ("host:1", "host:1~abcd", 42));
    assert_eq!((holder.since(), job), (Time(42), None));
    assert!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&left), "{left:?}");
    assert_eq!(store.leader(lock).await.unwrap(), Some(holder));
    bench.command("DEL", lock.as_str(), &[]).await;
    assert_eq!((own().await.holder, store.leader(lock).await.unwrap()), (None, None));

    // Of a sharded lock only the shards that are held are shown. No other test of this server uses schedules.
    let shard = "muster:workflow-engine:schedules:b";
    let shards = async || {
        let all = store.locks().await.unwrap().into_iter();
        all.filter(|seen| seen.shard.is_some_and(|(lock, _)| lock == ShardedLock::Schedules)).collect::<Vec<_>>()
    };
    bench.command("SET", shard, &[&b"host:1~abcd:43"[..], b"PX", b"60000"]).await;
    let seen = shards().await;
    assert_eq!(keys(&seen), [shard]);
    assert_eq!(seen[0].shard, Some((ShardedLock::Schedules, 11)));
    assert_eq!(seen[0].holder.as_ref().map(|holder| holder.instance()), Some("host:1"));
    bench.command("DEL", shard, &[]).await;
    assert!(shards().await.is_empty());
}
