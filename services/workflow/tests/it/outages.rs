//! Replicas that come and go, and a bus that forgets.

use std::{collections::BTreeSet, time::Duration};

use muster_engine::run::{RunState, Wait};
use muster_runs::Ask;
use muster_testkit::until;
use serde_json::json;

use crate::stack::{SOON, Stack};

const CHAIN: &str = r#"
steps:
  - {id: a, job: {topic: slow, payload: {ms: 200}}}
  - {id: b, needs: [a], delay: {ms: 200}}
  - {id: c, needs: [b], job: {topic: slow, payload: {ms: 200}}}
  - {id: d, needs: [c], job: {topic: echo, payload: "${{ input }}"}}
"#;

#[tokio::test]
async fn runs_go_on_when_replicas_come_and_go_and_each_job_runs_once() {
    let stack = Stack::without_workflow().await;
    let first = stack.workflow("w1").await;
    stack.define("w", CHAIN).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(stack.run("w", json!(n)).await);
    }
    stack.workflow("w2").await;
    until(SOON, "some jobs to run", async || (stack.executed("slow").len() >= 10).then_some(())).await;
    first.stops().await;
    for id in ids {
        stack.ended(id, RunState::Succeeded).await;
    }
    assert_eq!((stack.executed("slow").len(), stack.executed("echo").len()), (40, 20));
}

#[tokio::test]
async fn a_bus_that_loses_its_streams_in_the_middle_of_runs_loses_no_step() {
    let stack = Stack::start().await;
    stack.define("w", CHAIN).await;
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(stack.run("w", json!(n)).await);
    }
    until(SOON, "some jobs to run", async || (stack.executed("slow").len() >= 5).then_some(())).await;
    let client = async_nats::connect(stack.nats.url()).await.unwrap();
    for stream in ["MUSTER_SYS", "MUSTER_JOBS"] {
        async_nats::jetstream::new(client.clone()).delete_stream(stream).await.unwrap();
    }
    for id in ids {
        stack.ended(id, RunState::Succeeded).await;
    }
}

#[tokio::test]
async fn a_redis_that_dies_and_comes_back_in_the_middle_of_runs_loses_none() {
    let stack = Stack::start().await;
    stack.is_whole().await;
    stack.define("w", CHAIN).await;
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(stack.run("w", json!(n)).await);
    }
    until(SOON, "some jobs to run", async || (stack.executed("slow").len() >= 5).then_some(())).await;
    stack.redis.restart().await;
    for id in ids {
        until(2 * SOON, &format!("run {id} to end"), async || {
            let (kept, _) = stack.runs.read(id).await.ok()??;
            kept.run.state().is_end().then_some(())
        })
        .await;
        stack.ended(id, RunState::Succeeded).await;
    }
    let ran: BTreeSet<u64> = stack.executed("echo").iter().filter_map(serde_json::Value::as_u64).collect();
    assert_eq!(ran, (0..10).collect());
}

const SIGNAL: &str = r#"
steps:
  - {id: paid, wait_signal: {name: paid, timeout_ms: 600000}}
  - {id: a, needs: [paid], job: {topic: echo, payload: "${{ steps.paid.result }}"}}
"#;

fn paid(how: &str) -> Ask {
    Ask::Signal { name: "paid".into(), body: json!(how) }
}

#[tokio::test]
async fn a_run_and_its_signal_that_redis_forgot_are_read_from_the_bus_again() {
    let stack = Stack::without_workflow().await;
    let first = stack.workflow("w1").await;
    stack.is_whole().await;
    stack.define("w", SIGNAL).await;
    let id = stack.run("w", json!({"n": 1})).await;
    stack.step(id, "paid", "running").await;
    let before = stack.read(id).await;
    stack.ask(id, paid("cash")).await;
    stack.ended(id, RunState::Succeeded).await;
    // Nobody acts between the loss and the moment when it is noticed.
    first.stops().await;
    stack.forget(id).await;
    stack.workflow("w2").await;
    stack.is_whole().await;
    let kept = stack.ended(id, RunState::Succeeded).await;
    assert_eq!(kept.run.about(), before.run.about(), "it is the same run, started at the same time");
    assert_eq!(kept.run.input().unwrap(), Some(&json!({"n": 1})));
    assert_eq!(stack.executed("echo"), [json!("cash")], "its job was there, and ran once");
    // A second pass finds nothing to do.
    stack.remember(id).await;
    stack.set_back(id).await;
    stack.is_whole().await;
    assert_eq!(stack.ended(id, RunState::Succeeded).await.version(), kept.version());
}

#[tokio::test]
async fn an_answered_cancel_that_redis_forgot_stops_the_run_before_it_goes_on() {
    let stack = Stack::without_workflow().await;
    let first = stack.workflow("w1").await;
    stack.is_whole().await;
    let yaml = r#"
steps:
  - {id: a, job: {topic: slow, payload: {ms: 600000}}}
  - {id: b, needs: [a], run_if: always, job: {topic: echo, payload: never}}
"#;
    stack.define("w", yaml).await;
    let id = stack.run("w", json!({})).await;
    until(SOON, "the job to run", async || (!stack.executed("slow").is_empty()).then_some(())).await;
    stack.remember(id).await;
    stack.ask(id, Ask::Cancel { compensate: true, reason: "enough".into() }).await;
    stack.ended(id, RunState::Cancelled).await;
    first.stops().await;
    stack.set_back(id).await;
    // Its home is due: before the pass, the run would take its job's end for the act of a person.
    stack.runs.flow.store.set_homes(&[id], Duration::ZERO).await.unwrap();
    stack.workflow("w2").await;
    stack.is_whole().await;
    stack.ended(id, RunState::Cancelled).await;
    assert_eq!((stack.executed("slow").len(), stack.executed("echo").len()), (1, 0));
}

#[tokio::test]
async fn the_end_of_a_sub_run_that_its_parent_forgot_is_found_by_the_next_look() {
    let stack = Stack::without_workflow().await;
    let first = stack.workflow("w1").await;
    stack.define("below", SIGNAL).await;
    stack.define("w", "steps: [{id: sub, workflow: {name: below}}]\noutput: \"${{ steps.sub.state }}\"\n").await;
    let id = stack.run("w", json!({})).await;
    stack.step(id, "sub", "running").await;
    let child = stack.read(id).await.run.waits_for(10).unwrap().into_iter().find_map(|wait| match wait {
        Wait::SubRun { run, .. } => Some(run),
        _ => None,
    });
    let child = child.expect("a sub-run");
    until(SOON, "the sub-run", async || stack.runs.version(child).await.unwrap()).await;
    stack.step(child, "paid", "running").await;
    stack.remember(id).await;
    stack.ask(child, paid("cash")).await;
    stack.ended(child, RunState::Succeeded).await;
    stack.ended(id, RunState::Succeeded).await;
    first.stops().await;
    // Its home was removed at its end: the pass gives it one again.
    stack.set_back(id).await;
    stack.workflow("w2").await;
    stack.is_whole().await;
    stack.ended(id, RunState::Succeeded).await;
}
