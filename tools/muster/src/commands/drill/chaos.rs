//! `muster drill chaos`: a stack under load, faults from a plan that follows from the seed, and at
//! the end a checker that knows every accepted job and every execution.

use std::{cell::RefCell, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use futures_util::{StreamExt, stream::FuturesUnordered};
use indicatif::ProgressBar;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    check,
    hands::Hands,
    ledger::Ledger,
    load::{Load, Mix},
    plan::{self, Fault, Stage, Step},
    proxy::Line,
    rig::{Ended, Rig, Shape},
    scratch::Scratch,
    verdict::Verdict,
};
use crate::{
    outcome::Failure,
    output::{self, Format},
    signals::StopSignals,
    spans,
};

/// What a slow line adds to each call.
const SLOW: Duration = Duration::from_millis(300);

/// Inject random faults under load, then check every promise
#[derive(Args, Debug)]
pub(crate) struct Chaos {
    /// How long faults are injected
    #[arg(long, default_value_t = 2.0, value_name = "N")]
    minutes: f64,

    /// Seed of the plan of faults [default: random]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Six Redis nodes and three NATS nodes instead of one of each
    #[arg(long)]
    cluster: bool,

    /// Number of replicas of each service, and of each kind of worker
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=8))]
    replicas: u16,

    /// Jobs submitted per second
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=2_000), value_name = "X")]
    jobs_per_s: u32,

    /// Print the plan of faults and do nothing
    #[arg(long)]
    plan: bool,

    /// After the faults: jobs that have not ended count as lost after this long without progress
    #[arg(long, default_value = "6m", value_parser = spans::parse, value_name = "DURATION")]
    patience: Duration,

    /// Folder for data and logs [default: a temporary folder, removed after a pass]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Chaos {
    pub(super) async fn run(self, format: Format) -> anyhow::Result<()> {
        if !(self.minutes > 0.0 && self.minutes <= 10_000.0) {
            return Err(Failure::usage(format!("--minutes {} is too short", self.minutes)).into());
        }
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        let shape = Shape {
            replicas: self.replicas,
            cluster: self.cluster,
            nats_workers: self.replicas,
            http_workers: self.replicas,
            env: Vec::new(),
        };
        let lasts = Duration::from_secs_f64(self.minutes * 60.0);
        let stage = Stage { lasts, cluster: self.cluster, processes: shape.processes() };
        let steps = plan::plan(seed, &stage);
        if self.plan {
            show_plan(&steps, format);
            return Ok(());
        }
        let scratch = Scratch::take(self.dir.as_deref(), "chaos")?;
        let mut stop = StopSignals::listen()?;
        let bar = output::spinner(format!("starting a stack ({})", self.again(seed)));
        let Ended::Done(mut rig) = Rig::start(&shape, scratch.path(), &mut stop).await? else {
            return Ok(());
        };
        tell(&bar, format_args!("{} processes are up in {}", rig.hands().count(), scratch.path().display()));
        let held = self.storm(seed, &steps, &mut rig, &mut stop, &bar, format).await;
        bar.finish_and_clear();
        rig.stop(&mut stop).await;
        match held {
            Ok(true) => Ok(()),
            Ok(false) => {
                let failure = Failure::new("the promises were not kept");
                Err(failure.hint(format!("data and logs are in {}", scratch.keep().display())).into())
            }
            Err(error) => {
                scratch.keep();
                Err(error)
            }
        }
    }

    /// Load and faults, then calm, then the verdict. False if a promise was broken.
    async fn storm(
        &self,
        seed: u64,
        steps: &[Step],
        rig: &mut Rig,
        stop: &mut StopSignals,
        bar: &ProgressBar,
        format: Format,
    ) -> anyhow::Result<bool> {
        let (apis, ledger) = (rig.apis()?, RefCell::new(Ledger::default()));
        let load = Load {
            apis: &apis,
            ledger: &ledger,
            seed,
            per_s: self.jobs_per_s,
            replicated: self.cluster,
            mix: Mix::Everything,
        };
        let hands = rig.hands();
        let lasts = Duration::from_secs_f64(self.minutes * 60.0);
        let (calm, calmed) = tokio::sync::oneshot::channel::<()>();
        let end = async {
            let _ = calmed.await;
        };
        let done = RefCell::new(Vec::new());
        let faults = async {
            let injected = inject(&hands, steps, lasts, &done, bar).await;
            let _ = calm.send(());
            injected
        };
        let stormed = async {
            tokio::select! {
                (injected, ()) = async { tokio::join!(faults, load.run(end)) } => injected,
                () = load.follow(bar) => Ok(()),
            }
        };
        match rig.tend(stop, stormed).await? {
            Ended::Done(()) => (),
            Ended::Stopped => {
                tell(bar, "stopping: no more faults; checking the jobs (press Ctrl-C again to end at once)")
            }
        }

        tell(bar, "no more faults: repairing the stack and waiting for the last jobs");
        let checked = check::check(rig, stop, &load, self.patience, bar).await?;
        let verdict = Verdict { checked: &checked, faults: &done.into_inner(), again: self.again(seed) };
        match format {
            Format::Json => output::json(&verdict.json()),
            Format::Table => verdict.show(),
        }
        Ok(verdict.holds())
    }

    /// The command that does the same again.
    fn again(&self, seed: u64) -> String {
        let cluster = if self.cluster { " --cluster" } else { "" };
        format!(
            "muster drill chaos --minutes {} --seed {seed}{cluster} --replicas {} --jobs-per-s {}",
            self.minutes, self.replicas, self.jobs_per_s
        )
    }
}

/// Carries the plan out. Every fault is undone before this ends.
async fn inject(
    hands: &Hands,
    steps: &[Step],
    lasts: Duration,
    done: &RefCell<Vec<Step>>,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut under = FuturesUnordered::new();
    for step in steps {
        let at = begun + Duration::from_millis(step.at_ms);
        loop {
            tokio::select! {
                () = sleep_until(at) => break,
                Some(result) = under.next(), if !under.is_empty() => report(bar, done, result),
            }
        }
        tell(bar, format_args!("{:6.1} s  {}", step.at_ms as f64 / 1_000.0, step.fault));
        under.push(async move { (step, commit(hands, &step.fault).await) });
    }
    let end = begun + lasts;
    loop {
        tokio::select! {
            () = sleep_until(end) => break,
            Some(result) = under.next(), if !under.is_empty() => report(bar, done, result),
        }
    }
    while let Some(result) = under.next().await {
        report(bar, done, result);
    }
    Ok(())
}

/// A fault counts once it was carried out. One that could not be is told, and is no part of the verdict.
fn report(bar: &ProgressBar, done: &RefCell<Vec<Step>>, (step, result): (&Step, anyhow::Result<()>)) {
    match result {
        Ok(()) => done.borrow_mut().push(step.clone()),
        Err(error) => tell(bar, format_args!("          not possible: {}: {error:#}", step.fault)),
    }
}

/// One fault, from its beginning to its end.
async fn commit(hands: &Hands, fault: &Fault) -> anyhow::Result<()> {
    let hold_line = async |process: &str, store, line, ms: u64| {
        hands.line(process, store, line);
        sleep(Duration::from_millis(ms)).await;
        hands.line(process, store, Line::Open);
    };
    // One that is down just now is waited for: jobs that kill their worker do it all the time.
    let signal = async |process: &str, signal| {
        hands.replaced(process, None).await?;
        hands.signal(process, signal).with_context(|| format!("no {process} runs"))
    };
    match fault {
        Fault::Kill { process } => drop(signal(process, Signal::SIGKILL).await?),
        Fault::Leave { process } => drop(signal(process, Signal::SIGTERM).await?),
        Fault::Pause { process, ms } => {
            signal(process, Signal::SIGSTOP).await?;
            sleep(Duration::from_millis(*ms)).await;
            hands.signal(process, Signal::SIGCONT);
        }
        Fault::Cut { process, store, ms } => hold_line(process, *store, Line::Cut, *ms).await,
        Fault::Stall { process, store, ms } => hold_line(process, *store, Line::Stalled, *ms).await,
        Fault::Slow { process, store, ms } => hold_line(process, *store, Line::Slow(SLOW), *ms).await,
        Fault::DropStreams => drop(hands.drop_streams().await?),
        Fault::WipeNats => hands.wipe_nats().await?,
        Fault::KillNats { node } => hands.kill_nats(usize::try_from(*node).unwrap_or_default()).await?,
        Fault::RestartRedis { ms } => hands.restart_redis(Duration::from_millis(*ms)).await?,
        Fault::HandOver { shard } => drop(hands.hand_over(usize::try_from(*shard).unwrap_or_default()).await?),
        Fault::KillPrimary { shard } => {
            hands.kill_primary(usize::try_from(*shard).unwrap_or_default()).await?;
        }
    }
    Ok(())
}

/// Says something above the spinner; the verdict alone goes to standard output.
pub(super) fn tell(bar: &ProgressBar, text: impl std::fmt::Display) {
    bar.suspend(|| eprintln!("{text}"));
}

fn show_plan(steps: &[Step], format: Format) {
    match format {
        Format::Json => output::json(&json!(steps)),
        Format::Table => {
            let row = |step: &Step| vec![format!("{:.1} s", step.at_ms as f64 / 1_000.0), step.fault.to_string()];
            output::rows(&["AT", "FAULT"], steps.iter().map(row));
        }
    }
}
