//! The settings after reading, by key.
//!
//! Getters panic when the key is not declared, is of another kind, or is absent where the
//! getter has no way to say so: each is a mistake in the program, found by its first start.

use std::{collections::BTreeMap, fmt, fmt::Write, net::SocketAddr, time::Duration};

use muster_telemetry::Secret;
use serde_json::json;

use super::{
    Fault, Kind, Setting,
    parse::{Value, duration_text, mask_url, parse},
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
    /// What all replicas were told while they ran.
    RunTime,
}

impl Origin {
    /// In one word, or two.
    pub const fn as_str(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File => "file",
            Origin::Environment => "environment",
            Origin::Flag => "flag",
            Origin::RunTime => "run time",
        }
    }
}

/// One setting as it is shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its name.
    pub key: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// As text, secrets masked; none if it is absent.
    pub value: Option<String>,
    /// Who said so.
    pub origin: Origin,
    /// Whether it may be changed while the service runs.
    pub live: bool,
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

    /// A whole number of milliseconds.
    pub fn millis(&self, key: &str) -> Duration {
        Duration::from_millis(self.count(key) as u64)
    }

    /// A number, whole or not.
    pub fn number(&self, key: &str) -> f64 {
        match self.value(key) {
            Some(Value::Number(n)) => *n,
            Some(_) => other_kind(key, "number"),
            None => absent(key),
        }
    }

    /// Texts that must not be logged; empty when absent.
    pub fn secrets(&self, key: &str) -> Vec<Secret> {
        self.list(key).into_iter().map(Secret::new).collect()
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
                Origin::RunTime => Origin::RunTime.as_str().to_owned(),
            };
            let _ = match shown(entry) {
                Some(value) if entry.setting.unused.is_some() => {
                    writeln!(text, "{key} = {value} # {origin}; not yet used")
                }
                Some(value) => writeln!(text, "{key} = {value} # {origin}"),
                None => writeln!(text, "# {key} is not set"),
            };
        }
        text
    }

    /// Every setting that has an effect, as it is shown, in the order of the keys.
    pub fn shown(&self) -> Vec<Shown> {
        let one = |(key, entry): (&&'static str, &Entry)| Shown {
            key,
            env: entry.setting.env,
            value: plain(entry),
            origin: entry.origin,
            live: entry.setting.live,
        };
        self.entries.iter().filter(|(_, entry)| entry.setting.unused.is_none()).map(one).collect()
    }

    /// The same for others to read: `name`, `variable`, `value` if there is one, `source`, `live`.
    pub fn told(&self) -> Vec<serde_json::Value> {
        let one = |shown: Shown| {
            let (source, live) = (shown.origin.as_str(), shown.live);
            let mut told = json!({ "name": shown.key, "variable": shown.env, "source": source, "live": live });
            if let Some(value) = shown.value {
                told["value"] = value.into();
            }
            told
        };
        self.shown().into_iter().map(one).collect()
    }

    /// These values, with what all replicas were told while they ran. A name that is unknown, or
    /// may not be changed at run time, and a value that cannot be read are faults; every fault is
    /// told, its place is the name.
    pub fn with_run_time(&self, told: &BTreeMap<String, String>) -> Result<Values, Vec<Fault>> {
        let (mut values, mut faults) = (self.clone(), Vec::new());
        for (key, text) in told {
            match values.entries.get_mut(key.as_str()) {
                None => {
                    let live = self.entries.values().map(|entry| entry.setting).filter(|setting| setting.live);
                    let names: Vec<_> = live.map(|setting| setting.key).collect();
                    faults.push(Fault::new(key, "is not a setting").suggest(key, names));
                }
                Some(entry) if !entry.setting.live => {
                    faults.push(Fault::new(key, "cannot be changed at run time: restart with another value"));
                }
                Some(entry) => match parse(entry.setting.kind, text, key) {
                    Ok(value) => (entry.value, entry.origin) = (Some(value), Origin::RunTime),
                    Err(fault) => faults.push(fault),
                },
            }
        }
        if faults.is_empty() { Ok(values) } else { Err(faults) }
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
    let text = plain(entry)?;
    Some(match entry.value {
        Some(Value::Int(_) | Value::Number(_) | Value::Bool(_)) => text,
        _ => toml::Value::String(text).to_string(),
    })
}

/// The value as people write it, secrets masked.
fn plain(entry: &Entry) -> Option<String> {
    let value = entry.value.as_ref()?;
    if entry.setting.secret {
        return Some("***".to_owned());
    }
    Some(match value {
        Value::Text(text) if matches!(entry.setting.kind, Kind::Url(_)) => mask_url(text),
        Value::Text(text) => text.clone(),
        Value::Int(n) => n.to_string(),
        Value::Number(n) => n.to_string(),
        Value::Bool(answer) => answer.to_string(),
        Value::Duration(span) => duration_text(*span),
        Value::Addr(addr) => addr.to_string(),
        Value::List(items) => items.join(","),
    })
}

fn absent(key: &str) -> ! {
    panic!("setting `{key}` has no value and no default; ask for it with opt_text or secret")
}

fn other_kind(key: &str, asked: &str) -> ! {
    panic!("setting `{key}` is not declared as {asked}")
}
