//! The workers that live, as their heartbeats tell.
//!
//! Knows: each worker's topics, slots and how many are busy; free slots per lane, kept up to date
//! with every heartbeat. Promises: a worker that has not been heard for 30 s is gone; one that
//! says it leaves is gone at once. Leaves to others: giving work (workers pull), and judging a
//! worker's attempts (their leases say).

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use muster_bus::subjects;
use muster_wire::{Body, v1::Heartbeat};
use tokio_util::sync::CancellationToken;

use crate::desk::Desk;

/// A worker that was not heard for so long is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);
/// How often the gone are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// All workers this replica has heard of lately.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    workers: HashMap<String, Worker>,
    /// By tenant, then topic.
    free: HashMap<String, HashMap<String, u64>>,
}

#[derive(Debug)]
struct Worker {
    tenant: String,
    topics: Vec<String>,
    free: u64,
    heard: Instant,
}

impl Fleet {
    /// A worker was heard.
    pub(crate) fn heard(&self, beat: Heartbeat, now: Instant) {
        let mut state = self.state();
        state.forget(&beat.worker);
        if beat.leaving {
            return;
        }
        let free = u64::from(beat.slots.saturating_sub(beat.busy));
        let worker = Worker { tenant: beat.tenant, topics: beat.topics, free, heard: now };
        for topic in &worker.topics {
            state.add(&worker.tenant, topic, free);
        }
        state.workers.insert(beat.worker, worker);
    }

    /// Forgets who has not been heard for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut state = self.state();
        let gone = |w: &Worker| now.saturating_duration_since(w.heard) > GONE_AFTER;
        let names: Vec<String> = state.workers.iter().filter(|(_, w)| gone(w)).map(|(name, _)| name.clone()).collect();
        for name in names {
            state.forget(&name);
        }
    }

    /// How many slots are free for a tenant's topic, over all its live workers.
    pub(crate) fn free_slots(&self, tenant: &str, topic: &str) -> u64 {
        self.state().free.get(tenant).and_then(|topics| topics.get(topic)).copied().unwrap_or(0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget(&mut self, name: &str) {
        let Some(worker) = self.workers.remove(name) else { return };
        let Some(topics) = self.free.get_mut(&worker.tenant) else { return };
        for topic in &worker.topics {
            if let Some(free) = topics.get_mut(topic) {
                *free = free.saturating_sub(worker.free);
            }
        }
        topics.retain(|_, free| *free > 0);
        if topics.is_empty() {
            self.free.remove(&worker.tenant);
        }
    }

    fn add(&mut self, tenant: &str, topic: &str, free: u64) {
        if free > 0 {
            let topics = self.free.entry(tenant.to_owned()).or_default();
            *topics.entry(topic.to_owned()).or_default() += free;
        }
    }
}

/// Listens to heartbeats and handshakes until stopped. A worker's word makes its topics known
/// here: a backlog that waited for it is found and released at once.
pub(crate) async fn listen(desk: &Desk, stop: &CancellationToken) -> anyhow::Result<()> {
    let mut beats = desk.bus().subscribe(&subjects::heartbeat(), None).await?;
    let mut hands = desk.bus().subscribe(&subjects::handshake(), None).await?;
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        let received = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = sweep.tick() => {
                desk.fleet.sweep(Instant::now());
                continue;
            }
            received = beats.next() => received,
            received = hands.next() => received,
        };
        let Some(received) = received else { anyhow::bail!("the subscription to heartbeats ended") };
        if let Body::Heartbeat(beat) = received.body {
            note(desk, beat);
        }
    }
}

fn note(desk: &Desk, beat: Heartbeat) {
    let (tenant, topics) = (beat.tenant.clone(), beat.topics.clone());
    let leaving = beat.leaving;
    desk.fleet.heard(beat, Instant::now());
    for topic in topics {
        // A worker's own names are not ours to judge; one that is no topic has no lane.
        let Ok(lane) = desk.lanes.lane(&tenant, &topic) else { continue };
        lane.window().free_slots(desk.fleet.free_slots(&tenant, &topic));
        if !leaving && lane.can_release() {
            desk.lanes.poke(&lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(worker: &str, topics: &[&str], slots: u32, busy: u32) -> Heartbeat {
        Heartbeat {
            worker: worker.into(),
            tenant: "default".into(),
            topics: topics.iter().map(|t| (*t).to_owned()).collect(),
            slots,
            busy,
            ..Default::default()
        }
    }

    #[test]
    fn free_slots_follow_every_heartbeat() {
        let (fleet, now) = (Fleet::default(), Instant::now());
        fleet.heard(beat("w1", &["a", "b"], 10, 4), now);
        fleet.heard(beat("w2", &["a"], 5, 0), now);
        assert_eq!((fleet.free_slots("default", "a"), fleet.free_slots("default", "b")), (11, 6));
        fleet.heard(beat("w1", &["a"], 10, 10), now);
        assert_eq!((fleet.free_slots("default", "a"), fleet.free_slots("default", "b")), (5, 0));
        assert_eq!(fleet.free_slots("other", "a"), 0);
    }

    #[test]
    fn a_silent_worker_and_one_that_leaves_are_gone() {
        let (fleet, now) = (Fleet::default(), Instant::now());
        fleet.heard(beat("w1", &["a"], 3, 0), now);
        fleet.heard(beat("w2", &["a"], 4, 0), now + GONE_AFTER);
        fleet.sweep(now + GONE_AFTER + Duration::from_millis(1));
        assert_eq!(fleet.free_slots("default", "a"), 4);
        fleet.heard(Heartbeat { leaving: true, ..beat("w2", &["a"], 4, 0) }, now + GONE_AFTER);
        assert_eq!(fleet.free_slots("default", "a"), 0);
    }
}
