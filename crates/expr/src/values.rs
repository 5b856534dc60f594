//! What the names of an expression are worth.

use std::{collections::BTreeMap, sync::Arc};

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

/// The values of names. A path has at least one part, the name. What is set later replaces what was set before at the
/// same path and below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    names: BTreeMap<String, Held>,
}

/// What stands at a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Held {
    Json(Arc<Value>),
    /// Nanoseconds since 1970.
    Time(i128),
    Branch(BTreeMap<String, Held>),
    Absent(Absent),
}

impl Values {
    /// No values.
    pub fn new() -> Values {
        Values::default()
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
    pub fn set_shared(&mut self, path: &[&str], value: Arc<Value>) {
        self.put(path, Held::Json(value));
    }

    /// Gives a path a point in time (milliseconds since 1970), a timestamp for the expression.
    pub fn set_time(&mut self, path: &[&str], ms: i64) {
        self.put(path, Held::Time(i128::from(ms) * 1_000_000));
    }

    /// Says that a path has no value that can be read, and why.
    pub fn set_absent(&mut self, path: &[&str], why: Absent) {
        self.put(path, Held::Absent(why));
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Held> {
        self.names.get(name)
    }

    fn put(&mut self, path: &[&str], held: Held) {
        let Some((last, before)) = path.split_last() else { return };
        let mut at = &mut self.names;
        for part in before {
            let next = at.entry((*part).to_owned()).or_insert_with(|| Held::Branch(BTreeMap::new()));
            if !matches!(next, Held::Branch(_)) {
                *next = Held::Branch(opened(next));
            }
            let Held::Branch(fields) = next else { return };
            at = fields;
        }
        at.insert((*last).to_owned(), held);
    }
}

/// The fields of an object, so that one of them can be replaced. Anything else has none.
fn opened(held: &Held) -> BTreeMap<String, Held> {
    match held {
        Held::Json(value) => match &**value {
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), Held::Json(Arc::new(value.clone())))).collect()
            }
            _ => BTreeMap::new(),
        },
        _ => BTreeMap::new(),
    }
}
