//! A job that ends while it waits no longer counts as waiting, even if no scheduler releases anything.

use std::time::Duration;

use muster_testkit::until;
use muster_tests::{Options, Stack};
use serde_json::json;

const SOON: Duration = Duration::from_secs(40);

#[tokio::test]
async fn what_ends_in_the_backlog_leaves_it_at_once() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    assert_eq!(gateway.post("/topics/held/pause", &json!({})).await.status, 200);
    let waiting = async |n: u64| {
        until(SOON, &format!("a backlog of {n}"), async || {
            (gateway.get("/topics/held").await.body["backlog"] == json!(n)).then_some(())
        })
        .await;
    };
    let plain = gateway.submit_many(6, &json!({"topic": "held"})).await;
    // Enough time to see them wait, and to cancel others.
    gateway.submit_many(2, &json!({"topic": "held", "start_within_ms": 15_000, "priority": "high"})).await;
    let limited = gateway.submit(json!({"topic": "held", "concurrency_key": "k"})).await;
    waiting(9).await;

    for id in [&plain[0], &plain[5], &limited] {
        assert_eq!(gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
    }
    waiting(6).await;
    // Two could not start in time.
    waiting(4).await;
    // The pause goes on: no scheduler has claimed and dropped the entries that were left behind.
    assert_eq!(gateway.job(&plain[1]).await["state"], "queued");
}
