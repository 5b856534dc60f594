//! Gauges of the whole fleet's work, which only one replica shows.
//!
//! Knows: the source of each gauge. Promises: a measure costs the same however many jobs wait: lengths and heads of the
//! queues of all lines, counts of subjects, and one step of an endless count of live jobs. A gauge whose value is no
//! longer true, or that another replica shows now, becomes zero, so that sums over replicas are right. Leaves to
//! others: the choice of the leader.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use muster_domain::{Line, State, Tenant, Time, Topic};
use muster_flow::Waits;
use muster_store::{HomeKind, Lease, LiveCounts, LiveCountsWalk, TopicCounts, WorkerSeen};
use muster_telemetry::{Gauge, metrics::topic_label};

use super::{
    names,
    shown::{Measured, Shown},
};
use crate::context::Context;

/// Homes counted in one measure: with fewer live jobs, every measure is a whole count.
const STEP: usize = 2_000;
/// A home that was due this long ago is overdue.
const LATE: Duration = Duration::from_secs(10);
/// A count up to this age is more exact than the number of messages on the streams.
const YOUNG: Duration = Duration::from_secs(15);
/// The least time between two measures.
const PAUSE: Duration = Duration::from_secs(2);

/// The fleet's gauges, as this replica last showed them.
#[derive(Default)]
pub(super) struct FleetGauges {
    walk: LiveCountsWalk,
    counts: Option<LiveCounts>,
    shown: Shown,
    measured: Option<Instant>,
}

impl FleetGauges {
    pub(super) async fn measure(
        &mut self,
        context: &Context,
        lease: &Lease,
        workers: &[WorkerSeen],
    ) -> anyhow::Result<()> {
        // A new or leaving worker wakes the loop at once; only the workers are measured more often for it.
        let fresh = self.measured.is_some_and(|at| at.elapsed() < PAUSE);
        let mut now = if fresh { self.shown.take() } else { Measured::new() };
        now.iter_mut().filter(|((gauge, _, _), _)| *gauge == Gauge::Workers).for_each(|(_, value)| *value = 0.0);
        for topic in workers.iter().flat_map(|worker| &worker.topics) {
            add(&mut now, Gauge::Workers, topic, "", 1.0);
        }
        if fresh {
            self.shown.replace(now);
            return Ok(());
        }
        if let Some(counts) = context.store().count_live(&mut self.walk, STEP).await? {
            self.counts = Some(counts);
        }
        self.measured = Some(Instant::now());
        for (gauge, kind) in [(Gauge::OverdueJobs, HomeKind::Job), (Gauge::OverdueRuns, HomeKind::Run)] {
            now.insert((gauge, String::new(), ""), context.store().count_overdue(kind, LATE).await? as f64);
        }
        if let Some(pass) = context.store().scrub_pass().await? {
            now.insert((Gauge::ConsistencyGap, String::new(), ""), pass.homeless as f64);
        }
        self.topics(context, lease, workers, &mut now).await?;
        self.shown.replace(now);
        Ok(())
    }

    async fn topics(
        &self,
        context: &Context,
        lease: &Lease,
        workers: &[WorkerSeen],
        now: &mut Measured,
    ) -> anyhow::Result<()> {
        // Before the first count is complete only a part of the live jobs is known; show none rather than a part.
        let Some(counts) = &self.counts else { return Ok(()) };
        let at = context.store().now();
        now.insert((Gauge::CensusAge, String::new(), ""), at.since(counts.begun).as_secs_f64());
        let routes = context.routes.all();
        let known: BTreeSet<(Tenant, Topic)> =
            routes.iter().map(|l| (l.tenant.clone(), l.topic.clone())).chain(counts.topics.keys().cloned()).collect();
        let known: Vec<(Tenant, Topic)> = known.into_iter().collect();
        let waiting = context.flow.waiting(&known).await?;
        names::drop_old(context, lease, &known, &waiting).await?;
        let lines: Vec<(Tenant, Line)> = known
            .iter()
            .zip(&waiting)
            .flat_map(|((tenant, _), lines)| lines.iter().map(|line| (tenant.clone(), line.known.line.clone())))
            .collect();
        let mut oldest = context.store().oldest_queued(&lines).await?.into_iter();
        let (none, young) = (TopicCounts::default(), at.since(counts.begun) < YOUNG);
        for (name, lines) in known.iter().zip(&waiting) {
            let oldest = oldest.by_ref().take(lines.len()).flatten().min();
            let waits = Waits::of(lines);
            let (queued, offers) = (waits.queued, waits.offered);
            let counted = counts.topics.get(name).unwrap_or(&none);
            let of = |state: State| counted.states.get(&state).copied().unwrap_or(0);
            let topic = name.1.as_str();
            // A young count is exact. An old one is worse than the number of messages on the stream, though a message
            // may have several offers, and offers of cancelled jobs stay until a worker takes them.
            let dispatched = match offers {
                Some(0) => 0,
                Some(messages) if !young => messages,
                _ => of(State::Dispatched),
            };
            for state in State::ALL.iter().copied().filter(|state| !state.is_end()) {
                let n = match state {
                    State::Queued => queued,
                    State::Dispatched => dispatched,
                    other => of(other),
                };
                add(now, Gauge::JobsCurrent, topic, state.as_str(), n as f64);
            }
            let depth = (of(State::Pending) + queued + dispatched) as f64;
            add(now, Gauge::QueueDepth, topic, "", depth);
            let told = context.flow.settings.topic(name.0.as_str(), topic);
            let shared = context.flow.settings.is_shared(topic);
            let live = workers.iter().filter(|worker| worker.serves(name.0.as_str(), shared) && worker.takes(topic));
            let worth = Waits::worth_workers(lines, &live.collect::<Vec<_>>());
            // Offers in lines that no live worker fits.
            let unfit = offers.zip(worth.offered).map_or(0, |(all, some)| (all - some).min(dispatched));
            let ready = (of(State::Pending) + worth.queued + dispatched - unfit) as f64;
            let runnable = match told.as_ref() {
                Some(told) if told.paused.is_some() => 0.0,
                // No more of the backlog than the rate allows at once, or than `concurrency.max` allows beside the
                // others.
                Some(told) => {
                    let max = told.settings.concurrency.and_then(|limits| limits.max);
                    let places = max.map(|max| u64::from(max).saturating_sub(dispatched + of(State::Running)));
                    let burst = told.settings.rate.map(|rate| u64::from(rate.burst));
                    let most = places.into_iter().chain(burst).min();
                    ready - most.map_or(0, |most| worth.queued.saturating_sub(most)) as f64
                }
                None => ready,
            };
            add(now, Gauge::QueueRunnable, topic, "", runnable);
            let waits_since = match (queued, oldest) {
                (0, _) if dispatched + of(State::Pending) == 0 => None,
                (_, Some(since)) => Some(counted.oldest_waiting.map_or(since, |known| known.min(since))),
                (_, None) => counted.oldest_waiting,
            };
            let age = |since: Option<Time>| since.map_or(0.0, |since| at.since(since).as_secs_f64());
            most(now, Gauge::QueueOldestAge, topic, age(waits_since));
            most(now, Gauge::OldestRunningAge, topic, age(counted.oldest_running));
        }
        Ok(())
    }

    /// Clears the gauges, which another replica shows now; the next count begins anew.
    pub(super) fn stand_down(&mut self) {
        self.shown.replace(Measured::new());
        (self.walk, self.counts, self.measured) = (LiveCountsWalk::new(), None, None);
    }
}

/// Adds to a topic's value: tenants share a topic's label, and topics past the limit of labels share one.
fn add(now: &mut Measured, gauge: Gauge, topic: &str, state: &'static str, value: f64) {
    *now.entry((gauge, topic_label(topic).to_owned(), state)).or_default() += value;
}

/// Keeps the largest value of a topic.
fn most(now: &mut Measured, gauge: Gauge, topic: &str, value: f64) {
    let known = now.entry((gauge, topic_label(topic).to_owned(), "")).or_default();
    *known = known.max(value);
}
