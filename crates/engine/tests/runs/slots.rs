//! The slot that a run asks for.

use muster_engine::{
    definition::WhenFull,
    run::{Run, SlotWish},
};
use serde_json::{Value, json};

use crate::world::{about, plan};

fn run(concurrency: &str, input: Value) -> Run {
    let yaml = format!("{concurrency}\nsteps: [{{id: a, job: {{topic: t}}}}]");
    Run::new(plan(&yaml), about(), Some(input))
}

fn keyed(key: &str, input: Value) -> Result<String, String> {
    let wish = run(&format!("concurrency: {{key: \"{key}\", max: 1}}"), input).slot_wish();
    wish.map(|wish| wish.unwrap().key).map_err(|error| format!("{}: {}", error.code, error.message))
}

#[test]
fn a_run_asks_for_a_slot_if_its_workflow_bounds_its_runs() {
    assert_eq!(run("", json!({})).slot_wish(), Ok(None));
    let all = run("concurrency: {max: 3, when_full: reject}", json!({})).slot_wish();
    assert_eq!(all, Ok(Some(SlotWish { key: String::new(), max: 3, when_full: WhenFull::Reject })));
    let own = run("concurrency: {key: input.order, max: 1, when_full: cancel_oldest}", json!({"order": "o-7"}));
    assert_eq!(own.slot_wish(), Ok(Some(SlotWish { key: "o-7".into(), max: 1, when_full: WhenFull::CancelOldest })));
}

#[test]
fn a_key_is_a_text_and_numbers_and_booleans_become_one() {
    let input = json!({"n": 12, "d": 0.5, "yes": true, "text": "12", "wide": "ä".repeat(128)});
    assert_eq!(keyed("input.n", input.clone()), Ok("12".into()));
    assert_eq!(keyed("input.d", input.clone()), Ok("0.5".into()));
    assert_eq!(keyed("input.yes", input.clone()), Ok("true".into()));
    assert_eq!(keyed("input.text + '/' + run.name", input.clone()), Ok("12/order".into()));
    assert_eq!(keyed("input.wide", input).map(|key| key.len()), Ok(256));
}

#[test]
fn what_is_no_key_is_an_error() {
    let input = json!({"list": [1], "none": null, "long": "x".repeat(257)});
    for key in ["input.list", "input.none", "input.long", "input.missing.deep"] {
        let error = keyed(key, input.clone()).unwrap_err();
        assert!(error.starts_with("expression_error: "), "{key}: {error}");
    }
    assert!(keyed("input.long", input).unwrap_err().contains("257 bytes"));
}

#[test]
fn a_run_keeps_the_slot_that_it_was_given() {
    let mut run = run("concurrency: {max: 1}", json!({}));
    run.hold_slot("k".into());
    let saved: Vec<(String, Vec<u8>)> = run.changes().into_iter().filter_map(|(n, b)| Some((n, b?))).collect();
    let fields = saved.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    assert_eq!(Run::load(run.plan().clone(), fields).unwrap().about().slot.as_deref(), Some("k"));
}
