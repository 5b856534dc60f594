//! Judges every half second whether this replica is fit to take work.
//!
//! Knows: how long Redis and NATS take to answer this replica, and what the other schedulers report of theirs.
//! Promises: a replica that gets no answer from Redis, or much slower answers than another one, takes no work within
//! about a second (`intake`, `serve` and `backlog` ask `Fitness`), gives up its leader locks, reports this in `/readyz`
//! and the log, and recovers by itself. If all replicas are equally slow, all continue. A replica that gets no answer
//! from NATS cannot know the state of the others: it gives up its leader locks once, and takes them again if no other
//! replica does. Leaves to others: what happens to the work.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{BoxFuture, FutureExt};
use muster_bus::subjects;
use muster_chassis::Part;
use muster_replica::Member;
use muster_store::Store;
use muster_telemetry::{Counter, Gauge, count, set};
use muster_wire::{Body, v1::Pulse};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::{backlog, context::Context, fitness::Unfit};

/// How often a replica measures itself and reports to the others.
const EVERY: Duration = Duration::from_millis(500);
/// A Redis node that does not answer within this time is silent.
const ANSWER: Duration = Duration::from_millis(400);
/// NATS is silent if this replica does not receive its own pulse for this long.
pub(crate) const ECHO: Duration = Duration::from_millis(1_500);
/// Answers faster than `SLOW` are never slow. Slower ones are slow if they take more than `TIMES` times as long as
/// another scheduler's.
const SLOW: Duration = Duration::from_millis(150);
const TIMES: u32 = 4;
/// Measurements whose median counts.
const MEASURED: usize = 3;
/// Equal judgements in a row that change the verdict.
const IN_A_ROW: u32 = 2;
/// How long another scheduler's pulse counts.
const FRESH: Duration = Duration::from_millis(1_800);
/// How long an unfit replica takes no leader lock, counted from each judgement. This is longer than the longest time
/// between two requests of another replica for the lock: a replica without answers from NATS cannot tell the others
/// that the lock is free, and would take it again before they ask.
const ASIDE: Duration = Duration::from_secs(8);
/// How often a replica without answers from NATS gives up its leader locks.
const LET_GO: Duration = Duration::from_secs(30);

/// How fast the stores answer a scheduler. None: no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    redis: Option<Duration>,
    silent_nodes: u32,
    nats: Option<Duration>,
}

/// Judges this replica against the fit schedulers that were heard lately.
fn judge(own: Reach, others: &[Reach]) -> Option<Unfit> {
    let Some(redis) = own.redis else { return Some(Unfit::RedisSilent) };
    let worse = |own: Duration, other: Option<Duration>| own > SLOW && other.is_some_and(|o| own > o * TIMES);
    others.iter().find_map(|other| {
        if other.silent_nodes < own.silent_nodes {
            return Some(Unfit::NodeSilent);
        }
        if worse(redis, other.redis) {
            return Some(Unfit::RedisSlow);
        }
        own.nats.is_some_and(|nats| worse(nats, other.nats)).then_some(Unfit::NatsSlow)
    })
}

/// The last measurements of one kind.
#[derive(Debug, Default)]
struct Samples(VecDeque<Duration>);

impl Samples {
    fn add(&mut self, took: Duration) {
        self.0.truncate(MEASURED - 1);
        self.0.push_front(took);
    }

    fn median(&self) -> Option<Duration> {
        let mut all: Vec<Duration> = self.0.iter().copied().collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }
}

/// The measurements of this replica, and the reports of others.
#[derive(Debug, Default)]
struct Measured {
    redis: Samples,
    nats: Samples,
    silent_nodes: u32,
    /// Probes in a row without an answer of any node.
    unanswered: u32,
    /// Pulses that this replica has sent and not received, the oldest first.
    unheard: VecDeque<(u64, Instant)>,
    number: u64,
    others: HashMap<String, (Reach, Instant)>,
}

impl Measured {
    fn probed(&mut self, probe: &Probe) {
        self.silent_nodes = probe.silent;
        if probe.silent == 0 || probe.answered > 0 {
            self.unanswered = 0;
        } else {
            self.unanswered += 1;
        }
        if probe.answered > 0 {
            self.redis.add(probe.took);
        }
    }

    fn reach(&self, now: Instant) -> Reach {
        let silent = self.unheard.front().is_some_and(|(_, sent)| now.duration_since(*sent) > ECHO);
        // A store that was not measured yet is neither slow nor silent.
        Reach {
            redis: (self.unanswered < IN_A_ROW).then(|| self.redis.median().unwrap_or_default()),
            silent_nodes: self.silent_nodes,
            nats: (!silent).then(|| self.nats.median().unwrap_or_default()),
        }
    }

    /// Records a pulse: this replica's own, or another's.
    fn heard(&mut self, by: &str, own: &str, pulse: &Pulse, now: Instant) {
        if by == own {
            if let Some((_, sent)) = self.unheard.iter().find(|(number, _)| *number == pulse.number) {
                self.nats.add(now.duration_since(*sent));
            }
            self.unheard.retain(|(number, _)| *number > pulse.number);
            return;
        }
        let span = |us: u64| (us > 0).then(|| Duration::from_micros(us));
        let reach = Reach { redis: span(pulse.redis_us), silent_nodes: pulse.silent_nodes, nats: span(pulse.nats_us) };
        match pulse.fit {
            true => drop(self.others.insert(by.to_owned(), (reach, now))),
            false => drop(self.others.remove(by)),
        }
    }

    fn others(&mut self, now: Instant) -> Vec<Reach> {
        self.others.retain(|_, (_, heard)| now.duration_since(*heard) < FRESH);
        self.others.values().map(|(reach, _)| *reach).collect()
    }
}

/// The result of one probe of all Redis primaries.
struct Probe {
    took: Duration,
    answered: u32,
    silent: u32,
}

async fn probe(store: Store) -> Probe {
    let began = Instant::now();
    match store.times(ANSWER).await {
        Err(_) => Probe { took: ANSWER, answered: 0, silent: 1 },
        Ok(times) => {
            let ends = times.iter().filter_map(|(_, said)| said.as_ref().ok().map(|(_, at)| *at));
            let took = ends.clone().max().map_or(ANSWER, |last| last.saturating_duration_since(began));
            let answered = u32::try_from(ends.count()).unwrap_or(u32::MAX);
            Probe { took, answered, silent: u32::try_from(times.len()).unwrap_or(u32::MAX) - answered }
        }
    }
}

/// Measures, reports and judges until stopped.
pub(crate) async fn watch(
    context: &Arc<Context>,
    member: &Member,
    part: &Part,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut pulses = context.bus().subscribe(&subjects::pulse(), None).await?;
    let mut clock = tokio::time::interval(EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut measured, mut verdict) = (Measured::default(), Verdict::default());
    let mut probing: Option<BoxFuture<'static, Probe>> = None;
    let mut let_go: Option<Instant> = None;
    // Counters start at 0, so that the first increase is visible.
    for reason in [Unfit::RedisSilent, Unfit::NodeSilent, Unfit::RedisSlow, Unfit::NatsSlow] {
        count(Counter::StoodDown, &[("reason", reason.label())], 0);
    }
    show(None, part);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            probe = async { probing.as_mut().expect("guarded").await }, if probing.is_some() => {
                probing = None;
                measured.probed(&probe);
            }
            received = pulses.next() => {
                let Some(received) = received else { anyhow::bail!("the subscription to pulses ended") };
                if let Body::Pulse(pulse) = &received.body {
                    measured.heard(&received.envelope.sender, context.bus().instance(), pulse, Instant::now());
                }
            }
            _ = clock.tick() => {
                let now = Instant::now();
                let reach = measured.reach(now);
                context.fitness.set_nats_silent(reach.nats.is_none());
                if let Some(changed) = verdict.judged(judge(reach, &measured.others(now))) {
                    show(changed, part);
                    context.fitness.set(changed);
                    if changed.is_some() {
                        let context_of_last = context.clone();
                        context.in_flight.spawn("give up", async move { backlog::give_up(&context_of_last).await });
                    }
                }
                let unfit = verdict.now.is_some();
                // If Redis does not answer this replica, it may answer none: then the locks expire or are renewed in
                // time.
                let worse_off = verdict.now.is_some_and(|unfit| unfit != Unfit::RedisSilent);
                let deaf = reach.nats.is_none() && let_go.is_none_or(|at| now.duration_since(at) > LET_GO);
                if deaf || worse_off {
                    let_go = Some(now);
                    member.stand_aside(now + ASIDE).await;
                }
                send(context, &mut measured, reach, !unfit).await;
                if probing.is_none() {
                    probing = Some(probe(context.store().clone()).boxed());
                }
            }
        }
    }
}

/// Reports to the other schedulers how fast the stores answer here.
async fn send(context: &Context, measured: &mut Measured, reach: Reach, fit: bool) {
    let micros = |span: Option<Duration>| span.map_or(0, |s| u64::try_from(s.as_micros()).unwrap_or(u64::MAX).max(1));
    measured.number += 1;
    let pulse = Pulse {
        number: measured.number,
        fit,
        silent_nodes: reach.silent_nodes,
        redis_us: micros(reach.redis),
        nats_us: micros(reach.nats),
    };
    measured.unheard.push_back((measured.number, Instant::now()));
    measured.unheard.truncate(64);
    // If the pulse cannot be sent, this replica does not receive it, which has the same meaning.
    let _ = context.bus().broadcast(&subjects::pulse(), Body::Pulse(pulse)).await;
}

fn show(verdict: Option<Unfit>, part: &Part) {
    set(Gauge::ReplicaFit, &[], if verdict.is_none() { 1.0 } else { 0.0 });
    match verdict {
        None => part.ready(),
        Some(unfit) => {
            tracing::warn!(event = "stood_down", reason = unfit.label(), "{}", unfit.text());
            count(Counter::StoodDown, &[("reason", unfit.label())], 1);
            part.not_ready(unfit.text().to_owned());
        }
    }
}

/// The verdict, and how many judgements in a row differ from it.
#[derive(Debug, Default)]
struct Verdict {
    now: Option<Unfit>,
    other: u32,
}

impl Verdict {
    /// The new verdict, if this judgement changes it.
    fn judged(&mut self, found: Option<Unfit>) -> Option<Option<Unfit>> {
        if found.is_some() == self.now.is_some() {
            self.other = 0;
            return None;
        }
        self.other += 1;
        // Silence of Redis is measured by several probes already, and its end needs no second judgement.
        let silence = matches!(found.or(self.now), Some(Unfit::RedisSilent));
        if !silence && self.other < IN_A_ROW {
            return None;
        }
        (self.now, self.other) = (found, 0);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use muster_store::LEADER_TTL;

    use super::*;

    fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    fn reach(redis: Option<Duration>, silent_nodes: u32, nats: Option<Duration>) -> Reach {
        Reach { redis, silent_nodes, nats }
    }

    #[test]
    fn a_replica_is_unfit_only_if_it_can_do_nothing_or_another_is_better_off() {
        let well = reach(ms(1), 0, ms(1));
        let slow = reach(ms(300), 0, ms(1));
        let far = reach(ms(1), 0, ms(600));
        let cut = reach(ms(1), 1, ms(1));
        let none = reach(None, 3, ms(1));
        for (own, others, verdict) in [
            (well, vec![well], None),
            (none, vec![well], Some(Unfit::RedisSilent)),
            (none, vec![], Some(Unfit::RedisSilent)),
            (slow, vec![well], Some(Unfit::RedisSlow)),
            (slow, vec![slow], None),
            (slow, vec![], None),
            (far, vec![well], Some(Unfit::NatsSlow)),
            (far, vec![far], None),
            (cut, vec![well], Some(Unfit::NodeSilent)),
            (cut, vec![cut], None),
            (cut, vec![], None),
            (reach(ms(140), 0, ms(1)), vec![well], None),
            (reach(ms(1), 0, None), vec![well], None),
        ] {
            assert_eq!(judge(own, &others), verdict, "{own:?} beside {others:?}");
        }
    }

    #[test]
    fn another_replica_asks_for_a_lock_while_this_one_stands_aside() {
        let longest_pause = LEADER_TTL / 3 + LEADER_TTL / 10;
        assert!(ASIDE > longest_pause + Duration::from_secs(1), "a lock is asked for every {longest_pause:?} at least");
    }

    #[test]
    fn one_odd_measurement_changes_nothing_and_silence_changes_it_at_once() {
        let mut verdict = Verdict::default();
        assert_eq!(verdict.judged(Some(Unfit::RedisSlow)), None);
        assert_eq!(verdict.judged(None), None);
        assert_eq!(verdict.judged(Some(Unfit::RedisSlow)), None);
        assert_eq!(verdict.judged(Some(Unfit::RedisSlow)), Some(Some(Unfit::RedisSlow)));
        assert_eq!(verdict.judged(None), None);
        assert_eq!(verdict.judged(None), Some(None));
        assert_eq!(verdict.judged(Some(Unfit::RedisSilent)), Some(Some(Unfit::RedisSilent)));
        assert_eq!(verdict.judged(None), Some(None));
    }

    #[test]
    fn an_echo_is_the_time_that_nats_takes_and_its_absence_is_silence() {
        let (mut measured, now) = (Measured::default(), Instant::now());
        assert_eq!(measured.reach(now), reach(ms(0), 0, ms(0)), "nothing is wrong before it was measured");
        measured.unheard.extend([(1, now), (2, now + EVERY)]);
        let pulse = |number| Pulse { number, fit: true, silent_nodes: 0, redis_us: 900, nats_us: 700 };
        measured.heard("me", "me", &pulse(2), now + EVERY + Duration::from_millis(3));
        assert_eq!(measured.reach(now + EVERY).nats, ms(3));
        measured.unheard.push_back((3, now + 2 * EVERY));
        assert_eq!(measured.reach(now + 2 * EVERY + ECHO).nats, ms(3));
        assert_eq!(measured.reach(now + 3 * EVERY + ECHO).nats, None);
        measured.heard("other", "me", &pulse(9), now);
        assert_eq!(measured.others(now).len(), 1);
        measured.heard("other", "me", &Pulse { fit: false, ..pulse(10) }, now);
        assert_eq!(measured.others(now), [], "only fit schedulers are compared with");
    }

    #[test]
    fn silence_takes_two_probes_and_the_median_forgives_one() {
        let mut measured = Measured::default();
        let answered = |ms| Probe { took: Duration::from_millis(ms), answered: 1, silent: 0 };
        let silent = || Probe { took: ANSWER, answered: 0, silent: 1 };
        for took in [1, 400, 2] {
            measured.probed(&answered(took));
        }
        assert_eq!(measured.reach(Instant::now()).redis, ms(2));
        measured.probed(&silent());
        assert!(measured.reach(Instant::now()).redis.is_some());
        measured.probed(&silent());
        assert_eq!(measured.reach(Instant::now()).redis, None);
    }
}
