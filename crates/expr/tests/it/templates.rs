//! Expressions inside of JSON.

use muster_expr::{EvalError, Limits, Template, Values};
use serde_json::{Value, json};

use crate::fixture::{names, values};

fn fill(value: &Value) -> Result<Value, EvalError> {
    Template::parse(value)
        .unwrap_or_else(|faults| panic!("{value}: {faults:?}"))
        .evaluate(&values(), &Limits::default())
}

#[test]
fn a_string_that_is_one_expression_keeps_the_type() {
    for (value, filled) in [
        (json!("${{ input.n }}"), json!(7)),
        (json!("${{input.lines[0]}}"), json!({"sku": "a", "n": 1})),
        (json!("${{ input.none }}"), json!(null)),
        (json!("n = ${{ input.n }}"), json!("n = 7")),
        (json!(" ${{ input.n }}"), json!(" 7")),
        (json!("${{ input.order }}/${{ input.total }}"), json!("A-1/12.5")),
        (json!("${{ input.tags }} ${{ input.none }} ${{ input.yes }}"), json!("[\"x\",\"y\"] null true")),
        (json!("at ${{ now }}"), json!("at 2026-03-01T22:15:30.250Z")),
        (json!({"a": ["${{ input.n }}", 1, {"b": "x"}], "c": 1.10}), json!({"a": [7, 1, {"b": "x"}], "c": 1.10})),
        (json!("no $ { or {{ or }} here"), json!("no $ { or {{ or }} here")),
        (json!(12), json!(12)),
    ] {
        assert_eq!(fill(&value), Ok(filled), "{value}");
    }
}

#[test]
fn braces_of_the_expression_do_not_end_it() {
    for (value, filled) in [
        (json!("${{ '}}' }}"), json!("}}")),
        (json!("${{ \"a}}b\" + r'}}' }}!"), json!("a}}b}}!")),
        (json!("${{ {'a': {'b': 1}} }}"), json!({"a": {"b": 1}})),
        (json!("${{{'a': {'b': 1}}}}"), json!({"a": {"b": 1}})),
        (json!("${{ {'a': {'b': 1}}.a.b }}}}"), json!("1}}")),
        (json!("${{ '${{' }}"), json!("${{")),
        (json!("${{ 1 // comment\n }}"), json!(1)),
    ] {
        assert_eq!(fill(&value), Ok(filled), "{value}");
    }
}

#[test]
fn faults_have_the_pointer_and_the_place_in_the_string() {
    for (value, pointer, line, column, message) in [
        (json!("${{ 1 + }}"), "", 1, 8, "the end"),
        (json!({"a/b": [0, "x ${{ 1 1 }}"]}), "/a~1b/1", 1, 9, "found '1'"),
        (json!("one\ntwo ${{ 1 }} ${{ #"), "", 2, 18, "unexpected character"),
        (json!("${{ 1 "), "", 1, 1, "not closed"),
        (json!("${{ 1 }"), "", 1, 1, "not closed"),
        (json!("${{ 'a }}"), "", 1, 5, "unterminated"),
        (json!("${{ }}"), "", 1, 5, "empty"),
        (json!({"${{ input.n }}": 1}), "", 1, 1, "a key holds no expression"),
    ] {
        let faults = Template::parse(&value).expect_err("a fault");
        assert_eq!(faults.len(), 1, "{value}: {faults:?}");
        let fault = &faults[0].fault;
        assert_eq!((faults[0].pointer.as_str(), fault.line, fault.column), (pointer, line, column), "{value}: {fault}");
        assert!(fault.message.contains(message), "{value}: {fault}");
    }
}

#[test]
fn every_expression_is_checked_at_its_place() {
    let value = json!({"a": "é ${{ input.nope }}", "b": ["ok ${{ input.n }}\n\n  ${{\n zzz }}"]});
    let template = Template::parse(&value).expect("a template");
    let faults = template.check(&names()).expect_err("two faults");
    let places: Vec<_> = faults.iter().map(|f| (f.pointer.as_str(), f.fault.line, f.fault.column)).collect();
    assert_eq!(places, [("/a", 1, 13), ("/b/0", 4, 2)], "{faults:?}");
    let read: Vec<_> = template.reads().paths().map(|path| path.join(".")).collect();
    assert_eq!(read, ["input.n", "input.nope", "zzz"]);
    assert_eq!(template.expressions().map(|(at, expr)| (at, expr.source())).next(), Some(("/a", "input.nope")));
    assert!(!template.is_constant() && Template::parse(&json!({"a": 1})).expect("a constant").is_constant());
    assert_eq!(template.value(), &value);
}

#[test]
fn many_results_are_bounded_together() {
    let mut values = Values::new();
    values.set("big", json!("x".repeat(200 * 1024)));
    let many = |n: usize| {
        let template = Template::parse(&json!(vec!["${{ big }}"; n])).expect("a template");
        template.evaluate(&values, &Limits::default())
    };
    assert!(many(5).is_ok());
    assert!(matches!(many(100), Err(EvalError::TooLarge(_))));
}

#[test]
fn many_faults_end_the_reading() {
    let faults = Template::parse(&json!("${{ 1 1 }}".repeat(10_000))).expect_err("faults");
    assert_eq!(faults.len(), 100);
}
