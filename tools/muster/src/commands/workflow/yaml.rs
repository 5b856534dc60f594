//! Writes a definition as YAML for people. What is written reads as the same value again: texts are bare only if no
//! reader can take them for something else.

use serde_json::{Map, Value};

/// Fields that stand first in their object; the others follow in the order that they have.
const FIRST: [&str; 6] = ["description", "input", "id", "needs", "when", "topic"];
/// Fields that stand last.
const LAST: [&str; 2] = ["steps", "output"];
/// A list or an object of this many characters or fewer stands on one line, if it holds no other one.
const SHORT: usize = 60;

/// A value as YAML that ends with a line break.
pub(super) fn text(value: &Value) -> String {
    let mut out = String::new();
    write(value, 0, &mut out);
    out
}

fn write(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(fields) if !on_one_line(value) => {
            for (n, (name, value)) in in_order(fields).enumerate() {
                // The first field stands behind the dash or at the beginning of the line.
                if n > 0 {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str(&bare_or_quoted(name));
                out.push(':');
                match on_one_line(value) {
                    true => {
                        out.push(' ');
                        write(value, indent, out);
                    }
                    false => {
                        out.push('\n');
                        out.push_str(&" ".repeat(indent + 2));
                        write(value, indent + 2, out);
                    }
                }
            }
        }
        Value::Array(items) if !on_one_line(value) => {
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str("- ");
                write(item, indent + 2, out);
            }
        }
        short => {
            flow(short, out);
            out.push('\n');
        }
    }
}

/// The fields, those in [`FIRST`] before the others and those in [`LAST`] behind them.
fn in_order(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let named = |names: &'static [&str]| names.iter().filter_map(|name| fields.get_key_value(*name));
    let others = fields.iter().filter(|(name, _)| !FIRST.contains(&name.as_str()) && !LAST.contains(&name.as_str()));
    named(&FIRST).chain(others).chain(named(&LAST))
}

fn on_one_line(value: &Value) -> bool {
    let leaf = |value: &Value| !(value.is_array() || value.is_object());
    let leaves = match value {
        Value::Array(items) => items.iter().all(leaf),
        Value::Object(fields) => fields.values().all(leaf),
        _ => return true,
    };
    let mut text = String::new();
    leaves && {
        flow(value, &mut text);
        text.chars().count() <= SHORT
    }
}

fn flow(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            out.push('{');
            for (n, (name, value)) in in_order(fields).enumerate() {
                out.push_str(if n > 0 { ", " } else { "" });
                out.push_str(&bare_or_quoted(name));
                out.push_str(": ");
                flow(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                out.push_str(if n > 0 { ", " } else { "" });
                flow(item, out);
            }
            out.push(']');
        }
        Value::String(text) => out.push_str(&bare_or_quoted(text)),
        other => out.push_str(&other.to_string()),
    }
}

/// A text without quotes if it is plainly a text: words of letters, digits and a few signs.
fn bare_or_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '(' | ')');
    let words = text.split(' ').all(|word| !word.is_empty() && word.chars().all(plain));
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    // Other readers of YAML take these for something else.
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    if begins && words && !reserved.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use muster_engine::definition::{Definition, Format, read_named};
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Definition {
        read_named(text.as_bytes(), Format::Yaml, None).unwrap_or_else(|faults| panic!("{faults:?} in\n{text}"))
    }

    #[test]
    fn what_is_written_reads_as_the_same_definition() {
        let source = r#"
description: "an order: from stock to payment"
input: {type: object, required: [lines], properties: {lines: {type: array}, "on": {type: string}, "1": {}}}
steps:
  - id: reserve
    for_each: {items: input.lines, as: line, max_parallel: 20}
    job: {topic: stock.reserve, payload: {sku: "${{ line.sku }}", "odd key: #": "- x", n: 1.50, deep: [[1], [], {}]}}
    compensate: {job: {topic: stock.release, payload: ["yes", "no", "~", "null", "12", "", " a", "a ", "tab\there"]}}
  - id: wait
    needs: [reserve]
    parallel: {branches: {left: [{id: cool, delay: {ms: 5}}], right: [{id: paid, wait_signal: {name: paid}}]}}
  - id: value
    set: "a longer text with a quote \" and\nanother line, so long that it does not fit on one line of a flow"
output: {value: "${{ steps.value.result }}"}
"#;
        let definition = read(source);
        let written = text(&serde_json::from_str(&definition.canonical()).unwrap());
        assert_eq!(read(&written).canonical(), definition.canonical(), "{written}");
        assert!(written.starts_with("description: \"an order: from stock to payment\"\ninput:\n"), "{written}");
        assert!(written.contains("\n  - id: reserve\n    compensate:\n"), "{written}");
        assert!(written.contains("\n    needs: [reserve]\n"), "{written}");
        assert!(written.ends_with("\noutput: {value: \"${{ steps.value.result }}\"}\n"), "{written}");
    }

    #[test]
    fn texts_are_bare_only_if_nobody_can_mistake_them() {
        let value = json!({"a": "plain words", "b": "On", "c": "1.5", "d": "x: y", "e": "a#b", "f": "", "g": "é"});
        let bare = text(&value);
        assert_eq!(bare, "a: plain words\nb: \"On\"\nc: \"1.5\"\nd: \"x: y\"\ne: \"a#b\"\nf: \"\"\ng: \"é\"\n");
        assert_eq!(text(&json!([])), "[]\n");
        assert_eq!(text(&json!({"x": []})), "x: []\n");
    }
}
