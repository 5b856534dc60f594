//! A worker dies in the middle of its jobs: when does each run on another.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Scenery, until};
use crate::commands::worker::drilled::Part;

/// So many jobs run on the worker that dies, more or less.
const JOBS: usize = 24;
/// The workers' lease, one look, and the back-off of the retry.
const RESCUED: Duration = Duration::from_secs(5 + 5 + 1);
/// A scheduler that has just started calls nobody silent for one lease.
const SETTLED: Duration = Duration::from_secs(6);

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    scenery.tell("a scheduler that has just started waits one lease before it rescues jobs, so the drill waits too");
    sleep(SETTLED).await;
    let retry = json!({ "retry": { "max_attempts": 3, "backoff": { "initial_ms": 100, "factor": 1 } } });
    let mut ids = Vec::new();
    for _ in 0..JOBS {
        let part = Part { ms: 12_000, ..Part::default() };
        ids.push(scenery.submit("drill.long", &part, retry.clone()).await?);
    }
    let victim = scenery.hands.of("worker").into_iter().next().context("no worker runs")?;
    let held = until(Duration::from_secs(30), "all jobs to run", async || {
        let mut held = Vec::new();
        for id in &ids {
            let job = scenery.job(id).await?;
            if job["state"] != "running" {
                return Ok(None);
            }
            if job["worker"] == victim.as_str() {
                held.push(id.clone());
            }
        }
        Ok(Some(held))
    })
    .await?;
    scenery.tell(format_args!("{JOBS} jobs run, {} of them on {victim}; kill -9", held.len()));
    scenery.expect(!held.is_empty(), format_args!("{victim} got a share of the work"));
    let (down, begun) = ([victim], Instant::now());
    scenery.hands.take_down(&down, Signal::SIGKILL).await?;
    let mut slowest = Duration::ZERO;
    for id in &held {
        let job = until(Duration::from_secs(60), "the job to run elsewhere", async || {
            let job = scenery.job(id).await?;
            Ok((job["attempt"] == 2).then_some(job))
        })
        .await?;
        slowest = begun.elapsed();
        scenery.tell(format_args!("{id} runs again, on {}", job["worker"].as_str().unwrap_or("?")));
    }
    scenery.hands.let_go(&down).await?;
    scenery.measured("worker killed → last of its jobs on another", slowest, RESCUED);
    Ok(())
}
