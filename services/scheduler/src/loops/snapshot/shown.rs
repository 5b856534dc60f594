//! Gauges that one replica shows for the whole fleet.
//!
//! Promises: what was shown and is no longer measured, or no longer this replica's to show, does not
//! stay: a count becomes 0, so that sums over replicas are right; a value of which 0 would be an alarm
//! becomes NaN, which PromQL's `max` passes over.

use std::collections::HashMap;

use muster_telemetry::{Gauge, set};

/// A gauge and the values of its labels, in their order; empty where it has none.
pub(super) type Series = (Gauge, String, &'static str);

/// What was measured.
pub(super) type Measured = HashMap<Series, f64>;

/// The gauges as this replica last showed them.
#[derive(Default)]
pub(super) struct Shown(Measured);

impl Shown {
    /// Shows these and no others.
    pub(super) fn replace(&mut self, now: Measured) {
        for series in self.0.keys().filter(|series| !now.contains_key(*series)) {
            put(series, nothing(series.0));
        }
        now.iter().for_each(|(series, value)| put(series, *value));
        self.0 = now;
    }

    /// What is shown, to be changed and shown again.
    pub(super) fn take(&mut self) -> Measured {
        std::mem::take(&mut self.0)
    }
}

/// What a gauge says when this replica has nothing to say.
fn nothing(gauge: Gauge) -> f64 {
    match gauge {
        Gauge::RedisAofEnabled | Gauge::BackupLastSuccess => f64::NAN,
        _ => 0.0,
    }
}

fn put((gauge, first, second): &Series, value: f64) {
    match gauge.labels() {
        [] => set(*gauge, &[], value),
        [only] => set(*gauge, &[(only, first)], value),
        [one, other, ..] => set(*gauge, &[(one, first), (other, second)], value),
    }
}
