//! Whether a lease that has run out may be ended for its worker's silence.
//!
//! Knows: when this replica last saw NATS and Redis answer without a gap, and up to which moment
//! the results that stood on the stream have been handled. Promises: after a gap, this replica's
//! start, or a jump between Redis TIME and the local clock, no lease is called silent before a
//! whole wait has passed undisturbed; and none before every result that stood on the stream once
//! it had run out was handled. So an outage re-runs no job whose worker lives. Leaves to others:
//! probing (`run`'s task), and ending the lease (`loops/reconciler`).

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use muster_bus::{ConsumerSpec, ResultsMark, subjects};
use muster_chassis::Part;
use muster_domain::{Time, ids::SHARDS, time::micros};
use muster_telemetry::{Gauge, set};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::desk::Desk;

/// How often the stores are probed.
pub(crate) const PROBE: Duration = Duration::from_secs(1);
/// Probes further apart than this are a gap: a sixth of the usual lease.
const GAP: Duration = Duration::from_secs(5);
/// TIME and the local clock may drift apart by so much between two probes.
const JUMP: Duration = Duration::from_secs(1);
/// How soon to ask again while results stand unhandled.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// What is known, shared by the probe and the reconciler.
#[derive(Debug)]
pub(crate) struct Silence {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    wait: Duration,
    /// The last gap ended here.
    disturbed_at: Instant,
    last_probe: Instant,
    /// TIME and the local clock as the last probe saw them together, per home shard: on a cluster
    /// each has a node's own clock.
    clocks: Vec<Option<(Time, Instant)>>,
    /// Every result that stood on the stream at this moment was handled.
    handled_until: Time,
    /// A last result seen at a moment, not yet handled.
    target: Option<Target>,
}

#[derive(Clone, Debug)]
struct Target {
    seen: Time,
    sequence: u64,
    stream_created: String,
}

impl Silence {
    /// A replica that has just started: its start counts as a gap.
    pub(crate) fn new(wait: Duration, now: Instant) -> Silence {
        let state = State {
            wait,
            disturbed_at: now,
            last_probe: now,
            clocks: vec![None; usize::from(SHARDS)],
            handled_until: Time::NONE,
            target: None,
        };
        Silence { state: Mutex::new(state) }
    }

    /// Both stores answered at `now`; these are the shards' own times.
    pub(crate) fn answered(&self, times: &[Time], now: Instant) {
        let mut state = self.state();
        let late = now.saturating_duration_since(state.last_probe) > GAP;
        let mut jumped = false;
        for (clock, time) in state.clocks.iter_mut().zip(times) {
            if let Some((then, at)) = clock.replace((*time, now)) {
                let by_redis = i128::from(time.0) - i128::from(then.0);
                let by_us = i128::from(micros(now.saturating_duration_since(at)));
                jumped |= (by_redis - by_us).unsigned_abs() > JUMP.as_micros();
            }
        }
        state.last_probe = now;
        if late || jumped {
            state.disturb(now);
        }
    }

    /// A store did not answer.
    pub(crate) fn failed(&self, now: Instant) {
        let mut state = self.state();
        state.last_probe = now;
        state.disturb(now);
    }

    /// How long until the wait after the last gap is over; zero if it is.
    pub(crate) fn disturbed_for(&self, now: Instant) -> Duration {
        self.state().disturbed_for(Duration::MAX, now)
    }

    /// What the bus says about results at the Redis time `time`.
    pub(crate) fn results(&self, mark: &ResultsMark, time: Time) {
        let mut state = self.state();
        // A stream that was made anew has forgotten the message that was waited for.
        state.target = state.target.take().filter(|target| target.stream_created == mark.stream_created);
        if mark.idle || mark.ack_floor >= mark.last_result_seq {
            state.handled_until = state.handled_until.max(time);
            state.target = None;
            return;
        }
        match &state.target {
            Some(target) if mark.ack_floor >= target.sequence => {
                state.handled_until = state.handled_until.max(target.seen);
                state.target = None;
            }
            Some(_) => {}
            None => {
                let (sequence, stream_created) = (mark.last_result_seq, mark.stream_created.clone());
                state.target = Some(Target { seen: time, sequence, stream_created });
            }
        }
    }

    /// For a lease of at most `span` that ran out at `lease_end`: none if silence is proven, otherwise
    /// when to ask again. A worker that lives speaks within one lease after a gap, so a short lease
    /// needs no longer wait than its own length.
    pub(crate) fn unproven_until(&self, lease_end: Time, span: Duration, time: Time, now: Instant) -> Option<Time> {
        let state = self.state();
        let disturbed = state.disturbed_for(span, now);
        if !disturbed.is_zero() {
            return Some(time + disturbed);
        }
        let handled = lease_end <= state.handled_until;
        if handled { None } else { Some(time + ASK_AGAIN) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn disturbed_for(&self, span: Duration, now: Instant) -> Duration {
        let wait = self.wait.min(span);
        // A probe that has not come back yet may be the beginning of a gap.
        let overdue = now.saturating_duration_since(self.last_probe) > GAP;
        if overdue { wait } else { (self.disturbed_at + wait).saturating_duration_since(now) }
    }

    fn disturb(&mut self, now: Instant) {
        self.disturbed_at = now;
        self.handled_until = Time::NONE;
        self.target = None;
    }
}

/// Probes both stores until stopped, on every replica, leader or not, and tells readiness.
pub(crate) async fn probe(desk: &Desk, redis: &Part, nats: &Part, stop: &CancellationToken) {
    let mut clock = tokio::time::interval(PROBE);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let consumers = [subjects::submit(), subjects::result(), subjects::cancel()].map(ConsumerSpec::scheduler);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => {}
        }
        let states = join_all(consumers.iter().map(|spec| desk.bus().consumer_state(spec)));
        let times = join_all((0..SHARDS).map(|shard| desk.store().due_homes(shard, 1)));
        let (times, states, format) = tokio::join!(times, states, desk.store().check_format());
        let times: Result<Vec<Time>, _> = times.into_iter().map(|due| due.map(|due| due.now)).collect();
        let mut away = None;
        for (spec, state) in consumers.iter().zip(states) {
            match state {
                Ok(state) => set(Gauge::BusConsumerPending, &[("consumer", &spec.name)], state.pending as f64),
                Err(fault) => away = Some(fault),
            }
        }
        let connections = desk.store().router().connections();
        for (state, n) in [("shared", connections.shared), ("busy", connections.busy), ("idle", connections.idle)] {
            set(Gauge::RedisConnections, &[("state", state)], n as f64);
        }
        tell(nats, away.as_ref());
        tell(redis, times.as_ref().err().or(format.as_ref().err()));
        match (times, away) {
            (Ok(times), None) => desk.silence.answered(&times, Instant::now()),
            _ => desk.silence.failed(Instant::now()),
        }
    }
}

fn tell(part: &Part, fault: Option<&impl ToString>) {
    match fault {
        None => part.ready(),
        Some(fault) => part.not_ready(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Time = Time(1_800_000_000_000_000);
    const S: Duration = Duration::from_secs(1);
    const WAIT: Duration = Duration::from_secs(30);

    fn mark(last_result_seq: u64, ack_floor: u64) -> ResultsMark {
        ResultsMark { stream_created: "first".into(), last_result_seq, ack_floor, idle: false }
    }

    /// Probed every second for `seconds`, in step with Redis.
    fn watched(silence: &Silence, start: Instant, seconds: std::ops::RangeInclusive<u32>) {
        for s in seconds {
            silence.answered(&[T0 + S * s], start + S * s);
        }
    }

    #[test]
    fn a_start_counts_as_a_gap() {
        let start = Instant::now();
        let silence = Silence::new(WAIT, start);
        watched(&silence, start, 0..=10);
        silence.results(&mark(0, 0), T0 + S * 10);
        assert_eq!(silence.unproven_until(T0, WAIT, T0 + S * 10, start + S * 10), Some(T0 + WAIT));
        watched(&silence, start, 11..=30);
        silence.results(&mark(0, 0), T0 + S * 30);
        assert_eq!(silence.unproven_until(T0 + S * 30, WAIT, T0 + S * 30, start + S * 30), None);
    }

    #[test]
    fn a_failed_a_late_and_a_missing_probe_restart_the_wait() {
        let start = Instant::now();
        for fault in ["failed", "late", "missing", "jump"] {
            let silence = Silence::new(WAIT, start);
            watched(&silence, start, 0..=40);
            assert!(silence.disturbed_for(start + S * 40).is_zero(), "{fault}");
            let now = start + S * 46;
            match fault {
                "failed" => silence.failed(now),
                "late" => silence.answered(&[T0 + S * 46], now),
                "jump" => {
                    watched(&silence, start, 41..=45);
                    silence.answered(&[T0 + S * 49], now);
                }
                _ => {}
            }
            assert_eq!(silence.disturbed_for(now), WAIT, "{fault}");
        }
    }

    #[test]
    fn a_lease_is_silent_only_once_the_results_seen_after_its_end_were_handled() {
        let start = Instant::now();
        let silence = Silence::new(Duration::ZERO, start);
        silence.answered(&[T0], start);
        let (end, asked) = (T0, T0 + S);
        assert!(silence.unproven_until(end, WAIT, asked, start).is_some(), "nobody has asked the bus yet");
        silence.results(&mark(100, 90), asked);
        assert_eq!(silence.unproven_until(end, WAIT, asked, start), Some(asked + ASK_AGAIN));
        silence.results(&mark(250, 99), asked + S);
        assert!(silence.unproven_until(end, WAIT, asked, start).is_some(), "one short");
        silence.results(&mark(300, 100), asked + S * 2);
        assert_eq!(silence.unproven_until(end, WAIT, asked, start), None, "the target does not move on");
        assert!(
            silence.unproven_until(asked + S, WAIT, asked + S * 2, start).is_some(),
            "a later lease needs a later look"
        );
    }

    #[test]
    fn a_short_lease_waits_no_longer_than_itself_after_a_gap() {
        let start = Instant::now();
        let silence = Silence::new(WAIT, start);
        watched(&silence, start, 0..=3);
        silence.results(&mark(5, 5), T0 + S * 3);
        assert_eq!(silence.unproven_until(T0, S * 5, T0 + S * 3, start + S * 3), Some(T0 + S * 5));
        watched(&silence, start, 4..=5);
        assert_eq!(silence.unproven_until(T0, S * 5, T0 + S * 5, start + S * 5), None);
        assert!(silence.unproven_until(T0, S * 30, T0 + S * 5, start + S * 5).is_some());
    }

    #[test]
    fn an_idle_consumer_has_handled_everything() {
        let start = Instant::now();
        let silence = Silence::new(Duration::ZERO, start);
        silence.answered(&[T0], start);
        silence.results(&ResultsMark { idle: true, ..mark(100, 3) }, T0 + S);
        assert_eq!(silence.unproven_until(T0 + S, WAIT, T0 + S, start), None);
    }

    #[test]
    fn a_stream_made_anew_voids_the_target() {
        let start = Instant::now();
        let silence = Silence::new(Duration::ZERO, start);
        silence.answered(&[T0], start);
        silence.results(&mark(100, 90), T0 + S);
        let anew = |last, floor| ResultsMark { stream_created: "second".into(), ..mark(last, floor) };
        silence.results(&anew(200, 150), T0 + S * 2);
        assert!(silence.unproven_until(T0, WAIT, T0 + S * 2, start).is_some(), "sequence 150 is of another stream");
        silence.results(&anew(300, 200), T0 + S * 3);
        assert_eq!(silence.unproven_until(T0, WAIT, T0 + S * 3, start), None);
    }

    #[test]
    fn a_gap_voids_what_was_proven() {
        let start = Instant::now();
        let silence = Silence::new(S, start);
        watched(&silence, start, 0..=3);
        silence.results(&mark(5, 5), T0 + S * 3);
        assert_eq!(silence.unproven_until(T0, WAIT, T0 + S * 3, start + S * 3), None);
        silence.failed(start + S * 3);
        silence.answered(&[T0 + S * 5], start + S * 5);
        assert!(silence.unproven_until(T0, WAIT, T0 + S * 5, start + S * 5).is_some());
    }
}
