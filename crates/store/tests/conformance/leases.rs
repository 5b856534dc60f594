//! Leadership: one holder, who knows when it is over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_store::{LeaderLock, LeaseKeeper};
use muster_testkit::{RedisServer, until};
use redis::Value;
use tokio::task::JoinSet;

use crate::bench::{Bench, PATIENCE};

const TTL: Duration = Duration::from_millis(1500);

/// A keeper that runs, until its tasks are dropped.
async fn keeper(bench: &Bench, lock: LeaderLock, name: &str) -> (Arc<LeaseKeeper>, JoinSet<()>) {
    let keeper = Arc::new(LeaseKeeper::new(bench.replica().await, lock, name, TTL));
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
    let (one, _one) = keeper(bench, lock, "one").await;
    let first = holds(&one, PATIENCE).await;
    let (two, _two) = keeper(bench, lock, "two").await;
    // Renewals keep it, well past its time to live, and the other never thinks it holds it too.
    let until = Instant::now() + 2 * TTL;
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

    // Deleted by hand: the holder learns so at its next renewal, not when its trust runs out.
    let mut change = one.subscribe();
    change.mark_unchanged();
    bench.command("DEL", lock.as_str(), &[]).await;
    let deleted = Instant::now();
    tokio::time::timeout(TTL, change.changed()).await.expect("it notices").unwrap();
    assert!(deleted.elapsed() < TTL * 2 / 3, "{:?}", deleted.elapsed());
    assert!(!first.is_held());
    // Whoever is next holds it under a higher fence, alone.
    let next = muster_testkit::until(PATIENCE, "the next holder", async || one.lease().or_else(|| two.lease())).await;
    assert!(next.fence() > first.fence());
    assert!(one.lease().is_none() || two.lease().is_none());
}

pub(crate) async fn a_release_lets_the_other_in_at_once(bench: &Bench) {
    let lock = LeaderLock::Snapshot;
    let (one, mut running) = keeper(bench, lock, "one").await;
    let mut last = holds(&one, PATIENCE).await;
    let (two, _two) = keeper(bench, lock, "two").await;
    tokio::time::timeout(Duration::from_millis(100), two.subscribe().changed()).await.expect_err("it is held");

    running.shutdown().await;
    assert!(last.is_held(), "stopping to renew is not yet letting go");
    one.release().await.unwrap();
    assert!(!last.is_held() && one.lease().is_none());
    assert_eq!(value(bench, lock).await, None);
    two.nudge();
    let next = holds(&two, Duration::from_secs(1)).await;
    assert!(next.fence() > last.fence());
    // A repeat, or a release by one who no longer holds it, frees nobody else's.
    one.release().await.unwrap();
    assert!(value(bench, lock).await.unwrap().starts_with("two~"));
    assert!(next.is_held());
    last = next;
    bench.command("SET", lock.as_str(), &[b"somebody:7"]).await;
    until(TTL, "the loss", async || (!last.is_held()).then_some(())).await;
    two.release().await.unwrap();
    assert_eq!(value(bench, lock).await.as_deref(), Some("somebody:7"));
    bench.command("DEL", lock.as_str(), &[]).await;
}

#[tokio::test]
async fn a_holder_that_cannot_reach_redis_stops_trusting_itself_in_time() {
    let redis = RedisServer::start().await;
    let bench = Bench::at(redis.url()).await;
    let (keeper, _running) = keeper(&bench, LeaderLock::Reconciler, "one").await;
    let lease = holds(&keeper, PATIENCE).await;
    redis.pause();
    let silent = Instant::now();
    until(TTL, "the end of trust", async || (!lease.is_held()).then_some(())).await;
    assert!(silent.elapsed() < TTL, "before Redis would give the lock away");
    redis.resume();
    let again = holds(&keeper, PATIENCE).await;
    assert!(again.fence() >= lease.fence());
}
