//! Operators, macros and functions.

use serde_json::json;

use crate::fixture::{failing, table};

#[test]
fn operators_and_literals() {
    table(&[
        ("1 + 2 * 3 - 4", json!(3)),
        ("(1 + 2) * 3", json!(9)),
        ("7 / 2", json!(3)),
        ("-7 / 2", json!(-3)),
        ("-7 % 3", json!(-1)),
        ("7.0 / 2.0", json!(3.5)),
        ("1.5 + 1", json!(2.5)),
        ("0x1F + 1", json!(32)),
        ("2u * 3u", json!(6)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("18446744073709551615u", json!(u64::MAX)),
        ("--1", json!(1)),
        ("!true || !!true", json!(true)),
        ("'a' + \"b\" + '''c'''", json!("abc")),
        (r"'\n\t\x41\u00e9\''", json!("\n\tA\u{e9}'")),
        (r"r'\d+'", json!("\\d+")),
        ("b'abc'", json!("YWJj")),
        ("[1, 2] + [3]", json!([1, 2, 3])),
        ("{'a': 1, 'b': [true, null]}", json!({"a": 1, "b": [true, null]})),
        ("{1: 'one', true: 'yes'}", json!({"1": "one", "true": "yes"})),
        ("1 < 2 ? 'yes' : 'no'", json!("yes")),
        ("false ? 1 : true ? 2 : 3", json!(2)),
        ("2 in [1, 2] && 'k' in input.map && !('z' in input.map)", json!(true)),
        ("'abc' < 'abd' && b'a' < b'b' && false < true", json!(true)),
        ("null == null && input.none == null && input.order != null", json!(true)),
        ("[1, {'a': [2.0]}] == [1.0, {'a': [2]}]", json!(true)),
        ("input.map == {'dotted.key': 2, 'k': 1}", json!(true)),
        ("// a comment\n 1 // another", json!(1)),
    ]);
}

#[test]
fn fields_and_indexes() {
    table(&[
        ("input.order", json!("A-1")),
        ("input['order']", json!("A-1")),
        ("input.lines[1].sku", json!("b")),
        ("input.lines[size(input.lines) - 1]['n']", json!(3)),
        ("input.lines[1.0].sku", json!("b")),
        ("input.map.`dotted.key`", json!(2)),
        (".input.n", json!(7)),
        ("{'a': {'b': 5}}.a.b", json!(5)),
        ("[[1], [2]][1][0]", json!(2)),
        ("has(input.order) && !has(input.map.zzz)", json!(true)),
        ("has(input.none)", json!(true)),
        ("steps.charge.result.id + '/' + steps['charge'].state", json!("ch_1/succeeded")),
    ]);
    failing(&[
        ("input.map.zzz", "expression_error", "input.map.zzz has no value"),
        ("input.lines[3]", "expression_error", "has 3 elements and no index 3"),
        ("input.lines[-1]", "expression_error", "no index -1"),
        ("input.none.x", "expression_error", "null"),
        ("input.order.x", "expression_error", "a string has no fields"),
        ("input[null]", "expression_error", "a null is no key"),
        ("nobody", "expression_error", "nobody has no value: there is no such name"),
        ("{'a': 1, 'a': 2}", "expression_error", "twice"),
    ]);
}

#[test]
fn macros() {
    table(&[
        ("input.lines.all(l, l.n > 0)", json!(true)),
        ("input.lines.exists(l, l.sku == 'b')", json!(true)),
        ("input.lines.exists_one(l, l.n > 1)", json!(false)),
        ("input.lines.existsOne(l, l.n > 2)", json!(true)),
        ("input.lines.map(l, l.sku)", json!(["a", "b", "c"])),
        ("input.lines.map(l, l.n > 1, l.sku)", json!(["b", "c"])),
        ("input.lines.filter(l, l.n != 2).map(l, l.n)", json!([1, 3])),
        ("input.map.map(k, k)", json!(["dotted.key", "k"])),
        ("[[1, 2], [3]].map(l, l.map(n, n * 2))", json!([[2, 4], [6]])),
        // The inner variable hides the outer one and the name.
        ("[[1], [2]].map(x, x.map(x, x + 1))", json!([[2], [3]])),
        ("[1].map(input, input)", json!([1])),
        ("[1].map(input, .input.n)", json!([7])),
        ("[].all(x, x) && ![].exists(x, x)", json!(true)),
    ]);
    failing(&[
        ("[1].map(x, x.y)", "expression_error", "x.y: a int has no fields"),
        ("input.order.map(x, x)", "expression_error", "goes through a list or a map"),
        ("[1].filter(x, x)", "expression_error", "must be a bool"),
    ]);
}

#[test]
fn a_fault_counts_only_if_nothing_else_decides() {
    table(&[
        ("input.map.zzz == 1 || true", json!(true)),
        ("true || input.map.zzz == 1", json!(true)),
        ("input.map.zzz == 1 && false", json!(false)),
        ("[0, 1].exists(n, 1 / n == 1)", json!(true)),
        ("[0, 2].all(n, 4 / n == 1)", json!(false)),
        ("true ? 1 : 1 / 0", json!(1)),
    ]);
    failing(&[
        ("input.map.zzz == 1 || false", "expression_error", "zzz"),
        ("false || input.map.zzz == 1", "expression_error", "zzz"),
        ("[0, 1].exists(n, 1 / n == 2)", "expression_error", "division by zero"),
        ("1 && true", "expression_error", "`&&` must be a bool"),
    ]);
}

#[test]
fn functions_of_text() {
    table(&[
        ("size('héé') + 'abc'.size() + size(b'ab') + size([1]) + size({'a': 1})", json!(10)),
        ("'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')", json!(true)),
        ("'ab12'.matches('^[a-z]+[0-9]+$') && matches('x', 'x')", json!(true)),
        ("'Ab'.lowerAscii() + 'Ab'.upperAscii() + '  x '.trim()", json!("abABx")),
        ("'a,b,c'.split(',')", json!(["a", "b", "c"])),
        ("'a,b,c'.split(',', 2)", json!(["a", "b,c"])),
        ("'héj'.split('')", json!(["h", "é", "j"])),
        ("['a', 'b'].join('-') + ['c', 'd'].join()", json!("a-bcd")),
        ("'aXbX'.replace('X', '..') + 'aXbX'.replace('X', 'y', 1)", json!("a..b..aybX")),
        ("'héllo'.substring(1, 3) + 'héllo'.substring(4)", json!("élo")),
        ("'héllo'.indexOf('l') + 'x'.indexOf('y')", json!(1)),
    ]);
    failing(&[
        ("'abc'.substring(2, 1)", "expression_error", "beyond the string"),
        ("'abc'.substring(-1)", "expression_error", "beyond the string"),
        ("input.n.contains('7')", "expression_error", "contains() does not take int, string"),
    ]);
}

#[test]
fn conversions() {
    table(&[
        ("string(1) + string(2.5) + string(true) + string(3u) + string(b'x') + string(2.0)", json!("12.5true3x2")),
        ("int('42') + int(2.9) + int(-2.9) + int(5u)", json!(47)),
        ("uint(3) + uint('4')", json!(7)),
        ("double('2.5') + double(1)", json!(3.5)),
        ("bool('true') && !bool('false') && bool(true)", json!(true)),
        ("bytes('ab') == b'ab'", json!(true)),
        ("int(timestamp('1970-01-01T00:01:00Z'))", json!(60)),
        ("string(timestamp(90)) + ' ' + string(duration('90m'))", json!("1970-01-01T00:01:30Z 5400s")),
        ("dyn(input.n) + 1", json!(8)),
        ("min(3, 1, 2) + max([4, 9, 5])", json!(10)),
        ("max(1, 2.5)", json!(2.5)),
    ]);
    failing(&[
        ("int('4x')", "expression_error", "\"4x\" is no int"),
        ("uint(-1)", "expression_error", "does not fit uint"),
        ("int(1e30)", "expression_error", "does not fit int"),
        ("bool('yes')", "expression_error", "is no bool"),
        ("max([])", "expression_error", "max() of nothing"),
        ("string([1])", "expression_error", "string() does not take list"),
    ]);
}

#[test]
fn times() {
    table(&[
        ("now", json!("2026-03-01T22:15:30.250Z")),
        ("now > timestamp('2026-03-01T22:15:30Z')", json!(true)),
        ("timestamp('2026-03-02T00:00:00+02:00') - timestamp('2026-03-01T21:00:00Z')", json!("3600s")),
        ("timestamp(input.when) + duration('1h30m')", json!("2026-03-01T12:00:00Z")),
        ("now - duration('0.25s')", json!("2026-03-01T22:15:30Z")),
        ("duration('1h') + duration('-30m') == duration('1800s')", json!(true)),
        ("duration('1.5s') < duration('2000ms') && -duration('1s') == duration('-1s')", json!(true)),
        ("now.getFullYear() * 10000 + (now.getMonth() + 1) * 100 + now.getDate()", json!(20_260_301)),
        ("[now.getHours(), now.getMinutes(), now.getSeconds(), now.getMilliseconds()]", json!([22, 15, 30, 250])),
        ("[now.getDayOfWeek(), now.getDayOfYear(), now.getDayOfMonth()]", json!([0, 59, 0])),
        ("[now.getHours('Europe/Berlin'), now.getHours('+05:30'), now.getHours('-02:00')]", json!([23, 3, 20])),
        ("timestamp('2026-07-01T22:00:00Z').getHours('Europe/Berlin')", json!(0)),
        (
            "[duration('90m').getHours(), duration('90m').getMinutes(), duration('1250ms').getMilliseconds()]",
            json!([1, 90, 250]),
        ),
    ]);
    failing(&[
        ("timestamp(input.order)", "expression_error", "is no timestamp"),
        ("duration(input.order)", "expression_error", "is no duration"),
        ("now.getHours(input.order)", "expression_error", "time zone"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h')", "expression_error", "years 1 to 9999"),
        ("timestamp(9223372036854775807)", "expression_error", "years 1 to 9999"),
        ("duration('9000000000000h')", "expression_error", "is no duration"),
    ]);
}
