//! A value while an expression runs. What comes from the caller is only referred to.

use std::{collections::BTreeMap, fmt, ops::Deref, rc::Rc};

use serde_json::Value;

use super::{number::Num, time};
use crate::{
    EvalError,
    values::{Absent, Held},
};

type Result<T> = std::result::Result<T, EvalError>;

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Item<'a> {
    Null,
    Bool(bool),
    Num(Num<'a>),
    Text(Text<'a>),
    Bytes(Rc<[u8]>),
    /// Nanoseconds since 1970.
    Time(i128),
    /// Nanoseconds.
    Span(i128),
    List(List<'a>),
    Map(Map<'a>),
}

/// A list: of the caller, or made by the expression.
#[derive(Clone, Debug)]
pub(crate) enum List<'a> {
    Json(&'a [Value]),
    Made(Rc<Vec<Item<'a>>>),
}

/// A map: of the caller, or made by the expression.
#[derive(Clone, Debug)]
pub(crate) enum Map<'a> {
    Json(&'a serde_json::Map<String, Value>),
    Branch(&'a BTreeMap<String, Held>),
    Made(Rc<BTreeMap<Key<'a>, Item<'a>>>),
}

/// Text.
#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Read(&'a str),
    Made(Rc<str>),
}

/// The key of a map. An int, a uint and a double of the same value are the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key<'a> {
    Bool(bool),
    Whole(i128),
    Text(Text<'a>),
}

impl<'a> Item<'a> {
    pub(crate) fn json(value: &'a Value) -> Result<Item<'a>> {
        Ok(match value {
            Value::Null => Item::Null,
            Value::Bool(b) => Item::Bool(*b),
            Value::Number(number) => Item::Num(Num::read(number)?),
            Value::String(text) => Item::Text(Text::Read(text)),
            Value::Array(list) => Item::List(List::Json(list)),
            Value::Object(fields) => Item::Map(Map::Json(fields)),
        })
    }

    /// What stands at a path. `path` is told only if there is nothing to read.
    pub(crate) fn held(held: &'a Held, path: impl FnOnce() -> String) -> Result<Item<'a>> {
        match held {
            Held::Json(value) => Item::json(value),
            Held::Time(nanos) => time::time(*nanos).map(Item::Time),
            Held::Branch(fields) => Ok(Item::Map(Map::Branch(fields))),
            Held::Absent(Absent::Missing(why)) => Err(EvalError::Missing { path: path(), why: why.clone() }),
            Held::Absent(Absent::Truncated(why)) => Err(EvalError::Truncated { path: path(), why: why.clone() }),
        }
    }

    pub(crate) fn int(n: i64) -> Item<'a> {
        Item::Num(Num::Int(n))
    }

    /// The length of something, which fits an int.
    pub(crate) fn count(n: usize) -> Item<'a> {
        Item::int(i64::try_from(n).unwrap_or(i64::MAX))
    }

    pub(crate) fn text(text: impl Into<Rc<str>>) -> Item<'a> {
        Item::Text(Text::Made(text.into()))
    }

    pub(crate) fn list(items: Vec<Item<'a>>) -> Item<'a> {
        Item::List(List::Made(Rc::new(items)))
    }

    /// A point in time: a timestamp, or text of RFC 3339, since JSON has no timestamps.
    pub(crate) fn as_time(&self) -> Option<i128> {
        match self {
            Item::Time(nanos) => Some(*nanos),
            Item::Text(text) => time::read_time(text),
            _ => None,
        }
    }

    /// What a message calls a value of this kind.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Item::Null => "null",
            Item::Bool(_) => "bool",
            Item::Num(n) => n.type_name(),
            Item::Text(_) => "string",
            Item::Bytes(_) => "bytes",
            Item::Time(_) => "timestamp",
            Item::Span(_) => "duration",
            Item::List(_) => "list",
            Item::Map(_) => "map",
        }
    }

    /// This value as the key of a map.
    pub(crate) fn key(&self) -> Option<Key<'a>> {
        match self {
            Item::Bool(b) => Some(Key::Bool(*b)),
            Item::Num(n) => n.whole().map(Key::Whole),
            Item::Text(text) => Some(Key::Text(text.clone())),
            _ => None,
        }
    }
}

impl<'a> List<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            List::Json(list) => list.len(),
            List::Made(list) => list.len(),
        }
    }

    pub(crate) fn get(&self, n: usize) -> Option<Result<Item<'a>>> {
        match self {
            List::Json(list) => list.get(n).map(Item::json),
            List::Made(list) => list.get(n).cloned().map(Ok),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Item<'a>>> {
        (0..self.len()).filter_map(|n| self.get(n))
    }
}

impl<'a> Map<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Map::Json(fields) => fields.len(),
            Map::Branch(fields) => fields.values().filter(|held| is_there(held)).count(),
            Map::Made(map) => map.len(),
        }
    }

    /// The value of a key. `path` is told only if there is nothing to read at that key.
    pub(crate) fn get(&self, key: &Key<'a>, path: impl FnOnce() -> String) -> Option<Result<Item<'a>>> {
        match (self, key) {
            (Map::Json(fields), Key::Text(key)) => fields.get(&**key).map(Item::json),
            (Map::Branch(fields), Key::Text(key)) => fields.get(&**key).map(|held| Item::held(held, path)),
            (Map::Made(map), key) => map.get(key).cloned().map(Ok),
            _ => None,
        }
    }

    /// Whether there is a value at a key, also one that is truncated.
    pub(crate) fn has(&self, key: &Key<'a>) -> bool {
        match (self, key) {
            (Map::Json(fields), Key::Text(key)) => fields.contains_key(&**key),
            (Map::Branch(fields), Key::Text(key)) => fields.get(&**key).is_some_and(is_there),
            (Map::Made(map), key) => map.contains_key(key),
            _ => false,
        }
    }

    pub(crate) fn keys(&self) -> Vec<Key<'a>> {
        let read = |name: &'a String| Key::Text(Text::Read(name));
        match self {
            Map::Json(fields) => fields.keys().map(read).collect(),
            Map::Branch(fields) => {
                fields.iter().filter(|(_, held)| is_there(held)).map(|(name, _)| read(name)).collect()
            }
            Map::Made(map) => map.keys().cloned().collect(),
        }
    }
}

fn is_there(held: &Held) -> bool {
    !matches!(held, Held::Absent(Absent::Missing(_)))
}

impl<'a> Key<'a> {
    pub(crate) fn item(&self) -> Item<'a> {
        match self {
            Key::Bool(b) => Item::Bool(*b),
            Key::Whole(n) => Item::Num(match (i64::try_from(*n), u64::try_from(*n)) {
                (Ok(n), _) => Num::Int(n),
                (_, Ok(n)) => Num::Uint(n),
                _ => Num::Double(*n as f64, None),
            }),
            Key::Text(text) => Item::Text(text.clone()),
        }
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Bool(b) => b.fmt(f),
            Key::Whole(n) => n.fmt(f),
            Key::Text(text) => f.write_str(text),
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Read(text) => text,
            Text::Made(text) => text,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl PartialOrd for Text<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}
