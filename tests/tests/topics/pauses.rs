//! A paused topic: none of its jobs starts, none is lost, and the held jobs leave in order.

use std::time::Duration;

use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack};
use serde_json::{Value, json};

use super::{LONG, all_in};

#[tokio::test]
async fn nothing_starts_while_paused_and_nothing_is_lost() {
    let stack = Stack::with(Options::two().env("MUSTER_LOOP_CONFIG_INTERVAL", "1s")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(payload)
    };
    let _workers: Vec<_> =
        ["w1", "w2"].map(|id| runs.worker(&stack, Setup { slots: 8, ..Setup::new(id, "busy") }, work)).into();
    let mut ids = one.submit_many(1000, &json!({"topic": "busy", "payload": 1})).await;
    runs.reach(150, LONG).await;
    for round in 0..3 {
        assert_eq!(two.post("/topics/busy/pause", &json!({})).await.status, 200);
        stack.settings_are_known().await;
        // Every scheduler holds jobs that come from now on; then the running ones end.
        let held = one.submit_many(20, &json!({"topic": "busy", "priority": "critical"})).await;
        all_in(&one, &held, "queued").await;
        ids.extend(held);
        until(LONG, "what ran to end", async || {
            let page = one.get("/jobs?topic=busy&state=running").await;
            page.body["items"].as_array()?.is_empty().then_some(())
        })
        .await;
        let before = runs.all().len();
        assert!(before < ids.len(), "round {round}: something must be left to hold");
        // Idle workers ask for the offers that are still on the bus, and these are taken back.
        until(LONG, "every offer to be taken back", async || {
            let shown = two.get("/topics/busy").await;
            (shown.body["counts"]["dispatched"] == 0 && shown.body["runnable"] == 0).then_some(())
        })
        .await;
        assert_eq!(runs.all().len(), before, "round {round}: something started while paused");
        assert_eq!(one.post("/topics/busy/resume", &json!({})).await.status, 200);
        runs.reach(ids.len().min(before + 100), LONG).await;
    }
    all_in(&two, &ids, "succeeded").await;
    let counts = runs.counts();
    assert!(ids.iter().all(|id| counts[id] == 1), "each started exactly once");
    let job = two.job(&ids[500]).await;
    assert_eq!(job["attempt"], 1, "what was taken back cost no attempt");
}

#[tokio::test]
async fn offers_that_a_pause_meets_on_the_bus_are_taken_back() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    // One slot and slow work: running the jobs on the bus would take seconds.
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(400)).await;
        Ok(payload)
    };
    let _worker = runs.worker(&stack, Setup { slots: 1, ..Setup::new("w1", "slow.work") }, work);
    let ids = one.submit_many(60, &json!({"topic": "slow.work"})).await;
    runs.reach(2, LONG).await;
    let standing = one.get("/topics/slow.work").await.body["counts"]["dispatched"].as_u64().unwrap();
    assert!(standing >= 6, "{standing} offers stand on the bus");
    assert_eq!(two.post("/topics/slow.work/pause", &json!({})).await.status, 200);
    let before = runs.all().len();
    until(LONG, "every offer to be taken back", async || {
        (one.get("/topics/slow.work").await.body["counts"]["dispatched"] == 0).then_some(())
    })
    .await;
    let during = (runs.all().len() - before) as u64;
    // One may have been on its way, and some more until a busy scheduler knows about the pause.
    assert!(during * 2 <= standing, "{during} of {standing} jobs started while paused");
    assert_eq!(one.post("/topics/slow.work/resume", &json!({})).await.status, 200);
    all_in(&two, &ids, "succeeded").await;
    assert!(runs.counts().values().all(|n| *n == 1), "each started exactly once");
    assert_eq!(two.job(&ids[59]).await["attempt"], 1, "what was taken back cost no attempt");
}

#[tokio::test]
async fn what_a_pause_held_is_released_in_order() {
    let stack = Stack::with(Options::default().env("MUSTER_LOOP_CONFIG_INTERVAL", "1s")).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    gateway.post("/topics/ordered/pause", &json!({})).await;
    stack.settings_are_known().await;
    let ids = gateway.submit_many(30, &json!({"topic": "ordered"})).await;
    let urgent = gateway.submit(json!({"topic": "ordered", "priority": "high"})).await;
    all_in(&gateway, &ids, "queued").await;
    gateway.reaches(&urgent, "queued", LONG).await;
    let _worker = runs.worker(&stack, Setup { slots: 1, ..Setup::new("w1", "ordered") }, |_, p| async move { Ok(p) });
    gateway.post("/topics/ordered/resume", &json!({})).await;
    runs.reach(31, LONG).await;
    let order: Vec<String> = runs.all().into_iter().map(|run| run.job).collect();
    let expected: Vec<String> = std::iter::once(urgent).chain(ids).collect();
    assert_eq!(order, expected);
}
