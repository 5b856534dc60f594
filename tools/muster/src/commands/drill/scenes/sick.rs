//! One scheduler is sick and not dead: frozen, cut off from a store, or slow. How long do jobs take meanwhile?
//!
//! A steady load of short jobs is timed before each fault, during it, and afterwards. On a cluster only the freeze is
//! tried: lines to the nodes of a cluster cannot be broken from outside.

use std::{cell::RefCell, time::Duration};

use anyhow::Context;
use clap::ValueEnum;
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
/// A job that was submitted so long before the fault may be under way when it begins.
const UNDER_WAY: Duration = Duration::from_millis(500);
/// What is measured begins so long after a change.
const SETTLED: Duration = Duration::from_secs(5);
/// How much longer than normal a job may take.
const LATE: Duration = Duration::from_secs(3);
const HARDLY: Duration = Duration::from_millis(500);
/// What a slow line adds to each call.
const DELAY: Duration = Duration::from_millis(300);

/// What is done to the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// Stopped with SIGSTOP
    Frozen,
    /// Redis does not answer it
    RedisSilent,
    /// Redis refuses it
    RedisRefused,
    /// NATS does not answer it
    NatsSilent,
    /// NATS refuses it
    NatsRefused,
    /// Neither store answers it
    BothSilent,
    /// What it sends to Redis arrives 300 ms later
    RedisSlow,
    /// What it sends to NATS arrives 300 ms later
    NatsSlow,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Frozen => "frozen",
            Fault::RedisSilent => "Redis does not answer it",
            Fault::RedisRefused => "Redis refuses it",
            Fault::NatsSilent => "NATS does not answer it",
            Fault::NatsRefused => "NATS refuses it",
            Fault::BothSilent => "neither store answers it",
            Fault::RedisSlow => "Redis is slow to it",
            Fault::NatsSlow => "NATS is slow to it",
        }
    }

    /// The lines that it breaks.
    fn lines(self) -> &'static [(Store, Line)] {
        match self {
            Fault::Frozen => &[],
            Fault::RedisSilent => &[(Store::Redis, Line::Stalled)],
            Fault::RedisRefused => &[(Store::Redis, Line::Cut)],
            Fault::NatsSilent => &[(Store::Nats, Line::Stalled)],
            Fault::NatsRefused => &[(Store::Nats, Line::Cut)],
            Fault::BothSilent => &[(Store::Redis, Line::Stalled), (Store::Nats, Line::Stalled)],
            Fault::RedisSlow => &[(Store::Redis, Line::Slow(DELAY))],
            Fault::NatsSlow => &[(Store::Nats, Line::Slow(DELAY))],
        }
    }

    fn begin(self, scenery: &Scenery<'_>) {
        if self == Fault::Frozen {
            scenery.hands.signal(VICTIM, Signal::SIGSTOP);
        }
        self.lines().iter().for_each(|(store, line)| scenery.hands.line(VICTIM, *store, *line));
    }

    fn end(self, scenery: &Scenery<'_>) {
        if self == Fault::Frozen {
            scenery.hands.signal(VICTIM, Signal::SIGCONT);
        }
        self.lines().iter().for_each(|(store, _)| scenery.hands.line(VICTIM, *store, Line::Open));
    }
}

/// The faults to try: those that were asked for, or all that this stack allows.
pub(super) fn chosen(asked: &[Fault], cluster: bool) -> anyhow::Result<Vec<Fault>> {
    let possible = |fault: &Fault| !cluster || fault.lines().is_empty();
    if let Some(fault) = asked.iter().find(|fault| !possible(fault)) {
        let failure = Failure::usage(format!("on a cluster no line can be broken: {}", fault.name()));
        return Err(failure.hint("leave --cluster out, or choose --fault frozen").into());
    }
    let all = if asked.is_empty() { Fault::value_variants() } else { asked };
    Ok(all.iter().copied().filter(possible).collect())
}

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    for fault in chosen(scenery.faults, scenery.cluster)? {
        scenery.tell(format_args!("{VICTIM}: {}", fault.name()));
        let timed = timed(scenery, fault).await?;
        judge(scenery, fault, &timed);
        scenery.hands.all_ready().await?;
    }
    Ok(())
}

/// One job: when it was submitted, and how long it took to its end.
struct Timed {
    at: Duration,
    took: Duration,
}

/// Submits at a steady rate while the fault comes and goes.
async fn timed(scenery: &Scenery<'_>, fault: Fault) -> anyhow::Result<Vec<Timed>> {
    let (began, mut clock) = (Instant::now(), interval(EVERY));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut under_way, mut all) = (FuturesUnordered::new(), Vec::new());
    let phase = RefCell::new(0);
    loop {
        let since = began.elapsed();
        let now = [BEFORE, BEFORE + DURING, BEFORE + DURING + AFTER].iter().filter(|end| since >= **end).count();
        match (phase.replace(now), now) {
            (0, 1) => fault.begin(scenery),
            (1, 2) => fault.end(scenery),
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

fn judge(scenery: &Scenery<'_>, fault: Fault, all: &[Timed]) {
    let span = |from: Duration, to: Duration| {
        let mut took: Vec<Duration> = all.iter().filter(|j| j.at >= from && j.at < to).map(|j| j.took).collect();
        took.sort_unstable();
        (p99(&took), took.last().copied().unwrap_or_default())
    };
    // What is under way when the fault begins is not normal.
    let (normal, _) = span(Duration::ZERO, BEFORE - UNDER_WAY);
    let (_, slowest) = span(BEFORE - UNDER_WAY, Duration::MAX);
    let (sick, _) = span(BEFORE + SETTLED, BEFORE + DURING);
    let (well, _) = span(BEFORE + DURING + SETTLED, Duration::MAX);
    let name = fault.name();
    scenery.measured(&format!("{name}: slowest job"), slowest, normal + LATE);
    scenery.measured(&format!("{name}: p99 after {} s", SETTLED.as_secs()), sick, normal + HARDLY);
    scenery.measured(&format!("{name}: p99 once it is over"), well, normal + HARDLY);
}

/// The p99 of sorted times. It is never the single worst of them: of fewer than a hundred that would be the p99, and
/// one hiccup of the machine would decide. The worst is judged as the slowest.
fn p99(took: &[Duration]) -> Duration {
    let nth = (took.len() * 99).div_ceil(100).saturating_sub(1).min(took.len().saturating_sub(2));
    took.get(nth).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_allows_the_freeze_only() {
        assert_eq!(chosen(&[], false).expect("all").len(), 8);
        assert_eq!(chosen(&[], true).expect("one"), [Fault::Frozen]);
        assert_eq!(chosen(&[Fault::NatsSlow], false).expect("one"), [Fault::NatsSlow]);
        chosen(&[Fault::NatsSlow], true).expect_err("no line can be broken");
    }

    #[test]
    fn the_single_worst_job_is_no_p99() {
        let ms = |n: u64| Duration::from_millis(n);
        let upto = |n: u64| (1..=n).map(ms).collect::<Vec<_>>();
        for (n, p) in [(0, 0), (1, 1), (2, 1), (50, 49), (100, 99), (200, 198), (1_000, 990)] {
            assert_eq!(p99(&upto(n)), ms(p), "of {n}");
        }
    }
}
