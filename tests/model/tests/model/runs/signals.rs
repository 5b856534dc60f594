//! A run that waits for two signals, one after the other, and clients that send them at any time after the start was
//! answered: before the steps wait, and while the run is paused.
//!
//! Order of a gateway that starts or signals a run: save, publish, check that the save still stands, answer. Order of a
//! replica: it publishes the signals that its save used, and checks that they still stand, before it tells the end. A
//! signal is known by its key for as long as the run is kept, also when it was read. After a failover nothing is saved
//! and nothing is missed (404) until the bus was read again.
//!
//! Abstracts from: the home ([`super::keep`]): a replica may look at any moment. Both clients repeat their signals until
//! they are answered.
//!
//! Not promised, and found by exploring two signals with two faults: after two failovers within moments the bus may hold
//! a signal of a save that was lost, and then the two signals may be read in another order than was told.

#[path = "signals/steps.rs"]
mod steps;

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Kept, Seen, WHO,
};
use steps::Steps;

pub(crate) const KEPT: &str = "no answered signal is lost";
pub(crate) const READ_ONCE: &str = "no signal is read twice";
pub(crate) const FOUND: &str = "a run whose start was answered is never missed";
pub(crate) const ENDS_ONCE: &str = "a run never ends with other signals than were told";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A replica or a gateway dies between two writes.
    Crash,
    /// A client sends a signal again that was answered.
    Repeat,
    /// Every stream loses its messages.
    Wipe,
    /// A primary fails, and its replica has not got the last writes.
    Failover,
    /// A client pauses the run.
    Pause,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A save compares the counter without the nonce.
    CounterOnly,
    /// A signal is kept only if a step waits for it.
    OnlyOpenSteps,
    /// A signal to a paused run is not kept.
    PausedForgets,
    /// The key of a signal is forgotten when a step reads it.
    ForgetsKeys,
    /// Signals are not published.
    UnpublishedSignal,
    /// The start is not published.
    UnpublishedStart,
    /// A signal is answered without checking that its save still stands.
    Unchecked,
    /// A run is missed before the bus was read again.
    MissedAtOnce,
    /// A replica tells the end without publishing the signals that led to it.
    TellsFirst,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Signals {
    /// The run is not started yet.
    pub(crate) fresh: bool,
    /// The number of signals, and of the steps that wait for one: one or two.
    pub(crate) signals: u8,
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Signals {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// Up to three signals, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct List([Option<u8>; 3]);

impl List {
    fn iter(self) -> impl Iterator<Item = u8> {
        self.0.into_iter().flatten()
    }

    fn has(self, signal: u8) -> bool {
        self.iter().any(|other| other == signal)
    }

    fn push(&mut self, signal: u8) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(signal);
        }
    }

    fn pop(&mut self) -> Option<u8> {
        let first = self.0[0]?;
        self.0 = [self.0[1], self.0[2], None];
        Some(first)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Doc {
    /// The definition: how many steps wait for a signal.
    steps: u8,
    exists: bool,
    /// The first step has ended: the run waits for a signal.
    waits: bool,
    paused: bool,
    unread: List,
    /// What the two steps have read: the run ends with the second.
    read: List,
    /// The keys that the run knows.
    keys: [bool; 2],
}

impl Doc {
    const NONE: Doc = Doc {
        steps: 1,
        exists: false,
        waits: false,
        paused: false,
        unread: List([None; 3]),
        read: List([None; 3]),
        keys: [false; 2],
    };

    fn over(&self) -> bool {
        self.read.iter().count() >= self.steps.into()
    }

    fn holds(&self, signal: u8) -> bool {
        self.unread.has(signal) || self.read.has(signal)
    }

    /// The engine: a signal has come.
    fn signal(mut self, signal: u8) -> Doc {
        if !self.keys[usize::from(signal)] && !self.over() {
            self.keys[usize::from(signal)] = true;
            self.unread.push(signal);
        }
        self
    }

    /// The engine: what can be done without a new event.
    fn step(mut self, forgets: bool) -> Doc {
        if !self.exists || self.paused || self.over() {
            return self;
        }
        if !self.waits {
            self.waits = true;
        } else if let Some(signal) = self.unread.pop() {
            self.read.push(signal);
            self.keys[usize::from(signal)] &= !forgets;
        }
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Idle,
    Save,
    Publish,
    Check,
    Answer,
    /// The client has its answer.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Hand {
    at: At,
    seen: Seen,
    doc: Doc,
}

impl Hand {
    const IDLE: Hand = Hand { at: At::Idle, seen: Seen::NONE, doc: Doc::NONE };
    const OVER: Hand = Hand { at: At::Over, ..Hand::IDLE };
}

/// The places of the gateways among the hands: the start, and one per signal.
const START: usize = 2;
const SIGNALS: [usize; 2] = [3, 4];
const NAMES: [&str; 5] = [WHO[0], WHO[1], "gateway", "gateway", "gateway"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    run: Kept<Doc>,
    hands: [Hand; 5],
    /// On the bus: the start and the signals, in the order of their saves.
    start: bool,
    signals: List,
    reread: bool,
    started: bool,
    answered: [bool; 2],
    told: Option<List>,
    twice: bool,
    missed: bool,
    faults: u8,
}

impl World {
    /// A process whose next write compares something that will never match again has the same future as an idle one.
    fn canonical(mut self) -> World {
        for hand in &mut self.hands {
            let over = self.run.is_over(hand.seen);
            match hand.at {
                At::Idle => *hand = Hand::IDLE,
                At::Save if over => *hand = Hand::IDLE,
                // From here on only what was published counts.
                At::Publish | At::Check | At::Answer | At::Over => {
                    (hand.seen, hand.doc) = (Seen::NONE, Doc { read: hand.doc.read, ..Doc::NONE });
                }
                At::Save => {}
            }
        }
        self.hands[..START].sort_unstable();
        self
    }

    fn all_published(&self, list: List) -> bool {
        list.iter().all(|signal| self.signals.has(signal))
    }
}

impl Protocol for Signals {
    type State = World;

    fn begins(&self) -> Vec<World> {
        let compares = match self.flaw {
            Some(Flaw::CounterOnly) => Compares::Counter,
            _ => Compares::VersionAndLife,
        };
        let mut hands = [Hand::IDLE; 5];
        if !self.fresh {
            hands[START] = Hand::OVER;
        }
        if self.signals == 1 {
            hands[SIGNALS[1]] = Hand::OVER;
        }
        vec![World {
            run: Kept::new(Doc { steps: self.signals, exists: !self.fresh, ..Doc::NONE }, compares),
            hands,
            start: false,
            signals: List::default(),
            reread: false,
            started: !self.fresh,
            answered: [false; 2],
            told: None,
            twice: false,
            missed: false,
            faults: self.faults,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { model: self, world: *world, out: Vec::new() };
        for place in 0..2 {
            // Two equal hands have the same steps.
            if place == 0 || world.hands[0] != world.hands[1] {
                steps.replica(place);
            }
        }
        steps.start();
        (0..self.signals).for_each(|signal| steps.signal(signal));
        steps.others();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        let clients = w.hands[START..].iter().all(|hand| hand.at == At::Over);
        w.run.now.over() && w.told.is_some() && clients && w.hands[..START] == [Hand::IDLE; 2] && !w.reread
    }

    fn laws(&self) -> Vec<Property<Checked<Signals>>> {
        let law = Property::<Checked<Signals>>::always;
        vec![
            law(KEPT, |_, w| {
                (0..2).all(|signal| !w.answered[usize::from(signal)] || w.reread || w.run.now.holds(signal))
            }),
            law(READ_ONCE, |_, w| {
                let all: Vec<u8> = w.run.now.read.iter().chain(w.run.now.unread.iter()).collect();
                (0..2).all(|signal| all.iter().filter(|other| **other == signal).count() <= 1)
            }),
            law(FOUND, |_, w| !w.missed),
            law(ENDS_ONCE, |_, w| !w.twice),
            Property::<Checked<Signals>>::sometimes("a signal is kept before its step waits", |_, w| {
                !w.run.now.waits && w.run.now.holds(0)
            }),
            Property::<Checked<Signals>>::sometimes("what led to the end is on the bus before it is told", |_, w| {
                w.told.is_some_and(|told| w.all_published(told))
            }),
        ]
    }
}
