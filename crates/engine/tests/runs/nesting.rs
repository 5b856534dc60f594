//! Scopes inside steps: for-each, switch, parallel, loop, steps, sub-runs, and their retries.

use muster_domain::job::Ending;
use muster_engine::run::{Action, Outcome, RunOp, RunState, RunState::*, StepState, Wait, What};
use serde_json::{Value, json};

use crate::world::World;

const EACH: &str = "
steps:
  - id: e
    for_each: {items: input.list, as: line, max_parallel: 2, collect: 'steps.e.result.v'}
    job: {topic: t, payload: {sku: '${{ line.sku }}', n: '${{ index }}', again: '${{ item.sku }}'}}
  - {id: after, needs: [e], job: {topic: t, payload: '${{ steps.e.result }}'}}
";

fn lines(n: usize) -> Value {
    json!({"list": (0..n).map(|n| json!({"sku": format!("s{n}")})).collect::<Vec<_>>()})
}

#[test]
fn items_run_so_many_at_a_time_and_results_keep_the_order_of_items() {
    let mut w = World::start(EACH, lines(4));
    w.carry_out();
    assert_eq!(w.submitted, ["e[0]", "e[1]"]);
    assert_eq!(w.submit_of("e[1]").payload, Some(json!({"sku": "s1", "n": 1, "again": "s1"})));
    w.succeed("e[1]", json!({"v": 11}));
    assert_eq!(w.submitted, ["e[0]", "e[1]", "e[2]"]);
    w.succeed("e[2]", json!({"v": 12}));
    w.succeed("e[3]", json!({"v": 13}));
    w.succeed("e[0]", json!({"v": 10}));
    assert_eq!(w.submit_of("after").payload, Some(json!([10, 11, 12, 13])));
    w.succeed("after", json!(1));
    assert_eq!(w.state(), Succeeded);
}

#[test]
fn an_empty_list_succeeds_with_an_empty_result() {
    let mut w = World::start(EACH, lines(0));
    w.carry_out();
    assert_eq!((w.step("e"), w.submit_of("after").payload), (StepState::Succeeded, Some(json!([]))));
}

#[test]
fn too_many_items_are_refused() {
    let w = World::start(EACH, json!({"list": vec![1; 10_001]}));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "too_many_items"));
}

#[test]
fn what_is_no_list_is_an_error() {
    let w = World::start(EACH, json!({"list": 3}));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "expression_error"));
}

#[test]
fn one_failure_more_than_tolerated_stops_the_rest() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list, max_parallel: 3, tolerate: {count: 1}}, job: {topic: t}}
";
    let mut w = World::start(yaml, lines(10));
    w.fail("e[0]");
    assert_eq!(w.submitted, ["e[0]", "e[1]", "e[2]", "e[3]"]);
    w.fail("e[1]");
    assert_eq!(w.submitted.len(), 4);
    assert_eq!(w.cancelled, ["e[2]", "e[3]"]);
    w.tell_cancelled();
    assert_eq!((w.state(), w.step("e"), w.error_code().as_str()), (Failed, StepState::Failed, "boom"));
    assert_eq!(w.run.error().unwrap().step, "e[0]");
    assert_eq!((w.step("e[2]"), w.step("e[9]")), (StepState::Cancelled, StepState::Waiting));
}

#[test]
fn tolerated_failures_show_in_the_items() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list, tolerate: {percent: 50}}, job: {topic: t}}
  - {id: s, needs: [e], set: '${{ steps.e.items.map(i, i.state) }}'}
output: '${{ steps.s.result }}'
";
    let mut w = World::start(yaml, lines(2));
    w.fail("e[1]");
    w.succeed("e[0]", json!(1));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(["succeeded", "failed"]))));
}

#[test]
fn enough_successes_cancel_the_rest() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list, min_success: 2, tolerate: {count: 10}}, job: {topic: t}}
";
    let mut w = World::start(yaml, lines(4));
    w.succeed("e[3]", json!(1));
    w.fail("e[0]");
    w.succeed("e[1]", json!(1));
    assert_eq!(w.cancelled, ["e[2]"]);
    w.tell_cancelled();
    assert_eq!(w.state(), Succeeded);
}

#[test]
fn too_few_successes_fail() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list, min_success: 2, tolerate: {count: 10}}, job: {topic: t}}
";
    let mut w = World::start(yaml, lines(2));
    w.succeed("e[0]", json!(1));
    w.fail("e[1]");
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "too_few_succeeded"));
}

#[test]
fn a_collected_value_is_small() {
    let mut w = World::start(EACH, lines(1));
    w.succeed("e[0]", json!({"v": "x".repeat(300)}));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "collected_too_large"));
}

#[test]
fn results_of_items_that_nobody_collects_stay_in_their_jobs() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list}, job: {topic: t}}
  - {id: s, needs: [e], set: '${{ steps.e.result }}'}
";
    let mut w = World::start(yaml, lines(1));
    w.succeed("e[0]", json!("big"));
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "expression_error"));
    assert!(w.run.error().unwrap().message.contains("collect"));
}

#[test]
fn items_of_other_kinds_keep_their_results() {
    let yaml = "
steps:
  - {id: e, for_each: {items: 'input.list', max_parallel: 1}, set: '${{ index * 2 }}'}
output: '${{ steps.e.result }}'
";
    let w = World::start(yaml, lines(100));
    let doubled: Vec<usize> = (0..100).map(|n| n * 2).collect();
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(doubled))));
}

#[test]
fn a_for_each_over_steps_runs_a_graph_per_item() {
    let yaml = "
steps:
  - id: e
    for_each: {items: input.list, as: line, collect: 'steps.y.result'}
    steps:
      - {id: x, job: {topic: t, payload: '${{ line.sku }}'}}
      - {id: y, needs: [x], set: '${{ steps.x.result + line.sku }}'}
output: '${{ steps.e.result }}'
";
    let mut w = World::start(yaml, lines(2));
    w.carry_out();
    assert_eq!(w.submitted, ["x[0]", "x[1]"]);
    w.succeed("x[1]", json!("b-"));
    assert_eq!(
        (w.step("y[1]"), w.step("e[1]"), w.step("e")),
        (StepState::Succeeded, StepState::Succeeded, StepState::Running)
    );
    w.succeed("x[0]", json!("a-"));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(["a-s0", "b-s1"]))));
}

#[test]
fn a_for_each_inside_a_for_each_has_items_of_its_own() {
    let yaml = "
steps:
  - id: e
    for_each: {items: input.list, as: row}
    steps:
      - {id: f, for_each: {items: row, as: cell, collect: 'steps.f.result'}, job: {topic: t, payload: ['${{ row.size() }}', '${{ cell }}', '${{ item }}']}}
      - {id: g, needs: [f], set: '${{ steps.f.result }}'}
";
    let mut w = World::start(yaml, json!({"list": [[1, 2], [3]]}));
    w.carry_out();
    assert_eq!(w.submitted, ["f[0][0]", "f[0][1]", "f[1][0]"]);
    assert_eq!(w.submit_of("f[0][1]").payload, Some(json!([2, 2, 2])));
    w.succeed("f[1][0]", json!(30));
    w.succeed("f[0][1]", json!(20));
    assert_eq!((w.step("g[1]"), w.step("g[0]")), (StepState::Succeeded, StepState::Waiting));
    w.succeed("f[0][0]", json!(10));
    assert_eq!(w.state(), Succeeded);
}

#[test]
fn ten_thousand_items_cost_little() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list, max_parallel: 20}, job: {topic: t, payload: '${{ item }}'}}
";
    let mut per_item = Vec::new();
    for total in [1_000usize, 10_000] {
        let list: Vec<usize> = (0..total).collect();
        let mut w = World::queued(yaml, json!({"list": list}));
        w.careful = false;
        w.event(What::Start);
        let before = w.written;
        for n in 0..total {
            w.carry_out();
            w.end(&format!("e[{n}]"), Ending::Succeeded, Some(json!(1)));
            w.jobs.retain(|_, job| !job.told);
        }
        assert_eq!((w.state(), w.submitted.len()), (Succeeded, total));
        let size: usize = w.saved.iter().map(|(name, bytes)| name.len() + bytes.len()).sum();
        assert!(size < 300_000, "{size} bytes are kept");
        per_item.push((w.written - before) / total);
    }
    assert!(per_item[1] * 10 <= per_item[0] * 12, "{per_item:?}");
    assert!(per_item[1] < 1_024, "{per_item:?}");
}

#[test]
fn a_switch_takes_the_first_branch_that_holds() {
    let yaml = "
steps:
  - id: s
    switch:
      - {when: 'input.n > 10', steps: [{id: big, job: {topic: t}}]}
      - {when: 'input.n > 5', steps: [{id: mid, job: {topic: t}}]}
      - {else: [{id: low, job: {topic: t}}]}
  - {id: j, needs: [s], set: '${{ steps.s.result.branch }}'}
output: '${{ steps.j.result }}'
";
    for (n, step, branch) in [(11, "big", 0), (7, "mid", 1), (1, "low", 2)] {
        let mut w = World::start(yaml, json!({"n": n}));
        w.carry_out();
        assert_eq!(w.submitted, [step]);
        w.succeed(step, json!(1));
        assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(branch))));
    }
}

#[test]
fn parallel_any_takes_the_first_success_and_cancels_the_rest() {
    let yaml = "
steps:
  - id: p
    parallel:
      wait: any
      branches:
        a: [{id: a, job: {topic: t}}]
        b: [{id: b, job: {topic: t}}]
        c: [{id: c, job: {topic: t}}, {id: c2, needs: [c], run_if: always, job: {topic: t}}]
output: '${{ steps.p.result }}'
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    assert_eq!(w.state(), Running);
    w.succeed("b", json!(1));
    assert_eq!(w.cancelled, ["c"]);
    w.tell_cancelled();
    assert_eq!((w.state(), w.step("c2")), (Succeeded, StepState::Skipped));
    assert_eq!(w.output(), Some(json!({"a": "failed", "b": "succeeded", "c": "cancelled"})));
}

#[test]
fn parallel_fails_once_there_cannot_be_enough() {
    let yaml = "
steps:
  - id: p
    parallel:
      wait: 2
      branches:
        a: [{id: a, job: {topic: t}}]
        b: [{id: b, job: {topic: t}}]
        c: [{id: c, job: {topic: t}}]
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    assert_eq!(w.state(), Running);
    w.fail("b");
    assert_eq!(w.cancelled, ["c"]);
    w.tell_cancelled();
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "boom"));
}

#[test]
fn a_failed_branch_of_all_cancels_the_others() {
    let yaml = "
steps:
  - id: p
    parallel: {wait: all, branches: {a: [{id: a, job: {topic: t}}], b: [{id: b, job: {topic: t}}]}}
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a");
    w.tell_cancelled();
    assert_eq!((w.state(), w.step("b"), w.step("p")), (Failed, StepState::Cancelled, StepState::Failed));
}

const LOOP: &str = "
steps:
  - id: l
    loop:
      state: {init: {n: 0}, next: {n: '${{ state.n + steps.a.result }}'}}
      until: 'state.n >= 5'
      max: 10
      steps: [{id: a, job: {topic: t, payload: {n: '${{ state.n }}', i: '${{ index }}'}}}]
output: '${{ steps.l.result.n }}'
";

#[test]
fn a_loop_carries_its_state_until_it_holds() {
    let mut w = World::start(LOOP, json!({}));
    w.carry_out();
    assert_eq!(w.submit_of("a[0]").payload, Some(json!({"n": 0, "i": 0})));
    w.succeed("a[0]", json!(2));
    assert_eq!(w.submit_of("a[1]").payload, Some(json!({"n": 2, "i": 1})));
    w.succeed("a[1]", json!(2));
    w.succeed("a[2]", json!(2));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(6))));
}

#[test]
fn a_loop_that_never_holds_is_exhausted() {
    let mut w = World::start(LOOP, json!({}));
    for n in 0..10 {
        w.succeed(&format!("a[{n}]"), json!(0));
    }
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "loop_exhausted"));
    let steps: Vec<&str> = w.saved.keys().filter_map(|name| name.strip_prefix("s:a")).collect();
    assert_eq!(steps, ["[7]", "[8]", "[9]"], "the last three iterations are kept");
}

#[test]
fn ten_thousand_iterations_leave_a_small_run_and_are_put_off_in_parts() {
    let yaml = "
steps:
  - id: l
    loop:
      state: {init: 0, next: '${{ state + 1 }}'}
      until: 'state >= 10000'
      max: 10000
      steps: [{id: a, set: '${{ state }}'}]
output: '${{ steps.l.result }}'
";
    let mut w = World::queued(yaml, json!({}));
    w.careful = false;
    w.event(What::Start);
    assert_eq!((w.state(), w.run.next_look()), (Running, Some(w.now)));
    w.pass(0);
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(10000))));
    let size: usize = w.saved.iter().map(|(name, bytes)| name.len() + bytes.len()).sum();
    assert!(size < 2_000, "{size}");
}

#[test]
fn a_scope_is_repeated_under_a_new_attempt() {
    let yaml = "
steps:
  - id: g
    retry: {max_attempts: 2, backoff: {initial_ms: 1000, jitter: 0}}
    steps: [{id: a, job: {topic: t}}, {id: b, job: {topic: t}}]
  - {id: n, needs: [g], set: '${{ steps.g.attempts }}'}
output: '${{ steps.n.result }}'
";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    assert_eq!(w.submitted, ["a[1]", "b[1]"]);
    let (old, _) = w.job("a[1]");
    w.fail("a[1]");
    w.tell_cancelled();
    assert_eq!((w.step("g"), w.state()), (StepState::Running, Running));
    assert!(w.waits().iter().any(|wait| matches!(wait, Wait::Timer { step, .. } if step == "g")));
    w.pass(1000);
    assert_eq!(w.submitted, ["a[1]", "b[1]", "a[2]", "b[2]"]);
    assert_ne!(w.job("a[2]").0, old);
    assert_eq!(w.job_ended(old, Ending::Succeeded, None), Outcome::Nothing);
    w.succeed("a[2]", json!(1));
    w.succeed("b[2]", json!(1));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!(2))));
}

const SUB: &str = "
steps:
  - {id: w, workflow: {name: ship, version: 3, input: {order: '${{ input.order }}'}}}
output: '${{ steps.w.result.parcel }}'
";

#[test]
fn a_sub_run_is_started_and_its_output_is_the_result() {
    let mut w = World::start(SUB, json!({"order": 9}));
    w.carry_out();
    let Action::StartRun { workflow, version, input, parent, depth, .. } = &w.other[0].action else { panic!() };
    assert_eq!((workflow.as_str(), *version, *depth), ("ship", Some(3), 1));
    assert_eq!((input, &parent.as_ref().unwrap().step), (&Some(json!({"order": 9})), &"w".to_owned()));
    w.end_sub_run("w", RunState::Succeeded, Some(json!({"parcel": "p1"})));
    assert_eq!((w.state(), w.output()), (Succeeded, Some(json!("p1"))));
}

#[test]
fn a_failed_sub_run_fails_the_step_and_is_retried_under_a_new_id() {
    let yaml = "
steps:
  - {id: w, retry: {max_attempts: 2, backoff: {initial_ms: 1}}, workflow: {name: ship}}
";
    let mut w = World::start(yaml, json!({}));
    w.end_sub_run("w", RunState::Failed, None);
    w.pass(1000);
    w.end_sub_run("w", RunState::Failed, None);
    assert_eq!((w.state(), w.error_code().as_str()), (Failed, "sub_boom"));
    let ids: Vec<_> = w
        .other
        .iter()
        .filter_map(|c| if let Action::StartRun { run, .. } = &c.action { Some(*run) } else { None })
        .collect();
    assert!(ids.len() == 2 && ids[0] != ids[1]);
}

#[test]
fn a_sub_run_that_nobody_waits_for_ends_its_step_at_once() {
    let yaml = "
steps:
  - {id: w, workflow: {name: ship, wait: false, input: '${{ now }}'}}
";
    let mut w = World::start(yaml, json!({}));
    assert_eq!(w.state(), Succeeded);
    w.carry_out();
    assert!(matches!(&w.other[0].action, Action::StartRun { parent: None, .. }));
    assert!(w.saved["r:w"].starts_with(b"{\"run_id\""));
}

#[test]
fn a_cancelled_run_cancels_its_sub_run() {
    let mut w = World::start(SUB, json!({"order": 9}));
    w.carry_out();
    w.cancel();
    assert!(w.other.iter().any(|c| matches!(c.action, Action::CancelRun { only_if_absent: false, .. })));
    w.end_sub_run("w", RunState::Cancelled, None);
    assert_eq!((w.state(), w.step("w")), (Cancelled, StepState::Cancelled));
}

#[test]
fn a_pause_inside_nested_scopes_is_made_up_for() {
    let yaml = "
steps:
  - id: e
    for_each: {items: input.list, max_parallel: 2}
    steps:
      - {id: a, job: {topic: t}}
      - id: l
        needs: [a]
        loop: {steps: [{id: b, job: {topic: t}}], until: 'index >= 1', max: 3}
";
    let mut w = World::start(yaml, lines(3));
    w.carry_out();
    w.succeed("a[0]", json!(1));
    w.op(RunOp::Pause);
    w.succeed("a[1]", json!(1));
    w.succeed("b[0][0]", json!(1));
    assert_eq!(w.submitted, ["a[0]", "a[1]", "b[0][0]"]);
    w.op(RunOp::Resume);
    assert_eq!(w.submitted, ["a[0]", "a[1]", "b[0][0]", "b[0][1]", "b[1][0]"]);
    for task in ["b[0][1]", "b[1][0]", "b[1][1]", "a[2]", "b[2][0]", "b[2][1]"] {
        w.succeed(task, json!(1));
    }
    assert_eq!(w.state(), Succeeded);
}

#[test]
fn a_scope_that_takes_too_long_stops_what_is_in_it() {
    let yaml = "
steps:
  - {id: g, timeout_ms: 1000, on_error: continue, steps: [{id: a, job: {topic: t}}, {id: b, needs: [a], job: {topic: t}}]}
  - {id: n, needs: [g], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.carry_out();
    w.pass(1000);
    assert_eq!(w.cancelled, ["a"]);
    w.tell_cancelled();
    assert_eq!(
        (w.step("g"), w.step("a"), w.step("n")),
        (StepState::TimedOut, StepState::Cancelled, StepState::Running)
    );
}

#[test]
fn loops_inside_loops_and_repeated_loops_leave_a_small_run() {
    let inside = "
steps:
  - id: l
    loop:
      until: 'index >= 99'
      max: 100
      steps: [{id: m, loop: {until: 'index >= 4', max: 5, steps: [{id: a, set: '${{ index }}'}]}}]
";
    let w = World::start(inside, json!({}));
    let kept = w.saved.keys().filter(|name| name.starts_with("s:a")).count();
    assert_eq!((w.state(), kept), (Succeeded, 9), "three iterations of three");

    let repeated = "
steps:
  - id: l
    retry: {max_attempts: 20, backoff: {initial_ms: 1, max_ms: 1}}
    loop: {until: 'false', max: 5, steps: [{id: a, set: '${{ index }}'}]}
";
    let mut w = World::start(repeated, json!({}));
    w.pass(60_000);
    let kept: Vec<&str> = w.saved.keys().filter_map(|name| name.strip_prefix("s:a")).collect();
    assert_eq!((w.error_code().as_str(), kept), ("loop_exhausted", vec!["[20][2]", "[20][3]", "[20][4]"]));
}

#[test]
fn iterations_with_a_skipped_for_each_are_forgotten_like_others() {
    let yaml = "
steps:
  - id: l
    loop:
      until: 'index >= 9'
      max: 10
      steps:
        - id: each
          when: 'false'
          for_each: {items: '[1, 2]'}
          switch: [{when: 'true', steps: [{id: a, job: {topic: t}}]}]
";
    let w = World::start(yaml, json!({}));
    let kept: Vec<&str> = w.saved.keys().filter_map(|name| name.strip_prefix("s:each")).collect();
    assert_eq!((w.state(), kept), (Succeeded, vec!["[7]", "[8]", "[9]"]));
}
