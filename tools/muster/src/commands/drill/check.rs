//! The end of every drill: everything is made whole, the last jobs are waited for, everything is
//! read and judged.

use std::time::Duration;

use indicatif::ProgressBar;
use tokio::time::{Instant, sleep};

use super::{
    hands::Hands,
    judge::{self, Findings},
    ledger::Ledger,
    load::Load,
    rig::{Ended, Rig},
    told::{Scope, Told},
};
use crate::{api::Api, commands::dev::probe, output, signals::StopSignals};

/// Longest that the effects of the last ends may take.
const EFFECTS: Duration = Duration::from_secs(90);

/// What a drill found out.
pub(super) struct Checked {
    pub(super) ledger: Ledger,
    pub(super) told: Told,
    pub(super) findings: Findings,
    /// Of how many jobs something may be forgiven.
    pub(super) forgivable: usize,
}

impl Checked {
    /// Whether every promise was kept.
    pub(super) fn holds(&self) -> bool {
        self.findings.hold(self.forgivable)
    }
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
        load.use_every_slot().await?;
        load.see_all_end(patience, bar).await;
        bar.set_message("reading every record");
        let reading = output::bar(0, "reading");
        let ids: Vec<String> = load.ledger.borrow().accepted.keys().cloned().collect();
        let mut told = at_rest(&api, ids, hands.scope(), &reading).await?;
        reading.finish_and_clear();
        told.gap = gap(&hands, patience).await;
        if let Some(job) = told.jobs.keys().next().filter(|_| !hands.deaths().is_empty()) {
            told.places = Some(hands.places(job).await?);
        }
        Ok(told)
    };
    let Ended::Done(told) = rig.tend(stop, checked).await? else { anyhow::bail!("ended before the verdict") };
    bar.finish_and_clear();
    let mut ledger = load.ledger.borrow().clone();
    ledger.read_executions(&rig.tally())?;
    ledger.deaths = hands.deaths();
    let findings = judge::judge(&ledger, &told);
    let forgivable = judge::forgivable(&ledger.deaths, load.per_s);
    Ok(Checked { ledger, told, findings, forgivable })
}

/// Reads everything, again while effects of an end are still under way.
async fn at_rest(api: &Api, ids: Vec<String>, scope: Scope, bar: &ProgressBar) -> anyhow::Result<Told> {
    let limit = Instant::now() + EFFECTS;
    loop {
        let told = Told::read(api, ids.clone(), scope, bar).await?;
        let restless = told.jobs.iter().any(|(id, tells)| {
            let letter_due = tells.state.is_bad_end() && !told.letters.contains_key(id);
            let untold = tells.acts(id).keys().any(|act| !told.acts.contains_key(act));
            tells.home || letter_due || untold || !told.listed.contains_key(id)
        });
        if !restless || Instant::now() > limit {
            return Ok(told);
        }
        bar.set_position(0);
        sleep(Duration::from_secs(2)).await;
    }
}

/// What is wrong with `muster_consistency_gap`, if anything is. The gauge is as old as the last walk over all
/// records, so a home that was lost and put back is waited for until the next.
async fn gap(hands: &Hands, patience: Duration) -> Option<String> {
    let limit = Instant::now() + patience;
    loop {
        let mut told = None;
        let processes = hands.processes.borrow().clone();
        for addr in processes.iter().filter_map(|process| process.admin.as_deref()?.strip_prefix("http://")) {
            let scrape = probe::http_get(addr, "/metrics").await.unwrap_or_default();
            told = told.or_else(|| told_gap(&scrape));
        }
        match told {
            Some(0.0) => return None,
            _ if Instant::now() < limit => sleep(Duration::from_secs(1)).await,
            Some(gap) => return Some(format!("muster_consistency_gap is {gap}")),
            None => return Some("no replica reports muster_consistency_gap".to_owned()),
        }
    }
}

/// The gap that this replica tells of: only who counts the fleet does, and its count has an age.
fn told_gap(scrape: &str) -> Option<f64> {
    let value = |name: &str| -> Option<f64> {
        let line = scrape.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    value("muster_census_age_seconds").filter(|age| *age > 0.0)?;
    value("muster_consistency_gap")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_counts_the_fleet_tells_of_a_gap() {
        let scrape = |age: &str, gap: &str| {
            format!(
                "# TYPE x gauge\nmuster_census_age_seconds{{pod=\"s1\"}} {age}\nmuster_consistency_gap{{pod=\"s1\"}} {gap}\n"
            )
        };
        assert_eq!(told_gap(&scrape("2.5", "3")), Some(3.0));
        assert_eq!(told_gap(&scrape("2.5", "0")), Some(0.0));
        assert_eq!(told_gap(&scrape("0", "0")), None, "it has stood down");
        assert_eq!(told_gap("muster_census_age_seconds{pod=\"s1\"} 2.5\n"), None, "no walk has ended yet");
    }
}
