//! Two jobs in one backlog: held, pending in the backlog, or offered without a change of the record; released in
//! rounds of one or both; and taken back by a pause.
//!
//! Knows: `scheduler/backlog.rs` (claim, dispatch or read, publish, forward, remove, for all entries of a round
//! together; a failure of one entry leaves that entry, and only that one), the holding part of `dispatch.rs`,
//! `recall.rs`, and the looks that heal. A home is near or far as in [`super::backlog`], and a state that only a far
//! look could heal counts as lost.
//!
//! Reductions, and why they miss nothing:
//! - The two jobs are alike, and so are the hands: one of all states that differ only by which is which is explored.
//! - There are no claims: a claim may lapse at any moment, so any scheduler may take any entry at any moment. The
//!   script takes the oldest first, but no law here depends on that.
//! - The window has room for one or for both, at will: it saves work and promises nothing.
//! - Offers and entries that can never match again are dropped at once, except for entries of a dispatched job, which
//!   is found by them. [`super::backlog`] keeps all of them, and has entries that a failover loses.
//! - A submit is on the stream while its job is pending and near, because its look publishes it; otherwise only if a
//!   recall has published it. What follows a start is one step. [`super::batches`] has the rest.
//!
//! Explored every time: any one fault, and two of three kinds. Any two of all kinds hold as well, but that is
//! 2,049,532 states, too many for every run.

#[path = "rounds/steps.rs"]
mod steps;

use muster_domain::{Event, Outcome, State};
use stateright::Property;

use super::{
    explore::{Checked, Protocol, Step},
    record::{Age, Ages, Asker, Record, Seen},
};
use steps::Steps;

pub(crate) const QUEUED_FOUND: &str = "either queued job has its entry, or is looked at soon";
pub(crate) const OFFER_FOUND: &str = "either job's offer that was not made is found by an entry or a look";
pub(crate) const PENDING_FOUND: &str = "either pending job has its submit, or is looked at soon";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A scheduler dies between two writes.
    Crash,
    /// The script of one item is applied, but its answer is lost.
    LostReply,
    /// One item fails, or the bus or the store does not answer a round.
    Refused,
    /// Every offer is lost.
    Wipe,
    /// A handler fails, and its job is pending again.
    Failure,
    /// A client cancels the job.
    Cancel,
    /// The topic is paused when a worker asks: the offers are taken back.
    Pause,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A round removes every entry that it claimed, also those whose result it does not know.
    RemovesUnknown,
    /// A round removes entries whose offers the bus did not accept.
    RemovesUnsent,
    /// A look at a pending job in the backlog puts the next look as far ahead as that of a queued job.
    LinedFar,
    /// No scheduler puts entries back or offers jobs again.
    NobodyLooks,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Rounds {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// A set of the two jobs.
type Jobs = [bool; 2];
/// The sets of jobs that may be handled together.
const GROUPS: [Jobs; 3] = [[true, true], [true, false], [false, true]];

/// A claimed entry that is being handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Item {
    /// No entry of this job, or one that is left in place.
    None,
    Claimed(Age),
    /// To be offered under this version. `forward`: its home is later than the next look at an offer.
    Offer {
        entry: Age,
        offer: Age,
        forward: bool,
    },
    /// To be removed.
    Over(Age),
}

impl Item {
    fn older(&mut self) {
        match self {
            Item::None => {}
            Item::Claimed(age) | Item::Over(age) => *age = age.older(),
            Item::Offer { entry, offer, .. } => (*entry, *offer) = (entry.older(), offer.older()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// `read`: jobs that have not changed since they were accepted are to be offered that way; false if that is done.
    Dispatch {
        read: bool,
    },
    Publish,
    Forward,
    Remove,
}

/// What a scheduler is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hand {
    Idle,
    Round {
        stage: Stage,
        items: [Item; 2],
    },
    /// Held jobs, or pending jobs for the backlog: these entries are to be added.
    Enqueue([Option<Age>; 2]),
    /// The scheduler has looked at a queued job: it puts the entry back. `read`: the home's score is still the one
    /// that was read.
    PutBack {
        job: usize,
        entry: Age,
        read: bool,
    },
    Rescore {
        job: usize,
        read: bool,
    },
    OfferAgain {
        job: usize,
        offer: Age,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World {
    records: [Record; 2],
    entries: [Ages; 2],
    /// There is an offer of the record's version.
    offers: Jobs,
    /// The job was taken back, and its submit is on the stream.
    submits: Jobs,
    near: Jobs,
    hands: [Hand; 2],
    faults: u8,
}

impl World {
    fn apply(&mut self, job: usize, event: Event, seen: Seen) -> Outcome {
        let outcome = self.records[job].apply(event, seen);
        if outcome == Outcome::Applied {
            self.entries[job] = self.entries[job].older();
            (self.offers[job], self.submits[job]) = (false, false);
            for hand in &mut self.hands {
                match hand {
                    Hand::Round { items, .. } => items[job].older(),
                    Hand::Enqueue(entries) => entries[job] = entries[job].map(Age::older),
                    Hand::PutBack { job: of, entry: age, .. } | Hand::OfferAgain { job: of, offer: age }
                        if *of == job =>
                    {
                        *age = age.older();
                    }
                    _ => {}
                }
            }
        }
        outcome
    }

    fn forward(&mut self, job: usize) {
        self.near[job] = true;
        for hand in &mut self.hands {
            if let Hand::PutBack { job: of, read, .. } | Hand::Rescore { job: of, read } = hand {
                *read &= *of != job;
            }
        }
    }

    fn canonical(mut self) -> World {
        for job in 0..2 {
            let record = &mut self.records[job];
            (record.start_id, record.ended_by) = (Asker::Nobody, None);
            if record.state != State::Dispatched {
                self.entries[job] = self.entries[job].without(Age::Old);
            }
            // Whatever happens next sets the home of a running job to the right time.
            self.near[job] |= record.running() || record.ended();
            if record.ended() {
                self.entries[job] = Ages::default();
            }
        }
        let swapped = self.swapped().sorted();
        self.sorted().min(swapped)
    }

    fn sorted(mut self) -> World {
        self.hands.sort_unstable();
        self
    }

    /// The same state with the two jobs swapped.
    fn swapped(mut self) -> World {
        self.records.swap(0, 1);
        self.entries.swap(0, 1);
        self.offers.swap(0, 1);
        self.submits.swap(0, 1);
        self.near.swap(0, 1);
        for hand in &mut self.hands {
            match hand {
                Hand::Idle => {}
                Hand::Round { items, .. } => items.swap(0, 1),
                Hand::Enqueue(entries) => entries.swap(0, 1),
                Hand::PutBack { job, .. } | Hand::Rescore { job, .. } | Hand::OfferAgain { job, .. } => *job = 1 - *job,
            }
        }
        self
    }
}

impl Protocol for Rounds {
    type State = World;

    fn begins(&self) -> Vec<World> {
        vec![World {
            records: [Record::created(); 2],
            entries: [Ages::default(); 2],
            offers: [false; 2],
            submits: [false; 2],
            near: [true; 2],
            hands: [Hand::Idle; 2],
            faults: self.faults,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { rounds: self, world: *world, out: Vec::new() };
        steps.hands();
        steps.others();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        w.records.iter().all(Record::ended) && w.hands == [Hand::Idle; 2]
    }

    fn laws(&self) -> Vec<Property<Checked<Rounds>>> {
        type Law = Property<Checked<Rounds>>;
        fn still(w: &World, state: State) -> impl Iterator<Item = usize> {
            let idle = w.hands == [Hand::Idle; 2];
            (0..2).filter(move |job| idle && w.records[*job].state == state).collect::<Vec<_>>().into_iter()
        }
        vec![
            Law::always(QUEUED_FOUND, |_, w| {
                still(w, State::Queued).all(|job| w.near[job] || w.entries[job].has(Age::Now))
            }),
            Law::always(OFFER_FOUND, |_, w| {
                still(w, State::Dispatched).all(|job| w.near[job] || w.offers[job] || !w.entries[job].is_empty())
            }),
            Law::always(PENDING_FOUND, |_, w| still(w, State::Pending).all(|job| w.near[job] || w.submits[job])),
            Law::sometimes("one round offers one as it is and dispatches the other", |_, w| {
                w.hands.iter().any(|hand| match hand {
                    Hand::Round { stage: Stage::Publish, items } => {
                        items.iter().all(|item| matches!(item, Item::Offer { offer: Age::Now, .. }))
                            && w.records.iter().any(|record| record.state == State::Pending)
                            && w.records.iter().any(|record| record.state == State::Dispatched)
                    }
                    _ => false,
                })
            }),
            Law::sometimes("both succeed", |_, w| w.records.iter().all(|record| record.state == State::Succeeded)),
        ]
    }
}
