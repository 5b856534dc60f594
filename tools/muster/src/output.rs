//! What commands print: tables for people, JSON for programs, spinners and bars on standard error
//! while one waits. Leaves to others what is in them.

use std::{io::Write, time::Duration};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

/// Who reads the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// People.
    #[default]
    Table,
    /// Programs.
    Json,
}

/// Prints a JSON value.
pub(crate) fn json(value: &Value) {
    line(format_args!("{value:#}"));
}

/// Prints one line of text. That nobody reads on (`| head`) is no fault of ours.
pub(crate) fn line(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The same, for who goes on until nobody reads any more.
pub(crate) fn try_line(text: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

/// Prints rows under their headings.
pub(crate) fn rows(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(headings);
    for row in rows {
        table.add_row(row);
    }
    line(table.trim_fmt());
}

/// Prints the facts about one thing, one a line; empty ones are left out.
pub(crate) fn facts(pairs: &[(&str, String)]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        table.add_row([*name, value.as_str()]);
    }
    line(table.trim_fmt());
}

/// A field as a cell: strings bare, absent ones empty, everything else as JSON.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Something turns while one waits. Shown on a terminal only.
pub(crate) fn spinner(text: impl Into<String>) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(text.into());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A bar fills while one waits. Shown on a terminal only.
pub(crate) fn bar(total: u64, text: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:12} {wide_bar} {human_pos}/{human_len}  {per_sec}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(text)
}
