//! From `main` to the exit code.
//!
//! This module knows the order of a start (settings, logs, metrics, runtime, admin port, body) and of an end (stages,
//! tasks, traces, admin port). The exit code is 0 after a stop, 1 if the body or a probe failed, 2 if the settings are
//! wrong. The service brings the body.

use std::{
    collections::BTreeMap,
    io::Write,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use muster_telemetry::{
    Exporter, LogSettings,
    export::{Export, Origin},
    init_logs,
};
use tracing::{error, info, warn};

use crate::{
    admin, descriptors,
    health::Health,
    listen,
    loops::{self, Declared, Registry},
    reach::Reach,
    settings::{
        self, Ask, Declaration, Values,
        baseline::{ADMIN_ADDR, INSTANCE_ID, LOG, OTLP_ENDPOINT, RUNTIME_THREADS},
    },
    stop::{self, Stop},
    tasks::Tasks,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const USAGE: u8 = 2;
/// How often observations are moved into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);
/// The time reserved for the last steps of a stop, out of its limit: tasks, then traces, then the admin port.
const LAST_TASKS: Duration = Duration::from_secs(1);
const LAST_SPANS: Duration = Duration::from_millis(500);
const LAST_SCRAPE: Duration = Duration::from_millis(500);

/// What a service's body receives. Clones are the same process.
#[derive(Clone)]
pub struct Chassis {
    /// The service's name, such as `muster-gateway`.
    pub service: &'static str,
    /// This replica's name.
    pub instance: String,
    /// The settings.
    pub values: Arc<Values>,
    /// Named tasks; drained after all stop stages.
    pub tasks: Tasks,
    /// The parts that determine readiness.
    pub health: Health,
    /// The stages of the stop.
    pub stop: Stop,
    /// The periodic loops; frozen when the service begins to run.
    pub loops: Registry,
    /// The address that the admin port listens on, with the actual port if 0 was requested.
    admin: SocketAddr,
    serving: Arc<AtomicBool>,
}

impl Chassis {
    /// A chassis without signals, logs or admin port. [`run`] gives it to its body, and a test gives it to a service
    /// that it starts in its own process.
    pub fn new(service: &'static str, values: Values) -> Chassis {
        let tasks = Tasks::new();
        let health = Health::new();
        let loops = Registry::new(&tasks, health.required("loops"));
        let instance = values.get(INSTANCE_ID).to_owned();
        let admin = values.get(ADMIN_ADDR);
        let (values, stop, serving) = (Arc::new(values), Stop::new(), Arc::default());
        Chassis { service, instance, values, tasks, health, stop, loops, admin, serving }
    }

    /// The address at which other processes reach this replica's admin port, kept up to date by a task.
    pub fn reach(&self) -> Reach {
        Reach::follow(&self.tasks, &self.values, self.admin)
    }

    /// Marks the set-up as done, waits for a stop, then runs its stages and ends all tasks. Returns the names of stages
    /// and tasks that were late.
    pub async fn run_until_stopped(&self) -> Vec<&'static str> {
        self.loops.freeze();
        self.serving.store(true, Ordering::Release);
        info!(event = "running", service = self.service, instance = self.instance, version = VERSION, "running");
        self.stop.requested().cancelled().await;
        self.end().await
    }

    async fn end(&self) -> Vec<&'static str> {
        self.health.stopping();
        let mut late = self.stop.run(stop::LIMIT - LAST_TASKS - LAST_SPANS - LAST_SCRAPE).await;
        let late_tasks = self.tasks.drain(LAST_TASKS).await;
        for task in &late_tasks {
            warn!(event = "task_late", task, "a task did not end in time");
        }
        late.extend(late_tasks);
        late
    }

    /// Returns when a stop is requested while the body is still setting up.
    async fn stopped_early(&self) {
        self.stop.requested().cancelled().await;
        if self.serving.load(Ordering::Acquire) {
            std::future::pending().await
        }
    }
}

/// Runs a service: `main` is this one call.
pub fn run(
    service: &'static str,
    own: &'static [Declaration],
    loops: &'static [Declared],
    body: impl AsyncFnOnce(Chassis) -> anyhow::Result<()>,
) -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let text = |part: std::ffi::OsString| part.into_string().ok();
    let env: BTreeMap<String, String> =
        std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect();

    let ask = settings::asked(&args);
    match ask {
        Ask::Help => return say(&settings::help(service, own)),
        Ask::Reference => return say(&settings::reference(service, own)),
        Ask::Loops => return say(&loops::reference(service, loops)),
        Ask::Version => return say(&format!("{service} {VERSION}\n")),
        Ask::Run | Ask::CheckConfig | Ask::PrintConfig => {}
    }
    let loaded = match settings::load(service, own, &args, &env) {
        Ok(loaded) => loaded,
        Err(faults) => {
            let _ = writeln!(std::io::stderr(), "{faults}");
            return ExitCode::from(USAGE);
        }
    };
    match ask {
        Ask::CheckConfig => {
            for warning in &loaded.warnings {
                let _ = writeln!(std::io::stderr(), "warning: {warning}");
            }
            return say(&format!("{service}: the settings are valid\n"));
        }
        Ask::PrintConfig => return say(&loaded.values.print()),
        Ask::Run | Ask::Help | Ask::Reference | Ask::Loops | Ask::Version => {}
    }
    if let Some(probe) = loaded.probe {
        return match probe.ask(loaded.values.get(ADMIN_ADDR)) {
            Ok(line) => say(&format!("{service}: {probe}: {line}\n")),
            Err(line) => {
                let _ = writeln!(std::io::stderr(), "{service}: {probe}: {line}");
                ExitCode::FAILURE
            }
        };
    }
    if let Err(fault) = init_logs(&LogSettings::for_this_process(loaded.values.get(LOG))) {
        let _ = writeln!(std::io::stderr(), "{service}: {fault}");
        return ExitCode::from(USAGE);
    }
    for warning in &loaded.warnings {
        warn!(event = warning.event(), setting = warning.setting(), detail = %warning, "settings");
    }
    log_panics();
    descriptors::raise();
    match start(service, loaded.values, body) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            error!(event = "service_failed", service, detail = format!("{fault:#}"), "the service failed");
            ExitCode::FAILURE
        }
    }
}

fn start(
    service: &'static str,
    values: Values,
    body: impl AsyncFnOnce(Chassis) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let threads = values.get(RUNTIME_THREADS);
    let mut runtime = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        n => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(n);
            builder
        }
    };
    let runtime = runtime.enable_all().build().context("cannot start the runtime")?;
    let ended = runtime.block_on(live(service, values, body));
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended
}

async fn live(
    service: &'static str,
    values: Values,
    body: impl AsyncFnOnce(Chassis) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut chassis = Chassis::new(service, values);
    let exporter = Exporter::install(&chassis.instance, VERSION);
    let traces = traces(&chassis)?;
    // Kept apart from the service's tasks: these tasks continue while those of the service are drained.
    let last = Tasks::new();
    stop::listen_for_signals(&last, &chassis.stop).context("cannot listen for signals")?;
    upkeep(&last, &exporter);
    let listener = listen::bind(chassis.values.get(ADMIN_ADDR)).await?;
    let routes = admin::routes(&exporter, &chassis.health, &chassis.loops);
    let port = listen::serve_strangers(&last, "admin", listener, routes, descriptors::share_of_admin())?;
    chassis.admin = port.local_addr();
    info!(event = "listening", port = "admin", addr = %port.local_addr(), "listening");

    let ended = tokio::select! {
        ended = body(chassis.clone()) => ended,
        () = chassis.stopped_early() => Ok(()),
    };
    // Ends what the body did not end itself: nothing, after run_until_stopped.
    chassis.end().await;
    if let Some(traces) = traces {
        traces.stop(LAST_SPANS).await;
    }
    last.drain(LAST_SCRAPE).await;
    info!(event = "stopped", service, instance = chassis.instance, "stopped");
    ended
}

/// The export of traces, if a collector is configured.
fn traces(chassis: &Chassis) -> anyhow::Result<Option<Export>> {
    let Some(endpoint) = chassis.values.get(OTLP_ENDPOINT) else { return Ok(None) };
    let export =
        Export::install(endpoint, Origin { service: chassis.service, instance: &chassis.instance, version: VERSION })?;
    info!(event = "exporting_traces", endpoint, "exporting traces");
    Ok(Some(export))
}

fn upkeep(tasks: &Tasks, exporter: &Exporter) {
    let (exporter, stop) = (exporter.clone(), tasks.stopping());
    tasks.spawn("metrics upkeep", async move {
        while tokio::time::timeout(UPKEEP, stop.cancelled()).await.is_err() {
            exporter.upkeep();
        }
    });
}

/// Sends panics, with their place, to the log like all other messages.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let said = muster_telemetry::panics::said(panic.payload());
        error!(event = "panic", place, detail = said, "panic");
    }));
}

fn say(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
