//! The whole life of one job: submit, dispatch, start, settle, retry, rescue, cancel, scrub.
//!
//! Two *hands* represent what two schedulers (or gateways that cancel) do at one time: a submit, a result, a look, a
//! cancel, a scrub, in any mixture, so every loop runs on both and there is no leader. There are two workers, and one
//! gateway with a client that repeats its request or gives up. Each write to a store is a separate step, in the order
//! of the code.
//!
//! | steps here | the code |
//! |---|---|
//! | [`gateway`]: `prepare`, `submit`, `forward_homes`, `announce`, answer | `flow::submit`, `store::prepare` |
//! | [`scheduler`]: `apply(dispatch)`, `offer`, `forward_homes`, ack | `scheduler/dispatch.rs`, `intake.rs`, `flow::offer` |
//! | `apply(start)`, `forward_homes`, go | `scheduler/start.rs`, `sdk/worker/starts.rs` |
//! | `apply(succeed…)`, `finish`, `drop_homes`, ack | `scheduler/settle.rs`, `flow::finish` |
//! | [`reconciler`]: `look`, `rescore_homes`, `drop_orphan_home` | `loops/reconciler.rs` and `acts.rs` |
//! | `cancel`, `scrub` | `flow::cancel`, the scrub loop |
//! | [`worker`] | `sdk/worker/{starts,turn,results,leave}.rs` |
//!
//! Abstracts from time. A home is due whenever a reader looks (a reader remembers only whether the score is still the
//! one that it read). A message counts as lost when it is neither on its stream nor in any hand. A lease is over when
//! no worker holds it. A wrong belief about one of these is a fault. Reading a home, its record and the bus is one
//! step: every write that follows compares what was read, so a change in between is detected there. The backlog has a
//! model of its own, and so have the scores of homes.

#[path = "life/gateway.rs"]
mod gateway;
#[path = "life/reconciler.rs"]
mod reconciler;
#[path = "life/reports.rs"]
mod reports;
#[path = "life/scheduler.rs"]
mod scheduler;
#[path = "life/worker.rs"]
mod worker;

use muster_domain::{Event, Outcome, State};
use stateright::Property;

use super::{
    explore::{Checked, Protocol, Step},
    record::{Age, Ages, Asker, MAX_ATTEMPTS, Record, Report, Seen},
};
pub(crate) use gateway::Gateway;
use reports::Reports;
pub(crate) use scheduler::Hand;
pub(crate) use worker::Worker;

pub(crate) const HAS_RECORD: &str = "what was answered has a record";
pub(crate) const HAS_HOME: &str = "what was answered and is not over has its home";
pub(crate) const STORED_HOMED: &str = "what is stored and lives has a home, unless its gateway was slow";
pub(crate) const ONE_END: &str = "an end is written once";
pub(crate) const ONE_HOLDER: &str = "no two workers hold the same fence";
pub(crate) const STARTS: &str = "no more starts than attempts and releases";
pub(crate) const EFFECTS_FIRST: &str = "a home leaves after the effects of the end";
pub(crate) const FIRST_WORD: &str = "what a worker said first, and the stream took, is what counts";
pub(crate) const NONE_LOST: &str = "no attempt is lost while its worker lives";

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process dies between two writes.
    Crash,
    /// A script is applied, but its answer is lost.
    LostReply,
    /// A message is delivered again although its first receiver is alive.
    Redelivery,
    /// Every stream loses its messages.
    Wipe,
    /// A lease expires although its worker is alive.
    Expiry,
    /// A message that is still on its way is taken for lost.
    Haste,
    /// The client did not get the 202 and asks again.
    Repeat,
    /// A failover loses the home.
    LostHome,
    /// A client cancels the job. Not a fault, but no path to the end may depend on it.
    Cancel,
    /// A worker leaves and gives its attempt back. Not a fault either.
    Drain,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A reader removes the entry that it has handled.
    DropsInsteadOfRescoring,
    /// The gateway creates the record before the home.
    RecordBeforeHome,
    /// A scheduler that gets `already` believes that the effects are done.
    EffectsOnce,
    /// The home is removed before the effects are done.
    HomeBeforeEffects,
    /// An entry without a record is removed whatever its score.
    UncomparedRemoval,
    /// A slow gateway answers without writing the home again.
    NoRewrite,
    /// The worker that holds the job gets `go` again, whatever its `start_id`.
    StartByWorker,
    /// No scheduler scrubs.
    NoScrub,
    /// The scrub skips ended records.
    ScrubOnlyLiving,
    /// A worker forgets its result once the stream has it.
    ForgetsResults,
    /// A worker that gets no answer to its ask gives its offer back and forgets it.
    GivesUpAsking,
    /// A draining worker leaves once the stream has its release.
    LeavesAfterRelease,
    /// A draining worker releases an attempt that it has reported and that is not yet settled.
    ReleasesAfterResult,
    /// A lease is ended for silence although there are results on the stream.
    NoAckFloor,
}

/// The model: which faults may happen, and how many in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
    /// Whether messages that can never match again are kept until a process handles them, instead of being dropped at
    /// once.
    pub(crate) keep_stale: bool,
    /// The states that have to be seen.
    pub(crate) sights: &'static [State],
}

impl Life {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// The state of the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) record: Option<Record>,
    pub(crate) home: bool,
    pub(crate) submits: Ages,
    pub(crate) offers: Ages,
    pub(crate) results: Reports,
    pub(crate) hands: [Hand; 2],
    pub(crate) workers: [Worker; 2],
    pub(crate) gateway: Gateway,
    /// The client has its 202.
    pub(crate) answered: bool,
    /// The effects of the end are done.
    pub(crate) effects: bool,
    /// A failover has lost the home, and no process has put it back.
    pub(crate) home_lost: bool,
    /// A slow gateway's home was taken for an orphan, and no process has put it back.
    pub(crate) home_orphaned: bool,
    /// A home was removed before the effects were done.
    pub(crate) hasty_drop: bool,
    /// What the stream has of the running attempt.
    pub(crate) word: Option<Report>,
    /// An attempt was ended in another way than its worker had reported.
    pub(crate) overruled: bool,
    pub(crate) ends: u8,
    pub(crate) starts: u8,
    pub(crate) faults: u8,
}

impl World {
    /// `job/apply`, and its effect on all holders of a version or a fence.
    fn apply(&mut self, event: Event, seen: Seen) -> Outcome {
        let Some(record) = &mut self.record else { return Outcome::Missing };
        let ran = record.running();
        let outcome = record.apply(event, seen);
        if outcome == Outcome::Applied {
            if ran && event != Event::Cancel {
                self.overruled |= self.word.is_some_and(|word| said(event) != Some(word));
            }
            self.word = None;
            self.ends += u8::from(record.ended());
            self.submits = self.submits.older();
            self.offers = self.offers.older();
            self.hands.iter_mut().for_each(Hand::older);
            self.workers.iter_mut().for_each(Worker::older);
            if event == Event::Start {
                self.starts += 1;
                self.results = self.results.stale();
                self.hands.iter_mut().for_each(Hand::outrun);
                self.workers.iter_mut().for_each(Worker::outrun);
            }
        }
        outcome
    }

    /// Stores a report on the stream.
    fn report(&mut self, report: Report, ours: bool) {
        self.results = self.results.with(report, ours);
        if ours && self.runs_under_fence() {
            self.word.get_or_insert(report);
        }
    }

    /// `home/set`, and the effect of `home/forward` without time: the entry exists, and no reader has read its score.
    fn touch_home(&mut self) {
        (self.home, self.home_lost, self.home_orphaned) = (true, false, false);
        self.hands.iter_mut().for_each(Hand::misread);
    }

    /// Removes the entry.
    fn drop_home(&mut self) {
        self.home = false;
        self.hands.iter_mut().for_each(Hand::misread);
    }

    fn runs_under_fence(&self) -> bool {
        self.record.is_some_and(|record| record.running())
    }

    /// Drops what can never match again: it only ever yields the answer `stale` or `gone`.
    fn settle_down(&mut self) {
        self.submits = self.submits.without(Age::Old);
        self.offers = self.offers.without(Age::Old);
        self.results = self.results.only_ours();
        self.hands = self.hands.map(Hand::settled_down);
        self.workers = self.workers.map(Worker::settled_down);
    }

    /// One representative of all states that no process can tell apart: they differ in the order of hands and
    /// workers, which are alike, or in what the record remembers for processes that are gone.
    fn canonical(mut self) -> World {
        self.hands.sort_unstable();
        let asked = self.workers.iter().any(Worker::asks);
        let known = asked || !self.submits.is_empty() || self.hands.iter().any(Hand::knows_before);
        let heard = self.results.any_ours()
            || self.hands.iter().any(Hand::may_settle)
            || self.workers.iter().any(Worker::may_speak);
        if let Some(record) = &mut self.record {
            record.last = record.last.filter(|_| known);
            record.ended_by = record.ended_by.filter(|_| heard);
        }
        for (place, worker) in (0..).zip(&self.workers) {
            if let Some(record) = &mut self.record
                && record.start_id == Asker::Open(place)
                && !worker.asks()
            {
                record.start_id = Asker::Nobody;
            }
        }
        if self.workers[1] < self.workers[0] {
            self.workers.swap(0, 1);
            if let Some(Record { start_id: Asker::Open(place), .. }) = &mut self.record {
                *place = 1 - *place;
            }
        }
        self
    }
}

/// Collects the possible next steps.
pub(crate) struct Steps<'a> {
    life: &'a Life,
    world: World,
    out: Vec<Step<World>>,
}

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        let to = self.canonical(to);
        self.out.push(Step::new(who, what, to));
    }

    fn canonical(&self, mut to: World) -> World {
        if !self.life.keep_stale {
            to.settle_down();
        }
        to.canonical()
    }

    /// Adds the step as a fault, if one more fault of this kind is allowed.
    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.life.kinds.contains(&kind) {
            to.faults -= 1;
            let to = self.canonical(to);
            self.out.push(Step::fault(who, what, to));
        }
    }

    /// Adds the step, as a fault of this kind if `needs` says so.
    fn unless(&mut self, needs: bool, kind: Fault, who: &'static str, what: &'static str, to: World) {
        if needs { self.fault(kind, who, what, to) } else { self.push(who, what, to) }
    }

    fn bus(&mut self) {
        let w = self.world;
        if !w.submits.is_empty() || !w.offers.is_empty() || w.results != Reports::default() {
            let (submits, offers, results) = Default::default();
            let to = World { submits, offers, results, word: None, ..w };
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
        if w.home {
            let mut to = w;
            to.drop_home();
            to.home_lost = true;
            self.fault(Fault::LostHome, "Redis", "fails over and loses the home", to);
        }
    }
}

impl Protocol for Life {
    type State = World;

    fn begins(&self) -> Vec<World> {
        vec![World {
            record: None,
            home: false,
            submits: Ages::default(),
            offers: Ages::default(),
            results: Reports::default(),
            hands: [Hand::Idle; 2],
            workers: [Worker::Idle; 2],
            gateway: Gateway::Begins,
            answered: false,
            effects: false,
            home_lost: false,
            home_orphaned: false,
            hasty_drop: false,
            word: None,
            overruled: false,
            ends: 0,
            starts: 0,
            faults: self.faults,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { life: self, world: *world, out: Vec::new() };
        steps.gateway();
        steps.hands();
        steps.workers();
        steps.bus();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        let still = w.hands == [Hand::Idle; 2] && w.workers == [Worker::Idle; 2] && !w.home;
        still
            && match w.record {
                Some(record) => record.ended() && w.effects,
                None => !w.answered && matches!(w.gateway, Gateway::Begins | Gateway::Over),
            }
    }

    fn laws(&self) -> Vec<Property<Checked<Life>>> {
        let mut laws = vec![
            Property::<Checked<Life>>::always(HAS_RECORD, |_, w| !w.answered || w.record.is_some()),
            Property::<Checked<Life>>::always(HAS_HOME, |_, w| {
                let over = w.record.is_some_and(|record| record.ended()) && w.effects;
                !w.answered || over || w.home || w.home_lost
            }),
            Property::<Checked<Life>>::always(STORED_HOMED, |_, w| {
                let alive = w.record.is_some_and(|record| !record.ended());
                let at_it = matches!(w.gateway, Gateway::Stored { .. });
                !alive || w.home || w.home_lost || w.home_orphaned || at_it
            }),
            Property::<Checked<Life>>::always(ONE_END, |_, w| w.ends <= 1),
            Property::<Checked<Life>>::always(ONE_HOLDER, |_, w| w.workers.iter().filter(|x| x.holds()).count() <= 1),
            Property::<Checked<Life>>::always(STARTS, |_, w| {
                w.starts <= MAX_ATTEMPTS + w.record.map_or(0, |record| record.released)
            }),
            Property::<Checked<Life>>::always(EFFECTS_FIRST, |_, w| !w.hasty_drop),
        ];
        // The lease of a late worker may end between the worker's report and the look before it.
        if !self.kinds.contains(&Fault::Expiry) {
            laws.push(Property::always(FIRST_WORD, |_, w: &World| !w.overruled));
        }
        if !self.kinds.contains(&Fault::Crash) && !self.kinds.contains(&Fault::Expiry) {
            laws.push(Property::always(NONE_LOST, |_, w: &World| w.record.is_none_or(|record| record.lost == 0)));
        }
        laws.extend(self.sights.iter().map(|state| sight(*state)));
        laws
    }
}

/// The report of a worker that leads to this event.
pub(crate) fn said(event: Event) -> Option<Report> {
    match event {
        Event::Succeed => Some(Report::Success),
        Event::Retry | Event::Fail => Some(Report::Failure),
        Event::Release => Some(Report::Release),
        _ => None,
    }
}

/// The sight of a job in this state.
fn sight(state: State) -> Property<Checked<Life>> {
    fn is(w: &World, state: State) -> bool {
        w.record.is_some_and(|record| record.state == state)
    }
    match state {
        State::Succeeded => Property::sometimes("a job succeeds on its last attempt", |_, w| {
            is(w, State::Succeeded) && w.record.is_some_and(|record| record.attempt == MAX_ATTEMPTS)
        }),
        State::Failed => Property::sometimes("a job fails", |_, w| is(w, State::Failed)),
        State::Quarantined => Property::sometimes("a job is quarantined", |_, w| is(w, State::Quarantined)),
        State::Cancelled => Property::sometimes("a job is cancelled", |_, w| is(w, State::Cancelled)),
        State::Scheduled => Property::sometimes("a job is given back", |_, w| is(w, State::Scheduled)),
        other => unreachable!("nobody looks for {other}"),
    }
}
