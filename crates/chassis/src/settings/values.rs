//! The settings after reading, by handle.

use std::{collections::BTreeMap, fmt, fmt::Write};

use serde_json::json;

use super::{
    Declaration, Fault, Kind, Setting, Typed,
    parse::{Value, duration_text, mask_url, parse},
};

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No source: the default applies.
    Default,
    /// The settings file.
    File,
    /// An environment variable.
    Environment,
    /// A flag.
    Flag,
    /// The settings that all replicas received at run time.
    RunTime,
}

impl Origin {
    /// The name of the source.
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
    /// The setting's name.
    pub key: &'static str,
    /// The setting's environment variable.
    pub env: &'static str,
    /// The value as text, with secrets masked; none if it is absent.
    pub value: Option<String>,
    /// The source of the value.
    pub origin: Origin,
    /// Whether the setting may be changed while the service runs.
    pub live: bool,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) setting: Declaration,
    pub(super) value: Option<Value>,
    pub(super) origin: Origin,
}

/// Every declared setting of a service with its value. Showing it masks secrets.
#[derive(Clone)]
pub struct Values {
    pub(super) entries: BTreeMap<&'static str, Entry>,
}

impl Values {
    /// The value of a setting. Panics if this service does not declare the setting, or declares it
    /// with another type: a programming error that the first start finds.
    pub fn get<T: Typed>(&self, setting: Setting<T>) -> T::Read<'_> {
        let key = setting.key();
        let value = self.entry(key).value.as_ref();
        T::read(value).unwrap_or_else(|| panic!("setting `{key}` is declared with another type"))
    }

    /// The source of the value.
    pub fn origin<T>(&self, setting: Setting<T>) -> Origin {
        self.entry(setting.key()).origin
    }

    /// A settings file with these values and their sources, with secrets masked.
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

    /// Every setting that has an effect, in its shown form, in the order of the keys.
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

    /// The same as JSON: `name`, `variable`, `value` if there is one, `source`, `live`.
    pub fn told(&self) -> Vec<serde_json::Value> {
        let one = |shown: Shown| {
            let (source, live) = (shown.origin.as_str(), shown.live);
            let mut setting = json!({ "name": shown.key, "variable": shown.env, "source": source, "live": live });
            if let Some(value) = shown.value {
                setting["value"] = value.into();
            }
            setting
        };
        self.shown().into_iter().map(one).collect()
    }

    /// These values, with the run-time settings of the cluster. A name that is unknown or may not
    /// be changed at run time is a fault, and so is a value that cannot be read. All faults are
    /// returned; the place of a fault is the name.
    pub fn with_run_time(&self, run_time: &BTreeMap<String, String>) -> Result<Values, Vec<Fault>> {
        let (mut values, mut faults) = (self.clone(), Vec::new());
        for (key, text) in run_time {
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
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}

/// The value as TOML, with secrets masked.
fn shown(entry: &Entry) -> Option<String> {
    let text = plain(entry)?;
    Some(match entry.value {
        Some(Value::Int(_) | Value::Number(_) | Value::Bool(_)) => text,
        _ => toml::Value::String(text).to_string(),
    })
}

/// The value as people write it, with secrets masked.
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
