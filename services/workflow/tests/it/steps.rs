//! Every kind of step, with real jobs.

use std::time::{Duration, Instant};

use muster_engine::run::RunState;
use muster_runs::Ask;
use serde_json::{Value, json};

use crate::stack::{SOON, Stack};

/// The output of a run.
fn output(kept: &muster_runs::Kept) -> Value {
    let all = kept.run.all();
    let bytes = all.iter().find(|(name, _)| name == "output").map(|(_, bytes)| bytes.as_slice());
    serde_json::from_slice(bytes.unwrap_or(b"null")).unwrap()
}

#[tokio::test]
async fn a_chain_of_jobs_hands_results_on_and_ends_with_its_output() {
    let stack = Stack::start().await;
    let yaml = r#"
steps:
  - id: a
    job: {topic: echo, payload: {n: "${{ input.n }}"}}
  - id: b
    needs: [a]
    job: {topic: flaky, payload: {of: "${{ steps.a.result.got.n }}"}}
    retry: {max_attempts: 3, backoff: {initial_ms: 10}}
  - id: c
    needs: [b]
    job: {topic: echo, payload: "${{ steps.b.result.got.of + 1 }}"}
output: {last: "${{ steps.c.result.got }}", tries: "${{ steps.b.attempts }}"}
"#;
    let kept = stack.ends(yaml, json!({"n": 41}), RunState::Succeeded).await;
    assert_eq!(output(&kept), json!({"last": 42, "tries": 2}));
    assert_eq!(stack.executed("echo"), [json!({"n": 41}), json!(42)]);
    let timeline = stack.timeline(kept.id).await;
    assert_eq!(timeline.first().map(String::as_str), Some("running"), "{timeline:?}");
    assert_eq!(timeline.last().map(String::as_str), Some("succeeded"), "{timeline:?}");
}

#[tokio::test]
async fn delays_fire_once_a_switch_takes_one_branch_and_the_join_goes_on() {
    let stack = Stack::start().await;
    let yaml = r#"
steps:
  - id: one
    delay: {ms: 300}
  - id: two
    delay: {ms: 600}
  - id: which
    needs: [one, two]
    switch:
      - when: input.big
        steps: [{id: big, job: {topic: echo, payload: big}}]
      - else:
          - {id: small, job: {topic: echo, payload: small}}
  - id: join
    needs: [which]
    job: {topic: echo, payload: joined}
"#;
    let began = Instant::now();
    let kept = stack.ends(yaml, json!({"big": true}), RunState::Succeeded).await;
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert_eq!(stack.executed("echo"), [json!("big"), json!("joined")]);
    let fired = stack.timeline(kept.id).await.iter().filter(|line| *line == "one succeeded").count();
    assert_eq!(fired, 1);
}

#[tokio::test]
async fn items_of_a_for_each_run_once_each_and_their_results_keep_their_order() {
    let stack = Stack::start().await;
    let yaml = r#"
steps:
  - id: all
    for_each: {items: input.items, as: item, max_parallel: 25, collect: steps.all.result.got.i}
    job: {topic: echo, payload: {i: "${{ item }}"}}
output: "${{ steps.all.result }}"
"#;
    let items: Vec<u32> = (0..150).collect();
    let kept = stack.ends(yaml, json!({ "items": items }), RunState::Succeeded).await;
    let mut ran: Vec<u64> = stack.executed("echo").iter().map(|payload| payload["i"].as_u64().unwrap()).collect();
    assert_eq!(ran.len(), 150);
    ran.sort_unstable();
    ran.dedup();
    assert_eq!(ran.len(), 150);
    assert_eq!(output(&kept), json!(items));
}

#[tokio::test]
async fn after_a_failure_what_succeeded_is_undone_in_reverse_order_and_a_failure_step_runs() {
    let stack = Stack::start().await;
    let yaml = r#"
steps:
  - id: a
    job: {topic: echo, payload: 1}
    compensate: {job: {topic: undo, payload: "${{ steps.a.result.got }}"}}
  - id: b
    needs: [a]
    job: {topic: echo, payload: 2}
    compensate: {job: {topic: undo, payload: "${{ steps.b.result.got }}"}}
  - id: c
    needs: [b]
    job: {topic: fail, payload: 3}
  - id: tell
    needs: [c]
    run_if: failure
    job: {topic: echo, payload: failed}
"#;
    let kept = stack.ends(yaml, json!({}), RunState::Failed).await;
    assert_eq!(kept.run.error().unwrap().step, "c");
    assert_eq!(stack.executed("undo"), [json!(2), json!(1)]);
    assert_eq!(stack.executed("echo"), [json!(1), json!(2), json!("failed")]);
}

#[tokio::test]
async fn a_sub_run_hands_its_output_to_its_parent_and_a_loop_carries_its_state() {
    let stack = Stack::start().await;
    stack
        .define(
            "child",
            r#"
steps:
  - id: work
    job: {topic: echo, payload: "${{ input.n }}"}
output: {twice: "${{ steps.work.result.got * 2 }}"}
"#,
        )
        .await;
    let yaml = r#"
steps:
  - id: below
    workflow: {name: child, input: {n: 21}}
  - id: count
    needs: [below]
    loop:
      max: 10
      state: {init: 0, next: "${{ state + steps.add.result.got }}"}
      until: state >= 3
      steps:
        - {id: add, job: {topic: echo, payload: 1}}
output: {sum: "${{ steps.count.result }}", below: "${{ steps.below.result.twice }}"}
"#;
    let kept = stack.ends(yaml, json!({}), RunState::Succeeded).await;
    assert_eq!(output(&kept), json!({"sum": 3, "below": 42}));
}

#[tokio::test]
async fn a_signal_that_comes_early_is_read_and_the_same_twice_is_one() {
    let stack = Stack::start().await;
    stack
        .define(
            "w",
            r#"
steps:
  - id: first
    job: {topic: slow, payload: {ms: 300}}
  - id: paid
    needs: [first]
    wait_signal: {name: paid, timeout_ms: 20000}
output: "${{ steps.paid.result }}"
"#,
        )
        .await;
    let id = stack.run("w", json!({})).await;
    let ask = Ask::Signal { name: "paid".into(), body: json!({"by": "card"}) };
    let tenant = muster_domain::Tenant::default();
    assert!(!stack.runs.operate(&tenant, id, "s1", &ask).await.unwrap().before);
    assert!(stack.runs.operate(&tenant, id, "s1", &ask).await.unwrap().before);
    let kept = stack.ended(id, RunState::Succeeded).await;
    assert_eq!(output(&kept), json!({"by": "card"}));
}

#[tokio::test]
async fn a_cancel_stops_what_runs_and_starts_nothing_more() {
    let stack = Stack::start().await;
    stack
        .define(
            "w",
            r#"
steps:
  - id: long
    job: {topic: slow, payload: {ms: 30000}}
  - id: after
    needs: [long]
    run_if: always
    job: {topic: echo, payload: after}
"#,
        )
        .await;
    let id = stack.run("w", json!({})).await;
    muster_testkit::until(SOON, "the job to run", async || (!stack.executed("slow").is_empty()).then_some(())).await;
    stack.ask(id, Ask::Cancel { compensate: true, reason: "enough".into() }).await;
    stack.ended(id, RunState::Cancelled).await;
    assert!(stack.executed("echo").is_empty());
    let twice = stack.ask(id, Ask::Cancel { compensate: true, reason: "enough".into() }).await;
    assert!(twice.before);
}

#[tokio::test]
async fn a_paused_run_takes_results_and_starts_nothing_until_it_is_resumed() {
    let stack = Stack::start().await;
    stack
        .define(
            "w",
            r#"
steps:
  - {id: a, job: {topic: slow, payload: {ms: 3000}}}
  - {id: b, needs: [a], job: {topic: echo, payload: b}}
"#,
        )
        .await;
    let id = stack.run("w", json!({})).await;
    stack.ask(id, Ask::Pause).await;
    stack.step(id, "a", "succeeded").await;
    assert!(stack.executed("echo").is_empty());
    assert_eq!(stack.read(id).await.run.state(), RunState::Paused);
    stack.ask(id, Ask::Resume).await;
    stack.ended(id, RunState::Succeeded).await;
    assert_eq!(stack.executed("echo").len(), 1);
}
