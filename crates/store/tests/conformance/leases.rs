//! Leadership: one holder, who knows when it is over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_domain::JobId;
use muster_store::{
    Held, LeaderLock, LeaseKeeper, Lock, Rescore, Retention, RetentionWalk, ScrubPass, ScrubWalk, StoreError,
    WorkerSnapshot,
};
use muster_testkit::{RedisServer, until};
use redis::Value;
use tokio::{sync::Notify, task::JoinSet};

use crate::bench::{Bench, PATIENCE};

const TTL: Duration = Duration::from_millis(1500);
/// Renewed early enough that a busy machine does not lose it.
const LONG: Duration = Duration::from_secs(9);

/// A keeper that runs, until its tasks are dropped.
async fn keeper(bench: &Bench, lock: LeaderLock, name: &str) -> (Arc<LeaseKeeper>, JoinSet<()>) {
    keeper_of(bench, lock, name, TTL).await
}

async fn keeper_of(bench: &Bench, lock: LeaderLock, name: &str, ttl: Duration) -> (Arc<LeaseKeeper>, JoinSet<()>) {
    let keeper = Arc::new(LeaseKeeper::new(bench.replica().await, lock, name, ttl));
    let (running, mut tasks) = (Arc::clone(&keeper), JoinSet::new());
    tasks.spawn(async move { running.run().await });
    (keeper, tasks)
}

async fn value(bench: &Bench, lock: LeaderLock) -> Option<String> {
    match bench.command("GET", lock.as_str(), &[]).await {
        Value::Nil => None,
        value => Some(redis::from_redis_value(value).unwrap()),
    }
}

async fn holds(keeper: &LeaseKeeper, within: Duration) -> muster_store::Lease {
    until(within, "the lease", async || keeper.lease()).await
}

pub(crate) async fn of_two_keepers_one_holds_and_notices_when_it_does_not(bench: &Bench) {
    let lock = LeaderLock::Scrub;
    let (one, _one) = keeper_of(bench, lock, "one", LONG).await;
    let first = holds(&one, PATIENCE).await;
    let (two, _two) = keeper_of(bench, lock, "two", LONG).await;
    // Renewals keep it past its time to live, and the other never thinks it holds it too.
    let until = Instant::now() + LONG + LONG / 3;
    while Instant::now() < until {
        assert!(one.lease().is_some() && first.is_held(), "held without a break");
        assert!(two.lease().is_none());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let text = value(bench, lock).await.unwrap();
    let (owner, fence) = text.rsplit_once(':').unwrap();
    assert!(owner.starts_with("one~"), "{text}");
    assert_eq!(fence.parse::<u64>().unwrap(), first.fence());
    assert_eq!(first.lock(), lock.as_str());
    // Both know who it is and since when, the one that was refused as well.
    for keeper in [&one, &two] {
        let holder = keeper.holder().expect("known");
        assert_eq!((holder.owner.as_str(), holder.since().0), (owner, first.fence()));
    }

    // Deleted by hand: the holder learns so at its next renewal, not when its trust runs out.
    let mut change = one.subscribe();
    change.mark_unchanged();
    let left: u64 = redis::from_redis_value(bench.command("PTTL", lock.as_str(), &[]).await).unwrap();
    let deleted = Instant::now();
    bench.command("DEL", lock.as_str(), &[]).await;
    tokio::time::timeout(PATIENCE, change.changed()).await.expect("it notices").unwrap();
    assert!(deleted.elapsed() + LONG / 5 < Duration::from_millis(left), "{:?} of {left} ms", deleted.elapsed());
    assert!(!first.is_held());
    // Whoever is next holds it under a higher fence, alone.
    let next = muster_testkit::until(PATIENCE, "the next holder", async || one.lease().or_else(|| two.lease())).await;
    assert!(next.fence() > first.fence());
    assert!(one.lease().is_none() || two.lease().is_none());
}

pub(crate) async fn a_release_lets_the_other_in_at_once(bench: &Bench) {
    let lock = LeaderLock::Snapshot;
    // The other asks again by itself after a third of its minute.
    let minute = Duration::from_secs(60);
    let (one, mut running) = keeper_of(bench, lock, "one", minute).await;
    let last = holds(&one, PATIENCE).await;
    let (two, _two) = keeper_of(bench, lock, "two", minute).await;
    until(PATIENCE, "the refusal", async || two.holder().filter(|holder| holder.owner.starts_with("one~"))).await;
    assert!(two.lease().is_none(), "it is held");

    running.shutdown().await;
    assert!(last.is_held(), "stopping to renew is not yet letting go");
    one.release().await.unwrap();
    assert!(!last.is_held() && one.lease().is_none());
    assert_eq!(value(bench, lock).await, None);
    two.nudge();
    let next = holds(&two, minute / 6).await;
    assert!(next.fence() > last.fence());
    // A repeat, or a release by one who no longer holds it, frees nobody else's.
    one.release().await.unwrap();
    assert!(value(bench, lock).await.unwrap().starts_with("two~"));
    assert!(next.is_held());
    bench.command("SET", lock.as_str(), &[b"somebody:7"]).await;
    two.release().await.unwrap();
    assert_eq!(value(bench, lock).await.as_deref(), Some("somebody:7"));
    bench.command("DEL", lock.as_str(), &[]).await;
}

pub(crate) async fn one_piece_of_work_is_done_under_a_lock_by_one_of_many(bench: &Bench) {
    let job = JobId::mint(7);
    let key = format!("muster:scheduler:job:{job}");
    let keeper = async |name| LeaseKeeper::new(bench.replica().await, Lock::deciding(job), name, LONG);
    let holder = async || match bench.command("GET", &key, &[]).await {
        Value::Nil => String::new(),
        value => redis::from_redis_value::<String>(value).unwrap(),
    };
    let (one, two, done) = (keeper("one").await, keeper("two").await, Notify::new());
    let work = one.hold(async {
        let first =
            until(PATIENCE, "the lock", async || Some(holder().await).filter(|by| by.starts_with("one~"))).await;
        assert_eq!(two.hold(async { unreachable!("somebody does it already") }).await, Held::<()>::Elsewhere);
        // Lost and free: taken back, under a higher fence, and the work goes on.
        bench.command("DEL", &key, &[]).await;
        until(PATIENCE, "the lock to be back", async || {
            (![String::new(), first.clone()].contains(&holder().await)).then_some(())
        })
        .await;
        done.notified().await;
        42
    });
    let (held, ()) = tokio::join!(work, async { done.notify_one() });
    assert_eq!((held, holder().await), (Held::Done(42), String::new()), "let go at the end");
    // Lost to somebody else: the work is dropped where it stands.
    let held = two.hold(async {
        until(PATIENCE, "the lock", async || holder().await.starts_with("two~").then_some(())).await;
        bench.command("SET", &key, &[b"three~0:7"]).await;
        std::future::pending::<()>().await;
    });
    assert_eq!(tokio::time::timeout(PATIENCE, held).await.expect("noticed at a renewal"), Held::Lost);
    assert_eq!(holder().await, "three~0:7");
    bench.command("DEL", &key, &[]).await;
}

/// Who waits knows when a dead holder's lock runs out, and does not come late by its own rhythm.
pub(crate) async fn a_dead_holders_lock_is_taken_when_it_runs_out(bench: &Bench) {
    let (lock, rhythm) = (LeaderLock::Streams, 2 * PATIENCE);
    let (one, mut running) = keeper_of(bench, lock, "one", LONG).await;
    holds(&one, PATIENCE).await;
    let (two, _two) = keeper_of(bench, lock, "two", 3 * rhythm).await;
    // It is refused, and once more after a renewal.
    tokio::time::timeout(LONG / 2, two.subscribe().changed()).await.expect_err("it is held");
    running.shutdown().await;
    holds(&two, LONG + rhythm / 2).await;
    two.release().await.unwrap();
}

pub(crate) async fn what_was_granted_unheard_is_let_go_as_well(bench: &Bench) {
    let unheard = LeaseKeeper::new(bench.replica().await, LeaderLock::Retention, "three", 2 * PATIENCE);
    let granted = tokio::time::timeout(PATIENCE, async {
        tokio::select! {
            () = unheard.run() => {}
            () = async { while value(bench, LeaderLock::Retention).await.is_none() { tokio::task::yield_now().await } } => {}
        }
    });
    granted.await.expect("granted");
    assert_eq!(unheard.release().await, Ok(true));
    assert_eq!(value(bench, LeaderLock::Retention).await, None);
    assert_eq!(unheard.release().await, Ok(false), "once is enough");
}

#[tokio::test]
async fn a_holder_that_cannot_reach_redis_stops_trusting_itself_in_time() {
    let redis = RedisServer::start().await;
    let bench = Bench::at(redis.url()).await;
    let (keeper, _running) = keeper(&bench, LeaderLock::Reconciler, "one").await;
    let lease = holds(&keeper, PATIENCE).await;
    redis.pause();
    let (silent, mut last_held) = (Instant::now(), Duration::ZERO);
    until(PATIENCE, "the end of trust", async || {
        let asked = silent.elapsed();
        if !lease.is_held() {
            return Some(());
        }
        last_held = asked;
        None
    })
    .await;
    assert!(last_held < TTL, "before Redis would give the lock away: {last_held:?}");
    assert_eq!(keeper.holder(), None, "nobody knows");
    redis.resume();
    let again = holds(&keeper, PATIENCE).await;
    assert!(again.fence() >= lease.fence());
}

pub(crate) async fn a_lease_that_is_lost_or_another_locks_writes_nothing(bench: &Bench) {
    let id = JobId::mint(6);
    bench.store.set_homes(&[id], Duration::ZERO).await.unwrap();
    let before = bench.store.home_of(id).await.unwrap().expect("a home");
    let (keeper, mut running) = keeper(bench, LeaderLock::Reconciler, "one").await;
    let lost = holds(&keeper, PATIENCE).await;
    running.shutdown().await;
    keeper.release().await.unwrap();
    let others = bench.leads(LeaderLock::Scrub).await;
    for lease in [&lost, &others] {
        let refused = StoreError::NotLeader { lock: LeaderLock::Reconciler.as_str() };
        let rescored = bench.store.rescore_homes(lease, &[Rescore { job: id, read: before.0, after: PATIENCE }]).await;
        assert_eq!(rescored, Err(refused.clone()));
        assert_eq!(bench.store.drop_orphan_home(lease, id, before.0).await, Err(refused));
    }
    assert_eq!(bench.store.home_of(id).await, Ok(Some(before)));
    for refused in [
        bench.store.scrub(&lost, &mut ScrubWalk::new(), 10).await.err(),
        bench.store.put_scrub_pass(&lost, &ScrubPass::default()).await.err(),
        bench.store.put_workers(&lost, &WorkerSnapshot::default(), PATIENCE).await.err(),
        bench.store.retain(&lost, &mut RetentionWalk::new(), &Retention::of_all(PATIENCE, PATIENCE), 10).await.err(),
    ] {
        assert!(matches!(refused, Some(StoreError::NotLeader { .. })), "{refused:?}");
    }
    bench.store.drop_homes(&[id]).await.unwrap();
}
