//! Reports to the schedulers and gateways that this worker is alive, and whether its loop runs. It runs beside the
//! loop, so that a hanging loop is visible: the heartbeat continues, but it says that the worker does not consume.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use muster_bus::{Bus, subjects};
use muster_wire::{Body, v1};
use tokio::time::Instant;

/// How often a worker sends a heartbeat.
const BEAT: Duration = Duration::from_secs(5);
/// A loop that has not turned for this long hangs.
const TURN_LIMIT: Duration = Duration::from_secs(4);

/// What the loop reports about itself, without a lock.
#[derive(Debug)]
pub(super) struct Vitals {
    born: Instant,
    turned_ms: AtomicU64,
    busy: AtomicU32,
    draining: AtomicBool,
}

impl Vitals {
    pub(super) fn new() -> Arc<Vitals> {
        Arc::new(Vitals {
            born: Instant::now(),
            turned_ms: AtomicU64::new(0),
            busy: AtomicU32::new(0),
            draining: AtomicBool::new(false),
        })
    }

    /// The loop has turned, with this many slots taken.
    pub(super) fn turned(&self, now: Instant, busy: usize) {
        let since = now.duration_since(self.born).as_millis();
        self.turned_ms.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.busy.store(u32::try_from(busy).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// The loop takes no more work.
    pub(super) fn drains(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn consuming(&self) -> bool {
        let turned = Duration::from_millis(self.turned_ms.load(Ordering::Relaxed));
        !self.draining.load(Ordering::Relaxed) && self.born.elapsed().saturating_sub(turned) < TURN_LIMIT
    }
}

/// The content of a worker's heartbeats.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    pub(super) worker: String,
    pub(super) tenant: String,
    pub(super) all_tenants: bool,
    pub(super) topics: Vec<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) slots: usize,
    pub(super) vitals: Arc<Vitals>,
}

impl Pulse {
    fn beat(&self, leaving: bool) -> Body {
        Body::Heartbeat(v1::Heartbeat {
            worker: self.worker.clone(),
            tenant: self.tenant.clone(),
            topics: self.topics.clone(),
            slots: u32::try_from(self.slots).unwrap_or(u32::MAX),
            busy: self.vitals.busy.load(Ordering::Relaxed),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            labels: self.labels.clone(),
            leaving,
            consuming: !leaving && self.vitals.consuming(),
            keeping: false,
            all_tenants: self.all_tenants,
        })
    }

    /// Introduces the worker, then sends heartbeats until it is dropped. If NATS does not take a heartbeat, the next
    /// one makes up for it.
    pub(super) async fn run(self, bus: Bus) {
        bus.connected().await;
        let _ = bus.broadcast(&subjects::handshake(), self.beat(false)).await;
        let mut state = bus.watch_state();
        loop {
            let _ = bus.broadcast(&subjects::heartbeat(), self.beat(false)).await;
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                // After a break, send a heartbeat at once. The sender lives as long as the bus.
                Ok(()) = state.changed() => {}
            }
        }
    }

    /// Sends the last heartbeat.
    pub(super) async fn leave(&self, bus: &Bus) {
        let _ = bus.broadcast(&subjects::heartbeat(), self.beat(true)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse(vitals: &Arc<Vitals>) -> Pulse {
        Pulse {
            worker: "w1".into(),
            tenant: "default".into(),
            all_tenants: false,
            topics: vec!["t".into()],
            labels: BTreeMap::new(),
            slots: 4,
            vitals: Arc::clone(vitals),
        }
    }

    fn reported(pulse: &Pulse, leaving: bool) -> (bool, u32) {
        let Body::Heartbeat(beat) = pulse.beat(leaving) else { panic!("not a heartbeat") };
        (beat.consuming, beat.busy)
    }

    #[tokio::test(start_paused = true)]
    async fn a_beat_tells_whether_the_loop_has_turned_lately() {
        const { assert!(TURN_LIMIT.as_secs() < BEAT.as_secs(), "the second beat after a hang tells of it") }
        let vitals = Vitals::new();
        let pulse = pulse(&vitals);
        let almost = TURN_LIMIT - Duration::from_millis(1);
        tokio::time::advance(almost).await;
        assert_eq!(reported(&pulse, false), (true, 0), "it has just begun");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(reported(&pulse, false), (false, 0), "it never turned");
        vitals.turned(Instant::now(), 3);
        assert_eq!(reported(&pulse, false), (true, 3));
        tokio::time::advance(almost).await;
        assert_eq!(reported(&pulse, false), (true, 3));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(reported(&pulse, false), (false, 3), "it hangs, and what it had taken it still has");
        tokio::time::advance(1000 * TURN_LIMIT).await;
        vitals.turned(Instant::now(), 0);
        assert_eq!(reported(&pulse, false), (true, 0), "it turns again");
    }

    #[tokio::test(start_paused = true)]
    async fn who_drains_or_leaves_takes_no_work_though_the_loop_turns() {
        let vitals = Vitals::new();
        let pulse = pulse(&vitals);
        assert_eq!(reported(&pulse, true), (false, 0));
        vitals.drains();
        vitals.turned(Instant::now(), 1);
        assert_eq!(reported(&pulse, false), (false, 1));
    }
}
