//! Two jobs in the same messages, and both schedulers at them: batches of submits and results, looks,
//! cancels, and two workers that may each have both.
//!
//! Knows: `scheduler/intake.rs` (a first delivery is handled as a whole, together with whatever else was
//! fetched; a later one item by item; acked only after everything in it is done, and only what failed is
//! published again), what `dispatch.rs` and `settle.rs` do with a batch, write by write, of which any
//! one item may fail for itself, and `flow::finish` of several ends at once.
//!
//! What is reduced, and why nothing is missed:
//! - The two jobs are alike, and so are the hands and the workers: of all states that differ by who is
//!   who, one is explored.
//! - What can never match again is gone at once: an item of a submit that is two versions old, an offer
//!   of another version, a report under another fence. All that comes of it is `stale` or `gone`.
//! - A look reads and applies in one step. Had the record moved in between, its compare would fail;
//!   [`super::life`] takes both steps.
//! - Offers stand for each job alone: who starts one of a shared message leaves the other's where it is.
//!   [`super::pair`] has shared messages, their ages and what follows from the oldest.
//! - A message is lost, and a lease over, when nobody has it: to be wrong about that is a fault. How
//!   silence is proven is [`super::pair`]'s, how homes are scored [`super::homes`]'s.
//! - That a handler fails is counted among the faults, so that a way on does not depend on it; a job
//!   whose attempt is lost or fails has its second one.

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

/// What can go wrong, or is at least nothing that a way on may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A scheduler dies between two writes, or a worker with all it has.
    Crash,
    /// The script of one item is applied, its answer is lost.
    LostReply,
    /// One item of a batch is not served, or the bus or the store does not answer a batch.
    Refused,
    /// A message is delivered again though its first taker lives.
    Redelivery,
    /// Every stream is empty.
    Wipe,
    /// A lease runs out though its worker lives.
    Expiry,
    /// Something on its way is taken for lost.
    Haste,
    /// A handler fails.
    Failure,
    /// Somebody cancels.
    Cancel,
}

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A delivery is acked though an item of it failed.
    AcksDespiteFailure,
    /// Of a delivery that came before, what failed is not published again.
    ForgetsWhatFailed,
    /// The homes of a whole batch leave when one of its jobs has ended.
    DropsAllHomes,
    /// Who hears `already` believes that the effects are done.
    EffectsOnce,
    /// Whoever asks for a job that runs hears `go`.
    StartForAnybody,
    /// A report is written without a look at what the record says.
    WritesBlindly,
    /// An attempt that was lost is not counted.
    LostIsFree,
    /// Nobody looks at homes.
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

/// Which jobs, of two.
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
    /// What was dispatched is to be offered.
    Offer,
    /// The effects of what has ended are to be done, then the homes removed.
    Finish,
    Drop,
    Close,
    /// What failed is published again; the old delivery is to be acked.
    Ack,
}

/// Deliveries that are handled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Batch {
    kind: Kind,
    message: Message,
    /// Both items, each with a delivery of its own.
    apart: bool,
    stage: Stage,
    todo: Jobs,
    offer: Jobs,
    ended: Jobs,
    failed: Jobs,
}

/// What a scheduler, or a gateway that cancels, has under way.
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
    /// Its start was not answered: it asks again.
    Asks,
    Runs,
    Holds(Report),
}

impl Part {
    /// Whether its worker believes to hold the record's fence.
    fn holds(self) -> bool {
        matches!(self, Part::Runs | Part::Holds(_))
    }
}

/// What is left of a job's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Left {
    All,
    /// The effects are done, the home is there.
    Home,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World {
    records: [Record; 2],
    left: [Left; 2],
    submits: Stream,
    /// An offer of the record's version stands.
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
    /// `job/apply`, and what it means to everybody who holds a version or a fence.
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

    /// Whether a batch under way has this job's submit or result.
    fn in_hand(&self, kind: Kind, job: usize) -> bool {
        self.hands.iter().any(|hand| matches!(hand, Hand::Batch(b) if b.kind == kind && b.message.of[job] != 0))
    }

    /// One of all states that differ only in what nobody can tell.
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

    /// The same with the jobs the other way round.
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

/// Collects what can happen next.
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
            // Two that are alike do the same.
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

    /// Both are accepted, in one group.
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
