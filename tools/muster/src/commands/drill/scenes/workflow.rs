//! The replica that owns a running order dies, once by `kill -9` and once in order: when does the order go on, and does
//! each of its jobs run once.

use std::{str::FromStr, time::Duration};

use anyhow::Context;
use muster_domain::RunId;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Scenery, until};
use crate::{api::Call, commands::worker::drilled::Part, outcome::Failure};

const LOOP: &str = "run reconciler";
const NAME: &str = "drill-order";
/// The pause between the order's two jobs: the owner dies in it, so only the next owner can go on.
const PAUSE: Duration = Duration::from_secs(1);
/// The lock of a shard, the pause, the last job, and on a busy machine the moments between them.
const KILLED: Duration = Duration::from_secs(15 + 1 + 3);
/// A lock that was given back is taken at the hint.
const LEFT: Duration = Duration::from_secs(1 + 3);

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    let job = json!({ "topic": "drill.short", "payload": Part::default() });
    let steps = json!([
        { "id": "reserve", "job": job },
        { "id": "pause", "needs": ["reserve"], "delay": { "ms": PAUSE.as_millis() } },
        { "id": "ship", "needs": ["pause"], "job": job },
    ]);
    let stored = Call::put(format!("/workflows/{NAME}"), json!({ "steps": steps }).to_string());
    scenery.api.call(&stored).await.map_err(Failure::from)?;
    for (signal, how, may) in [(Signal::SIGKILL, "owner killed", KILLED), (Signal::SIGTERM, "owner stopped", LEFT)] {
        let run = start(scenery).await?;
        let shard = RunId::from_str(&run).context("an id of a run")?.shard();
        until(Duration::from_secs(30), "the order's pause", async || {
            let steps = order(scenery, &run).await?["steps"].as_array().cloned().unwrap_or_default();
            Ok(steps.iter().any(|step| step["id"] == "pause" && step["state"] == "running").then_some(()))
        })
        .await?;
        let owner = owner(scenery, shard).await?;
        scenery.tell(format_args!("order {run} pauses; {owner} owns its shard {shard:x}; sending it {signal}"));
        // It stays down until the order has ended, else it might well be its own successor.
        let (down, begun) = ([owner], Instant::now());
        scenery.hands.take_down(&down, signal).await?;
        let ended = until(Duration::from_secs(60), "the order's end", async || {
            let order = order(scenery, &run).await?;
            Ok((order["done"] == true).then_some(order))
        })
        .await?;
        scenery.measured(&format!("{how} → its order went on and ended"), begun.elapsed(), may);
        scenery.expect(ended["state"] == "succeeded", format_args!("the order succeeded: it is {}", ended["state"]));
        let jobs = scenery.api.call(&Call::get(format!("/jobs?run_id={run}"))).await.map_err(Failure::from)?.value;
        let jobs = jobs["items"].as_array().cloned().unwrap_or_default();
        let once = |job: &Value| job["attempt"] == 1 && job["state"] == "succeeded";
        scenery.expect(
            jobs.len() == 2 && jobs.iter().all(once),
            format_args!("the order has two jobs, each ran once: it has {}", jobs.len()),
        );
        scenery.hands.let_go(&down).await?;
        scenery.hands.all_ready().await?;
    }
    Ok(())
}

/// Starts an order; the id of its run.
async fn start(scenery: &Scenery<'_>) -> anyhow::Result<String> {
    let asked = Call::post(format!("/workflows/{NAME}/runs"), json!({}).to_string());
    let run = scenery.api.call(&asked).await.map_err(Failure::from)?.value;
    run["id"].as_str().map(str::to_owned).context("a run has an id")
}

/// The run as it is now.
async fn order(scenery: &Scenery<'_>, run: &str) -> anyhow::Result<Value> {
    Ok(scenery.api.call(&Call::get(format!("/runs/{run}"))).await.map_err(Failure::from)?.value)
}

/// The replica that owns a shard, once there is one.
async fn owner(scenery: &Scenery<'_>, shard: u8) -> anyhow::Result<String> {
    until(Duration::from_secs(30), "an owner of the shard", async || {
        let loops = scenery.api.call(&Call::get("/loops")).await.map_err(Failure::from)?.value;
        let rows = loops["items"].as_array().cloned().unwrap_or_default();
        let owns = |row: &&Value| row["shards"].as_array().is_some_and(|all| all.contains(&json!(shard)));
        let row = rows.iter().find(|row| row["loop"] == LOOP && owns(row));
        Ok(row.and_then(|row| row["instance"].as_str().map(str::to_owned)))
    })
    .await
}
