//! The leases of a sharded loop, spread over several replicas in this process.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_chassis::{Chassis, Leadership, settings::load};
use muster_replica::{Member, ShardedLeases};
use muster_store::ShardedLock;
use muster_testkit::{NatsServer, RedisServer, until};

use crate::process::SOON;

/// Long enough that a replica on a busy machine joins and renews in time.
const TTL: Duration = Duration::from_secs(9);
/// How often a replica stops at most, until the others follow within a second.
const STOPS: usize = 5;

struct Servers {
    redis: RedisServer,
    nats: NatsServer,
}

struct Replica {
    chassis: Chassis,
    member: Member,
    leases: ShardedLeases,
}

impl Servers {
    async fn replica(&self, name: &str) -> Replica {
        let env = [("REDIS_URL", self.redis.url()), ("NATS_URL", self.nats.url()), ("MUSTER_INSTANCE_ID", name.into())];
        let env: BTreeMap<String, String> = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let chassis = Chassis::new("muster-test", load("muster-test", &[], &[], &env).unwrap().values);
        let member = Member::connect(&chassis).await.unwrap();
        member.flow.bus.connected().await;
        member.hear_hints(&chassis.tasks);
        Replica { leases: member.share(ShardedLock::Runs, TTL), chassis, member }
    }
}

impl Replica {
    fn shards(&self) -> Vec<u8> {
        self.leases.shards().held().map(|(shard, _)| shard).collect()
    }

    /// Ends every task at once, without giving up leases.
    async fn dies(self) {
        self.chassis.tasks.drain(Duration::ZERO).await;
    }
}

/// Waits until the replicas own all shards in these shares, each shard once; returns how long it took.
async fn shared(replicas: &[&Replica], mut shares: Vec<usize>, within: Duration) -> Duration {
    shares.sort_unstable();
    let began = Instant::now();
    until(within, &format!("shares of {shares:?}"), async || {
        let owned: Vec<Vec<u8>> = replicas.iter().map(|replica| replica.shards()).collect();
        let mut all: Vec<u8> = owned.iter().flatten().copied().collect();
        let mut counts: Vec<usize> = owned.iter().map(Vec::len).collect();
        all.sort_unstable();
        counts.sort_unstable();
        (counts == shares && all == (0..16).collect::<Vec<u8>>()).then_some(())
    })
    .await;
    began.elapsed()
}

#[tokio::test]
async fn shards_are_shared_evenly_and_again_when_a_replica_comes_stops_or_dies() {
    let (redis, nats) = tokio::join!(RedisServer::start(), NatsServer::start());
    let servers = Servers { redis, nats };
    let one = servers.replica("r1").await;
    shared(&[&one], vec![16], SOON).await;
    let two = servers.replica("r2").await;
    shared(&[&one, &two], vec![8, 8], SOON).await;
    let three = servers.replica("r3").await;
    shared(&[&one, &two, &three], vec![6, 5, 5], SOON).await;
    let lease = one.leases.shards();
    let (shard, held) = lease.held().next().expect("it owns some");
    held.leads_shard(ShardedLock::Runs, shard).unwrap();
    held.leads_shard(ShardedLock::Runs, (shard + 1) % 16).unwrap_err();
    held.leads_shard(ShardedLock::Schedules, shard).unwrap_err();

    // A busy machine may be late now and then. Replicas that hear nothing look every third of the TTL: in time once is
    // no accident.
    let (mut third, mut took) = (three, Vec::new());
    loop {
        third.leases.release().await;
        took.push(shared(&[&one, &two], vec![8, 8], SOON).await);
        assert_eq!(third.shards(), Vec::<u8>::new());
        if took.last() < Some(&Duration::from_secs(1)) {
            break;
        }
        assert!(took.len() < STOPS, "a graceful stop is followed at once, not after the TTL: {took:?}");
        third = servers.replica(&format!("r{}", took.len() + 3)).await;
        shared(&[&one, &two, &third], vec![6, 5, 5], SOON).await;
    }

    one.dies().await;
    let took = shared(&[&two], vec![16], 3 * SOON).await;
    assert!(took < TTL + TTL * 2 / 3, "a death is followed when its locks have run out: {took:?}");
    let members = servers.redis.cli(&["ZRANGE", "muster:workflow-engine:reconciler:replicas", "0", "-1"]).await;
    assert!(members.starts_with("r2~") && members.lines().count() == 1, "{members}");
}

#[tokio::test]
async fn a_replica_that_stands_aside_leaves_its_shards_to_the_others_and_takes_its_share_again() {
    let (redis, nats) = tokio::join!(RedisServer::start(), NatsServer::start());
    let servers = Servers { redis, nats };
    let (one, two) = (servers.replica("r1").await, servers.replica("r2").await);
    shared(&[&one, &two], vec![8, 8], SOON).await;
    let seen = one.member.flow.store.leader_locks().await.unwrap();
    let of = |name: &str| {
        let held = seen.iter().filter(|seen| seen.shard.is_some_and(|(lock, _)| lock == ShardedLock::Runs));
        held.filter(|seen| seen.holder.as_ref().is_some_and(|holder| holder.instance() == name)).count()
    };
    assert_eq!((of("r1"), of("r2")), (8, 8), "every lease is shown with its holder");
    assert_eq!(one.leases.holder().map(|holder| holder.instance), Some("r1".to_owned()));

    one.member.stand_aside(Instant::now() + TTL).await;
    let took = shared(&[&two], vec![16], SOON).await;
    assert!(took < TTL / 2, "the locks are given up, not left to run out: {took:?}");
    assert_eq!(one.shards(), Vec::<u8>::new());
    shared(&[&one, &two], vec![8, 8], TTL + SOON).await;
}
