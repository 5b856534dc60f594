//! Values that are not there, or only in part.

use muster_expr::{Absent, Expr, Limits, Values};
use serde_json::json;

use crate::fixture::{evaluate, evaluate_with, failing, table, values};

#[test]
fn the_result_of_a_step_that_did_not_succeed_is_an_error_and_has_says_so() {
    table(&[
        ("has(steps.parcel.result)", json!(false)),
        ("has(steps.parcel.result.id)", json!(false)),
        ("has(steps.charge.result) && has(steps.charge.result.id) && !has(steps.charge.result.other)", json!(true)),
        ("has(steps.parcel.result) ? steps.parcel.result.id : 'none'", json!("none")),
        ("steps.parcel.state", json!("failed")),
    ]);
    failing(&[
        ("steps.parcel.result", "expression_error", "steps.parcel.result has no value: the step failed"),
        ("steps.parcel.result.id == 'x'", "expression_error", "steps.parcel.result has no value: the step failed"),
        ("steps['parcel'].result", "expression_error", "the step failed"),
    ]);
    let names = evaluate("steps.parcel").expect("the rest of the step");
    assert_eq!(names, json!({"state": "failed"}));
    assert_eq!(evaluate("size(steps.parcel)"), Ok(json!(1)));
}

#[test]
fn a_truncated_result_is_never_null() {
    table(&[("has(steps.big.result)", json!(true))]);
    failing(&[
        ("steps.big.result", "result_truncated", "steps.big.result is truncated: only the first 64 KiB"),
        ("steps.big.result.id", "result_truncated", "truncated"),
        ("has(steps.big.result.id)", "result_truncated", "truncated"),
        ("steps.big", "result_truncated", "truncated"),
        ("steps", "result_truncated", "big.result is truncated"),
        ("steps.map(k, steps[k].result)", "result_truncated", "truncated"),
        ("steps.big == steps.big", "result_truncated", "truncated"),
        ("{'a': steps.big}", "result_truncated", "truncated"),
    ]);
}

#[test]
fn what_is_set_later_replaces_what_was_set_before() {
    let mut values = Values::new();
    values.set("a", json!({"b": {"c": 1, "d": 2}, "e": 3}));
    values.set_at(&["a", "b", "c"], json!(10));
    values.set_absent(&["a", "e"], Absent::Missing("gone".into()));
    assert_eq!(evaluate_with("a", &values), Ok(json!({"b": {"c": 10, "d": 2}})));
    values.set("a", json!(1));
    assert_eq!(evaluate_with("a", &values), Ok(json!(1)));
    values.set_at(&["a", "b"], json!(2));
    assert_eq!(evaluate_with("a.b", &values), Ok(json!(2)));
}

/// JSON has no timestamps. Text of RFC 3339 works where a timestamp is needed.
#[test]
fn a_time_that_is_set_as_text_works_too() {
    let mut values = Values::new();
    values.set("now", json!("2026-03-01T22:15:30Z"));
    for source in [
        "now.getHours() == 22",
        "now.getHours('Europe/Berlin') == 23",
        "now > timestamp('2026-01-01T00:00:00Z')",
        "now == timestamp('2026-03-01T23:15:30+01:00')",
        "now - timestamp('2026-03-01T22:15:00Z') == duration('30s')",
        "now + duration('1h') == timestamp('2026-03-01T23:15:30Z')",
        "timestamp(now) == now",
    ] {
        assert_eq!(evaluate_with(source, &values), Ok(json!(true)), "{source}");
    }
}

#[test]
fn a_condition_must_be_a_bool() {
    let bool_of = |source: &str| Expr::parse(source).expect(source).evaluate_bool(&values(), &Limits::default());
    assert_eq!(bool_of("input.n == 7"), Ok(true));
    assert!(bool_of("input.n").expect_err("an int").to_string().contains("must be a bool, and is int"));
}

#[test]
fn expressions_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Expr>();
    shared::<muster_expr::Template>();
    shared::<Values>();
}
