//! Metric names as enums, and the three calls that record them.
//!
//! This module knows each metric's name, help text and label names; [`catalogue`] holds the list.
//! It guarantees base units, `_total` on counters, the constant label `pod` on every series, at
//! most [`LABEL_LIMIT`] distinct values per label (the rest becomes `_other`), and a recording path
//! without allocation once a thread has used a series. Other crates decide which port shows the
//! text.

mod catalogue;
mod labels;
mod series;

use std::sync::OnceLock;

use metrics::{Key, KeyName, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

pub use catalogue::{Counter, Gauge, Histogram, Teller};
pub use labels::{LABEL_LIMIT, OTHER, topic_label};

static RECORDER: OnceLock<(PrometheusRecorder, PrometheusHandle)> = OnceLock::new();
static METADATA: Metadata<'static> = Metadata::new("muster", Level::INFO, None);

/// Adds `n` to a counter. `labels` names every declared label, in the declared order.
pub fn count(counter: Counter, labels: &[(&'static str, &str)], n: u64) {
    series::counter(counter, labels, |handle| handle.increment(n));
}

/// Sets a gauge. `labels` names every declared label, in the declared order.
pub fn set(gauge: Gauge, labels: &[(&'static str, &str)], value: f64) {
    series::gauge(gauge, labels, |handle| handle.set(value));
}

/// Records one observation, in the metric's base unit (seconds).
pub fn observe(histogram: Histogram, labels: &[(&'static str, &str)], value: f64) {
    series::histogram(histogram, labels, |handle| handle.record(value));
}

/// The text that a scrape reads. There is one exporter per process: every clone shows the same
/// series.
#[derive(Clone)]
pub struct Exporter {
    handle: PrometheusHandle,
}

impl Exporter {
    /// Starts recording, with `pod` on every series. A second call in the same process keeps
    /// the first one's pod and returns the same exporter.
    pub fn install(pod: &str, version: &str) -> Exporter {
        let (recorder, handle) = RECORDER.get_or_init(|| {
            let recorder = build(pod);
            let handle = recorder.handle();
            (recorder, handle)
        });
        describe(recorder);
        for counter in Counter::ALL.iter().filter(|c| c.labels().is_empty()) {
            count(*counter, &[], 0);
        }
        for histogram in Histogram::ALL.iter().filter(|h| h.labels().is_empty()) {
            series::histogram(*histogram, &[], |_| ());
        }
        set(Gauge::BuildInfo, &[("version", version)], 1.0);
        Exporter { handle: handle.clone() }
    }

    /// All series in the Prometheus text format.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Moves recorded observations into their buckets. Call it every few seconds: without it,
    /// observations pile up in memory until the next scrape.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

fn build(pod: &str) -> PrometheusRecorder {
    let mut builder = PrometheusBuilder::new().add_global_label("pod", pod);
    for histogram in Histogram::ALL {
        builder = builder
            .set_buckets_for_metric(Matcher::Full(histogram.name().to_owned()), histogram.buckets())
            .expect("every histogram declares buckets");
    }
    builder.build_recorder()
}

fn describe(recorder: &PrometheusRecorder) {
    let name = KeyName::from_const_str;
    for c in Counter::ALL {
        recorder.describe_counter(name(c.name()), Some(Unit::Count), SharedString::const_str(c.help()));
    }
    for g in Gauge::ALL {
        recorder.describe_gauge(name(g.name()), None, SharedString::const_str(g.help()));
    }
    for h in Histogram::ALL {
        recorder.describe_histogram(name(h.name()), Some(Unit::Seconds), SharedString::const_str(h.help()));
    }
}

/// Registers the series with the recorder, if there is one yet.
fn register<H>(key: &Key, make: impl FnOnce(&PrometheusRecorder, &Key, &Metadata<'_>) -> H) -> Option<H> {
    RECORDER.get().map(|(recorder, _)| make(recorder, key, &METADATA))
}
