//! The list of metrics, for `docs/reference/metrics.md`.

use std::fmt::Write;

use muster_telemetry::{Counter, Gauge, Histogram, metrics::Teller};

use crate::docs::MARK;

/// One row of the page.
struct Row {
    name: &'static str,
    labels: &'static [&'static str],
    teller: Teller,
    help: &'static str,
}

/// The content of `docs/reference/metrics.md`.
pub(crate) fn page() -> String {
    let mut out = format!(
        "{MARK}# Metrics\n\nEvery series that a Muster service shows on `/metrics` of its admin port. Each has the label \
         `pod` as well, the replica's name. [operate.md](../operate.md#metrics) explains each and says what to watch.\n"
    );
    let counters = Counter::ALL.iter().map(|it| row(it.name(), it.labels(), it.teller(), it.help()));
    section(&mut out, "Counters", "They only increase; a restarted replica begins at 0.", counters);
    let gauges = Gauge::ALL.iter().map(|it| row(it.name(), it.labels(), it.teller(), it.help()));
    let about = "They increase and decrease. The leader of the loop `snapshot` reports some of them for all replicas. \
                 On the other replicas these are 0 or absent, so that `sum` and `max` over replicas are right. Two of \
                 them, `muster_redis_aof_enabled` and `muster_backup_last_success_timestamp_seconds`, are NaN there, because \
                 their 0 is an alarm: use `max`.";
    section(&mut out, "Gauges", about, gauges);
    let histograms = Histogram::ALL.iter().map(|it| row(it.name(), it.labels(), it.teller(), it.help()));
    section(&mut out, "Histograms", "In seconds, with `_bucket`, `_sum` and `_count`.", histograms);
    out.push_str("\n| histogram | upper bounds of its buckets |\n|---|---|\n");
    for it in Histogram::ALL {
        let bounds: Vec<String> = it.buckets().iter().map(ToString::to_string).collect();
        let _ = writeln!(out, "| `{}` | {} |", it.name(), bounds.join(", "));
    }
    out
}

fn row(name: &'static str, labels: &'static [&'static str], teller: Teller, help: &'static str) -> Row {
    Row { name, labels, teller, help }
}

fn section(out: &mut String, title: &str, about: &str, rows: impl Iterator<Item = Row>) {
    let _ = write!(out, "\n## {title}\n\n{about}\n\n| metric | labels | reported by | meaning |\n|---|---|---|---|\n");
    for Row { name, labels, teller, help } in rows {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        let teller = match teller {
            Teller::Every => "every service",
            Teller::Gateway => "gateway",
            Teller::Scheduler => "scheduler",
            Teller::Workflow => "workflow",
            Teller::Snapshot => "scheduler, leader of `snapshot`",
        };
        let _ = writeln!(out, "| `{name}` | {labels} | {teller} | {help} |");
    }
}
