//! How long the machine held up the test itself.
//!
//! A timer rings every 50 ms, and how late it rings is recorded. On a busy machine an act may end late although nothing
//! that it waited for was slow; what the test could not even observe is not held against it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::sleep_until};

const EVERY: Duration = Duration::from_millis(50);
/// A timer may be so late on any machine.
const USUAL: Duration = Duration::from_millis(10);

/// The times in which the test stood still, from when to when.
type Seen = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Records stalls until dropped.
pub(super) struct Stalls {
    seen: Seen,
    task: JoinHandle<()>,
}

impl Stalls {
    /// Begins to record.
    pub(super) fn watch() -> Stalls {
        let seen = Seen::default();
        #[expect(clippy::disallowed_methods, reason = "a test's own timer")]
        let task = tokio::spawn(ring(seen.clone()));
        Stalls { seen, task }
    }

    /// How long the test stood still between these two moments.
    pub(super) fn between(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let within =
            |(began, ended): &(Instant, Instant)| (*ended).min(to).saturating_duration_since((*began).max(from));
        seen.iter().rev().take_while(|(_, ended)| *ended > from).map(within).sum()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ring(seen: Seen) {
    loop {
        let due = Instant::now() + EVERY;
        sleep_until(due.into()).await;
        let now = Instant::now();
        if now.duration_since(due) > USUAL {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((due, now));
        }
    }
}
