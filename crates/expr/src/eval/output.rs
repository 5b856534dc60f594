//! From a value to JSON and to text, within the largest result.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{
    budget::Budget,
    item::{Item, List, Map},
    time,
};
use crate::{
    EvalError,
    values::{Absent, Held},
};

type Result<T> = std::result::Result<T, EvalError>;

/// A value as JSON.
pub(crate) fn json(item: &Item, budget: &Budget) -> Result<Value> {
    Writer { left: budget.bytes(), limit: budget.bytes() }.item(item)
}

/// A value as text: text itself, scalars as `string()` writes them, the rest as JSON.
pub(crate) fn text(item: &Item, budget: &Budget) -> Result<String> {
    let text = match scalar(item) {
        Some(text) => text?,
        None => json(item, budget)?.to_string(),
    };
    budget.fits(text.len())?;
    Ok(text)
}

/// A scalar as text. `None` for null, lists and maps.
pub(crate) fn scalar(item: &Item) -> Option<Result<String>> {
    Some(Ok(match item {
        Item::Bool(b) => b.to_string(),
        Item::Num(n) => n.told(),
        Item::Text(text) => (**text).to_owned(),
        Item::Bytes(bytes) => match String::from_utf8(bytes.to_vec()) {
            Ok(text) => text,
            Err(_) => return Some(Err(EvalError::Value("the bytes are not UTF-8".to_owned()))),
        },
        Item::Time(nanos) => time::write_time(*nanos),
        Item::Span(nanos) => time::write_span(*nanos),
        Item::Null | Item::List(_) | Item::Map(_) => return None,
    }))
}

/// Copies values, and counts the bytes of their JSON.
struct Writer {
    left: usize,
    limit: usize,
}

impl Writer {
    fn take(&mut self, bytes: usize) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or(EvalError::TooLarge(self.limit))?;
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<Value> {
        Ok(match item {
            Item::Null => self.copy(&Value::Null)?,
            Item::Bool(b) => self.copy(&Value::Bool(*b))?,
            Item::Num(n) => {
                let number = n.json()?;
                self.take(number.as_str().len())?;
                Value::Number(number)
            }
            Item::Text(text) => self.text((**text).to_owned())?,
            Item::Bytes(bytes) => self.text(STANDARD.encode(bytes))?,
            Item::Time(nanos) => self.text(time::write_time(*nanos))?,
            Item::Span(nanos) => self.text(time::write_span(*nanos))?,
            Item::List(List::Json(list)) => self.list(list.iter(), Self::copy)?,
            Item::List(List::Made(list)) => self.list(list.iter(), Self::item)?,
            Item::Map(Map::Json(map)) => self.map(map.iter().map(|(name, value)| (name.clone(), value)), Self::copy)?,
            Item::Map(Map::Branch(map)) => self.branch(map, "")?,
            Item::Map(Map::Made(map)) => {
                self.map(map.iter().map(|(key, value)| (key.to_string(), value)), Self::item)?
            }
        })
    }

    fn text(&mut self, text: String) -> Result<Value> {
        self.take(text.len() + 2)?;
        Ok(Value::String(text))
    }

    fn list<T>(&mut self, list: impl Iterator<Item = T>, each: fn(&mut Self, T) -> Result<Value>) -> Result<Value> {
        self.take(2)?;
        let mut out = Vec::new();
        for value in list {
            self.take(1)?;
            out.push(each(self, value)?);
        }
        Ok(Value::Array(out))
    }

    fn map<T>(
        &mut self,
        map: impl Iterator<Item = (String, T)>,
        each: fn(&mut Self, T) -> Result<Value>,
    ) -> Result<Value> {
        self.take(2)?;
        let mut out = serde_json::Map::new();
        for (name, value) in map {
            self.take(name.len() + 4)?;
            let value = each(self, value)?;
            if out.contains_key(&name) {
                return Err(EvalError::Value(format!("two keys of a map are {name:?} in JSON")));
            }
            out.insert(name, value);
        }
        Ok(Value::Object(out))
    }

    /// What the caller holds in parts. What is missing is left out, and what is truncated is an error.
    fn branch(&mut self, map: &std::collections::BTreeMap<String, Held>, path: &str) -> Result<Value> {
        self.take(2)?;
        let mut out = serde_json::Map::new();
        for (name, held) in map {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let value = match held {
                Held::Absent(Absent::Missing(_)) => continue,
                Held::Branch(map) => self.branch(map, &path)?,
                Held::Json(value) => self.copy(value)?,
                Held::Time(_) | Held::Absent(_) => self.item(&Item::held(held, || path)?)?,
            };
            self.take(name.len() + 4)?;
            out.insert(name.clone(), value);
        }
        Ok(Value::Object(out))
    }

    fn copy(&mut self, value: &Value) -> Result<Value> {
        Ok(match value {
            Value::Null | Value::Bool(true) => {
                self.take(4)?;
                value.clone()
            }
            Value::Bool(false) => {
                self.take(5)?;
                value.clone()
            }
            Value::Number(number) => {
                self.take(number.as_str().len())?;
                value.clone()
            }
            Value::String(text) => {
                self.take(text.len() + 2)?;
                value.clone()
            }
            Value::Array(list) => self.list(list.iter(), Self::copy)?,
            Value::Object(map) => self.map(map.iter().map(|(name, value)| (name.clone(), value)), Self::copy)?,
        })
    }
}
