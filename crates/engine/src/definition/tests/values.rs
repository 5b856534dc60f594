//! Values of YAML and JSON as they arrive in a definition.

use serde_json::{Value, json};

use super::super::*;
use super::told;

fn set(text: &str, format: Format) -> Result<Value, Vec<DefinitionFault>> {
    let text = match format {
        Format::Json => format!(r#"{{"steps":[{{"id":"a","set":{text}}}]}}"#),
        _ => format!("steps:\n  - id: a\n    set: {text}\n"),
    };
    read(text.as_bytes(), format).map(|read| match &read.steps.steps[0].kind {
        Kind::Set(template) => template.value().clone(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn yaml_has_few_surprises() {
    for (text, value) in [
        ("on", json!("on")),
        ("off", json!("off")),
        ("yes", json!("yes")),
        ("no", json!("no")),
        ("Yes", json!("Yes")),
        ("true", json!(true)),
        ("False", json!(false)),
        ("~", json!(null)),
        ("", json!(null)),
        ("\"null\"", json!("null")),
        ("12", json!(12)),
        ("+12", json!(12)),
        ("-12", json!(-12)),
        ("0x1F", json!(31)),
        ("0o17", json!(15)),
        ("12:30:00", json!("12:30:00")),
        ("1_000", json!("1_000")),
        ("2027-01-31", json!("2027-01-31")),
        ("1.2.3", json!("1.2.3")),
        (".5", serde_json::from_str("0.5").unwrap()),
        ("5.", serde_json::from_str("5.0").unwrap()),
        ("!!str 12", json!("12")),
        ("!!int 12", json!(12)),
        ("'it''s'", json!("it's")),
        ("\"a\\u00e4\\n\"", json!("aä\n")),
        ("|\n      a\n      b", json!("a\nb\n")),
        (">-\n      a\n      b", json!("a b")),
        ("[1, {on: no}]", json!([1, {"on": "no"}])),
        ("&x {a: [1]}", json!({"a": [1]})),
        ("[&x {a: 1}, *x, *x]", json!([{"a": 1}, {"a": 1}, {"a": 1}])),
    ] {
        let read = set(text, Format::Yaml).unwrap_or_else(|faults| panic!("{text}: {}", told(&faults)));
        assert_eq!(read.to_string(), value.to_string(), "{text}");
    }
}

#[test]
fn numbers_keep_their_digits() {
    for digits in ["1", "1.0", "1.50", "1e400", "123456789012345678901234567890", "-0", "0.1e-7", "9007199254740993"] {
        for format in [Format::Json, Format::Yaml] {
            let read = set(digits, format).unwrap_or_else(|faults| panic!("{digits}: {}", told(&faults)));
            assert_eq!(read.to_string(), digits);
        }
    }
}

#[test]
fn strings_of_json_are_read_with_all_escapes() {
    let read = set(r#""\ud83d\ude00\u00e4\"\\\/\n ä""#, Format::Json).unwrap();
    assert_eq!(read, json!("😀ä\"\\/\n ä"));
}

#[test]
fn numbers_that_could_be_meant_otherwise_are_refused() {
    for text in ["007", "0123.5", ".inf", "-.INF", ".nan"] {
        assert_eq!(set(text, Format::Yaml).unwrap_err()[0].code, "bad_number", "{text}");
    }
}
