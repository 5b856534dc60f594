//! Two replicas of the example service: one leads, and either may leave.

use muster_testkit::{NatsServer, RedisServer, until};
use serde_json::Value;

use crate::process::{Replica, SOON, program};

/// How often a leader is stopped at most, until its successor is in time.
const STOPS: usize = 5;

/// The time of Redis in microseconds. A fence is the time at which its lease was granted.
async fn redis_now(redis: &RedisServer) -> u64 {
    let told = redis.cli(&["TIME"]).await;
    let (seconds, micros) = told.split_once(char::is_whitespace).expect("two numbers");
    seconds.parse::<u64>().unwrap() * 1_000_000 + micros.trim().parse::<u64>().unwrap()
}

async fn leads(replica: &Replica) -> Value {
    until(SOON, "the lead", async || replica.row("tally").filter(|row| row["state"] == "leading")).await
}

/// Waits until each replica ticks for this many shards.
async fn shares(replicas: &[&Replica], each: u64) {
    until(SOON, &format!("{each} shards each"), async || {
        let owns =
            |replica: &&Replica| replica.row("shares").is_some_and(|row| row["last"]["counts"]["shards"] == each);
        replicas.iter().all(owns).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_replica_leads_and_another_follows_within_a_second_of_its_stop() {
    let (redis, nats) = tokio::join!(RedisServer::start(), NatsServer::start());
    let mut first = Replica::start("r1", &redis, &nats).await;
    leads(&first).await;
    let second = Replica::start("r2", &redis, &nats).await;
    let row =
        until(SOON, "the standby to know its leader", async || second.row("tally").filter(|row| row["holder"] == "r1"))
            .await;
    assert_eq!((&row["state"], &row["lock"]), (&"standby".into(), &"muster:scheduler:scrub".into()));
    until(SOON, "a tick of the leader", async || {
        first.row("tally").filter(|row| row["last"]["counts"]["total"].as_u64() >= Some(1))
    })
    .await;
    assert_eq!(second.row("tally").unwrap()["ticks"], 0, "the standby does not tick");
    assert_eq!(second.row("config watch").unwrap()["state"], "active", "this one every replica runs");

    shares(&[&first, &second], 8).await;

    let asked = redis_now(&redis).await;
    first.terminate();
    let row = leads(&second).await;
    let mut took = vec![row["fence"].as_u64().unwrap() - asked];

    assert_eq!(first.ended().await, Some(0));
    shares(&[&second], 16).await;
    let stages: Vec<_> = first.log().into_iter().filter(|line| line["event"] == "stop_stage").collect();
    let stages: Vec<_> = stages.iter().filter_map(|line| line["stage"].as_str()).collect();
    assert_eq!(stages, ["taking", "leases"]);
    assert!(first.log().iter().all(|line| line["event"] != "task_late"), "{:?}", first.log());
    let replicas = redis.cli(&["ZRANGE", "muster:replicas", "0", "-1"]).await;
    assert_eq!(replicas, "muster-tally r2", "the one that stopped took its announcement back");

    // A busy machine may be late now and then. A replica that is not told asks every six seconds, and the lock stands for
    // 15 s unless it is given up: in time once is no accident.
    let mut leader = second;
    while took.iter().all(|took| *took >= 1_000_000) {
        assert!(took.len() < STOPS, "the stops were followed after {took:?} µs");
        let heir = Replica::start(&format!("r{}", took.len() + 2), &redis, &nats).await;
        until(SOON, "the standby to know of a leader", async || {
            heir.row("tally").filter(|row| row["state"] == "standby" && row["holder"].is_string())
        })
        .await;
        let asked = redis_now(&redis).await;
        leader.terminate();
        took.push(leads(&heir).await["fence"].as_u64().unwrap() - asked);
        leader = heir;
    }
}

#[test]
fn settings_and_docs_come_from_the_loop_list() {
    let said = |flag: &str| String::from_utf8(program().arg(flag).output().unwrap().stdout).unwrap();
    let (settings, loops) = (said("--print-reference"), said("--print-loops"));
    for row in ["| `MUSTER_LOOP_TALLY_INTERVAL` | `loop_tally_interval` | `1s` |", "| `MUSTER_LOOP_CONFIG_INTERVAL` |"]
    {
        assert!(settings.contains(row), "{settings}");
    }
    assert!(loops.contains("| tally | leader | `muster:scheduler:scrub` |"), "{loops}");
}
