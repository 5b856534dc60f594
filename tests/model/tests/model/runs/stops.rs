//! Steps of which one ends the others: by its failure, by its success, or by a time-out; and what is compensated then.
//!
//! Two definitions. [`Rule::All`]: steps 0 and 1 run at the same time and declare a compensation, step 2 needs both and
//! declares none, and the run has a time-out. [`Rule::First`]: a for-each of two items with `min_success: 1` and
//! `tolerate: 0`: the first end decides, and the other item is cancelled.
//!
//! Nothing here is on the bus: whatever a failover takes from the run, the records of its jobs give it back. This works
//! only if the run decides the same way again. So before anything is decided the records of all jobs are read, and
//! their ends are applied in the order of their times, a time-out among them. "Order of completion" is that order too.
//!
//! Abstracts from: the home, acks and outbox ([`super::keep`]): what is to be carried out follows from the document, and
//! a replica may look at any moment. The times of all ends are comparable: clocks of different primaries agree.

#[path = "stops/steps.rs"]
mod steps;

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Job, Kept, Seen,
};
use steps::Steps;

pub(crate) const ENDS_ONCE: &str = "a run that stops never ends in two ways";
pub(crate) const ONLY_SUCCEEDED: &str = "only what succeeded is compensated, and never in a run that succeeds";
pub(crate) const ALL_SUCCEEDED: &str = "all that succeeded is compensated before the run ends otherwise";
pub(crate) const REVERSE: &str = "compensations run one after another, the last completed step first";
pub(crate) const JOIN: &str = "a step starts when those that it needs have succeeded, and none lives when the run ends";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The news of an end never come.
    LostNews,
    /// A primary fails, and its replica has not got the last writes.
    Failover,
    /// A job fails.
    Failure,
    /// The run's time is over.
    TimeOut,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// An end is applied as it arrives, without those that came before it.
    OrderOfArrival,
    /// A time-out is applied without reading the records of the jobs.
    TimesOutUnread,
    /// Compensations begin while a step that declares one runs.
    DoesNotAwait,
    /// What failed is compensated too.
    UndoesFailed,
    /// Compensations begin all at once.
    UndoesAtOnce,
    /// A step starts when one of those that it needs has ended.
    JoinsEarly,
}

/// The definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    All,
    First,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stops {
    pub(crate) rule: Rule,
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Stops {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// The event that is not the end of the job with that number.
const TIMER: u8 = 3;

/// Numbers in order, each at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct List([Option<u8>; 4]);

impl List {
    fn iter(self) -> impl DoubleEndedIterator<Item = u8> {
        self.0.into_iter().flatten()
    }

    fn has(self, number: u8) -> bool {
        self.0.contains(&Some(number))
    }

    fn push(&mut self, number: u8) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(number);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum End {
    Succeeded,
    Failed,
    TimedOut,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Doc {
    /// What was applied, in that order.
    applied: List,
    /// What is to be compensated, in the order of completion.
    done: List,
    /// How many compensations have ended.
    undone: u8,
    /// How the run will end, once that is decided.
    end: Option<End>,
    over: bool,
}

/// A command that follows from a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Command {
    Submit(u8),
    Cancel(u8),
    Undo(u8),
    Tell(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hand {
    Idle,
    Save {
        seen: Seen,
        doc: Doc,
    },
    /// The command was read, and may be carried out at any later time.
    Carry(Command),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    run: Kept<Doc>,
    jobs: [Job; 3],
    undos: [Job; 2],
    /// What has happened, in the order of time.
    times: List,
    news: [bool; 3],
    hands: [Hand; 2],
    told: Option<End>,
    twice: bool,
    faults: u8,
}

impl World {
    /// A process whose next write compares something that will never match again has the same future as an idle one.
    fn canonical(mut self) -> World {
        for hand in &mut self.hands {
            if let Hand::Save { seen, .. } = hand
                && self.run.is_over(*seen)
            {
                *hand = Hand::Idle;
            }
        }
        self.hands.sort_unstable();
        self
    }
}

impl Hand {
    fn seen(&mut self) -> Option<&mut Seen> {
        match self {
            Hand::Save { seen, .. } => Some(seen),
            _ => None,
        }
    }
}

impl Protocol for Stops {
    type State = World;

    fn begins(&self) -> Vec<World> {
        vec![World {
            run: Kept::new(Doc::default(), Compares::VersionAndLife),
            jobs: [Job::Lives, Job::Lives, Job::Absent],
            undos: [Job::Absent; 2],
            times: List::default(),
            news: [false; 3],
            hands: [Hand::Idle; 2],
            told: None,
            twice: false,
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
        steps.others();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        w.run.now.over && w.told.is_some() && w.hands == [Hand::Idle; 2]
    }

    fn laws(&self) -> Vec<Property<Checked<Stops>>> {
        let law = Property::<Checked<Stops>>::always;
        vec![
            law(ENDS_ONCE, |_, w| !w.twice),
            law(ONLY_SUCCEEDED, |_, w| {
                let fine = |step| w.undos[step] == Job::Absent || w.jobs[step] == Job::Succeeded;
                let any = w.undos != [Job::Absent; 2];
                fine(0) && fine(1) && !(any && w.told == Some(End::Succeeded))
            }),
            law(ALL_SUCCEEDED, |model, w| {
                let otherwise = matches!(w.told, Some(End::Failed | End::TimedOut)) && model.protocol.rule == Rule::All;
                !otherwise || (0..2).all(|step| w.jobs[step] != Job::Succeeded || w.undos[step] == Job::Succeeded)
            }),
            law(REVERSE, |_, w| {
                let mut order =
                    w.times.iter().filter(|event| *event < 2 && w.jobs[usize::from(*event)] == Job::Succeeded);
                match (order.next(), order.next()) {
                    (Some(first), Some(last)) => {
                        w.undos[usize::from(first)] == Job::Absent || w.undos[usize::from(last)] == Job::Succeeded
                    }
                    _ => true,
                }
            }),
            law(JOIN, |_, w| {
                let early = matches!(w.jobs[2], Job::Lives | Job::Succeeded | Job::Failed)
                    && w.jobs[..2].iter().any(|job| *job != Job::Succeeded);
                let late = w.told.is_some() && w.jobs.contains(&Job::Lives);
                !early && !late
            }),
            Property::<Checked<Stops>>::sometimes("a run ends well", |_, w| w.told == Some(End::Succeeded)),
        ]
    }
}
