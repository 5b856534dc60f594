//! Waits until a stack is idle: nothing is measured while it still handles earlier work.
//!
//! Every job that waits for half a minute is looked at once, and a store that has grown rewrites its log. Both cost
//! something once per job, whatever else waits; in a much shorter measurement they would be charged to a few jobs.

use std::time::Duration;

use muster_domain::job::PENDING_LOOK;
use tokio::time::{Instant, sleep};

use super::{meter::Meter, rig::Rig, stores};
use crate::{outcome::Failure, output};

/// A stack that uses less of a core than this is idle.
const QUIET: f64 = 0.15;
/// For how long the stack must be idle.
const WINDOW: Duration = Duration::from_secs(2);
/// A stack that is not idle by then never will be.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until all jobs that were just submitted have been looked at, and the stack is idle.
pub(super) async fn after_a_fill(rig: &Rig) -> anyhow::Result<()> {
    sleep(PENDING_LOOK).await;
    quiet(rig).await
}

/// Waits until the stack is idle and no log is rewritten.
pub(super) async fn quiet(rig: &Rig) -> anyhow::Result<()> {
    let bar = output::spinner("until the stack rests");
    let began = Instant::now();
    loop {
        let meter = Meter::start(rig, &[]).await?;
        sleep(WINDOW).await;
        let busy = meter.stack_seconds() / WINDOW.as_secs_f64();
        let rewrites = stores::rewrites(&rig.stack).await?;
        if busy < QUIET && rewrites == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            let how = format!("it still uses {busy:.2} cores, and {rewrites} logs are being rewritten");
            return Err(Failure::new(format!("the stack was not idle within {PATIENCE:?}: {how}")).into());
        }
    }
}
