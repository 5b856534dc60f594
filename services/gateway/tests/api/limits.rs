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
    // If Redis does not answer a gateway for a quarter of a second, the gateway admits its own share. On a busy
    // machine that may happen, but not every time.
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
    // How many submits a gateway passes on to the store, which is away. The others are refused with a time to retry.
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
    // The gateways count each other every five seconds, and one count may fail on a busy machine.
    let announced = Instant::now();
    until(SOON, "a count of each", async || (announced.elapsed() > Duration::from_secs(12)).then_some(())).await;
    redis.stop();
    assert_eq!((let_through(&one).await, let_through(&two).await), (5, 5), "half of ten");
}

/// Refusals by a gateway's own count last only as long as the outage: once Redis is back, its count decides.
#[tokio::test]
async fn refusals_of_an_outage_end_with_it() {
    let (redis, nats) = (RedisServer::start().await, nats().await.url());
    let slow = [("API_RATE_LIMIT_RPS", "0.0166"), ("API_RATE_LIMIT_BURST", "10")];
    let gate = Gate::over(&redis.url(), &nats, &slow).await;
    let job = json!({"topic": "t"});
    assert_eq!(gate.post("/api/v1/jobs", &job).await.status, 202);
    redis.stop();
    let refused = until(SOON, "its own count to be used up", async || {
        Some(gate.post("/api/v1/jobs", &job).await).filter(|answer| answer.status == 429)
    })
    .await;
    let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(wait <= 5, "Redis may be back any moment, and {wait} s are said");
    let reaches_redis = async || gate.get("/readyz").await.json["parts"]["redis"]["ready"] == true;
    until(SOON, "the gateway to miss Redis", async || (!reaches_redis().await).then_some(())).await;
    redis.restart().await;
    // The Redis client reconnects by itself. From then on all tokens are available again.
    until(SOON, "the gateway to reach Redis", async || reaches_redis().await.then_some(())).await;
    until(Duration::from_secs(20), "a submit to be taken", async || {
        (gate.post("/api/v1/jobs", &job).await.status == 202).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_repeat_costs_no_token() {
    for shared in ["yes", "no"] {
        let slow = [("API_RATE_LIMIT_RPS", "0.01"), ("API_RATE_LIMIT_BURST", "5"), ("REDIS_RATE_LIMIT", shared)];
        let gate = Gate::start(&slow).await;
        let job = json!({"topic": "t"});
        for n in 0..4 {
            let made = gate.post_keyed("/api/v1/jobs", "one", &job).await;
            assert_eq!(made.status, 202, "{n}: {}", made.text);
            assert_eq!(made.headers.contains_key("idempotency-replayed"), n > 0);
        }
        let batch =
            json!({"items": [{"topic": "t", "idempotency_key": "one"}, {"topic": "t", "idempotency_key": "two"}]});
        for _ in 0..4 {
            assert_eq!(gate.post("/api/v1/jobs/batch", &batch).await.json["items"][1]["status"], 202);
        }
        // Two of five tokens are used.
        for n in 0..3 {
            assert_eq!(gate.post("/api/v1/jobs", &job).await.status, 202, "{n}");
        }
        assert_eq!(gate.post("/api/v1/jobs", &job).await.status, 429);
        let again = gate.post_keyed("/api/v1/jobs", "one", &job).await;
        assert_eq!(again.status, 202, "it was accepted before: {}", again.text);
        assert_eq!(again.headers["idempotency-replayed"], "true");
        assert_eq!(gate.post("/api/v1/jobs/batch", &batch).await.status, 200, "all of it is there");
        assert_eq!(gate.post_keyed("/api/v1/jobs", "new", &job).await.status, 429);
        let other = gate.post_keyed("/api/v1/jobs", "one", &json!({"topic": "other"})).await;
        assert_eq!(other.code(), "idempotency_mismatch");
        let mixed =
            json!({"items": [{"topic": "t", "idempotency_key": "one"}, {"topic": "t", "idempotency_key": "new"}]});
        assert_eq!(gate.post("/api/v1/jobs/batch", &mixed).await.status, 429, "one of them is new");
        // Use a gateway that does not limit reads: the reads of this one are used up.
        let calm = Gate::start(&[]).await.for_tenant(gate.tenant());
        assert_eq!(calm.count_jobs().await, 5);
    }
}
