//! Two jobs in the same messages, handled by both schedulers: batches of submits and results, looks, cancels, and two
//! workers that may each hold both jobs.
//!
//! Knows: `scheduler/intake.rs` (a first delivery is handled as a whole, together with everything else that was
//! fetched; a later delivery item by item; a delivery is acked only after everything in it is done, and only items
//! that failed are published again), what `dispatch.rs` and `settle.rs` do with a batch, write by write, where each
//! item may fail separately, and `flow::finish` of several ends at once.
//!
//! Reductions, and why they miss nothing:
//! - The two jobs are alike, and so are the hands and the workers. Of all states that differ only by which is which,
//!   one is explored.
//! - Items that can never match again are dropped at once: an item of a submit that is two versions old, an offer of
//!   another version, a report under another fence. They only ever yield `stale` or `gone`.
//! - A look reads and applies in one step. If the record changed in between, its comparison would fail;
//!   [`super::life`] takes both steps.
//! - Each job has offers of its own: a worker that starts one job of a shared message leaves the other's offer in
//!   place. [`super::pair`] has shared messages, their ages and what follows from the oldest.
//! - A message is lost when no process has it, and a lease is over when no worker holds it: a wrong belief about that
//!   is a fault. [`super::pair`] covers how silence is proven, and [`super::homes`] how homes are scored.
//! - A handler that fails counts as a fault, so that no path to the end depends on it. A job whose attempt is lost or
//!   fails gets its second attempt.

#[path = "batches/intake.rs"]
mod intake;
#[path = "batches/others.rs"]
mod others;
#[path = "batches/stream.rs"]
mod stream;

use muster_domain::{Event, Outcome, State};
use stateright::Property;

use super::{
    explore::{Checked, Protocol, Step},
    life::said,
    record::{Asker, MAX_ATTEMPTS, Record, Report, Seen},
};
use stream::{Message, Stream};

pub(crate) const ONE_END: &str = "each of two jobs has its end written once";
pub(crate) const ONE_HOLDER: &str = "no two workers hold the same fence, of two jobs";
pub(crate) const STARTS: &str = "no more starts than attempts, of either job";
pub(crate) const FIRST_WORD: &str = "what a worker said first of each job, and the stream took, is what counts";
pub(crate) const HAS_HOME: &str = "a job that lives has its home, whatever became of its neighbour";
pub(crate) const EFFECTS_FIRST: &str = "either home leaves after the effects of its job's end";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A scheduler dies between two writes, or a worker dies with everything that it holds.
    Crash,
    /// The script of one item is applied, but its answer is lost.
    LostReply,
    /// One item of a batch fails, or the bus or the store does not answer a batch.
    Refused,
    /// A message is delivered again although its first receiver is alive.
    Redelivery,
    /// Every stream loses its messages.
    Wipe,
    /// A lease expires although its worker is alive.
    Expiry,
    /// A message that is still on its way is taken for lost.
    Haste,
    /// A handler fails.
    Failure,
    /// A client cancels the job.
    Cancel,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A delivery is acked although an item of it failed.
    AcksDespiteFailure,
    /// The failed items of a repeated delivery are not published again.
    ForgetsWhatFailed,
    /// The homes of a whole batch are removed when one of its jobs has ended.
    DropsAllHomes,
    /// A scheduler that gets `already` believes that the effects are done.
    EffectsOnce,
    /// Every worker that asks for a running job gets `go`.
    StartForAnybody,
    /// A report is written without checking the record.
    WritesBlindly,
    /// A lost attempt is not counted.
    LostIsFree,
    /// No scheduler looks at homes.
    NobodyLooks,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Batches {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// A set of the two jobs.
type Jobs = [bool; 2];
const NONE: Jobs = [false; 2];

fn any(jobs: Jobs) -> bool {
    jobs[0] || jobs[1]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Submit,
    Result,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Apply,
    /// The dispatched jobs are to be offered.
    Offer,
    /// The effects of the ended jobs are to be done, then their homes removed.
    Finish,
    Drop,
    Close,
    /// The failed items were published again; the old delivery is to be acked.
    Ack,
}

/// Deliveries that are handled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Batch {
    kind: Kind,
    message: Message,
    /// The two items came in separate deliveries.
    apart: bool,
    stage: Stage,
    todo: Jobs,
    offer: Jobs,
    ended: Jobs,
    failed: Jobs,
}

/// What a scheduler, or a gateway that cancels, is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hand {
    Idle,
    Batch(Batch),
    /// Publishes the submit of this version.
    Announce {
        job: usize,
        now: bool,
    },
    /// Publishes the offer of this version.
    OfferAgain {
        job: usize,
        now: bool,
    },
    Finish {
        job: usize,
        effects: bool,
    },
}

/// What a worker has of a job, always under the record's fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Part {
    None,
    /// The start was not answered: the worker asks again.
    Asks,
    Runs,
    Holds(Report),
}

impl Part {
    /// Whether the worker believes that it holds the record's fence.
    fn holds(self) -> bool {
        matches!(self, Part::Runs | Part::Holds(_))
    }
}

/// What is still to be done for a job's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Left {
    All,
    /// The effects are done, the home still exists.
    Home,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World {
    records: [Record; 2],
    left: [Left; 2],
    submits: Stream,
    /// There is an offer of the record's version.
    offers: Jobs,
    results: Stream,
    hands: [Hand; 2],
    workers: [[Part; 2]; 2],
    word: [Option<Report>; 2],
    overruled: bool,
    hasty_drop: bool,
    ends: [u8; 2],
    starts: [u8; 2],
    faults: u8,
}

impl World {
    /// `job/apply`, and its effect on all holders of a version or a fence.
    fn apply(&mut self, job: usize, event: Event, seen: Seen) -> Outcome {
        let record = &mut self.records[job];
        let ran = record.running();
        let outcome = record.apply(event, seen);
        if outcome == Outcome::Applied {
            let ended = record.ended();
            self.moved(job, event, ran, ended);
        }
        outcome
    }

    fn moved(&mut self, job: usize, event: Event, ran: bool, ended: bool) {
        if ran && event != Event::Cancel {
            self.overruled |= self.word[job].is_some_and(|word| said(event) != Some(word));
        }
        self.word[job] = None;
        self.ends[job] += u8::from(ended);
        self.submits = self.submits.older(job);
        self.offers[job] = false;
        let started = event == Event::Start;
        for hand in &mut self.hands {
            match hand {
                Hand::Batch(batch) if batch.kind == Kind::Submit => {
                    batch.message = batch.message.older(job);
                    batch.offer[job] = false;
                }
                Hand::Batch(batch) if started => batch.message.of[job] = 0,
                Hand::Announce { job: of, now } | Hand::OfferAgain { job: of, now } => *now &= *of != job,
                _ => {}
            }
        }
        if started {
            self.starts[job] += 1;
            self.results = self.results.without_job(job);
            self.workers.iter_mut().for_each(|parts| parts[job] = Part::None);
        }
    }

    fn finish(&mut self, jobs: Jobs, effects: bool) {
        for job in (0..2).filter(|job| jobs[*job]) {
            if effects {
                self.left[job] = self.left[job].max(Left::Home);
            } else {
                self.hasty_drop |= self.left[job] == Left::All;
                self.left[job] = Left::Nothing;
            }
        }
    }

    fn stream(&mut self, kind: Kind) -> &mut Stream {
        match kind {
            Kind::Submit => &mut self.submits,
            Kind::Result => &mut self.results,
        }
    }

    /// Whether a running batch has this job's submit or result.
    fn in_hand(&self, kind: Kind, job: usize) -> bool {
        self.hands.iter().any(|hand| matches!(hand, Hand::Batch(b) if b.kind == kind && b.message.of[job] != 0))
    }

    /// One representative of all states that no process can tell apart.
    fn canonical(mut self) -> World {
        for job in 0..2 {
            let asked = self.workers.iter().any(|parts| parts[job] == Part::Asks);
            let known = asked || self.submits.carries(job) || self.in_hand(Kind::Submit, job);
            let holds = self.workers.iter().any(|parts| parts[job].holds());
            let heard = holds || asked || self.results.carries(job) || self.in_hand(Kind::Result, job);
            let record = &mut self.records[job];
            record.last = record.last.filter(|_| known);
            record.ended_by = record.ended_by.filter(|_| heard);
            if !asked {
                record.start_id = Asker::Nobody;
            }
        }
        let swapped = self.swapped().sorted();
        self.sorted().min(swapped)
    }

    fn sorted(mut self) -> World {
        self.hands.sort_unstable();
        if self.workers[1] < self.workers[0] {
            self.workers.swap(0, 1);
            for record in &mut self.records {
                if let Asker::Open(place) = &mut record.start_id {
                    *place = 1 - *place;
                }
            }
        }
        self
    }

    /// The same state with the two jobs swapped.
    fn swapped(mut self) -> World {
        self.records.swap(0, 1);
        self.left.swap(0, 1);
        self.submits = self.submits.swapped();
        self.offers.swap(0, 1);
        self.results = self.results.swapped();
        self.word.swap(0, 1);
        self.ends.swap(0, 1);
        self.starts.swap(0, 1);
        self.workers.iter_mut().for_each(|parts| parts.swap(0, 1));
        for hand in &mut self.hands {
            match hand {
                Hand::Idle => {}
                Hand::Batch(Batch { message, todo, offer, ended, failed, .. }) => {
                    message.of.swap(0, 1);
                    [todo, offer, ended, failed].into_iter().for_each(|jobs| jobs.swap(0, 1));
                }
                Hand::Announce { job, .. } | Hand::OfferAgain { job, .. } | Hand::Finish { job, .. } => *job = 1 - *job,
            }
        }
        self
    }
}

/// Collects the possible next steps.
struct Steps<'a> {
    batches: &'a Batches,
    world: World,
    out: Vec<Step<World>>,
}

const WHO: [&str; 2] = ["S1", "S2"];

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        self.out.push(Step::new(who, what, to.canonical()));
    }

    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.batches.kinds.contains(&kind) {
            to.faults -= 1;
            self.out.push(Step::fault(who, what, to.canonical()));
        }
    }

    fn unless(&mut self, needs: bool, kind: Fault, who: &'static str, what: &'static str, to: World) {
        if needs { self.fault(kind, who, what, to) } else { self.push(who, what, to) }
    }

    fn put(&self, place: usize, hand: Hand) -> World {
        let mut to = self.world;
        to.hands[place] = hand;
        to
    }

    fn hands(&mut self) {
        for place in 0..2 {
            // Two equal hands have the same steps.
            if place == 1 && self.world.hands[0] == self.world.hands[1] {
                continue;
            }
            match self.world.hands[place] {
                Hand::Idle => {
                    self.takes(place);
                    self.looks(place);
                }
                Hand::Batch(batch) => self.batch(place, batch),
                other => self.goes_on(place, other),
            }
        }
    }
}

impl Protocol for Batches {
    type State = World;

    /// Both jobs were accepted, in one group.
    fn begins(&self) -> Vec<World> {
        let world = World {
            records: [Record::created(); 2],
            left: [Left::All; 2],
            submits: Stream::default().with(Message { of: [stream::NOW; 2], again: false }),
            offers: NONE,
            results: Stream::default(),
            hands: [Hand::Idle; 2],
            workers: [[Part::None; 2]; 2],
            word: [None; 2],
            overruled: false,
            hasty_drop: false,
            ends: [0; 2],
            starts: [0; 2],
            faults: self.faults,
        };
        vec![world.canonical()]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { batches: self, world: *world, out: Vec::new() };
        steps.hands();
        steps.workers();
        steps.bus();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        let over = w.records.iter().all(Record::ended) && w.left == [Left::Nothing; 2];
        over && w.hands == [Hand::Idle; 2] && w.workers == [[Part::None; 2]; 2]
    }

    fn laws(&self) -> Vec<Property<Checked<Batches>>> {
        type Law = Property<Checked<Batches>>;
        vec![
            Law::always(ONE_END, |_, w| w.ends.iter().all(|ends| *ends <= 1)),
            Law::always(ONE_HOLDER, |_, w| (0..2).all(|job| !w.workers.iter().all(|parts| parts[job].holds()))),
            Law::always(STARTS, |_, w| w.starts.iter().all(|starts| *starts <= MAX_ATTEMPTS)),
            Law::always(HAS_HOME, |_, w| (0..2).all(|job| w.records[job].ended() || w.left[job] == Left::All)),
            Law::always(EFFECTS_FIRST, |_, w| !w.hasty_drop),
            Law::always(FIRST_WORD, |_, w| !w.overruled),
            Law::sometimes("both succeed", |_, w| w.records.iter().all(|record| record.state == State::Succeeded)),
            Law::sometimes("one of a batch has ended while the other of it tries again", |_, w| {
                w.records[0].ended() && w.records[1].attempt == MAX_ATTEMPTS
                    || w.records[1].ended() && w.records[0].attempt == MAX_ATTEMPTS
            }),
        ]
    }
}
