//! Named tasks: which ones run, which panicked, which are late.
//!
//! This module knows every task of the process by name. A panic is caught, counted and logged, and
//! affects no other task. A supervised task is restarted with back-off. A drain names the tasks
//! that did not end in time, and only then cuts them off; a task is never cut off before its
//! drain's limit. Each task must watch [`Tasks::stopping`] and end soon after.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_telemetry::{Panicked, Pauses, caught};
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinHandle},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// A set of named tasks that stop together. Clones are the same set.
#[derive(Clone)]
pub struct Tasks {
    inner: Arc<Inner>,
}

struct Inner {
    stop: CancellationToken,
    parent: Option<Tasks>,
    running: Mutex<BTreeMap<u64, Running>>,
    ended: Notify,
}

struct Running {
    name: &'static str,
    abort: Option<AbortHandle>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks::new()
    }
}

impl Tasks {
    /// An empty set.
    pub fn new() -> Tasks {
        Tasks::under(None)
    }

    /// A set within this one: it can be drained alone, and is drained with this one. For the stages
    /// of a stop: first the consumers, then the work in flight.
    pub fn group(&self) -> Tasks {
        Tasks::under(Some(self.clone()))
    }

    fn under(parent: Option<Tasks>) -> Tasks {
        let stop = parent.as_ref().map_or_else(CancellationToken::new, |up| up.inner.stop.child_token());
        Tasks { inner: Arc::new(Inner { stop, parent, running: Mutex::default(), ended: Notify::new() }) }
    }

    /// Cancelled when the set is asked to end.
    pub fn stopping(&self) -> CancellationToken {
        self.inner.stop.clone()
    }

    /// Runs `work` once. The handle gives `None` if `work` panicked; dropping the handle changes
    /// nothing.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.each_set(|set| drop(set.running().insert(id, Running { name, abort: None })));
        let entry = Entry { id, tasks: self.clone() };
        #[expect(clippy::disallowed_methods, reason = "the one place that spawns: named, tracked, guarded")]
        let handle = tokio::spawn(async move {
            let _entry = entry;
            caught(name, work).await.ok()
        });
        self.each_set(|set| {
            if let Some(running) = set.running().get_mut(&id) {
                running.abort = Some(handle.abort_handle());
            }
        });
        handle
    }

    /// Runs the future that `make` returns, again and again while it panics or fails, with a
    /// growing pause between. Ends, and the handle with it, when the future returns `Ok` or the set
    /// is stopping.
    pub fn supervise<F>(
        &self,
        name: &'static str,
        mut make: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<Option<()>>
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let stop = self.stopping();
        self.spawn(name, async move {
            let mut pauses = Pauses::default();
            loop {
                match caught(name, async { make().await }).await {
                    Ok(Ok(())) => return,
                    Ok(Err(fault)) => {
                        warn!(event = "task_failed", task = name, detail = format!("{fault:#}"), "a task failed")
                    }
                    Err(Panicked) => {}
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = pauses.rest() => {}
                }
            }
        })
    }

    /// The names of the tasks that run now, without duplicates.
    pub fn running(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.inner.running().values().map(|task| task.name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Asks all tasks to end, waits for them up to `limit`, then cuts off the rest. Returns the
    /// names of the cut-off tasks, without duplicates; empty means that all ended by themselves.
    pub async fn drain(&self, limit: Duration) -> Vec<&'static str> {
        self.inner.stop.cancel();
        let all_ended = async {
            loop {
                let ended = self.inner.ended.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                if self.inner.running().is_empty() {
                    return;
                }
                ended.await;
            }
        };
        if tokio::time::timeout(limit, all_ended).await.is_ok() {
            return Vec::new();
        }
        let late = self.running();
        for task in self.inner.running().values() {
            task.abort.iter().for_each(AbortHandle::abort);
        }
        late
    }

    fn each_set(&self, mut act: impl FnMut(&Inner)) {
        let mut set = Some(self);
        while let Some(Tasks { inner }) = set {
            act(inner);
            set = inner.parent.as_ref();
        }
    }
}

impl Inner {
    fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task's place in the sets that it belongs to, removed however the task ends.
struct Entry {
    id: u64,
    tasks: Tasks,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.tasks.each_set(|set| {
            set.running().remove(&self.id);
            set.ended.notify_waiters();
        });
    }
}
