//! Replicas that come and go, and a bus that forgets.

use muster_engine::run::RunState;
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
    first.stop.request();
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
