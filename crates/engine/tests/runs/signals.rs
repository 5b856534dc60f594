//! Signals: early, late, twice, too many.

use muster_engine::run::{Outcome, Refusal, RunOp, RunState::*, StepState, Wait};
use serde_json::{Value, json};

use crate::world::World;

const WAITS: &str = "
steps:
  - {id: a, job: {topic: t}}
  - {id: w, needs: [a], wait_signal: {name: paid, timeout_ms: 60000}}
  - {id: r, needs: [w], set: '${{ steps.w.result }}'}
output: '${{ steps.r.result }}'
";

#[test]
fn a_signal_ends_the_step_that_waits_for_it() {
    let mut w = World::start(WAITS, json!({}));
    w.succeed("a", json!(1));
    assert!(w.waits().contains(&Wait::Signal { step: "w".into(), name: "paid".into() }));
    w.signal("1", "other", json!(0));
    assert_eq!(w.step("w"), StepState::Running);
    w.signal("2", "paid", json!({"by": "card"}));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!({"by": "card"}))));
    assert_eq!(w.signal("3", "paid", json!(1)), Outcome::Refused(Refusal::RunDone));
}

#[test]
fn a_signal_that_comes_before_its_step_waits() {
    let mut w = World::queued(WAITS, json!({}));
    assert_eq!(w.signal("1", "paid", json!("first")), Outcome::Applied);
    assert_eq!(w.signal("2", "paid", json!("second")), Outcome::Applied);
    w.event(muster_engine::run::What::Start);
    w.succeed("a", json!(1));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!("first"))));
}

#[test]
fn the_same_id_twice_is_one_signal_even_after_it_was_read() {
    let yaml = "
steps:
  - {id: a, wait_signal: {name: s}}
  - {id: b, needs: [a], wait_signal: {name: s}}
";
    let mut w = World::start(yaml, json!({}));
    assert_eq!(w.signal("1", "s", json!(1)), Outcome::Applied);
    assert_eq!(w.signal("1", "s", json!(1)), Outcome::Nothing);
    assert_eq!((w.step("a"), w.step("b")), (StepState::Succeeded, StepState::Running));
}

#[test]
fn a_signal_during_a_pause_is_read_at_the_resume() {
    let mut w = World::start(WAITS, json!({}));
    w.succeed("a", json!(1));
    w.op(RunOp::Pause);
    w.signal("1", "paid", json!("late"));
    assert_eq!(w.step("w"), StepState::Running);
    w.op(RunOp::Resume);
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!("late"))));
}

#[test]
fn without_a_signal_in_time_the_step_fails() {
    let mut w = World::start(WAITS, json!({}));
    w.succeed("a", json!(1));
    w.pass(60_000);
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "signal_timeout"));
    assert!(!w.saved.contains_key("q:paid"), "nobody waits any more");
}

#[test]
fn signals_of_one_name_go_to_the_steps_in_the_order_in_which_they_wait() {
    let yaml = "
steps:
  - {id: a, wait_signal: {name: s}}
  - {id: b, wait_signal: {name: s}}
output: ['${{ steps.a.result }}', '${{ steps.b.result }}']
";
    let mut w = World::start(yaml, json!({}));
    w.signal("1", "s", json!(1));
    w.signal("2", "s", json!(2));
    assert_eq!(w.output(), Some(json!([1, 2])));
}

#[test]
fn too_many_unread_signals_are_refused_and_reading_makes_room() {
    let yaml = "
steps:
  - {id: j, job: {topic: t}}
  - {id: a, needs: [j], wait_signal: {name: s}}
  - {id: b, needs: [a], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.careful = false;
    for n in 0..1000 {
        assert_eq!(w.signal(&n.to_string(), "s", json!(n)), Outcome::Applied);
    }
    assert_eq!(w.signal("x", "s", json!(1)), Outcome::Refused(Refusal::TooManySignals));
    w.succeed("j", json!(1));
    assert_eq!(w.step("a"), StepState::Succeeded);
    assert_eq!(w.signal("x", "s", json!(1)), Outcome::Applied);
}

#[test]
fn large_signals_are_refused() {
    let mut w = World::start(WAITS, json!({}));
    let body = Value::String("x".repeat(256 * 1024));
    assert_eq!(w.signal("1", "s", body), Outcome::Refused(Refusal::SignalTooLarge));
    let body = Value::String("x".repeat(255 * 1024));
    for n in 0..4 {
        assert_eq!(w.signal(&n.to_string(), "s", body.clone()), Outcome::Applied);
    }
    assert_eq!(w.signal("5", "s", body), Outcome::Refused(Refusal::TooManySignals));
}

#[test]
fn a_run_that_reads_signals_for_ever_does_not_grow() {
    let yaml = "
steps:
  - id: l
    loop:
      steps: [{id: s, wait_signal: {name: s}}]
      until: 'false'
      max: 10000
";
    let mut w = World::start(yaml, json!({}));
    w.careful = false;
    let mut sizes = Vec::new();
    for n in 0..4000 {
        w.signal(&n.to_string(), "s", json!({"n": n}));
        if n % 1000 == 999 {
            sizes.push(w.saved.iter().map(|(name, bytes)| name.len() + bytes.len()).sum::<usize>());
        }
    }
    assert!(sizes[3] <= sizes[1] + 3_000, "{sizes:?}");
}
