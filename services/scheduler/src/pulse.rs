//! Judges every half second whether this replica is fit to take work.
//!
//! Knows: how long Redis and NATS take to answer here, and what the other schedulers say of theirs. Promises: a
//! replica that Redis does not answer, or that is much worse off than another one, takes no work within about a
//! second (`intake`, `serve` and `backlog` ask `Fitness`), leaves its leaderships to others, says so in `/readyz`
//! and the log, and comes back by itself; if all replicas are equally badly off, all go on. A replica that NATS does
//! not answer cannot know how others are: it leaves its leaderships once, and takes them again if no other does.
//! Leaves to others: what happens to the work.

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

/// How often a replica measures itself and tells the others.
const EVERY: Duration = Duration::from_millis(500);
/// A Redis node that does not answer within this is silent.
const ANSWER: Duration = Duration::from_millis(400);
/// NATS is silent when a pulse is not heard for so long.
const ECHO: Duration = Duration::from_millis(1_500);
/// Answers that take less than this are never slow, and those that take this many times another's are.
const SLOW: Duration = Duration::from_millis(150);
const TIMES: u32 = 4;
/// Measurements whose median counts.
const MEASURED: usize = 3;
/// Judgements in a row that change the verdict.
const IN_A_ROW: u32 = 2;
/// Another scheduler's pulse counts for so long.
const FRESH: Duration = Duration::from_millis(1_800);
/// How long an unfit replica leaves its leaderships to others, each time it is judged.
const ASIDE: Duration = Duration::from_secs(5);
/// How often a replica that NATS does not answer lets go of its leaderships.
const LET_GO: Duration = Duration::from_secs(30);

/// How well a scheduler reaches its stores. None: no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    redis: Option<Duration>,
    silent_nodes: u32,
    nats: Option<Duration>,
}

/// What is wrong here, compared with the fit schedulers that were heard lately.
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

/// What this replica has measured, and heard of others.
#[derive(Debug, Default)]
struct Measured {
    redis: Samples,
    nats: Samples,
    silent_nodes: u32,
    /// Probes in a row that no node answered.
    unanswered: u32,
    /// Pulses that were sent and not heard, the oldest first.
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
        // What was not measured yet is neither slow nor silent.
        Reach {
            redis: (self.unanswered < IN_A_ROW).then(|| self.redis.median().unwrap_or_default()),
            silent_nodes: self.silent_nodes,
            nats: (!silent).then(|| self.nats.median().unwrap_or_default()),
        }
    }

    /// A pulse was heard: this replica's own, or another's.
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

/// What one round of questions to all Redis primaries found.
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

/// Measures, tells and judges until stopped.
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
    // Shown from the start, so that a first time can be seen as a change.
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
                if let Some(changed) = verdict.judged(judge(reach, &measured.others(now))) {
                    show(changed, part);
                    context.fitness.set(changed);
                    if changed.is_some() {
                        let context_of_last = context.clone();
                        context.in_flight.spawn("give up", async move { backlog::give_up(&context_of_last).await });
                    }
                }
                let unfit = verdict.now.is_some();
                // Where Redis is silent to this replica, it may be to all: then leases run out or are renewed in time.
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

/// Tells the other schedulers how well the stores are reached here.
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
    // A pulse that cannot be sent is not heard either, which says the same.
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

/// The verdict, and how often in a row another one was found.
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
        // LeaseGuard was measured several times already, and its end needs no second proof.
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
