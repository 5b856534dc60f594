//! Gauges that one replica shows for the whole fleet.
//!
//! Promises: a gauge that is no longer measured, or that another replica shows now, does not keep its value. A count
//! becomes 0, so that sums over replicas are right; a value for which 0 would raise an alarm becomes NaN, which
//! PromQL's `max` ignores.

use std::collections::HashMap;

use muster_telemetry::{Gauge, set};

/// A gauge and the values of its labels, in their order; empty where it has none.
pub(super) type Series = (Gauge, String, &'static str);

pub(super) type Measured = HashMap<Series, f64>;

/// The gauges as this replica last showed them.
#[derive(Default)]
pub(super) struct Shown(Measured);

impl Shown {
    /// Sets these gauges and clears all others.
    pub(super) fn replace(&mut self, now: Measured) {
        for series in self.0.keys().filter(|series| !now.contains_key(*series)) {
            put(series, nothing(series.0));
        }
        now.iter().for_each(|(series, value)| put(series, *value));
        self.0 = now;
    }

    /// Takes the gauges out, to change them and show them again.
    pub(super) fn take(&mut self) -> Measured {
        std::mem::take(&mut self.0)
    }
}

/// The value of a gauge that this replica no longer shows.
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
