//! Whether a job costs the same behind many others. Jobs of one topic wait without a worker. Then some more are
//! submitted one by one, and a worker takes as many from the front of the queue: both halves of a job's path, each
//! with that many jobs waiting. Meanwhile another topic is served at 200/s.

use std::time::Duration;

use indicatif::ProgressBar;
use muster_domain::JobId;
use tokio::time::Instant;

use crate::{
    commands::bench::{
        delivery::{self, Delivery},
        figures::{Figures, Rounds},
        load,
        meter::Meter,
        open_loop::OpenLoop,
        requests::Submits,
        rest,
        rig::{Crew, Rig},
        stretch::{Stretch, share, until_executed},
    },
    outcome::Failure,
    output,
};

/// How many jobs wait on the stack for comparison (`FEW`), and on the other one (`DEPTHS`).
const FEW: u64 = 1_000;
const DEPTHS: [u64; 2] = [100_000, 1_000_000];
/// How many jobs are measured at each depth.
const MEASURED: u64 = 40_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// A stack, and the jobs that wait on it.
struct Line<'r> {
    rig: &'r Rig,
    topics: Vec<String>,
    waiting: Vec<JobId>,
}

impl<'r> Line<'r> {
    fn on(rig: &'r Rig) -> Line<'r> {
        Line { rig, topics: rig.topics(1), waiting: Vec::new() }
    }

    async fn measured(&mut self, scale: f64) -> anyhow::Result<Figures> {
        rest::quiet(self.rig).await?;
        in_and_out(self.rig, &self.topics, share(MEASURED, scale), &mut self.waiting).await
    }
}

/// Figures as `growth-<depth>`: `submit.rate`, `drain.rate`, and their CPU per job; `cpu.total` is the sum of both;
/// `start` and `end` are latencies of the other topic. After each measurement as many jobs wait as before. `few` is a
/// stack on which few jobs wait, `many` one on which more and more do. In each round they are measured one after the
/// other, so that both see the machine in the same condition.
pub(super) async fn waiting(few: &Rig, many: &Rig, found: &mut Rounds, rounds: u32, scale: f64) -> anyhow::Result<()> {
    let (mut few, mut many) = (Line::on(few), Line::on(many));
    fill(few.rig, &few.topics, FEW, &mut few.waiting).await?;
    // Depths are not scaled, so a short run leaves out the one that takes longest.
    let depths: Vec<u64> = DEPTHS.into_iter().filter(|depth| scale >= 1.0 || *depth < 1_000_000).collect();
    for depth in &depths {
        let name = format!("growth-{depth}");
        fill(many.rig, &many.topics, *depth, &mut many.waiting).await?;
        let deepest = depths.last() == Some(depth);
        for _ in 0..if deepest { rounds } else { 1 } {
            // Jobs that the last round left are looked at once, too.
            rest::after_a_fill(many.rig).await?;
            if deepest {
                found.add(&format!("growth-{FEW}"), &few.measured(scale).await?);
            }
            found.add(&name, &many.measured(scale).await?);
        }
        found.add(&name, &latency(many.rig).await?);
    }
    found.add(&format!("growth-{FEW}"), &latency(few.rig).await?);
    Ok(())
}

/// The latency of jobs of another topic meanwhile.
async fn latency(rig: &Rig) -> anyhow::Result<Figures> {
    let load = OpenLoop { rate: 200.0, lasts: Duration::from_secs(8) };
    let latency = load.run(rig).await?.exact()?;
    let mut figures = Figures::default();
    for (name, value) in latency.iter().filter(|(name, _)| name.starts_with("start.") || name.starts_with("end.")) {
        figures.put(name, value);
    }
    Ok(figures)
}

/// Submits this many jobs at the back, and runs as many from the front.
async fn in_and_out(rig: &Rig, topics: &[String], measured: u64, waiting: &mut Vec<JobId>) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    let submits = Submits::new(&rig.door, topics, 1);
    let mut connections = load::connect(&rig.addrs, 256).await?;
    let (meter, begun) = (Meter::start(rig, &[]).await?, Instant::now());
    let more = load::submit(&mut connections, &submits, measured, |_| ()).await?;
    figures.put("submit.rate", measured as f64 / begun.elapsed().as_secs_f64());
    let submit = meter.per_job(measured).await?;
    waiting.extend(more.jobs);

    let (workers, begun) = (rig.hire_unseen(&Crew::default(), topics)?, Instant::now());
    let meter = Meter::start(rig, &workers.pids).await?;
    let ran = until_executed(&workers, measured, PATIENCE, &ProgressBar::hidden()).await?;
    figures.put("drain.rate", ran as f64 / begun.elapsed().as_secs_f64());
    let drain = meter.per_job(ran).await?;
    let record = workers.record.clone();
    workers.dismiss().await;
    let total = |name: &str| submit.get(name).unwrap_or_default() + drain.get(name).unwrap_or_default();
    for (name, _) in drain.iter().filter(|(name, _)| name.starts_with("cpu.")) {
        figures.put(name, total(name));
    }
    figures.put("redis_commands", total("redis_commands"));
    figures.put("nats_messages", total("nats_messages"));

    let ran = delivery::executions(&record)?;
    let served: Vec<JobId> = take(waiting, &ran)?;
    let delivery = Delivery::check(rig, &served, &ran, PATIENCE).await?;
    match delivery.is_exact() {
        true => Ok(figures),
        false => Err(Failure::new(format!("the run is void. {delivery}")).into()),
    }
}

/// A million ended jobs, and then an ordinary run.
pub(super) async fn finished(rig: &Rig, found: &mut Rounds, scale: f64) -> anyhow::Result<()> {
    let before = Stretch { jobs: 1_000_000, batch: 1000, connections: 4, ..Stretch::default() };
    before.end_to_end(rig).await?.exact()?;
    found.add("finished-1000000", &Stretch::default().scaled(scale).end_to_end(rig).await?.exact()?);
    Ok(())
}

/// Submits until this many jobs wait.
async fn fill(rig: &Rig, topics: &[String], depth: u64, waiting: &mut Vec<JobId>) -> anyhow::Result<()> {
    let missing = depth.saturating_sub(waiting.len() as u64);
    let batch = missing.clamp(1, 1000);
    let submits = Submits::new(&rig.door, topics, batch);
    let mut connections = load::connect(&rig.addrs, 4).await?;
    let bar = output::bar(missing, "submitted");
    let jobs = load::submit(&mut connections, &submits, missing.div_ceil(batch), |n| bar.set_position(n)).await?.jobs;
    bar.finish_and_clear();
    waiting.extend(jobs);
    Ok(())
}

/// Removes the executed jobs from the waiting ones. A job that did not wait is an error.
fn take(waiting: &mut Vec<JobId>, ran: &[JobId]) -> anyhow::Result<Vec<JobId>> {
    let executed: std::collections::HashSet<JobId> = ran.iter().copied().collect();
    let before = waiting.len();
    waiting.retain(|job| !executed.contains(job));
    anyhow::ensure!(before - waiting.len() == executed.len(), "jobs were executed that did not wait");
    Ok(executed.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_executed_no_longer_waits_and_strangers_are_found() {
        let [a, b, c] = [1, 2, 3].map(JobId::mint);
        let mut waiting = vec![a, b];
        assert_eq!(take(&mut waiting, &[a, a]).unwrap(), [a]);
        assert_eq!(waiting, [b]);
        assert!(take(&mut waiting, &[c]).is_err());
    }
}
