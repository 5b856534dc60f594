//! Reads flags, environment and file into [`Values`], or lists every fault.

use std::{collections::BTreeMap, path::Path};

use super::{
    Declaration, Fallback, Fault, Faults, Values, Warning,
    faults::nearest,
    parse::{Value, parse},
    values::{Entry, Origin},
    with_common,
};
use crate::probe::{self, Probe};

/// What the command line asks the program to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Run the service.
    Run,
    /// Report whether the settings are valid.
    CheckConfig,
    /// Print the settings, with secrets masked.
    PrintConfig,
    /// Explain the settings.
    Help,
    /// Explain the settings as a table for the docs.
    Reference,
    /// The service's loops as a table for the docs.
    Loops,
    /// Print the version.
    Version,
}

const ASKS: &[(&str, Ask)] = &[
    ("--help", Ask::Help),
    ("-h", Ask::Help),
    ("--version", Ask::Version),
    ("-V", Ask::Version),
    ("--check-config", Ask::CheckConfig),
    ("--print-config", Ask::PrintConfig),
    ("--print-reference", Ask::Reference),
    ("--print-loops", Ask::Loops),
];

/// Flags with a value that are not settings.
const OTHERS: [&str; 2] = ["config", "probe"];

/// What the arguments ask for. Help and version take precedence, so that they work whatever else is
/// wrong.
pub fn asked(args: &[String]) -> Ask {
    let given = |name: &str| args.iter().any(|arg| arg == name);
    ASKS.iter().find(|(name, _)| given(name)).map_or(Ask::Run, |(_, ask)| *ask)
}

/// Settings without a fault.
#[derive(Debug)]
pub struct Loaded {
    /// The values.
    pub values: Values,
    /// Settings that are odd but not wrong, such as unknown `MUSTER_*` variables.
    pub warnings: Vec<Warning>,
    /// Ask a running replica with these settings, instead of running one.
    pub probe: Option<Probe>,
}

/// The content of the command line.
#[derive(Default)]
struct Flags {
    layer: Layer,
    config: Option<String>,
    probe: Option<Probe>,
}

/// One text from one place.
struct Given {
    place: String,
    text: String,
}

/// Texts by key, or by key followed by `_file`.
type Layer = BTreeMap<String, Given>;

/// Reads all settings of a service. `args` is without the program's name. An empty variable counts
/// as absent. A value is checked even if a stronger source overrides it.
pub fn load(
    service: &'static str,
    own: &[Declaration],
    args: &[String],
    env: &BTreeMap<String, String>,
) -> Result<Loaded, Faults> {
    let settings = with_common(own);
    let mut faults = Vec::new();
    let Flags { layer: flags, config, probe } = read_flags(&settings, args, &mut faults);
    let (environment, mut warnings) = read_env(&settings, env);
    let file = config.map(|path| read_file(&settings, &path, &mut faults)).unwrap_or_default();
    let layers = [(Origin::Flag, flags), (Origin::Environment, environment), (Origin::File, file)];

    let mut entries = BTreeMap::new();
    for setting in settings {
        let mut found: Option<(Value, Origin)> = None;
        for (origin, layer) in &layers {
            match read_one(&setting, layer) {
                Some(Ok(value)) => found = found.or(Some((value, *origin))),
                Some(Err(fault)) => faults.push(fault),
                None => {}
            }
        }
        if let (Some(_), Some(missing)) = (&found, setting.unused) {
            warnings.push(Warning::Unused { setting: setting.env, missing });
        }
        let (value, origin) = match found {
            Some((value, origin)) => (Some(value), origin),
            None => (fallback(&setting, env, &mut faults), Origin::Default),
        };
        entries.insert(setting.key, Entry { setting, value, origin });
    }
    match faults.is_empty() {
        true => Ok(Loaded { values: Values { entries }, warnings, probe }),
        false => Err(Faults { service, faults }),
    }
}

/// The setting's value in one layer: given there, or in a file named there.
fn read_one(setting: &Declaration, layer: &Layer) -> Option<Result<Value, Fault>> {
    let direct = layer.get(setting.key);
    let by_file = layer.get(&format!("{}_file", setting.key)).filter(|_| setting.may_be_file());
    match (direct, by_file) {
        (None, None) => None,
        (Some(given), None) => Some(parse(setting.kind, &given.text, &given.place)),
        (Some(_), Some(file)) => {
            Some(Err(Fault::new(&file.place, format!("{} is also set; set only one of the two", setting.key))))
        }
        (None, Some(file)) => Some(match std::fs::read_to_string(&file.text) {
            Ok(text) if text.trim().is_empty() => Err(Fault::new(&file.place, format!("file {} is empty", file.text))),
            Ok(text) => parse(setting.kind, text.trim(), &file.place),
            Err(fault) => Err(Fault::new(&file.place, format!("cannot read {}: {fault}", file.text))),
        }),
    }
}

fn fallback(setting: &Declaration, env: &BTreeMap<String, String>, faults: &mut Vec<Fault>) -> Option<Value> {
    let (text, place) = match setting.fallback {
        Fallback::Absent => return None,
        Fallback::Text(text) => (text.to_owned(), format!("default of {}", setting.key)),
        Fallback::HostName => (host_name(env), format!("host name, for {}", setting.env)),
    };
    parse(setting.kind, &text, &place).map_err(|fault| faults.push(fault)).ok()
}

fn host_name(env: &BTreeMap<String, String>) -> String {
    let given = env.get("HOSTNAME").cloned().filter(|name| !name.is_empty());
    let name = given.or_else(|| std::fs::read_to_string("/etc/hostname").ok()).unwrap_or_default();
    match name.trim() {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}

/// The keys that a layer may use: each setting, and its `_file` form if it has one.
fn keys(settings: &[Declaration]) -> Vec<String> {
    let files = settings.iter().filter(|s| s.may_be_file()).map(|s| format!("{}_file", s.key));
    settings.iter().map(|s| s.key.to_owned()).chain(files).collect()
}

fn read_flags(settings: &[Declaration], args: &[String], faults: &mut Vec<Fault>) -> Flags {
    let keys = keys(settings);
    let mut flags = Flags::default();
    let mut rest = args.iter().peekable();
    while let Some(arg) = rest.next() {
        if ASKS.iter().any(|(name, _)| name == arg) {
            continue;
        }
        let Some(name) = arg.strip_prefix("--") else {
            faults.push(Fault::new(arg, "unexpected argument; settings are given as --name value"));
            continue;
        };
        let (name, inline) = name.split_once('=').map_or((name, None), |(name, text)| (name, Some(text.to_owned())));
        let value = inline.or_else(|| rest.next_if(|next| !next.starts_with("--")).cloned());
        let key = name.replace('-', "_");
        let place = format!("--{name}");
        let known = OTHERS.contains(&name) || (keys.contains(&key) && !name.contains('_'));
        if !known {
            let names = keys.iter().map(|key| key.replace('_', "-")).chain(OTHERS.map(str::to_owned));
            let known: Vec<String> = names.map(|name| format!("--{name}")).collect();
            let asks = ASKS.iter().map(|(name, _)| *name);
            faults
                .push(Fault::new(&place, "unknown flag").suggest(&place, known.iter().map(String::as_str).chain(asks)));
            continue;
        }
        let is_switch = settings.iter().any(|s| s.key == key && matches!(s.kind, super::Kind::Bool));
        match value.or_else(|| is_switch.then(|| "true".to_owned())) {
            None => faults.push(Fault::new(place, "needs a value")),
            Some(path) if name == "config" => flags.config = Some(path),
            Some(word) if name == "probe" => match Probe::parse(&word) {
                Some(probe) => flags.probe = Some(probe),
                None => {
                    let problem = format!("`{word}` is not one of {}", probe::WORDS.join(", "));
                    faults.push(Fault::new(place, problem).suggest(&word, probe::WORDS.iter().copied()));
                }
            },
            Some(text) => {
                flags.layer.insert(key, Given { place, text });
            }
        }
    }
    flags
}

fn read_env(settings: &[Declaration], env: &BTreeMap<String, String>) -> (Layer, Vec<Warning>) {
    let mut layer = Layer::new();
    let mut known = Vec::new();
    for setting in settings {
        let file = setting.may_be_file().then(|| (format!("{}_FILE", setting.env), format!("{}_file", setting.key)));
        for (variable, key) in [(setting.env.to_owned(), setting.key.to_owned())].into_iter().chain(file) {
            // A secret of nothing but spaces is a mistake; a user who wants no secret leaves the
            // variable empty.
            let slip = |text: &str| !text.is_empty() && setting.secret;
            if let Some(text) = env.get(&variable).filter(|text| !text.trim().is_empty() || slip(text)) {
                layer.insert(key, Given { place: variable.clone(), text: text.trim().to_owned() });
            }
            known.push(variable);
        }
    }
    let odd = env.keys().filter(|name| name.starts_with("MUSTER_") && !known.contains(name));
    let warn = |name: &String| {
        let meant = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
        Warning::Unknown { variable: name.clone(), meant }
    };
    let warnings = odd.map(warn).collect();
    (layer, warnings)
}

fn read_file(settings: &[Declaration], path: &str, faults: &mut Vec<Fault>) -> Layer {
    let table = match std::fs::read_to_string(Path::new(path)) {
        Ok(text) => toml::from_str::<toml::Table>(&text).map_err(|fault| {
            let line = fault.span().map(|span| text[..span.start.min(text.len())].lines().count().max(1));
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{line}{}", fault.message())
        }),
        Err(fault) => Err(format!("cannot be read: {fault}")),
    };
    let table = match table {
        Ok(table) => table,
        Err(problem) => {
            faults.push(Fault::new(path, problem));
            return Layer::new();
        }
    };
    let keys = keys(settings);
    let mut layer = Layer::new();
    for (key, value) in table {
        let place = format!("{path}, {key}");
        if !keys.contains(&key) {
            faults.push(Fault::new(place, "unknown key").suggest(&key, keys.iter().map(String::as_str)));
            continue;
        }
        match plain(&value) {
            Some(text) => {
                layer.insert(key, Given { place, text });
            }
            None => faults.push(Fault::new(place, "must be a text, a number, true or false, or a list of texts")),
        }
    }
    layer
}

fn plain(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.trim().to_owned()),
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Float(n) => Some(n.to_string()),
        toml::Value::Boolean(answer) => Some(answer.to_string()),
        toml::Value::Array(items) => {
            items.iter().map(|item| item.as_str()).collect::<Option<Vec<_>>>().map(|items| items.join(","))
        }
        _ => None,
    }
}
