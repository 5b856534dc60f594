//! `muster bench guard`: what a job costs now, compared with the baseline. A short run; a report and not a gate,
//! because another machine has other costs.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    figures::Rounds,
    meter::SERVICES,
    reference::Reference,
    report::number,
    rig::{Rig, STANDARD},
    stretch::{self, Stretch},
    suite,
};
use crate::{
    outcome::Failure,
    output::{self, Format},
};

/// Compare the cost of a job with the committed baseline
#[derive(Args, Debug)]
pub(super) struct Guard {
    /// The baseline
    #[arg(long, default_value = "bench/baseline.json", value_name = "FILE")]
    baseline: PathBuf,

    /// Write the baseline instead of comparing with it
    #[arg(long)]
    write: bool,

    /// Runs of each load; the middle value counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Mark a cost from this ratio on
    #[arg(long, default_value_t = 1.1)]
    above: f64,
}

/// What is compared: the loads, and the cost of a plain SET in Redis, which shows how fast a machine is.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Baseline {
    set_us: f64,
    costs: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Guard {
    pub(super) async fn run(&self, format: Format) -> anyhow::Result<()> {
        suite::only_optimised()?;
        let now = self.measure().await?;
        if self.write {
            std::fs::write(&self.baseline, format!("{:#}\n", serde_json::to_value(&now)?))?;
            output::line(format_args!("{} is written", self.baseline.display()));
            return Ok(());
        }
        let text = std::fs::read(&self.baseline).map_err(|error| {
            Failure::new(format!("cannot read {}: {error}", self.baseline.display())).hint(
                "`muster bench guard --write` creates it; run it in the root of the repository, or give --baseline",
            )
        })?;
        let before: Baseline = serde_json::from_slice(&text)?;
        let rows = compare(&before, &now);
        match format {
            Format::Json => output::json(&json!({ "before": before, "now": now, "above": self.above })),
            Format::Table => self.show(&before, &now, &rows),
        }
        Ok(())
    }

    async fn measure(&self) -> anyhow::Result<Baseline> {
        let mut found = Rounds::default();
        let reference = Reference::start(None).await?;
        for _ in 0..self.rounds {
            found.add("set", &reference.set().await?);
        }
        reference.stop().await;
        let loads = [
            ("single", Stretch { jobs: 30_000, ..Stretch::default() }),
            ("bulk-100", Stretch { jobs: 60_000, batch: 100, connections: 16, ..Stretch::default() }),
        ];
        let rig = Rig::start(STANDARD).await?;
        stretch::warm_up(&rig).await?;
        for _ in 0..self.rounds {
            for (name, stretch) in &loads {
                found.add(name, &stretch.end_to_end(&rig).await?.exact()?);
            }
        }
        rig.stop().await;
        let mut costs = BTreeMap::new();
        for (name, _) in &loads {
            let figures = SERVICES.map(|service| format!("cpu.{service}")).into_iter();
            let more = ["cpu.total", "nats_messages", "redis_commands"].map(str::to_owned);
            let known = figures.chain(more).filter_map(|figure| Some((figure.clone(), found.median(name, &figure)?)));
            costs.insert((*name).to_owned(), known.collect());
        }
        Ok(Baseline { set_us: found.median("set", "cpu.redis").unwrap_or_default(), costs })
    }

    fn show(&self, before: &Baseline, now: &Baseline, rows: &[Row]) {
        let row = |row: &Row| {
            let word = if row.ratio > self.above { "MORE" } else { "" };
            let ratio = format!("{:.2} ×", row.ratio);
            vec![row.load.clone(), row.figure.clone(), number(row.before), number(row.now), ratio, word.to_owned()]
        };
        output::rows(&["LOAD", "PER JOB", "BASELINE", "NOW", "RATIO", ""], rows.iter().map(row));
        output::line(format_args!(
            "\na SET costs Redis {:.2} µs here and cost {:.2} µs where the baseline was written",
            now.set_us, before.set_us
        ));
    }
}

/// One cost, then and now.
#[derive(Debug, PartialEq)]
struct Row {
    load: String,
    figure: String,
    before: f64,
    now: f64,
    ratio: f64,
}

fn compare(before: &Baseline, now: &Baseline) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, costs) in &before.costs {
        for (figure, before) in costs {
            if let Some(now) = now.costs.get(load).and_then(|costs| costs.get(figure)) {
                let ratio = if *before > 0.0 { now / before } else { 1.0 };
                rows.push(Row { load: load.clone(), figure: figure.clone(), before: *before, now: *now, ratio });
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_compared_by_name_and_what_one_side_lacks_is_left_out() {
        let baseline = |gateway: f64, other: &str| Baseline {
            set_us: 10.0,
            costs: [("single".to_owned(), [("cpu.gateway".to_owned(), gateway), (other.to_owned(), 1.0)].into())]
                .into(),
        };
        let rows = compare(&baseline(30.0, "cpu.old"), &baseline(36.0, "cpu.new"));
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].figure.as_str(), rows[0].ratio), ("cpu.gateway", 1.2));
    }
}
