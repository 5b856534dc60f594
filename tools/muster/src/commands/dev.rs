//! `muster dev`: a whole stack on this machine, from one command. A supervisor that starts its own Redis and NATS,
//! every service and a demo worker, waits until all of them are ready, prints how to use the stack, restarts
//! processes that die, and on Ctrl-C stops everything and keeps the data.

pub(crate) mod fleet;
pub(crate) mod folder;
pub(crate) mod nats;
pub(crate) mod ports;
pub(crate) mod probe;
pub(crate) mod redis;
pub(crate) mod services;

use std::{
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
pub(crate) use fleet::bound_to_parent;
use indicatif::ProgressBar;

use self::{fleet::Fleet, folder::Folder, nats::Nats, ports::Ports, redis::Redis, services::Surroundings};
use crate::{output, signals::StopSignals, spans, stack::Stack};

/// Start a whole stack on this machine
#[derive(Args, Debug)]
pub(crate) struct Dev {
    /// Number of replicas of each service
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    replicas: u16,

    /// Six Redis nodes and three NATS nodes instead of one of each
    #[arg(long)]
    cluster: bool,

    /// Where data, logs, the API key and the state file are kept
    #[arg(long, default_value = ".muster", value_name = "DIR")]
    dir: PathBuf,

    /// Port of the first gateway; each further gateway adds 2; 0 picks free ports
    #[arg(long, default_value_t = 8081)]
    port: u16,

    /// Start no demo worker
    #[arg(long)]
    no_worker: bool,

    /// Maximum pause before a process that keeps dying is started again
    #[arg(long, default_value = "10s", value_parser = spans::parse, value_name = "DURATION")]
    restart_within: Duration,
}

/// How a phase of the stack ended.
enum Ended<T> {
    Done(T),
    Stopped,
}

impl Dev {
    /// Runs until a signal asks it to stop.
    pub(crate) async fn run(self, state_file: Option<&Path>) -> anyhow::Result<()> {
        let mut stop = StopSignals::listen()?;
        let spinner = output::spinner("looking around");
        let folder = tokio::select! {
            folder = Folder::take(&self.dir, state_file) => folder?,
            () = stop.next() => return Ok(()),
        };
        let mut fleet = Fleet::new(folder.logs()).restarting_within(self.restart_within);
        let result = self.supervise(&folder, &mut fleet, &mut stop, &spinner).await;

        spinner.finish_and_clear();
        if !fleet.processes().is_empty() {
            eprintln!("stopping all processes; press Ctrl-C again to kill them");
        }
        // A state file that names processes which are about to end would mislead its readers.
        let _ = std::fs::remove_file(folder.state_file());
        fleet.stop(stop.next()).await;
        result
    }

    /// Starts the stack, and supervises it until the signal to stop.
    async fn supervise(
        &self,
        folder: &Folder,
        fleet: &mut Fleet,
        stop: &mut StopSignals,
        spinner: &ProgressBar,
    ) -> anyhow::Result<()> {
        let data = folder.data(self.cluster)?;
        let mut ports = Ports::load(data.join("ports.json"));
        // Reserve the kept ports first, so that no new process gets one of them.
        let redis = Redis::plan(&data, self.cluster, &mut ports)?;
        let nats = Nats::plan(&data, self.cluster, &mut ports)?;
        ports.save()?;
        let api_key = folder.api_key()?;
        let around = Surroundings {
            redis_url: redis.url(),
            nats_url: nats.url(),
            nats_replicas: nats.replicas(),
            api_key: &api_key,
            dir: folder.path(),
        };
        // Everything that can be refused is refused before anything starts.
        let stores = [redis.recipes()?, nats.recipes()?].concat();
        let services = services::recipes(&around, self.replicas, self.port, &mut ports)?;

        spinner.set_message("starting Redis and NATS");
        stores.into_iter().try_for_each(|recipe| fleet.start(recipe))?;
        let ready = async { tokio::try_join!(redis.ready(), nats.ready()).map(drop) };
        let Ended::Done(()) = meanwhile(fleet, stop, ready).await? else {
            return Ok(());
        };
        fleet.proven();

        spinner.set_message("starting the services");
        services.into_iter().try_for_each(|recipe| fleet.start(recipe))?;
        let processes = fleet.processes();
        let Ended::Done(()) = meanwhile(fleet, stop, services::ready(&processes)).await? else {
            return Ok(());
        };
        if !self.no_worker {
            fleet.start(services::demo_worker(&around)?)?;
        }
        fleet.proven();

        let mut stack = Stack {
            api_key: api_key.clone(),
            redis_url: around.redis_url.clone(),
            nats_url: around.nats_url.clone(),
            processes: fleet.processes(),
            ..Stack::default()
        };
        stack.write(folder.state_file())?;
        spinner.finish_and_clear();
        self.welcome(&stack, folder);
        loop {
            tokio::select! {
                () = stop.next() => return Ok(()),
                replaced = fleet.next_replaced() => {
                    eprintln!("{}", replaced?);
                    stack.processes = fleet.processes();
                    stack.write(folder.state_file())?;
                }
            }
        }
    }

    fn welcome(&self, stack: &Stack, folder: &Folder) {
        let gateways = stack.gateways();
        let url = gateways.first().map_or("", String::as_str);
        let here = std::env::current_dir().unwrap_or_default();
        let near = |path: &Path| path.strip_prefix(&here).unwrap_or(path).display().to_string();
        let muster = std::env::args().next().unwrap_or_else(|| "muster".into());
        let state = match folder.state_file() == here.join(Stack::default_path()) {
            true => String::new(),
            false => format!(" --state-file {}", near(folder.state_file())),
        };
        let key = &stack.api_key;
        output::line(format_args!(
            "\nMuster is up: {} processes, {} of each service.\n\n  \
             Dashboard  {url}/\n  \
             API        {}\n  \
             API key    {key}\n  \
             Logs       {}\n\n\
             Submit a first job:\n\n  \
             curl -sS '{url}/api/v1/jobs?wait_ms=5000' \\\n    \
             -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\\n    \
             -d '{{\"topic\":\"demo\",\"payload\":{{\"hello\":\"world\"}}}}'\n\n\
             or, from another terminal:\n\n  \
             {muster} job submit{state} --topic demo --payload '{{\"hello\":\"world\"}}' --wait\n\n\
             Ctrl-C stops everything; the data stays in {}.",
            stack.processes.len(),
            self.replicas,
            gateways.iter().map(|g| format!("{g}/api/v1")).collect::<Vec<_>>().join("  "),
            near(&folder.logs()),
            near(folder.path()),
        ));
    }
}

/// Runs `work` while the fleet is supervised. A fleet that cannot start, or a signal, ends it early.
async fn meanwhile<T>(
    fleet: &mut Fleet,
    stop: &mut StopSignals,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Ended<T>> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done.map(Ended::Done),
            () = stop.next() => return Ok(Ended::Stopped),
            replaced = fleet.next_replaced() => { replaced?; }
        }
    }
}
