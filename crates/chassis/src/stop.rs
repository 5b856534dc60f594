//! A stop in named stages, within one limit.
//!
//! The service registers the stages in the order in which they run. Each stage is logged with how
//! long it took. A stage that is late is named and abandoned, and the stages after it still run. A
//! second signal ends the process at once. The service decides what each stage does.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::tasks::Tasks;
use muster_telemetry::{Panicked, caught};

/// How long a whole stop may take; less than the 30 s that Kubernetes allows.
pub const LIMIT: Duration = Duration::from_secs(15);
/// The time reserved for each later stage, however long an earlier one hangs.
const RESERVE: Duration = Duration::from_secs(1);

/// The stages of a process's end. Clones are the same stop.
#[derive(Clone, Default)]
pub struct Stop {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    requested: CancellationToken,
    stages: Mutex<Vec<Stage>>,
}

struct Stage {
    name: &'static str,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Stop {
    /// A stop without stages.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Adds a stage after the existing ones. `work` begins when its turn comes.
    pub fn stage(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let stage = Stage { name, work: Box::pin(work) };
        self.inner.stages.lock().unwrap_or_else(PoisonError::into_inner).push(stage);
    }

    /// Requests a stop, as a signal would.
    pub fn request(&self) {
        self.inner.requested.cancel();
    }

    /// Cancelled once a stop has been requested: then long polls answer, and consumers take no more
    /// work.
    pub fn requested(&self) -> CancellationToken {
        self.inner.requested.clone()
    }

    /// Runs all stages in order, and returns the names of those that were late. A hanging stage is
    /// cut off so that each later one still has a second.
    pub async fn run(&self, limit: Duration) -> Vec<&'static str> {
        self.request();
        let stages = std::mem::take(&mut *self.inner.stages.lock().unwrap_or_else(PoisonError::into_inner));
        let end = Instant::now() + limit;
        let mut late = Vec::new();
        let mut after = u32::try_from(stages.len()).unwrap_or(u32::MAX);
        for Stage { name, work } in stages {
            after -= 1;
            let began = Instant::now();
            let share = end.saturating_duration_since(began).saturating_sub(RESERVE * after).max(RESERVE / 4);
            let ended = tokio::time::timeout(share, caught(name, work)).await;
            let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            match ended {
                Ok(Ok(())) => info!(event = "stop_stage", stage = name, took_ms, "stopped"),
                Ok(Err(Panicked)) => {
                    warn!(event = "stop_stage_panicked", stage = name, took_ms, "a stop stage panicked")
                }
                Err(_) => {
                    warn!(event = "stop_stage_late", stage = name, took_ms, "did not end in time; stopping without it");
                    late.push(name);
                }
            }
        }
        late
    }
}

/// Turns SIGTERM and SIGINT into a stop. A second one ends the process at once.
pub(crate) fn listen_for_signals(tasks: &Tasks, stop: &Stop) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, over) = (stop.clone(), tasks.stopping());
    tasks.spawn("signals", async move {
        loop {
            let (name, code) = tokio::select! {
                () = over.cancelled() => return,
                _ = terminate.recv() => ("SIGTERM", 143),
                _ = interrupt.recv() => ("SIGINT", 130),
            };
            if stop.requested().is_cancelled() {
                warn!(event = "stop_forced", signal = name, "second signal: ending at once");
                std::process::exit(code);
            }
            info!(event = "stop_requested", signal = name, "stopping");
            stop.request();
        }
    });
    Ok(())
}
