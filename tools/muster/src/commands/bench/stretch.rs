//! One measured stretch of work: jobs are submitted and run, the clock stops when the last has ended, every cost is
//! counted and every delivery checked.

use std::time::Duration;

use indicatif::ProgressBar;
use muster_domain::JobId;
use tokio::time::{Instant, sleep};

use super::{
    delivery::{self, Delivery},
    figures::Figures,
    load,
    meter::Meter,
    requests::Submits,
    rig::{Crew, Rig, Workers},
    stores,
};
use crate::{outcome::Failure, output};

/// The work to measure.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) jobs: u64,
    /// The number of jobs in a request.
    pub(super) batch: u64,
    pub(super) connections: usize,
    pub(super) topics: usize,
    pub(super) crew: Crew,
    /// Give up when there is no progress for this long.
    pub(super) patience: Duration,
}

impl Default for Stretch {
    fn default() -> Stretch {
        Stretch {
            jobs: 60_000,
            batch: 1,
            connections: 256,
            topics: 1,
            crew: Crew::default(),
            patience: Duration::from_secs(60),
        }
    }
}

/// Runs some jobs, so that connections, scripts and streams exist before the measurement.
pub(super) async fn warm_up(rig: &Rig) -> anyhow::Result<()> {
    let some = Stretch { jobs: 3_000, ..Stretch::default() };
    some.end_to_end(rig).await?.exact().map(drop)
}

/// The result of a stretch.
pub(super) struct Outcome {
    /// `rate` in jobs per second, `jobs`, `seconds`, `put_off`, and what [`Meter`] counts per job.
    pub(super) figures: Figures,
    pub(super) delivery: Delivery,
}

impl Outcome {
    /// The figures, unless a job was not delivered as promised: then the run is void.
    pub(super) fn exact(self) -> anyhow::Result<Figures> {
        match self.delivery.is_exact() {
            true => Ok(self.figures),
            false => Err(Failure::new(format!("the run is void. {}", self.delivery)).into()),
        }
    }
}

impl Stretch {
    /// The same with more or fewer jobs.
    pub(super) fn scaled(self, scale: f64) -> Stretch {
        Stretch { jobs: share(self.jobs, scale), ..self }
    }

    /// Submits while the workers run.
    pub(super) async fn end_to_end(&self, rig: &Rig) -> anyhow::Result<Outcome> {
        let topics = rig.topics(self.topics);
        let workers = rig.hire(&self.crew, &topics).await?;
        // The jobs that showed that the workers are ready have been executed too.
        let first = until_executed(&workers, topics.len() as u64, self.patience, &ProgressBar::hidden()).await?;
        let submits = Submits::new(&rig.door, &topics, self.batch);
        let mut connections = load::connect(&rig.addrs, self.connections).await?;
        let bar = output::bar(self.jobs, "finished");

        let meter = Meter::start(rig, &workers.pids).await?;
        let begun = Instant::now();
        let requests = self.jobs.div_ceil(self.batch);
        let submitted = load::submit(&mut connections, &submits, requests, |_| ());
        let executed = until_executed(&workers, first + requests * self.batch, self.patience, &bar);
        let (submitted, executed) = tokio::join!(submitted, executed);
        let submitted = submitted?;
        executed?;
        let ran = delivery::executions(&workers.record)?.split_off(usize::try_from(first)?);
        delivery::until_settled(rig, &ran, self.patience).await?;
        let took = begun.elapsed();
        let figures = meter.per_job(submitted.jobs.len() as u64).await?;
        bar.finish_and_clear();
        self.finish(rig, workers, (submitted, ran), (took, figures)).await
    }

    /// Submits everything first, and then measures how fast the workers run it. Also measures, as `bytes.waiting` and
    /// `bytes.finished`, the memory of a job in Redis before and after.
    pub(super) async fn drain(&self, rig: &Rig) -> anyhow::Result<Outcome> {
        let topics = rig.topics(self.topics);
        let submits = Submits::new(&rig.door, &topics, self.batch);
        let mut connections = load::connect(&rig.addrs, self.connections).await?;
        let requests = self.jobs.div_ceil(self.batch);
        let empty = stores::bytes(&rig.stack).await?;
        let filling = output::bar(requests * self.batch, "submitted");
        let submitted = load::submit(&mut connections, &submits, requests, |n| filling.set_position(n)).await?;
        filling.finish_and_clear();
        let full = stores::bytes(&rig.stack).await?;

        let bar = output::bar(self.jobs, "finished");
        let begun = Instant::now();
        let workers = rig.hire_unseen(&self.crew, &topics)?;
        let meter = Meter::start(rig, &workers.pids).await?;
        until_executed(&workers, submitted.jobs.len() as u64, self.patience, &bar).await?;
        let ran = delivery::executions(&workers.record)?;
        delivery::until_settled(rig, &ran, self.patience).await?;
        let took = begun.elapsed();
        let mut figures = meter.per_job(submitted.jobs.len() as u64).await?;
        let share = |bytes: u64| bytes.saturating_sub(empty) as f64 / submitted.jobs.len() as f64;
        figures.put("bytes.waiting", share(full));
        figures.put("bytes.finished", share(stores::bytes(&rig.stack).await?));
        bar.finish_and_clear();
        self.finish(rig, workers, (submitted, ran), (took, figures)).await
    }

    async fn finish(
        &self,
        rig: &Rig,
        workers: Workers,
        (submitted, ran): (load::Submitted, Vec<JobId>),
        (took, mut figures): (Duration, Figures),
    ) -> anyhow::Result<Outcome> {
        let checking = output::spinner("checking every job");
        let delivery = Delivery::check(rig, &submitted.jobs, &ran, self.patience).await?;
        checking.finish_and_clear();
        workers.dismiss().await;
        let jobs = submitted.jobs.len() as f64;
        figures.put("jobs", jobs);
        figures.put("seconds", took.as_secs_f64());
        figures.put("rate", jobs / took.as_secs_f64());
        figures.put("put_off", submitted.put_off as f64);
        Ok(Outcome { figures, delivery })
    }
}

/// A fraction or a multiple of this many jobs, but at least a thousand.
pub(super) fn share(jobs: u64, scale: f64) -> u64 {
    ((jobs as f64 * scale) as u64).max(1_000)
}

/// Waits for this many executions. Returns how many there are then; fails if there is no progress.
pub(super) async fn until_executed(
    workers: &Workers,
    jobs: u64,
    patience: Duration,
    bar: &ProgressBar,
) -> anyhow::Result<u64> {
    let (mut before, mut moved) = (0, Instant::now());
    loop {
        let now = workers.executed();
        if now >= jobs {
            return Ok(now);
        }
        if now > before {
            (before, moved) = (now, Instant::now());
            bar.set_position(now);
        }
        if moved.elapsed() > patience {
            let failure = Failure::new(format!("{now} of {jobs} jobs were executed, and no more within {patience:?}"));
            return Err(failure.hint("see the logs of the stack and of its workers").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}
