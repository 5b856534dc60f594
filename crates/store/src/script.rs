//! The base of the generated calls: parsing of script replies.

use redis::Value;

use crate::{StoreError, router::Command};

/// A typed call of one script. Implemented by generated code only.
pub(crate) trait Script {
    /// The parsed reply.
    type Reply;
    /// The call as the router sends it.
    fn into_command(self) -> Command;
    /// Parses the reply.
    fn decode(reply: Value) -> Result<Self::Reply, StoreError>;
}

/// A reply's values, in order.
pub(crate) struct Replied(std::vec::IntoIter<Value>);

impl Replied {
    /// A single value comes alone, several come as an array.
    pub(crate) fn new(reply: Value, values: usize) -> Result<Replied, StoreError> {
        let list = match reply {
            single if values == 1 => vec![single],
            Value::Array(list) if list.len() == values => list,
            other => return Err(StoreError::Decode(format!("expected {values} values, got {other:?}"))),
        };
        Ok(Replied(list.into_iter()))
    }

    fn next(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, StoreError> {
        number(&self.next())
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        bytes(self.next())
    }

    pub(crate) fn list(&mut self) -> Result<Vec<Vec<u8>>, StoreError> {
        list(self.next())
    }
}

/// Parses an integer or its text.
pub(crate) fn number<N: std::str::FromStr + TryFrom<i64>>(value: &Value) -> Result<N, StoreError> {
    let wrong = || StoreError::Decode(format!("expected a number, got {value:?}"));
    match value {
        Value::Int(n) => N::try_from(*n).map_err(|_| wrong()),
        Value::BulkString(text) => std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// Parses a string of bytes.
pub(crate) fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        other => Err(StoreError::Decode(format!("expected bytes, got {other:?}"))),
    }
}

/// Parses an array of strings.
pub(crate) fn list(value: Value) -> Result<Vec<Vec<u8>>, StoreError> {
    match value {
        Value::Array(items) | Value::Set(items) => items.into_iter().map(bytes).collect(),
        Value::Nil => Ok(Vec::new()),
        other => Err(StoreError::Decode(format!("expected a list, got {other:?}"))),
    }
}

/// Parses a hash into a list: name, value, name, value.
pub(crate) fn flat(value: Value) -> Result<Vec<Vec<u8>>, StoreError> {
    match value {
        Value::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).map(bytes).collect(),
        other => list(other),
    }
}

/// The same from pairs, as scripts take it.
pub(crate) fn pairs<const N: usize>(fields: [(&str, Vec<u8>); N]) -> Vec<Vec<u8>> {
    fields.into_iter().flat_map(|(name, value)| [name.as_bytes().to_vec(), value]).collect()
}
