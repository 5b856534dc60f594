//! What holds for every source and every value.

use std::time::{Duration, Instant};

use muster_expr::{EvalError, Expr, Limits, Names, Template, Type, Values};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::writer::Writer;

/// Far more than any source of 4 KiB needs, also on a slow and busy machine.
const PARSING: Duration = Duration::from_secs(2);

fn parse_in_time(source: &str) -> Option<Expr> {
    let began = Instant::now();
    let parsed = Expr::parse(source).ok();
    assert!(began.elapsed() < PARSING, "parsing took {:?}: {source}", began.elapsed());
    parsed
}

/// The names that a [`Writer`] uses, all of them with a closed type.
fn names() -> Names {
    let order = Type::closed([("id", Type::String), ("n", Type::Int), ("total", Type::Double), ("paid", Type::Bool)]);
    let input = Type::closed([("order", order), ("counts", Type::list(Type::Int)), ("tags", Type::list(Type::String))]);
    Names::new().with("input", input).with("now", Type::Timestamp)
}

/// An input that has these types.
fn input() -> impl Strategy<Value = Value> {
    let whole = prop_oneof![
        (-3_i64..4).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        Just(json!(2.0)),
    ];
    let number = prop_oneof![whole.clone(), (-1e6..1e6_f64).prop_map(Value::from), Just(json!(1e300))];
    let text = "[a-c,é]{0,6}";
    (text, whole.clone(), number, any::<bool>(), vec(whole, 0..5), vec(text, 0..4)).prop_map(
        |(id, n, total, paid, counts, tags)| {
            json!({"order": {"id": id, "n": n, "total": total, "paid": paid}, "counts": counts, "tags": tags})
        },
    )
}

fn values(input: &Value, ms: i64) -> Values {
    let mut values = Values::new();
    values.set("input", input.clone());
    values.set_time(&["now"], ms);
    values
}

/// Only what an expression reads.
fn pruned(expr: &Expr, input: &Value, ms: i64) -> Values {
    let mut values = Values::new();
    for path in expr.reads().paths() {
        if path[0] == "now" {
            values.set_time(&["now"], ms);
            continue;
        }
        // As far as the path leads through objects.
        let (mut at, mut found) = (vec!["input"], input);
        for part in &path[1..] {
            let Some(next) = found.get(part) else { break };
            at.push(part);
            found = next;
        }
        if at.len() == path.len() || !found.is_object() {
            values.set_at(&at, found.clone());
        }
    }
    values
}

fn tokens() -> impl Strategy<Value = String> {
    let words: Vec<&str> =
        "( ) [ ] { } . , ? : ! - + * / % == != < <= in && || ${{ }} 'a' \"b\" r'c' b'd' ''' 1 2.5 3u 0x \
         1e5 true null input now x `q` .map( .all(x, .filter(x, has( size( .matches( // \n \\ é 🦀 @ _"
            .split(' ')
            .collect();
    vec(select(words), 0..80).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parsing_never_panics_and_is_quick(source in prop_oneof![any::<String>(), "[\\[({})\\]!?:.,a1'-]{0,4096}", tokens()]) {
        if let Some(expr) = parse_in_time(&source) {
            let _ = expr.check(&names());
            let _ = expr.evaluate(&values(&json!({}), 0), &Limits::default());
        }
        let _ = Template::parse(&json!(format!("x ${{{{ {source} }}}} y")));
    }

    #[test]
    fn brackets_never_take_long(open in "[\\[({]{1,30}", inner in "[a1+ ]{0,3}", times in 1_usize..60) {
        let close: String = open.chars().rev().map(|c| match c { '(' => ')', '[' => ']', _ => '}' }).collect();
        let _ = parse_in_time(&format!("{open}{inner}{close}").repeat(times));
        let _ = parse_in_time(&format!("{open}{inner}{close}+").repeat(times));
        let _ = parse_in_time(&format!("{}{inner}{}", open.repeat(times), close.repeat(times)));
    }

    #[test]
    fn what_the_checker_passes_never_fails_for_names_or_types(
        choices in vec(any::<u8>(), 0..120), input in input(), ms in 0_i64..4_102_444_800_000,
    ) {
        let source = Writer::new(&choices).write();
        let Some(expr) = parse_in_time(&source) else { return Ok(()) };
        let Ok(ty) = expr.check(&names()) else { return Ok(()) };
        match expr.evaluate(&values(&input, ms), &Limits::default()) {
            Err(EvalError::Type(message)) => prop_assert!(false, "{source}: {message}"),
            Err(EvalError::Missing { path, why }) => prop_assert!(why.contains("no index"), "{source}: {path}: {why}"),
            Err(EvalError::Truncated { .. }) => prop_assert!(false, "{source}: truncated"),
            Err(_) => {}
            Ok(value) => {
                let fits = match ty {
                    Type::Bool => value.is_boolean(),
                    Type::Int | Type::Uint | Type::Double => value.is_number(),
                    Type::String | Type::Timestamp | Type::Duration => value.is_string(),
                    Type::List(_) => value.is_array(),
                    _ => true,
                };
                prop_assert!(fits, "{source}: {value} is no {ty}");
            }
        }
    }

    #[test]
    fn an_evaluation_looks_at_nothing_but_its_reads(
        choices in vec(any::<u8>(), 0..120), input in input(), ms in 0_i64..4_102_444_800_000,
    ) {
        let source = Writer::new(&choices).write();
        let Some(expr) = parse_in_time(&source) else { return Ok(()) };
        let all = expr.evaluate(&values(&input, ms), &Limits::default());
        let some = expr.evaluate(&pruned(&expr, &input, ms), &Limits::default());
        prop_assert_eq!(&all, &some, "{} reads {:?}", source, expr.reads());
    }

    #[test]
    fn a_smaller_budget_gives_the_same_value_or_its_own_error(
        choices in vec(any::<u8>(), 0..120), input in input(), nodes in 0_u64..200, result_bytes in 0_usize..200,
    ) {
        let source = Writer::new(&choices).write();
        let Some(expr) = parse_in_time(&source) else { return Ok(()) };
        let values = values(&input, 0);
        let all = expr.evaluate(&values, &Limits::default());
        match expr.evaluate(&values, &Limits { nodes, result_bytes }) {
            Err(EvalError::Budget(n)) => prop_assert_eq!(n, nodes),
            Err(EvalError::TooLarge(n)) => prop_assert_eq!(n, result_bytes),
            other => {
                if let Ok(value) = &other {
                    prop_assert!(value.to_string().len() <= result_bytes, "{}: {}", source, value);
                }
                prop_assert_eq!(other, all, "{}", source);
            }
        }
    }

    #[test]
    fn every_json_value_passes_unchanged(value in json()) {
        let mut values = Values::new();
        values.set("v", value.clone());
        let passed = Template::parse(&json!("${{ v }}")).expect("a template").evaluate(&values, &Limits::default());
        prop_assert_eq!(passed, Ok(value.clone()));
        // A value without `${{` is its own template.
        let template = Template::parse(&value).expect("a template");
        prop_assert!(template.is_constant());
        prop_assert_eq!(template.evaluate(&Values::new(), &Limits::default()), Ok(value));
    }
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z{}é\"\\\\]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map("[a-z~/]{0,4}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
