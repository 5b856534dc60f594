//! Finds the handle of a series. Each thread keeps the handles that it has used, so that the hot path is one lookup by
//! the label values, without a lock and without an allocation.

use std::{cell::RefCell, collections::HashMap};

use metrics::{Key, Label, Recorder};

use super::{Counter, Gauge, Histogram, labels, register};

/// The handles that one thread knows, per metric, by its joined label values.
struct Known<H> {
    by_metric: Vec<HashMap<String, H>>,
    scratch: String,
}

impl<H> Known<H> {
    const fn new() -> RefCell<Known<H>> {
        RefCell::new(Known { by_metric: Vec::new(), scratch: String::new() })
    }

    fn find(&mut self, index: usize, labels: &[(&'static str, &str)]) -> Option<&H> {
        self.scratch.clear();
        for (_, value) in labels {
            self.scratch.push_str(value);
            self.scratch.push('\u{1f}');
        }
        self.by_metric.get(index)?.get(self.scratch.as_str())
    }

    /// Keeps the handle under the values that [`Known::find`] last searched for.
    fn keep(&mut self, index: usize, handle: H) {
        while self.by_metric.len() <= index {
            self.by_metric.push(HashMap::new());
        }
        self.by_metric[index].insert(self.scratch.clone(), handle);
    }
}

thread_local! {
    static COUNTERS: RefCell<Known<metrics::Counter>> = const { Known::new() };
    static GAUGES: RefCell<Known<metrics::Gauge>> = const { Known::new() };
    static HISTOGRAMS: RefCell<Known<metrics::Histogram>> = const { Known::new() };
}

pub(super) fn counter(counter: Counter, labels: &[(&'static str, &str)], act: impl Fn(&metrics::Counter)) {
    COUNTERS.with_borrow_mut(|known| {
        with(known, counter as usize, counter.name(), counter.labels(), labels, &act, |key| {
            register(key, |recorder, key, metadata| recorder.register_counter(key, metadata))
        });
    });
}

pub(super) fn gauge(gauge: Gauge, labels: &[(&'static str, &str)], act: impl Fn(&metrics::Gauge)) {
    GAUGES.with_borrow_mut(|known| {
        with(known, gauge as usize, gauge.name(), gauge.labels(), labels, &act, |key| {
            register(key, |recorder, key, metadata| recorder.register_gauge(key, metadata))
        });
    });
}

pub(super) fn histogram(histogram: Histogram, labels: &[(&'static str, &str)], act: impl Fn(&metrics::Histogram)) {
    HISTOGRAMS.with_borrow_mut(|known| {
        with(known, histogram as usize, histogram.name(), histogram.labels(), labels, &act, |key| {
            register(key, |recorder, key, metadata| recorder.register_histogram(key, metadata))
        });
    });
}

fn with<H>(
    known: &mut Known<H>,
    index: usize,
    name: &'static str,
    declared: &'static [&'static str],
    labels: &[(&'static str, &str)],
    act: &impl Fn(&H),
    make: impl Fn(&Key) -> Option<H>,
) {
    debug_assert!(
        declared.iter().eq(labels.iter().map(|(name, _)| name)),
        "{name} declares {declared:?}, the caller gave {labels:?}"
    );
    if let Some(handle) = known.find(index, labels) {
        return act(handle);
    }
    if super::RECORDER.get().is_none() {
        return;
    }
    // A value past its label's limit is searched for again as `_other`, and never kept under its own name: that map
    // would grow without bound.
    let labels = labels::within_limits(declared, labels);
    if let Some(handle) = known.find(index, &labels) {
        return act(handle);
    }
    let given: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    if let Some(handle) = make(&Key::from_parts(name, given)) {
        act(&handle);
        known.keep(index, handle);
    }
}
