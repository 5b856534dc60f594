//! Holds what the stack tells against what the drill knows. Pure: everything was read before.
//!
//! Promises: a job is charged with everything that is wrong about it, each charge in words. What
//! the promises themselves allow is set apart as forgiven, never dropped: a primary that is killed may
//! forget what it wrote last. So a charge is forgiven only if it needs no more than that some writes
//! were forgotten, and each of these was made to a shard whose primary was killed, at most [`LAG`] before.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_domain::{Event, State, Time, job::transition};
use serde::Serialize;

use super::{
    ledger::{Accepted, Execution, Ledger, SeenEnd},
    places::Death,
    told::{Entry, Stamp, TellsOf, Told},
};

/// Longest history that is kept whole: beyond it the middle is left out after the first entry.
pub(super) const WHOLE_HISTORY: usize = 64;
/// How long before its death a primary may have answered what no replica has: it hands its writes on in the
/// turn of its loop in which it answers, and what was handed on survives it. A second is long for a turn.
pub(super) const LAG: Duration = Duration::from_secs(1);
/// Within so long of an act, on a busy machine, whoever did it has told the audit log.
const TELLING: Duration = Duration::from_secs(5);

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

impl Findings {
    /// Jobs of which something was forgiven.
    pub(super) fn forgiven_jobs(&self) -> usize {
        self.forgiven.iter().map(|charge| &charge.job).collect::<BTreeSet<_>>().len()
    }

    /// Whether every promise was kept, and no more had to be forgiven than may be.
    pub(super) fn hold(&self, forgivable: usize) -> bool {
        self.charges.is_empty() && self.forgiven_jobs() <= forgivable
    }
}

/// Of how many jobs something may be forgiven: each primary that was killed had at most [`LAG`] of the load in
/// its hands. It has a shard of it only; the rest is for jobs that come in batches, and for those of before.
pub(super) fn forgivable(deaths: &[Death], jobs_per_s: u32) -> usize {
    deaths.len() * (jobs_per_s * u32::try_from(LAG.as_secs()).unwrap_or(u32::MAX)) as usize
}

/// Judges every job that anybody knows of.
pub(super) fn judge(ledger: &Ledger, told: &Told) -> Findings {
    let mut findings = Findings::default();
    let ids: BTreeSet<&String> =
        ledger.accepted.keys().chain(told.jobs.keys()).chain(ledger.executions.keys()).collect();
    for id in ids {
        Case { id, ledger, told, findings: &mut findings }.examine();
    }
    for (one, other) in &ledger.split {
        let why = format!("{other} was created with the same idempotency key");
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

/// A write that is missing now, if there ever was one: where, and between which moments.
#[derive(Clone, Copy)]
enum Missing {
    InRecord(Time, Time),
    InLog(Time, Time),
}

/// One job under examination.
struct Case<'a> {
    id: &'a str,
    ledger: &'a Ledger,
    told: &'a Told,
    findings: &'a mut Findings,
}

impl Case<'_> {
    fn charge(&mut self, crime: Crime, why: impl Into<String>) {
        self.findings.charges.push(Charge { job: self.id.to_owned(), crime, why: why.into() });
    }

    /// Charges it, unless it may be that a killed primary forgot.
    fn charge_unless(&mut self, forgotten: bool, crime: Crime, why: impl Into<String>) {
        let charge = Charge { job: self.id.to_owned(), crime, why: why.into() };
        let side = if forgotten { &mut self.findings.forgiven } else { &mut self.findings.charges };
        side.push(charge);
    }

    /// Whether a primary was killed that held this and may not have passed it on.
    fn forgotten(&self, missing: Missing) -> bool {
        let Some(places) = &self.told.places else { return false };
        let (slot, from, to) = match missing {
            Missing::InRecord(from, to) => (Some(places.of(self.id)), from, to),
            Missing::InLog(from, to) => (places.log, from, to),
        };
        let slot_died = |death: &&Death| slot.is_some_and(|slot| death.took(slot));
        let mut deaths = self.ledger.deaths.iter().filter(slot_died);
        deaths.any(|Death { between: (alive, dead), .. }| to >= alive.before(LAG) && from <= *dead)
    }

    fn executions(&self) -> &[Execution] {
        self.ledger.executions.get(self.id).map_or(&[], Vec::as_slice)
    }

    /// A fence is the moment of its start, by the clock of the node that has the record.
    fn start_forgotten(&self, run: &Execution) -> bool {
        self.forgotten(Missing::InRecord(Time(run.fence), Time(run.fence)))
    }

    /// How many of its runs may have had a start that was forgotten.
    fn starts_forgotten(&self) -> usize {
        self.executions().iter().filter(|run| self.start_forgotten(run)).count()
    }

    fn examine(&mut self) {
        let Some(tells) = self.told.jobs.get(self.id) else { return self.no_record() };
        if !tells.state.is_end() {
            self.charge(Crime::Lost, format!("it is still {}", tells.state));
        }
        self.one_end(tells);
        self.story(tells);
        self.starts(tells);
        self.fence(tells);
        self.acts(tells);
        if tells.state.is_end() {
            self.effects(tells);
        }
    }

    fn no_record(&mut self) {
        match self.ledger.accepted.get(self.id) {
            Some(Accepted { between: (from, to), replicated }) => {
                let forgotten = !replicated && self.forgotten(Missing::InRecord(*from, *to));
                self.charge_unless(forgotten, Crime::Lost, "it was accepted, but it has no record");
            }
            None => {
                let forgotten = self.executions().iter().all(|run| self.start_forgotten(run));
                self.charge_unless(forgotten, Crime::RunWithoutStart, "a worker ran it, but it has no record");
            }
        }
    }

    fn one_end(&mut self, tells: &TellsOf) {
        let ends = tells.history.iter().filter(|step| step.to.is_end()).count();
        if ends > 1 {
            self.charge(Crime::EndedTwice, format!("its history has {ends} ends"));
        }
        let changed = |seen: &&SeenEnd| (seen.state, seen.finished_at) != (tells.state, tells.finished_at);
        if let Some(SeenEnd { state, finished_at }) = self.ledger.ends.get(self.id).filter(changed) {
            let forgotten = finished_at.is_some_and(|at| self.forgotten(Missing::InRecord(at, at)));
            let (now, then) = (tells.state, tells.finished_at);
            let why = format!("it had ended as {state} at {finished_at:?}, but now it is {now} at {then:?}");
            self.charge_unless(forgotten, Crime::EndedTwice, why);
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
            let why = format!("its history ends with {before}, but it is {} at attempt {}", tells.state, tells.attempt);
            self.charge(Crime::IllegalTransition, why);
        }
    }

    fn starts(&mut self, tells: &TellsOf) {
        let count = |event| tells.history.iter().filter(|step| step.event == Some(event)).count();
        let (starts, given_back) = (count(Event::Start), count(Event::Release));
        let most = tells.max_attempts as usize;
        if starts.saturating_sub(given_back) > most {
            let why = format!("{starts} starts minus {given_back} given back, but at most {most} are allowed");
            self.charge(Crime::StartsAboveMax, why);
        }
        let (runs, forgotten) = (self.executions().len(), self.starts_forgotten());
        if runs > starts && tells.history.len() < WHOLE_HISTORY {
            let why = format!("{runs} runs, but only {starts} recorded starts");
            self.charge_unless(runs - starts <= forgotten, Crime::RunWithoutStart, why);
        }
        if runs.saturating_sub(given_back) > most {
            let why = format!("{runs} runs minus {given_back} given back, but at most {most} are allowed");
            self.charge_unless(runs - given_back - most <= forgotten, Crime::StartsAboveMax, why);
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
            let mut later = self.executions().iter().filter(|run| run.fence > fence).peekable();
            let forgotten = later.peek().is_some() && later.all(|run| self.start_forgotten(run));
            let why = format!("its outcome was written under fence {fence}, but the last run had {last:?}");
            self.charge_unless(forgotten, Crime::OldFence, why);
        } else if attempt != tells.attempt {
            let why = format!("its outcome is of attempt {attempt}, but its last attempt is {}", tells.attempt);
            self.charge(Crime::OldFence, why);
        }
    }

    /// What loops did to it, by its own history and by the audit log: the same, each once.
    fn acts(&mut self, tells: &TellsOf) {
        if tells.history.len() >= WHOLE_HISTORY {
            return;
        }
        let (done, told) = (tells.acts(self.id), self.told);
        for (act, at) in done.iter().filter(|(act, _)| !told.acts.contains_key(*act)) {
            let forgotten = self.forgotten(Missing::InLog(*at, *at + TELLING));
            self.charge_unless(forgotten, Crime::ActUntold, format!("{act} is not in the audit log"));
        }
        // `job:<id>:<version>` is a transition; with one more word it is help that moved nothing.
        let own = format!("job:{}:", self.id);
        for (act, Entry { times, at }) in told.acts.range(own.clone()..).take_while(|(act, _)| act.starts_with(&own)) {
            if act[own.len()..].contains(':') {
                continue;
            }
            if !done.contains_key(act) {
                let forgotten = self.forgotten(Missing::InRecord(*at, *at));
                let why = format!("{act} is in the audit log, but not in its history");
                self.charge_unless(forgotten, Crime::ActNotDone, why);
            } else if *times > 1 {
                self.charge(Crime::ActNotDone, format!("{act} is in the audit log {times} times"));
            }
        }
    }

    fn effects(&mut self, tells: &TellsOf) {
        let times = |of: &BTreeMap<String, u64>| of.get(self.id).copied().unwrap_or_default();
        let (letters, listed) = (times(&self.told.letters), times(&self.told.listed));
        let wanted = u64::from(tells.state.is_bad_end());
        if letters < wanted {
            self.charge(Crime::EffectMissing, format!("it ended as {}, but has no dead letter", tells.state));
        }
        if letters > wanted {
            self.charge(Crime::EffectDoubled, format!("it ended as {}, but has {letters} dead letters", tells.state));
        }
        match listed {
            0 => self.charge(Crime::EffectMissing, "it is not in the list of jobs"),
            1 => (),
            n => self.charge(Crime::EffectDoubled, format!("it is in the list of jobs {n} times")),
        }
        if tells.home {
            self.charge(Crime::HomeLeft, format!("it ended as {}, but still has a home", tells.state));
        }
    }
}

#[cfg(test)]
mod tests;
