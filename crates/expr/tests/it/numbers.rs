//! From JSON to numbers and back.

use muster_expr::{Expr, Limits, Values};
use serde_json::json;

use crate::fixture::{evaluate, evaluate_with};

/// `input.n` with a number as it stands in the text.
fn with(number: &str) -> Values {
    let mut values = Values::new();
    values.set("input", serde_json::from_str(&format!("{{\"n\": {number}}}")).expect(number));
    values
}

fn truth(source: &str, values: &Values) -> bool {
    Expr::parse(source).expect(source).evaluate_bool(values, &Limits::default()).expect(source)
}

#[test]
fn a_number_has_the_first_type_that_it_fits() {
    // Adding an int keeps the type visible.
    for (number, sum) in [
        ("1", "2"),
        ("-9223372036854775808", "-9223372036854775807"),
        ("9223372036854775806", "9223372036854775807"),
        ("9223372036854775808", "9223372036854775809"),
        ("1.0", "2.0"),
        ("1e2", "101.0"),
        ("18446744073709551616", "1.8446744073709552e+19"),
    ] {
        let found = evaluate_with("input.n + 1", &with(number)).map(|n| n.to_string());
        assert_eq!(found, Ok(sum.to_owned()), "{number}");
    }
}

#[test]
fn a_number_that_fits_nothing_is_named() {
    let long = format!("0.{}1", "3".repeat(400));
    for number in ["18446744073709551617", "-9223372036854775809", "1e400", "1e-400", "0.1000000000000000055", &long] {
        let error = evaluate_with("input.n > 0", &with(number)).expect_err(number);
        assert_eq!(error.code(), "expression_error");
        assert!(error.to_string().starts_with(&number[..2]), "{error}");
        assert!(error.to_string().contains("without a change"), "{error}");
    }
}

#[test]
fn a_number_that_is_only_passed_on_keeps_its_digits() {
    // The JSON reader itself writes an exponent as `e+2`.
    for number in ["1.10", "1e+2", "0.1", "18446744073709551616", "1e-7"] {
        assert_eq!(evaluate_with("input.n", &with(number)).map(|n| n.to_string()), Ok(number.to_owned()));
        assert_eq!(evaluate_with("[input.n]", &with(number)).map(|n| n.to_string()), Ok(format!("[{number}]")));
    }
    // Also one that fits nothing, as long as it is not read itself.
    let passed = evaluate_with("input", &with("18446744073709551617")).map(|n| n.to_string());
    assert_eq!(passed, Ok("{\"n\":18446744073709551617}".to_owned()));
}

#[test]
fn ints_and_doubles_compare_exactly() {
    let values = with("9007199254740993");
    assert!(truth("input.n > 9007199254740992.0", &values));
    assert!(truth("input.n != 9007199254740992.0", &values));
    assert!(truth("9223372036854775807 < 9223372036854775808.0", &values));
    assert!(truth("18446744073709551615u < 18446744073709551616.0", &values));
    assert!(truth("1 < 1.5 && 2 > 1.5 && -1 > -1.5 && 1 == 1.0 && 1u == 1 && 1u == 1.0", &values));
    assert!(truth("1 in [1.0] && {1: 'a'}[1.0] == 'a' && {1: 'a'}[1u] == 'a'", &values));
    assert!(truth("9223372036854775807 < 1e300 && 1 > -1e300", &values));
    assert!(truth("0.0 / 0.0 != 0.0 / 0.0 && !(0.0 / 0.0 < 1.0) && !(0.0 / 0.0 >= 1)", &values));
}

#[test]
fn an_int_that_no_double_holds_is_not_computed_with_one() {
    let error = evaluate_with("input.n + 1.0", &with("9007199254740993")).expect_err("inexact");
    assert!(error.to_string().contains("no double has this value"), "{error}");
    assert_eq!(evaluate_with("input.n + 1.0", &with("9007199254740992")), Ok(json!(9007199254740992.0 + 1.0)));
}

#[test]
fn overflow_and_division_by_zero_are_named() {
    for (source, message) in [
        ("9223372036854775807 + 1", "outside of what int"),
        ("-9223372036854775808 - 1", "outside of what int"),
        ("-(-9223372036854775808)", "outside of what int"),
        ("-9223372036854775808 / -1", "outside of what int"),
        ("18446744073709551615u * 2u", "outside of what uint"),
        ("0u - 1u", "outside of what uint"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("1.0 / 0.0", "not a number that JSON can express"),
        ("1.5 % 1", "whole numbers"),
    ] {
        let error = evaluate(source).expect_err(source);
        assert!(error.to_string().contains(message), "{source}: {error}");
    }
}
