//! Values that nest deep: what a run takes it can load again, and what it cannot hold is refused or a named error.

use std::collections::BTreeSet;

use muster_domain::job::Ending;
use muster_engine::{
    run::{Outcome, Refusal, RunOp, RunState, RunState::*, StepState},
    value::{MOST_LEVELS, ValueFault, parse},
};
use serde_json::{Value, json};

use crate::world::World;

/// A list of one list of one list, so many levels deep.
fn deep(levels: usize) -> Value {
    (0..levels).fold(json!(0), |inner, _| json!([inner]))
}

/// The kinds of fields that hold a value of nearly the most levels now.
fn deep_fields(w: &World) -> BTreeSet<String> {
    let is_deep = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'[').count() >= MOST_LEVELS;
    let kind = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    w.saved.iter().filter(|(_, bytes)| is_deep(bytes)).map(|(name, _)| kind(name)).collect()
}

/// The world loads the run again after every event.
#[test]
fn values_of_the_most_levels_are_loaded_from_every_kind_of_field() {
    let yaml = "
steps:
  - {id: s, wait_signal: {name: go}}
  - id: l
    needs: [s]
    loop:
      state: {init: '${{ steps.s.result }}', next: '${{ state }}'}
      until: 'true'
      max: 2
      steps: [{id: a, job: {topic: t, payload: '${{ state }}'}, compensate: {job: {topic: t, payload: '${{ state }}'}}}]
  - {id: e, needs: [l], for_each: {items: steps.l.result}, set: '${{ [item] }}'}
  - {id: r, needs: [e], set: '${{ steps.e.result[0] }}'}
  - {id: w, needs: [r], workflow: {name: ship, input: '${{ steps.r.result }}'}}
  - {id: j, needs: [w], job: {topic: t}}
  - {id: h, needs: [j], job: {topic: t, payload: '${{ steps.j.result }}'}}
output: '${{ steps.h.result }}'
";
    let most = || deep(MOST_LEVELS);
    let mut w = World::start(yaml, most());
    let mut seen = deep_fields(&w);
    assert_eq!(w.signal("1", "late", most()), Outcome::Applied);
    seen.extend(deep_fields(&w));
    assert_eq!(w.signal("2", "go", most()), Outcome::Applied);
    seen.extend(deep_fields(&w));
    w.succeed("a[0]", json!(1));
    seen.extend(deep_fields(&w));
    assert_eq!(w.end_sub_run("w", Succeeded, Some(most())), Outcome::Applied);
    w.succeed("j", most());
    seen.extend(deep_fields(&w));
    w.op(RunOp::Complete { step: "h".into(), result: most(), reason: String::new() });
    assert_eq!((w.state(), w.output()), (Succeeded, Some(most())), "{}", w.trace());
    seen.extend(deep_fields(&w));
    let kinds = ["g", "input", "l", "output", "r", "u", "v"].map(str::to_owned);
    assert_eq!(seen, BTreeSet::from(kinds));
}

#[test]
fn a_value_that_grows_too_deep_is_an_error_of_its_step() {
    let wraps = [
        "steps: [{id: x, set: {w: '${{ input }}'}}]",
        "steps: [{id: x, set: '${{ [input] }}'}]",
        "steps: [{id: x, job: {topic: t, payload: ['${{ input }}']}}]",
        "steps: [{id: x, workflow: {name: ship, input: ['${{ input }}']}}]",
        "steps: [{id: x, for_each: {items: '[input]'}, set: 1}]",
        "steps: [{id: x, for_each: {items: input, collect: '[[input]]'}, set: 1}]",
        "steps: [{id: x, notify: {type: told, data: ['${{ input }}']}}]",
        "steps: [{id: x, approval: {title: t, from: [a], show: ['${{ input }}']}}]",
        "steps: [{id: x, loop: {state: {init: ['${{ input }}'], next: 1}, steps: [{id: a, set: 1}], until: 'true', max: 1}}]",
        "steps: [{id: x, loop: {state: {init: 1, next: ['${{ input }}']}, steps: [{id: a, set: 1}], until: 'true', max: 1}}]",
        "{steps: [{id: x, set: 1}], output: ['${{ input }}']}",
    ];
    for yaml in wraps {
        let w = World::start(yaml, deep(MOST_LEVELS));
        let error = w.run.error().unwrap_or_else(|| panic!("{yaml}: {}", w.trace()));
        assert_eq!((w.state(), error.code.as_str()), (Failed, "expression_error"), "{yaml}");
        let told = error.message.is_empty() || error.message.contains("nests deeper than 100 levels");
        assert!(told, "{yaml}: {}", error.message);
    }
    let w = World::start("steps: [{id: x, set: {w: '${{ input }}'}}]", deep(MOST_LEVELS - 1));
    assert_eq!(w.state(), Succeeded);
}

#[test]
fn a_loop_whose_state_nests_deeper_each_time_ends_with_an_error() {
    let yaml = "
steps:
  - id: l
    loop: {state: {init: 0, next: {p: '${{ state }}'}}, steps: [{id: a, set: '${{ index }}'}], until: 'false', max: 1000}
";
    let mut w = World::start(yaml, json!(null));
    w.pass(1);
    let error = w.run.error().unwrap();
    assert_eq!((w.state(), error.code.as_str(), error.step.as_str()), (Failed, "expression_error", "l"));
    assert!(error.message.contains("the value nests deeper than 100 levels"), "{}", error.message);
    assert_eq!(w.view("l").iteration, Some(MOST_LEVELS as u32));
}

#[test]
fn signals_and_results_by_hand_that_a_run_cannot_hold_are_refused() {
    let yaml = "steps: [{id: a, job: {topic: t}}, {id: b, needs: [a], wait_signal: {name: s}}]";
    let reserved = json!({"a": 1, "$serde_json::private::Number": "x"});
    for (value, fault) in [(deep(MOST_LEVELS + 1), ValueFault::TooDeep), (reserved, ValueFault::ReservedName)] {
        let mut w = World::start(yaml, json!(null));
        w.carry_out();
        let saved = w.saved.clone();
        let refused = Outcome::Refused(Refusal::Value(fault));
        assert_eq!(w.signal("1", "s", value.clone()), refused);
        assert_eq!(w.op(RunOp::Complete { step: "a".into(), result: value, reason: String::new() }), refused);
        assert_eq!(w.step("a"), StepState::Running);
        assert_eq!(saved, w.saved);
    }
}

#[test]
fn a_result_that_a_run_cannot_hold_is_an_error_and_never_null() {
    let yaml = "steps: [{id: a, job: {topic: t}}, {id: b, needs: [a], set: '${{ steps.a.result }}'}]";
    let reserved = json!([{"$serde_json::private::RawValue": "[]"}]);
    for result in [deep(MOST_LEVELS + 1), reserved] {
        let mut w = World::start(yaml, json!(null));
        w.end("a", Ending::Succeeded, Some(result.clone()));
        assert_eq!(
            (w.state(), w.error_code().as_str(), w.step("a")),
            (Failed, "result_truncated", StepState::Succeeded)
        );
        assert!(w.view("a").truncated);
        let message = &w.run.error().unwrap().message;
        assert!(message.contains("nests deeper than 100 levels"), "{message}");
        // The output of a sub-run is checked there; another one fails the step.
        let mut w = World::start("steps: [{id: w, workflow: {name: ship}}]", json!(null));
        w.end_sub_run("w", RunState::Succeeded, Some(result));
        assert_eq!((w.state(), w.error_code().as_str()), (Failed, "expression_error"));
    }
}

#[test]
fn names_that_the_parser_of_json_keeps_for_itself_are_no_fields() {
    let w = World::start(r#"steps: [{id: a, set: "${{ {'$serde_json::private::Number': 'x'} }}"}]"#, json!(null));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "expression_error"));
    let literal = r#"steps: [{id: a, set: {x: [{"$serde_json::private::RawValue": "[1]"}]}}]"#;
    let faults = muster_engine::definition::read(literal.as_bytes(), muster_engine::definition::Format::Yaml);
    let fault = faults.unwrap_err().remove(0);
    assert_eq!((fault.code, fault.pointer.as_str()), ("invalid_value", "/steps/0/set"), "{fault}");
    let known = parse(br#"{"$serde_json::private": 1}"#).unwrap();
    assert_eq!(World::start("{steps: [{id: a, set: '${{ input }}'}]}", known).state(), Succeeded);
}
