//! Hints to a loop: tick now, or tick at a given time. Hints that arrive while another one waits are merged.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// Wakes one loop of this process. Clones wake the same loop.
#[derive(Clone, Default)]
pub struct Waker {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    hints: Mutex<Hints>,
    hinted: Notify,
}

#[derive(Default)]
struct Hints {
    now: bool,
    at: Option<Instant>,
    merged: u64,
}

impl Waker {
    /// Asks for a tick at once or, if a tick is running, after it. Any number of calls before that tick begins cause
    /// one tick.
    pub fn wake(&self) {
        let mut hints = self.hints();
        match hints.now {
            true => hints.merged += 1,
            false => hints.now = true,
        }
        drop(hints);
        self.inner.hinted.notify_one();
    }

    /// Asks for a tick at `when`, unless one comes sooner.
    pub fn wake_at(&self, when: Instant) {
        let mut hints = self.hints();
        if hints.at.is_some_and(|at| at <= when) {
            hints.merged += 1;
            return;
        }
        hints.at = Some(when);
        drop(hints);
        self.inner.hinted.notify_one();
    }

    /// Asks for a tick in `span`, unless one comes sooner.
    pub fn wake_in(&self, span: Duration) {
        self.wake_at(Instant::now() + span);
    }

    /// How many hints were served by a tick that another hint had already requested.
    pub fn merged(&self) -> u64 {
        self.hints().merged
    }

    /// A tick begins: it serves all hints up to now.
    pub(super) fn begin(&self) {
        let mut hints = self.hints();
        hints.now = false;
        hints.at = hints.at.filter(|at| *at > Instant::now());
    }

    /// Returns when a hint is due, or at `latest`.
    pub(super) async fn due(&self, latest: Instant) {
        loop {
            let hinted = self.inner.hinted.notified();
            let until = {
                let hints = self.hints();
                if hints.now {
                    return;
                }
                hints.at.map_or(latest, |at| at.min(latest))
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = hinted => {}
            }
        }
    }

    fn hints(&self) -> MutexGuard<'_, Hints> {
        self.inner.hints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
