//! How large a value is as JSON, without writing it.

use serde_json::Value;

/// Roughly the bytes of a value.
pub(crate) fn of(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(number) => number.as_str().len() as u64,
        Value::String(text) => text.len() as u64 + 2,
        Value::Array(items) => 2 + items.iter().map(|item| of(item) + 1).sum::<u64>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| name.len() as u64 + 4 + of(value)).sum::<u64>(),
    }
}
