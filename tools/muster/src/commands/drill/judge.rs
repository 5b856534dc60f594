//! Compares what the stack reports about the jobs with what the drill knows. Pure: the caller has read everything.
//!
//! Each fault of a job is one charge with its reason. Muster's promises allow one loss: a Redis primary that is killed
//! may lose its last writes. A charge is forgiven only if lost writes alone explain it, and each of these writes went
//! to a killed primary at most [`LAG`] before its death. Forgiven charges are listed separately, never dropped.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_domain::{Event, State, Time, job::transition};
use serde::Serialize;

use super::{
    ledger::{Accepted, Execution, Ledger, SeenEnd},
    places::Death,
    reported::{Entry, Reported, ReportedJob, Stamp},
};

/// Muster keeps histories up to this length complete. In longer ones, entries after the first are missing.
pub(super) const WHOLE_HISTORY: usize = 64;
/// How long before its death a primary may have confirmed a write that no replica has. A primary sends its writes to
/// its replicas in the same turn of its event loop in which it answers, and what it sent survives. A turn takes far
/// less than a second.
pub(super) const LAG: Duration = Duration::from_secs(1);
/// How long the writer of an audit entry may take after the act, on a busy machine.
const AUDIT_DELAY: Duration = Duration::from_secs(5);

/// What can be wrong about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Crime {
    /// The job was accepted, but has no record or has not ended.
    Lost,
    /// The end was written again, or changed.
    EndedTwice,
    /// The recorded result does not come from the last attempt.
    OldFence,
    /// The history has a step that the state table does not allow, or does not lead to the state.
    IllegalTransition,
    /// The job was started more often than `max_attempts` allows.
    StartsAboveMax,
    /// A handler ran without a recorded start, or twice under one fence.
    RunWithoutStart,
    /// A bad end without a dead letter, or a job that is missing in the list of jobs.
    EffectMissing,
    /// Too many dead letters, or more than one entry in the list of jobs.
    EffectDoubled,
    /// A loop changed the job's state without an audit entry.
    ActUntold,
    /// An audit entry without a change of the job, or a second entry for one change.
    ActNotDone,
    /// An ended job still has a home; or the scrub found active jobs without a home.
    HomeLeft,
    /// One idempotency key created two jobs.
    KeySplit,
    /// The hash chain of the audit log is broken.
    AuditBreaks,
}

impl Crime {
    /// Every kind with its name, which is also its key in the JSON verdict: do not change one.
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

/// One fault of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Charge {
    pub(super) job: String,
    pub(super) crime: Crime,
    pub(super) why: String,
}

/// All charges, the forgiven ones apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) charges: Vec<Charge>,
    pub(super) forgiven: Vec<Charge>,
}

impl Findings {
    /// The number of jobs with a forgiven charge.
    pub(super) fn forgiven_jobs(&self) -> usize {
        self.forgiven.iter().map(|charge| &charge.job).collect::<BTreeSet<_>>().len()
    }

    /// Whether every promise was kept, with at most `forgivable` forgiven jobs.
    pub(super) fn hold(&self, forgivable: usize) -> bool {
        self.charges.is_empty() && self.forgiven_jobs() <= forgivable
    }
}

/// How many jobs may have a forgiven charge: for each killed primary, as many as the load submits within [`LAG`]. A
/// primary has only one shard of them; the rest covers jobs that come in batches, and older jobs.
pub(super) fn forgivable(deaths: &[Death], jobs_per_s: u32) -> usize {
    deaths.len() * (jobs_per_s * u32::try_from(LAG.as_secs()).unwrap_or(u32::MAX)) as usize
}

/// Judges every job that the drill submitted, a worker ran, or the stack lists.
pub(super) fn judge(ledger: &Ledger, reported: &Reported) -> Findings {
    let mut findings = Findings::default();
    let ids: BTreeSet<&String> =
        ledger.accepted.keys().chain(reported.jobs.keys()).chain(ledger.executions.keys()).collect();
    for id in ids {
        Case { id, ledger, reported, findings: &mut findings }.examine();
    }
    for (one, other) in &ledger.split {
        let why = format!("{other} was created with the same idempotency key");
        findings.charges.push(Charge { job: one.clone(), crime: Crime::KeySplit, why });
    }
    if let Some(why) = reported.audit_break.clone() {
        findings.charges.push(Charge { job: "the audit log".into(), crime: Crime::AuditBreaks, why });
    }
    if let Some(why) = reported.gap.clone() {
        findings.charges.push(Charge { job: "the scrub".into(), crime: Crime::HomeLeft, why });
    }
    findings
}

/// A write that may be lost: in which place, and between which times it was made.
#[derive(Clone, Copy)]
enum Missing {
    InRecord(Time, Time),
    InLog(Time, Time),
}

/// The examination of one job.
struct Case<'a> {
    id: &'a str,
    ledger: &'a Ledger,
    reported: &'a Reported,
    findings: &'a mut Findings,
}

impl Case<'_> {
    fn charge(&mut self, crime: Crime, why: impl Into<String>) {
        self.findings.charges.push(Charge { job: self.id.to_owned(), crime, why: why.into() });
    }

    /// Adds a charge: a forgiven one if a killed primary may have lost the writes.
    fn charge_unless(&mut self, forgotten: bool, crime: Crime, why: impl Into<String>) {
        let charge = Charge { job: self.id.to_owned(), crime, why: why.into() };
        let side = if forgotten { &mut self.findings.forgiven } else { &mut self.findings.charges };
        side.push(charge);
    }

    /// Whether a killed primary had this write and may not have sent it to a replica.
    fn forgotten(&self, missing: Missing) -> bool {
        let Some(places) = &self.reported.places else { return false };
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

    /// Whether the start of this run may be lost. A fence is the time of the start, by the clock of the node that has
    /// the record.
    fn start_forgotten(&self, run: &Execution) -> bool {
        self.forgotten(Missing::InRecord(Time(run.fence), Time(run.fence)))
    }

    /// The number of runs whose start may be lost.
    fn starts_forgotten(&self) -> usize {
        self.executions().iter().filter(|run| self.start_forgotten(run)).count()
    }

    fn examine(&mut self) {
        let Some(job) = self.reported.jobs.get(self.id) else { return self.no_record() };
        if !job.state.is_end() {
            self.charge(Crime::Lost, format!("it is still {}", job.state));
        }
        self.one_end(job);
        self.story(job);
        self.starts(job);
        self.fence(job);
        self.acts(job);
        if job.state.is_end() {
            self.effects(job);
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

    fn one_end(&mut self, job: &ReportedJob) {
        let ends = job.history.iter().filter(|step| step.to.is_end()).count();
        if ends > 1 {
            self.charge(Crime::EndedTwice, format!("its history has {ends} ends"));
        }
        let changed = |seen: &&SeenEnd| (seen.state, seen.finished_at) != (job.state, job.finished_at);
        if let Some(SeenEnd { state, finished_at }) = self.ledger.ends.get(self.id).filter(changed) {
            let forgotten = finished_at.is_some_and(|at| self.forgotten(Missing::InRecord(at, at)));
            let (now, then) = (job.state, job.finished_at);
            let why = format!("it had ended as {state} at {finished_at:?}, but now it is {now} at {then:?}");
            self.charge_unless(forgotten, Crime::EndedTwice, why);
        }
    }

    fn story(&mut self, job: &ReportedJob) {
        let Some((first, rest)) = job.history.split_first() else {
            return self.charge(Crime::IllegalTransition, "it has no history");
        };
        if first.event.is_some() || first.to != State::Pending {
            self.charge(Crime::IllegalTransition, format!("its history begins with {first}"));
        }
        let cut = job.history.len() >= WHOLE_HISTORY;
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
        if (before.to, before.attempt) != (job.state, job.attempt) {
            let why = format!("its history ends with {before}, but it is {} at attempt {}", job.state, job.attempt);
            self.charge(Crime::IllegalTransition, why);
        }
    }

    fn starts(&mut self, job: &ReportedJob) {
        let count = |event| job.history.iter().filter(|step| step.event == Some(event)).count();
        let (starts, given_back) = (count(Event::Start), count(Event::Release));
        let most = job.max_attempts as usize;
        if starts.saturating_sub(given_back) > most {
            let why = format!("{starts} starts minus {given_back} given back, but at most {most} are allowed");
            self.charge(Crime::StartsAboveMax, why);
        }
        let (runs, forgotten) = (self.executions().len(), self.starts_forgotten());
        if runs > starts && job.history.len() < WHOLE_HISTORY {
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

    /// Checks the attempt and fence that the handler put into its outcome.
    fn fence(&mut self, job: &ReportedJob) {
        let by_its_worker = matches!(job.history.last().and_then(|s| s.event), Some(Event::Succeed | Event::Fail));
        if !by_its_worker {
            return;
        }
        let Some(Stamp { attempt, fence }) = job.stamp else {
            return self.charge(Crime::OldFence, "its outcome names neither attempt nor fence");
        };
        let last = self.executions().iter().map(|run| run.fence).max();
        if last != Some(fence) {
            let mut later = self.executions().iter().filter(|run| run.fence > fence).peekable();
            let forgotten = later.peek().is_some() && later.all(|run| self.start_forgotten(run));
            let why = format!("its outcome was written under fence {fence}, but the last run had {last:?}");
            self.charge_unless(forgotten, Crime::OldFence, why);
        } else if attempt != job.attempt {
            let why = format!("its outcome is of attempt {attempt}, but its last attempt is {}", job.attempt);
            self.charge(Crime::OldFence, why);
        }
    }

    /// Checks that the history and the audit log name the same acts of loops, each once.
    fn acts(&mut self, job: &ReportedJob) {
        if job.history.len() >= WHOLE_HISTORY {
            return;
        }
        let (done, reported) = (job.acts(self.id), self.reported);
        for (act, at) in done.iter().filter(|(act, _)| !reported.acts.contains_key(*act)) {
            let forgotten = self.forgotten(Missing::InLog(*at, *at + AUDIT_DELAY));
            self.charge_unless(forgotten, Crime::ActUntold, format!("{act} is not in the audit log"));
        }
        // `job:<id>:<version>` is a transition. A fourth part marks a repair that did not change the state.
        let own = format!("job:{}:", self.id);
        for (act, Entry { times, at }) in
            reported.acts.range(own.clone()..).take_while(|(act, _)| act.starts_with(&own))
        {
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

    fn effects(&mut self, job: &ReportedJob) {
        let times = |of: &BTreeMap<String, u64>| of.get(self.id).copied().unwrap_or_default();
        let (letters, listed) = (times(&self.reported.letters), times(&self.reported.listed));
        let wanted = u64::from(job.state.is_bad_end());
        if letters < wanted {
            self.charge(Crime::EffectMissing, format!("it ended as {}, but has no dead letter", job.state));
        }
        if letters > wanted {
            self.charge(Crime::EffectDoubled, format!("it ended as {}, but has {letters} dead letters", job.state));
        }
        match listed {
            0 => self.charge(Crime::EffectMissing, "it is not in the list of jobs"),
            1 => (),
            n => self.charge(Crime::EffectDoubled, format!("it is in the list of jobs {n} times")),
        }
        if job.home {
            self.charge(Crime::HomeLeft, format!("it ended as {}, but still has a home", job.state));
        }
    }
}

#[cfg(test)]
mod tests;
