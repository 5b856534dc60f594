//! The list of a process's loops: frozen at start, shown by `/loops`, checked by readiness.

use std::{
    marker::PhantomData,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Counts, Holder, Leadership, Loop, Safety, Waker, runner};
use crate::{health::Part, tasks::Tasks};

/// All loops of a process. Copies are the same list.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    entries: Mutex<Vec<Arc<Entry>>>,
    frozen: AtomicBool,
    tasks: Tasks,
    part: Part,
}

/// What is known of one loop.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) safe: Safety,
    pub(super) interval: Duration,
    pub(super) budget: Duration,
    pub(super) waker: Waker,
    /// Who holds the lease; asked once the loop has started.
    holder: OnceLock<Box<dyn Fn() -> Option<Holder> + Send + Sync>>,
    status: Mutex<Status>,
}

#[derive(Default)]
struct Status {
    started: bool,
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

/// A registered loop that still has to be started.
#[must_use = "a loop that is registered and not started fails readiness"]
pub struct Slot<L: Loop> {
    entry: Arc<Entry>,
    registry: Registry,
    of: PhantomData<fn(L)>,
}

impl Registry {
    /// An empty list; its loops run in a group of `tasks`, and `part` tells whether all do.
    pub fn new(tasks: &Tasks, part: Part) -> Registry {
        let inner = Inner { entries: Mutex::default(), frozen: AtomicBool::new(false), tasks: tasks.group(), part };
        Registry { inner: Arc::new(inner) }
    }

    /// Adds a loop. Panics when the list is frozen or has that name already.
    pub fn register<L: Loop>(&self, interval: Duration) -> Slot<L> {
        assert!(!self.inner.frozen.load(Ordering::Acquire), "loop {} is registered after the start", L::NAME);
        let mut entries = self.entries();
        assert!(entries.iter().all(|entry| entry.name != L::NAME), "loop {} is registered twice", L::NAME);
        let entry = Arc::new(Entry {
            name: L::NAME,
            safe: L::SAFE,
            interval,
            budget: L::BUDGET,
            waker: Waker::default(),
            holder: OnceLock::new(),
            status: Mutex::default(),
        });
        entries.push(entry.clone());
        Slot { entry, registry: self.clone(), of: PhantomData }
    }

    /// No loop may be added from now on; readiness begins to demand that all have started.
    pub fn freeze(&self) {
        self.inner.frozen.store(true, Ordering::Release);
        self.tell_readiness();
    }

    /// Hands on a hint by name. False if there is no such loop here.
    pub fn wake(&self, name: &str, after: Duration) -> bool {
        let waker = self.entries().iter().find(|entry| entry.name == name).map(|entry| entry.waker.clone());
        match &waker {
            Some(waker) if after.is_zero() => waker.wake(),
            Some(waker) => waker.wake_in(after),
            None => {}
        }
        waker.is_some()
    }

    /// Lets running ticks end, then gives all leases up. Returns the names of late loops.
    pub async fn stop(&self, limit: Duration) -> Vec<&'static str> {
        self.inner.tasks.drain(limit).await
    }

    /// What `/loops` answers. Times are ages, since clocks differ.
    pub fn show(&self) -> Value {
        Value::Array(self.show_each())
    }

    /// The same, one value for each loop.
    pub fn show_each(&self) -> Vec<Value> {
        self.entries().iter().map(|entry| entry.show()).collect()
    }

    fn tell_readiness(&self) {
        let idle: Vec<_> = self.entries().iter().filter(|e| !e.status().started).map(|e| e.name).collect();
        match (self.inner.frozen.load(Ordering::Acquire), idle.is_empty()) {
            (true, true) => self.inner.part.ready(),
            (true, false) => self.inner.part.not_ready(format!("not started: {}", idle.join(", "))),
            (false, _) => {}
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.inner.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Loop> Slot<L> {
    /// Wakes this loop, also before it has started.
    pub fn waker(&self) -> Waker {
        self.entry.waker.clone()
    }

    /// Starts it. What `leadership` grants is what the loop's pass takes, so a leader's loop
    /// cannot be started without somebody who elects.
    pub fn start(self, body: L, leadership: impl Leadership<Lease = L::Lease>) {
        const {
            let is_unit = size_of::<L::Lease>() == 0;
            assert!(!(L::SAFE.needs_lease() && is_unit), "a leader's lease must be a value, not ()");
        }
        let leadership = Arc::new(leadership);
        let asked = leadership.clone();
        // A slot starts once, so it was not set before.
        let _ = self.entry.holder.set(Box::new(move || asked.holder()));
        self.entry.status().started = true;
        self.registry.tell_readiness();
        let tasks = &self.registry.inner.tasks;
        tasks.spawn(L::NAME, runner::run(body, leadership, self.entry, tasks.stopping()));
    }
}

impl Entry {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether this replica holds the loop; tells if that changed.
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

    fn show(&self) -> Value {
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
