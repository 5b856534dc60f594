//! The end of every drill: it ends all faults, waits for the last jobs, reads everything and judges it.

use std::time::Duration;

use indicatif::ProgressBar;
use tokio::time::{Instant, sleep};

use super::{
    hands::Hands,
    judge::{self, Findings},
    ledger::Ledger,
    load::Load,
    reported::{Reported, Scope},
    rig::{Ended, Rig},
};
use crate::{api::Api, commands::dev::probe, output, signals::StopSignals};

/// The limit for the effects of the last ends.
const EFFECTS: Duration = Duration::from_secs(90);

/// The result of a drill.
pub(super) struct Checked {
    pub(super) ledger: Ledger,
    pub(super) told: Reported,
    pub(super) findings: Findings,
    /// How many jobs may have a forgiven charge.
    pub(super) forgivable: usize,
}

impl Checked {
    /// Whether every promise was kept.
    pub(super) fn holds(&self) -> bool {
        self.findings.hold(self.forgivable)
    }
}

/// Ends all faults, waits and judges. If no job moves for `patience`, those that have not ended count as lost.
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
        let mut reported = at_rest(&api, ids, hands.scope(), &reading).await?;
        reading.finish_and_clear();
        reported.gap = gap(&hands, patience).await;
        if let Some(job) = reported.jobs.keys().next().filter(|_| !hands.deaths().is_empty()) {
            reported.places = Some(hands.places(job).await?);
        }
        Ok(reported)
    };
    let Ended::Done(reported) = rig.tend(stop, checked).await? else { anyhow::bail!("ended before the verdict") };
    bar.finish_and_clear();
    let mut ledger = load.ledger.borrow().clone();
    ledger.read_executions(&rig.tally())?;
    ledger.deaths = hands.deaths();
    let findings = judge::judge(&ledger, &reported);
    let forgivable = judge::forgivable(&ledger.deaths, load.per_s);
    Ok(Checked { ledger, told: reported, findings, forgivable })
}

/// Reads everything; repeats it while effects of an end are still missing.
async fn at_rest(api: &Api, ids: Vec<String>, scope: Scope, bar: &ProgressBar) -> anyhow::Result<Reported> {
    let limit = Instant::now() + EFFECTS;
    loop {
        let reported = Reported::read(api, ids.clone(), scope, bar).await?;
        let restless = reported.jobs.iter().any(|(id, job)| {
            let letter_due = job.state.is_bad_end() && !reported.letters.contains_key(id);
            let unaudited = job.acts(id).keys().any(|act| !reported.acts.contains_key(act));
            job.home || letter_due || unaudited || !reported.listed.contains_key(id)
        });
        if !restless || Instant::now() > limit {
            return Ok(reported);
        }
        bar.set_position(0);
        sleep(Duration::from_secs(2)).await;
    }
}

/// What is wrong with `muster_consistency_gap`, if anything is. The gauge is as old as the last scrub of all records,
/// so this waits for the next scrub if a home was lost and put back.
async fn gap(hands: &Hands, patience: Duration) -> Option<String> {
    let limit = Instant::now() + patience;
    loop {
        let mut reported = None;
        let processes = hands.processes.borrow().clone();
        for addr in processes.iter().filter_map(|process| process.admin.as_deref()?.strip_prefix("http://")) {
            let scrape = probe::http_get(addr, "/metrics").await.unwrap_or_default();
            reported = reported.or_else(|| reported_gap(&scrape));
        }
        match reported {
            Some(0.0) => return None,
            _ if Instant::now() < limit => sleep(Duration::from_secs(1)).await,
            Some(gap) => return Some(format!("muster_consistency_gap is {gap}")),
            None => return Some("no replica reports muster_consistency_gap".to_owned()),
        }
    }
}

/// The gap that this replica reports. Only the leader of the loop `snapshot` reports one, with an age above 0.
fn reported_gap(scrape: &str) -> Option<f64> {
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
    fn only_the_leader_of_the_snapshot_reports_a_gap() {
        let scrape = |age: &str, gap: &str| {
            format!(
                "# TYPE x gauge\nmuster_census_age_seconds{{pod=\"s1\"}} {age}\nmuster_consistency_gap{{pod=\"s1\"}} {gap}\n"
            )
        };
        assert_eq!(reported_gap(&scrape("2.5", "3")), Some(3.0));
        assert_eq!(reported_gap(&scrape("2.5", "0")), Some(0.0));
        assert_eq!(reported_gap(&scrape("0", "0")), None, "this replica leads no more");
        assert_eq!(reported_gap("muster_census_age_seconds{pod=\"s1\"} 2.5\n"), None, "no scrub has ended yet");
    }
}
