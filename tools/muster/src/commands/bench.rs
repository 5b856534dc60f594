//! `muster bench submit`: no-op jobs through a whole stack, submitted over HTTP, counted by their
//! worker. Says how many a second went through and what each process paid for a job, and fails
//! unless every job succeeded and was started exactly once.

mod cpu;
mod load;
mod verdict;

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::{process::Child, time::Instant};
use uuid::Uuid;

use self::{cpu::Meter, load::Load, verdict::Verdict};
use super::dev;
use crate::{
    api::Api,
    outcome::Failure,
    output::{self, Format},
    stack::Stack,
    target::Target,
};

/// Measure the stack
#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    Submit(Submit),
}

/// Submit no-op jobs over HTTP and wait until all have succeeded
#[derive(Args, Debug)]
pub(crate) struct Submit {
    /// How many
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    jobs: u64,

    /// Jobs a request; 1 submits them one by one
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: u64,

    /// Requests at once, spread over the gateways
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,

    /// Topic to use; a fresh one if none is given
    #[arg(long)]
    topic: Option<String>,

    /// Jobs that the worker runs at once
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,

    /// Give up when nothing moves for this long
    #[arg(long, default_value = "60s", value_parser = crate::spans::parse, value_name = "DURATION")]
    patience: Duration,
}

impl Bench {
    pub(crate) async fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        let What::Submit(submit) = self.what;
        let stack = target.stack()?.ok_or_else(|| {
            Failure::new("a bench needs a local stack, to see what each process pays")
                .hint("start one: `muster dev --replicas 2`")
        })?;
        submit.run(target, &stack, format).await
    }
}

impl Submit {
    async fn run(self, target: &Target, stack: &Stack, format: Format) -> anyhow::Result<()> {
        let api = Api::new(target.door()?)?;
        let topic = self.topic.clone().unwrap_or_else(|| format!("bench-{}", Uuid::new_v4().simple()));
        let tally = Scratch::new(&topic)?;
        let mut worker = self.start_worker(target, stack, &topic, &tally)?;
        let worker_pid = worker.id().context("the bench's worker is gone")?;

        let meter = Meter::start(&stack.processes, worker_pid);
        let begun = Instant::now();
        let load = Load { jobs: self.jobs, batch: self.batch, connections: self.connections, topic: &topic };
        let bar = output::bar(self.jobs, "finished");
        let submitted = load.submit(&api);
        let counted = verdict::until_counted(&tally.0, self.jobs, self.patience, &bar);
        let (accepted, counted) = tokio::join!(submitted, counted);
        let accepted = accepted?;
        if counted? {
            verdict::until_settled(&api, &tally.0, self.patience).await?;
        }
        let took = begun.elapsed();
        let paid = meter.stop();
        bar.finish_and_clear();

        let checking = output::spinner("checking every job");
        let verdict = Verdict::reach(&api, &topic, &accepted, &tally.0, self.patience).await?;
        checking.finish_and_clear();
        stop_worker(&mut worker, worker_pid).await;

        let rate = self.jobs as f64 / took.as_secs_f64();
        match format {
            Format::Json => output::json(&json!({
                "jobs": self.jobs,
                "seconds": took.as_secs_f64(),
                "jobs_per_second": rate,
                "cpu_us_per_job": paid.per_job(self.jobs),
                "exact": verdict.is_exact(),
                "verdict": verdict,
            })),
            Format::Table => {
                output::line(format_args!(
                    "{} jobs in {:.1} s: {rate:.0} jobs/s ({} a request, {} connections)\n",
                    self.jobs,
                    took.as_secs_f64(),
                    self.batch,
                    self.connections
                ));
                paid.show(self.jobs);
                output::line(format_args!("\n{verdict}"));
            }
        }
        match verdict.is_exact() {
            true => Ok(()),
            false => Err(Failure::new("the run was not exact").into()),
        }
    }

    fn start_worker(&self, target: &Target, stack: &Stack, topic: &str, tally: &Scratch) -> anyhow::Result<Child> {
        let me = std::env::current_exe()?;
        let setpriv = dev::programs::find("setpriv");
        let mut command = dev::bound_to_parent(setpriv.as_deref(), &me);
        command
            .args(["worker", "run", "--topic", topic, "--builtin", "count", "--drain", "5s", "--log", "warn"])
            .args(["--tenant", target.tenant.as_deref().unwrap_or("default")])
            .args(["--concurrency", &self.workers.to_string()])
            .arg("--count-file")
            .arg(&tally.0)
            .env("NATS_URL", &stack.nats_url)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command.spawn().context("cannot start the bench's worker")
    }
}

/// Lets the worker drain; one that does not is killed with the handle.
async fn stop_worker(worker: &mut Child, pid: u32) {
    use nix::{sys::signal, unistd::Pid};
    if let Ok(pid) = i32::try_from(pid) {
        let _ = signal::kill(Pid::from_raw(pid), signal::Signal::SIGTERM);
    }
    let _ = tokio::time::timeout(Duration::from_secs(10), worker.wait()).await;
}

/// The file that the worker counts in; gone with the bench.
struct Scratch(PathBuf);

impl Scratch {
    fn new(topic: &str) -> std::io::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("muster-{}-{topic}.count", std::process::id()));
        std::fs::File::create(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
