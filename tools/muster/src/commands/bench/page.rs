//! The page of a bench, in Markdown. It contains only what the report contains.

use std::path::Path;

use super::report::{Report, Table};

/// The whole page; it shows the plot if that was written beside it.
pub(super) fn markdown(report: &Report, plot: Option<&Path>) -> String {
    let mut page = String::from(
        "# Benchmarks\n\nWritten by `make bench`; every number was printed by that run. Each run checked that every job \
         was executed once and ended once. Absolute figures belong to the machine: compare inside of one run, and take \
         CPU microseconds per job for the honest figure on a shared machine.\n",
    );
    let facts = |title: &str, facts: &mut dyn Iterator<Item = (&String, &String)>| {
        let words: Vec<String> = facts.map(|(name, value)| format!("{name} {value}")).collect();
        format!("- {title}: {}\n", words.join(", "))
    };
    page += &format!("\n- Command: `{}`\n", report.command);
    page += &facts("Machine", &mut report.machine.iter());
    page += &facts("Versions", &mut report.versions.iter());
    page += &format!("- {} rounds, references and stack in turn, {} s in all\n", report.rounds, report.seconds);
    page += "- Stack: 2 gateways, 2 schedulers, 2 replicas of the workflow service, 1 worker process, Redis with an append-only \
             file synced every second, JetStream on disk, authentication on, everything and the load generator on this \
             one machine\n";
    for note in &report.notes {
        page += &format!("- Note: {note}\n");
    }
    if let Some(name) = plot.and_then(Path::file_name).map(|name| name.to_string_lossy()) {
        page += &format!("\n![Throughput, cost and latency]({name})\n");
    }
    for table in report.tables() {
        page += &section(&table);
    }
    page
}

fn section(table: &Table) -> String {
    let mut text = format!("\n## {}\n", table.title);
    if !table.about.is_empty() {
        text += &format!("\n{}\n", table.about);
    }
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let headings: Vec<String> = table.headings.iter().map(|heading| capitalised(heading)).collect();
    text += &format!("\n{}|{}\n", line(&headings), "---|".repeat(headings.len()));
    table.rows.iter().for_each(|row| text += &line(row));
    text
}

/// Headings are in capitals on a terminal only.
fn capitalised(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let mut letters = lower.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_markdown() {
        let table = Table {
            title: "T",
            about: "A.",
            headings: vec!["JOBS/S".into(), "P50".into()],
            rows: vec![vec!["1".into(), "2".into()]],
        };
        assert_eq!(section(&table), "\n## T\n\nA.\n\n| Jobs/s | P50 |\n|---|---|\n| 1 | 2 |\n");
    }
}
