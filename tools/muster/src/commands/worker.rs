//! `muster worker list` and `drain`, and `muster worker run`: a worker that needs no code. It runs either a custom
//! command per job, or a builtin for first experiments. It uses NATS if it knows a NATS server, otherwise HTTP.

mod builtin;
mod drain;
pub(crate) mod drilled;
mod exec;
mod http;
mod lease_book;
mod list;
mod over_nats;
mod task;
mod traces;
mod work;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use futures_util::future::try_join_all;
use muster_domain::{Tenant, Topic, WorkerId};
use tracing_subscriber::EnvFilter;

use self::work::Work;
use super::{Caller, label::label};
use crate::{
    api::Api, outcome::Failure, output::Format, record::Recorder, signals::StopSignals, spans, target::Target,
};

#[derive(Subcommand, Debug)]
pub(crate) enum Worker {
    Run(Box<Run>),
    /// List the live workers of the tenant
    List,
    /// Drain a worker: it takes no more jobs, finishes its running jobs and ends
    Drain {
        /// The worker, as `muster worker list` shows it
        #[arg(value_parser = worker_id)]
        id: WorkerId,
    },
}

/// Run jobs of one or more topics until a signal stops the worker
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Topic to take jobs of; may be repeated
    #[arg(long = "topic", required = true, value_name = "TOPIC")]
    topics: Vec<String>,

    /// Take the jobs of every tenant in turn, on shared topics; only over NATS
    #[arg(long, conflicts_with = "http")]
    all_tenants: bool,

    /// Maximum number of jobs at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,

    /// A label that this worker provides, for jobs that require it; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    provides: Vec<(String, String)>,

    /// After SIGTERM: how long running jobs may take before the worker gives them back
    #[arg(long, default_value = "25s", value_parser = spans::parse, value_name = "DURATION")]
    drain: Duration,

    /// Lease: how long a job runs without an extension before another worker gets it
    #[arg(long, default_value = "30s", value_parser = lease, value_name = "DURATION")]
    lease: Duration,

    #[command(flatten)]
    what: What,

    /// For `count`: a file that gets a line per execution; without one it counts in memory
    #[arg(long, required_if_eq_any([("builtin", "record"), ("builtin", "drill")]), value_name = "FILE")]
    count_file: Option<PathBuf>,

    /// Number of workers in this process, for a bench
    #[arg(long, hide = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    copies: u16,

    /// NATS servers; without them the worker uses HTTP
    #[arg(long, env = "NATS_URL", value_name = "URL")]
    nats_url: Option<String>,

    /// Copies of each stream, if this worker has to create the streams
    #[arg(long, env = "NATS_REPLICAS", default_value_t = 1, value_name = "N")]
    nats_replicas: usize,

    /// Use HTTP even if the address of NATS is known
    #[arg(long)]
    http: bool,

    /// The worker's name [default: random]
    #[arg(long, value_name = "ID", value_parser = worker_id)]
    id: Option<WorkerId>,

    /// What to log
    #[arg(long, env = "MUSTER_LOG", default_value = "info", value_name = "FILTER")]
    log: String,

    /// Address of the trace collector, for OTLP over HTTP; a span for each attempt over NATS
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otel_exporter_otlp_endpoint: Option<String>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct What {
    /// Shell command to run per job: payload on standard input, result on standard output
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,

    /// A built-in handler instead of a command
    #[arg(long)]
    builtin: Option<Builtin>,
}

/// Handlers for trying things out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Builtin {
    /// Returns the payload
    Echo,
    /// Sleeps as long as the payload says: {"ms": 250}
    Sleep,
    /// Fails as the payload says: {"code": "…", "message": "…", "retryable": false}
    Fail,
    /// Counts executions and returns their number
    Count,
    /// Records when each job began, for a bench
    #[value(hide = true)]
    Record,
    /// Does what the payload of a drill says, and writes a line per execution
    #[value(hide = true)]
    Drill,
}

/// The settings of a worker, whichever protocol it uses.
#[derive(Clone)]
struct Settings {
    id: WorkerId,
    tenant: Tenant,
    all_tenants: bool,
    topics: Vec<Topic>,
    concurrency: usize,
    provides: Vec<(String, String)>,
    drain: Duration,
    lease: Duration,
    stream_replicas: usize,
}

impl Worker {
    pub(crate) async fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        match self {
            Worker::Run(run) => run.run(target).await,
            Worker::List => list::run(&Caller { api: Api::new(target.door()?)?, format }).await,
            Worker::Drain { id } => drain::run(&Caller { api: Api::new(target.door()?)?, format }, &id).await,
        }
    }
}

impl Run {
    async fn run(self, target: &Target) -> anyhow::Result<()> {
        let stop = StopSignals::listen()?;
        let filter = EnvFilter::try_new(&self.log)
            .map_err(|error| Failure::usage(format!("{:?} is not a log filter: {error}", self.log)))?;
        let settings = self.settings(target)?;
        let endpoint = self.otel_exporter_otlp_endpoint.as_deref().filter(|url| !url.trim().is_empty());
        let traces = traces::begin(filter, endpoint, &settings.id)?;
        let ended = self.take_jobs(target, settings, stop).await;
        if let Some(traces) = traces {
            traces.stop(traces::FLUSH).await;
        }
        ended
    }

    async fn take_jobs(self, target: &Target, settings: Settings, stop: StopSignals) -> anyhow::Result<()> {
        let work = Arc::new(self.work(&settings)?);
        let nats_url = match (&self.nats_url, self.http) {
            (_, true) => None,
            (Some(url), false) => Some(url.clone()),
            // An address given explicitly belongs to another stack than the local one.
            (None, false) if target.url.is_some() => None,
            (None, false) => target.stack()?.map(|stack| stack.nats_url),
        };
        let topics = self.topics.join(", ");
        match nats_url {
            Some(url) => {
                // The part before an `@` is a login, which must not be logged.
                let servers: Vec<_> = url.split(',').filter_map(|one| one.rsplit('@').next()).collect();
                tracing::info!(worker = %settings.id, %topics, servers = servers.join(","), "taking jobs over NATS");
                let mut crew = Vec::new();
                for _ in 1..self.copies {
                    let copy = Settings { id: WorkerId::random("cli"), ..settings.clone() };
                    crew.push(over_nats::run(copy, &url, Arc::clone(&work), StopSignals::listen()?));
                }
                crew.push(over_nats::run(settings, &url, work, stop));
                try_join_all(crew).await.map(drop)
            }
            None if self.all_tenants => {
                Err(Failure::usage("--all-tenants needs NATS: a worker over HTTP takes the jobs of one tenant only")
                    .into())
            }
            None => {
                let door = target.door()?;
                tracing::info!(worker = %settings.id, %topics, urls = ?door.urls, "taking jobs over HTTP");
                http::run(settings, door, work, stop).await
            }
        }
    }

    fn settings(&self, target: &Target) -> Result<Settings, Failure> {
        let tenant = target.tenant.as_deref().unwrap_or("default");
        let tenant = Tenant::parse(tenant).map_err(|fault| Failure::usage(format!("--tenant {tenant:?}: {fault}")))?;
        let topic = |text: &String| Topic::parse(text).map_err(|f| Failure::usage(format!("--topic {text:?}: {f}")));
        Ok(Settings {
            id: self.id.clone().unwrap_or_else(|| WorkerId::random("cli")),
            tenant,
            all_tenants: self.all_tenants,
            topics: self.topics.iter().map(topic).collect::<Result<_, _>>()?,
            concurrency: self.concurrency as usize,
            provides: self.provides.clone(),
            drain: self.drain,
            lease: self.lease,
            stream_replicas: self.nats_replicas,
        })
    }

    fn work(&self, settings: &Settings) -> anyhow::Result<Work> {
        Ok(match (&self.what.exec, self.what.builtin, &self.count_file) {
            (Some(command), ..) => Work::Exec(exec::Exec::new(command)),
            (None, Some(Builtin::Sleep), _) => Work::Sleep,
            (None, Some(Builtin::Fail), _) => Work::Fail,
            (None, Some(Builtin::Count), Some(file)) => Work::Count(builtin::Tally::open(file)?),
            (None, Some(Builtin::Count), None) => Work::Count(builtin::Tally::in_memory()),
            (None, Some(Builtin::Record), Some(file)) => Work::Record(Recorder::open(file)?),
            (None, Some(Builtin::Drill), Some(file)) => Work::Drill(builtin::Tally::open(file)?.signed(&settings.id)),
            (None, ..) => Work::Echo,
        })
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = spans::parse(text)?;
    match (Duration::from_secs(1)..=Duration::from_secs(900)).contains(&lease) {
        true => Ok(lease),
        false => Err("a lease lasts 1s to 15m (over HTTP at least 5s)".to_owned()),
    }
}

fn worker_id(text: &str) -> Result<WorkerId, String> {
    WorkerId::parse(text).map_err(|fault| fault.to_string())
}
