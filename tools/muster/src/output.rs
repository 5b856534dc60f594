//! The output of commands: tables for people, JSON for programs, and spinners and bars on standard error during
//! waits. Tables fit the terminal: cells wrap, and columns that would become too narrow to read are left out from the
//! right, so commands put the important columns first. Leaves to others what is in the tables.

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

/// The format of the output, by its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Tables, for people.
    Table,
    /// JSON, for programs.
    Json,
}

/// The format that the caller chose with `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Asked {
    /// A table
    #[default]
    Table,
    /// A table with every column, however wide the terminal is
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// Whether tables show every column, however wide the terminal is.
static WIDE: AtomicBool = AtomicBool::new(false);
/// The narrowest width, in characters, to which a column may wrap.
const NARROWEST: usize = 16;
/// The spaces beside a column.
const PADDING: usize = 2;

impl Asked {
    /// Sets the width of all tables.
    pub(crate) fn settle(self) -> Format {
        WIDE.store(self == Asked::Wide, Ordering::Relaxed);
        if self == Asked::Json { Format::Json } else { Format::Table }
    }
}

/// Prints a JSON value.
pub(crate) fn json(value: &Value) {
    line(format_args!("{value:#}"));
}

/// Prints one line of text. A closed pipe (`| head`) is not an error.
pub(crate) fn line(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The same, for commands that continue until the output is closed.
pub(crate) fn try_line(text: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

/// Prints rows under their headings.
pub(crate) fn rows(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let (mut table, wide) = (Table::new(), WIDE.load(Ordering::Relaxed));
    let shown = match table.width().filter(|_| !wide) {
        Some(width) => fitting(&widths(headings, &rows), width.into()),
        None => headings.len(),
    };
    let arrangement = if wide { ContentArrangement::Disabled } else { ContentArrangement::Dynamic };
    table.load_style(presets::NOTHING).set_content_arrangement(arrangement).set_header(&headings[..shown]);
    for mut row in rows {
        row.truncate(shown);
        table.add_row(row);
    }
    line(table.trim_fmt());
    if shown < headings.len() {
        let _ = writeln!(std::io::stderr(), "hint:  `-o wide` also shows {}", headings[shown..].join(", "));
    }
}

/// The width of each column, if no cell wraps.
fn widths(headings: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let of = |column: usize| rows.iter().filter_map(move |row| row.get(column)).map(|cell| cell.chars().count());
    headings.iter().enumerate().map(|(n, heading)| of(n).max().unwrap_or(0).max(heading.chars().count())).collect()
}

/// How many of these columns fit when wrapped; the first always does.
fn fitting(widths: &[usize], limit: usize) -> usize {
    let mut used = 0;
    let fits = |width: &&usize| {
        used += (**width).min(NARROWEST) + PADDING;
        used <= limit
    };
    widths.iter().take_while(fits).count().max(1).min(widths.len())
}

/// Prints the fields of one object, one per line; empty ones are left out.
pub(crate) fn facts(pairs: &[(&str, String)]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        table.add_row([*name, value.as_str()]);
    }
    line(table.trim_fmt());
}

/// A field as a cell: strings without quotes, absent fields empty, everything else as JSON.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A spinner for a wait. Shown on a terminal only.
pub(crate) fn spinner(text: impl Into<String>) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(text.into());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A progress bar for a wait. Shown on a terminal only.
pub(crate) fn bar(total: u64, text: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:12} {wide_bar} {human_pos}/{human_len}  {per_sec}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_cannot_be_read_are_left_out_from_the_right() {
        let loops = widths(&["LOOP", "STATE", "ERROR"], &[vec!["scrub".into(), "idle".into(), "x".repeat(200)]]);
        assert_eq!(loops, [5, 5, 200]);
        assert_eq!(fitting(&loops, 80), 3, "the last one wraps");
        assert_eq!(fitting(&loops, 31), 2);
        assert_eq!(fitting(&[40; 12], 80), 4);
        assert_eq!(fitting(&[40; 12], 3), 1, "something is always shown");
        assert_eq!(fitting(&[], 80), 0);
    }
}
