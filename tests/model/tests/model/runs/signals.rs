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

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Kept, Seen, WHO,
};

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

struct Steps<'a> {
    model: &'a Signals,
    world: World,
    out: Vec<Step<World>>,
}

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        self.out.push(Step::new(who, what, to.canonical()));
    }

    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.model.kinds.contains(&kind) {
            to.faults -= 1;
            self.out.push(Step::fault(who, what, to.canonical()));
        }
    }

    fn put(&self, place: usize, hand: Hand) -> World {
        let mut to = self.world;
        to.hands[place] = hand;
        to
    }

    /// `run/save`, where the replica of the primary lags or not.
    fn save(&mut self, place: usize, hand: Hand, next: At) {
        let w = self.world;
        if !w.run.matches(hand.seen) || w.reread {
            return self.push(NAMES[place], "save: somebody was faster", self.put(place, Hand::IDLE));
        }
        let may_fail = w.faults > 0 && self.model.kinds.contains(&Fault::Failover);
        for lags in [false, true] {
            if lags && (w.run.same || !may_fail) {
                continue;
            }
            let mut to = w;
            let others = to.hands.iter_mut().enumerate().filter(|(other, _)| *other != place);
            let seen = to.run.save(hand.doc, lags, others.map(|(_, hand)| &mut hand.seen));
            to.hands[place] = Hand { at: next, seen, ..hand };
            self.push(NAMES[place], "save", to);
        }
    }

    fn replica(&mut self, place: usize) {
        let (w, who, hand) = (self.world, WHO[place], self.world.hands[place]);
        if matches!(hand.at, At::Publish | At::Check | At::Answer) {
            self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::IDLE));
        }
        match hand.at {
            At::Idle if !w.reread => {
                let doc = w.run.now.step(self.model.has(Flaw::ForgetsKeys));
                let hand = Hand { at: At::Save, seen: w.run.read(), doc };
                if doc != w.run.now {
                    self.push(who, "look: a step goes on", self.put(place, hand));
                } else if doc.over() {
                    self.push(who, "look: carries out", self.put(place, Hand { at: At::Publish, ..hand }));
                }
            }
            At::Save => self.save(place, hand, At::Idle),
            At::Publish => {
                let mut to = self.put(place, Hand { at: At::Check, ..hand });
                if !self.model.has(Flaw::TellsFirst) {
                    self.publish(&mut to, hand.doc.read);
                }
                self.push(who, "publish_op", to);
            }
            At::Check if w.reread || w.run.now.read != hand.doc.read => {
                self.push(who, "holds_op: it was lost", self.put(place, Hand::IDLE));
            }
            At::Check => self.push(who, "holds_op", self.put(place, Hand { at: At::Answer, ..hand })),
            At::Answer => {
                let mut to = self.put(place, Hand::IDLE);
                to.twice |= w.told.is_some_and(|told| told != hand.doc.read);
                to.told = Some(hand.doc.read);
                self.push(who, "tell_end", to);
            }
            At::Idle | At::Over => {}
        }
    }

    /// Signals are read again in the order of their times, which is the order of their saves.
    fn publish(&self, to: &mut World, signals: List) {
        if self.model.has(Flaw::UnpublishedSignal) {
            return;
        }
        for signal in signals.iter().filter(|signal| !self.world.signals.has(*signal)) {
            to.signals.push(signal);
        }
        let now = to.run.now;
        let place = |signal: &u8| now.read.iter().chain(now.unread.iter()).position(|other| other == *signal);
        let mut order: Vec<u8> = to.signals.iter().collect();
        order.sort_by_key(place);
        to.signals = List::default();
        order.into_iter().for_each(|signal| to.signals.push(signal));
    }

    fn start(&mut self) {
        let (w, hand, who) = (self.world, self.world.hands[START], "gateway");
        if !matches!(hand.at, At::Idle | At::Over | At::Save) {
            self.fault(Fault::Crash, who, "crashes", self.put(START, Hand::IDLE));
        }
        let at = |at| Hand { at, ..hand };
        match hand.at {
            At::Idle if w.reread => {}
            At::Idle if w.run.now.exists => self.push(who, "start_run: exists", self.put(START, at(At::Publish))),
            At::Idle => {
                let doc = Doc { exists: true, ..w.run.now };
                self.push(who, "start_run", self.put(START, Hand { at: At::Save, seen: w.run.read(), doc }));
            }
            At::Save => self.save(START, hand, At::Publish),
            At::Publish => {
                let mut to = self.put(START, at(At::Check));
                to.start |= !self.model.has(Flaw::UnpublishedStart);
                self.push(who, "publish_op", to);
            }
            At::Check if w.reread || !w.run.now.exists => {
                self.push(who, "holds_op: it was lost", self.put(START, Hand::IDLE));
            }
            At::Check => self.push(who, "holds_op", self.put(START, at(At::Answer))),
            At::Answer => {
                let mut to = self.put(START, Hand::OVER);
                to.started = true;
                self.push(who, "answers", to);
            }
            At::Over => {}
        }
    }

    fn signal(&mut self, signal: u8) {
        let place = SIGNALS[usize::from(signal)];
        let (w, hand, who) = (self.world, self.world.hands[place], "gateway");
        if !matches!(hand.at, At::Idle | At::Over | At::Save) {
            self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::IDLE));
        }
        let at = |at| Hand { at, ..hand };
        match hand.at {
            At::Idle => {
                let now = w.run.now;
                let gated = w.reread && !self.model.has(Flaw::MissedAtOnce);
                if !now.exists {
                    let mut to = w;
                    to.missed |= w.started && !gated;
                    return self.push(who, "signal_run: not found", to);
                }
                if w.reread {
                    return;
                }
                let forgets = self.model.has(Flaw::OnlyOpenSteps) && !now.waits
                    || self.model.has(Flaw::PausedForgets) && now.paused;
                let doc = if forgets { now } else { now.signal(signal) };
                let next = if doc == now { At::Publish } else { At::Save };
                // A run that has ended refuses new signals. One that it knows may not be on the bus yet.
                let refused = now.over() && !now.holds(signal);
                let next = if forgets || refused { At::Answer } else { next };
                self.push(who, "signal_run", self.put(place, Hand { at: next, seen: w.run.read(), doc }));
            }
            At::Save => self.save(place, hand, At::Publish),
            At::Publish => {
                let mut to = self.put(place, at(At::Check));
                let mut list = List::default();
                list.push(signal);
                self.publish(&mut to, list);
                self.push(who, "publish_op", to);
            }
            At::Check if !self.model.has(Flaw::Unchecked) && (w.reread || !w.run.now.holds(signal)) => {
                self.push(who, "holds_op: it was lost", self.put(place, Hand::IDLE));
            }
            At::Check => self.push(who, "holds_op", self.put(place, at(At::Answer))),
            At::Answer => {
                let mut to = self.put(place, Hand::OVER);
                to.answered[usize::from(signal)] |= !w.run.now.over() || w.run.now.holds(signal);
                self.push(who, "answers", to);
            }
            At::Over => {
                self.fault(Fault::Repeat, who, "hears the client again", self.put(place, Hand::IDLE));
            }
        }
    }

    fn others(&mut self) {
        let w = self.world;
        if w.reread {
            let mut to = w;
            to.reread = false;
            to.run.now.exists |= w.start;
            for signal in w.signals.iter() {
                to.run.now = to.run.now.signal(signal);
            }
            if to.run.now != w.run.now {
                // The pass saves too: what was read before does not match any more.
                let doc = to.run.now;
                to.run.now = w.run.now;
                let World { run, hands, .. } = &mut to;
                run.save(doc, true, hands.iter_mut().map(|hand| &mut hand.seen));
            }
            return self.push("scheduler", "reread: submits, cancels, results, operations", to);
        }
        let now = w.run.now;
        if now.exists && !now.over() {
            let mut to = w;
            let World { run, hands, .. } = &mut to;
            run.save(Doc { paused: !now.paused, ..now }, false, hands.iter_mut().map(|hand| &mut hand.seen));
            match now.paused {
                true => self.push("gateway", "resume_run", to),
                false => self.fault(Fault::Pause, "gateway", "pause_run", to),
            }
        }
        if w.start || w.signals != List::default() {
            let mut to = w;
            (to.start, to.signals) = (false, List::default());
            let World { run, hands, .. } = &mut to;
            run.caught_up(hands.iter_mut().map(|hand| &mut hand.seen));
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
        let mut to = w;
        let World { run, hands, .. } = &mut to;
        run.fail_over(hands.iter_mut().map(|hand| &mut hand.seen));
        to.reread = true;
        self.fault(Fault::Failover, "Redis", "fails over", to);
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
