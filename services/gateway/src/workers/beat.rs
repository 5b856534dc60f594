//! Heartbeats for workers that speak HTTP: sent while a call of theirs is open.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_bus::{Bus, subjects};
use muster_domain::{Tenant, WorkerId};
use muster_wire::{Body, v1};

/// How often a worker is heard of.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Workers that are remembered at most.
const MOST: usize = 10_000;

/// Who was heard of when.
#[derive(Default)]
pub(super) struct Beats(Mutex<HashMap<WorkerId, Said>>);

/// What was last said of a worker, and when.
#[derive(Clone, Copy)]
struct Said {
    at: Instant,
    consuming: bool,
}

/// What a heartbeat says.
pub(super) struct Beat<'a> {
    pub(super) worker: &'a WorkerId,
    pub(super) tenant: &'a Tenant,
    pub(super) topics: Vec<String>,
    pub(super) slots: usize,
    pub(super) busy: usize,
    /// None from a call that does not say.
    pub(super) provides: Option<BTreeMap<String, String>>,
    /// Not once it was told to leave.
    pub(super) consuming: bool,
}

impl Beats {
    /// Whether so much time has passed that this worker has to be heard of again.
    pub(super) fn is_due(&self, worker: &WorkerId) -> bool {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.get(worker).is_none_or(|last| last.at.elapsed() >= EVERY)
    }

    /// Whether this worker's next heartbeat is due, or says something else than the last; if so it counts as sent.
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

    /// Tells everybody that the worker lives, unless they have just heard.
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
        // The next one heals a lost one.
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
