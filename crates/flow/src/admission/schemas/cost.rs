//! The maximum cost of checking against a schema: the number of its parts, where each reference counts as its target.
//!
//! Promises: every part is visited once, however many references lead to it. A sum that is too large, a circle, and a
//! reference that leads elsewhere are faults with a pointer. The cost may be too high, never too low.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{SchemaFault, pointer};

/// The most parts of a schema.
const MOST_PARTS: u64 = 8_000;
/// The longest chain of references.
const MOST_STEPS: usize = 16;
/// The cost of a pattern.
const PATTERN: u64 = 32;
/// The cost of comparing all items with each other.
const UNIQUE: u64 = 16;
/// The factor for `unevaluatedProperties` and `unevaluatedItems`: they check the rest of the schema once more.
const AGAIN: u64 = 3;

/// The cost of a schema, or what is wrong with it.
pub(super) fn of(schema: &Value) -> Result<u64, Vec<SchemaFault>> {
    let mut walk = Walk { root: schema, known: HashMap::new(), open: Vec::new(), wrong: Vec::new() };
    let cost = walk.within(schema, "", |walk| walk.schema(schema, ""));
    if walk.wrong.is_empty() && cost > MOST_PARTS {
        let words = format!("has {cost} parts, each reference counted as what it refers to; at most {MOST_PARTS}");
        walk.wrong.push(SchemaFault { pointer: String::new(), detail: words });
    }
    if walk.wrong.is_empty() { Ok(cost) } else { Err(walk.wrong) }
}

/// The number of values in a value, itself included. The parser has bounded its depth.
pub(super) fn parts(value: &Value) -> u64 {
    1 + match value {
        Value::Array(items) => items.iter().map(parts).sum::<u64>(),
        Value::Object(fields) => fields.values().map(parts).sum(),
        _ => 0,
    }
}

struct Walk<'a> {
    root: &'a Value,
    /// The cost of each visited part, by its address in memory: references to one part may be spelled in several
    /// ways.
    known: HashMap<*const Value, u64>,
    /// The chain of references up to the current part.
    open: Vec<*const Value>,
    wrong: Vec<SchemaFault>,
}

impl<'a> Walk<'a> {
    fn refuse(&mut self, at: &str, name: &str, words: impl Into<String>) -> u64 {
        self.wrong.push(SchemaFault { pointer: pointer(at, name), detail: words.into() });
        0
    }

    /// Visits the target of a reference, once.
    fn within(&mut self, target: &'a Value, at: &str, look: impl FnOnce(&mut Walk<'a>) -> u64) -> u64 {
        let place = std::ptr::from_ref(target);
        if let Some(cost) = self.known.get(&place) {
            return *cost;
        }
        if self.open.contains(&place) {
            return self.refuse(at, "$ref", "refers to itself: what that costs nobody can bound");
        }
        if self.open.len() > MOST_STEPS {
            return self.refuse(at, "$ref", format!("leads over more than {MOST_STEPS} references"));
        }
        self.open.push(place);
        let cost = look(self);
        self.open.pop();
        self.known.insert(place, cost);
        cost
    }

    fn schema(&mut self, schema: &'a Value, at: &str) -> u64 {
        let Value::Object(fields) = schema else { return 1 };
        let mut cost: u64 = 1;
        for (name, value) in fields {
            cost = cost.saturating_add(self.keyword(name, value, at));
        }
        if fields.contains_key("unevaluatedProperties") || fields.contains_key("unevaluatedItems") {
            cost = cost.saturating_mul(AGAIN);
        }
        cost
    }

    fn keyword(&mut self, name: &str, value: &'a Value, at: &str) -> u64 {
        match (name, value) {
            ("$ref", Value::String(target)) => self.reference(target, at),
            ("$dynamicRef" | "$recursiveRef", _) => self.refuse(at, name, "is not taken: refer by `$ref`"),
            ("$id" | "id", Value::String(_)) if !at.is_empty() => {
                self.refuse(at, name, "is not taken here: only the whole schema has an id")
            }
            // Definitions cost nothing here; they cost where a reference leads to them.
            ("$defs" | "definitions", Value::Object(fields)) => {
                self.each(fields, &pointer(at, name));
                0
            }
            ("patternProperties", Value::Object(fields)) => {
                self.each(fields, &pointer(at, name)).saturating_add(PATTERN * fields.len() as u64)
            }
            ("properties" | "dependentSchemas" | "dependencies", Value::Object(fields)) => {
                self.each(fields, &pointer(at, name))
            }
            ("enum" | "const", value) => parts(value),
            ("default" | "examples" | "title" | "description" | "$comment", _) => 0,
            ("pattern" | "format", _) => PATTERN,
            ("uniqueItems", _) => UNIQUE,
            (_, Value::Object(_)) => self.schema(value, &pointer(at, name)),
            (_, Value::Array(items)) => {
                let at = pointer(at, name);
                let cost = |(n, item): (usize, &'a Value)| self.schema(item, &pointer(&at, &n.to_string()));
                items.iter().enumerate().map(cost).fold(0, u64::saturating_add)
            }
            _ => 1,
        }
    }

    /// The cost of schemas by name. The names are not keywords.
    fn each(&mut self, fields: &'a Map<String, Value>, at: &str) -> u64 {
        fields.iter().map(|(name, value)| self.schema(value, &pointer(at, name))).fold(0, u64::saturating_add)
    }

    fn reference(&mut self, target: &str, at: &str) -> u64 {
        let local = target.strip_prefix('#').filter(|path| path.is_empty() || path.starts_with('/'));
        let Some(path) = local.filter(|path| !path.contains('%')) else {
            return self.refuse(at, "$ref", "must be a JSON pointer into this schema, like `#/$defs/name`");
        };
        let Some(found) = self.root.pointer(path) else {
            return self.refuse(at, "$ref", "refers to nothing in this schema");
        };
        let path = path.to_owned();
        self.within(found, at, move |walk| walk.schema(found, &path))
    }
}
