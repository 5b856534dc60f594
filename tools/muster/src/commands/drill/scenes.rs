//! The drills by name: one promise each, shown on a stack of its own or on a compose stack. A drill prints what it does
//! and what it sees, measures how long recovery takes, and ends with the same checker as chaos. A new drill is one file
//! here and one row in the list.

mod clock;
mod gateway;
mod leader;
mod nats;
mod redis;
mod rolling;
mod sick;
mod worker;
mod workflow;

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    attached::Attached,
    check,
    hands::Hands,
    judge::{Charge, Findings},
    ledger::Ledger,
    load::{Load, Mix},
    rig::{Ended, Rig, Setting, Shape},
    scratch::Scratch,
};
use crate::{
    api::{Api, Call},
    commands::{dev::probe, worker::drilled::Part},
    outcome::Failure,
    output::{self, Format},
    signals::StopSignals,
    spans,
};

/// Which drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Name {
    Leader,
    Worker,
    Gateway,
    Workflow,
    Nats,
    Redis,
    Clock,
    Rolling,
    Sick,
    /// All drills, one after the other
    All,
}

type Playing<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// A row of the list.
struct Scene {
    name: Name,
    title: &'static str,
    promise: &'static str,
    play: for<'a> fn(&'a Scenery<'a>) -> Playing<'a>,
    /// Settings of single processes that it needs.
    env: fn() -> anyhow::Result<Vec<Setting>>,
    /// It can be played on a stack that is not its own: it harms services and workers only.
    attaches: bool,
}

const SCENES: &[Scene] = &[
    Scene {
        name: Name::Leader,
        title: "leader",
        promise: "the leader of a loop dies: another replica leads within the lease; after SIGTERM within a second",
        play: |scenery| Box::pin(leader::play(scenery)),
        env: || Ok(Vec::new()),
        attaches: true,
    },
    Scene {
        name: Name::Worker,
        title: "worker",
        promise: "a worker dies: its jobs run on another worker within their lease and one check",
        play: |scenery| Box::pin(worker::play(scenery)),
        env: || Ok(Vec::new()),
        attaches: true,
    },
    Scene {
        name: Name::Gateway,
        title: "gateway",
        promise: "a gateway dies under load: the other gateways serve its clients, and no accepted job is lost",
        play: |scenery| Box::pin(gateway::play(scenery)),
        env: || Ok(Vec::new()),
        attaches: true,
    },
    Scene {
        name: Name::Workflow,
        title: "workflow",
        promise: "the owner of a running order dies: another replica goes on with it, and each of its jobs runs once",
        play: |scenery| Box::pin(workflow::play(scenery)),
        env: || Ok(Vec::new()),
        // The checker of a stack that is in use knows only the jobs that the drill submitted itself.
        attaches: false,
    },
    Scene {
        name: Name::Nats,
        title: "nats",
        promise: "NATS loses its data: its streams are deleted, then NATS restarts empty; no job is lost",
        play: |scenery| Box::pin(nats::play(scenery)),
        env: || Ok(Vec::new()),
        attaches: false,
    },
    Scene {
        name: Name::Redis,
        title: "redis",
        promise: "Redis fails over (--cluster) or restarts: work continues, and no live worker loses its job",
        play: |scenery| Box::pin(redis::play(scenery)),
        env: || Ok(Vec::new()),
        attaches: false,
    },
    Scene {
        name: Name::Clock,
        title: "clock",
        promise: "wrong clocks: replicas that are five minutes ahead or behind change nothing",
        play: |scenery| Box::pin(clock::play(scenery)),
        env: clock::env,
        attaches: false,
    },
    Scene {
        name: Name::Rolling,
        title: "rolling",
        promise: "every process is restarted with SIGTERM under load: no attempt and no request is lost",
        play: |scenery| Box::pin(rolling::play(scenery)),
        env: || Ok(Vec::new()),
        attaches: true,
    },
    Scene {
        name: Name::Sick,
        title: "sick",
        promise: "one scheduler hangs, loses a store, or is slow: no job waits for it",
        play: |scenery| Box::pin(sick::play(scenery)),
        env: || Ok(Vec::new()),
        attaches: false,
    },
];

/// Prints the list.
pub(super) fn list(format: Format) {
    match format {
        Format::Json => {
            let row = |scene: &Scene| json!({ "name": scene.title, "promise": scene.promise });
            output::json(&SCENES.iter().map(row).collect());
        }
        Format::Table => {
            let row = |scene: &Scene| vec![scene.title.to_owned(), scene.promise.to_owned()];
            let chaos = vec!["chaos".to_owned(), "random faults under load; then every job is checked".to_owned()];
            output::rows(&["DRILL", "PROMISE"], SCENES.iter().map(row).chain([chaos]));
            output::line(
                "\n`muster drill <name>` runs one drill, `muster drill all` runs all; for chaos see `muster drill \
                 chaos --help`",
            );
        }
    }
}

/// The stack that a drill plays on.
#[derive(Args, Debug)]
pub(super) struct Stage {
    /// Six Redis nodes and three NATS nodes instead of one of each; only for a separate stack
    #[arg(long)]
    cluster: bool,

    /// Number of replicas of each service, and of each kind of worker; with --state-file, number of workers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=8))]
    replicas: u16,

    /// Folder for data and logs [default: a temporary folder, removed after a pass]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Only this fault of the drill `sick`; may be given several times
    #[arg(long, value_name = "FAULT")]
    fault: Vec<sick::Fault>,
}

/// How long a recovery took, and how long it may.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measure {
    what: String,
    took_ms: u64,
    may_ms: u64,
}

impl Measure {
    fn holds(&self) -> bool {
        self.took_ms <= self.may_ms
    }
}

/// What a drill has to work with.
pub(super) struct Scenery<'a> {
    pub(super) hands: Hands,
    pub(super) api: Api,
    pub(super) load: &'a Load<'a>,
    pub(super) cluster: bool,
    /// The faults that were asked for; none means all.
    faults: &'a [sick::Fault],
    pub(super) bar: &'a ProgressBar,
    begun: Instant,
    measures: RefCell<Vec<Measure>>,
    broken: RefCell<Vec<String>>,
}

impl Scenery<'_> {
    /// Tells the one who watches.
    pub(super) fn tell(&self, text: impl fmt::Display) {
        let since = self.begun.elapsed().as_secs_f64();
        self.bar.suspend(|| eprintln!("  {since:6.1} s  {text}"));
    }

    /// Notes how long a recovery took.
    pub(super) fn measured(&self, what: &str, took: Duration, may: Duration) {
        let verdict = if took <= may { "" } else { ", TOO LATE" };
        self.tell(format_args!("{what}: {} (at most {}{verdict})", spans::show(took), spans::show(may)));
        let (took_ms, may_ms) = (spans::millis(took), spans::millis(may));
        self.measures.borrow_mut().push(Measure { what: what.to_owned(), took_ms, may_ms });
    }

    /// Notes that a promise is broken, unless it holds.
    pub(super) fn expect(&self, holds: bool, what: impl fmt::Display) {
        if !holds {
            self.tell(format_args!("BROKEN: {what}"));
            self.broken.borrow_mut().push(what.to_string());
        }
    }

    /// Submits a job that plays a part; its id.
    pub(super) async fn submit(&self, topic: &str, part: &Part, extra: Value) -> anyhow::Result<String> {
        let mut body = json!({ "topic": topic, "payload": part });
        for (name, value) in extra.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        self.load.submit(body).await
    }

    /// The job as it is now.
    pub(super) async fn job(&self, id: &str) -> anyhow::Result<Value> {
        Ok(self.api.call(&Call::get(format!("/jobs/{id}"))).await.map_err(Failure::from)?.value)
    }

    /// What an admin port says.
    pub(super) async fn admin(&self, process: &str, path: &str) -> anyhow::Result<Value> {
        let process = self.hands.find(process).ok_or_else(|| anyhow::anyhow!("{process} does not run"))?;
        let addr = process.admin.unwrap_or_default();
        let answer = probe::http_get(addr.trim_start_matches("http://"), path).await?;
        Ok(serde_json::from_str(&answer)?)
    }
}

/// Asks again and again until there is an answer, or too late.
pub(super) async fn until<T>(
    within: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let limit = Instant::now() + within;
    let mut said = None;
    loop {
        match ask().await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => (),
            Err(error) => said = Some(error),
        }
        if Instant::now() > limit {
            let last = said.map(|error| format!(" ({error:#})")).unwrap_or_default();
            anyhow::bail!("{what} did not happen within {}{last}", spans::show(within));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// How one drill went.
struct Played {
    title: &'static str,
    measures: Vec<Measure>,
    broken: Vec<String>,
    charges: Vec<Charge>,
    forgiven: Vec<Charge>,
    accepted: usize,
}

impl Played {
    fn holds(&self) -> bool {
        self.broken.is_empty() && self.charges.is_empty() && self.measures.iter().all(Measure::holds)
    }

    fn json(&self) -> Value {
        json!({
            "drill": self.title,
            "verdict": if self.holds() { "pass" } else { "fail" },
            "recovery": self.measures,
            "broken": self.broken,
            "accepted": self.accepted,
            "charges": self.charges,
            "forgiven": self.forgiven,
        })
    }
}

impl Stage {
    /// Plays the drill that was asked for, or all.
    pub(super) async fn run(&self, name: Name, state_file: Option<&Path>, format: Format) -> anyhow::Result<()> {
        if name != Name::Sick && !self.fault.is_empty() {
            return Err(Failure::usage("--fault chooses among the faults of the drill sick").into());
        }
        sick::chosen(&self.fault, self.cluster)?;
        let mut stop = StopSignals::listen()?;
        let mut all = Vec::new();
        for scene in SCENES.iter().filter(|scene| name == Name::All || scene.name == name) {
            if state_file.is_some() && !scene.attaches {
                let failure = Failure::usage(format!("the drill {} needs a separate stack", scene.title));
                match name {
                    Name::All => eprintln!("{}: skipped, it needs a separate stack", scene.title),
                    _ => return Err(failure.hint("remove --state-file").into()),
                }
                continue;
            }
            match self.play(scene, state_file, &mut stop).await {
                Ok(Ended::Done(played)) => all.push(played),
                Ok(Ended::Stopped) => return Err(Failure::new("stopped by a signal").into()),
                Err(error) if name == Name::All => {
                    eprintln!("{}: {error:#}", scene.title);
                    let broken = vec![format!("{error:#}")];
                    let (measures, charges, forgiven) = (Vec::new(), Vec::new(), Vec::new());
                    all.push(Played { title: scene.title, measures, broken, charges, forgiven, accepted: 0 });
                }
                Err(error) => return Err(error),
            }
        }
        match format {
            Format::Json if name == Name::All => output::json(&all.iter().map(Played::json).collect()),
            Format::Json => all.iter().for_each(|played| output::json(&played.json())),
            Format::Table => show(&all),
        }
        match all.iter().find(|played| !played.holds()) {
            None => Ok(()),
            Some(played) => Err(Failure::new(format!("the drill {} did not pass", played.title)).into()),
        }
    }

    async fn play(
        &self,
        scene: &Scene,
        state_file: Option<&Path>,
        stop: &mut StopSignals,
    ) -> anyhow::Result<Ended<Played>> {
        let dir = self.dir.as_ref().map(|dir| dir.join(scene.title));
        let scratch = Scratch::take(dir.as_deref(), scene.title)?;
        let bar = output::spinner(if state_file.is_some() { "starting workers" } else { "starting a stack" });
        bar.suspend(|| eprintln!("{}: {}", scene.title, scene.promise));
        let started = match state_file {
            Some(path) => Rig::attach(Attached::read(path).await?, self.replicas, scratch.path(), stop).await?,
            None => Rig::start(&self.shape(scene)?, scratch.path(), stop).await?,
        };
        let Ended::Done(mut rig) = started else { return Ok(Ended::Stopped) };
        let played = self.perform(scene, &mut rig, stop, &bar).await;
        bar.finish_and_clear();
        rig.stop(stop).await;
        let fine = matches!(&played, Ok(Ended::Done(played)) if played.holds()) || matches!(played, Ok(Ended::Stopped));
        if !fine {
            eprintln!("data and logs are in {}", scratch.keep().display());
        }
        played
    }

    fn shape(&self, scene: &Scene) -> anyhow::Result<Shape> {
        Ok(Shape {
            replicas: self.replicas,
            cluster: self.cluster,
            nats_workers: self.replicas,
            http_workers: 1,
            env: (scene.env)()?,
        })
    }

    async fn perform(
        &self,
        scene: &Scene,
        rig: &mut Rig,
        stop: &mut StopSignals,
        bar: &ProgressBar,
    ) -> anyhow::Result<Ended<Played>> {
        let (apis, ledger) = (rig.apis()?, RefCell::new(Ledger::default()));
        let load = Load { apis: &apis, ledger: &ledger, seed: 1, per_s: 30, replicated: self.cluster, mix: Mix::Plain };
        let scenery = Scenery {
            hands: rig.hands(),
            api: rig.api()?,
            load: &load,
            cluster: self.cluster,
            faults: &self.fault,
            bar,
            begun: Instant::now(),
            measures: RefCell::default(),
            broken: RefCell::default(),
        };
        scenery.tell(format_args!("{} processes are up", scenery.hands.count()));
        let Ended::Done(()) = rig.tend(stop, (scene.play)(&scenery)).await? else {
            return Ok(Ended::Stopped);
        };
        let checked = check::check(rig, stop, &load, Duration::from_secs(120), bar).await?;
        let (forgiven, most) = (checked.findings.forgiven_jobs(), checked.forgivable);
        scenery.expect(
            forgiven <= most,
            format_args!("killed primaries lost {forgiven} jobs, but at most {most} are allowed"),
        );
        let accepted = checked.ledger.accepted.len();
        let Findings { charges, forgiven } = checked.findings;
        for charge in charges.iter().take(20) {
            scenery.tell(format_args!("BROKEN: {}: {}", charge.job, charge.why));
        }
        scenery.tell(format_args!("{accepted} jobs were accepted, each ended once: {}", charges.is_empty()));
        let (measures, broken) = (scenery.measures.into_inner(), scenery.broken.into_inner());
        Ok(Ended::Done(Played { title: scene.title, measures, broken, charges, forgiven, accepted }))
    }
}

fn show(all: &[Played]) {
    let rows = all.iter().flat_map(|played| {
        let word = |holds: bool| if holds { "pass" } else { "FAIL" }.to_owned();
        let row = |m: &Measure| {
            let span = |ms| spans::show(Duration::from_millis(ms));
            vec![played.title.to_owned(), m.what.clone(), span(m.took_ms), span(m.may_ms), word(m.holds())]
        };
        let jobs = format!("{} jobs, each ended once", played.accepted);
        let promise = vec![played.title.to_owned(), jobs, String::new(), String::new(), word(played.holds())];
        played.measures.iter().map(row).chain([promise]).collect::<Vec<_>>()
    });
    output::line("");
    output::rows(&["DRILL", "RECOVERY", "TOOK", "AT MOST", ""], rows.collect::<Vec<_>>());
}
