//! Reruns: what is taken over, and what runs again.

use muster_engine::run::{About, Action, Again, Rerun, RerunFault, RunOp, RunState::*, StepState, What};
use serde_json::{Value, json};

use crate::world::{World, about_of, plan};

const ORDER: &str = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, needs: [a], job: {topic: t, payload: '${{ steps.a.result }}'}}
  - {id: c, needs: [b], job: {topic: t, payload: '${{ steps.a.result }}'}}
  - {id: d, job: {topic: t}}
output: '${{ steps.a.result }}'
";

fn about(w: &World) -> About {
    About { rerun_of: Some(w.run.about().run), ..about_of("again") }
}

fn again(w: &World, from: &Again) -> Rerun {
    w.run.rerun(&w.plan, about(w), Some(json!({"list": [1, 2, 3]})), from).unwrap()
}

fn failed() -> World {
    let mut w = World::start(ORDER, json!({}));
    w.succeed("a", json!({"x": 1}));
    w.succeed("d", json!(1));
    w.succeed("b", json!(1));
    w.fail("c");
    w
}

#[test]
fn a_rerun_takes_over_what_is_before_the_step() {
    let w = failed();
    let rerun = again(&w, &Again::From("c".into()));
    assert_eq!((rerun.again, rerun.taken), (vec!["c".to_owned()], vec!["a".into(), "b".into(), "d".into()]));
    assert!(rerun.wants.is_empty());
    let mut r = World::of(rerun.run);
    assert_eq!(r.step("a"), StepState::Succeeded);
    r.event(muster_engine::run::What::Start);
    r.carry_out();
    assert_eq!(r.submitted, ["c"]);
    assert_eq!(r.submit_of("c").payload, Some(json!({"x": 1})));
    let old: Vec<_> = w.jobs.keys().collect();
    assert!(!old.contains(&&r.job("c").0), "the new run's jobs have ids of their own");
    r.succeed("c", json!(1));
    assert_eq!((r.state(), r.output()), (Succeeded, Some(json!({"x": 1}))));
}

#[test]
fn what_is_behind_runs_again_and_so_does_what_did_not_end_well() {
    let rerun = again(&failed(), &Again::From("b".into()));
    assert_eq!((rerun.again, rerun.taken), (vec!["b".to_owned(), "c".into()], vec!["a".into(), "d".into()]));
    let rerun = again(&failed(), &Again::From("d".into()));
    assert_eq!(rerun.again, ["c", "d"], "c had failed");
}

#[test]
fn a_run_that_goes_on_and_a_step_that_is_not_there_are_refused() {
    let mut w = World::start(ORDER, json!({}));
    w.carry_out();
    let fault = |w: &World, from: Again| w.run.rerun(&w.plan, about(w), None, &from).unwrap_err();
    assert_eq!(fault(&w, Again::From("a".into())), RerunFault::RunNotDone);
    assert_eq!(fault(&failed(), Again::From("zz".into())), RerunFault::UnknownStep);
    assert_eq!(fault(&failed(), Again::FailedItems("a".into())), RerunFault::NoItems);
}

#[test]
fn only_the_items_that_failed_run_again() {
    let yaml = "
steps:
  - id: e
    for_each: {items: input.list, tolerate: {count: 0}, collect: 'steps.e.result'}
    job: {topic: t, payload: '${{ item }}'}
  - {id: f, needs: [e], set: '${{ steps.e.result }}'}
output: '${{ steps.f.result }}'
";
    let mut w = World::start(yaml, json!({"list": [1, 2, 3]}));
    w.succeed("e[0]", json!(10));
    w.succeed("e[2]", json!(30));
    w.fail("e[1]");
    let rerun = again(&w, &Again::FailedItems("e".into()));
    assert_eq!((rerun.items, rerun.again), (Some(1), vec!["e".to_owned(), "f".into()]));
    let mut r = World::of(rerun.run);
    r.event(muster_engine::run::What::Start);
    r.carry_out();
    assert_eq!((r.submitted.clone(), r.submit_of("e[1]").payload), (vec!["e[1]".to_owned()], Some(json!(2))));
    r.succeed("e[1]", json!(20));
    assert_eq!((r.state(), r.output()), (Succeeded, Some(json!([10, 20, 30]))));
}

#[test]
fn a_step_whose_compensation_began_is_not_taken_over() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}, compensate: {job: {topic: t}}}
  - {id: b, job: {topic: t}}
  - {id: c, needs: [a, b], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.succeed("a", json!(1));
    w.succeed("b", json!(1));
    w.fail("c");
    w.succeed("undo:a", json!(1));
    let rerun = again(&w, &Again::From("c".into()));
    assert_eq!((rerun.again, rerun.taken), (vec!["a".to_owned(), "c".into()], vec!["b".into()]));
}

#[test]
fn what_was_taken_over_is_undone_if_the_rerun_fails() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}, compensate: {job: {topic: t, payload: '${{ steps.a.result }}'}}}
  - {id: b, needs: [a], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({}));
    w.succeed("a", json!("id-1"));
    w.op(muster_engine::run::RunOp::Cancel { compensate: false, reason: String::new() });
    w.tell_cancelled();
    let mut r = World::of(again(&w, &Again::From("b".into())).run);
    r.event(muster_engine::run::What::Start);
    r.fail("b");
    assert_eq!(r.submit_of("undo:a").payload, Some(json!("id-1")));
    r.succeed("undo:a", json!(1));
    assert_eq!(r.state(), Failed);
}

#[test]
fn another_version_may_read_a_result_that_was_not_kept() {
    let w = failed();
    let other =
        plan(&ORDER.replace(
            "payload: '${{ steps.a.result }}'}}\n  - {id: d",
            "payload: '${{ steps.b.result }}'}}\n  - {id: d",
        ));
    let rerun = w.run.rerun(&other, about(&w), None, &Again::From("c".into())).unwrap();
    let jobs: Vec<_> = w.jobs.iter().filter(|(_, job)| job.task == "b").map(|(id, _)| *id).collect();
    assert_eq!(rerun.wants, [("b".to_owned(), jobs[0])]);
    let mut run = rerun.run;
    run.supply("b", Value::from("supplied"));
    let mut r = World::of(run);
    r.event(muster_engine::run::What::Start);
    r.carry_out();
    assert_eq!(r.submit_of("c").payload, Some(json!("supplied")));
}

#[test]
fn the_sub_run_of_an_item_that_was_taken_over_is_the_one_that_is_undone() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list}, workflow: {name: ship}, compensate: self}
  - {id: f, needs: [e], fail: {code: x, message: y}}
";
    let mut w = World::start(yaml, json!({"list": [1, 2]}));
    w.op(RunOp::Cancel { compensate: false, reason: String::new() });
    w.end_sub_run("e[0]", Succeeded, None);
    w.end_sub_run("e[1]", Cancelled, None);
    let sub_run = |w: &World, item: usize| w.run.view_items("e", 0, 2).unwrap().unwrap().items[item].sub_run;
    let first = sub_run(&w, 0);
    let input = Some(json!({"list": [1, 2]}));
    let rerun = w.run.rerun(&w.plan, about(&w), input, &Again::FailedItems("e".into())).unwrap();
    let mut again = World::of(rerun.run);
    again.event(What::Start);
    again.end_sub_run("e[1]", Succeeded, None);
    let undone = |action: &Action| if let Action::UndoRun { run, .. } = action { Some(*run) } else { None };
    let undone: Vec<_> = again.other.iter().map(|command| undone(&command.action)).filter(Option::is_some).collect();
    assert_eq!(undone, [sub_run(&again, 1), first]);
    assert_ne!(sub_run(&again, 1), sub_run(&w, 1));
}
