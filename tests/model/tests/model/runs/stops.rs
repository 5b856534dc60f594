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

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Job, Kept, Seen, WHO,
};

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

struct Steps<'a> {
    model: &'a Stops,
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

    /// The engine: one event.
    fn apply(&self, mut doc: Doc, event: u8) -> Doc {
        if doc.over || doc.applied.has(event) {
            return doc;
        }
        doc.applied.push(event);
        let first = self.model.rule == Rule::First;
        if event == TIMER {
            doc.end = doc.end.or(Some(End::TimedOut));
            return doc;
        }
        let ok = self.world.jobs[usize::from(event)] == Job::Succeeded;
        if !first && event < 2 && (ok || self.model.has(Flaw::UndoesFailed)) {
            doc.done.push(event);
        }
        if !ok {
            doc.end = doc.end.or(Some(End::Failed));
        } else if first || event == 2 {
            doc.end = doc.end.or(Some(End::Succeeded));
        }
        doc
    }

    /// The engine: what follows without a new event.
    fn conclude(&self, mut doc: Doc) -> Doc {
        let undoes = doc.done.iter().rev().nth(doc.undone.into());
        if self.undoing(doc)
            && let Some(step) = undoes
            && self.world.undos[usize::from(step)].ended()
        {
            doc.undone += 1;
        }
        let nothing_left = match doc.end {
            Some(End::Succeeded) if self.model.rule == Rule::All => true,
            _ => usize::from(doc.undone) == doc.done.iter().count(),
        };
        doc.over |= self.settled(doc) && nothing_left;
        doc
    }

    fn undoing(&self, doc: Doc) -> bool {
        self.settled(doc) && doc.end != Some(End::Succeeded)
    }

    /// Whether the end is decided and no step runs any more.
    fn settled(&self, doc: Doc) -> bool {
        let runs = |job: &u8| !doc.applied.has(*job) && self.world.jobs[usize::from(*job)] != Job::Absent;
        let awaited = |job: &u8| *job == 2 || !self.model.has(Flaw::DoesNotAwait);
        // A step that was never submitted is settled when it was created cancelled.
        let open = (0..3).filter(awaited).any(|job| runs(&job) || self.may_start(doc, job));
        doc.end.is_some() && !open
    }

    /// Whether the job may have been submitted by somebody, though it is absent.
    fn may_start(&self, doc: Doc, job: u8) -> bool {
        job == 2 && self.model.rule == Rule::All && self.world.jobs[2] == Job::Absent && self.ready(doc)
    }

    /// Whether step 2 has what it needs.
    fn ready(&self, doc: Doc) -> bool {
        let succeeded = (0..2).filter(|job| doc.done.has(*job)).count();
        succeeded == 2 || (self.model.has(Flaw::JoinsEarly) && succeeded == 1)
    }

    /// What this document commands, of what is not done.
    fn commands(&self, doc: Doc) -> Vec<Command> {
        let (w, all) = (self.world, self.model.rule == Rule::All);
        if doc.over {
            return doc.end.map(Command::Tell).into_iter().collect();
        }
        let mut commands = Vec::new();
        match doc.end {
            None if all && self.ready(doc) && w.jobs[2] == Job::Absent => commands.push(Command::Submit(2)),
            None => {}
            // What declares a compensation is awaited, everything else is cancelled.
            Some(_) if all => commands.extend((self.ready(doc) && !w.jobs[2].ended()).then_some(Command::Cancel(2))),
            Some(_) => commands.extend((0..2).filter(|job| !w.jobs[usize::from(*job)].ended()).map(Command::Cancel)),
        }
        if self.undoing(doc) {
            let at_once = if self.model.has(Flaw::UndoesAtOnce) { 2 } else { 1 };
            let next = doc.done.iter().rev().skip(doc.undone.into()).take(at_once);
            commands.extend(next.filter(|step| w.undos[usize::from(*step)] == Job::Absent).map(Command::Undo));
        }
        commands
    }

    /// Everything that has happened by now, in the order of time.
    fn all(&self, doc: Doc) -> Doc {
        self.conclude(self.world.times.iter().fold(doc, |doc, event| self.apply(doc, event)))
    }

    fn replica(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        match w.hands[place] {
            Hand::Idle => {
                let (now, seen) = (w.run.now, w.run.read());
                for job in (0..3_u8).filter(|job| w.news[usize::from(*job)]) {
                    let arrives = self.model.has(Flaw::OrderOfArrival);
                    let doc = if arrives { self.conclude(self.apply(now, job)) } else { self.all(now) };
                    let mut to = self.put(place, Hand::Save { seen, doc });
                    to.news[usize::from(job)] = false;
                    if doc == now {
                        to.hands[place] = Hand::Idle;
                    }
                    self.push(who, "takes the news", to);
                }
                let unread = self.model.has(Flaw::TimesOutUnread) && w.times.has(TIMER) && !now.applied.has(TIMER);
                let doc = if unread { self.conclude(self.apply(now, TIMER)) } else { self.all(now) };
                if doc != now {
                    self.push(who, "look: something has ended", self.put(place, Hand::Save { seen, doc }));
                }
                for command in self.commands(now) {
                    self.push(who, "look: carries out", self.put(place, Hand::Carry(command)));
                }
            }
            Hand::Save { seen, doc } => {
                if !w.run.matches(seen) {
                    return self.push(who, "save: somebody was faster", self.put(place, Hand::Idle));
                }
                let may_fail = w.faults > 0 && self.model.kinds.contains(&Fault::Failover);
                for lags in [false, true] {
                    if lags && (w.run.same || !may_fail) {
                        continue;
                    }
                    let mut to = self.put(place, Hand::Idle);
                    let World { run, hands, .. } = &mut to;
                    run.save(doc, lags, hands.iter_mut().filter_map(Hand::seen));
                    self.push(who, "save", to);
                }
            }
            Hand::Carry(command) => self.carries(place, command),
        }
    }

    fn carries(&mut self, place: usize, command: Command) {
        let mut to = self.put(place, Hand::Idle);
        let what = match command {
            Command::Submit(job) => {
                let job = &mut to.jobs[usize::from(job)];
                *job = if *job == Job::Absent { Job::Lives } else { *job };
                "submit_step"
            }
            Command::Cancel(number) => {
                let job = &mut to.jobs[usize::from(number)];
                if !job.ended() {
                    *job = Job::Cancelled;
                    to.times.push(number);
                    to.news[usize::from(number)] = true;
                }
                "cancel_step"
            }
            Command::Undo(step) => {
                let job = &mut to.undos[usize::from(step)];
                *job = if *job == Job::Absent { Job::Lives } else { *job };
                "submit_step: a compensation"
            }
            Command::Tell(end) => {
                to.twice |= to.told.is_some_and(|told| told != end);
                to.told = Some(end);
                "tell_end"
            }
        };
        self.push(WHO[place], what, to);
    }

    fn others(&mut self) {
        let w = self.world;
        for job in 0..3_u8 {
            if w.jobs[usize::from(job)] != Job::Lives {
                continue;
            }
            let mut to = w;
            to.times.push(job);
            to.jobs[usize::from(job)] = Job::Succeeded;
            self.fault(Fault::LostNews, "worker", "ends the job, the news are lost", to);
            to.news[usize::from(job)] = true;
            self.push("worker", "ends the job", to);
            to.jobs[usize::from(job)] = Job::Failed;
            self.fault(Fault::Failure, "worker", "fails the job", to);
        }
        for step in (0..2).filter(|step| w.undos[*step] == Job::Lives) {
            let mut to = w;
            to.undos[step] = Job::Succeeded;
            self.push("worker", "ends a compensation", to);
        }
        if !w.times.has(TIMER) && self.model.rule == Rule::All {
            let mut to = w;
            to.times.push(TIMER);
            self.fault(Fault::TimeOut, "time", "passes: the run is out of time", to);
        }
        let mut to = w;
        let World { run, hands, .. } = &mut to;
        run.fail_over(hands.iter_mut().filter_map(Hand::seen));
        self.fault(Fault::Failover, "Redis", "fails over", to);
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
