//! A gateway dies under load: when are clients served again, and is anything lost.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use super::{Scenery, until};
use crate::commands::worker::drilled::Part;

/// Another gateway answers as soon as it is asked.
const SERVED: Duration = Duration::from_secs(2);
/// The container engine's port proxy takes connections for a process that is gone, and a client hears of it only
/// when the proxy gives up.
const SERVED_BEHIND_A_PROXY: Duration = Duration::from_secs(15);

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    let work = async {
        sleep(Duration::from_secs(3)).await;
        let gateways = scenery.hands.of("gateway");
        let victim = gateways.first().context("no gateway runs")?;
        scenery.tell(format_args!("submitting 30 jobs per second over {} gateways; kill -9 {victim}", gateways.len()));
        let pid = scenery.hands.signal(victim, Signal::SIGKILL);
        let begun = Instant::now();
        // This client prefers the gateway that has just died.
        let id = scenery.submit("drill.short", &Part::default(), serde_json::json!({})).await?;
        let may = if scenery.hands.attached.is_some() { SERVED_BEHIND_A_PROXY } else { SERVED };
        scenery.measured("gateway killed → its clients served", begun.elapsed(), may);
        scenery.tell(format_args!("{id} was accepted by another gateway"));
        scenery.hands.replaced(victim, pid).await?;
        until(Duration::from_secs(30), "the gateway to be back", async || {
            Ok(scenery.admin(victim, "/readyz").await.is_ok().then_some(()))
        })
        .await?;
        scenery.measured("gateway killed → back and ready", begun.elapsed(), Duration::from_secs(20));
        sleep(Duration::from_secs(3)).await;
        anyhow::Ok(())
    };
    let mut result = Ok(());
    scenery.load.run(async { result = work.await }).await;
    result?;
    let ledger = scenery.load.ledger.borrow();
    scenery.expect(ledger.refused.is_empty(), format_args!("no request was refused: {:?}", ledger.refused));
    scenery.expect(ledger.unanswered == 0, format_args!("every request was answered: {} were not", ledger.unanswered));
    Ok(())
}
