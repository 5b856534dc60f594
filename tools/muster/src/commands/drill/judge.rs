//! Holds what the stack tells against what the drill knows. Pure: everything was read before.
//!
//! Promises: a job is charged with everything that is wrong about it, each charge in words. What
//! the promises themselves allow (a primary that is killed may forget its last moments) is set
//! apart as forgiven, never dropped.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{Event, State, job::transition};
use serde::Serialize;

use super::{
    ledger::{Execution, Ledger, SeenEnd},
    told::{Stamp, TellsOf, Told},
};

/// Longest history that is kept whole: beyond it the middle is left out after the first entry.
pub(super) const WHOLE_HISTORY: usize = 64;
/// How long before its death a primary's writes may not have reached its replica.
const FORGOTTEN: Duration = Duration::from_secs(3);

/// What can be wrong about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Crime {
    /// Accepted, and has no record or no end.
    Lost,
    /// Its end was written again, or became another.
    EndedTwice,
    /// The recorded result is not the last attempt's.
    OldFence,
    /// Its history has a step that the state table has not, or does not lead to its state.
    IllegalTransition,
    /// It was started more often than it may be.
    StartsAboveMax,
    /// A handler ran without a recorded start, or twice under one fence.
    RunWithoutStart,
    /// No dead letter for a bad end, or not in the list.
    EffectMissing,
    /// A dead letter too many, or listed twice.
    EffectDoubled,
    /// A loop moved it, and the audit log does not say so.
    ActUntold,
    /// The audit log says that a loop moved it, and it was not, or says so twice.
    ActNotDone,
    /// It has ended and is still looked at; or the scrub found living jobs that nobody looked at.
    HomeLeft,
    /// One idempotency key, two jobs.
    KeySplit,
    /// The chain of the audit log does not hold.
    AuditBreaks,
}

impl Crime {
    pub(super) const ALL: &'static [(Crime, &'static str)] = &[
        (Crime::Lost, "lost"),
        (Crime::EndedTwice, "ended twice"),
        (Crime::OldFence, "writes under an old fence"),
        (Crime::IllegalTransition, "illegal transitions"),
        (Crime::StartsAboveMax, "starts above max"),
        (Crime::RunWithoutStart, "runs without a start"),
        (Crime::EffectMissing, "effects missing"),
        (Crime::EffectDoubled, "effects doubled"),
        (Crime::ActUntold, "acts of loops untold"),
        (Crime::ActNotDone, "acts told and not done"),
        (Crime::HomeLeft, "consistency gap"),
        (Crime::KeySplit, "idempotency keys split"),
        (Crime::AuditBreaks, "audit log breaks"),
    ];
}

/// Something wrong about one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Charge {
    pub(super) job: String,
    pub(super) crime: Crime,
    pub(super) why: String,
}

/// The charges, and those that are forgiven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) charges: Vec<Charge>,
    pub(super) forgiven: Vec<Charge>,
}

/// Judges every job that anybody knows of.
pub(super) fn judge(ledger: &Ledger, told: &Told) -> Findings {
    let mut findings = Findings::default();
    let ids: std::collections::BTreeSet<&String> =
        ledger.accepted.keys().chain(told.jobs.keys()).chain(ledger.executions.keys()).collect();
    for id in ids {
        let mut case = Case { id, ledger, tells: told.jobs.get(id), charges: Vec::new() };
        case.examine(told);
        for charge in std::mem::take(&mut case.charges) {
            let side = if case.is_forgiven(charge.crime) { &mut findings.forgiven } else { &mut findings.charges };
            side.push(charge);
        }
    }
    for (one, other) in &ledger.split {
        let why = format!("{other} was made under the same idempotency key");
        findings.charges.push(Charge { job: one.clone(), crime: Crime::KeySplit, why });
    }
    if let Some(why) = told.audit_break.clone() {
        findings.charges.push(Charge { job: "the audit log".into(), crime: Crime::AuditBreaks, why });
    }
    if let Some(why) = told.gap.clone() {
        findings.charges.push(Charge { job: "the scrub".into(), crime: Crime::HomeLeft, why });
    }
    findings
}

/// One job under examination.
struct Case<'a> {
    id: &'a str,
    ledger: &'a Ledger,
    tells: Option<&'a TellsOf>,
    charges: Vec<Charge>,
}

impl Case<'_> {
    fn charge(&mut self, crime: Crime, why: impl Into<String>) {
        self.charges.push(Charge { job: self.id.to_owned(), crime, why: why.into() });
    }

    fn executions(&self) -> &[Execution] {
        self.ledger.executions.get(self.id).map_or(&[], Vec::as_slice)
    }

    fn examine(&mut self, told: &Told) {
        let Some(tells) = self.tells else {
            match self.ledger.accepted.contains_key(self.id) {
                true => self.charge(Crime::Lost, "it was accepted and there is no record of it"),
                false => self.charge(Crime::RunWithoutStart, "a worker ran it and there is no record of it"),
            }
            return;
        };
        if !tells.state.is_end() {
            self.charge(Crime::Lost, format!("it is still {}", tells.state));
        }
        self.one_end(tells);
        self.story(tells);
        self.starts(tells);
        self.fence(tells);
        self.acts(tells, told);
        if tells.state.is_end() {
            self.effects(tells, told);
        }
    }

    fn one_end(&mut self, tells: &TellsOf) {
        let ends = tells.history.iter().filter(|step| step.to.is_end()).count();
        if ends > 1 {
            self.charge(Crime::EndedTwice, format!("its history has {ends} ends"));
        }
        let changed = |seen: &&SeenEnd| (seen.state, seen.finished_at) != (tells.state, tells.finished_at);
        if let Some(SeenEnd { state, finished_at }) = self.ledger.ends.get(self.id).filter(changed) {
            let (now, then) = (tells.state, tells.finished_at);
            self.charge(Crime::EndedTwice, format!("it was seen {state} at {finished_at:?} and is {now} at {then:?}"));
        }
    }

    fn story(&mut self, tells: &TellsOf) {
        let Some((first, rest)) = tells.history.split_first() else {
            return self.charge(Crime::IllegalTransition, "it has no history");
        };
        if first.event.is_some() || first.to != State::Pending {
            self.charge(Crime::IllegalTransition, format!("its history begins with {first}"));
        }
        let cut = tells.history.len() >= WHOLE_HISTORY;
        let mut before = first;
        for (index, step) in rest.iter().enumerate() {
            let across_the_cut = cut && index == 0;
            let legal = step.event.and_then(|event| transition(before.to, event)) == Some(step.to);
            let counted = match step.event {
                Some(Event::Start) => before.attempt + 1,
                Some(Event::Release) => before.attempt.saturating_sub(1),
                _ => before.attempt,
            };
            if !across_the_cut && (!legal || counted != step.attempt) {
                self.charge(Crime::IllegalTransition, format!("after {before} came {step}"));
            }
            before = step;
        }
        if (before.to, before.attempt) != (tells.state, tells.attempt) {
            let why = format!("its history ends with {before}, it is {} at attempt {}", tells.state, tells.attempt);
            self.charge(Crime::IllegalTransition, why);
        }
    }

    fn starts(&mut self, tells: &TellsOf) {
        let count = |event| tells.history.iter().filter(|step| step.event == Some(event)).count();
        let (starts, given_back) = (count(Event::Start), count(Event::Release));
        let most = tells.max_attempts as usize;
        if starts.saturating_sub(given_back) > most {
            let why = format!("{starts} starts less {given_back} given back, {most} may be");
            self.charge(Crime::StartsAboveMax, why);
        }
        let runs = self.executions().len();
        if runs > starts && tells.history.len() < WHOLE_HISTORY {
            self.charge(Crime::RunWithoutStart, format!("{runs} runs of {starts} recorded starts"));
        }
        if runs.saturating_sub(given_back) > most {
            self.charge(Crime::StartsAboveMax, format!("{runs} runs less {given_back} given back, {most} may be"));
        }
        let mut fences: Vec<u64> = self.executions().iter().map(|run| run.fence).collect();
        fences.sort_unstable();
        if let Some(pair) = fences.windows(2).find(|pair| pair[0] == pair[1]) {
            self.charge(Crime::RunWithoutStart, format!("it ran twice under fence {}", pair[0]));
        }
    }

    /// What a handler gave carries the attempt and fence that it ran under.
    fn fence(&mut self, tells: &TellsOf) {
        let by_its_worker = matches!(tells.history.last().and_then(|s| s.event), Some(Event::Succeed | Event::Fail));
        if !by_its_worker {
            return;
        }
        let Some(Stamp { attempt, fence }) = tells.stamp else {
            return self.charge(Crime::OldFence, "its outcome names neither attempt nor fence");
        };
        let last = self.executions().iter().map(|run| run.fence).max();
        if last != Some(fence) {
            let why = format!("its outcome was written under fence {fence}, the last run had {last:?}");
            self.charge(Crime::OldFence, why);
        } else if attempt != tells.attempt {
            let why = format!("its outcome is attempt {attempt}'s, its last attempt is {}", tells.attempt);
            self.charge(Crime::OldFence, why);
        }
    }

    /// What loops did to it, by its own history and by the audit log: the same, each once.
    fn acts(&mut self, tells: &TellsOf, told: &Told) {
        if tells.history.len() >= WHOLE_HISTORY {
            return;
        }
        let done = tells.acts(self.id);
        for act in done.iter().filter(|act| !told.acts.contains_key(*act)) {
            self.charge(Crime::ActUntold, format!("{act} is not in the audit log"));
        }
        // `job:<id>:<version>` is a transition; with one more word it is help that moved nothing.
        let own = format!("job:{}:", self.id);
        for (act, times) in told.acts.range(own.clone()..).take_while(|(act, _)| act.starts_with(&own)) {
            if act[own.len()..].contains(':') {
                continue;
            }
            if !done.contains(act) {
                self.charge(Crime::ActNotDone, format!("{act} is in the audit log and not in its history"));
            } else if *times > 1 {
                self.charge(Crime::ActNotDone, format!("{act} is in the audit log {times} times"));
            }
        }
    }

    fn effects(&mut self, tells: &TellsOf, told: &Told) {
        let times = |of: &BTreeMap<String, u64>| of.get(self.id).copied().unwrap_or_default();
        let (letters, listed) = (times(&told.letters), times(&told.listed));
        let wanted = u64::from(tells.state.is_bad_end());
        if letters < wanted {
            self.charge(Crime::EffectMissing, format!("it ended {} and has no dead letter", tells.state));
        }
        if letters > wanted {
            self.charge(Crime::EffectDoubled, format!("it ended {} and has {letters} dead letters", tells.state));
        }
        match listed {
            0 => self.charge(Crime::EffectMissing, "it is not in the list of jobs"),
            1 => (),
            n => self.charge(Crime::EffectDoubled, format!("it is in the list of jobs {n} times")),
        }
        if tells.home {
            self.charge(Crime::HomeLeft, format!("it ended {} and still has a home", tells.state));
        }
    }

    /// A primary that was killed may have forgotten its last moments: a start, an end, what loops did
    /// and the telling of it, and a job whose answer did not say that a replica had it. Nothing else is forgiven, and nothing of a
    /// job that was over before.
    fn is_forgiven(&self, crime: Crime) -> bool {
        let alive_at = |death: &muster_domain::Time| {
            let begun = self.ledger.accepted.get(self.id).is_none_or(|accepted| accepted.at <= *death);
            let seen = self.ledger.ends.get(self.id).and_then(|end| end.finished_at);
            let over = seen.is_some_and(|end| end < death.before(FORGOTTEN));
            begun && !over
        };
        let just_accepted = |death: &muster_domain::Time| {
            let accepted = self.ledger.accepted.get(self.id);
            accepted.is_some_and(|a| !a.replicated && a.at <= *death && a.at >= death.before(FORGOTTEN))
        };
        let deaths = &self.ledger.forgetful;
        match crime {
            Crime::Lost => self.tells.is_none() && deaths.iter().any(just_accepted),
            Crime::EndedTwice
            | Crime::OldFence
            | Crime::StartsAboveMax
            | Crime::RunWithoutStart
            | Crime::ActUntold
            | Crime::ActNotDone => deaths.iter().any(alive_at),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
