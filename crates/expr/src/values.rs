//! What the names of an expression are worth.

use std::sync::Arc;

use serde_json::Value;

/// Why a path has no value that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// There is nothing: `has()` is false, and reading it is `expression_error`. The text says why.
    Missing(String),
    /// There is a value of which only a part is at hand: `has()` is true, and reading it is `result_truncated`. The
    /// text says why.
    Truncated(String),
}

/// The values of names. Paths have at least one part, the name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values;

impl Values {
    /// No values.
    pub fn new() -> Values {
        Values
    }

    /// Gives a name its value.
    pub fn set(&mut self, name: &str, value: Value) {
        self.set_at(&[name], value);
    }

    /// Gives a path its value, and leaves what stands beside it.
    pub fn set_at(&mut self, path: &[&str], value: Value) {
        self.set_shared(path, Arc::new(value));
    }

    /// As [`set_at`](Values::set_at), for a value that the caller keeps too.
    pub fn set_shared(&mut self, _path: &[&str], _value: Arc<Value>) {}

    /// Gives a path a point in time (milliseconds since 1970), a timestamp for the expression.
    pub fn set_time(&mut self, _path: &[&str], _ms: i64) {}

    /// Says that a path has no value that can be read, and why.
    pub fn set_absent(&mut self, _path: &[&str], _why: Absent) {}
}
