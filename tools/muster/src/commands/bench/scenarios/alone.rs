//! Scenarios that need a stack of their own: one with another shape, an idle one, or one full of jobs.

use std::time::Duration;

use super::{Scenario as S, growth};
use crate::commands::bench::{
    figures::{Figures, Rounds},
    meter::Meter,
    open_loop::OpenLoop,
    rig::{Crew, Rig, STANDARD, Shape},
    stretch::{Stretch, warm_up},
};

/// How long the idle stack is measured.
const IDLE: Duration = Duration::from_secs(30);
/// How long the stack may take to become idle before that.
const REST: Duration = Duration::from_secs(10);

pub(super) async fn run(scenario: S, found: &mut Rounds, rounds: u32, scale: f64) -> anyhow::Result<()> {
    let shape = match scenario {
        S::Cluster => Shape { cluster: true, ..STANDARD },
        S::Replicas1 => Shape { replicas: 1, ..STANDARD },
        S::Replicas3 => Shape { replicas: 3, ..STANDARD },
        _ => STANDARD,
    };
    let rig = Rig::start(shape).await?;
    let result = on(scenario, &rig, found, (rounds, scale)).await;
    rig.stop().await;
    result
}

async fn on(scenario: S, rig: &Rig, found: &mut Rounds, (rounds, scale): (u32, f64)) -> anyhow::Result<()> {
    let name = &scenario.name();
    if scenario == S::Idle {
        found.add(name, &idle(rig).await?);
        return Ok(());
    }
    warm_up(rig).await?;
    match scenario {
        S::Growth => {
            let few = Rig::start(STANDARD).await?;
            let measured = match warm_up(&few).await {
                Ok(_) => growth::waiting(&few, rig, found, rounds, scale).await,
                Err(fault) => Err(fault),
            };
            few.stop().await;
            return measured;
        }
        S::Finished => return growth::finished(rig, found, scale).await,
        S::Latency2000 => {
            let load = OpenLoop { rate: 2000.0, lasts: Duration::from_secs(10) };
            found.add(name, &load.run(rig).await?.exact()?);
        }
        S::LatencyHigh => {
            let peak = match found.median("single", "rate") {
                Some(rate) => rate,
                None => Stretch::default().scaled(scale).end_to_end(rig).await?.exact()?.get("rate").unwrap_or(1.0),
            };
            let load = OpenLoop { rate: (0.7 * peak).max(1.0), lasts: Duration::from_secs(10) };
            found.add(name, &load.run(rig).await?.exact()?);
        }
        _ => {
            let stretch = stretch(scenario).scaled(scale);
            for _ in 0..rounds {
                found.add(name, &stretch.end_to_end(rig).await?.exact()?);
            }
        }
    }
    Ok(())
}

fn stretch(scenario: S) -> Stretch {
    let crew = |copies, concurrency| Crew { copies, concurrency, ..Crew::default() };
    match scenario {
        S::Cluster => Stretch { jobs: 30_000, ..Stretch::default() },
        S::Topics10 => Stretch { topics: 10, ..Stretch::default() },
        S::Topics1000 => Stretch { topics: 1000, ..Stretch::default() },
        S::Workers10 => Stretch { crew: crew(10, 52), ..Stretch::default() },
        S::Workers1000 => Stretch { crew: crew(1000, 1), ..Stretch::default() },
        _ => Stretch::default(),
    }
}

/// `cores`: how much of a core the stack and a worker use while nothing happens.
async fn idle(rig: &Rig) -> anyhow::Result<Figures> {
    let workers = rig.hire(&Crew::default(), &rig.topics(1)).await?;
    tokio::time::sleep(REST).await;
    let meter = Meter::start(rig, &workers.pids).await?;
    tokio::time::sleep(IDLE).await;
    let mut figures = Figures::default();
    figures.put("cores", meter.stack_seconds() / IDLE.as_secs_f64());
    for (name, value) in meter.per_job(1).await?.iter().filter(|(name, _)| name.starts_with("cpu.")) {
        figures.put(&name.replace("cpu.", "cores."), value / 1e6 / IDLE.as_secs_f64());
    }
    workers.dismiss().await;
    Ok(figures)
}
