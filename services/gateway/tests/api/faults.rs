//! Stores that go away: answered in time, and forgotten once they are back.

use std::time::Duration;

use muster_bus::{Bus, BusSettings, subjects};
use muster_testkit::{NatsServer, RedisServer, nats, redis, until};
use muster_wire::{Body, v1::DeadLetter};
use serde_json::json;
use tokio::time::Instant;

use crate::gate::Gate;

#[tokio::test]
async fn redis_away_is_a_503_within_two_seconds_and_the_door_stays_open() {
    let redis = RedisServer::start().await;
    let gate = Gate::over(&redis.url(), &nats().await.url(), &[("API_RATE_LIMIT_RPS", "1000")]).await;
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.status, 202);
    let stop: [fn(&RedisServer); 2] = [RedisServer::stop, RedisServer::pause];
    for away in stop {
        away(&redis);
        for turn in 0..3 {
            let began = Instant::now();
            let (submit, batch, read, list) = tokio::join!(
                async { gate.post("/api/v1/jobs", &json!({"topic": "t"})).await },
                async { gate.post("/api/v1/jobs/batch", &json!({"items": [{"topic": "t"}]})).await },
                gate.get("/api/v1/jobs/0198c0de-0000-7000-8000-000000000000"),
                gate.get("/api/v1/jobs"),
            );
            assert!(began.elapsed() < Duration::from_secs(2), "turn {turn}: {:?}", began.elapsed());
            for answer in [submit, batch, read, list] {
                assert_eq!((answer.status.as_u16(), answer.code()), (503, "store_unavailable"));
                assert!(answer.headers.contains_key("retry-after"));
            }
        }
        let ready = until(Duration::from_secs(10), "readiness to say so", async || {
            Some(gate.get("/readyz").await).filter(|ready| ready.json["status"] == "degraded")
        })
        .await;
        assert_eq!(ready.status, 200, "a store's outage does not take the front door away");
        assert_eq!(ready.json["parts"]["redis"], json!({"ready": false}), "why is nobody's business here");
        if redis.running() {
            redis.resume();
        } else {
            redis.restart().await;
        }
        until(Duration::from_secs(10), "submits to be taken again", async || {
            (gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.status == 202).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn nats_away_does_not_stop_submits() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    until(Duration::from_secs(10), "the streams", async || {
        let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
        (!made.headers.contains_key("muster-bus")).then_some(())
    })
    .await;
    nats.stop();
    let began = Instant::now();
    let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
    assert_eq!((made.status.as_u16(), made.headers["muster-bus"].to_str().unwrap()), (202, "deferred"));
    assert!(began.elapsed() < Duration::from_secs(2));
    let read = gate.get(&format!("/api/v1/jobs/{}", made.json["id"].as_str().unwrap())).await;
    assert_eq!(read.json["state"], "pending", "Redis holds it");
    nats.restart().await;
    until(Duration::from_secs(15), "the bus to confirm again", async || {
        let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
        assert_eq!(made.status, 202);
        (!made.headers.contains_key("muster-bus")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn nats_that_hangs_is_noticed_and_missed_no_longer_than_it_is_away() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    let says = async |status: &str, within: u64| {
        until(Duration::from_secs(within), status, async || {
            Some(gate.get("/readyz").await.json).filter(|said| said["status"] == status)
        })
        .await
    };
    says("ready", 10).await;
    nats.pause();
    let said = says("degraded", 5).await;
    let (well, away) = (json!({"ready": true}), json!({"ready": false}));
    assert_eq!(said["parts"], json!({"data format": well, "loops": well, "nats": away, "redis": well}));
    nats.resume();
    says("ready", 15).await;
}

#[tokio::test]
async fn a_stop_finds_nobody_late() {
    let gate = Gate::start(&[]).await;
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.status, 202);
    gate.chassis.stop.request();
    let began = Instant::now();
    assert_eq!(gate.chassis.run_until_stopped().await, Vec::<&str>::new());
    assert!(began.elapsed() < Duration::from_millis(1_900), "{:?}", began.elapsed());
    assert_eq!(gate.chassis.tasks.running(), Vec::<&str>::new());
}

#[tokio::test]
async fn messages_that_nobody_can_read_are_kept() {
    let (redis, nats) = (RedisServer::start().await, NatsServer::start().await);
    let gate = Gate::over(&redis.url(), &nats.url(), &[]).await;
    let bus = Bus::connect(BusSettings::new(nats.url(), "test")).await.unwrap();
    let letter =
        DeadLetter { subject: "sys.job.submit".into(), reason: "garbage".into(), original: vec![1, 2, 255].into() };
    bus.publish(&subjects::dlq(), None, None, Body::DeadLetter(letter)).await.unwrap();
    let key = until(Duration::from_secs(10), "the dead message", async || {
        let keys = redis.cli(&["KEYS", "muster:dlq:message:*"]).await;
        keys.lines().next().map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned)
    })
    .await;
    assert_eq!(redis.cli(&["HGET", &key, "reason"]).await.trim(), "garbage");
    assert_eq!(redis.cli(&["HSTRLEN", &key, "original"]).await.trim(), "3");

    // A stream that was made anew counts from one again, so the place on it alone would name another message.
    let name = key.rsplit(':').next().unwrap();
    assert!(name.ends_with("-1") && name.len() > 16, "{name}: when it was stored, and where");
    data_of_a_newer_version_are_left_alone(&redis, &gate).await;
}

/// Whoever comes first notes the format of the data; one that does not know it says so, and is not ready.
async fn data_of_a_newer_version_are_left_alone(redis: &RedisServer, gate: &Gate) {
    assert_eq!(redis.cli(&["GET", "muster:meta:version"]).await.trim(), "1");
    let becomes = async |wanted: u16| {
        until(Duration::from_secs(30), "another readiness", async || {
            (gate.chassis.health.show().0.as_u16() == wanted).then_some(())
        })
        .await;
    };
    becomes(200).await;
    redis.cli(&["SET", "muster:meta:version", "2"]).await;
    becomes(503).await;
    let shown = gate.chassis.health.show().1.to_string();
    assert!(shown.contains("the data have format 2, and this version knows 1"), "{shown}");
    redis.cli(&["SET", "muster:meta:version", "1"]).await;
    becomes(200).await;
}
