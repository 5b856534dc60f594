//! What the fleet as a whole has to do, as gauges that one replica alone shows.
//!
//! Knows: what each gauge is measured from. Promises: a measure costs the same however many jobs
//! wait: lengths and heads of the queues of all lines, counts of subjects, and a step of an endless count
//! of what lives; what was shown and is no longer true, or no longer this replica's to tell, is zero, so that
//! sums over replicas are right. Leaves to others: who leads.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use muster_domain::{Line, State, Tenant, Time, Topic};
use muster_flow::Waits;
use muster_store::{Census, CensusWalk, Lease, TopicCensus, WorkerSeen};
use muster_telemetry::{Gauge, metrics::topic_label, set};

use super::names;
use crate::desk::Desk;

/// Homes counted in one measure: with fewer jobs alive every measure is a whole count.
const STEP: usize = 2_000;
/// A home that was due so long ago and not looked at is overdue.
const LATE: Duration = Duration::from_secs(10);
/// A count that is no older tells more than the messages on the streams.
const YOUNG: Duration = Duration::from_secs(15);
/// The least time between two measures.
const PAUSE: Duration = Duration::from_secs(2);

/// A gauge, its topic and its state; empty where it has none.
type Series = (Gauge, String, &'static str);

/// All of them, as this replica last showed them.
#[derive(Default)]
pub(super) struct FleetGauges {
    walk: CensusWalk,
    census: Option<Census>,
    shown: HashMap<Series, f64>,
    measured: Option<Instant>,
}

impl FleetGauges {
    /// Measures, and shows it.
    pub(super) async fn measure(&mut self, desk: &Desk, lease: &Lease, workers: &[WorkerSeen]) -> anyhow::Result<()> {
        // Workers that come and go wake the loop at once; the rest is measured no oftener for it.
        let fresh = self.measured.is_some_and(|at| at.elapsed() < PAUSE);
        let mut now = if fresh { std::mem::take(&mut self.shown) } else { HashMap::new() };
        now.iter_mut().filter(|((gauge, _, _), _)| *gauge == Gauge::Workers).for_each(|(_, value)| *value = 0.0);
        for topic in workers.iter().flat_map(|worker| &worker.topics) {
            add(&mut now, Gauge::Workers, topic, "", 1.0);
        }
        if fresh {
            self.show(now);
            return Ok(());
        }
        if let Some(census) = desk.store().census(&mut self.walk, STEP).await? {
            self.census = Some(census);
        }
        self.measured = Some(Instant::now());
        now.insert((Gauge::OverdueJobs, String::new(), ""), desk.store().count_overdue(LATE).await? as f64);
        if let Some(pass) = desk.store().scrub_pass().await? {
            now.insert((Gauge::ConsistencyGap, String::new(), ""), pass.homeless as f64);
        }
        self.topics(desk, lease, workers, &mut now).await?;
        self.show(now);
        Ok(())
    }

    async fn topics(
        &self,
        desk: &Desk,
        lease: &Lease,
        workers: &[WorkerSeen],
        now: &mut HashMap<Series, f64>,
    ) -> anyhow::Result<()> {
        // Before the first count is complete only some of what lives is known: nothing is better than half.
        let Some(census) = &self.census else { return Ok(()) };
        let at = desk.store().now();
        now.insert((Gauge::CensusAge, String::new(), ""), at.since(census.begun).as_secs_f64());
        let lanes = desk.lanes.all();
        let known: BTreeSet<(Tenant, Topic)> =
            lanes.iter().map(|l| (l.tenant.clone(), l.topic.clone())).chain(census.topics.keys().cloned()).collect();
        let known: Vec<(Tenant, Topic)> = known.into_iter().collect();
        let waiting = desk.flow.waiting(&known).await?;
        names::drop_old(desk, lease, &known, &waiting).await?;
        let lines: Vec<(Tenant, Line)> = known
            .iter()
            .zip(&waiting)
            .flat_map(|((tenant, _), lines)| lines.iter().map(|line| (tenant.clone(), line.known.line.clone())))
            .collect();
        let mut oldest = desk.store().oldest_queued(&lines).await?.into_iter();
        let (none, young) = (TopicCensus::default(), at.since(census.begun) < YOUNG);
        for (name, lines) in known.iter().zip(&waiting) {
            let oldest = oldest.by_ref().take(lines.len()).flatten().min();
            let waits = Waits::of(lines);
            let (queued, offers) = (waits.queued, waits.offered);
            let counted = census.topics.get(name).unwrap_or(&none);
            let of = |state: State| counted.states.get(&state).copied().unwrap_or(0);
            let topic = name.1.as_str();
            // A young count is right. An old one is worse than the messages on the stream, though one may carry
            // several offers, and those of jobs that were called off stay until a worker takes them.
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
            let told = desk.flow.settings.topic(name.0.as_str(), topic);
            let shared = desk.flow.settings.is_shared(topic);
            let live = workers.iter().filter(|worker| worker.serves(name.0.as_str(), shared) && worker.takes(topic));
            let worth = Waits::worth_workers(lines, &live.collect::<Vec<_>>());
            // What stands in lines that no live worker fits.
            let unfit = offers.zip(worth.offered).map_or(0, |(all, some)| (all - some).min(dispatched));
            let ready = (of(State::Pending) + worth.queued + dispatched - unfit) as f64;
            let runnable = match told.as_ref() {
                Some(told) if told.paused.is_some() => 0.0,
                // No more of the backlog than the rate lets through at once, or than may run beside the others.
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

    /// Shows these and no others.
    pub(super) fn show(&mut self, now: HashMap<Series, f64>) {
        for series in self.shown.keys().filter(|series| !now.contains_key(*series)) {
            put(series, 0.0);
        }
        now.iter().for_each(|(series, value)| put(series, *value));
        self.shown = now;
    }

    /// No longer this replica's to tell; the next time it counts anew.
    pub(super) fn stand_down(&mut self) {
        self.show(HashMap::new());
        (self.walk, self.census, self.measured) = (CensusWalk::new(), None, None);
    }
}

/// Adds to what is told of a topic: tenants share its name, and those past the limit of names share one.
fn add(now: &mut HashMap<Series, f64>, gauge: Gauge, topic: &str, state: &'static str, value: f64) {
    *now.entry((gauge, topic_label(topic).to_owned(), state)).or_default() += value;
}

/// The largest of what is told of a topic.
fn most(now: &mut HashMap<Series, f64>, gauge: Gauge, topic: &str, value: f64) {
    let known = now.entry((gauge, topic_label(topic).to_owned(), "")).or_default();
    *known = known.max(value);
}

fn put((gauge, topic, state): &Series, value: f64) {
    match gauge.labels() {
        [] => set(*gauge, &[], value),
        [_] => set(*gauge, &[("topic", topic)], value),
        _ => set(*gauge, &[("topic", topic), ("state", state)], value),
    }
}
