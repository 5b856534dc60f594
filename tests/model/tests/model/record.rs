//! The record, as `lua/job/apply.lua` changes it, and what `domain` derives from it.
//!
//! Knows: the script's checks (whether the caller's view is current, and what was done already) and its counters. The
//! transitions themselves come from the real table ([`transition`]), the kinds of comparison from [`Event::seen`],
//! the looks from the real [`look`], and what follows a failed attempt from [`after_failure`]: this file has no
//! second copy of them. Abstracts from: time. A version is represented by its [`Age`], a fence by whether it is the
//! record's. Nothing else is ever compared, and an old version can never match again, so endless counters become a
//! handful of values.

use std::{collections::HashMap, sync::LazyLock, time::Duration};

use muster_domain::{
    Ending, Event, Head, JobError, JobId, JobSpec, Outcome, Phase, Seen as Compared, StartId, State, Tenant, Time,
    Topic, WorkerId,
    job::{Action, BusView, Due, Known, Lease, MAX_RELEASES, after_failure, look, transition},
};

/// The number of attempts of every job in the models.
pub(crate) const MAX_ATTEMPTS: u8 = 2;

/// A held version compared with the record's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Age {
    /// It is the record's version.
    Now,
    /// The record changed once since.
    Before,
    /// The record changed more than once: the version will never match again.
    Old,
}

impl Age {
    pub(crate) const ALL: [Age; 3] = [Age::Now, Age::Before, Age::Old];

    /// The age after the record has changed.
    pub(crate) fn older(self) -> Age {
        match self {
            Age::Now => Age::Before,
            Age::Before | Age::Old => Age::Old,
        }
    }
}

/// A set of messages or entries that differ only by version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ages(u8);

impl Ages {
    pub(crate) fn has(self, age: Age) -> bool {
        self.0 & (1 << age as u8) != 0
    }

    pub(crate) fn with(self, age: Age) -> Ages {
        Ages(self.0 | (1 << age as u8))
    }

    pub(crate) fn without(self, age: Age) -> Ages {
        Ages(self.0 & !(1 << age as u8))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Age> {
        Age::ALL.into_iter().filter(move |age| self.has(*age))
    }

    /// The ages after the record has changed.
    pub(crate) fn older(self) -> Ages {
        self.iter().fold(Ages::default(), |ages, age| ages.with(age.older()))
    }
}

/// The ask that won the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Asker {
    /// No ask so far, or one that is over: no worker will ask with its `start_id` again.
    Nobody,
    /// The open ask of this worker.
    Open(u8),
}

/// What a caller acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Version(Age),
    /// A start: the offer's version, and the worker that asks.
    Offer(Age, u8),
    /// Whether the fence is the record's.
    Fence(bool),
    Any,
}

/// A job's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record {
    pub(crate) state: State,
    pub(crate) attempt: u8,
    pub(crate) lost: u8,
    pub(crate) released: u8,
    /// The event that led to this state.
    pub(crate) last: Option<Event>,
    /// The event that ended the last attempt.
    pub(crate) ended_by: Option<Event>,
    pub(crate) start_id: Asker,
}

impl Record {
    /// `job/submit`.
    pub(crate) fn created() -> Record {
        Record {
            state: State::Pending,
            attempt: 0,
            lost: 0,
            released: 0,
            last: None,
            ended_by: None,
            start_id: Asker::Nobody,
        }
    }

    pub(crate) fn ended(&self) -> bool {
        self.state.is_end()
    }

    pub(crate) fn running(&self) -> bool {
        self.state == State::Running
    }

    /// `job/apply`. After [`Outcome::Applied`] every held version is one older, and after a start every fence except
    /// the new one is stale: the caller, which knows the holders, applies that to them.
    pub(crate) fn apply(&mut self, event: Event, seen: Seen) -> Outcome {
        match (event.seen(), seen) {
            (Compared::Version, Seen::Version(age) | Seen::Offer(age, _)) => {
                let same = match seen {
                    Seen::Offer(_, asker) => self.start_id == Asker::Open(asker),
                    _ => true,
                };
                if age == Age::Before && self.last == Some(event) && same {
                    return Outcome::Already;
                }
                if age != Age::Now {
                    return Outcome::Stale;
                }
            }
            (Compared::Fence, Seen::Fence(ours)) => {
                if !ours {
                    return Outcome::Stale;
                }
                if !self.running() {
                    return if self.ended_by == Some(event) { Outcome::Already } else { Outcome::Illegal };
                }
            }
            (Compared::Any, Seen::Any) => {
                if self.state == State::Cancelled {
                    return Outcome::Already;
                }
            }
            (compared, seen) => unreachable!("{event} compares {compared:?}, and was given {seen:?}"),
        }
        let Some(to) = transition(self.state, event) else { return Outcome::Illegal };
        if self.running() {
            self.ended_by = Some(event);
        }
        match (event, seen) {
            (Event::Start, Seen::Offer(_, asker)) => {
                self.attempt += 1;
                self.ended_by = None;
                self.start_id = Asker::Open(asker);
            }
            (Event::Release, _) => {
                self.attempt -= 1;
                self.released += 1;
            }
            _ if event.due() == Due::LeaseEnd => self.lost += 1,
            _ => {}
        }
        (self.state, self.last) = (to, Some(event));
        Outcome::Applied
    }

    /// What the reconciler has to do if what this state waits for is `over`: its message is lost, its time has come,
    /// or its lease has expired in proven silence.
    pub(crate) fn look(&self, over: bool) -> Says {
        RULES.looks[&(self.state, self.attempt, self.lost, over)]
    }

    /// The event for a worker's report, as `settle` determines it.
    pub(crate) fn settled_by(&self, report: Report) -> Event {
        let before = self.ended_by.filter(|_| !self.running());
        match report {
            Report::Success => Event::Succeed,
            Report::Release if before == Some(Event::Release) || self.released < MAX_RELEASES => Event::Release,
            Report::Failure | Report::Release => match before {
                Some(event @ (Event::Retry | Event::Fail)) => event,
                _ => RULES.failures[&self.attempt],
            },
        }
    }
}

/// What a worker reports about its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Report {
    Success,
    Failure,
    Release,
}

impl Report {
    pub(crate) const ALL: [Report; 3] = [Report::Success, Report::Failure, Report::Release];
}

/// [`Action`], reduced to what the models need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Nothing,
    Resubmit,
    Wake,
    Requeue,
    Reoffer,
    Apply(Event),
    Finish,
}

/// The answers of the pure functions of `domain` to every question that a model can ask.
struct Rules {
    looks: HashMap<(State, u8, u8, bool), Says>,
    failures: HashMap<u8, Event>,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let (id, spec) = (JobId::mint(0), JobSpec::new(Tenant::default(), Topic::parse("t").expect("a topic")));
    let (mut looks, mut failures) = (HashMap::new(), HashMap::new());
    for attempt in 0..=MAX_ATTEMPTS + 1 {
        for lost in 0..=MAX_ATTEMPTS + 1 {
            for (&state, over) in State::ALL.iter().flat_map(|state| [(state, false), (state, true)]) {
                let known = if over { Known::Empty } else { Known::Unknown };
                let bus = BusView { submits: known, offers: known, silence_unproven_until: None };
                let head = head(state, attempt, lost, over);
                let says = match look(id, &head, &spec, NOW, &bus).action {
                    Action::Nothing => Says::Nothing,
                    Action::Resubmit => Says::Resubmit,
                    Action::Wake => Says::Wake,
                    Action::Requeue => Says::Requeue,
                    Action::Reoffer => Says::Reoffer,
                    Action::Apply(failed) => Says::Apply(failed.event),
                    Action::Finish => Says::Finish,
                };
                looks.insert((state, attempt, lost, over), says);
            }
        }
        let error = JobError::new("handler_error", "", true);
        let failed = after_failure(id, &head(State::Running, attempt, 0, false), &spec.retry, error, None);
        failures.insert(attempt, failed.event);
    }
    Rules { looks, failures }
});

const NOW: Time = Time(1_800_000_000_000_000);

/// A head in this state, where the time that it waits for has come, or is far ahead.
fn head(state: State, attempt: u8, lost: u8, over: bool) -> Head {
    let hour = Duration::from_secs(3600);
    let moment = if over { NOW } else { NOW + hour };
    let phase = match state {
        State::Pending => Phase::Pending { run_at: Time::NONE },
        State::Scheduled => Phase::Scheduled { run_at: moment },
        State::Retrying => Phase::Retrying { run_at: moment },
        State::AwaitingApproval => Phase::AwaitingApproval { expires: moment },
        State::Queued => Phase::Queued,
        State::Dispatched => Phase::Dispatched,
        State::Running => {
            let lease = Lease { worker: WorkerId::trusted("w"), start_id: StartId([0; 8]), until: moment };
            Phase::Running { lease, attempt_end: None }
        }
        over => Phase::Ended { end: Ending::try_from(over).expect("an end"), lease_end: None },
    };
    Head {
        version: 3,
        attempt: attempt.into(),
        max_attempts: MAX_ATTEMPTS.into(),
        lost: lost.into(),
        released: 0,
        timeout: None,
        fence: 9,
        since: NOW.before(hour),
        deadline: None,
        start_by: None,
        started_at: (attempt > 0).then(|| NOW.before(hour)),
        created_at: NOW.before(hour),
        last_event: None,
        attempt_ended_by: None,
        last_worker: None,
        phase,
    }
}
