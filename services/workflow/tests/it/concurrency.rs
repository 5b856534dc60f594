//! How many runs of a workflow, with one value of its key, go on at once.

use std::time::Duration;

use muster_domain::{RunId, Tenant, Time, WorkflowName};
use muster_engine::run::RunState;
use muster_runs::{Ask, StartRefused};
use muster_store::{RunSlot, RunSlotTaken};
use serde_json::json;

use crate::stack::Stack;

/// A workflow whose runs go on until they hear the signal `go`.
async fn define(stack: &Stack, max: u32, when_full: &str) {
    let yaml = format!(
        "concurrency: {{key: input.k, max: {max}, when_full: {when_full}}}\n\
         steps:\n\
         \x20 - {{id: wait, wait_signal: {{name: go, timeout_ms: 600000}}}}\n\
         \x20 - {{id: act, needs: [wait], job: {{topic: echo, payload: \"${{{{ input }}}}\"}}}}\n"
    );
    stack.define("w", &yaml).await;
}

async fn run(stack: &Stack, key: &str) -> RunId {
    stack.run("w", json!({ "k": key })).await
}

async fn goes(stack: &Stack, id: RunId) {
    stack.signal(id, "go").await;
    stack.ended(id, RunState::Succeeded).await;
}

fn cancel() -> Ask {
    Ask::Cancel { compensate: true, reason: "enough".into() }
}

/// No slot is left when no run is.
async fn nobody_holds_a_slot(stack: &Stack) {
    let left = stack.redis.cli(&["--raw", "KEYS", "muster:wf:slots:*"]).await;
    assert_eq!(left.trim(), "", "every slot was given back");
}

#[tokio::test]
async fn runs_wait_for_each_other_in_the_order_of_their_starts() {
    let stack = Stack::start().await;
    define(&stack, 1, "queue").await;
    let first = run(&stack, "a").await;
    stack.reaches(first, RunState::Running).await;
    let (second, third) = (run(&stack, "a").await, run(&stack, "a").await);
    let other = run(&stack, "b").await;
    stack.reaches(other, RunState::Running).await;
    // A signal to a run that waits is kept, and makes nothing start.
    stack.signal(third, "go").await;
    for id in [second, third] {
        assert_eq!(stack.read(id).await.run.state(), RunState::Queued);
    }
    goes(&stack, first).await;
    stack.reaches(second, RunState::Running).await;
    assert_eq!(stack.read(third).await.run.state(), RunState::Queued, "only one goes on");
    goes(&stack, second).await;
    stack.ended(third, RunState::Succeeded).await;
    goes(&stack, other).await;
    assert_eq!(stack.executed("echo").len(), 4);
    nobody_holds_a_slot(&stack).await;
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_it_waits_makes_room_for_those_behind_it() {
    let stack = Stack::start().await;
    define(&stack, 2, "queue").await;
    let (one, two) = (run(&stack, "a").await, run(&stack, "a").await);
    stack.reaches(one, RunState::Running).await;
    stack.reaches(two, RunState::Running).await;
    let waiting = [run(&stack, "a").await, run(&stack, "a").await];
    stack.ask(waiting[0], cancel()).await;
    let kept = stack.ended(waiting[0], RunState::Cancelled).await;
    assert_eq!(kept.run.times().0, Time::NONE, "it never started");
    assert_eq!(stack.read(waiting[1]).await.run.state(), RunState::Queued, "no slot was freed");
    stack.ask(one, cancel()).await;
    stack.ended(one, RunState::Cancelled).await;
    stack.reaches(waiting[1], RunState::Running).await;
    goes(&stack, two).await;
    goes(&stack, waiting[1]).await;
    nobody_holds_a_slot(&stack).await;
}

#[tokio::test]
async fn a_full_workflow_that_rejects_stores_nothing_and_takes_the_next_run_after_an_end() {
    let stack = Stack::start().await;
    define(&stack, 1, "reject").await;
    let first = run(&stack, "a").await;
    let (id, refused) = stack.try_run("w", json!({"k": "a"})).await;
    assert!(matches!(&refused, Err(StartRefused::Full { key, max: 1 }) if key == "a"), "{refused:?}");
    assert!(stack.runs.read(id).await.unwrap().is_none());
    assert_eq!(stack.runs.flow.store.home_of(id).await.unwrap(), None);
    goes(&stack, run(&stack, "b").await).await;
    goes(&stack, first).await;
    goes(&stack, run(&stack, "a").await).await;
    nobody_holds_a_slot(&stack).await;
}

#[tokio::test]
async fn the_slot_of_a_start_that_died_before_its_run_was_stored_is_given_to_the_next() {
    let stack = Stack::start().await;
    define(&stack, 1, "reject").await;
    let slot = RunSlot {
        tenant: Tenant::default(),
        workflow: WorkflowName::parse("w").unwrap(),
        key: "a".into(),
        run: RunId::mint(3),
    };
    assert_eq!(stack.runs.flow.store.take_run_slot(&slot, 1, None).await.unwrap(), RunSlotTaken::Held);
    goes(&stack, run(&stack, "a").await).await;
    nobody_holds_a_slot(&stack).await;
}

#[tokio::test]
async fn a_slot_that_a_failover_gives_back_to_an_ended_run_is_given_to_the_next() {
    let stack = Stack::start().await;
    define(&stack, 1, "queue").await;
    let first = run(&stack, "a").await;
    goes(&stack, first).await;
    let slot =
        RunSlot { tenant: Tenant::default(), workflow: WorkflowName::parse("w").unwrap(), key: "a".into(), run: first };
    assert_eq!(stack.runs.flow.store.take_run_slot(&slot, 1, None).await.unwrap(), RunSlotTaken::Held);
    goes(&stack, run(&stack, "a").await).await;
    nobody_holds_a_slot(&stack).await;
}

#[tokio::test]
async fn a_newcomer_cancels_the_oldest_run_and_starts_after_its_end() {
    let stack = Stack::start().await;
    let yaml = r#"
concurrency: {key: input.k, max: 1, when_full: cancel_oldest}
steps:
  - id: made
    job: {topic: echo, payload: made}
    compensate: {job: {topic: undo, payload: "${{ input.n }}"}}
  - {id: wait, needs: [made], wait_signal: {name: go, timeout_ms: 600000}}
"#;
    stack.define("w", yaml).await;
    let start = async |n: u32| stack.run("w", json!({"k": "a", "n": n})).await;
    let first = start(1).await;
    stack.step(first, "wait", "running").await;
    let second = start(2).await;
    let ended = stack.ended(first, RunState::Cancelled).await;
    stack.step(second, "wait", "running").await;
    let began = stack.read(second).await.run.times().0;
    assert!(ended.run.times().1 <= began, "the newcomer waits for the end of the oldest, compensations included");
    assert_eq!(stack.executed("undo"), [json!(1)]);
    let third = start(3).await;
    stack.ended(second, RunState::Cancelled).await;
    stack.step(third, "wait", "running").await;
    goes(&stack, third).await;
    assert_eq!(stack.executed("undo"), [json!(1), json!(2)]);
    nobody_holds_a_slot(&stack).await;
}

#[tokio::test]
async fn of_those_that_wait_the_oldest_is_cancelled_first() {
    let stack = Stack::start().await;
    define(&stack, 1, "queue").await;
    let holder = run(&stack, "a").await;
    stack.reaches(holder, RunState::Running).await;
    let waiting = run(&stack, "a").await;
    // The next version cancels; the runs that are there keep theirs.
    let yaml = "concurrency: {key: input.k, max: 1, when_full: cancel_oldest}\nsteps: [{id: a, set: 1}]\n";
    stack.define("w", yaml).await;
    muster_testkit::until(Duration::from_secs(20), "it to wait", async || {
        stack.runs.flow.store.waiting_runs(&slot_of(waiting)).await.unwrap().contains(&waiting).then_some(())
    })
    .await;
    let newcomer = run(&stack, "a").await;
    stack.ended(waiting, RunState::Cancelled).await;
    assert_eq!(stack.read(holder).await.run.state(), RunState::Running, "one that waited was cancelled instead");
    goes(&stack, holder).await;
    stack.ended(newcomer, RunState::Succeeded).await;
    nobody_holds_a_slot(&stack).await;
}

fn slot_of(run: RunId) -> RunSlot {
    RunSlot { tenant: Tenant::default(), workflow: WorkflowName::parse("w").unwrap(), key: "a".into(), run }
}
