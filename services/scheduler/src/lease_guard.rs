//! Decides whether an expired lease may be ended because its worker is silent.
//!
//! Knows: since when NATS and each Redis node answer this replica without a gap, and until which time all results on
//! the stream have been handled. Promises: after a gap of NATS or of the job's node, or a jump between that node's TIME
//! and the local clock, no worker counts as silent before a full wait has passed without another gap. The start of this
//! replica and the appearance of a new node count as gaps. Also, no worker counts as silent before all results have
//! been handled that were on the stream at some time after the lease had expired and its node answered. Each node is
//! judged by its own clock only; the time of handling by the local monotonic clock, which cannot be set. So an outage
//! re-runs no job whose worker is alive, and a shard that is down delays only its own jobs. Leaves to others: probing
//! (`probe`), and ending the lease (`loops/reconciler`).

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use muster_bus::ResultsMark;
use muster_domain::{Time, time::micros};
use muster_store::NodeAddr;

/// Probes further apart than this are a gap: a sixth of the usual lease.
const GAP: Duration = Duration::from_secs(5);
/// TIME and the local clock may drift apart by this much between two probes.
const JUMP: Duration = Duration::from_secs(1);
/// Most times that a series of gaps restarts the wait.
const RESTARTS: u32 = 10;
/// How soon to ask again while there are unhandled results.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Shared by the probe and the reconciler.
#[derive(Debug)]
pub(crate) struct LeaseGuard {
    wait: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bus: Watch,
    nodes: HashMap<NodeAddr, Node>,
    /// Every result that was on the stream at this time has been handled.
    handled: Option<Instant>,
    /// The last result on the stream when it was last seen; not handled yet.
    target: Option<Target>,
}

#[derive(Clone, Debug)]
struct Target {
    seen: Instant,
    sequence: u64,
    stream_created: String,
}

/// One Redis node.
#[derive(Debug)]
struct Node {
    watch: Watch,
    /// The last time read from its clock, and the local time of that answer: each node has its own clock.
    clock: Option<(Time, Instant)>,
}

impl Node {
    /// Whether the node's clock had certainly reached `moment` at the local time `here`.
    fn had_come(&self, moment: Time, here: Instant) -> bool {
        let Some((time, heard)) = self.clock else { return false };
        // The answer arrived after the node read its clock, so the node reaches the moment no later than this.
        let comes = heard.checked_add(moment.remaining(time));
        comes.is_some_and(|comes| comes <= here + time.since(moment))
    }
}

/// Since when a server answers without a gap.
#[derive(Clone, Copy, Debug)]
struct Watch {
    /// Start of the wait.
    disturbed_at: Instant,
    last_probe: Instant,
    away: bool,
    /// `last_gap`: when the last gap ended, or now while it lasts. `gaps`: number of gaps with less than a wait between
    /// them.
    last_gap: Instant,
    gaps: u32,
}

impl Watch {
    /// The first sight of a server counts as a gap.
    fn new(now: Instant) -> Watch {
        Watch { disturbed_at: now, last_probe: now, away: false, last_gap: now, gaps: 1 }
    }

    fn answered(&mut self, jumped: bool, wait: Duration, now: Instant) {
        let late = now.saturating_duration_since(self.last_probe) > GAP;
        if late || jumped || self.away {
            self.disturb(!self.away, wait, now);
        }
        (self.away, self.last_probe) = (false, now);
    }

    fn failed(&mut self, wait: Duration, now: Instant) {
        self.disturb(!self.away, wait, now);
        (self.away, self.last_probe) = (true, now);
    }

    /// Records a gap: another one, or the same one that continues.
    fn disturb(&mut self, another: bool, wait: Duration, now: Instant) {
        if now.saturating_duration_since(self.last_gap) > wait {
            self.gaps = 0;
        }
        self.last_gap = now;
        self.gaps += u32::from(another);
        if self.gaps <= RESTARTS {
            self.disturbed_at = now;
        }
    }

    /// The rest of the wait; all of it while the server does not answer.
    fn remaining(&self, wait: Duration, now: Instant) -> Duration {
        // A probe without an answer yet may be the start of a gap.
        let overdue = now.saturating_duration_since(self.last_probe) > GAP;
        if self.away || overdue { wait } else { (self.disturbed_at + wait).saturating_duration_since(now) }
    }
}

impl LeaseGuard {
    /// The guard of a replica that has just started: the start counts as a gap.
    pub(crate) fn new(wait: Duration, now: Instant) -> LeaseGuard {
        let state = State { bus: Watch::new(now), nodes: HashMap::new(), handled: None, target: None };
        LeaseGuard { wait, state: Mutex::new(state) }
    }

    /// Records a probe of NATS.
    pub(crate) fn bus(&self, answered: bool, now: Instant) {
        let mut state = self.state();
        let before = state.bus.disturbed_at;
        match answered {
            true => state.bus.answered(false, self.wait, now),
            false => state.bus.failed(self.wait, now),
        }
        if !answered || state.bus.disturbed_at != before {
            state.handled = None;
            state.target = None;
        }
    }

    /// Records a probe of the nodes that have hash slots: each node's own time and the local time of the answer; none
    /// if it did not answer.
    pub(crate) fn nodes(&self, said: &[(NodeAddr, Option<(Time, Instant)>)], now: Instant) {
        let mut state = self.state();
        // A node that loses its hash slots is forgotten; if it gets some again it counts as new.
        state.nodes.retain(|known, _| said.iter().any(|(addr, _)| addr == known));
        for (addr, clock) in said {
            let fresh = || Node { watch: Watch::new(now), clock: None };
            let node = state.nodes.entry(addr.clone()).or_insert_with(fresh);
            let Some((time, heard)) = *clock else {
                node.watch.failed(self.wait, now);
                continue;
            };
            let jumped = node.clock.replace((time, heard)).is_some_and(|(then, at)| {
                let by_redis = i128::from(time.0) - i128::from(then.0);
                let by_us = i128::from(micros(heard.saturating_duration_since(at)));
                (by_redis - by_us).unsigned_abs() > JUMP.as_micros()
            });
            node.watch.answered(jumped, self.wait, now);
        }
    }

    /// Whether this node did not answer when it was last probed.
    pub(crate) fn is_away(&self, node: Option<&NodeAddr>) -> bool {
        let state = self.state();
        node.and_then(|addr| state.nodes.get(addr)).is_some_and(|node| node.watch.away)
    }

    /// Whether any Redis node answers. If so, work that fails does so because of another node.
    pub(crate) fn some_node_answers(&self) -> bool {
        self.state().nodes.values().any(|node| !node.watch.away)
    }

    /// The rest of the wait after the last gap, for a job on this node.
    pub(crate) fn disturbed_for(&self, node: Option<&NodeAddr>, now: Instant) -> Duration {
        self.state().remaining(node, self.wait, now)
    }

    /// Records the state of the results on the bus, as asked at `seen`.
    pub(crate) fn results(&self, mark: &ResultsMark, seen: Instant) {
        let mut state = self.state();
        // A stream that was created anew does not have the target message.
        state.target = state.target.take().filter(|target| target.stream_created == mark.stream_created);
        if mark.idle || mark.ack_floor >= mark.last_result_seq {
            state.handled = state.handled.max(Some(seen));
            state.target = None;
            return;
        }
        match &state.target {
            Some(target) if mark.ack_floor >= target.sequence => {
                state.handled = state.handled.max(Some(target.seen));
                state.target = None;
            }
            Some(_) => {}
            None => {
                let (sequence, stream_created) = (mark.last_result_seq, mark.stream_created.clone());
                state.target = Some(Target { seen, sequence, stream_created });
            }
        }
    }

    /// For a lease of at most `span` that expired at `lease_end`, of a job on this node: none if the worker's silence
    /// is proven, otherwise when to ask again. A live worker sends something within one lease after a gap, so a short
    /// lease needs no longer wait than its own length.
    pub(crate) fn unproven_until(
        &self,
        node: Option<&NodeAddr>,
        lease_end: Time,
        span: Duration,
        time: Time,
        now: Instant,
    ) -> Option<Time> {
        let state = self.state();
        let disturbed = state.remaining(node, self.wait.min(span), now);
        if !disturbed.is_zero() {
            return Some(time + disturbed);
        }
        let node = node.and_then(|addr| state.nodes.get(addr));
        // While the node was down, results of its jobs were published again behind others.
        let proves = |(node, here): (&Node, Instant)| node.had_come(lease_end, here) && node.watch.disturbed_at <= here;
        if node.zip(state.handled).is_some_and(proves) { None } else { Some(time + ASK_AGAIN) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The longer rest of the wait, of NATS and of the node; all of it if the node is unknown.
    fn remaining(&self, node: Option<&NodeAddr>, wait: Duration, now: Instant) -> Duration {
        let node = node.and_then(|addr| self.nodes.get(addr));
        let for_node = node.map_or(wait, |node| node.watch.remaining(wait, now));
        for_node.max(self.bus.remaining(wait, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Time = Time(1_800_000_000_000_000);
    const S: Duration = Duration::from_secs(1);
    const WAIT: Duration = Duration::from_secs(30);
    const HOUR: Duration = Duration::from_secs(3600);

    fn mark(last_result_seq: u64, ack_floor: u64) -> ResultsMark {
        ResultsMark { stream_created: "first".into(), last_result_seq, ack_floor, idle: false }
    }

    fn node(name: &str) -> NodeAddr {
        NodeAddr::new(name, 6379)
    }

    /// A guard with a start time; `left` asks about jobs of the node `a`.
    struct Asked {
        lease_guard: LeaseGuard,
        start: Instant,
    }

    impl Asked {
        fn new(wait: Duration) -> Asked {
            let start = Instant::now();
            Asked { lease_guard: LeaseGuard::new(wait, start), start }
        }

        /// NATS and these nodes answer at this second, in step with Redis.
        fn probed(&self, second: u32, nodes: &[&str]) {
            let now = self.start + S * second;
            self.lease_guard.bus(true, now);
            let said = ["a", "b"].map(|n| (node(n), nodes.contains(&n).then(|| (T0 + S * second, now))));
            self.lease_guard.nodes(&said, now);
        }

        /// The same, with the clocks of both nodes ahead by this much.
        fn probed_ahead(&self, second: u32, ahead: [Duration; 2]) {
            let now = self.start + S * second;
            self.lease_guard.bus(true, now);
            let said = [("a", ahead[0]), ("b", ahead[1])].map(|(n, by)| (node(n), Some((T0 + by + S * second, now))));
            self.lease_guard.nodes(&said, now);
        }

        fn watched(&self, seconds: std::ops::RangeInclusive<u32>) {
            seconds.for_each(|second| self.probed(second, &["a", "b"]));
        }

        fn results(&self, mark: &ResultsMark, second: u32) {
            self.lease_guard.results(mark, self.start + S * second);
        }

        /// Milliseconds until a lease of this span that ended at `end` is judged again.
        fn left(&self, end: u32, span: Duration, second: u32) -> Option<u128> {
            let (now, here) = (T0 + S * second, self.start + S * second);
            let until = self.lease_guard.unproven_until(Some(&node("a")), T0 + S * end, span, now, here)?;
            Some(until.remaining(now).as_millis())
        }

        /// Whether silence is proven for a lease on this node that ended at `end`, by the node's clock.
        fn proven(&self, name: &str, end: Time, second: u32) -> bool {
            let here = self.start + S * second;
            self.lease_guard.unproven_until(Some(&node(name)), end, WAIT, T0 + S * second, here).is_none()
        }

        fn disturbed(&self, name: &str, second: u32) -> Duration {
            self.lease_guard.disturbed_for(Some(&node(name)), self.start + S * second)
        }
    }

    #[test]
    fn a_start_counts_as_a_gap() {
        let asked = Asked::new(WAIT);
        asked.watched(0..=10);
        asked.results(&mark(0, 0), 10);
        assert_eq!(asked.left(0, WAIT, 10), Some(20_000));
        asked.watched(11..=30);
        asked.results(&mark(0, 0), 30);
        assert_eq!(asked.left(30, WAIT, 30), None);
    }

    #[test]
    fn a_failed_a_late_and_a_missing_probe_restart_the_wait() {
        for fault in ["failed", "bus", "late", "missing", "jump"] {
            let asked = Asked::new(WAIT);
            asked.watched(0..=40);
            assert!(asked.disturbed("a", 40).is_zero(), "{fault}");
            let now = asked.start + S * 46;
            match fault {
                "failed" => asked.probed(46, &["b"]),
                "bus" => {
                    asked.watched(41..=46);
                    asked.lease_guard.bus(false, now);
                }
                "late" => asked.probed(46, &["a", "b"]),
                "jump" => {
                    asked.watched(41..=45);
                    asked.lease_guard.nodes(&[(node("a"), Some((T0 + S * 49, now)))], now);
                }
                _ => {}
            }
            assert_eq!(asked.disturbed("a", 46), WAIT, "{fault}");
        }
    }

    #[test]
    fn a_node_that_is_away_keeps_only_its_own_jobs_waiting() {
        let asked = Asked::new(WAIT);
        asked.watched(0..=40);
        (41..=60).for_each(|second| asked.probed(second, &["a"]));
        asked.results(&mark(7, 7), 60);
        assert_eq!(asked.left(60, WAIT, 60), None, "a answers all the time");
        assert_eq!(asked.disturbed("b", 60), WAIT);
        asked.watched(61..=70);
        assert_eq!(asked.disturbed("b", 70), WAIT - S * 9, "from its return on");
        assert_eq!(asked.disturbed("c", 70), WAIT, "nobody knows that one");
    }

    #[test]
    fn a_node_that_hangs_is_no_jump_of_the_others_clocks() {
        let asked = Asked::new(WAIT);
        asked.watched(0..=40);
        for second in 41..=60 {
            // The probe ends when the last node has timed out.
            let heard = asked.start + S * second;
            let now = heard + 2 * S;
            let over = if (43..=55).contains(&second) { now } else { heard };
            let said = [(node("a"), Some((T0 + S * second, heard))), (node("b"), None)];
            asked.lease_guard.bus(true, over);
            asked.lease_guard.nodes(&said, over);
            assert!(asked.lease_guard.disturbed_for(Some(&node("a")), now).is_zero(), "{second}");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_stop_rescues() {
        let asked = Asked::new(WAIT);
        (0..=40).for_each(|second| asked.probed_ahead(second, [HOUR, HOUR]));
        asked.results(&mark(5, 5), 40);
        assert!(asked.proven("a", T0 + HOUR + S * 40, 40));
        (41..=71).for_each(|second| asked.probed_ahead(second, [Duration::ZERO, HOUR]));
        assert!(!asked.proven("a", T0 + S * 50, 71), "nobody has asked the bus since");
        asked.results(&mark(6, 6), 71);
        assert!(asked.proven("a", T0 + S * 50, 71), "though it is earlier there than when it was asked before");
    }

    #[test]
    fn a_node_that_is_ahead_proves_nothing_before_its_time() {
        let asked = Asked::new(Duration::ZERO);
        (0..=9).for_each(|second| asked.probed_ahead(second, [Duration::ZERO, HOUR]));
        asked.results(&mark(5, 5), 3);
        for (name, began) in [("a", T0), ("b", T0 + HOUR)] {
            assert!(asked.proven(name, began + S * 3, 9), "{name}");
            assert!(!asked.proven(name, began + S * 4, 9), "{name}: what came between was not looked at");
        }
        asked.results(&mark(7, 7), 9);
        assert!(asked.proven("a", T0 + S * 9, 9) && asked.proven("b", T0 + HOUR + S * 9, 9));
        assert!(!asked.proven("a", T0 + HOUR, 9), "a's clock has not come so far");
    }

    #[test]
    fn what_was_handled_while_a_node_was_away_proves_nothing_about_its_jobs() {
        let asked = Asked::new(S);
        asked.watched(0..=5);
        (6..=20).for_each(|second| asked.probed(second, &["b"]));
        asked.results(&mark(9, 9), 20);
        asked.watched(21..=25);
        assert_eq!(asked.left(10, WAIT, 25), Some(250), "its results may stand behind those");
        asked.results(&mark(12, 12), 25);
        assert_eq!(asked.left(10, WAIT, 25), None);
    }

    #[test]
    fn a_node_that_comes_and_goes_restarts_the_wait_ten_times_and_no_more() {
        let asked = Asked::new(WAIT);
        for second in 0..60 {
            asked.probed(second, if second % 2 == 0 { &["a", "b"] } else { &["a"] });
        }
        assert_eq!(asked.disturbed("b", 59), WAIT, "it is away");
        asked.probed(60, &["a", "b"]);
        assert!(asked.disturbed("b", 60).is_zero(), "it has been heard of long enough");
        // One wait without a gap resets the count.
        asked.watched(61..=95);
        asked.probed(96, &["a"]);
        asked.probed(97, &["a", "b"]);
        assert_eq!(asked.disturbed("b", 97), WAIT);
    }

    #[test]
    fn a_lease_is_silent_only_once_the_results_seen_after_its_end_were_handled() {
        let asked = Asked::new(Duration::ZERO);
        asked.watched(0..=3);
        assert!(asked.left(0, WAIT, 1).is_some(), "nobody has asked the bus yet");
        asked.results(&mark(100, 90), 1);
        assert_eq!(asked.left(0, WAIT, 1), Some(250));
        asked.results(&mark(250, 99), 2);
        assert!(asked.left(0, WAIT, 2).is_some(), "one short");
        asked.results(&mark(300, 100), 3);
        assert_eq!(asked.left(0, WAIT, 3), None, "the target does not move on");
        assert!(asked.left(2, WAIT, 3).is_some(), "a later lease needs a later look");
    }

    #[test]
    fn a_short_lease_waits_no_longer_than_itself_after_a_gap() {
        let asked = Asked::new(WAIT);
        asked.watched(0..=3);
        asked.results(&mark(5, 5), 3);
        assert_eq!(asked.left(0, S * 5, 3), Some(2_000));
        asked.watched(4..=5);
        assert_eq!(asked.left(0, S * 5, 5), None);
        assert!(asked.left(0, S * 30, 5).is_some());
    }

    #[test]
    fn an_idle_consumer_has_handled_everything() {
        let asked = Asked::new(Duration::ZERO);
        asked.watched(0..=1);
        asked.results(&ResultsMark { idle: true, ..mark(100, 3) }, 1);
        assert_eq!(asked.left(1, WAIT, 1), None);
    }

    #[test]
    fn a_stream_made_anew_voids_the_target() {
        let asked = Asked::new(Duration::ZERO);
        asked.watched(0..=3);
        asked.results(&mark(100, 90), 1);
        let anew = |last, floor| ResultsMark { stream_created: "second".into(), ..mark(last, floor) };
        asked.results(&anew(200, 150), 2);
        assert!(asked.left(0, WAIT, 2).is_some(), "sequence 150 is of another stream");
        asked.results(&anew(300, 200), 3);
        assert_eq!(asked.left(0, WAIT, 3), None);
    }

    #[test]
    fn a_gap_of_the_bus_voids_what_was_proven() {
        let asked = Asked::new(S);
        asked.watched(0..=3);
        asked.results(&mark(5, 5), 3);
        assert_eq!(asked.left(0, WAIT, 3), None);
        asked.lease_guard.bus(false, asked.start + S * 4);
        asked.watched(5..=7);
        assert_eq!(asked.left(0, WAIT, 7), Some(250), "the wait is over, and nobody has asked since");
    }
}
