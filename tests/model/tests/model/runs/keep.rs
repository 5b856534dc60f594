//! A run of one or two job steps, one after the other, that a client may cancel.
//!
//! Order of a replica that applies the end of a job: read, save the change together with its commands, forward the
//! home, ack, carry out, clear by a later save. A look carries out what the outbox holds; if it is empty, it reads the
//! records of the jobs, and forwards the home before it saves what it found. Order of a gateway that cancels: take the
//! time, read the run and the records of its jobs, forward, save, publish, check that the save still stands, forward,
//! answer. Publish and check are also the first command of the outbox.
//!
//! After a failover nothing is saved until the bus was read again, neither by a replica nor by a gateway, and the cancel
//! that was read again is the first thing that is saved: after the ends that came before it, and before those that came
//! after it. A failover hits the run, a job, or both.
//!
//! Abstracts from: the time between a job's record and its submit on the bus: both are one step ([`super::children`] has
//! the two writes).
//!
//! Explored every time: one step with any two faults, and two steps with any fault, or with two of three kinds. Two
//! steps with any two faults hold as well, but those are 1.7 million states, too many for every run.

#[path = "keep/steps.rs"]
mod steps;

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Home, Job, Kept, Seen,
};
use steps::Steps;

pub(crate) const ENDS_ONCE: &str = "a run never ends in two ways";
pub(crate) const FOUND: &str = "a saved command that nobody carried out is found soon";
pub(crate) const HAS_HOME: &str = "a run that has not ended has a home";
pub(crate) const CANCEL_HELD: &str = "a run whose cancel was answered does not succeed";
pub(crate) const NO_REVIVAL: &str = "no submit revives a cancelled job";
pub(crate) const ONE_JOB: &str = "a step has one job";
pub(crate) const ENDS_RIGHT: &str =
    "a run succeeds after its last job, is cancelled when no job lives, and never fails by its own cancel";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A replica or the gateway dies between two writes.
    Crash,
    /// The bus does not get the news of a job's end.
    LostNews,
    /// A message is delivered again although its first receiver lives, or has acked it.
    Redelivery,
    /// Every stream loses its messages.
    Wipe,
    /// A primary fails, and its replica has not got the last writes.
    Failover,
    /// A client cancels the run.
    Cancel,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A save compares the counter without the nonce.
    CounterOnly,
    /// What was read before a failover serves a save after it, if the failover brought that very version back.
    SavesAcross,
    /// The outbox is cleared before its commands are carried out.
    ClearsFirst,
    /// The news are acked before the save.
    AcksBeforeSave,
    /// The news are acked before the home is forwarded.
    AcksBeforeForward,
    /// News that were applied before are acked, whatever the outbox holds.
    AppliedIsAcked,
    /// A look removes the home, and puts it back when it is done.
    DropsHomeOnRead,
    /// A look puts the home far ahead without comparing its score.
    BlindRescore,
    /// A look does not read the records of the jobs.
    LooksAtOutboxOnly,
    /// A cancel passes over a job that does not exist.
    CancelIgnoresAbsent,
    /// A job that was created cancelled is not published as cancelled.
    UnpublishedCancel,
    /// A repeated submit takes a new id.
    NewIds,
    /// Saves go on although the bus has not been read again after a failover.
    SavesBeforeReread,
    /// The cancel of a run is not published.
    UnpublishedOperation,
    /// The cancel of a run is published after its other commands.
    PublishesLast,
    /// What a save commands is carried out although a failover has lost the save.
    Unchecked,
    /// A look saves without forwarding the home first.
    SavesUntouched,
    /// A cancel that was read again comes after every end, whatever their times.
    IgnoresTimes,
    /// A gateway cancels without reading the records of the jobs.
    CancelsUnread,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// The number of steps of the definition: one or two.
    pub(crate) steps: u8,
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Keep {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    /// For the job of this step.
    Waits(u8),
    /// The cancel has been saved, and the job of this step may live.
    Stopping(u8),
    Succeeded,
    Cancelled,
    /// Its job was cancelled, and the run does not know why.
    Failed,
}

/// The commands that were saved with the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Outbox {
    /// Publish the cancel of the run: before any other command, because what is carried out must not be forgotten.
    publish: bool,
    submit: Option<u8>,
    cancel: Option<u8>,
    /// Tell the end.
    tell: bool,
}

impl Outbox {
    const NONE: Outbox = Outbox { publish: false, submit: None, cancel: None, tell: false };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Doc {
    phase: Phase,
    outbox: Outbox,
}

impl Doc {
    const NONE: Doc = Doc { phase: Phase::Cancelled, outbox: Outbox::NONE };

    fn over(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Cancelled | Phase::Failed)
    }

    /// The engine: the job of this step has ended.
    fn job_ended(mut self, step: u8, how: Job, steps: u8) -> Doc {
        let publish = self.outbox.publish;
        let end = |phase| Doc { phase, outbox: Outbox { publish, tell: true, ..Outbox::NONE } };
        match self.phase {
            Phase::Waits(of) if of == step && how == Job::Cancelled => return end(Phase::Failed),
            Phase::Waits(of) if of == step && step + 1 == steps => return end(Phase::Succeeded),
            Phase::Waits(of) if of == step => {
                self.phase = Phase::Waits(step + 1);
                self.outbox.submit = Some(step + 1);
            }
            Phase::Stopping(of) if of == step => return end(Phase::Cancelled),
            _ => {}
        }
        self
    }

    /// The engine: a client cancels.
    fn cancel(mut self) -> Doc {
        if let Phase::Waits(step) = self.phase {
            self = Doc {
                phase: Phase::Stopping(step),
                outbox: Outbox { publish: true, cancel: Some(step), ..Outbox::NONE },
            };
        }
        self
    }

    /// Applies what the records of the jobs say; those ends that came after the cancel only if `late`.
    fn settled(mut self, jobs: &[Records; 2], late: bool, steps: u8) -> Doc {
        for (step, job) in (0..).zip(jobs) {
            if job.now.ended() && (late || !job.late) {
                self = self.job_ended(step, job.now, steps);
            }
        }
        self
    }
}

/// A job's record, and what the bus holds of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Records {
    now: Job,
    replica: Job,
    submit: bool,
    cancel: bool,
    result: bool,
    /// It ended after the time of the run's cancel.
    late: bool,
}

/// A message to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    News(u8),
    /// The cancel that was read again.
    Cancel,
}

impl Message {
    fn place(self) -> usize {
        match self {
            Message::News(step) => step.into(),
            Message::Cancel => 2,
        }
    }
}

/// What a process does next. `read`: the home's score is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Idle,
    /// A look forwards the home before its save, because no message comes again if it dies.
    Touch,
    Save,
    Publish,
    /// Whether the save that was published still stands.
    Check,
    Forward,
    Ack,
    Carry,
    Clear,
    Rescore {
        read: bool,
    },
    DropHome {
        read: bool,
    },
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Hand {
    at: At,
    seen: Seen,
    /// As it was read, or as it is to be saved.
    doc: Doc,
    todo: Outbox,
    message: Option<Message>,
}

impl Hand {
    const IDLE: Hand = Hand { at: At::Idle, seen: Seen::NONE, doc: Doc::NONE, todo: Outbox::NONE, message: None };
}

/// What a failover left to be read again. Nothing else is saved before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reread {
    Done,
    Bus,
    /// The cancel of the run is to be applied.
    Operations,
}

/// The place of the gateway among the hands.
const GATEWAY: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    run: Kept<Doc>,
    home: Home,
    jobs: [Records; 2],
    /// On the stream: news of both jobs, and a cancel.
    messages: [bool; 3],
    hands: [Hand; 3],
    /// The bus holds the cancel of the run.
    published: bool,
    reread: Reread,
    answered: bool,
    told: Option<Phase>,
    /// Messages were lost: then commands may wait for a far look.
    wiped: bool,
    /// A re-score does not compare: a flaw.
    blind: bool,
    /// A law was broken on the way here.
    twice: bool,
    revived: bool,
    second: bool,
    faults: u8,
}

impl World {
    fn score(&mut self, home: Home) {
        self.home = home;
        for hand in &mut self.hands {
            match &mut hand.at {
                At::Rescore { read } => *read = self.blind,
                At::DropHome { read } => *read = false,
                _ => {}
            }
        }
    }

    fn catch_up(&mut self) {
        let World { run, hands, .. } = self;
        run.caught_up(hands.iter_mut().map(|hand| &mut hand.seen));
    }

    /// Whether a command of the outbox has had no effect so far.
    fn open(&self) -> bool {
        let Outbox { submit, cancel, tell, .. } = self.run.now.outbox;
        submit.is_some_and(|step| self.jobs[usize::from(step)].now == Job::Absent)
            || cancel.is_some_and(|step| !self.jobs[usize::from(step)].now.ended())
            || (tell && self.told.is_none())
    }

    /// A process whose next write compares something that will never match again has the same future as an idle one.
    fn canonical(mut self) -> World {
        for hand in &mut self.hands {
            let vain = match hand.at {
                At::Idle | At::Rescore { read: false } | At::DropHome { read: false } => true,
                At::Touch | At::Save | At::Clear => self.run.is_over(hand.seen),
                _ => false,
            };
            if vain {
                *hand = Hand::IDLE;
            } else if self.run.is_over(hand.seen) {
                hand.seen = Seen::NONE;
                if !hand.todo.tell {
                    hand.doc = Doc::NONE;
                }
            }
        }
        self.hands[..GATEWAY].sort_unstable();
        self
    }
}

impl Protocol for Keep {
    type State = World;

    fn begins(&self) -> Vec<World> {
        let doc = Doc { phase: Phase::Waits(0), outbox: Outbox { submit: Some(0), ..Outbox::NONE } };
        let compares = match self.flaw {
            Some(Flaw::CounterOnly) => Compares::Counter,
            Some(Flaw::SavesAcross) => Compares::Version,
            _ => Compares::VersionAndLife,
        };
        let job = Records {
            now: Job::Absent,
            replica: Job::Absent,
            submit: false,
            cancel: false,
            result: false,
            late: false,
        };
        vec![World {
            run: Kept::new(doc, compares),
            home: Home::Near,
            jobs: [job; 2],
            messages: [false; 3],
            hands: [Hand::IDLE; 3],
            published: false,
            reread: Reread::Done,
            answered: false,
            told: None,
            wiped: false,
            blind: self.has(Flaw::BlindRescore),
            twice: false,
            revived: false,
            second: false,
            faults: self.faults,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { keep: self, world: *world, out: Vec::new() };
        for place in 0..2 {
            // Two equal hands have the same steps.
            if place == 0 || world.hands[0] != world.hands[1] {
                steps.replica(place);
            }
        }
        steps.gateway();
        steps.others();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        let still = w.hands == [Hand::IDLE; 3] && w.messages == [false; 3] && w.reread == Reread::Done;
        still && w.run.now.over() && w.run.now.outbox == Outbox::NONE && w.told.is_some() && w.home == Home::None
    }

    fn laws(&self) -> Vec<Property<Checked<Keep>>> {
        let law = Property::<Checked<Keep>>::always;
        vec![
            law(ENDS_ONCE, |_, w| !w.twice),
            law(FOUND, |_, w| {
                let held = w.hands.iter().any(|hand| hand.at != At::Idle && w.run.matches(hand.seen));
                // A cancel that was not answered promises nothing.
                let promised = !matches!(w.run.now.phase, Phase::Stopping(_)) || w.answered;
                w.wiped
                    || !w.open()
                    || !promised
                    || held
                    || w.home == Home::Near
                    || w.messages.contains(&true)
                    || w.reread != Reread::Done
            }),
            law(HAS_HOME, |_, w| {
                let over = w.run.now.over() && w.told.is_some();
                over || w.home != Home::None
                    || w.reread != Reread::Done
                    || w.hands.iter().any(|hand| hand.at != At::Idle)
            }),
            law(CANCEL_HELD, |_, w| !w.answered || w.told != Some(Phase::Succeeded)),
            law(NO_REVIVAL, |_, w| !w.revived),
            law(ONE_JOB, |_, w| !w.second),
            law(ENDS_RIGHT, |model, w| match w.told {
                Some(Phase::Succeeded) => {
                    w.reread != Reread::Done
                        || w.jobs[..model.protocol.steps.into()].iter().all(|job| job.now == Job::Succeeded)
                }
                Some(Phase::Cancelled) => w.reread != Reread::Done || w.jobs.iter().all(|job| job.now != Job::Lives),
                Some(_) => false,
                None => true,
            }),
            Property::<Checked<Keep>>::sometimes("a job is created cancelled", |_, w| {
                w.jobs[0].now == Job::Cancelled && !w.jobs[0].submit
            }),
            Property::<Checked<Keep>>::sometimes("both replicas are about to save", |_, w| {
                w.hands[..GATEWAY].iter().all(|hand| hand.at == At::Save)
            }),
        ]
    }
}
