//! Tests of the retention loop.

use std::time::{Duration, Instant};

use muster_testkit::{NatsServer, RedisServer, until};

use crate::gate::Gate;

const SOON: Duration = Duration::from_secs(20);

/// The state of a gateway's retention loop (`leading` or `standby`), and the outcome of its last tick.
fn loop_of(gate: &Gate) -> (String, String) {
    let loops = gate.chassis.loops.show();
    let found = loops.as_array().unwrap().iter().find(|entry| entry["name"] == "retention").expect("it is registered");
    assert_eq!((&found["class"], &found["lock"]), (&"leader".into(), &"muster:dlq:cleanup".into()));
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    (text(&found["state"]), text(&found["last"]["outcome"]))
}

#[tokio::test]
async fn one_gateway_leads_retention_and_another_follows_when_it_stops() {
    let (redis, nats) = tokio::join!(RedisServer::start(), NatsServer::start());
    let start = async |name| Gate::over(&redis.url(), &nats.url(), &[("MUSTER_INSTANCE_ID", name)]).await;
    let first = start("g1").await;
    let leads = async || (loop_of(&first) == ("leading".into(), "ok".into())).then_some(());
    until(SOON, "a leader that has ticked", leads).await;
    let second = start("g2").await;
    assert_eq!(loop_of(&second).0, "standby");
    assert!(redis.cli(&["GET", "muster:dlq:cleanup"]).await.starts_with("g1~"));

    let stopped = Instant::now();
    let late = first.chassis.loops.stop(SOON).await;
    assert!(late.is_empty(), "{late:?}");
    until(SOON, "its successor", async || (loop_of(&second).0 == "leading").then_some(())).await;
    // Without the release, the lock would have stayed for up to fifteen seconds.
    assert!(stopped.elapsed() < Duration::from_secs(8), "{:?}", stopped.elapsed());
    assert!(redis.cli(&["GET", "muster:dlq:cleanup"]).await.starts_with("g2~"));
}
