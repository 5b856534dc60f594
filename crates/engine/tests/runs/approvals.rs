//! Approvals: granted, rejected, expired, taken back.

use muster_domain::Time;
use muster_engine::run::{Action, Outcome, RunOp, RunState::*, StepState, Wait, What};
use serde_json::json;

use crate::world::{START, World};

const ASKS: &str = "
steps:
  - {id: ask, approval: {title: 'Order ${{ input.order }}', from: ['group:sales'], quorum: 2, expires_ms: 60000}}
  - {id: go, needs: [ask], job: {topic: t}}
output: '${{ steps.ask.result.by }}'
";

fn decided(granted: bool) -> What {
    What::Approval { step: "ask".into(), granted, by: json!({"by": ["ann", "bob"]}) }
}

#[test]
fn an_approval_is_opened_and_its_grant_ends_the_step() {
    let mut w = World::start(ASKS, json!({"order": 5}));
    w.carry_out();
    let Action::OpenApproval { step, title, from, quorum, expires, .. } = &w.other[0].action else { panic!() };
    assert_eq!((step.as_str(), title.as_str(), *quorum), ("ask", "Order 5", 2));
    assert_eq!((from.as_slice(), *expires), (["group:sales".to_owned()].as_slice(), Some(Time(START + 60_000_000))));
    assert!(w.waits().contains(&Wait::Approval { step: "ask".into() }));
    w.event(decided(true));
    w.succeed("go", json!(1));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(["ann", "bob"]))));
    assert_eq!(w.event(decided(false)), Outcome::Nothing);
}

#[test]
fn a_rejection_fails_the_step() {
    let mut w = World::start(ASKS, json!({"order": 5}));
    w.event(decided(false));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "rejected"));
}

#[test]
fn too_late_is_expired_even_while_the_run_is_paused() {
    let mut w = World::start(ASKS, json!({"order": 5}));
    w.carry_out();
    w.op(RunOp::Pause);
    assert_eq!(w.run.next_look(), Some(Time(START + 60_000_000)));
    w.pass(60_000);
    assert_eq!((w.step("ask"), w.state()), (StepState::Failed, Paused));
    assert!(w.other.iter().any(|c| matches!(c.action, Action::CloseApproval { .. })));
    w.op(RunOp::Resume);
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "approval_expired"));
}

#[test]
fn a_cancelled_run_takes_its_questions_back() {
    let mut w = World::start(ASKS, json!({"order": 5}));
    w.carry_out();
    w.cancel();
    assert_eq!((w.state(), w.step("ask")), (Cancelled, StepState::Cancelled));
    assert!(w.other.iter().any(|c| matches!(c.action, Action::CloseApproval { .. })));
}
