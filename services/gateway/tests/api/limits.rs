//! Scenario 51: one limit for all gateways.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use muster_testkit::{RedisServer, nats, until};
use serde_json::json;

use crate::gate::{Answer, Gate, fresh_tenant};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn ten_of_a_hundred_are_admitted_over_two_gateways() {
    let slow = [("API_RATE_LIMIT_RPS", "0.0166"), ("API_RATE_LIMIT_BURST", "10")];
    let (first, second) = (Gate::start(&slow).await, Gate::start(&slow).await);
    let job = json!({"topic": "t"});
    let burst = async |tenant: &str| {
        let gates = [first.for_tenant(tenant), second.for_tenant(tenant)];
        join_all((0..100).map(|n| gates[n % 2].post("/api/v1/jobs", &job))).await
    };
    let admitted = |answers: &[Answer]| answers.iter().filter(|answer| answer.status == 202).count();
    let mut one = first.for_tenant(&fresh_tenant());
    let mut answers = burst(one.tenant()).await;
    // A gateway that hears nothing of Redis for a quarter of a second lets its own share in, as it may on a
    // busy machine. It does not every time.
    for _ in 0..3 {
        if admitted(&answers) != 10 {
            one = first.for_tenant(&fresh_tenant());
            answers = burst(one.tenant()).await;
        }
    }
    assert_eq!(admitted(&answers), 10);
    for refused in answers.iter().filter(|answer| answer.status != 202) {
        assert_eq!((refused.status.as_u16(), refused.code()), (429, "rate_limited"));
        let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=61).contains(&wait), "{wait}");
        assert_eq!(refused.json["retryable"], true);
    }
    let neighbour = one.for_tenant(&fresh_tenant());
    assert_eq!(neighbour.post("/api/v1/jobs", &json!({"topic": "t"})).await.status, 202, "others are not touched");
    assert_eq!(one.count_jobs().await, 10);
}

#[tokio::test]
async fn a_batch_over_the_limit_stores_nothing() {
    let gate = Gate::start(&[("API_RATE_LIMIT_RPS", "0.01"), ("API_RATE_LIMIT_BURST", "5")]).await;
    let items = |n: usize| json!({"items": vec![json!({"topic": "t"}); n]});
    let never = gate.post("/api/v1/jobs/batch", &items(6)).await;
    assert_eq!((never.status.as_u16(), never.code()), (429, "rate_limited"));
    assert!(never.text.contains("lets 5 in at once"), "{}", never.text);
    assert_eq!(gate.post("/api/v1/jobs/batch", &items(4)).await.status, 200, "what was refused cost nothing");
    let refused = gate.post("/api/v1/jobs/batch", &items(2)).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (429, "rate_limited"));
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.status, 202, "one is left");
    assert_eq!(gate.count_jobs().await, 5);
}

#[tokio::test]
async fn limits_per_replica_are_counted_by_each() {
    let alone = [("API_RATE_LIMIT_RPS", "0.01"), ("API_RATE_LIMIT_BURST", "3"), ("REDIS_RATE_LIMIT", "no")];
    let (one, other) = (Gate::start(&alone).await, Gate::start(&alone).await);
    let other = other.for_tenant(one.tenant());
    let mut admitted = 0;
    for n in 0..10 {
        let gate = if n % 2 == 0 { &one } else { &other };
        admitted += usize::from(gate.post("/api/v1/jobs", &json!({"topic": "t"})).await.status == 202);
    }
    assert_eq!(admitted, 6);
}

#[tokio::test]
async fn while_redis_is_away_each_gateway_has_its_share_of_the_limit() {
    let (redis, nats) = (RedisServer::start().await, nats().await.url());
    let gate = async |name: &str| {
        let slow = [("API_RATE_LIMIT_RPS", "0.0166"), ("API_RATE_LIMIT_BURST", "10"), ("MUSTER_INSTANCE_ID", name)];
        Gate::over(&redis.url(), &nats, &slow).await
    };
    let (one, two) = (gate("g1").await, gate("g2").await);
    // How many a gateway lets through to the store that is away; the others hear when to come back.
    let let_through = async |gate: &Gate| {
        let gate = gate.for_tenant(&fresh_tenant());
        let job = json!({"topic": "t"});
        let answers = join_all((0..30).map(|_| gate.post("/api/v1/jobs", &job))).await;
        for answer in &answers {
            assert!(
                [(503, "store_unavailable"), (429, "rate_limited")].contains(&(answer.status.as_u16(), answer.code()))
            );
            assert!(answer.headers.contains_key("retry-after"));
        }
        answers.iter().filter(|answer| answer.status == 503).count()
    };
    until(SOON, "both to be announced", async || {
        let shown = one.get("/api/v1/replicas").await;
        (shown.json["items"].as_array()?.len() == 2).then_some(())
    })
    .await;
    // They count each other every five seconds, and one count may fail on a busy machine.
    let announced = Instant::now();
    until(SOON, "a count of each", async || (announced.elapsed() > Duration::from_secs(12)).then_some(())).await;
    redis.stop();
    assert_eq!((let_through(&one).await, let_through(&two).await), (5, 5), "half of ten");
}
