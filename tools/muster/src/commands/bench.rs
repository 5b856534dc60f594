//! `muster bench`: measures what the stack can do. Everything runs on this machine, so that the cost of each process
//! can be read from the kernel. Every run checks that each job was executed and ended once, and is void otherwise.

mod delivery;
mod figures;
mod guard;
mod keep_alive;
mod load;
mod meter;
mod open_loop;
mod overload;
mod page;
mod plot;
mod reference;
mod report;
mod requests;
mod rest;
mod rig;
mod scenarios;
mod stores;
mod stretch;
mod suite;
mod targets;

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use self::{
    figures::Figures,
    guard::Guard,
    overload::Overload,
    rig::{Crew, Rig, STANDARD},
    stretch::{Outcome, Stretch},
    suite::Suite,
};
use crate::{
    output::{self, Format},
    target::Target,
};

/// Measure throughput, latency and cost, on separate stacks
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    suite: Suite,
}

#[derive(Subcommand, Debug)]
enum What {
    Submit(Submit),
    Overload(Overload),
    Guard(Guard),
}

/// Run no-op jobs on the local stack, or on a separate one, and wait until all have succeeded
#[derive(Args, Debug)]
pub(crate) struct Submit {
    /// Number of jobs
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    jobs: u64,

    /// Jobs per request; 1 submits them one by one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: u64,

    /// Connections, spread over the gateways, each with one request in flight
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,

    /// Number of topics; jobs are spread over them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    topics: u16,

    /// Jobs that a worker runs at once
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,

    /// Number of workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    workers: u16,

    /// Number of workers over HTTP, each a process
    #[arg(long)]
    http: bool,

    /// Start a separate stack even if one runs here
    #[arg(long)]
    own: bool,

    /// Submit all jobs before the workers start, and measure only the workers
    #[arg(long)]
    drain: bool,

    /// Give up when there is no progress for this long
    #[arg(long, default_value = "60s", value_parser = crate::spans::parse, value_name = "DURATION")]
    patience: Duration,
}

impl Bench {
    pub(crate) async fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        match self.what {
            None => self.suite.run(format).await,
            Some(What::Guard(guard)) => guard.run(format).await,
            Some(What::Overload(overload)) => {
                let rig = rig(target, overload.own).await?;
                let result = overload.run(&rig, format).await;
                rig.stop().await;
                result
            }
            Some(What::Submit(submit)) => {
                let rig = rig(target, submit.own).await?;
                let result = submit.run(&rig, format).await;
                rig.stop().await;
                result
            }
        }
    }
}

/// The stack that runs here, or one of the bench's own.
async fn rig(target: &Target, own: bool) -> anyhow::Result<Rig> {
    if let Some(stack) = if own { None } else { target.stack()? } {
        return Rig::attach(stack, target.door()?).await;
    }
    let starting = output::spinner("starting a separate stack");
    let rig = Rig::start(STANDARD).await?;
    starting.finish_and_clear();
    Ok(rig)
}

impl Submit {
    async fn run(self, rig: &Rig, format: Format) -> anyhow::Result<()> {
        let (processes, copies) = if self.http { (self.workers, 1) } else { (1, self.workers) };
        let stretch = Stretch {
            jobs: self.jobs,
            batch: self.batch,
            connections: self.connections.into(),
            topics: self.topics.into(),
            crew: Crew { processes, copies, concurrency: self.concurrency, http: self.http },
            patience: self.patience,
        };
        let outcome = if self.drain { stretch.drain(rig).await? } else { stretch.end_to_end(rig).await? };
        let Outcome { figures, delivery } = &outcome;
        match format {
            Format::Json => output::json(&json!({
                "figures": figures,
                "exact": delivery.is_exact(),
                "delivery": delivery,
            })),
            Format::Table => {
                show(figures, self.batch, self.connections);
                output::line(format_args!("\n{delivery}"));
            }
        }
        outcome.exact().map(drop)
    }
}

fn show(figures: &Figures, batch: u64, connections: u16) {
    let figure = |name: &str| figures.get(name).unwrap_or_default();
    output::line(format_args!(
        "{} jobs in {:.1} s: {:.0} jobs/s ({batch} a request, {connections} connections)\n",
        figure("jobs"),
        figure("seconds"),
        figure("rate"),
    ));
    let processes = figures.iter().filter_map(|(name, _)| name.strip_prefix("process.")?.strip_suffix(".cpu"));
    let row = |name: &str, cpu: &str, rss: &str| {
        let cell = |figure: &str| figures.get(figure).map(|value| format!("{value:.1}")).unwrap_or_default();
        vec![name.to_owned(), cell(cpu), cell(rss)]
    };
    let rows = processes.map(|name| row(name, &format!("process.{name}.cpu"), &format!("process.{name}.rss")));
    let rows = rows.chain([row("all", "cpu.total", "")]);
    output::rows(&["PROCESS", "CPU µs/job", "MiB"], rows);
    output::line(format_args!(
        "\nper job: {:.2} NATS messages, {:.2} Redis commands",
        figure("nats_messages"),
        figure("redis_commands")
    ));
    if let (Some(waiting), Some(finished)) = (figures.get("bytes.waiting"), figures.get("bytes.finished")) {
        output::line(format_args!("in Redis: {waiting:.0} bytes a waiting job, {finished:.0} a finished one"));
    }
}
