//! NATS loses everything under load, twice: first its streams, then its whole store.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Scenery, until};
use crate::commands::worker::drilled::Part;

/// A lost offer is known as lost after 30 s, and looked at within as long again.
const RECOVERED: Duration = Duration::from_secs(75);

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    let work = async {
        sleep(Duration::from_secs(3)).await;
        let dropped = scenery.hands.drop_streams().await?;
        scenery.tell(format_args!("submitting 30 jobs per second; deleted {}", dropped.join(", ")));
        flows(scenery, "streams deleted → new jobs run").await?;
        sleep(Duration::from_secs(3)).await;
        scenery.tell("killing NATS and removing its store");
        scenery.hands.wipe_nats().await?;
        flows(scenery, "NATS restarted empty → new jobs run").await?;
        anyhow::Ok(())
    };
    let mut result = Ok(());
    scenery.load.run(async { result = work.await }).await;
    result?;
    let begun = Instant::now();
    scenery.tell("no more load; waiting for all jobs that were on the bus");
    scenery.load.see_all_end(RECOVERED * 2, scenery.bar).await;
    scenery.measured("NATS restarted empty → every job ended", begun.elapsed(), RECOVERED);
    Ok(())
}

/// Waits until a job that comes now ends.
async fn flows(scenery: &Scenery<'_>, what: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    let id = scenery.submit("drill.short", &Part::default(), serde_json::json!({})).await?;
    until(Duration::from_secs(120), "a new job's end", async || {
        Ok((scenery.job(&id).await?["done"] == true).then_some(()))
    })
    .await?;
    scenery.measured(what, begun.elapsed(), RECOVERED);
    Ok(())
}
