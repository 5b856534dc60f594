//! The leader of a loop dies, once by `kill -9` and once in order: who ticks next, and when.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::{Scenery, until};

/// The loop to watch: the one that finds what was forgotten.
const LOOP: &str = "reconciler";
/// A leader's lease, and on a busy machine the moments in which the next one asks for it and ticks.
const KILLED: Duration = Duration::from_secs(17);
/// A lease that was given back is taken at the hint.
const LEFT: Duration = Duration::from_secs(1);

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    for (signal, how, may) in [(Signal::SIGKILL, "leader killed", KILLED), (Signal::SIGTERM, "leader stopped", LEFT)] {
        let (leader, _) = until(Duration::from_secs(30), "a leader", async || leading(scenery, None).await).await?;
        scenery.tell(format_args!("{leader} leads the {LOOP}; sending it {signal}"));
        let begun = Instant::now();
        // It stays down until another leads, else it might well be its own successor.
        let down = [leader.clone()];
        let next = async {
            let next = until(Duration::from_secs(60), "the next tick", async || leading(scenery, Some(&leader)).await);
            next.await.map(|(next, ticks)| (next, ticks, begun.elapsed()))
        };
        let ((), (next, ticks, took)) = tokio::try_join!(scenery.hands.take_down(&down, signal), next)?;
        scenery.tell(format_args!("{next} leads now, after {ticks} ticks"));
        scenery.measured(&format!("{how} → next tick"), took, may);
        scenery.hands.let_go(&down).await?;
        scenery.hands.all_ready().await?;
    }
    Ok(())
}

/// The scheduler that leads and has ticked as leader, other than this one.
async fn leading(scenery: &Scenery<'_>, other_than: Option<&str>) -> anyhow::Result<Option<(String, u64)>> {
    for name in scenery.hands.of("scheduler") {
        if Some(name.as_str()) == other_than {
            continue;
        }
        let Ok(answer) = scenery.admin(&name, "/loops").await else { continue };
        let loops = answer["loops"].as_array().or(answer.as_array()).context("no loops")?;
        let found = loops.iter().find(|entry| entry["name"] == LOOP).context("no such loop")?;
        let ticks = found["ticks"].as_u64().unwrap_or_default();
        if found["state"] == "leading" && ticks > 0 {
            return Ok(Some((name, ticks)));
        }
    }
    Ok(None)
}
