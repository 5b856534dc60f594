//! Definitions without a fault.

use muster_domain::RetryPolicy;

use super::super::*;
use super::{EVERYTHING, ORDER, told, yaml};

fn order() -> Definition {
    yaml(ORDER).unwrap_or_else(|faults| panic!("{}", told(&faults)))
}

#[test]
fn the_order_is_read() {
    let order = order();
    assert_eq!(order.steps.steps.len(), 6);
    assert_eq!(order.timeout_ms, Some(86_400_000));
    let at = |id: &str| &order.steps.steps[order.steps.position(id).unwrap()];
    let for_each = at("reserve").for_each.as_ref().unwrap();
    assert_eq!((for_each.name.as_str(), for_each.max_parallel, for_each.tolerate), ("line", 20, Tolerate::Count(0)));
    assert_eq!(at("alarm").needs, [2, 4]);
    assert_eq!(at("alarm").run_if, RunIf::Failure);
    assert!(matches!(&at("parcel").kind, Kind::Workflow(step) if step.name == "ship" && step.wait));
    assert!(at("charge").compensate.as_ref().is_some_and(|undo| undo.job.is_some()));
}

#[test]
fn defaults_are_for_job_steps_only() {
    let order = order();
    let at = |id: &str| &order.steps.steps[order.steps.position(id).unwrap()];
    assert_eq!(order.retry_of(at("reserve")).max_attempts, Some(3));
    assert_eq!(order.retry_of(at("charge")).max_attempts, Some(5));
    assert_eq!(order.retry_of(at("parcel")).max_attempts, None);
    assert_eq!((order.timeout_of(at("charge")), order.timeout_of(at("big"))), (Some(60_000), None));
    let policy = order.retry_of(at("charge")).over(RetryPolicy::default());
    assert_eq!((policy.max_attempts, policy.backoff), (5, RetryPolicy::default().backoff));
}

#[test]
fn the_example_of_the_docs_has_no_fault() {
    let page = include_str!("../../../../../docs/workflows.md");
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    yaml(example).unwrap_or_else(|faults| panic!("{}", told(&faults)));

    // Two typos in it have the faults that the page shows.
    let wrong = example.replace("    retry:", "    retri:").replace("steps.charge.result", "steps.chrge.result");
    let faults: Vec<String> = yaml(&wrong).unwrap_err().iter().map(|fault| format!("order.yaml:{fault}")).collect();
    let shown: Vec<&str> = page.lines().filter(|line| line.starts_with("order.yaml:")).collect();
    assert_eq!(shown, faults);
}

#[test]
fn every_field_is_taken() {
    let all = yaml(EVERYTHING).unwrap_or_else(|faults| panic!("{}", told(&faults)));
    let again = read(all.canonical().as_bytes(), Format::Guess).unwrap_or_else(|faults| panic!("{}", told(&faults)));
    assert_eq!(again.canonical(), all.canonical());
}

#[test]
fn what_means_the_same_has_the_same_form() {
    let one = "steps:\n- {id: a, set: 1}\n- {id: b, needs: [a], job: {topic: t}}\n";
    for same in [
        "# a comment\nsteps: [{set: 1, id: a}, {job: {topic: t}, needs: [a], id: b, on_error: fail, run_if: success}]",
        "on_failure: cancel\ndefaults: {}\nsteps: [{id: a, set: 1}, {id: b, needs: [a], job: {topic: \"t\", labels: {}}}]",
        r#"{"steps": [{"id": "a", "set": 1}, {"id": "b", "needs": ["a"], "retry": {}, "job": {"topic": "t"}}]}"#,
        "steps: [{id: a, set: &one 1}, {id: b, needs: [a], when: null, job: {topic: t}}]",
    ] {
        let same = read(same.as_bytes(), Format::Guess).unwrap_or_else(|faults| panic!("{}", told(&faults)));
        assert_eq!(same, yaml(one).unwrap());
    }
    for other in ["steps: [{id: a, set: 1}]", "steps: [{id: a, set: 1.0}, {id: b, needs: [a], job: {topic: t}}]"] {
        assert_ne!(yaml(other).unwrap(), yaml(one).unwrap());
    }
}

#[test]
fn json_and_yaml_give_the_same_definition() {
    let from_yaml = yaml(EVERYTHING).unwrap();
    let json = serde_json::to_string_pretty(&from_yaml.to_json()).unwrap();
    assert_eq!(read(json.as_bytes(), Format::Json).unwrap(), from_yaml);
    assert_eq!(read(json.as_bytes(), Format::Yaml).unwrap(), from_yaml, "JSON is YAML too");
}

#[test]
fn a_workflow_that_starts_itself_is_refused_where_its_name_is_known() {
    let text = b"steps:\n  - {id: a, workflow: {name: order}}";
    assert!(read(text, Format::Yaml).is_ok());
    assert!(read_named(text, Format::Yaml, Some("other")).is_ok());
    let faults = read_named(text, Format::Yaml, Some("order")).unwrap_err();
    assert_eq!((faults[0].line, faults[0].column, faults[0].code), (2, 30, "self_call"));
    assert_eq!(faults[0].pointer, "/steps/0/workflow/name");
}
