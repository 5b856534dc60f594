//! Tests with stores that go away: requests are answered in time, and work again once the stores are back.

use std::time::Duration;

use muster_bus::{Bus, BusSettings, subjects};
use muster_domain::job::Known;
use muster_testkit::{NatsServer, RedisServer, nats, redis, until};
use muster_wire::{Body, v1::DeadLetter};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::gate::Gate;

/// An answer is promised within two seconds, of which 1.8 may be used. A busy machine may stand still for as long
/// again, and for longer still now and then.
const IN_TIME: Duration = Duration::from_secs(8);

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
            assert!(began.elapsed() < IN_TIME, "turn {turn}: {:?}", began.elapsed());
            for answer in [submit, batch, read, list] {
                assert_eq!((answer.status.as_u16(), answer.code()), (503, "store_unavailable"));
                assert!(answer.headers.contains_key("retry-after"));
            }
        }
        let ready = until(Duration::from_secs(30), "readiness to say so", async || {
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
        until(Duration::from_secs(30), "submits to be taken again", async || {
            (gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.status == 202).then_some(())
        })
        .await;
    }
}

/// Settings decide how long a request waits while Redis hangs: one limit for the whole call, and within it one limit
/// for a single answer, after which the question is asked again.
#[tokio::test]
async fn the_patience_with_a_redis_that_hangs_is_a_setting() {
    let redis = RedisServer::start().await;
    let settings = |call, response| [("REDIS_CALL_TIMEOUT_MS", call), ("REDIS_RESPONSE_TIMEOUT_MS", response)];
    let (url, ms) = (nats().await.url(), Duration::from_millis);
    let hasty = Gate::over(&redis.url(), &url, &settings("200", "100")).await;
    let patient = Gate::over(&redis.url(), &url, &settings("5000", "5000")).await;
    for gate in [&hasty, &patient] {
        assert_eq!(gate.get("/api/v1/jobs").await.status, 200);
    }
    redis.pause();
    // On a busy machine any answer may be late, but not all of them.
    for (gate, wait, times) in [(&hasty, ms(150)..ms(800), 8), (&patient, ms(4_500)..ms(12_000), 1)] {
        let mut took = Vec::new();
        for _ in 0..times {
            let began = Instant::now();
            let answer = gate.get("/api/v1/jobs").await;
            assert_eq!((answer.status.as_u16(), answer.code()), (503, "store_unavailable"));
            took.push(began.elapsed());
        }
        assert!(took[0] >= wait.start && took.iter().any(|took| *took < wait.end), "{took:?} is not {wait:?}");
    }
    // A gateway with long time-outs still gets an answer that comes late.
    let (answer, ()) = tokio::join!(patient.get("/api/v1/jobs"), async {
        tokio::time::sleep(ms(1_000)).await;
        redis.resume();
    });
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// A read that needs Redis fails while Redis hangs: the gateway makes up no answer.
#[tokio::test]
async fn no_read_answers_for_a_redis_that_hangs() {
    let redis = RedisServer::start().await;
    let gate = Gate::over(&redis.url(), &nats().await.url(), &[]).await;
    let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
    let id = made.json["id"].as_str().unwrap().to_owned();
    let own = ["", "/explain", "/history"].map(|part| format!("jobs/{id}{part}"));
    let others = ["jobs", "topics", "topics/t", "workers", "keys", "operations", "dlq", "dlq/summary", "audit"];
    let fleet = ["replicas", "loops", "locks", "config", "audit/verify", "dlq?kind=message"];
    let paths: Vec<String> = others.iter().chain(&fleet).map(|path| (*path).to_owned()).chain(own).collect();
    for path in &paths {
        let answer = gate.get(&format!("/api/v1/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    redis.pause();
    for path in &paths {
        let began = Instant::now();
        let answer = gate.get(&format!("/api/v1/{path}")).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (503, "store_unavailable"), "{path}: {}", answer.text);
        assert!(began.elapsed() < IN_TIME, "{path}: {:?}", began.elapsed());
    }
    redis.resume();
}

/// No call waits for a Redis that is gone or hangs: neither writes nor the calls of HTTP workers.
#[tokio::test]
async fn every_call_that_does_something_is_refused_in_time_while_redis_is_away() {
    let redis = RedisServer::start().await;
    let gate = Gate::over(&redis.url(), &nats().await.url(), &[]).await;
    let alive = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.json["id"].as_str().unwrap().to_owned();
    let ended = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.json["id"].as_str().unwrap().to_owned();
    assert_eq!(gate.post(&format!("/api/v1/jobs/{ended}/cancel"), &json!({})).await.status, 200);
    let held = |more: Value| {
        let mut item = json!({"job_id": alive, "fence": 1});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"worker_id": "w", "items": [item]})
    };
    let calls = [
        (Method::POST, format!("jobs/{alive}/cancel"), json!({})),
        (Method::POST, format!("jobs/{ended}/retry"), json!({})),
        (Method::DELETE, format!("jobs/{ended}"), json!(null)),
        (Method::POST, "jobs/bulk".to_owned(), json!({"action": "cancel", "filter": {"topic": "t"}})),
        (Method::POST, "keys".to_owned(), json!({"name": "k", "tenant": gate.tenant(), "scopes": ["read"]})),
        (Method::DELETE, "keys/none".to_owned(), json!(null)),
        (Method::POST, "keys/none/rotate".to_owned(), json!({})),
        (Method::PUT, "topics/t".to_owned(), json!({"lease_ms": 5_000})),
        (Method::POST, "topics/t/pause".to_owned(), json!({})),
        (Method::POST, "workers/w/drain".to_owned(), json!({})),
        (Method::POST, "worker/lease".to_owned(), json!({"request_id": "r", "worker_id": "w", "topics": ["t"]})),
        (Method::POST, "worker/extend".to_owned(), held(json!({}))),
        (Method::POST, "worker/complete".to_owned(), held(json!({"result": 1}))),
        (Method::POST, "worker/fail".to_owned(), held(json!({"error": {"code": "boom", "message": "no"}}))),
        (Method::POST, "worker/release".to_owned(), held(json!({}))),
    ];
    let stored = gate.make_key(&["submit", "read", "control", "worker", "admin"], &[]).await;
    let stored = gate.with_key(Some(&stored));
    let stop: [fn(&RedisServer); 2] = [RedisServer::pause, RedisServer::stop];
    for away in stop {
        away(&redis);
        for gate in [&gate, &stored] {
            for (method, path, body) in &calls {
                let body = (!body.is_null()).then(|| body.to_string().into_bytes());
                let began = Instant::now();
                let answer = gate.send(method.clone(), &format!("/api/v1/{path}"), &[], body).await;
                let took = began.elapsed();
                assert_eq!((answer.status.as_u16(), answer.code()), (503, "store_unavailable"), "{path}");
                assert!(answer.headers.contains_key("retry-after"), "{path} says when to come back");
                assert!(took < IN_TIME, "{path} took {took:?}");
            }
        }
        redis.resume();
    }
}

/// A request that waits for the end of an accepted job still reports the job as accepted if Redis goes away
/// meanwhile.
#[tokio::test]
async fn an_accepted_submit_that_waits_says_so_though_redis_goes_away() {
    let (redis, nats) = (RedisServer::start().await, NatsServer::start().await);
    let gate = Gate::over(&redis.url(), &nats.url(), &[]).await;
    let bus = Bus::connect(BusSettings::new(nats.url(), "test")).await.unwrap();
    bus.ensure_streams().await.unwrap();
    let job = json!({"topic": "t"});
    let (made, ()) = tokio::join!(gate.post("/api/v1/jobs?wait_ms=2000", &job), async {
        // The submit appears on the bus after it was stored. From then on Redis is only asked for the job's state.
        until(Duration::from_secs(30), "the submit on the bus", async || {
            matches!(bus.oldest_unhandled_submit().await, Known::Oldest(_)).then_some(())
        })
        .await;
        redis.pause();
    });
    assert_eq!((made.status.as_u16(), &made.json["state"]), (202, &json!("pending")), "{}", made.text);
    redis.resume();
    let read = until(Duration::from_secs(30), "Redis to answer again", async || {
        Some(gate.get(made.headers["location"].to_str().unwrap()).await).filter(|read| read.status != 503)
    })
    .await;
    assert_eq!((read.status.as_u16(), &read.json["id"]), (200, &made.json["id"]), "{}", read.text);
}

#[tokio::test]
async fn nats_away_does_not_stop_submits() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    until(Duration::from_secs(30), "the streams", async || {
        let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
        (!made.headers.contains_key("muster-bus")).then_some(())
    })
    .await;
    nats.stop();
    let began = Instant::now();
    let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
    assert_eq!((made.status.as_u16(), made.headers["muster-bus"].to_str().unwrap()), (202, "deferred"));
    assert!(began.elapsed() < IN_TIME, "{:?}", began.elapsed());
    let read = gate.get(&format!("/api/v1/jobs/{}", made.json["id"].as_str().unwrap())).await;
    assert_eq!(read.json["state"], "pending", "Redis holds it");
    nats.restart().await;
    until(Duration::from_secs(30), "the bus to confirm again", async || {
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
    let says = async |status: &str, nats_is: bool| {
        let (well, it) = (json!({"ready": true}), json!({"ready": nats_is}));
        let parts = json!({"data format": well, "loops": well, "nats": it, "redis": well});
        until(Duration::from_secs(30), status, async || {
            let said = gate.get("/readyz").await.json;
            (said["status"] == status && said["parts"] == parts).then_some(())
        })
        .await
    };
    says("ready", true).await;
    nats.pause();
    says("degraded", false).await;
    nats.resume();
    says("ready", true).await;
}

#[tokio::test]
async fn a_stop_finds_nobody_late() {
    let gate = Gate::start(&[]).await;
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.status, 202);
    gate.chassis.stop.request();
    let began = Instant::now();
    assert_eq!(gate.chassis.run_until_stopped().await, Vec::<&str>::new());
    assert!(began.elapsed() < Duration::from_secs(12), "less than the limit of a stop: {:?}", began.elapsed());
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
    let key = until(Duration::from_secs(30), "the dead message", async || {
        let keys = redis.cli(&["KEYS", "muster:dlq:message:*"]).await;
        keys.lines().next().map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned)
    })
    .await;
    assert_eq!(redis.cli(&["HGET", &key, "reason"]).await.trim(), "garbage");
    assert_eq!(redis.cli(&["HSTRLEN", &key, "original"]).await.trim(), "3");

    // A stream that was deleted and created again counts from one, so the sequence number alone would name another
    // message.
    let name = key.rsplit(':').next().unwrap();
    assert!(name.ends_with("-1") && name.len() > 16, "{name}: when it was stored, and where");
    data_of_a_newer_version_are_left_alone(&redis, &gate).await;
}

/// The first gateway writes the format of the data. A gateway that does not know the format says so, and is not
/// ready.
async fn data_of_a_newer_version_are_left_alone(redis: &RedisServer, gate: &Gate) {
    assert_eq!(redis.cli(&["GET", "muster:meta:version"]).await.trim(), "2");
    let becomes = async |wanted: u16| {
        until(Duration::from_secs(30), "another readiness", async || {
            (gate.chassis.health.show().0.as_u16() == wanted).then_some(())
        })
        .await;
    };
    becomes(200).await;
    redis.cli(&["SET", "muster:meta:version", "3"]).await;
    becomes(503).await;
    let shown = gate.chassis.health.show().1.to_string();
    assert!(shown.contains("the data has format 3, and this version reads formats up to 2"), "{shown}");
    redis.cli(&["SET", "muster:meta:version", "2"]).await;
    becomes(200).await;
}

/// No event reports a job that ends while NATS is away. A request that waits for it reads the record again when NATS
/// is back, and does not have to wait for its time-out.
#[tokio::test]
async fn whoever_waits_hears_of_an_end_that_nats_did_not_carry() {
    let nats = NatsServer::start().await;
    let gate = Gate::over(&redis().await.url(), &nats.url(), &[]).await;
    let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
    let path = format!("/api/v1/jobs/{}", made.json["id"].as_str().unwrap());
    let waits = async {
        let job = gate.get(&format!("{path}?wait_ms=30000")).await.json;
        (job, Instant::now())
    };
    let ends = async {
        let says = async |status: &str| {
            until(Duration::from_secs(30), status, async || {
                (gate.get("/readyz").await.json["status"] == status).then_some(())
            })
            .await;
        };
        says("ready").await;
        nats.stop();
        says("degraded").await;
        let cancelled = gate.post(&format!("{path}/cancel"), &json!({})).await;
        assert_eq!(cancelled.status, 200, "{}", cancelled.text);
        let back = Instant::now();
        nats.restart().await;
        back
    };
    let ((job, answered), back) = tokio::join!(waits, ends);
    assert_eq!(job["state"], "cancelled", "{job}");
    assert!(answered > back, "nobody could tell it before");
    assert!(answered - back < Duration::from_secs(20), "{:?} after NATS was there", answered - back);
}
