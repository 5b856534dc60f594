//! The settings as text for people: `--help`, and the table in the docs.

use std::fmt::Write;

use super::{Declaration, Fallback, Kind, duration_text, with_common};

/// What `--help` prints.
pub fn help(service: &str, own: &[Declaration]) -> String {
    let mut text = format!(
        "{service}\n\nSettings come from a file, the environment and flags; a later source overrides an earlier \
         one.\n\n"
    );
    for setting in with_common(own) {
        let _ = writeln!(text, "  {} {}", setting.flag(), shape(setting.kind));
        let _ = writeln!(text, "      {}", meaning(&setting));
        let _ = writeln!(text, "      environment {}, default {}", variables(&setting), usual(&setting));
    }
    text.push_str("\n  --config FILE     read settings from a TOML file\n");
    text.push_str("  --check-config    check the settings, and exit\n");
    text.push_str("  --print-config    show the settings, secrets masked, and exit\n");
    text.push_str(
        "  --probe WORD      livez or readyz: ask the running replica with these settings; the exit code is 0 or 1\n",
    );
    text.push_str("  --version         show the version, and exit\n");
    text
}

/// A Markdown table of a service's settings.
pub fn reference(service: &str, own: &[Declaration]) -> String {
    let mut text =
        format!("## {service}\n\n| variable | file key | default | value | meaning |\n|---|---|---|---|---|\n");
    for setting in with_common(own) {
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} | {} | {} |",
            setting.env,
            setting.key,
            usual(&setting),
            shape(setting.kind).replace('|', "\\|"),
            meaning(&setting)
        );
    }
    text
}

fn meaning(setting: &Declaration) -> String {
    let live = if setting.live { " Can be changed at run time." } else { "" };
    let unused = setting.unused.map(|missing| format!(" Not yet used: {missing}.")).unwrap_or_default();
    format!("{}{live}{unused}", setting.doc)
}

fn variables(setting: &Declaration) -> String {
    match setting.secret {
        true => format!("{0} or {0}_FILE", setting.env),
        false => setting.env.to_owned(),
    }
}

/// The default value as text.
pub(crate) fn usual(setting: &Declaration) -> String {
    match setting.fallback {
        Fallback::Absent => "none".to_owned(),
        Fallback::Text(text) => format!("`{text}`"),
        Fallback::HostName => "host name".to_owned(),
    }
}

fn shape(kind: Kind) -> String {
    match kind {
        Kind::Text | Kind::Name => "text".to_owned(),
        Kind::Url(_) | Kind::HttpUrl => "URL".to_owned(),
        Kind::Int { min, max } => format!("{min} to {max}"),
        Kind::Number { min, max } => format!("number, {min} to {max}"),
        Kind::Keys { min } => format!("comma-separated list, each of {min} or more visible characters"),
        Kind::Bool => "true|false".to_owned(),
        Kind::OnlyTrue { .. } => "true".to_owned(),
        Kind::Duration { min, max } => format!("duration, {} to {}", duration_text(min), duration_text(max)),
        Kind::Addr => "ip:port".to_owned(),
        Kind::HostPort => "host or host:port".to_owned(),
        Kind::List => "comma-separated list".to_owned(),
        Kind::Choice(words) => words.join("|"),
        Kind::LogFilter => "log filter".to_owned(),
    }
}
