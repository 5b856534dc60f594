//! Replicas share the shards, and a replica that stops leaves nothing undone.

use muster_domain::RunId;
use muster_engine::run::RunState;
use muster_testkit::until;
use serde_json::json;

use crate::stack::{SOON, Stack};

const STEPS: &str = r#"
steps:
  - {id: a, job: {topic: slow, payload: {ms: 100}}}
  - {id: b, needs: [a], delay: {ms: 100}}
  - {id: c, needs: [b], job: {topic: echo, payload: "${{ input }}"}}
"#;

async fn some_runs(stack: &Stack, n: u32) -> Vec<RunId> {
    let mut ids = Vec::new();
    for n in 0..n {
        ids.push(stack.run("w", json!(n)).await);
    }
    ids
}

#[tokio::test]
async fn one_replica_owns_all_shards_two_own_half_each_and_runs_go_on_through_each_change() {
    let stack = Stack::without_workflow().await;
    stack.define("w", STEPS).await;
    let first = stack.workflow("w1").await;
    stack.owned_by(&[("w1", 16)]).await;
    let mut ids = some_runs(&stack, 16).await;
    let second = stack.workflow("w2").await;
    stack.owned_by(&[("w1", 8), ("w2", 8)]).await;
    ids.extend(some_runs(&stack, 16).await);
    first.stops().await;
    stack.owned_by(&[("w2", 16)]).await;
    ids.extend(some_runs(&stack, 16).await);
    for id in ids {
        stack.ended(id, RunState::Succeeded).await;
    }
    assert_eq!((stack.executed("slow").len(), stack.executed("echo").len()), (48, 48));
    second.stops().await;
    stack.owned_by(&[]).await;
}

#[tokio::test]
async fn a_replica_that_stops_gives_up_its_shards_only_after_its_last_save() {
    let stack = Stack::without_workflow().await;
    stack.define("w", STEPS).await;
    let only = stack.workflow("w1").await;
    stack.owned_by(&[("w1", 16)]).await;
    let ids = some_runs(&stack, 64).await;
    until(SOON, "some jobs to run", async || (stack.executed("slow").len() >= 20).then_some(())).await;
    let versions = async || {
        let mut versions = Vec::new();
        for id in &ids {
            versions.push(stack.runs.version(*id).await.unwrap());
        }
        versions
    };
    let freed = async {
        until(SOON, "the first shard to be given up", async || {
            let owned = stack.owners().await.get("w1").copied().unwrap_or_default();
            (owned < 16).then_some(())
        })
        .await;
        versions().await
    };
    let (at_release, ()) = tokio::join!(freed, only.stops());
    assert_eq!(versions().await, at_release, "nothing is saved once a shard belongs to nobody");
    assert!(stack.owners().await.is_empty(), "each shard was given up, none is left to expire");

    stack.workflow("w2").await;
    for id in ids {
        stack.ended(id, RunState::Succeeded).await;
    }
    assert_eq!((stack.executed("slow").len(), stack.executed("echo").len()), (64, 64));
}
