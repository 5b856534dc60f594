//! Sends heartbeats for workers that speak HTTP, while one of their calls is open.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_bus::{Bus, subjects};
use muster_domain::{Tenant, WorkerId};
use muster_wire::{Body, v1};

/// How often a heartbeat of a worker is sent.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// The most workers that are remembered.
const MOST: usize = 10_000;

/// The last heartbeat of each worker.
#[derive(Default)]
pub(super) struct Beats(Mutex<HashMap<WorkerId, Said>>);

/// When the last heartbeat of a worker was sent, and whether it said that the worker takes jobs.
#[derive(Clone, Copy)]
struct Said {
    at: Instant,
    consuming: bool,
}

/// The content of a heartbeat.
pub(super) struct Beat<'a> {
    pub(super) worker: &'a WorkerId,
    pub(super) tenant: &'a Tenant,
    pub(super) topics: Vec<String>,
    pub(super) slots: usize,
    pub(super) busy: usize,
    /// `None` from a call that does not carry it.
    pub(super) provides: Option<BTreeMap<String, String>>,
    /// Whether the worker takes jobs; false once it was asked to drain.
    pub(super) consuming: bool,
}

impl Beats {
    /// Whether the last heartbeat of this worker is so old that another one is needed.
    pub(super) fn is_due(&self, worker: &WorkerId) -> bool {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.get(worker).is_none_or(|last| last.at.elapsed() >= EVERY)
    }

    /// Whether a heartbeat of this worker is due, or differs from the last one. If so, it counts as sent.
    fn due(&self, worker: &WorkerId, consuming: bool, now: Instant) -> bool {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |last: &Said| now.saturating_duration_since(last.at) < EVERY;
        if sent.get(worker).is_some_and(|last| fresh(last) && last.consuming == consuming) {
            return false;
        }
        if sent.len() >= MOST {
            sent.retain(|_, last| fresh(last));
        }
        sent.insert(worker.clone(), Said { at: now, consuming });
        true
    }

    /// Broadcasts that the worker is alive, unless a heartbeat that says the same was just sent.
    pub(super) async fn send(&self, bus: &Bus, beat: Beat<'_>) {
        if !self.due(beat.worker, beat.consuming, Instant::now()) {
            return;
        }
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let heartbeat = v1::Heartbeat {
            worker: beat.worker.to_string(),
            tenant: beat.tenant.to_string(),
            topics: beat.topics,
            slots: count(beat.slots),
            busy: count(beat.busy),
            version: String::new(),
            keeping: beat.provides.is_none(),
            labels: beat.provides.unwrap_or_default(),
            leaving: false,
            consuming: beat.consuming,
            all_tenants: false,
        };
        // The next heartbeat makes up for a lost one.
        let _ = bus.broadcast(&subjects::heartbeat(), Body::Heartbeat(heartbeat)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_worker_is_heard_of_every_five_seconds_only() {
        let beats = Beats::default();
        let (one, other) = (WorkerId::trusted("h~a~1"), WorkerId::trusted("h~a~2"));
        let now = Instant::now();
        assert!(beats.due(&one, true, now));
        assert!(!beats.due(&one, true, now + Duration::from_secs(4)));
        assert!(beats.due(&other, true, now));
        assert!(beats.due(&one, true, now + EVERY));
    }

    #[test]
    fn that_a_worker_takes_no_more_is_said_at_once() {
        let (beats, worker, now) = (Beats::default(), WorkerId::trusted("h~a~1"), Instant::now());
        assert!(beats.due(&worker, true, now));
        assert!(beats.due(&worker, false, now));
        assert!(!beats.due(&worker, false, now + Duration::from_secs(4)));
        assert!(beats.due(&worker, false, now + EVERY));
    }
}
