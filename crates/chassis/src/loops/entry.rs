//! The state of one loop: its constants, its holder, its last tick. `/loops` shows it.

use std::{
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Counts, Holder, Safety, Waker};

/// A registered loop and its state.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) safe: Safety,
    pub(super) interval: Duration,
    pub(super) budget: Duration,
    pub(super) waker: Waker,
    /// Returns the holder of the lease; set when the loop starts.
    pub(super) holder: OnceLock<Box<dyn Fn() -> Option<Holder> + Send + Sync>>,
    pub(super) status: Mutex<Status>,
}

/// The current activity of a loop, and its last tick.
#[derive(Default)]
pub(super) struct Status {
    pub(super) started: bool,
    holds_since: Option<Instant>,
    ticks: u64,
    running_since: Option<Instant>,
    last: Option<Last>,
    next: Option<Instant>,
}

struct Last {
    outcome: &'static str,
    began: Instant,
    took: Duration,
    counts: Counts,
    error: Option<String>,
}

impl Entry {
    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether this replica holds the loop; returns whether that changed.
    pub(super) fn holds(&self, holds: bool) -> bool {
        let mut status = self.status();
        let changed = status.holds_since.is_some() != holds;
        if changed {
            status.holds_since = holds.then(Instant::now);
        }
        if !holds {
            status.next = None;
        }
        changed
    }

    pub(super) fn tick_begins(&self) {
        let mut status = self.status();
        status.running_since = Some(Instant::now());
        status.next = None;
    }

    pub(super) fn tick_ended(&self, outcome: &'static str, took: Duration, counts: Counts, error: Option<String>) {
        let mut status = self.status();
        status.ticks += 1;
        let began = status.running_since.take().unwrap_or_else(Instant::now);
        status.last = Some(Last { outcome, began, took, counts, error });
    }

    pub(super) fn next_tick(&self, at: Instant) {
        self.status().next = Some(at);
    }

    pub(super) fn show(&self) -> Value {
        let holder = self.holder.get().and_then(|ask| ask());
        let status = self.status();
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let state = match (status.started, status.holds_since.is_some(), self.safe.needs_lease()) {
            (false, _, _) => "not_started",
            (true, true, true) => "leading",
            (true, false, true) => "standby",
            (true, _, false) => "active",
        };
        let last = status.last.as_ref().map(|last| {
            let counts: serde_json::Map<String, Value> =
                last.counts.items.iter().map(|(what, n)| ((*what).to_owned(), json!(n))).collect();
            json!({
                "outcome": last.outcome,
                "ago_ms": ms(last.began.elapsed()),
                "took_ms": ms(last.took),
                "counts": counts,
                "error": last.error,
            })
        });
        json!({
            "name": self.name,
            "class": self.safe.class(),
            "lock": self.safe.lock(),
            "why_safe": self.safe.why(),
            "duplicate_costs": self.safe.duplicate_costs(),
            "state": state,
            "holder": holder.as_ref().map(|holder| &holder.instance),
            "fence": holder.as_ref().map(|holder| holder.fence),
            "since": holder.as_ref().map(|holder| &holder.since),
            "held_for_ms": status.holds_since.map(|since| ms(since.elapsed())),
            "interval_ms": ms(self.interval),
            "budget_ms": ms(self.budget),
            "ticks": status.ticks,
            "merged_hints": self.waker.merged(),
            "running_for_ms": status.running_since.map(|since| ms(since.elapsed())),
            "last": last,
            "next_in_ms": status.next.map(|at| ms(at.saturating_duration_since(Instant::now()))),
        })
    }
}
