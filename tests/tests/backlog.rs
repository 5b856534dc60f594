//! The bus holds a window, Redis holds the backlog: order, priorities, and who comes late.

use std::time::Duration;

use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack};
use serde_json::json;

const LONG: Duration = Duration::from_secs(90);

#[tokio::test]
async fn a_critical_job_submitted_last_passes_the_backlog() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let ids = gateway.submit_many(1500, &json!({"topic": "crowd", "payload": {"ms": 10}, "priority": "low"})).await;
    until(LONG, "a backlog", async || (gateway.job(&ids[1400]).await["state"] == "queued").then_some(())).await;

    let mut setup = Setup::new("w1", "crowd");
    setup.slots = 2;
    let _worker = runs.worker(&stack, setup, |_, payload| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(json!(null))
    });
    runs.reach(100, LONG).await;
    let before = runs.all().len();
    let critical = gateway.submit(json!({"topic": "crowd", "payload": {"ms": 0}, "priority": "critical"})).await;
    gateway.ended(&critical, LONG).await;
    let order = runs.all();
    let place = order.iter().position(|r| r.job == critical).unwrap();
    assert!(place - before < 200, "passed by {} of the 1,400 that waited before it", place - before);

    for id in &ids {
        assert_eq!(gateway.ended(id, LONG).await["state"], "succeeded");
    }
    assert!(runs.counts().values().all(|n| *n == 1), "each started exactly once");
}

#[tokio::test]
async fn a_worker_that_comes_late_finds_its_backlog_at_once() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let ids = gateway.submit_many(200, &json!({"topic": "late"})).await;
    until(LONG, "a backlog", async || (gateway.job(&ids[199]).await["state"] == "queued").then_some(())).await;
    let came = std::time::Instant::now();
    let mut setup = Setup::new("w1", "late");
    setup.slots = 16;
    let _worker = runs.worker(&stack, setup, |_, p| async move { Ok(p) });
    runs.reach(200, LONG).await;
    assert!(came.elapsed() < Duration::from_secs(15), "took {:?}", came.elapsed());
    for id in &ids {
        assert_eq!(gateway.ended(id, LONG).await["state"], "succeeded");
    }
}

#[tokio::test]
async fn a_backlog_survives_the_restart_of_every_scheduler() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let ids = gateway.submit_many(300, &json!({"topic": "patient"})).await;
    until(LONG, "a backlog", async || (gateway.job(&ids[299]).await["state"] == "queued").then_some(())).await;
    let old = stack.kill9("scheduler-1");
    stack.replaced("scheduler-1", old).await;
    let _worker = runs.echo(&stack, "w1", "patient");
    for id in &ids {
        assert_eq!(gateway.ended(id, LONG).await["state"], "succeeded");
    }
    assert!(runs.counts().values().all(|n| *n == 1), "each started exactly once");
}
