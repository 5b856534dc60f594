//! The settings after reading, by key.
//!
//! Getters panic when the key is not declared, is of another kind, or is absent where the
//! getter has no way to say so: each is a mistake in the program, found by its first start.

use std::{collections::BTreeMap, fmt, fmt::Write, net::SocketAddr, time::Duration};

use muster_telemetry::Secret;

use super::{
    Kind, Setting,
    parse::{Value, duration_text, mask_url},
};

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody: the default holds.
    Default,
    /// The settings file.
    File,
    /// An environment variable.
    Environment,
    /// A flag.
    Flag,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) setting: Setting,
    pub(super) value: Option<Value>,
    pub(super) origin: Origin,
}

/// Every declared setting of a service with its value. Showing it masks secrets.
#[derive(Clone)]
pub struct Values {
    pub(super) entries: BTreeMap<&'static str, Entry>,
}

impl Values {
    /// A text, URL, choice, name or log filter.
    pub fn text(&self, key: &str) -> &str {
        self.opt_text(key).unwrap_or_else(|| absent(key))
    }

    /// The same, `None` when absent.
    pub fn opt_text(&self, key: &str) -> Option<&str> {
        match self.value(key)? {
            Value::Text(text) => Some(text),
            _ => other_kind(key, "text"),
        }
    }

    /// A text that must not be logged, `None` when absent.
    pub fn secret(&self, key: &str) -> Option<Secret> {
        self.opt_text(key).map(Secret::new)
    }

    /// A whole number.
    pub fn int(&self, key: &str) -> i64 {
        match self.value(key) {
            Some(Value::Int(n)) => *n,
            Some(_) => other_kind(key, "int"),
            None => absent(key),
        }
    }

    /// A whole number whose declared least is not negative.
    pub fn count(&self, key: &str) -> usize {
        usize::try_from(self.int(key)).unwrap_or_else(|_| panic!("setting `{key}` may be negative"))
    }

    /// A yes or no.
    pub fn flag(&self, key: &str) -> bool {
        match self.value(key) {
            Some(Value::Bool(answer)) => *answer,
            Some(_) => other_kind(key, "bool"),
            None => absent(key),
        }
    }

    /// A duration.
    pub fn duration(&self, key: &str) -> Duration {
        match self.value(key) {
            Some(Value::Duration(span)) => *span,
            Some(_) => other_kind(key, "duration"),
            None => absent(key),
        }
    }

    /// An address to listen on.
    pub fn addr(&self, key: &str) -> SocketAddr {
        match self.value(key) {
            Some(Value::Addr(addr)) => *addr,
            Some(_) => other_kind(key, "addr"),
            None => absent(key),
        }
    }

    /// Several texts; empty when absent.
    pub fn list(&self, key: &str) -> Vec<String> {
        match self.value(key) {
            Some(Value::List(items)) => items.clone(),
            Some(_) => other_kind(key, "list"),
            None => Vec::new(),
        }
    }

    /// Who gave the value.
    pub fn origin(&self, key: &str) -> Origin {
        self.entry(key).origin
    }

    /// A settings file with these values, secrets masked, each with who gave it.
    pub fn print(&self) -> String {
        let mut text = String::new();
        for (key, entry) in &self.entries {
            let origin = match entry.origin {
                Origin::Default => "default".to_owned(),
                Origin::File => "file".to_owned(),
                Origin::Environment => format!("environment, {}", entry.setting.env),
                Origin::Flag => format!("flag, {}", entry.setting.flag()),
            };
            let _ = match shown(entry) {
                Some(value) => writeln!(text, "{key} = {value} # {origin}"),
                None => writeln!(text, "# {key} is not set"),
            };
        }
        text
    }

    fn entry(&self, key: &str) -> &Entry {
        self.entries.get(key).unwrap_or_else(|| panic!("setting `{key}` is not declared"))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.entry(key).value.as_ref()
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}

/// The value as TOML, secrets masked.
fn shown(entry: &Entry) -> Option<String> {
    let value = entry.value.as_ref()?;
    if entry.setting.secret {
        return Some("\"***\"".to_owned());
    }
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    Some(match value {
        Value::Text(text) if matches!(entry.setting.kind, Kind::Url(_)) => quoted(&mask_url(text)),
        Value::Text(text) => quoted(text),
        Value::Int(n) => n.to_string(),
        Value::Bool(answer) => answer.to_string(),
        Value::Duration(span) => quoted(&duration_text(*span)),
        Value::Addr(addr) => quoted(&addr.to_string()),
        Value::List(items) => quoted(&items.join(",")),
    })
}

fn absent(key: &str) -> ! {
    panic!("setting `{key}` has no value and no default; ask for it with opt_text or secret")
}

fn other_kind(key: &str, asked: &str) -> ! {
    panic!("setting `{key}` is not declared as {asked}")
}
