//! Expressions that would cost too much.

use std::time::{Duration, Instant};

use muster_expr::{EvalError, Expr, Limits, Values};
use serde_json::json;

use crate::fixture::values;

/// Far more than a refusal needs, and far less than an explosion takes, also on a slow machine.
const QUICK: Duration = Duration::from_secs(2);

fn quickly<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = run();
    assert!(began.elapsed() < QUICK, "{what} took {:?}", began.elapsed());
    done
}

#[test]
fn sources_that_nest_or_repeat_too_much_are_refused_quickly() {
    let folds = |n: usize| (0..n).fold("1".to_owned(), |body, n| format!("[1, 2].map(x{n}, {body})"));
    for (source, message) in [
        ("x".repeat(4097), "4097 bytes; at most 4096"),
        ("(".repeat(125), "brackets nest too deeply"),
        ("[".repeat(2000) + &"]".repeat(2000), "brackets nest too deeply"),
        ("{1:".repeat(1000), "brackets nest too deeply"),
        ("((((".repeat(31), "brackets nest too deeply"),
        ("f(".repeat(60) + &")".repeat(60), "brackets nest too deeply"),
        ("!-".repeat(2000) + "1", "nests too deeply"),
        ("1+".repeat(2000) + "1", "nests too deeply"),
        ("a?a:".repeat(1000) + "a", "nests too deeply"),
        ("a".to_owned() + &".a".repeat(2000), "nests too deeply"),
        ("a".to_owned() + &".f()".repeat(1000), "nests too deeply"),
        ("a".to_owned() + &"[0]".repeat(1000), "nests too deeply"),
        (folds(4), "macros nest too deeply"),
        (folds(20), "macros nest too deeply"),
        ("x.matches('a') && ".repeat(8) + "x.matches('b')", "at most 8 regular expressions"),
        ("'x'.matches('(((((a{100}){100}){100}){100}){100})')".to_owned(), "compiles to more than"),
        (format!("'x'.matches('{}')", "(".repeat(2000)), "regular expression cannot be used"),
    ] {
        let shown: String = source.chars().take(40).collect();
        let fault = quickly(&shown, || Expr::parse(&source)).expect_err(&shown);
        assert!(fault.message.contains(message), "{shown}: {fault}");
    }
    assert!(Expr::parse(&folds(3)).is_ok());
}

#[test]
fn long_but_flat_sources_are_fine() {
    for source in [
        (0..400).map(|n| format!("input.n=={n}")).collect::<Vec<_>>().join("||").chars().take(4085).collect::<String>(),
        format!("input.n in [{}]", vec!["1"; 2000].join(",")),
        format!("input.order + {}", vec!["'x'"; 150].join("+")),
        format!("[{}]", vec!["(((1)))"; 500].join(",")),
    ] {
        let source = source.trim_end_matches(['|', '=']);
        let done = quickly(source, || {
            Expr::parse(source).and_then(|e| e.evaluate(&values(), &Limits::default()).map_err(|e| panic!("{e}")))
        });
        assert!(done.is_ok(), "{}: {done:?}", &source[..40]);
    }
}

#[test]
fn evaluations_that_grow_end_quickly_with_a_name() {
    let mut values = values();
    values.set("long", json!("x".repeat(100_000)));
    values.set("many", json!((0..5000).collect::<Vec<_>>()));
    let doubling = |n: usize, of: &str, by: &str| of.to_owned() + &by.repeat(n);
    for source in [
        "many.map(a, many.map(b, many.map(c, 1)))".to_owned(),
        "many.all(a, many.all(b, a + b >= 0))".to_owned(),
        "many.map(a, long)".to_owned(),
        "many.map(a, many)".to_owned(),
        "many.map(a, long + long)".to_owned(),
        "many.filter(a, long.contains('xy'))".to_owned(),
        "many.filter(a, long.matches('(x+x+)+y'))".to_owned(),
        "many.map(a, long.replace('x', long))".to_owned(),
        "many.map(a, long.split(''))".to_owned(),
        "many.map(a, many + many)".to_owned(),
        "many.map(a, long == long + 'x')".to_owned(),
        doubling(40, "[long]", ".map(x, x + x)"),
        doubling(60, "[[1]]", ".map(x, [x, x])"),
        format!("{0} == {0}", doubling(40, "[[1]]", ".map(x, [x, x])")),
        doubling(60, "[[1]]", ".map(x, {'a': x, 'b': x})"),
        doubling(30, "'x'", ".replace('x', 'xxxxxxxxxx')"),
        doubling(60, "[many]", ".map(x, x + x)"),
        "[long, long, long].join(long)".to_owned(),
    ] {
        let expr = Expr::parse(&source).unwrap_or_else(|fault| panic!("{source}: {fault}"));
        let error = quickly(&source, || expr.evaluate(&values, &Limits::default())).expect_err(&source);
        assert!(matches!(error, EvalError::Budget(_) | EvalError::TooLarge(_)), "{source}: {error}");
        assert_eq!(error.code(), "expression_error");
    }
}

#[test]
fn the_budget_is_kept_to_the_node() {
    let expr = Expr::parse("input.n + 1 > 2").expect("an expression");
    // The name, the field, the sum, the comparison.
    let with = |nodes| expr.evaluate(&values(), &Limits { nodes, ..Limits::default() });
    assert_eq!(with(4), Ok(json!(true)));
    assert_eq!(with(3), Err(EvalError::Budget(3)));
    // A used-up budget is not hidden by the other side.
    let expr = Expr::parse("input.lines.all(x, input.lines.all(y, true)) || true").expect("an expression");
    assert_eq!(expr.evaluate(&values(), &Limits { nodes: 10, ..Limits::default() }), Err(EvalError::Budget(10)));
}

#[test]
fn a_list_of_ten_thousand_items_fits_the_budget() {
    let mut values = Values::new();
    let lines: Vec<_> = (0..10_000).map(|n| json!({"sku": format!("s{n}"), "n": n})).collect();
    values.set("input", json!({"lines": lines}));
    let evaluate = |source: &str| {
        let limits = Limits { result_bytes: 1 << 20, ..Limits::default() };
        Expr::parse(source).expect(source).evaluate(&values, &limits)
    };
    assert_eq!(evaluate("input.lines.filter(l, l.n >= 0 && l.sku != '').size()"), Ok(json!(10_000)));
    assert_eq!(
        evaluate("input.lines.map(l, {'sku': l.sku, 'n': l.n})").map(|l| l[1].clone()),
        Ok(json!({"n": 1, "sku": "s1"}))
    );
}

#[test]
fn the_largest_result_is_kept_to_the_byte() {
    let expr = Expr::parse("['ab', 1]").expect("an expression");
    let with = |result_bytes| expr.evaluate(&values(), &Limits { result_bytes, ..Limits::default() });
    assert_eq!(with(9), Ok(json!(["ab", 1])));
    assert_eq!(with(8), Err(EvalError::TooLarge(8)));
}

#[test]
fn cost_grows_with_nested_macros() {
    let cost = |source: &str| Expr::parse(source).expect(source).cost();
    assert_eq!(cost("1"), 1);
    assert!(cost("a.all(x, x > 1)") > 10);
    assert!(cost("a.all(x, a.all(y, x > y))") > 100);
    assert!(cost("a.all(x, a.all(y, a.all(z, x > y)))") > 1000);
}
