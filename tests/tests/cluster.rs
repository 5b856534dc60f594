//! The same on a real six-node Redis Cluster and three NATS nodes, and through the death of a primary.

use std::time::Duration;

use muster_sdk::HandlerError;
use muster_tests::{Executions, Options, Setup, Stack};
use serde_json::json;

const LONG: Duration = Duration::from_secs(120);

#[tokio::test]
async fn on_clusters_jobs_run_fail_are_cancelled_and_outlive_a_primary() {
    let stack = Stack::with(Options { cluster: true, ..Options::two() }).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let mut setup = Setup::new("w1", "smoke");
    setup.slots = 32;
    let _worker = runs.worker(&stack, setup, |_, payload| async move {
        if payload["fail"] == json!(true) { Err(HandlerError::permanent("asked to")) } else { Ok(payload) }
    });

    // Idempotent, over both gateways.
    let body = Some(json!({"topic": "smoke", "payload": 1}).to_string().into_bytes());
    let key = [("Idempotency-Key", "same")];
    let post = |gateway: muster_tests::Probe| {
        let body = body.clone();
        async move { gateway.send(reqwest::Method::POST, "/api/v1/jobs", &key, body).await.unwrap() }
    };
    let (a, b) = tokio::join!(post(one.clone()), post(two.clone()));
    assert_eq!(a.id(), b.id());
    assert_eq!(one.ended(&a.id(), LONG).await["state"], "succeeded");
    assert_eq!(runs.of(&a.id()).len(), 1);

    let failing = one.submit(json!({"topic": "smoke", "payload": {"fail": true}})).await;
    assert_eq!(two.ended(&failing, LONG).await["state"], "failed");
    let later = one.submit(json!({"topic": "smoke", "delay_ms": 60000})).await;
    assert_eq!(two.post(&format!("/jobs/{later}/cancel"), &json!({})).await.status, 200);
    let delayed = one.submit(json!({"topic": "smoke", "delay_ms": 1000})).await;
    assert_eq!(two.ended(&delayed, LONG).await["state"], "succeeded");

    // A primary dies under load. What was answered ends; what was not is asked again by its client.
    let ids = one.submit_many(500, &json!({"topic": "smoke", "payload": 2})).await;
    stack.kill9("redis-1");
    for id in &ids {
        assert_eq!(two.ended(id, LONG).await["state"], "succeeded");
    }
    let after = two.submit_many(200, &json!({"topic": "smoke", "payload": 3})).await;
    for id in &after {
        assert_eq!(one.ended(id, LONG).await["state"], "succeeded");
    }
    let listed = one.get("/jobs?state=failed").await;
    assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(1));
}
