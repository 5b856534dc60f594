//! Runs as people see them.

use muster_domain::{JobId, RunId, Time, job::Ending};
use muster_engine::run::{
    About, Action, Again, EachView, JobEnd, RunOp, RunState, RunState::*, StepState, StepView, Undo, What,
};
use serde_json::{Value, json};

use crate::world::{START, World, about_of, plan};

fn states(views: &[StepView]) -> Vec<(&str, StepState)> {
    views.iter().map(|view| (view.place.as_str(), view.state)).collect()
}

fn undone(w: &World) -> Vec<(String, Undo)> {
    let declared = w.views().into_iter().filter(|view| view.compensation != Undo::None);
    declared.map(|view| (view.place, view.compensation)).collect()
}

#[test]
fn a_step_shows_its_times_its_job_and_why_it_ended() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, needs: [a], when: 'input.n > 3', job: {topic: t}}
  - {id: c, needs: [b], job: {topic: t}}
  - {id: d, needs: [c], set: '${{ 1 }}'}
";
    let mut w = World::start(yaml, json!({"n": 1}));
    w.carry_out();
    let (job, _) = w.job("a");
    w.pass(1000);
    w.succeed("a", json!(1));
    let a = w.view("a");
    assert_eq!((a.id.as_str(), a.kind, a.state, a.attempts), ("a", "job", StepState::Succeeded, 1));
    assert_eq!((a.started, a.ended, a.job), (Time(START), Time(START + 1_000_000), Some(job)));
    let b = w.view("b");
    assert_eq!(
        (b.state, b.reason.as_deref(), b.job, b.attempts),
        (StepState::Skipped, Some("`when` is false"), None, 0)
    );
    let c = w.view("c");
    assert_eq!((c.state, c.attempts, c.job.is_some(), c.ended), (StepState::Running, 1, true, Time::NONE));
    let d = w.view("d");
    assert_eq!((d.state, d.started, d.kind, d.error), (StepState::Waiting, Time::NONE, "set", None));
    w.fail("c");
    let error = w.view("c").error.unwrap();
    assert_eq!((error.code.as_str(), error.message.as_str(), error.step.as_str()), ("boom", "it broke", "c"));
    assert_eq!(w.view("d").reason.as_deref(), Some("another step failed"));
}

#[test]
fn nested_steps_show_once_they_have_begun() {
    let yaml = "
steps:
  - id: s
    switch:
      - {when: 'input.n > 10', steps: [{id: big, job: {topic: t}}]}
      - {else: [{id: low, job: {topic: t}}, {id: later, needs: [low], job: {topic: t}}]}
  - {id: after, needs: [s], steps: [{id: inner, job: {topic: t}}]}
";
    let mut w = World::start(yaml, json!({"n": 1}));
    let running = [("s", StepState::Running), ("low", StepState::Running), ("after", StepState::Waiting)];
    assert_eq!(states(&w.views()), running);
    assert_eq!((w.view("s").branch, w.view("s").iteration, w.view("s").job), (Some(1), None, None));
    w.succeed("low", json!(1));
    w.succeed("later", json!(1));
    let places: Vec<String> = w.views().into_iter().map(|view| view.place).collect();
    assert_eq!(places, ["s", "low", "later", "after", "inner"]);
    assert_eq!(w.view("after").branch, None);
}

#[test]
fn a_switch_that_took_no_branch_shows_none() {
    let yaml = "steps: [{id: s, switch: [{when: 'input.n > 10', steps: [{id: big, job: {topic: t}}]}]}]";
    let w = World::start(yaml, json!({"n": 1}));
    assert_eq!((w.view("s").state, w.view("s").branch, w.views().len()), (StepState::Succeeded, None, 1));
}

#[test]
fn a_loop_shows_the_iterations_that_are_kept() {
    let yaml = "
steps:
  - id: l
    loop: {state: {init: 0, next: '${{ state + 1 }}'}, until: 'state >= 6', max: 9, steps: [{id: a, job: {topic: t}}]}
";
    let mut w = World::start(yaml, json!({}));
    assert_eq!(w.view("l").iteration, Some(0));
    for n in 0..5 {
        w.succeed(&format!("a[{n}]"), json!(1));
    }
    let last = [("l", StepState::Running), ("a[3]", StepState::Succeeded), ("a[4]", StepState::Succeeded)];
    assert_eq!(states(&w.views())[..3], last);
    assert_eq!((w.view("a[5]").state, w.view("l").iteration, w.views().len()), (StepState::Running, Some(5), 4));
}

#[test]
fn a_repeated_scope_shows_its_latest_attempt() {
    let yaml = "
steps:
  - id: g
    retry: {max_attempts: 2, backoff: {initial_ms: 1000, jitter: 0}}
    steps: [{id: a, job: {topic: t}}]
";
    let mut w = World::start(yaml, json!({}));
    w.fail("a[1]");
    assert_eq!(states(&w.views()), [("g", StepState::Running), ("a[1]", StepState::Failed)]);
    w.pass(1000);
    assert_eq!(states(&w.views()), [("g", StepState::Running), ("a[2]", StepState::Running)]);
    assert_eq!((w.view("g").attempts, w.view("a[2]").attempts), (2, 1));
}

#[test]
fn a_for_each_shows_counts_and_its_items_only_on_demand() {
    let yaml = "
steps:
  - {id: e, for_each: {items: input.list, max_parallel: 2, tolerate: {count: 9}, collect: 'steps.e.result.v'}, job: {topic: t}}
  - {id: f, needs: [e], for_each: {items: input.list}, steps: [{id: x, job: {topic: t}}]}
";
    let mut w = World::start(yaml, json!({"list": (0..70).collect::<Vec<_>>()}));
    w.carry_out();
    let (first, _) = w.job("e[0]");
    w.succeed("e[0]", json!({"v": 10}));
    w.fail("e[1]");
    let e = w.view("e");
    assert_eq!(e.each, Some(EachView { total: 70, issued: 4, succeeded: 1, failed: 1, running: 2 }));
    assert_eq!((e.job, w.view("f").each, w.views().len()), (None, None, 2));

    let items = |from, limit| w.with_little(|run| run.view_items("e", from, limit)).1.unwrap();
    let page = items(0, 3);
    assert_eq!((page.total, page.items.len()), (70, 3));
    let [zero, one, two] = &page.items[..] else { panic!() };
    assert_eq!((zero.index, zero.state, zero.job), (0, StepState::Succeeded, Some(first)));
    assert_eq!(zero.value.as_deref(), Some(&json!(10)));
    assert_eq!((one.state, one.error.as_ref().map(|error| error.code.as_str())), (StepState::Failed, Some("boom")));
    assert_eq!((two.state, two.job.is_some(), two.value.is_none()), (StepState::Running, true, true));
    let last = items(62, 100);
    assert_eq!((last.items.len(), last.items[0].index, last.items[7].state), (8, 62, StepState::Waiting));
    assert_eq!((last.items[7].job, items(70, 5).items.len(), items(u32::MAX, 5).items.len()), (None, 0, 0));

    assert_eq!(w.run.view_items("f", 0, 9).unwrap().unwrap().total, 0, "it has not begun");
    for no in ["nobody", "x", "x[0]", "e[0]"] {
        assert_eq!(w.run.view_items(no, 0, 9), Ok(None), "{no}");
    }
    assert_eq!(w.run.step_result("e[0]"), Ok(Some(&json!(10))));
}

#[test]
fn steps_inside_items_are_not_listed_and_a_for_each_inside_an_item_has_items() {
    let yaml = "
steps:
  - id: e
    for_each: {items: input.list, as: row}
    steps: [{id: f, for_each: {items: row}, set: '${{ index }}'}]
";
    let w = World::start(yaml, json!({"list": [[1, 2], [3]]}));
    assert_eq!(states(&w.views()), [("e", StepState::Succeeded)]);
    let inner = w.run.view_items("f[0]", 0, 9).unwrap().unwrap();
    let values: Vec<Value> = inner.items.iter().filter_map(|item| item.value.as_deref().cloned()).collect();
    assert_eq!((inner.total, values), (2, vec![json!(0), json!(1)]));
}

#[test]
fn compensations_show_how_far_they_are() {
    let yaml = "
steps:
  - id: r
    for_each: {items: input.lines}
    job: {topic: t}
    compensate: {job: {topic: t}}
  - {id: c, needs: [r], job: {topic: t}, compensate: {job: {topic: t}}}
  - {id: s, needs: [c], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({"lines": [1, 2]}));
    let all = |r, c| vec![("r".to_owned(), r), ("c".to_owned(), c)];
    assert_eq!((undone(&w), w.run.compensation()), (Vec::new(), (Undo::None, 0)));
    w.succeed("r[0]", json!(1));
    assert_eq!(undone(&w), [("r".to_owned(), Undo::Due)]);
    w.succeed("r[1]", json!(1));
    w.succeed("c", json!(1));
    assert_eq!(undone(&w), all(Undo::Due, Undo::Due));
    w.fail("s");
    assert_eq!((undone(&w), w.run.compensation()), (all(Undo::Due, Undo::Running), (Undo::Running, 0)));
    w.succeed("undo:c", json!(1));
    w.succeed("undo:r[0]", json!(1));
    assert_eq!(undone(&w), all(Undo::Running, Undo::Done));
    w.fail("undo:r[1]");
    assert_eq!((w.state(), undone(&w)), (Failed, all(Undo::Failed, Undo::Done)));
    assert_eq!(w.run.compensation(), (Undo::Failed, 1));
    w.op(RunOp::Compensate { tell: None });
    assert_eq!((w.run.compensation(), w.view("r").compensation), ((Undo::Running, 0), Undo::Running));
    w.succeed("undo:r[1]", json!(1));
    assert_eq!((w.run.compensation(), undone(&w)), ((Undo::Done, 0), all(Undo::Done, Undo::Done)));
    assert_eq!(Undo::Running.as_str(), "running");
}

#[test]
fn a_run_that_succeeded_shows_nothing_to_be_undone() {
    let mut w = World::start(
        "steps: [{id: a, job: {topic: t}, compensate: {job: {topic: t}}}, {id: b, needs: [a], job: {topic: t}}]",
        json!({}),
    );
    w.succeed("a", json!(1));
    assert_eq!(undone(&w), [("a".to_owned(), Undo::Due)]);
    w.succeed("b", json!(1));
    assert_eq!((w.state(), undone(&w)), (Succeeded, Vec::new()));
}

#[test]
fn a_for_each_shows_what_its_items_hold_to_be_undone() {
    let yaml = "
steps:
  - id: e
    for_each: {items: input.list}
    steps: [{id: a, job: {topic: t}, compensate: {job: {topic: t}}}]
  - {id: f, needs: [e], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({"list": [1, 2]}));
    w.succeed("a[1]", json!(1));
    assert_eq!(undone(&w), [("e".to_owned(), Undo::Due)]);
    w.succeed("a[0]", json!(1));
    w.fail("f");
    assert_eq!(w.view("e").compensation, Undo::Running);
    w.succeed("undo:a[0]", json!(1));
    w.succeed("undo:a[1]", json!(1));
    assert_eq!((w.state(), w.view("e").compensation), (Failed, Undo::Done));
}

#[test]
fn sub_runs_show_the_run_of_their_latest_attempt() {
    let yaml = "steps: [{id: w, retry: {max_attempts: 2, backoff: {initial_ms: 1}}, workflow: {name: ship}}]";
    let mut w = World::start(yaml, json!({}));
    let started = |w: &World| -> Vec<RunId> {
        let run = |action: &Action| if let Action::StartRun { run, .. } = action { Some(*run) } else { None };
        w.other.iter().filter_map(|command| run(&command.action)).collect()
    };
    w.end_sub_run("w", RunState::Failed, None);
    assert_eq!(w.view("w").sub_run, Some(started(&w)[0]));
    w.pass(1000);
    assert_eq!((w.view("w").sub_run, w.view("w").attempts, w.view("w").job), (Some(started(&w)[1]), 2, None));
}

#[test]
fn values_show_as_far_as_they_are_kept() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: b, needs: [a], job: {topic: t, payload: '${{ steps.a.result }}'}}
output: '${{ steps.a.result }}'
";
    let mut w = World::start(yaml, json!({"n": 1}));
    assert_eq!((w.run.input(), w.run.output()), (Ok(Some(&json!({"n": 1}))), Ok(None)));
    assert_eq!(w.run.step_result("a"), Ok(None), "it runs");
    w.succeed("a", json!("x"));
    w.succeed("b", json!("y"));
    assert_eq!(w.run.step_result("a"), Ok(Some(&json!("x"))));
    assert_eq!(w.run.step_result("b"), Ok(None), "nobody reads it, so it stays in the job");
    assert_eq!((w.run.step_result("nobody"), w.run.output()), (Ok(None), Ok(Some(&json!("x")))));
    assert_eq!(w.with_little(|run| run.output().map(|output| output.cloned())).1, Some(json!("x")));
    assert_eq!(w.with_little(|run| run.step_result("a").map(|result| result.cloned())).1, Some(json!("x")));
}

#[test]
fn a_result_that_is_too_large_shows_as_such() {
    let mut w = World::start("steps: [{id: a, job: {topic: t}}]", json!({}));
    w.carry_out();
    let (job, _) = w.job("a");
    let end = JobEnd {
        task: "a".into(),
        job,
        ending: Ending::Succeeded,
        result: None,
        truncated: true,
        error: None,
        attempts: 3,
    };
    w.event(What::JobEnded(end));
    assert_eq!((w.view("a").truncated, w.view("a").attempts, w.run.step_result("a")), (true, 3, Ok(None)));
}

fn rerun_of(w: &World, yaml: &str, name: &str, again: &Again) -> World {
    let about = About { rerun_of: Some(w.run.about().run), ..about_of(name) };
    let input = w.run.input().unwrap().cloned();
    World::of(w.run.rerun(&plan(yaml), about, input, again).unwrap().run)
}

fn item_jobs(w: &World) -> Vec<Option<JobId>> {
    w.run.view_items("e", 0, 9).unwrap().unwrap().items.into_iter().map(|item| item.job).collect()
}

#[test]
fn what_a_rerun_took_over_shows_the_job_that_did_it() {
    let yaml = "
steps:
  - {id: a, job: {topic: t}}
  - {id: e, for_each: {items: input.list}, job: {topic: t}}
  - {id: b, needs: [a, e], job: {topic: t}}
";
    let mut w = World::start(yaml, json!({"list": [1, 2, 3]}));
    w.succeed("a", json!(1));
    w.succeed("e[0]", json!(1));
    w.fail("e[1]");
    w.tell_cancelled();
    let (a, first) = (w.view("a").job, item_jobs(&w));
    assert!(first.iter().all(Option::is_some));

    let mut second = rerun_of(&w, yaml, "second", &Again::FailedItems("e".into()));
    assert_eq!((second.view("a").job, item_jobs(&second)), (a, vec![first[0], None, None]));
    second.event(What::Start);
    second.succeed("e[1]", json!(1));
    second.fail("e[2]");
    let jobs = item_jobs(&second);
    assert_eq!(jobs[0], first[0]);
    assert!(jobs[1] != first[1] && jobs[2] != first[2], "they ran again");

    let mut third = rerun_of(&second, yaml, "third", &Again::FailedItems("e".into()));
    assert_eq!(item_jobs(&third), [first[0], jobs[1], None]);
    third.event(What::Start);
    third.succeed("e[2]", json!(1));
    third.fail("b");
    let last = item_jobs(&third);
    let fourth = rerun_of(&third, yaml, "fourth", &Again::From("b".into()));
    assert_eq!((fourth.view("a").job, fourth.view("b").job, item_jobs(&fourth)), (a, None, last));
}
