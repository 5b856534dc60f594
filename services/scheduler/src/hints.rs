//! Hints to the reconciler that a job is due soon, whichever replica is its leader.
//!
//! Promises: at most one hint per due time is open; a lost hint costs at most one interval, because the loop also runs
//! by itself. Leaves to others: the check of the jobs.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_bus::{Bus, subjects};
use muster_chassis::Registry;
use muster_wire::{Body, v1::Wake};

use crate::loop_names::RECONCILER;

/// The loop's own interval finds jobs that are due later than this.
const WORTH_A_HINT: Duration = Duration::from_secs(6);

/// The due time of the last hint.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    told: Mutex<Option<Instant>>,
}

impl Hints {
    /// Hints every replica that a job is due in `after`, unless a hint for that time or an earlier one is still open.
    pub(crate) async fn due_in(&self, loops: &Registry, bus: &Bus, after: Duration) {
        if !self.is_news(after, Instant::now()) {
            return;
        }
        // This replica's own loop is woken directly, without the bus.
        loops.wake(RECONCILER, after);
        let in_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let wake = Wake { r#loop: RECONCILER.to_owned(), in_us };
        // A lost hint costs an interval; the bus logs the fault.
        let _ = bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
    }

    fn is_news(&self, after: Duration, now: Instant) -> bool {
        if after > WORTH_A_HINT {
            return false;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let due = now + after;
        if told.is_some_and(|told| told >= now && told <= due) {
            return false;
        }
        *told = Some(due);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_news_is_told() {
        let (hints, now, s) = (Hints::default(), Instant::now(), Duration::from_secs(1));
        assert!(hints.is_news(s, now));
        assert!(!hints.is_news(2 * s, now), "the earlier look finds it too, or when it is due");
        assert!(hints.is_news(s / 2, now), "earlier than what was told");
        assert!(hints.is_news(s, now + s), "what was told has passed");
        assert!(!hints.is_news(60 * s, now + 9 * s), "the interval is soon enough");
    }
}
