//! Tests of the text that a scrape reads: labels, limits, zeros, and the verdict of promtool.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use muster_telemetry::{
    Counter, Emit, Exporter, Gauge, Histogram, count,
    events::{LeaseLost, TaskPanicked},
    metrics::{LABEL_LIMIT, OTHER},
    observe, set,
};

fn exporter() -> Exporter {
    Exporter::install("pod-1", "0.1.0")
}

/// The value of the one series that starts with `series`.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

#[test]
fn every_series_carries_the_pod_and_promtool_finds_nothing_to_say() {
    let exporter = exporter();
    for c in Counter::ALL {
        count(*c, &sample(c.labels()), 1);
    }
    for g in Gauge::ALL {
        set(*g, &sample(g.labels()), 2.0);
    }
    for h in Histogram::ALL {
        observe(*h, &sample(h.labels()), 0.003);
    }
    exporter.upkeep();
    let text = exporter.render();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        assert!(line.contains("pod=\"pod-1\""), "no pod: {line}");
    }
    for name in Counter::ALL.iter().map(|c| c.name()).chain(Gauge::ALL.iter().map(|g| g.name())) {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
    }
    for h in Histogram::ALL {
        assert!(text.contains(&format!("# TYPE {} histogram", h.name())), "{} is no histogram", h.name());
    }

    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by make");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && words.trim().is_empty(), "promtool: {words}");
}

fn sample(labels: &'static [&'static str]) -> Vec<(&'static str, &'static str)> {
    labels.iter().map(|name| (*name, "sample")).collect()
}

#[test]
fn counters_without_labels_show_zero_from_the_start() {
    let text = exporter().render();
    assert!(value(&text, "muster_rate_limit_hits_total{pod=\"pod-1\"}").is_some());
    assert_eq!(value(&text, "muster_build_info{pod=\"pod-1\",version=\"0.1.0\"}"), Some(1.0), "{text}");
}

#[test]
fn topics_past_the_limit_count_as_other() {
    let exporter = exporter();
    for n in 0..LABEL_LIMIT + 50 {
        count(Counter::JobAttempts, &[("topic", &format!("t{n}")), ("outcome", "flood")], 1);
    }
    let text = exporter.render();
    let floods: Vec<&str> =
        text.lines().filter(|l| l.starts_with("muster_job_attempts_total") && l.contains("flood")).collect();
    assert!(floods.len() <= LABEL_LIMIT + 1, "{} series", floods.len());
    let other = format!("topic=\"{OTHER}\"");
    let rest: f64 = floods
        .iter()
        .filter(|l| l.contains(&other))
        .map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert!(rest >= 50.0, "{rest} counted as other");
    let all: f64 = floods.iter().map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    assert_eq!(all, (LABEL_LIMIT + 50) as f64, "nothing is lost");
}

#[test]
fn counts_from_several_threads_add_up() {
    let exporter = exporter();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                for _ in 0..1_000 {
                    count(Counter::Reconciled, &[("action", "threads")], 1);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let text = exporter.render();
    assert_eq!(value(&text, "muster_reconciled_total{pod=\"pod-1\",action=\"threads\"}"), Some(4_000.0), "{text}");
}

#[test]
fn a_fault_is_counted_when_it_is_told() {
    let exporter = exporter();
    LeaseLost { lock: "told", detail: "expired" }.emit();
    TaskPanicked { task: "told", detail: "boom" }.emit();
    let text = exporter.render();
    assert_eq!(value(&text, "muster_lease_lost_total{pod=\"pod-1\",lock=\"told\"}"), Some(1.0));
    assert_eq!(value(&text, "muster_task_panics_total{pod=\"pod-1\",task=\"told\"}"), Some(1.0));
}
