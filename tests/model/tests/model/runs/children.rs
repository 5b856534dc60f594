//! A run whose only step is a sub-run, and a client that may cancel it.
//!
//! Order: save the parent with the command to start the child, create the child if it is absent, publish its start,
//! clear. The cancel of the parent is saved, published, checked, and then reaches the child: an absent child is created
//! cancelled, and its cancel is published, so that a late start finds it and no reading brings it to life. The child's
//! end is published before the parent learns it, by news or by a look. The parent ends when its child has ended.
//!
//! Abstracts from: versions of the child and the home of either ([`super::keep`]): what is done to the child is one
//! script that finds it in a state, and a replica may look at any moment.

#[path = "children/steps.rs"]
mod steps;

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Kept, Seen, WHO,
};
use steps::Steps;

pub(crate) const ENDS_ONCE: &str = "neither parent nor child ends in two ways";
pub(crate) const ENDS_WITH_CHILD: &str = "a parent ends when its child has ended, and as it did";
pub(crate) const CANCEL_HELD: &str = "a parent whose cancel was answered does not succeed";
pub(crate) const NO_REVIVAL: &str = "no start revives a cancelled child";
pub(crate) const ONE_CHILD: &str = "a step has one sub-run";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A replica or the gateway dies between two writes.
    Crash,
    /// The parent does not get the news of its child's end.
    LostNews,
    /// A message is delivered again.
    Redelivery,
    /// Every stream loses its messages.
    Wipe,
    /// A primary fails, and its replica has not got the last writes.
    Failover,
    /// A client cancels the parent.
    Cancel,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A cancel passes over a child that does not exist.
    CancelIgnoresAbsent,
    /// A child that was created cancelled is not published as cancelled.
    UnpublishedCancel,
    /// The start of the child is not published.
    UnpublishedStart,
    /// A look takes the child's end before it was published.
    UnpublishedEnd,
    /// A look does not read the child.
    LooksAtOutboxOnly,
    /// A cancelled parent ends without its child.
    EndsBeforeChild,
    /// A repeated start takes a new id.
    NewIds,
    /// The child's start or cancel is published, and not checked after that.
    Unchecked,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Children {
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Children {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Waits,
    Stopping,
    Succeeded,
    Cancelled,
    /// The child was cancelled, and the parent does not know why.
    Failed,
}

/// The parent's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Doc {
    phase: Phase,
    /// The outbox: publish the cancel; start the child; cancel the child; tell the end.
    publish: bool,
    start: bool,
    cancel: bool,
    tell: bool,
}

impl Doc {
    const NONE: Doc = Doc { phase: Phase::Waits, publish: false, start: false, cancel: false, tell: false };

    fn over(&self) -> bool {
        !matches!(self.phase, Phase::Waits | Phase::Stopping)
    }

    /// What was to be published still is, before the end is told.
    fn end(self, phase: Phase) -> Doc {
        Doc { phase, tell: true, publish: self.publish, ..Doc::NONE }
    }

    /// The engine: the child is in this state.
    fn child(self, state: State) -> Doc {
        match (self.phase, state) {
            (Phase::Waits, State::Succeeded) => self.end(Phase::Succeeded),
            (Phase::Waits, State::Cancelled) => self.end(Phase::Failed),
            (Phase::Stopping, State::Succeeded | State::Cancelled) => self.end(Phase::Cancelled),
            _ => self,
        }
    }

    /// The engine: a client cancels.
    fn cancel(self) -> Doc {
        match self.phase {
            Phase::Waits => Doc { phase: Phase::Stopping, publish: true, cancel: true, ..Doc::NONE },
            _ => self,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum State {
    Absent,
    Runs,
    Succeeded,
    Cancelled,
}

impl State {
    fn ended(self) -> bool {
        matches!(self, State::Succeeded | State::Cancelled)
    }
}

/// The child's hash, and what the bus holds of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Child {
    now: State,
    replica: State,
    /// It ended after the time of the parent's cancel.
    late: bool,
    start: bool,
    cancel: bool,
    end: Option<State>,
    /// Its end as it was told.
    told: Option<State>,
    /// Its cancel was carried out.
    stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Idle,
    Save,
    StartChild,
    /// The child is created, its start is to be published.
    PublishStart,
    Publish,
    Check,
    CancelChild,
    PublishCancel,
    /// Whether the child is as it was commanded, now that the bus knows it.
    CheckChild,
    Tell,
    Clear,
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Hand {
    at: At,
    seen: Seen,
    doc: Doc,
    news: bool,
}

impl Hand {
    const IDLE: Hand = Hand { at: At::Idle, seen: Seen::NONE, doc: Doc::NONE, news: false };
}

/// The place of the gateway among the hands.
const GATEWAY: usize = 2;
const NAMES: [&str; 3] = [WHO[0], WHO[1], "gateway"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    run: Kept<Doc>,
    child: Child,
    /// What the child waits for has happened.
    worked: bool,
    news: bool,
    hands: [Hand; 3],
    /// The bus holds the cancel of the parent.
    published: bool,
    reread: bool,
    answered: bool,
    told: Option<Phase>,
    twice: bool,
    revived: bool,
    second: bool,
    faults: u8,
}

impl World {
    /// A process whose next write compares something that will never match again has the same future as an idle one.
    fn canonical(mut self) -> World {
        for hand in &mut self.hands {
            let over = self.run.is_over(hand.seen);
            match hand.at {
                At::Idle => *hand = Hand::IDLE,
                At::Save | At::Clear if over => *hand = Hand::IDLE,
                _ if over => {
                    hand.seen = Seen::NONE;
                    // Only these are still asked for.
                    let Doc { phase, cancel, tell, .. } = hand.doc;
                    let phase = if tell { phase } else { Phase::Waits };
                    hand.doc = Doc { phase, cancel, tell, ..Doc::NONE };
                }
                _ => {}
            }
        }
        self.hands[..GATEWAY].sort_unstable();
        self
    }

    /// What the parent knows of its child. Ends after its cancel count only if `late`.
    fn settled(&self, late: bool) -> Doc {
        if self.child.late && !late { self.run.now } else { self.run.now.child(self.child.now) }
    }
}

impl Protocol for Children {
    type State = World;

    fn begins(&self) -> Vec<World> {
        let doc = Doc { start: true, ..Doc::NONE };
        let child = Child {
            now: State::Absent,
            replica: State::Absent,
            late: false,
            start: false,
            cancel: false,
            end: None,
            told: None,
            stopped: false,
        };
        vec![World {
            run: Kept::new(doc, Compares::VersionAndLife),
            child,
            worked: false,
            news: false,
            hands: [Hand::IDLE; 3],
            published: false,
            reread: false,
            answered: false,
            told: None,
            twice: false,
            revived: false,
            second: false,
            faults: self.faults,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { model: self, world: *world, out: Vec::new() };
        for place in 0..=GATEWAY {
            // Two equal hands have the same steps.
            if place != 1 || world.hands[0] != world.hands[1] {
                steps.hand(place);
            }
        }
        steps.others();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        let still = w.hands == [Hand::IDLE; 3] && !w.news && !w.reread;
        still && w.run.now.over() && w.told.is_some() && w.child.told.is_some()
    }

    fn laws(&self) -> Vec<Property<Checked<Children>>> {
        let law = Property::<Checked<Children>>::always;
        vec![
            law(ENDS_ONCE, |_, w| !w.twice),
            law(ENDS_WITH_CHILD, |_, w| match w.told {
                None => true,
                Some(_) if w.reread => true,
                Some(Phase::Succeeded) => w.child.now == State::Succeeded,
                Some(Phase::Cancelled) => w.child.now.ended(),
                Some(_) => false,
            }),
            law(CANCEL_HELD, |_, w| !w.answered || w.told != Some(Phase::Succeeded)),
            law(NO_REVIVAL, |_, w| !w.revived),
            law(ONE_CHILD, |_, w| !w.second),
            Property::<Checked<Children>>::sometimes("a child is created cancelled", |_, w| {
                w.child.now == State::Cancelled && !w.child.start && !w.child.cancel
            }),
        ]
    }
}
