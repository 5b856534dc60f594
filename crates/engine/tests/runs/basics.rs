//! Jobs, needs, conditions, failures, delays, values, events, time-outs, output.

use muster_domain::{Time, job::Ending};
use muster_engine::run::{Action, Outcome, RunState::*, StepState};
use serde_json::json;

use crate::world::{START, World};

const CHAIN: &str = "
steps:
  - {id: a, job: {topic: t.a, payload: {n: '${{ input.n }}'}}}
  - {id: b, needs: [a], job: {topic: t.b, payload: '${{ steps.a.result.x }}'}}
  - {id: c, needs: [b], job: {topic: t.c, payload: 'got ${{ steps.a.result.x }}'}}
output: {x: '${{ steps.a.result.x }}', last: '${{ steps.c.state }}'}
";

#[test]
fn a_chain_runs_in_order_and_carries_results() {
    let mut w = World::start(CHAIN, json!({"n": 7}));
    w.carry_out();
    assert_eq!(w.submitted, ["a"]);
    assert_eq!(w.submit_of("a").payload, Some(json!({"n": 7})));
    w.succeed("a", json!({"x": 42, "y": "unread"}));
    assert_eq!(w.submit_of("b").payload, Some(json!(42)));
    w.succeed("b", json!(null));
    assert_eq!(w.submit_of("c").payload, Some(json!("got 42")));
    w.succeed("c", json!(null));
    assert_eq!(w.state(), Succeeded);
    assert_eq!(w.output(), Some(json!({"x": 42, "last": "succeeded"})));
    assert!(w.waits().is_empty());
    assert_eq!(
        w.trace(),
        "run running\na running\na succeeded\nb running\nb succeeded\nc running\nc succeeded\nrun succeeded"
    );
}

#[test]
fn a_result_that_nobody_reads_is_not_kept() {
    let mut w = World::start(CHAIN, json!({"n": 7}));
    w.succeed("a", json!({"x": 1}));
    w.succeed("b", json!("large"));
    assert!(w.saved.contains_key("r:a"));
    assert!(!w.saved.contains_key("r:b"));
    assert!(w.run.reads_result("a") && !w.run.reads_result("b"));
}

#[test]
fn a_job_carries_run_and_step_and_its_own_fields() {
    let yaml = "
defaults: {timeout_ms: 60000, retry: {max_attempts: 3}}
steps:
  - id: a
    labels: {team: x}
    job:
      topic: t
      priority: high
      labels: {order: '${{ input.order }}', run_id: '${{ input.order }}'}
      requires: {gpu: 'yes'}
      concurrency_key: 'k-${{ input.order }}'
      delay_ms: 5
      timeout_ms: 1000
    retry: {backoff: {initial_ms: 10}}
";
    let mut w = World::start(yaml, json!({"order": 12}));
    w.carry_out();
    let submit = w.submit_of("a");
    let run = w.run.about().run.to_string();
    let labels: Vec<(&str, &str)> = submit.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(labels, [("order", "12"), ("run_id", &run), ("step", "a"), ("team", "x")]);
    assert_eq!(submit.deadline, Some(Time(START + 60_000_000)));
    assert_eq!((submit.retry.max_attempts, submit.retry.initial_ms), (Some(3), Some(10)));
    assert_eq!(
        (submit.concurrency_key.as_deref(), submit.delay_ms, submit.timeout_ms),
        (Some("k-12"), Some(5), Some(1000))
    );
}

#[test]
fn steps_without_needs_start_together_and_a_join_waits_for_all() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, job: {topic: t}}
  - {id: j, needs: [a, b], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    assert_eq!(w.submitted, ["a", "b"]);
    w.succeed("b", json!(1));
    assert_eq!(w.step("j"), StepState::Waiting);
    w.succeed("a", json!(1));
    assert_eq!(w.submitted, ["a", "b", "j"]);
}

#[test]
fn when_false_skips_and_the_steps_behind_go_on() {
    let yaml = "
steps:
  - {id: a, when: 'input.n > 10', job: {topic: t}}
  - {id: b, needs: [a], job: {topic: t}}
  - {id: c, needs: [a], run_if: failure, job: {topic: t}}
";
    let mut w = World::start(yaml, json!({"n": 3}));
    w.carry_out();
    assert_eq!(w.submitted, ["b"]);
    assert_eq!((w.step("a"), w.step("c")), (StepState::Skipped, StepState::Skipped));
    w.succeed("b", json!(1));
    assert_eq!(w.state(), Succeeded);
    assert!(w.trace().contains("a skipped (`when` is false)"));
}

#[test]
fn a_when_that_cannot_be_evaluated_fails_the_step() {
    let yaml = "
steps:
  - {id: a, when: 'input.missing.deep', job: {topic: t}}
";
    let w = World::start(yaml, json!({"n": 3}));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "expression_error"));
    assert_eq!(w.run.error().unwrap().step, "a");
}

#[test]
fn a_failure_skips_what_follows_and_starts_what_waits_for_it() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, needs: [a], job: {topic: t}}
  - {id: alarm, needs: [a, b], run_if: failure, notify: {type: order.failed, data: {code: '${{ steps.a.error.code }}'}}}
  - {id: clean, needs: [b], run_if: always, job: {topic: t}}
  - {id: late, needs: [clean], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    assert_eq!(w.state(), Stopping);
    assert_eq!((w.step("b"), w.step("alarm")), (StepState::Skipped, StepState::Succeeded));
    assert_eq!(w.submitted, ["a", "clean"]);
    let Action::Notify { event_type, data, .. } = &w.other[0].action else { panic!("{:?}", w.other) };
    assert_eq!((event_type.as_str(), data), ("order.failed", &Some(json!({"code": "boom"}))));
    w.succeed("clean", json!(1));
    assert_eq!((w.step("late"), w.state()), (StepState::Skipped, Failed));
    assert_eq!((w.error_code().as_str(), w.run.error().unwrap().step.as_str()), ("boom", "a"));
}

#[test]
fn a_failure_cancels_what_runs_beside_it() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, job: {topic: t}}
  - {id: c, needs: [b], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    assert_eq!((w.cancelled.clone(), w.state()), (vec!["b".to_owned()], Stopping));
    w.tell_cancelled();
    assert_eq!((w.step("b"), w.step("c"), w.state()), (StepState::Cancelled, StepState::Skipped, Failed));
}

#[test]
fn with_finish_what_runs_beside_a_failure_runs_to_its_end() {
    let yaml = "
on_failure: finish
steps:
  - {id: a, job: {topic: t}}
  - {id: b, job: {topic: t}}
  - {id: c, needs: [b], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    assert!(w.cancelled.is_empty());
    w.succeed("b", json!(1));
    assert_eq!((w.step("b"), w.step("c"), w.state()), (StepState::Succeeded, StepState::Skipped, Failed));
}

#[test]
fn on_error_continue_keeps_a_failure_to_the_step() {
    let yaml = "
steps:
  - {id: a, on_error: continue, job: {topic: t}}
  - {id: b, needs: [a], when: 'steps.a.state == \"failed\"', job: {topic: t, payload: {ok: '${{ has(steps.a.result) }}'}}}
  - {id: c, needs: [a], run_if: failure, job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    assert_eq!(w.submitted, ["a", "b", "c"]);
    assert_eq!(w.submit_of("b").payload, Some(json!({"ok": false})));
    w.succeed("b", json!(1));
    w.succeed("c", json!(1));
    assert_eq!(w.state(), Succeeded);
}

#[test]
fn the_result_of_a_step_that_did_not_succeed_cannot_be_read() {
    let yaml = "
steps:
  - {id: a, on_error: continue, job: {topic: t}}
  - {id: b, needs: [a], set: '${{ steps.a.result }}'}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "expression_error"));
}

#[test]
fn ends_of_jobs_make_ends_of_steps() {
    for (ending, state, code) in [
        (Ending::Failed, StepState::Failed, "boom"),
        (Ending::Denied, StepState::Failed, "denied"),
        (Ending::Quarantined, StepState::Failed, "quarantined"),
        (Ending::Cancelled, StepState::Failed, "cancelled"),
        (Ending::Expired, StepState::TimedOut, "expired"),
        (Ending::TimedOut, StepState::TimedOut, "deadline_exceeded"),
    ] {
        let mut w = World::start("steps: [{id: a, job: {topic: t}}]", json!({}));
        w.end("a", ending, None);
        assert_eq!((w.step("a"), w.state(), w.error_code().as_str()), (state, Failed, code), "{ending}");
    }
}

#[test]
fn a_late_end_of_a_cancelled_job_that_succeeded_counts_as_success() {
    let yaml = "steps: [{id: a, job: {topic: t}}, {id: b, job: {topic: t}}]";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    let (b, _) = w.job("b");
    w.fail("a");
    w.job_ended(b, Ending::Succeeded, Some(json!(1)));
    assert_eq!((w.step("b"), w.state()), (StepState::Succeeded, Failed));
}

#[test]
fn values_are_computed_and_seen() {
    let yaml = "
steps:
  - {id: a, set: {sum: '${{ input.a + input.b }}'}}
  - {id: b, needs: [a], set: '${{ steps.a.result.sum * 2 }}'}
output: '${{ steps.b.result }}'
";
    let w = World::start(yaml, json!({"a": 1, "b": 2}));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(6))));
}

#[test]
fn delays_wait_and_those_into_the_past_end_at_once() {
    let yaml = "
steps:
  - {id: a, delay: {ms: 1500}}
  - {id: b, delay: {ms: '${{ input.ms }}'}}
  - {id: c, delay: {until: '2001-01-01T00:00:00Z'}}
  - {id: d, needs: [a, b], delay: {until: '${{ now + duration(\"1s\") }}'}}
";
    let mut w = World::start(yaml, json!({"ms": 700}));
    assert_eq!(w.step("c"), StepState::Succeeded);
    assert_eq!(w.run.next_look(), Some(Time(START + 700_000)));
    w.pass(699);
    assert_eq!(w.step("b"), StepState::Running);
    w.pass(1);
    assert_eq!((w.step("b"), w.step("a")), (StepState::Succeeded, StepState::Running));
    assert_eq!(w.run.next_look(), Some(Time(START + 1_500_000)));
    w.pass(800);
    assert_eq!((w.step("a"), w.step("d")), (StepState::Succeeded, StepState::Running));
    w.pass(1000);
    assert_eq!(w.state(), Succeeded);
    assert_eq!(w.run.next_look(), None);
}

#[test]
fn two_delays_of_the_same_length_both_end_each_once() {
    let yaml = "steps: [{id: a, delay: {ms: 10}}, {id: b, delay: {ms: 10}}]";
    let mut w = World::start(yaml, json!({}));
    w.pass(10);
    assert_eq!(w.state(), Succeeded);
    assert_eq!(w.trace().matches("a succeeded").count(), 1);
}

#[test]
fn fail_fails_with_the_users_code() {
    let yaml = "
steps:
  - {id: a, fail: {code: out_of_stock, message: 'no ${{ input.sku }}'}}
  - {id: b, needs: [a], run_if: always, set: '${{ steps.a.error.message }}'}
";
    let w = World::start(yaml, json!({"sku": "x1"}));
    let error = w.run.error().unwrap();
    assert_eq!((w.state(), error.code.as_str(), error.message.as_str()), (Failed, "out_of_stock", "no x1"));
    assert_eq!(w.saved.get("r:b").map(Vec::as_slice), Some(b"\"no x1\"".as_slice()));
}

#[test]
fn a_step_that_takes_too_long_times_out() {
    let yaml = "
steps:
  - {id: a, timeout_ms: 500, delay: {ms: 1000}}
  - {id: b, needs: [a], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.pass(500);
    assert_eq!((w.step("a"), w.state(), w.error_code().as_str()), (StepState::TimedOut, Failed, "step_timeout"));
}

#[test]
fn the_time_out_of_a_run_stops_it() {
    let yaml = "
timeout_ms: 1000
steps:
  - {id: a, job: {topic: t}}
  - {id: b, needs: [a], run_if: always, job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    w.pass(1000);
    assert_eq!((w.state(), w.cancelled.clone()), (Stopping, vec!["a".to_owned()]));
    w.tell_cancelled();
    assert_eq!((w.state(), w.error_code().as_str()), (TimedOut, "run_timeout"));
    assert_eq!((w.step("a"), w.step("b")), (StepState::Cancelled, StepState::Skipped));
    assert_eq!(w.submitted, ["a"]);
}

#[test]
fn an_output_that_cannot_be_computed_fails_the_run() {
    let yaml = "
steps: [{id: a, set: {}}]
output: '${{ input.nothing.deep }}'
";
    let w = World::start(yaml, json!({}));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "expression_error"));
}

#[test]
fn a_truncated_result_is_an_error_and_never_null() {
    let yaml = "steps: [{id: a, job: {topic: t}}, {id: b, needs: [a], set: '${{ steps.a.result }}'}]";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    let (job, _) = w.job("a");
    let end = muster_engine::run::JobEnd {
        task: "a".into(),
        job,
        ending: Ending::Succeeded,
        result: None,
        truncated: true,
        error: None,
        attempts: 1,
    };
    w.event(muster_engine::run::What::JobEnded(end));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "result_truncated"));
}

#[test]
fn the_end_of_another_job_under_the_same_step_is_nothing() {
    let mut w = World::start("steps: [{id: a, job: {topic: t}}]", json!({}));
    w.carry_out();
    let (_, job) = w.job("a");
    let other = muster_domain::JobId::derive("other", &muster_domain::Tenant::default(), "x");
    let job = job.clone();
    w.jobs.insert(other, job);
    assert_eq!(w.job_ended(other, Ending::Succeeded, None), Outcome::Nothing);
    assert_eq!(w.step("a"), StepState::Running);
}
