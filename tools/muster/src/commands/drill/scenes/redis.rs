//! Redis goes away under load: a primary is killed and its replica takes over (`--cluster`), or the
//! one server restarts. Long jobs with one attempt run meanwhile: none may lose it.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Scenery, until};
use crate::commands::worker::drilled::Part;

/// Jobs that run through the outage.
const JOBS: usize = 12;
/// How long the single server is away: longer than a lease of the drill's workers.
const AWAY: Duration = Duration::from_secs(7);
/// A replica takes over after its primary's time-out and a vote; a server reads its log. Seconds, and more of them on
/// a busy machine.
const SERVED: Duration = Duration::from_secs(30);

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    let part = Part { ms: 15_000, ..Part::default() };
    let once = json!({ "retry": { "max_attempts": 1 } });
    let mut ids = Vec::new();
    for _ in 0..JOBS {
        ids.push(scenery.submit("drill.long", &part, once.clone()).await?);
    }
    for id in &ids {
        until(Duration::from_secs(30), "the long jobs to run", async || {
            Ok((scenery.job(id).await?["state"] == "running").then_some(()))
        })
        .await?;
    }
    // What a killed primary had not passed on is gone; the starts were passed on long ago after this.
    sleep(Duration::from_secs(2)).await;
    scenery.tell(format_args!("{JOBS} jobs with one attempt each run for 15 s, with leases of 5 s"));
    let work = async {
        sleep(Duration::from_secs(1)).await;
        if scenery.cluster {
            // Work goes on when the replica has taken over; that the old primary comes back takes longer.
            let fail_over = async {
                let killed = scenery.hands.kill_primary(0).await?;
                scenery.tell(format_args!(
                    "{killed} was a primary: its replica has taken over, and {killed} came back as a replica"
                ));
                anyhow::Ok(())
            };
            let served = async {
                until(Duration::from_secs(60), "the primary's death", async || {
                    Ok((!scenery.hands.deaths().is_empty()).then_some(()))
                })
                .await?;
                scenery.tell("kill -9 of a Redis primary");
                flows(scenery, Instant::now()).await
            };
            tokio::try_join!(fail_over, served).map(drop)
        } else {
            scenery.tell(format_args!("stopping Redis for {} s", AWAY.as_secs()));
            let begun = Instant::now();
            scenery.hands.restart_redis(AWAY).await?;
            flows(scenery, begun).await
        }
    };
    let mut result = Ok(());
    scenery.load.run(async { result = work.await }).await;
    result?;
    for id in &ids {
        let job = until(Duration::from_secs(60), "the long jobs to end", async || {
            let job = scenery.job(id).await?;
            Ok((job["done"] == true).then_some(job))
        })
        .await?;
        scenery.expect(job["state"] == "succeeded", format_args!("{id} kept its one attempt: {}", job["state"]));
    }
    Ok(())
}

/// Waits until jobs that come now end, on every shard.
async fn flows(scenery: &Scenery<'_>, begun: Instant) -> anyhow::Result<()> {
    let short = Part::default();
    let ids = (0..8).map(|_| scenery.submit("drill.short", &short, json!({})));
    for id in futures_util::future::try_join_all(ids).await? {
        until(Duration::from_secs(60), "a new job's end", async || {
            Ok((scenery.job(&id).await?["done"] == true).then_some(()))
        })
        .await?;
    }
    scenery.measured("Redis away → new jobs run", begun.elapsed(), SERVED);
    Ok(())
}
