//! Runs scenarios round by round, references beside the stack, and prints the figures as they come.

use std::{collections::BTreeMap, path::PathBuf, process::Command, time::Instant};

use clap::Args;

use super::{
    figures::{Figures, Rounds},
    page, plot,
    reference::{APALIS, BULLMQ, Reference},
    report::{Report, number},
    rig::{Rig, STANDARD},
    scenarios::{Place, Scenario, Set, peers_built},
    stretch::warm_up,
};
use crate::{
    outcome::Failure,
    output::{self, Format},
    programs,
};

/// What to measure, and where the figures go.
#[derive(Args, Debug)]
pub(super) struct Suite {
    /// Which scenarios
    #[arg(long, value_enum, default_value_t)]
    set: Set,

    /// Only these scenarios; may be repeated or separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCENARIO")]
    only: Vec<Scenario>,

    /// Rounds; the middle value of each figure is shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// More or fewer jobs in each run, for a quick look or a long one
    #[arg(long, default_value_t = 1.0, value_parser = scale, value_name = "FACTOR")]
    scale: f64,

    /// Folder with the drivers of the other queues (`make bench-peers`); without it they are omitted
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,

    /// Write every figure of every round here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write a plot here, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write the page here, as Markdown
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,

    /// Measure a debug build too, to try the bench itself
    #[arg(long, hide = true)]
    any_build: bool,
}

impl Suite {
    /// Measures, prints and writes the report.
    pub(super) async fn run(&self, format: Format) -> anyhow::Result<()> {
        if !self.any_build {
            only_optimised()?;
        }
        let begun = Instant::now();
        let scenarios = if self.only.is_empty() { Scenario::of(self.set) } else { self.only.clone() };
        let mut notes = Vec::new();
        if scenarios.iter().any(|scenario| scenario.is_peer()) && !peers_built(self.peers.as_deref()) {
            let note = "the drivers of the other queues are not built, so their rows are omitted: run `make \
                        bench-peers`, then give --peers";
            eprintln!("hint:  {note}");
            notes.push(note.to_owned());
        }
        let mut report = Report {
            command: self.command(),
            rounds: self.rounds,
            seconds: 0,
            machine: machine(),
            versions: versions(),
            figures: Rounds::default(),
            notes,
        };
        let measured = self.measure(&scenarios, &mut report).await;
        report.seconds = begun.elapsed().as_secs();
        // Keep what was found before a failure: it took minutes to find.
        self.write(&report, measured.is_ok())?;
        match format {
            Format::Json => output::json(&serde_json::to_value(&report)?),
            Format::Table => report.show(),
        }
        measured
    }

    /// The command that measures the same again: all arguments except for file names, which are specific to this
    /// machine.
    fn command(&self) -> String {
        let mut line = match self.set {
            Set::Standard => "muster bench".to_owned(),
            Set::Full => "muster bench --set full".to_owned(),
        };
        if !self.only.is_empty() {
            let names: Vec<_> = self.only.iter().map(|scenario| scenario.name()).collect();
            line += &format!(" --only {}", names.join(","));
        }
        line += &format!(" --rounds {}", self.rounds);
        if self.scale != 1.0 {
            line += &format!(" --scale {}", self.scale);
        }
        line
    }

    async fn measure(&self, scenarios: &[Scenario], report: &mut Report) -> anyhow::Result<()> {
        let at = |place: Place| scenarios.iter().copied().filter(move |scenario| scenario.place() == place);
        for round in 1..=self.rounds {
            if at(Place::Reference).next().is_some() {
                let reference = Reference::start(self.peers.as_deref()).await?;
                for peer in [&BULLMQ, &APALIS] {
                    if let Some(version) = reference.version(peer).await {
                        report.versions.insert(peer.name.to_owned(), version);
                    }
                }
                for scenario in at(Place::Reference) {
                    match scenario.on_reference(&reference, self.scale).await {
                        Ok(Some(figures)) => note(&mut report.figures, scenario, round, &figures),
                        Ok(None) => {}
                        // A failure of another queue says nothing about Muster.
                        Err(fault) if scenario.is_peer() => {
                            let fault = fault.to_string();
                            let why = fault.lines().next().unwrap_or_default();
                            let note = format!("round {round} omitted {}: {why}", scenario.name());
                            eprintln!("hint:  {note}");
                            report.notes.push(note);
                            reference.forget().await?;
                        }
                        Err(fault) => return Err(fault),
                    }
                }
                reference.stop().await;
            }
            if at(Place::Round).next().is_some() {
                let rig = start().await?;
                for scenario in at(Place::Round) {
                    let figures = scenario.on_stack(&rig, self.scale).await?;
                    note(&mut report.figures, scenario, round, &figures);
                }
                rig.stop().await;
            }
        }
        for scenario in at(Place::Alone) {
            eprintln!("{}: {}", scenario.name(), scenario.about());
            scenario.alone(&mut report.figures, self.rounds, self.scale).await?;
        }
        Ok(())
    }

    fn write(&self, report: &Report, whole: bool) -> anyhow::Result<()> {
        if let Some(file) = &self.json {
            let mut document = serde_json::to_value(report)?;
            document["targets"] = serde_json::to_value(report.judged())?;
            std::fs::write(file, format!("{document:#}\n"))?;
        }
        if let Some(file) = self.svg.as_ref().filter(|_| whole) {
            std::fs::write(file, plot::svg(report))?;
        }
        if let Some(file) = self.page.as_ref().filter(|_| whole) {
            std::fs::write(file, page::markdown(report, self.svg.as_deref()))?;
        }
        Ok(())
    }
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().map_err(|fault| fault.to_string())?;
    if (0.01..=100.0).contains(&scale) { Ok(scale) } else { Err("from 0.01 to 100".to_owned()) }
}

/// Starts a new stack that has run a few jobs.
async fn start() -> anyhow::Result<Rig> {
    let spinner = output::spinner("starting a stack");
    let rig = Rig::start(STANDARD).await?;
    warm_up(&rig).await?;
    spinner.finish_and_clear();
    Ok(rig)
}

/// Keeps the figures of a scenario, and prints them.
fn note(found: &mut Rounds, scenario: Scenario, round: u32, figures: &Figures) {
    found.add(&scenario.name(), figures);
    let told = [("rate", " /s"), ("drained", " /s drained"), ("cpu.total", " µs of CPU a job"), ("end.p50", " ms p50")];
    let words = told.iter().filter_map(|(name, unit)| Some(format!("{}{unit}", number(figures.get(name)?))));
    eprintln!("round {round}, {}: {}", scenario.name(), words.collect::<Vec<_>>().join(", "));
}

fn machine() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut machine = BTreeMap::from([("cores".to_owned(), cores.to_string())]);
    let mut put = |name: &str, value: Option<String>| {
        machine.extend(value.filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value)));
    };
    put("processor", field(&read("/proc/cpuinfo"), "model name"));
    put("memory", field(&read("/proc/meminfo"), "MemTotal"));
    put("kernel", Some(read("/proc/sys/kernel/osrelease").trim().to_owned()));
    machine
}

fn versions() -> BTreeMap<String, String> {
    let mut versions = BTreeMap::from([("muster".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    for name in ["redis-server", "nats-server"] {
        let said = programs::find(name).and_then(|program| Command::new(program).arg("--version").output().ok());
        let text = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        // "Redis server v=7.0.15 sha=…" and "nats-server: v2.9.10".
        let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=").or(word.strip_prefix('v')));
        versions.extend(version.map(|version| (name.to_owned(), version.to_owned())));
    }
    versions
}

/// Requires a release build: the figures of any other build are meaningless.
pub(super) fn only_optimised() -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        let failure = Failure::new("this is a debug build, and its figures are meaningless");
        return Err(failure.hint("`make bench` builds and runs the right one").into());
    }
    Ok(())
}
