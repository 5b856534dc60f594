//! From `main` to the exit code.
//!
//! Knows: the order of a start (settings, logs, metrics, runtime, admin port, body) and of an
//! end (stages, tasks, traces, admin port). Promises: exit 0 after a stop, 1 when the body failed, 2
//! when the settings are at fault. Leaves to others: the body.

use std::{
    collections::BTreeMap,
    io::Write,
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
    admin,
    health::Health,
    listen,
    loops::{self, Declared, Registry},
    settings::{self, Ask, Setting, Values},
    stop::{self, Stop},
    tasks::Tasks,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const USAGE: u8 = 2;
/// How often observations are folded into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);
/// What the last steps of a stop are left, out of its limit: tasks, then traces, then the admin port.
const LAST_TASKS: Duration = Duration::from_secs(1);
const LAST_SPANS: Duration = Duration::from_millis(500);
const LAST_SCRAPE: Duration = Duration::from_millis(500);

/// What a service's body gets. Copies are the same process.
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
    /// The parts that readiness asks.
    pub health: Health,
    /// The stages of the end.
    pub stop: Stop,
    /// The periodic loops; frozen when the service begins to run.
    pub loops: Registry,
    serving: Arc<AtomicBool>,
}

impl Chassis {
    /// A chassis without signals, logs or admin port: what [`run`] gives its body, and what
    /// a test gives to a service that it starts in its own process.
    pub fn new(service: &'static str, values: Values) -> Chassis {
        let tasks = Tasks::new();
        let health = Health::new();
        let loops = Registry::new(&tasks, health.required("loops"));
        let instance = values.text("instance_id").to_owned();
        let (values, stop, serving) = (Arc::new(values), Stop::new(), Arc::default());
        Chassis { service, instance, values, tasks, health, stop, loops, serving }
    }

    /// Declares the set-up done, waits for a stop, then runs its stages and ends all tasks.
    /// Returns the names of stages and tasks that were late.
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

    /// Returns when a stop is asked for while the body still sets things up.
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
    own: &'static [Setting],
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
        Ask::Loops => return say(&loops::reference(service, loops, own)),
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
            return say(&format!("{service}: the settings are fine\n"));
        }
        Ask::PrintConfig => return say(&loaded.values.print()),
        Ask::Run | Ask::Help | Ask::Reference | Ask::Loops | Ask::Version => {}
    }
    if let Err(fault) = init_logs(&LogSettings::for_this_process(loaded.values.text("log"))) {
        let _ = writeln!(std::io::stderr(), "{service}: {fault}");
        return ExitCode::from(USAGE);
    }
    for warning in &loaded.warnings {
        warn!(event = warning.event(), setting = warning.setting(), detail = %warning, "settings");
    }
    log_panics();
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
    let threads = values.count("runtime_threads");
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
    let chassis = Chassis::new(service, values);
    let exporter = Exporter::install(&chassis.instance, VERSION);
    let traces = traces(&chassis)?;
    // Apart from the service's tasks: these go on while those are drained.
    let last = Tasks::new();
    stop::listen_for_signals(&last, &chassis.stop).context("cannot listen for signals")?;
    upkeep(&last, &exporter);
    let listener = listen::bind(chassis.values.addr("admin_addr")).await?;
    let routes = admin::routes(&exporter, &chassis.health, &chassis.loops);
    let port = listen::serve(&last, "admin", listener, routes)?;
    info!(event = "listening", port = "admin", addr = %port.local_addr(), "listening");

    let ended = tokio::select! {
        ended = body(chassis.clone()) => ended,
        () = chassis.stopped_early() => Ok(()),
    };
    // Whatever the body did not end itself: nothing, after run_until_stopped.
    chassis.end().await;
    if let Some(traces) = traces {
        traces.stop(LAST_SPANS).await;
    }
    last.drain(LAST_SCRAPE).await;
    info!(event = "stopped", service, instance = chassis.instance, "stopped");
    ended
}

/// The export of traces, if there is a collector for them.
fn traces(chassis: &Chassis) -> anyhow::Result<Option<Export>> {
    let Some(endpoint) = chassis.values.opt_text("otel_exporter_otlp_endpoint") else { return Ok(None) };
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

/// Panics go to the log, with their place, like everything else.
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
