//! The list of a process's loops: frozen at start, shown by `/loops`, checked by readiness.

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

use super::{Leadership, Loop, Waker, entry::Entry, runner};
use crate::{health::Part, tasks::Tasks};

/// All loops of a process. Clones share the same list.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    entries: Mutex<Vec<Arc<Entry>>>,
    /// Wakers by name, including loops that are not registered yet.
    wakers: Mutex<BTreeMap<&'static str, Waker>>,
    frozen: AtomicBool,
    tasks: Tasks,
    part: Part,
}

/// A registered loop that still has to be started.
#[must_use = "a loop that is registered and not started fails readiness"]
pub struct Slot<L: Loop> {
    entry: Arc<Entry>,
    registry: Registry,
    of: PhantomData<fn(L)>,
}

impl Registry {
    /// An empty list. Its loops run in a group of `tasks`, and `part` shows whether all of them
    /// have started.
    pub fn new(tasks: &Tasks, part: Part) -> Registry {
        let inner = Inner {
            entries: Mutex::default(),
            wakers: Mutex::default(),
            frozen: AtomicBool::new(false),
            tasks: tasks.group(),
            part,
        };
        Registry { inner: Arc::new(inner) }
    }

    /// Adds a loop. Panics if the list is frozen or already has a loop of that name.
    pub fn register<L: Loop>(&self, interval: Duration) -> Slot<L> {
        assert!(!self.inner.frozen.load(Ordering::Acquire), "loop {} is registered after the start", L::NAME);
        let mut entries = self.entries();
        assert!(entries.iter().all(|entry| entry.name != L::NAME), "loop {} is registered twice", L::NAME);
        let entry = Arc::new(Entry {
            name: L::NAME,
            safe: L::SAFE,
            interval,
            budget: L::BUDGET,
            waker: self.waker(L::NAME),
            holder: OnceLock::new(),
            status: Mutex::default(),
        });
        entries.push(entry.clone());
        Slot { entry, registry: self.clone(), of: PhantomData }
    }

    /// The waker of the loop with this name, which may be registered later.
    pub fn waker(&self, name: &'static str) -> Waker {
        self.inner.wakers.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default().clone()
    }

    /// Freezes the list; from now on readiness requires that all loops have started.
    pub fn freeze(&self) {
        self.inner.frozen.store(true, Ordering::Release);
        self.tell_readiness();
    }

    /// Passes a hint to the loop with this name. Returns false if there is no such loop here.
    pub fn wake(&self, name: &str, after: Duration) -> bool {
        let waker = self.entries().iter().find(|entry| entry.name == name).map(|entry| entry.waker.clone());
        match &waker {
            Some(waker) if after.is_zero() => waker.wake(),
            Some(waker) => waker.wake_in(after),
            None => {}
        }
        waker.is_some()
    }

    /// Lets running ticks end, then gives up all leases. Returns the names of late loops.
    pub async fn stop(&self, limit: Duration) -> Vec<&'static str> {
        self.inner.tasks.drain(limit).await
    }

    /// The answer of `/loops`. Times are ages, because clocks differ.
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
    /// The waker of this loop; it also works before the loop has started.
    pub fn waker(&self) -> Waker {
        self.entry.waker.clone()
    }

    /// Starts the loop. The loop's pass takes what `leadership` grants, so a leader's loop cannot
    /// be started without a leader election.
    pub fn start(self, body: L, leadership: impl Leadership<Lease = L::Lease>) {
        const {
            let is_unit = size_of::<L::Lease>() == 0;
            assert!(!(L::SAFE.needs_lease() && is_unit), "a leader's lease must be a value, not ()");
        }
        let leadership = Arc::new(leadership);
        let asked = leadership.clone();
        // A slot starts once, so the holder was not set before.
        let _ = self.entry.holder.set(Box::new(move || asked.holder()));
        self.entry.status().started = true;
        self.registry.tell_readiness();
        let tasks = &self.registry.inner.tasks;
        tasks.spawn(L::NAME, runner::run(body, leadership, self.entry, tasks.stopping()));
    }
}
