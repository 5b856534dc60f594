//! What a JSON Schema rules out, as a type.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Type;

/// Schemas that are nested more deeply say nothing.
const MAX_DEPTH: usize = 32;

/// The type of the values that a schema allows.
pub(super) fn read(schema: &Value) -> Type {
    within(schema, MAX_DEPTH)
}

fn within(schema: &Value, depth: usize) -> Type {
    let Some(words) = schema.as_object().filter(|_| depth > 0) else { return Type::Any };
    if let Some(one) = words.get("const") {
        return of_value(one);
    }
    if let Some(values) = words.get("enum").and_then(Value::as_array) {
        return values.iter().map(of_value).reduce(Type::joined).unwrap_or_default();
    }
    let ty = match words.get("type") {
        Some(Value::String(name)) => of_name(name),
        Some(Value::Array(names)) => {
            names.iter().map(|name| name.as_str().map_or(Type::Any, of_name)).reduce(Type::joined).unwrap_or_default()
        }
        // Words that speak of objects or lists only: the value is taken to be one.
        _ if words.contains_key("properties") => Type::open([]),
        _ if words.contains_key("items") => Type::list(Type::Any),
        _ => Type::Any,
    };
    match ty {
        Type::Object { .. } => {
            let known = words.get("properties").and_then(Value::as_object).into_iter().flatten();
            let fields: BTreeMap<_, _> =
                known.map(|(name, schema)| (name.clone(), within(schema, depth - 1))).collect();
            let closed = words.get("additionalProperties") == Some(&Value::Bool(false));
            Type::Object { fields, open: !closed || words.contains_key("patternProperties") }
        }
        Type::List(_) if words.contains_key("prefixItems") => Type::list(Type::Any),
        Type::List(_) => Type::list(words.get("items").map_or(Type::Any, |schema| within(schema, depth - 1))),
        other => other,
    }
}

fn of_name(name: &str) -> Type {
    match name {
        "null" => Type::Null,
        "boolean" => Type::Bool,
        "integer" => Type::Int,
        "number" => Type::Double,
        "string" => Type::String,
        "array" => Type::list(Type::Any),
        "object" => Type::open([]),
        _ => Type::Any,
    }
}

/// The type of one value, without its parts.
fn of_value(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Number(number) if number.is_i64() || number.is_u64() => Type::Int,
        Value::Number(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Array(_) => Type::list(Type::Any),
        Value::Object(_) => Type::open([]),
    }
}
