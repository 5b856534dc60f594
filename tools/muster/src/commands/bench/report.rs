//! The results of a bench, and the tables for people. The same tables go to the terminal and into the page; both show
//! only what is in the figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    figures::Rounds,
    meter::SERVICES,
    open_loop::PERCENTILES,
    targets::{self, Judged},
};
use crate::output;

/// A whole bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// The command line of the bench.
    pub(super) command: String,
    pub(super) rounds: u32,
    pub(super) seconds: u64,
    /// Processor, memory, kernel.
    pub(super) machine: BTreeMap<String, String>,
    pub(super) versions: BTreeMap<String, String>,
    pub(super) figures: Rounds,
    /// What a reader should know about this run.
    pub(super) notes: Vec<String>,
}

/// One table.
pub(super) struct Table {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) headings: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

const THROUGHPUT: [(&str, &str); 13] = [
    ("single", "single submits, 256 connections, end to end"),
    ("bulk-100", "bulk submits of 100, end to end"),
    ("bulk-1000", "bulk submits of 1,000, end to end"),
    ("drain", "backlog of 200,000, drained"),
    ("http-workers", "single submits, workers over HTTP"),
    ("cluster", "single submits, both stores clustered, R3"),
    ("finished-1000000", "single submits after 1,000,000 finished jobs"),
    ("replicas-1", "single submits, 1 replica of each service"),
    ("replicas-3", "single submits, 3 replicas of each service"),
    ("topics-10", "single submits, 10 topics"),
    ("topics-1000", "single submits, 1,000 topics"),
    ("workers-10", "single submits, 10 workers"),
    ("workers-1000", "single submits, 1,000 workers"),
];
const LATENCIES: [(&str, &str); 3] =
    [("latency-200", "200/s"), ("latency-2000", "2,000/s"), ("latency-high", "70 % of the peak")];
const PEERS: [(&str, &str); 4] = [
    ("set", "`redis-benchmark -t set -c 50`"),
    ("bullmq-official", "`bullmq-official`"),
    ("apalis-redis", "`apalis-redis`, its defaults"),
    ("apalis-redis-bare", "`apalis-redis`, locks and events off"),
];

impl Report {
    /// The targets with their verdicts.
    pub(super) fn judged(&self) -> Vec<Judged> {
        targets::judge(&self.figures)
    }

    /// All tables that have rows.
    pub(super) fn tables(&self) -> Vec<Table> {
        let all = [self.targets(), self.throughput(), self.latency(), self.references(), self.growth(), self.rest()];
        all.into_iter().filter(|table| !table.rows.is_empty()).collect()
    }

    /// Prints the tables.
    pub(super) fn show(&self) {
        for Table { title, headings, rows, .. } in self.tables() {
            output::line(format_args!("\n{title}\n"));
            let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
            output::rows(&headings, rows);
        }
        for note in &self.notes {
            output::line(format_args!("\nnote: {note}"));
        }
    }

    fn cell(&self, scenario: &str, figure: &str) -> String {
        self.figures.median(scenario, figure).map(number).unwrap_or_default()
    }

    fn has(&self, scenario: &str) -> bool {
        self.figures.scenarios().any(|known| known == scenario)
    }

    fn targets(&self) -> Table {
        let row = |judged: Judged| {
            let verdict = judged.verdict.words().to_owned();
            vec![judged.what.to_owned(), judged.must, judged.aim, judged.shown, verdict]
        };
        Table {
            title: "Targets",
            about: "Ratios are taken round by round, and the middle one is shown.",
            headings: owned(&["FIGURE", "MUST", "AIM", "MEASURED", "VERDICT"]),
            rows: self.judged().into_iter().map(row).collect(),
        }
    }

    fn throughput(&self) -> Table {
        let known = THROUGHPUT.iter().filter(|(scenario, _)| self.has(scenario));
        let row = |(scenario, what): &(&str, &str)| {
            let mut row = vec![(*what).to_owned(), self.cell(scenario, "rate")];
            row.extend(SERVICES.iter().map(|service| self.cell(scenario, &format!("cpu.{service}"))));
            row.extend(["cpu.total", "nats_messages", "redis_commands"].map(|figure| self.cell(scenario, figure)));
            row
        };
        let mut headings = owned(&["LOAD", "JOBS/S"]);
        headings.extend(SERVICES.map(|service| format!("{} µs", service.to_uppercase())));
        headings.extend(owned(&["TOTAL µs", "NATS MSGS", "REDIS CMDS"]));
        Table {
            title: "Throughput, and what a job costs",
            about: "CPU microseconds per job, by process, all replicas of a service together. The client is the load \
                    generator. Commands in Redis count those inside of scripts.",
            headings,
            rows: known.map(row).collect(),
        }
    }

    fn latency(&self) -> Table {
        let mut rows = Vec::new();
        for (scenario, rate) in LATENCIES.iter().filter(|(scenario, _)| self.has(scenario)) {
            for (figure, what) in
                [("accepted", "submit → accepted"), ("start", "submit → worker starts"), ("end", "submit → succeeded")]
            {
                let cells: Vec<String> =
                    PERCENTILES.iter().map(|(name, _)| self.cell(scenario, &format!("{figure}.{name}"))).collect();
                if cells.iter().any(|cell| !cell.is_empty()) {
                    rows.push([vec![(*rate).to_owned(), what.to_owned()], cells].concat());
                }
            }
        }
        if self.figures.median("bullmq-official", "end.p50").is_some() {
            let cells = PERCENTILES.iter().map(|(name, _)| self.cell("bullmq-official", &format!("end.{name}")));
            rows.push(
                ["200/s".to_owned(), "`bullmq-official` add → completed".to_owned()].into_iter().chain(cells).collect(),
            );
        }
        Table {
            title: "Latency, in milliseconds",
            about: "Open loop, from the moment a submit was due, so that a stall is charged for all who would have come \
                    meanwhile. The end is when the answer of a submit with `wait_ms` arrives.",
            headings: owned(&["RATE", "FROM → TO", "P50", "P95", "P99", "P99.9"]),
            rows,
        }
    }

    fn references(&self) -> Table {
        let row = |(scenario, what): &(&str, &str)| {
            let figures = ["rate", "drained", "cpu.redis", "cpu.worker"];
            [vec![(*what).to_owned()], figures.map(|figure| self.cell(scenario, figure)).to_vec()].concat()
        };
        Table {
            title: "References, in the same run",
            about: "Libraries inside of their caller's process: no HTTP, no scheduler, no tenants, no fences. Redis with the \
                    same log on disk, the same payload of 200 bytes.",
            headings: owned(&["WHAT", "END TO END /S", "DRAINED /S", "REDIS µs", "WORKER µs"]),
            rows: PEERS.iter().filter(|(scenario, _)| self.has(scenario)).map(row).collect(),
        }
    }

    fn growth(&self) -> Table {
        let depths = ["growth-1000", "growth-100000", "growth-1000000"];
        let figures =
            ["submit.rate", "drain.rate", "cpu.stack", "cpu.redis", "start.p50", "start.p99", "end.p50", "end.p99"];
        let row = |scenario: &&str| {
            let depth = scenario.trim_start_matches("growth-").parse().map(number).unwrap_or_default();
            [vec![depth], figures.map(|figure| self.cell(scenario, figure)).to_vec()].concat()
        };
        Table {
            title: "Growth: the same with many jobs waiting",
            about: "Jobs are submitted behind those that wait, once the stack rests after these, and taken from the \
                    front of the same queue; CPU is the sum of both, without the load generator. Latencies are of another topic at 200/s, in milliseconds.",
            headings: owned(&[
                "WAITING",
                "SUBMITS/S",
                "DRAINED/S",
                "CPU µs",
                "REDIS µs",
                "START P50",
                "START P99",
                "END P50",
                "END P99",
            ]),
            rows: depths.iter().filter(|scenario| self.has(scenario)).map(row).collect(),
        }
    }

    fn rest(&self) -> Table {
        let mut rows = Vec::new();
        let mut put = |what: &str, value: String, unit: &str| {
            if !value.is_empty() {
                rows.push(vec![what.to_owned(), format!("{value}{unit}")]);
            }
        };
        put("bytes in Redis, waiting job", self.cell("drain", "bytes.waiting"), "");
        put("bytes in Redis, finished job", self.cell("drain", "bytes.finished"), "");
        for service in SERVICES {
            let cell = self.cell("single", &format!("rss.{service}"));
            put(&format!("memory of a {service} after single submits"), cell, " MiB");
        }
        let percent = |figure: &str| self.figures.median("idle", figure).map(|cores| number(cores * 100.0));
        put("idle stack, of a core", percent("cores").unwrap_or_default(), " %");
        for service in SERVICES.iter().filter(|service| **service != "client") {
            put(&format!("idle {service}, of a core"), percent(&format!("cores.{service}")).unwrap_or_default(), " %");
        }
        Table { title: "Memory and rest", about: "", headings: owned(&["WHAT", "MEASURED"]), rows }
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A figure with its significant digits, and separated thousands.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => {
            let digits = format!("{value:.0}");
            let mut out = String::new();
            for (place, digit) in digits.chars().enumerate() {
                if place > 0 && (digits.len() - place) % 3 == 0 {
                    out.push(',');
                }
                out.push(digit);
            }
            out
        }
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::figures::Figures;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!((number(950.4), number(12.34), number(0.5)), ("950".into(), "12.3".into(), "0.50".into()));
    }

    #[test]
    fn only_what_was_measured_is_shown() {
        let mut figures = Rounds::default();
        let mut single = Figures::default();
        single.put("rate", 12_000.0);
        single.put("cpu.gateway", 31.0);
        figures.add("single", &single);
        let report = Report {
            command: String::new(),
            rounds: 1,
            seconds: 1,
            machine: BTreeMap::new(),
            versions: BTreeMap::new(),
            figures,
            notes: Vec::new(),
        };
        let titles: Vec<_> = report.tables().iter().map(|table| table.title).collect();
        assert_eq!(titles, ["Targets", "Throughput, and what a job costs"]);
        let throughput = report.throughput();
        assert_eq!(throughput.rows.len(), 1);
        assert_eq!(throughput.rows[0][..3], ["single submits, 256 connections, end to end", "12,000", "31.0"]);
        assert!(throughput.rows.iter().all(|row| row.len() == throughput.headings.len()));
    }
}
