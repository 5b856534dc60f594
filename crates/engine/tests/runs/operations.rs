//! Cancel, pause, resume, steps ended by hand, refused commands, lost jobs, queued runs.

use muster_domain::{RunId, Tenant, Time, job::Ending};
use muster_engine::run::{
    About, Action, JobEnd, Outcome, Parent, Refusal, Run, RunError, RunOp, RunState::*, StepState, Wait, What,
};
use serde_json::json;

use crate::world::{START, World, about, plan};

const TWO: &str = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, needs: [a], job: {topic: t}}
  - {id: c, needs: [b], run_if: always, job: {topic: t}}
";

#[test]
fn a_cancelled_run_starts_nothing_more() {
    let mut w = World::start(TWO, json!({}));
    w.carry_out();
    assert_eq!(w.cancel(), Outcome::Applied);
    assert_eq!((w.state(), w.cancelled.clone()), (Stopping, vec!["a".to_owned()]));
    assert_eq!(w.cancel(), Outcome::Nothing);
    w.tell_cancelled();
    assert_eq!((w.state(), w.error_code().as_str()), (Cancelled, "cancelled"));
    assert_eq!((w.step("a"), w.step("b"), w.step("c")), (StepState::Cancelled, StepState::Skipped, StepState::Skipped));
    assert_eq!(w.submitted, ["a"]);
    assert_eq!(w.cancel(), Outcome::Nothing);
}

#[test]
fn a_cancel_before_the_submit_was_carried_out_leaves_only_the_cancel() {
    let mut w = World::start(TWO, json!({}));
    w.event(What::Op { id: "x".into(), op: RunOp::Cancel { compensate: true, reason: String::new() } });
    let commands = w.run.outbox(10).unwrap();
    assert!(matches!(commands.as_slice(), [c] if matches!(c.action, Action::CancelJob { .. })), "{commands:?}");
    w.tell_cancelled();
    assert_eq!(w.state(), Cancelled);
    assert!(w.submitted.is_empty());
}

#[test]
fn a_queued_run_is_cancelled_at_once() {
    let mut w = World::queued(TWO, json!({}));
    assert_eq!(w.waits(), [Wait::Start]);
    w.cancel();
    assert_eq!(w.state(), Cancelled);
    assert_eq!(w.event(What::Start), Outcome::Nothing);
}

#[test]
fn a_refused_start_fails_the_run() {
    let mut w = World::queued(TWO, json!({}));
    w.event(What::Refuse(RunError::new("missing_scope", "not allowed")));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "missing_scope"));
}

#[test]
fn an_ended_run_gives_its_slot_back_and_tells_its_parent() {
    let parent = Parent { run: RunId::derive("test", &Tenant::default(), "p"), step: "up[3]".into(), attempt: 2 };
    let about = About { slot: Some("k".into()), parent: Some(parent.clone()), depth: 1, ..about() };
    let mut w = World::of(Run::new(plan("steps: [{id: a, set: 1}]\noutput: {x: 5}"), about, None));
    w.event(What::Start);
    assert_eq!(w.state(), Succeeded);
    w.carry_out();
    assert!(w.other.iter().any(|c| c.action == Action::ReleaseSlot { key: "k".into() }));
    let tell =
        Action::TellParent { parent, undone: false, state: Succeeded, output: Some(json!({"x": 5})), error: None };
    assert!(w.other.iter().any(|c| c.action == tell), "{:?}", w.other);
    assert!(w.waits().is_empty());
}

#[test]
fn a_paused_run_takes_results_and_starts_nothing_until_it_resumes() {
    let mut w = World::start(TWO, json!({}));
    w.carry_out();
    assert_eq!(w.op(RunOp::Pause), Outcome::Applied);
    w.succeed("a", json!(1));
    assert_eq!((w.step("a"), w.step("b"), w.state()), (StepState::Succeeded, StepState::Waiting, Paused));
    assert!(w.waits().contains(&Wait::Resume));
    w.op(RunOp::Resume);
    assert_eq!((w.step("b"), w.state()), (StepState::Running, Running));
    w.succeed("b", json!(1));
    w.succeed("c", json!(1));
    assert_eq!(w.state(), Succeeded);
}

#[test]
fn the_same_pause_again_after_the_resume_is_nothing() {
    let mut w = World::start(TWO, json!({}));
    let pause = || What::Op { id: "p".into(), op: RunOp::Pause };
    assert_eq!(w.event(pause()), Outcome::Applied);
    assert_eq!(w.event(What::Op { id: "r".into(), op: RunOp::Resume }), Outcome::Applied);
    assert_eq!(w.event(pause()), Outcome::Nothing);
    assert_eq!(w.state(), Running);
}

#[test]
fn a_failure_while_paused_acts_at_the_resume() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, job: {topic: t}}
  - {id: c, needs: [a], run_if: failure, job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    w.op(RunOp::Pause);
    w.fail("a");
    assert_eq!((w.state(), w.cancelled.len(), w.step("c")), (Paused, 0, StepState::Waiting));
    w.op(RunOp::Resume);
    assert_eq!((w.state(), w.cancelled.clone()), (Stopping, vec!["b".to_owned()]));
    w.tell_cancelled();
    w.succeed("c", json!(1));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "boom"));
}

#[test]
fn timers_act_at_the_resume_and_a_runs_time_out_acts_at_once() {
    let yaml = "
timeout_ms: 10000
steps:
  - {id: a, delay: {ms: 1000}}
  - {id: b, needs: [a], delay: {ms: 60000}}
";
    let mut w = World::start(yaml, json!({}));
    w.op(RunOp::Pause);
    w.pass(5000);
    assert_eq!(w.step("a"), StepState::Running);
    w.op(RunOp::Resume);
    assert_eq!((w.step("a"), w.step("b")), (StepState::Succeeded, StepState::Running));
    w.op(RunOp::Pause);
    assert_eq!(w.run.next_look(), Some(Time(START + 10_000_000)));
    w.pass(6000);
    assert_eq!((w.state(), w.step("b")), (TimedOut, StepState::Cancelled));
}

#[test]
fn a_paused_run_whose_steps_all_ended_ends_when_it_resumes() {
    let mut w = World::start("steps: [{id: a, job: {topic: t}}]", json!({}));
    w.carry_out();
    w.op(RunOp::Pause);
    w.succeed("a", json!(1));
    assert_eq!(w.state(), Paused);
    w.op(RunOp::Resume);
    assert_eq!(w.state(), Succeeded);
}

/// The last step of a stopped branch ends while the run is paused. The cancel must take the end of the branch.
#[test]
fn a_cancel_of_a_paused_run_takes_the_ends_of_branches_that_were_stopped_before() {
    let yaml = "
steps:
  - id: both
    parallel:
      wait: 2
      branches:
        a: [{id: bad, job: {topic: t}}]
        b: [{id: slow, steps: [{id: inner, job: {topic: t}}]}, {id: each, for_each: {items: '[1, 2]'}, job: {topic: t}}]
";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    w.fail("bad");
    assert_eq!((w.step("slow"), w.state()), (StepState::Running, Running));
    w.op(RunOp::Pause);
    w.tell_cancelled();
    assert_eq!((w.step("both"), w.state()), (StepState::Running, Paused));
    w.cancel();
    assert_eq!(
        (w.step("slow"), w.step("each"), w.step("both")),
        (StepState::Cancelled, StepState::Cancelled, StepState::Cancelled)
    );
    assert_eq!(w.state(), Cancelled);
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let mut w = World::start(TWO, json!({}));
    w.carry_out();
    w.op(RunOp::Pause);
    w.cancel();
    w.tell_cancelled();
    assert_eq!(w.state(), Cancelled);
    assert_eq!(w.op(RunOp::Resume), Outcome::Refused(Refusal::RunDone));
    assert_eq!(w.op(RunOp::Pause), Outcome::Refused(Refusal::RunDone));
}

#[test]
fn a_cancel_during_a_failure_lets_no_further_step_start() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, job: {topic: t}}
  - {id: c, needs: [b], run_if: always, job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    w.cancel();
    w.tell_cancelled();
    assert_eq!((w.step("c"), w.state(), w.error_code().as_str()), (StepState::Skipped, Failed, "boom"));
}

#[test]
fn a_stuck_step_is_completed_by_hand_and_its_job_is_cancelled() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, needs: [a], job: {topic: t, payload: '${{ steps.a.result.x }}'}}
";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    let done = RunOp::Complete { step: "a".into(), result: json!({"x": 3}), reason: "by phone".into() };
    assert_eq!(w.op(done.clone()), Outcome::Applied);
    assert_eq!((w.cancelled.clone(), w.submit_of("b").payload), (vec!["a".to_owned()], Some(json!(3))));
    w.tell_cancelled();
    assert_eq!(w.step("a"), StepState::Succeeded);
    assert_eq!(w.op(done), Outcome::Refused(Refusal::NotRunning));
    assert!(w.trace().contains("a succeeded (by phone)"));
}

#[test]
fn a_stuck_step_is_skipped_by_hand() {
    let mut w = World::start(TWO, json!({}));
    w.carry_out();
    w.op(RunOp::Skip { step: "a".into(), reason: "not needed".into() });
    assert_eq!((w.step("a"), w.step("b")), (StepState::Skipped, StepState::Running));
    assert_eq!(w.op(RunOp::Skip { step: "zzz".into(), reason: String::new() }), Outcome::Refused(Refusal::NotRunning));
}

#[test]
fn a_submit_that_is_refused_for_good_fails_the_step() {
    let mut w = World::start(TWO, json!({}));
    w.event(What::Refused { key: "submit a".into(), error: RunError::new("payload_too_large", "too large") });
    assert_eq!((w.step("a"), w.error_code().as_str()), (StepState::Failed, "payload_too_large"));
    assert!(w.run.outbox(10).unwrap().iter().all(|c| c.key != "submit a"));
}

#[test]
fn a_refusal_of_a_confirmed_submit_is_nothing() {
    let mut w = World::start(TWO, json!({}));
    w.carry_out();
    w.event(What::Refused { key: "submit a".into(), error: RunError::new("late", "") });
    assert_eq!(w.step("a"), StepState::Running);
}

#[test]
fn a_confirmed_job_that_is_gone_fails_the_step_and_an_unconfirmed_one_does_not() {
    let mut w = World::start(TWO, json!({}));
    let Some(Action::Submit(submit)) = w.run.outbox(1).unwrap().pop().map(|c| c.action) else { panic!() };
    let lost = What::JobLost { task: "a".into(), job: submit.job };
    assert_eq!(w.event(lost.clone()), Outcome::Nothing);
    w.carry_out();
    assert_eq!(w.event(lost), Outcome::Applied);
    assert_eq!(w.error_code(), "job_lost");
}

#[test]
fn an_end_says_more_than_a_confirmation() {
    let mut w = World::start(TWO, json!({}));
    let commands = w.run.outbox(10).unwrap();
    let Action::Submit(submit) = &commands[0].action else { panic!() };
    let end = JobEnd {
        task: "a".into(),
        job: submit.job,
        ending: Ending::Succeeded,
        result: None,
        truncated: false,
        error: None,
        attempts: 1,
    };
    w.event(What::JobEnded(end));
    assert!(w.run.outbox(10).unwrap().iter().all(|c| c.key != "submit a"), "the end confirms the submit");
    assert_eq!(w.event(What::Done("submit a".into())), Outcome::Nothing);
}

#[test]
fn now_never_goes_back() {
    let mut w = World::start(TWO, json!({}));
    w.carry_out();
    w.now = Time(START + 5_000_000);
    w.succeed("a", json!(1));
    w.now = Time(START + 1_000_000);
    w.succeed("b", json!(1));
    assert_eq!(w.run.now(), Time(START + 5_000_000));
}
