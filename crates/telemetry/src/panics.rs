//! Handling of work that panics, wherever it runs: the panic is counted and logged under a name, and affects no other
//! work.
//!
//! This is for crates below the chassis, which have no named tasks: work that they run beside their callers is
//! [`caught`], and resumed after a [`Pauses::rest`] or by the next call.

use std::{
    any::Any,
    future::Future,
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use futures_util::FutureExt;

use crate::events::{Emit, TaskPanicked};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The work panicked; the panic is already logged and counted.
#[derive(Debug)]
pub struct Panicked;

/// Runs `work`; a panic in it is counted and logged under `name`.
pub async fn caught<T>(name: &'static str, work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|payload| {
        TaskPanicked { task: name, detail: said(payload.as_ref()) }.emit();
        Panicked
    })
}

/// The message of a panic, if it has one.
pub fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// The pauses before failed work is resumed: each is twice as long as the one before, up to some seconds.
#[derive(Debug)]
pub struct Pauses {
    next: Duration,
    rested: Instant,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses { next: FIRST_PAUSE, rested: Instant::now() }
    }
}

impl Pauses {
    /// Waits. If the work ran well for a while since the last pause, starts over with short pauses.
    pub async fn rest(&mut self) {
        if self.rested.elapsed() > 2 * LONGEST_PAUSE {
            self.next = FIRST_PAUSE;
        }
        tokio::time::sleep(self.next).await;
        self.next = (2 * self.next).min(LONGEST_PAUSE);
        self.rested = Instant::now();
    }
}
