//! Compensations: what is undone, in which order, with which input, and what becomes of those that fail.

use muster_domain::job::Ending;
use muster_engine::run::{Action, Outcome, Refusal, RunOp, RunState, RunState::*, StepState, SubRunEnd, Wait, What};
use serde_json::json;

use crate::world::World;

const ORDER: &str = "
steps:
  - id: reserve
    for_each: {items: input.lines, as: line, max_parallel: 2}
    job: {topic: t}
    compensate: {job: {topic: t.undo, payload: {sku: '${{ line }}', hold: '${{ steps.reserve.result.hold }}'}}}
  - id: charge
    needs: [reserve]
    job: {topic: t}
    compensate: {job: {topic: t.undo, payload: '${{ steps.charge.result.id }}'}, retry: {max_attempts: 9}}
  - {id: ship, needs: [charge], job: {topic: t}}
";

fn charged() -> World {
    let mut w = World::start(ORDER, json!({"lines": ["x", "y", "z"]}));
    for n in 0..3 {
        w.succeed(&format!("reserve[{n}]"), json!({"hold": n}));
    }
    w.succeed("charge", json!({"id": "c1"}));
    w
}

#[test]
fn what_succeeded_is_undone_in_reverse_order_and_items_together() {
    let mut w = charged();
    w.fail("ship");
    assert_eq!(w.state(), Compensating);
    assert_eq!(w.submitted[5..], ["undo:charge"]);
    let undo = w.submit_of("undo:charge");
    assert_eq!((undo.payload, undo.retry.max_attempts), (Some(json!("c1")), Some(9)));
    assert!(w.waits().iter().any(|wait| matches!(wait, Wait::Job { task, .. } if task == "undo:charge")));
    w.succeed("undo:charge", json!(1));
    assert_eq!(w.submitted[6..], ["undo:reserve[2]", "undo:reserve[1]"]);
    assert_eq!(w.submit_of("undo:reserve[2]").payload, Some(json!({"sku": "z", "hold": 2})));
    w.succeed("undo:reserve[1]", json!(1));
    w.succeed("undo:reserve[2]", json!(1));
    assert_eq!(w.state(), Compensating);
    w.succeed("undo:reserve[0]", json!(1));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "boom"));
}

#[test]
fn a_running_step_that_declares_one_is_awaited_and_undone_when_it_succeeded_late() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}, compensate: {job: {topic: t}}}
  - {id: b, job: {topic: t}}
  - {id: c, job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("b");
    assert_eq!(w.cancelled, ["c"]);
    w.tell_cancelled();
    assert_eq!(w.state(), Stopping);
    w.succeed("a", json!(1));
    assert_eq!((w.state(), w.step("a")), (Compensating, StepState::Succeeded));
    w.succeed("undo:a", json!(1));
    assert_eq!(w.state(), Failed);
}

#[test]
fn an_awaited_step_whose_job_was_never_submitted_is_kept_from_it() {
    let yaml = "steps: [{id: a, job: {topic: t}, compensate: {job: {topic: t}}}]";
    let mut w = World::start(yaml, json!({}));
    w.event(What::Op { id: "x".into(), op: RunOp::Cancel { compensate: true, reason: String::new() } });
    let commands = w.run.outbox(9).unwrap();
    assert!(matches!(&commands[..], [c] if matches!(c.action, Action::CancelJob { only_if_absent: true, .. })));
    w.tell_cancelled();
    assert_eq!((w.state(), w.step("a")), (Cancelled, StepState::Cancelled));
}

#[test]
fn with_started_a_step_that_failed_is_undone_too() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}, compensate: {when: started, job: {topic: t, payload: '${{ steps.a.state }}'}}}
  - {id: b, needs: [a], job: {topic: t}, compensate: {when: started, job: {topic: t}}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    w.carry_out();
    assert_eq!(w.submitted, ["a", "undo:a"]);
    assert_eq!(w.submit_of("undo:a").payload, Some(json!("failed")));
    w.succeed("undo:a", json!(1));
    assert_eq!(w.state(), Failed);
}

#[test]
fn a_cancel_compensates_unless_told_otherwise() {
    let mut w = charged();
    w.cancel();
    w.tell_cancelled();
    assert_eq!(w.state(), Compensating);
    let mut w = charged();
    w.op(RunOp::Cancel { compensate: false, reason: String::new() });
    w.tell_cancelled();
    assert_eq!((w.state(), w.submitted.len()), (Cancelled, 5));
    assert_eq!(w.op(RunOp::Compensate { tell: None }), Outcome::Applied);
    assert_eq!((w.state(), w.submitted.last().unwrap().as_str()), (Cancelled, "undo:charge"));
}

#[test]
fn one_that_fails_does_not_hold_up_the_others_and_can_be_tried_again() {
    let mut w = charged();
    w.fail("ship");
    w.fail("undo:charge");
    w.fail("undo:reserve[2]");
    w.succeed("undo:reserve[1]", json!(1));
    w.succeed("undo:reserve[0]", json!(1));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "compensation_failed"));
    let before = w.submitted.len();
    assert_eq!(w.op(RunOp::Compensate { tell: None }), Outcome::Applied);
    w.succeed("undo:charge", json!(1));
    w.succeed("undo:reserve[2]", json!(1));
    assert_eq!(w.submitted[before..], ["undo:charge", "undo:reserve[2]"]);
    assert_eq!(w.op(RunOp::Compensate { tell: None }), Outcome::Refused(Refusal::NothingToUndo));
    assert!(w.waits().is_empty());
}

#[test]
fn a_cancelled_run_stays_cancelled_when_a_compensation_fails() {
    let mut w = charged();
    w.cancel();
    w.tell_cancelled();
    w.fail("undo:charge");
    for n in [2, 1, 0] {
        w.succeed(&format!("undo:reserve[{n}]"), json!(1));
    }
    assert_eq!((w.state(), w.error_code().as_str()), (Cancelled, "cancelled"));
}

#[test]
fn every_iteration_is_undone_the_last_one_first() {
    let yaml = "
steps:
  - id: l
    loop:
      state: {init: 0, next: '${{ state + 1 }}'}
      until: 'state >= 5'
      max: 10
      steps: [{id: a, job: {topic: t}, compensate: {job: {topic: t, payload: '${{ state }}'}}}]
  - {id: f, needs: [l], fail: {code: x, message: y}}
";
    let mut w = World::start(yaml, json!({}));
    for n in 0..5 {
        w.succeed(&format!("a[{n}]"), json!(1));
    }
    for n in (0..5).rev() {
        w.carry_out();
        assert_eq!(w.submit_of(&format!("undo:a[{n}]")).payload, Some(json!(n)));
        w.succeed(&format!("undo:a[{n}]"), json!(1));
    }
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "x"));
}

#[test]
fn each_item_is_undone_in_its_own_reverse_order() {
    let yaml = "
steps:
  - id: e
    for_each: {items: input.list}
    steps:
      - {id: a, job: {topic: t}, compensate: {job: {topic: t}}}
      - {id: b, needs: [a], job: {topic: t}, compensate: {job: {topic: t, payload: '${{ steps.a.result }}'}}}
  - {id: f, needs: [e], fail: {code: x, message: y}}
";
    let mut w = World::start(yaml, json!({"list": [1, 2]}));
    for task in ["a[0]", "a[1]", "b[0]", "b[1]"] {
        w.succeed(task, json!(task));
    }
    assert_eq!(w.submitted[4..], ["undo:b[1]", "undo:b[0]"]);
    assert_eq!(w.submit_of("undo:b[1]").payload, Some(json!("a[1]")));
    w.succeed("undo:b[0]", json!(1));
    assert_eq!(w.submitted[6..], ["undo:a[0]"]);
    w.succeed("undo:a[0]", json!(1));
    w.succeed("undo:b[1]", json!(1));
    w.succeed("undo:a[1]", json!(1));
    assert_eq!(w.state(), Failed);
}

#[test]
fn every_attempt_of_a_scope_is_undone() {
    let yaml = "
steps:
  - id: g
    retry: {max_attempts: 2, backoff: {initial_ms: 1}}
    steps:
      - {id: a, job: {topic: t}, compensate: {job: {topic: t}}}
      - {id: b, needs: [a], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    for n in 1..=2 {
        w.succeed(&format!("a[{n}]"), json!(1));
        w.fail(&format!("b[{n}]"));
        w.pass(1000);
    }
    w.succeed("undo:a[2]", json!(1));
    w.succeed("undo:a[1]", json!(1));
    assert_eq!(w.state(), Failed);
}

#[test]
fn compensate_self_runs_the_compensations_of_the_sub_run() {
    let yaml = "
steps:
  - {id: w, workflow: {name: ship}, compensate: self}
  - {id: f, needs: [w], fail: {code: x, message: y}}
";
    let mut w = World::start(yaml, json!({}));
    w.end_sub_run("w", RunState::Succeeded, None);
    let undo = w.other.iter().find_map(|c| if let Action::UndoRun { run, .. } = c.action { Some(run) } else { None });
    let run = undo.unwrap();
    assert!(w.waits().contains(&Wait::SubRun { step: "w".into(), run, confirmed: true }));
    let end = SubRunEnd { step: "w".into(), run, undone: true, state: RunState::Succeeded, output: None, error: None };
    w.event(What::SubRunEnded(end));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "x"));
}

#[test]
fn a_compensation_whose_input_cannot_be_computed_fails_and_the_others_run() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}, compensate: {job: {topic: t}}}
  - {id: b, needs: [a], job: {topic: t}, compensate: {job: {topic: t, payload: '${{ steps.b.result.no }}'}}}
  - {id: f, needs: [b], fail: {code: x, message: y}}
";
    let mut w = World::start(yaml, json!({}));
    w.succeed("a", json!({}));
    w.succeed("b", json!({}));
    w.succeed("undo:a", json!({}));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "compensation_failed"));
}

#[test]
fn nothing_is_undone_after_success() {
    let mut w = charged();
    w.end("ship", Ending::Succeeded, None);
    assert_eq!((w.state(), w.submitted.len()), (Succeeded, 5));
}
