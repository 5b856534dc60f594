//! Operations on runs that come twice, late, or when nobody looks; and what sub-runs may do.

use std::time::Duration;

use muster_domain::{RunId, Tenant};
use muster_engine::run::{Refusal, RunState, Undo};
use muster_runs::{Ask, OperateRefused, Start};
use muster_testkit::until;
use serde_json::{Value, json};

use crate::stack::{SOON, Stack};

async fn operate(stack: &Stack, id: RunId, op: &str, ask: Ask) -> bool {
    stack.runs.operate(&Tenant::default(), id, op, &ask).await.unwrap().before
}

#[tokio::test]
async fn a_pause_of_a_paused_run_is_remembered_and_pauses_nothing_later() {
    let stack = Stack::start().await;
    stack.is_whole().await;
    stack.define("w", "steps: [{id: a, wait_signal: {name: go, timeout_ms: 600000}}]").await;
    let id = stack.run("w", Value::Null).await;
    stack.step(id, "a", "running").await;
    assert!(!operate(&stack, id, "first", Ask::Pause).await);
    assert!(operate(&stack, id, "second", Ask::Pause).await, "it was paused already");
    assert!(!operate(&stack, id, "third", Ask::Resume).await);
    assert!(operate(&stack, id, "second", Ask::Pause).await, "the same request again");
    assert_eq!(stack.read(id).await.run.state(), RunState::Running);
    // A pass over the bus reads all three again.
    stack.remember(id).await;
    stack.set_back(id).await;
    stack.is_whole().await;
    assert_eq!(stack.read(id).await.run.state(), RunState::Running);
    stack.signal(id, "go").await;
    stack.ended(id, RunState::Succeeded).await;
}

#[tokio::test]
async fn a_signal_after_the_time_out_is_too_late_also_if_nobody_looked() {
    let stack = Stack::without_workflow().await;
    let first = stack.workflow("w1").await;
    let yaml = "
steps: [{id: a, wait_signal: {name: go, timeout_ms: 2000}}]
";
    stack.define("w", yaml).await;
    let id = stack.run("w", Value::Null).await;
    stack.step(id, "a", "running").await;
    first.stops().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let go = Ask::Signal { name: "go".into(), body: Value::Null };
    let late = stack.runs.operate(&Tenant::default(), id, "late", &go).await;
    assert!(matches!(late, Err(OperateRefused::Refused { why: Refusal::RunDone, .. })), "its time-out ended the run");
    stack.workflow("w2").await;
    let kept = stack.ended(id, RunState::Failed).await;
    assert_eq!(kept.run.error().unwrap().code, "signal_timeout");
}

#[tokio::test]
async fn compensations_of_a_sub_run_that_failed_are_tried_again() {
    let stack = Stack::start().await;
    stack.define("child", "steps: [{id: a, job: {topic: echo, payload: 1}, compensate: {job: {topic: fail}}}]").await;
    let yaml = "
steps:
  - {id: w, workflow: {name: child}, compensate: self}
  - {id: x, needs: [w], fail: {code: boom, message: it broke}}
";
    let kept = stack.ends(yaml, json!({}), RunState::Failed).await;
    assert_eq!(
        (kept.run.error().unwrap().code.as_str(), kept.run.compensation()),
        ("compensation_failed", (Undo::Failed, 1))
    );
    assert_eq!(stack.executed("fail").len(), 1);
    for tries in 2..4 {
        stack.ask(kept.id, Ask::Compensate { tell: None }).await;
        until(2 * SOON, "the compensations to fail again", async || {
            let (state, failed) = stack.read(kept.id).await.run.compensation();
            (stack.executed("fail").len() == tries && (state, failed) == (Undo::Failed, 1)).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_sub_run_of_a_workflow_that_was_never_stored_holds_up_no_end() {
    let stack = Stack::start().await;
    let yaml = "
steps:
  - {id: b, workflow: {name: nope}}
  - {id: a, fail: {code: boom, message: it broke}}
";
    let kept = stack.ends(yaml, json!({}), RunState::Failed).await;
    assert_eq!(kept.run.error().unwrap().code, "boom");
}

#[tokio::test]
async fn a_run_submits_only_to_the_topics_of_its_key_also_through_sub_runs() {
    let stack = Stack::start().await;
    stack.define("child", "steps: [{id: a, job: {topic: echo, payload: 1}}]").await;
    stack.define("w", "steps: [{id: x, workflow: {name: child}}]").await;
    let start = |topics: &[&str]| Start {
        topics: topics.iter().map(|glob| (*glob).to_owned()).collect(),
        ..stack.start_of("w", Value::Null)
    };
    let narrow = stack.runs.start(start(&["mail.*"])).await.unwrap().kept.id;
    let kept = stack.ended(narrow, RunState::Failed).await;
    let error = kept.run.error().unwrap();
    assert_eq!((error.code.as_str(), error.step.as_str()), ("missing_scope", "a"), "{error:?}");
    assert!(stack.executed("echo").is_empty());
    let wide = stack.runs.start(start(&["mail.*", "ec*"])).await.unwrap().kept.id;
    stack.ended(wide, RunState::Succeeded).await;
    assert_eq!(stack.executed("echo"), [json!(1)]);
}
