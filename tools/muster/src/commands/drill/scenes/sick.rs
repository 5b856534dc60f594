//! One scheduler is sick and not dead: frozen, cut off from a store, or slow. How long do jobs take meanwhile?
//!
//! A steady load of short jobs is timed before each fault, during it, and afterwards. On a cluster only the freeze is
//! tried: lines to the nodes of a cluster cannot be broken from outside.

use std::{cell::RefCell, time::Duration};

use anyhow::Context;
use futures_util::{StreamExt, stream::FuturesUnordered};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Scenery;
use crate::{
    api::Call,
    commands::{drill::plan::Store, drill::proxy::Line, worker::drilled::Part},
    outcome::Failure,
};

/// The scheduler that falls sick.
const VICTIM: &str = "scheduler-2";
/// Between two jobs.
const EVERY: Duration = Duration::from_millis(66);
/// How long jobs are timed before the fault, during it, and afterwards.
const BEFORE: Duration = Duration::from_secs(4);
const DURING: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(7);
/// What is measured begins so long after a change.
const SETTLED: Duration = Duration::from_secs(5);
/// How much longer than normal a job may take.
const LATE: Duration = Duration::from_secs(3);
const HARDLY: Duration = Duration::from_millis(500);
/// What a slow line adds to each call.
const DELAY: Duration = Duration::from_millis(300);

/// What is done to the victim.
#[derive(Clone, Copy, Debug)]
enum Sickness {
    Frozen,
    Line(Store, Line),
    /// Neither store answers.
    Alone,
}

impl Sickness {
    fn name(self) -> String {
        match self {
            Sickness::Frozen => "frozen".to_owned(),
            Sickness::Alone => "neither store answers it".to_owned(),
            Sickness::Line(store, Line::Stalled) => format!("{store} does not answer it"),
            Sickness::Line(store, Line::Cut) => format!("{store} refuses it"),
            Sickness::Line(store, _) => format!("{store} is slow to it"),
        }
    }

    fn begin(self, scenery: &Scenery<'_>) {
        match self {
            Sickness::Frozen => drop(scenery.hands.signal(VICTIM, Signal::SIGSTOP)),
            Sickness::Line(store, line) => scenery.hands.line(VICTIM, store, line),
            Sickness::Alone => STORES.iter().for_each(|store| scenery.hands.line(VICTIM, *store, Line::Stalled)),
        }
    }

    fn end(self, scenery: &Scenery<'_>) {
        match self {
            Sickness::Frozen => drop(scenery.hands.signal(VICTIM, Signal::SIGCONT)),
            Sickness::Line(store, _) => scenery.hands.line(VICTIM, store, Line::Open),
            Sickness::Alone => STORES.iter().for_each(|store| scenery.hands.line(VICTIM, *store, Line::Open)),
        }
    }
}

const STORES: [Store; 2] = [Store::Redis, Store::Nats];

const ALL: &[Sickness] = &[
    Sickness::Frozen,
    Sickness::Line(Store::Redis, Line::Stalled),
    Sickness::Line(Store::Redis, Line::Cut),
    Sickness::Line(Store::Nats, Line::Stalled),
    Sickness::Line(Store::Nats, Line::Cut),
    Sickness::Alone,
    Sickness::Line(Store::Redis, Line::Slow(DELAY)),
    Sickness::Line(Store::Nats, Line::Slow(DELAY)),
];

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    let most = if scenery.cluster { 1 } else { ALL.len() };
    for sickness in &ALL[..most] {
        scenery.tell(format_args!("{VICTIM}: {}", sickness.name()));
        let timed = timed(scenery, *sickness).await?;
        judge(scenery, *sickness, &timed);
        scenery.hands.all_ready().await?;
    }
    Ok(())
}

/// One job: when it was submitted, and how long it took to its end.
struct Timed {
    at: Duration,
    took: Duration,
}

/// Submits at a steady rate while the sickness comes and goes.
async fn timed(scenery: &Scenery<'_>, sickness: Sickness) -> anyhow::Result<Vec<Timed>> {
    let (began, mut clock) = (Instant::now(), interval(EVERY));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut under_way, mut all) = (FuturesUnordered::new(), Vec::new());
    let phase = RefCell::new(0);
    loop {
        let since = began.elapsed();
        let now = [BEFORE, BEFORE + DURING, BEFORE + DURING + AFTER].iter().filter(|end| since >= **end).count();
        match (phase.replace(now), now) {
            (0, 1) => sickness.begin(scenery),
            (1, 2) => sickness.end(scenery),
            _ => {}
        }
        if now == 3 && under_way.is_empty() {
            return Ok(all);
        }
        tokio::select! {
            Some(one) = under_way.next(), if !under_way.is_empty() => all.push(one?),
            _ = clock.tick() => if now < 3 { under_way.push(one(scenery, began)) },
        }
    }
}

async fn one(scenery: &Scenery<'_>, began: Instant) -> anyhow::Result<Timed> {
    let at = Instant::now();
    let id = scenery.submit("drill.short", &Part::default(), json!({})).await?;
    loop {
        let call = Call::get(format!("/jobs/{id}?wait_ms=20000"));
        let job = scenery.api.call(&call).await.map_err(Failure::from)?.value;
        if job["done"].as_bool().context("a job says whether it is done")? {
            return Ok(Timed { at: at - began, took: at.elapsed() });
        }
    }
}

fn judge(scenery: &Scenery<'_>, sickness: Sickness, all: &[Timed]) {
    let span = |from: Duration, to: Duration| {
        let mut took: Vec<Duration> = all.iter().filter(|j| j.at >= from && j.at < to).map(|j| j.took).collect();
        took.sort_unstable();
        let last = took.last().copied().unwrap_or_default();
        (took.get((took.len() * 99) / 100).copied().unwrap_or(last), last)
    };
    // What is under way when the fault begins is not normal.
    let (normal, _) = span(Duration::ZERO, BEFORE - Duration::from_millis(500));
    let (_, slowest) = span(BEFORE - Duration::from_millis(500), Duration::MAX);
    let (sick, _) = span(BEFORE + SETTLED, BEFORE + DURING);
    let (well, _) = span(BEFORE + DURING + SETTLED, Duration::MAX);
    let name = sickness.name();
    scenery.measured(&format!("{name}: slowest job"), slowest, normal + LATE);
    scenery.measured(&format!("{name}: p99 after {} s", SETTLED.as_secs()), sick, normal + HARDLY);
    scenery.measured(&format!("{name}: p99 once it is over"), well, normal + HARDLY);
}
