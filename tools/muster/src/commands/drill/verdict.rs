//! What a chaos run came to: the counts as a table and as JSON, and for every charge the job and
//! its history. All zeros is a pass.

use std::{collections::BTreeMap, fmt};

use muster_domain::State;
use serde_json::{Map, Value, json};

use super::{
    check::Checked,
    judge::{Charge, Crime},
    plan::Step,
};
use crate::output;

/// Jobs whose histories are shown.
const SHOWN: usize = 20;

/// The verdict over a run.
pub(super) struct Verdict<'a> {
    pub(super) checked: &'a Checked,
    /// The faults that were injected.
    pub(super) faults: &'a [Step],
    /// The command that repeats it.
    pub(super) again: String,
}

impl Verdict<'_> {
    /// Whether every promise was kept.
    pub(super) fn holds(&self) -> bool {
        self.checked.holds() && self.checked.told.unreadable == 0
    }

    fn ended(&self) -> usize {
        let ended = |id: &&String| self.checked.told.jobs.get(*id).is_some_and(|tells| tells.state.is_end());
        self.checked.ledger.accepted.keys().filter(ended).count()
    }

    fn ends(&self) -> BTreeMap<&'static str, u64> {
        let mut ends = BTreeMap::new();
        for state in self.checked.told.jobs.values().map(|tells| tells.state).filter(|state: &State| state.is_end()) {
            *ends.entry(state.as_str()).or_default() += 1;
        }
        ends
    }

    fn kinds(&self) -> BTreeMap<&'static str, u64> {
        let mut kinds = BTreeMap::new();
        self.faults.iter().for_each(|step| *kinds.entry(step.fault.kind()).or_default() += 1);
        kinds
    }

    fn executions(&self) -> usize {
        self.checked.ledger.executions.values().map(Vec::len).sum()
    }

    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let mut body = Map::new();
        body.insert("verdict".into(), if self.holds() { "pass" } else { "fail" }.into());
        body.insert("accepted".into(), self.checked.ledger.accepted.len().into());
        body.insert("ended".into(), self.ended().into());
        for (crime, words) in Crime::ALL {
            body.insert(words.replace(' ', "_"), count(&self.checked.findings.charges, *crime).into());
        }
        body.insert("unreadable_messages".into(), self.checked.told.unreadable.into());
        body.insert("forgiven".into(), json!(self.checked.findings.forgiven));
        body.insert("forgiven_jobs".into(), self.checked.findings.forgiven_jobs().into());
        body.insert("forgivable_jobs".into(), self.checked.forgivable.into());
        body.insert("executions".into(), self.executions().into());
        body.insert("executed_by".into(), json!(self.checked.ledger.shares));
        body.insert("ends".into(), json!(self.ends()));
        body.insert("unanswered".into(), self.checked.ledger.unanswered.into());
        body.insert("refused".into(), json!(self.checked.ledger.refused));
        body.insert("faults".into(), json!(self.kinds()));
        body.insert("again".into(), self.again.as_str().into());
        let offenders: Vec<Value> = self.offenders().iter().map(|(id, charges)| self.offender(id, charges)).collect();
        body.insert("offenders".into(), offenders.into());
        Value::Object(body)
    }

    /// As a table, the offenders before it and the result last.
    pub(super) fn show(&self) {
        let offenders = self.offenders();
        for (id, charges) in offenders.iter().take(SHOWN) {
            output::line(format_args!("\n{id}"));
            for charge in charges {
                output::line(format_args!("  {}", charge.why));
            }
            for step in self.checked.told.jobs.get(*id).map_or(&[][..], |tells| &tells.history) {
                output::line(format_args!("    {step}"));
            }
            for run in self.checked.ledger.executions.get(*id).map_or(&[][..], Vec::as_slice) {
                output::line(format_args!("    ran: attempt {} under fence {}", run.attempt, run.fence));
            }
        }
        if offenders.len() > SHOWN {
            output::line(format_args!("\n… and {} more jobs; -o json shows all", offenders.len() - SHOWN));
        }
        output::line("");
        output::facts(&[
            ("faults", joined(&self.kinds())),
            ("ends", joined(&self.ends())),
            ("executions", self.executions().to_string()),
            ("executed by", joined(&self.checked.ledger.shares)),
            ("unanswered", self.checked.ledger.unanswered.to_string()),
            ("refused", joined(&self.checked.ledger.refused)),
        ]);
        output::line("");
        let counted = |words: &str, n: usize| vec![words.to_owned(), n.to_string()];
        let mut rows = vec![counted("accepted", self.checked.ledger.accepted.len()), counted("ended", self.ended())];
        rows.extend(
            Crime::ALL.iter().map(|(crime, words)| counted(words, count(&self.checked.findings.charges, *crime))),
        );
        rows.push(counted("unreadable messages", usize::try_from(self.checked.told.unreadable).unwrap_or(usize::MAX)));
        if !self.checked.ledger.deaths.is_empty() {
            let words = format!("lost by a killed primary, and allowed: at most {}", self.checked.forgivable);
            rows.push(counted(&words, self.checked.findings.forgiven_jobs()));
        }
        output::rows(&["", ""], rows);
        output::line(format_args!("\nverdict: {}   ({})", if self.holds() { "PASS" } else { "FAIL" }, self.again));
    }

    fn offenders(&self) -> BTreeMap<&str, Vec<&Charge>> {
        let mut offenders: BTreeMap<&str, Vec<&Charge>> = BTreeMap::new();
        for charge in &self.checked.findings.charges {
            offenders.entry(&charge.job).or_default().push(charge);
        }
        offenders
    }

    fn offender(&self, id: &str, charges: &[&Charge]) -> Value {
        let history: Vec<String> = self
            .checked
            .told
            .jobs
            .get(id)
            .map_or(&[][..], |tells| &tells.history)
            .iter()
            .map(ToString::to_string)
            .collect();
        let runs: Vec<Value> = self
            .checked
            .ledger
            .executions
            .get(id)
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .map(|run| json!({ "attempt": run.attempt, "fence": run.fence }))
            .collect();
        json!({ "id": id, "charges": charges, "history": history, "executions": runs })
    }
}

fn joined(counts: &BTreeMap<impl fmt::Display, u64>) -> String {
    counts.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
}

fn count(charges: &[Charge], crime: Crime) -> usize {
    charges.iter().filter(|charge| charge.crime == crime).count()
}
