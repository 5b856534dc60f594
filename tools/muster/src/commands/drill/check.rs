//! The end of every drill: everything is made whole, the last jobs are waited for, everything is
//! read and judged.

use std::time::Duration;

use indicatif::ProgressBar;
use tokio::time::{Instant, sleep};

use super::{
    judge::{self, Findings},
    ledger::Ledger,
    load::Load,
    rig::{Ended, Rig},
    told::Told,
};
use crate::{api::Api, output, signals::StopSignals};

/// Longest that the effects of the last ends may take.
const EFFECTS: Duration = Duration::from_secs(90);

/// What a drill found out.
pub(super) struct Checked {
    pub(super) ledger: Ledger,
    pub(super) told: Told,
    pub(super) findings: Findings,
}

/// Heals, waits and judges. What has not ended when nothing moved for `patience` counts as lost.
pub(super) async fn check(
    rig: &mut Rig,
    stop: &mut StopSignals,
    load: &Load<'_>,
    patience: Duration,
    bar: &ProgressBar,
) -> anyhow::Result<Checked> {
    let (hands, api) = (rig.hands(), rig.api()?);
    hands.heal();
    let checked = async {
        hands.stores_ready().await?;
        hands.all_ready().await?;
        load.see_all_end(patience, bar).await;
        bar.set_message("reading every record");
        let reading = output::bar(0, "reading");
        let ids: Vec<String> = load.ledger.borrow().accepted.keys().cloned().collect();
        let told = at_rest(&api, ids, &reading).await;
        reading.finish_and_clear();
        told
    };
    let Ended::Done(told) = rig.tend(stop, checked).await? else { anyhow::bail!("ended before the verdict") };
    bar.finish_and_clear();
    let mut ledger = load.ledger.borrow().clone();
    ledger.read_executions(&rig.tally())?;
    let findings = judge::judge(&ledger, &told);
    Ok(Checked { ledger, told, findings })
}

/// Reads everything, again while effects of an end are still under way.
async fn at_rest(api: &Api, ids: Vec<String>, bar: &ProgressBar) -> anyhow::Result<Told> {
    let limit = Instant::now() + EFFECTS;
    loop {
        let told = Told::read(api, ids.clone(), bar).await?;
        let restless = told.jobs.iter().any(|(id, tells)| {
            let letter_due = tells.state.is_bad_end() && !told.letters.contains_key(id);
            tells.home || letter_due || !told.listed.contains_key(id)
        });
        if !restless || Instant::now() > limit {
            return Ok(told);
        }
        bar.set_position(0);
        sleep(Duration::from_secs(2)).await;
    }
}
