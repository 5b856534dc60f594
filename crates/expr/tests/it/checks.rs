//! What is refused before an expression runs.

use muster_expr::{Expr, Names, Type};
use serde_json::json;

use crate::fixture::{faults, names};

/// Each source has exactly this fault at this line and column.
fn refused(rows: &[(&str, u32, u32, &str)]) {
    for (source, line, column, message) in rows {
        let found = faults(source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        assert_eq!((found[0].line, found[0].column), (*line, *column), "{source}: {}", found[0]);
        assert!(found[0].message.contains(message), "{source}: {}", found[0]);
    }
}

#[test]
fn faults_of_syntax_have_a_place() {
    refused(&[
        ("", 1, 1, "empty"),
        (" \n ", 1, 1, "empty"),
        ("1 +", 1, 4, "the end"),
        ("1 2", 1, 3, "found '2'"),
        ("(1", 1, 3, "expected ')'"),
        ("input.\n  order)", 2, 8, "found ')'"),
        ("a && && b", 1, 6, "unexpected token"),
        ("a = b", 1, 3, "found '='"),
        ("'abc", 1, 1, "unterminated string"),
        ("é", 1, 1, "unexpected character"),
        ("'é' + #", 1, 7, "unexpected character"),
        ("a & b", 1, 3, "&&"),
        ("99999999999999999999", 1, 1, "invalid int"),
        ("1e999", 1, 1, "invalid double"),
        (r"'\q'", 1, 1, "unescape"),
        ("if", 1, 1, "reserved"),
        ("Foo{a: 1}", 1, 1, "messages such as `Foo`"),
        ("[1].map(1, 2)", 1, 9, "simple name"),
        ("[1].map(.x, 2)", 1, 5, "simple name"),
        ("has(1)", 1, 5, "has()"),
        ("a.?b", 1, 2, "unsupported"),
        ("'x'.matches('(')", 1, 13, "regular expression"),
    ]);
}

#[test]
fn unknown_names_fields_and_functions_are_found_with_their_place() {
    refused(&[
        ("inptu.order", 1, 1, "did you mean `input`?"),
        ("1 + whatever", 1, 5, "known are input, now, steps"),
        ("true &&\n   input.odrer == 'a'", 2, 10, "did you mean `order`?"),
        ("input . nope", 1, 9, "input has no field `nope`"),
        ("input['odrer']", 1, 7, "did you mean `order`?"),
        ("has(input.nope)", 1, 5, "no field `nope`"),
        ("steps.charge.reslut", 1, 14, "did you mean `result`?"),
        ("steps.other.state", 1, 7, "steps has no field `other`"),
        ("input.lines[0].nope", 1, 16, "no field `nope`"),
        ("input.lines.all(l, l.nope > 1)", 1, 22, "l has no field `nope`"),
        ("{'a': 1}.b", 1, 10, "no field `b`"),
        ("input.order.x", 1, 13, "type string and has no fields"),
        ("lenght(input.order)", 1, 1, "the function lenght() is not known"),
        ("input.order.startswith('a')", 1, 13, "did you mean `startsWith`?"),
        ("contains('a', 'b')", 1, 1, "write x.contains(…)"),
        ("input.order.string()", 1, 13, "write string(…)"),
        ("[1].maap(1, 2)", 1, 5, "did you mean `map`?"),
        ("[1].map(x)", 1, 5, "list.map(x, value) or list.map(x, condition, value)"),
        ("has(input.n, input.n)", 1, 1, "has(x.field)"),
    ]);
}

#[test]
fn wrong_arguments_are_found() {
    refused(&[
        ("size()", 1, 1, "takes 1 arguments, and not 0"),
        ("'a'.contains()", 1, 5, "takes 1 arguments, and not 0"),
        ("'a'.replace('b')", 1, 5, "takes 2 to 3 arguments, and not 1"),
        ("min()", 1, 1, "at least 1"),
        ("max(1, [2])", 1, 8, "max() takes a number here, and not list"),
        ("size(1)", 1, 6, "a string, bytes, a list or a map here, and not int"),
        ("input.n.contains('a')", 1, 7, "contains() takes a string here, and not int"),
        ("input.when.getHours()", 1, 7, "write timestamp(…)"),
        ("input.order.matches(input.order)", 1, 27, "must be a string literal"),
        ("now.getHours('Europe/Berlni')", 1, 14, "time zone"),
        ("timestamp('yesterday')", 1, 11, "RFC 3339"),
        ("duration('1 day')", 1, 10, "1h30m"),
        ("duration('1h').getFullYear()", 1, 1, "a timestamp"),
    ]);
}

#[test]
fn wrong_types_are_found() {
    refused(&[
        ("input.order + 1", 1, 13, "`+` does not take string and int"),
        ("input.order == 1", 1, 13, "`==` does not take string and int"),
        ("input.order < 1", 1, 13, "`<` does not take string and int"),
        ("input.lines < input.lines", 1, 13, "`<` does not take list and list"),
        ("now > '2026-01-01T00:00:00Z'", 1, 5, "timestamp and string"),
        ("input.total % 2", 1, 13, "`%` does not take double"),
        ("!input.n", 1, 8, "`!` takes a bool"),
        ("input.n && true", 1, 7, "`&&` takes a bool"),
        ("input.n ? 1 : 2", 1, 7, "the condition"),
        ("input.n.all(x, true)", 1, 7, "goes through a list or a map"),
        ("input.lines.filter(l, l.n)", 1, 25, "the condition of a macro"),
        ("input.lines['a']", 1, 13, "the index of a list"),
        ("1 in input.tags", 1, 3, "`in` does not take int and list"),
        ("1 in 'abc'", 1, 3, "`in` does not take int and string"),
        ("-input.order", 1, 1, "`-` takes a number"),
        ("{[1]: 2}", 1, 2, "the key of a map"),
        ("{'a': 1, 'a': 2}", 1, 10, "twice"),
    ]);
}

#[test]
fn every_fault_is_told_once_and_in_order() {
    let found = faults("nope1 == 1 &&\n input.nope2 == 2 &&\n nope3(4)");
    let places: Vec<_> = found.iter().map(|fault| (fault.line, fault.column)).collect();
    assert_eq!(places, [(1, 1), (2, 8), (3, 2)], "{found:?}");
}

#[test]
fn what_is_not_known_is_not_refused() {
    let names = Names::new().with("a", Type::Any).with("o", Type::open([("n", Type::Int)]));
    for source in ["a.b.c[1].d > 2 && a.x.contains('y')", "o.other.more == 1", "a.map(x, x.y).filter(z, z)", "a + a"] {
        let expr = Expr::parse(source).expect(source);
        assert_eq!(expr.check(&names).err(), None, "{source}");
    }
}

#[test]
fn the_type_of_an_expression_is_known() {
    for (source, ty) in [
        ("1 + 1", Type::Int),
        ("1 + 1.0", Type::Double),
        ("1u + 1u", Type::Uint),
        ("input.order + 'x'", Type::String),
        ("input.lines.map(l, l.sku)", Type::list(Type::String)),
        ("input.lines.filter(l, l.n > 1)[0].sku", Type::String),
        ("now - now", Type::Duration),
        ("now + duration('1s')", Type::Timestamp),
        ("true ? 1 : 'a'", Type::Any),
        ("size(input.tags) > 1", Type::Bool),
        ("'a'.split(',')", Type::list(Type::String)),
        ("max(1, 2)", Type::Int),
        ("steps.charge.result.whatever", Type::Any),
    ] {
        assert_eq!(Expr::parse(source).expect(source).check(&names()), Ok(ty), "{source}");
    }
    let expr = Expr::parse("input.order").expect("an expression");
    assert_eq!(expr.check_as(&names(), &Type::String), Ok(()));
    let found = expr.check_as(&names(), &Type::Bool).expect_err("a string");
    assert!(found[0].message.contains("must be of type bool, and is of type string"), "{found:?}");
}

#[test]
fn a_schema_rules_out_what_it_says_and_nothing_else() {
    for (schema, ty) in [
        (json!(true), Type::Any),
        (json!({}), Type::Any),
        (json!({"type": "integer"}), Type::Int),
        (json!({"type": "number"}), Type::Double),
        (json!({"type": ["integer", "number"]}), Type::Double),
        (json!({"type": ["string", "null"]}), Type::Any),
        (json!({"enum": ["a", "b"]}), Type::String),
        (json!({"enum": ["a", 1]}), Type::Any),
        (json!({"const": 1}), Type::Int),
        (json!({"type": "array", "items": {"type": "string"}}), Type::list(Type::String)),
        (json!({"type": "array"}), Type::list(Type::Any)),
        (json!({"oneOf": [{"type": "string"}]}), Type::Any),
        (json!({"$ref": "#/$defs/a"}), Type::Any),
        (json!({"type": "object", "properties": {"a": {"type": "boolean"}}}), Type::open([("a", Type::Bool)])),
        (json!({"properties": {"a": {}}, "additionalProperties": false}), Type::closed([("a", Type::Any)])),
        (
            json!({"type": "object", "properties": {}, "patternProperties": {"^x": {}}, "additionalProperties": false}),
            Type::open([]),
        ),
        (json!({"type": "object", "additionalProperties": {"type": "string"}}), Type::open([])),
    ] {
        assert_eq!(Type::from_schema(&schema), ty, "{schema}");
    }
    let mut deep = json!({"type": "string"});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    assert!(matches!(Type::from_schema(&deep), Type::List(_)));
}
