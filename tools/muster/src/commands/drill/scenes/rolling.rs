//! Everything of Muster is restarted in order, one after the other, under load.

use std::time::Duration;

use muster_domain::Event;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use super::Scenery;
use crate::commands::drill::reported::Reported;

/// A stop may take 15 s, a start some more.
const BACK: Duration = Duration::from_secs(25);

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    let work = async {
        sleep(Duration::from_secs(3)).await;
        let names: Vec<String> = scenery.hands.lines.keys().cloned().collect();
        for name in names {
            let begun = Instant::now();
            let pid = scenery.hands.signal(&name, Signal::SIGTERM);
            scenery.hands.replaced(&name, pid).await?;
            scenery.hands.all_ready().await?;
            scenery.measured(&format!("{name} restarted"), begun.elapsed(), BACK);
            sleep(Duration::from_secs(1)).await;
        }
        anyhow::Ok(())
    };
    let mut result = Ok(());
    scenery.load.run(async { result = work.await }).await;
    result?;
    scenery.load.see_all_end(Duration::from_secs(120), scenery.bar).await;
    let (refused, unanswered) = {
        let ledger = scenery.load.ledger.borrow();
        (ledger.refused.clone(), ledger.unanswered)
    };
    scenery.expect(refused.is_empty(), format_args!("no request failed: {refused:?}"));
    scenery.expect(unanswered == 0, format_args!("every request was answered: {unanswered} were not"));
    let ids: Vec<String> = scenery.load.ledger.borrow().accepted.keys().cloned().collect();
    let reported = Reported::read(&scenery.api, ids, scenery.hands.scope(), &indicatif::ProgressBar::hidden()).await?;
    let again = reported.jobs.iter().filter(|(_, job)| job.attempt > 1);
    for (id, job) in again {
        scenery.expect(false, format_args!("{id} needed attempt {}", job.attempt));
    }
    let given_back: usize = reported
        .jobs
        .values()
        .map(|job| job.history.iter().filter(|step| step.event == Some(Event::Release)).count())
        .sum();
    scenery.tell(format_args!(
        "{} jobs, each at its first attempt; {given_back} attempts given back",
        reported.jobs.len()
    ));
    Ok(())
}
