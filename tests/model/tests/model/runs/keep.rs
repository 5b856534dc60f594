//! A run of two job steps, one after the other, that a client may cancel.
//!
//! Order of a replica that applies the end of a job: read, save the change together with its commands, forward the
//! home, ack, carry out, clear by a later save. Order of a gateway that cancels: read the run and the records of the
//! jobs that it waits for, forward, save, publish, forward, answer. A look carries out what the outbox holds; if it is
//! empty, it reads the records of the jobs.
//!
//! After a failover no save passes until the bus was read again: neither of a replica nor of a gateway. A failover
//! hits the run, a job, or both.

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Home, Job, Kept, Seen, WHO,
};

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

struct Steps<'a> {
    keep: &'a Keep,
    world: World,
    out: Vec<Step<World>>,
}

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        self.out.push(Step::new(who, what, to.canonical()));
    }

    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.keep.kinds.contains(&kind) {
            to.faults -= 1;
            self.out.push(Step::fault(who, what, to.canonical()));
        }
    }

    fn put(&self, place: usize, hand: Hand) -> World {
        let mut to = self.world;
        to.hands[place] = hand;
        to
    }

    fn replica(&mut self, place: usize) {
        let (w, who, hand) = (self.world, WHO[place], self.world.hands[place]);
        // A crash before the first write is the same as not having begun.
        if !matches!(hand.at, At::Idle | At::Touch | At::Rescore { .. } | At::DropHome { .. }) {
            let nothing_done = hand.at == At::Save && !self.keep.has(Flaw::DropsHomeOnRead);
            if !nothing_done || hand.message.is_none_or(|message| !w.messages[message.place()]) {
                self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::IDLE));
            }
        }
        match hand.at {
            At::Idle => {
                self.takes(place);
                self.looks(place);
            }
            At::Touch => {
                let mut to = self.put(place, Hand { at: At::Save, ..hand });
                if !self.keep.has(Flaw::SavesUntouched) {
                    to.score(Home::Near);
                }
                self.push(who, "look: forward_homes", to);
            }
            At::Save => self.saves(place, hand),
            At::Check => self.checks(place, hand),
            At::Forward => {
                let mut to = self.put(place, Hand { at: At::Ack, ..hand });
                to.score(Home::Near);
                self.push(who, "forward_homes", to);
            }
            At::Ack => {
                let mut to = self.put(place, Hand { at: At::Carry, ..hand });
                if let Some(message) = hand.message {
                    to.messages[message.place()] = false;
                }
                if self.keep.has(Flaw::AcksBeforeForward) {
                    to.hands[place].at = At::Forward;
                    to.hands[place].message = None;
                    if hand.message.is_none() {
                        to.hands[place].at = At::Carry;
                        to.score(Home::Near);
                    }
                }
                self.push(who, "acks the news", to);
            }
            At::Carry => self.carries(place, hand),
            At::Clear => {
                let mut to = self.put(place, Hand::IDLE);
                if w.run.matches(hand.seen) && self.may_save(hand.message) {
                    self.save(
                        place,
                        hand,
                        Doc { outbox: Outbox::NONE, ..hand.doc },
                        At::Idle,
                        "save: clears the outbox",
                    );
                } else {
                    to.hands[place] = Hand::IDLE;
                    self.push(who, "save: somebody was faster", to);
                }
            }
            At::Rescore { read } => {
                let mut to = self.put(place, Hand::IDLE);
                if read {
                    to.score(Home::Far);
                }
                self.push(who, "rescore_homes", to);
            }
            At::DropHome { read } => {
                let mut to = self.put(place, Hand::IDLE);
                if read {
                    to.score(Home::None);
                }
                self.push(who, "drops the home", to);
            }
            At::Publish | At::Answer => {}
        }
    }

    /// Takes a message and applies it to what it reads.
    fn takes(&mut self, place: usize) {
        let w = self.world;
        for message in [Message::News(0), Message::News(1), Message::Cancel] {
            if !w.messages[message.place()] || !self.may_save(Some(message)) {
                continue;
            }
            let again = w.hands.iter().any(|hand| hand.message == Some(message));
            let doc = match message {
                Message::News(step) => w.run.now.job_ended(step, w.jobs[usize::from(step)].now, self.keep.steps),
                Message::Cancel => self.settled(self.keep.has(Flaw::IgnoresTimes)).cancel(),
            };
            let mut hand = Hand { at: At::Save, seen: w.run.read(), doc, todo: Outbox::NONE, message: Some(message) };
            let mut to = w;
            if doc == w.run.now {
                if message == Message::Cancel && to.reread == Reread::Operations {
                    to.reread = Reread::Done;
                }
                // It was applied before: whoever did it may have died right after.
                let outbox = w.run.now.outbox;
                hand.todo = outbox;
                let carries = outbox != Outbox::NONE && !self.keep.has(Flaw::AppliedIsAcked);
                hand.at = if carries { At::Forward } else { At::Ack };
                if !carries {
                    to.messages[message.place()] = false;
                    hand = Hand::IDLE;
                }
            } else if self.keep.has(Flaw::AcksBeforeSave) {
                to.messages[message.place()] = false;
            }
            to.hands[place] = hand;
            if again {
                self.fault(Fault::Redelivery, WHO[place], "takes the news again", to);
            } else {
                self.push(WHO[place], "takes the news", to);
            }
        }
    }

    /// Whether the bus was read again after the last failover, so far as a save for this message needs it.
    fn may_save(&self, message: Option<Message>) -> bool {
        match self.world.reread {
            Reread::Done => true,
            Reread::Operations => message == Some(Message::Cancel) || self.keep.has(Flaw::SavesBeforeReread),
            Reread::Bus => self.keep.has(Flaw::SavesBeforeReread),
        }
    }

    fn settled(&self, late: bool) -> Doc {
        let w = self.world;
        let doc = w.run.now.settled(&w.jobs, late, self.keep.steps);
        match doc.phase {
            // Whoever believes that a job that does not exist cannot come to life thinks that all is over.
            Phase::Stopping(step)
                if self.keep.has(Flaw::CancelIgnoresAbsent) && w.jobs[usize::from(step)].now == Job::Absent =>
            {
                doc.job_ended(step, Job::Cancelled, self.keep.steps)
            }
            _ => doc,
        }
    }

    fn looks(&mut self, place: usize) {
        let (mut w, who) = (self.world, WHO[place]);
        if w.home != Home::Near || !self.may_save(None) {
            return;
        }
        if self.keep.has(Flaw::DropsHomeOnRead) {
            w.score(Home::None);
        }
        let put = |hand| {
            let mut to = w;
            to.hands[place] = hand;
            to
        };
        let now = w.run.now;
        let hand = Hand { at: At::Carry, seen: w.run.read(), doc: now, todo: now.outbox, message: None };
        if now.outbox != Outbox::NONE {
            return self.push(who, "look: carries out", put(hand));
        }
        let doc = if self.keep.has(Flaw::LooksAtOutboxOnly) { now } else { self.settled(true) };
        if doc != now {
            return self.push(who, "look: a job has ended", put(Hand { at: At::Touch, doc, ..hand }));
        }
        if now.over() {
            return self.push(who, "look: ended", put(Hand { at: At::DropHome { read: true }, ..Hand::IDLE }));
        }
        // Nothing is left to do: the home of a run that waits goes far ahead.
        self.push(who, "look: waits", put(Hand { at: At::Rescore { read: true }, ..Hand::IDLE }));
    }

    fn saves(&mut self, place: usize, hand: Hand) {
        let w = self.world;
        if !w.run.matches(hand.seen) || !self.may_save(hand.message) {
            // Its message is delivered again, and the home is as it was.
            let who = if place == GATEWAY { "gateway" } else { WHO[place] };
            return self.push(who, "save: somebody was faster", self.put(place, Hand::IDLE));
        }
        let (doc, next) = (hand.doc, if place == GATEWAY { At::Publish } else { At::Forward });
        let next = if self.keep.has(Flaw::AcksBeforeForward) && place != GATEWAY { At::Ack } else { next };
        let first = self.keep.has(Flaw::ClearsFirst);
        if first && place != GATEWAY {
            let doc = Doc { outbox: Outbox::NONE, ..doc };
            let hand = Hand { todo: hand.doc.outbox, ..hand };
            return self.save(place, hand, doc, next, "save");
        }
        self.save(place, Hand { todo: doc.outbox, ..hand }, doc, next, "save");
    }

    /// `run/save`, where the replica of the primary lags or not.
    fn save(&mut self, place: usize, hand: Hand, doc: Doc, next: At, what: &'static str) {
        let w = self.world;
        let who = if place == GATEWAY { "gateway" } else { WHO[place] };
        let may_fail = w.faults > 0 && self.keep.kinds.contains(&Fault::Failover);
        for lags in [false, true] {
            if lags && (w.run.same || !may_fail) {
                continue;
            }
            let mut to = w;
            let others = to.hands.iter_mut().enumerate().filter(|(other, _)| *other != place);
            let seen = to.run.save(doc, lags, others.map(|(_, hand)| &mut hand.seen));
            if !may_fail {
                to.catch_up();
            }
            to.hands[place] = Hand { at: next, seen, doc, ..hand };
            if hand.message == Some(Message::Cancel) && to.reread == Reread::Operations {
                to.reread = Reread::Done;
            }
            self.push(who, what, to);
        }
    }

    /// Carries out one command after the other.
    fn carries(&mut self, place: usize, hand: Hand) {
        let (who, mut todo) = (WHO[place], hand.todo);
        let mut to = self.world;
        let last = self.keep.has(Flaw::PublishesLast);
        let what = if todo.publish && (!last || Outbox { publish: false, ..todo } == Outbox::NONE) {
            to.published |= !self.keep.has(Flaw::UnpublishedOperation);
            to.hands[place].at = At::Check;
            return self.push(who, "publish_op", to);
        } else if let Some(step) = todo.submit.take() {
            self.submit(&mut to, step);
            "submit_step"
        } else if let Some(step) = todo.cancel.take() {
            let job = &mut to.jobs[usize::from(step)];
            let absent = job.now == Job::Absent;
            if !(absent && self.keep.has(Flaw::CancelIgnoresAbsent)) {
                if !job.now.ended() {
                    (job.replica, job.now, job.late) = (job.now, Job::Cancelled, true);
                    to.messages[usize::from(step)] |= !absent;
                }
                // A repeat publishes again: the first call may have died before.
                job.cancel |= job.now == Job::Cancelled && !(absent && self.keep.has(Flaw::UnpublishedCancel));
            }
            "cancel_step"
        } else {
            todo.tell = false;
            let end = to.run.now.phase;
            let end = if hand.doc.over() { hand.doc.phase } else { end };
            to.twice |= to.told.is_some_and(|told| told != end);
            to.told = Some(end);
            "tell_end"
        };
        let done = todo == Outbox::NONE;
        // What was applied before was cleared, or will be by the process that saved it.
        to.hands[place] = Hand { todo, at: if done { At::Clear } else { At::Carry }, ..hand };
        if done && self.keep.has(Flaw::ClearsFirst) {
            to.hands[place] = Hand::IDLE;
        }
        self.push(who, what, to);
    }

    /// A failover may have lost the save before it was published: then reading the bus again has not brought it back,
    /// and nothing of it may be carried out or answered.
    fn checks(&mut self, place: usize, hand: Hand) {
        let (w, who) = (self.world, if place == GATEWAY { "gateway" } else { WHO[place] });
        let unchecked = self.keep.has(Flaw::Unchecked);
        if w.reread != Reread::Done && !unchecked {
            return self.push(who, "holds_op: not known yet", self.put(place, Hand::IDLE));
        }
        if !unchecked && !matches!(w.run.now.phase, Phase::Stopping(_) | Phase::Cancelled) {
            return self.push(who, "holds_op: it was lost", self.put(place, Hand::IDLE));
        }
        let at = if place == GATEWAY { At::Forward } else { At::Carry };
        let todo = Outbox { publish: false, ..hand.todo };
        let at = if at == At::Carry && todo == Outbox::NONE { At::Clear } else { at };
        self.push(who, "holds_op", self.put(place, Hand { at, todo, ..hand }));
    }

    fn submit(&self, to: &mut World, step: u8) {
        let reread = to.reread != Reread::Done;
        let job = &mut to.jobs[usize::from(step)];
        if job.now == Job::Absent {
            let was = job.cancel;
            (job.replica, job.now, job.submit) = (Job::Absent, Job::Lives, true);
            to.revived |= was && !reread;
            // The cancel of this job was carried out, and a failover has lost it.
            to.revived |= to.told == Some(Phase::Cancelled) && !reread;
        } else {
            to.second |= self.keep.has(Flaw::NewIds);
        }
    }

    fn gateway(&mut self) {
        let (w, hand) = (self.world, self.world.hands[GATEWAY]);
        if !matches!(hand.at, At::Idle | At::Save) {
            self.fault(Fault::Crash, "gateway", "crashes", self.put(GATEWAY, Hand::IDLE));
        }
        let mut to = self.put(GATEWAY, Hand { at: At::Check, ..hand });
        match hand.at {
            At::Idle if w.reread == Reread::Done && !w.answered => {
                let read = if self.keep.has(Flaw::CancelsUnread) { w.run.now } else { self.settled(true) };
                let doc = read.cancel();
                if doc.phase == read.phase {
                    return;
                }
                // The time of the cancel is taken first, then everything is read.
                to.jobs.iter_mut().for_each(|job| job.late = false);
                to.hands[GATEWAY] = Hand { at: At::Save, seen: w.run.read(), doc, ..Hand::IDLE };
                to.score(Home::Near);
                self.fault(Fault::Cancel, "gateway", "cancel_run: forward_homes", to);
            }
            At::Save => self.saves(GATEWAY, hand),
            At::Check => self.checks(GATEWAY, hand),
            At::Publish => {
                to.published |= !self.keep.has(Flaw::UnpublishedOperation);
                self.push("gateway", "publish_op", to);
            }
            At::Forward => {
                to.hands[GATEWAY].at = At::Answer;
                to.score(Home::Near);
                self.push("gateway", "forward_homes", to);
            }
            At::Answer => {
                to.hands[GATEWAY] = Hand::IDLE;
                to.answered = true;
                self.push("gateway", "answers", to);
            }
            _ => {}
        }
    }

    fn others(&mut self) {
        let w = self.world;
        for step in 0..2 {
            let mut to = w;
            if w.jobs[step].now == Job::Lives && w.reread == Reread::Done {
                let job = &mut to.jobs[step];
                (job.replica, job.now, job.result) = (Job::Lives, Job::Succeeded, true);
                job.late = w.hands[GATEWAY].at != At::Idle || matches!(w.run.now.phase, Phase::Stopping(_));
                self.fault(Fault::LostNews, "worker", "ends the job, the news are lost", to);
                to.messages[step] = true;
                self.push("worker", "ends the job", to);
            } else if w.jobs[step].now.ended() && !w.messages[step] {
                to.messages[step] = true;
                self.fault(Fault::Redelivery, "NATS", "has the news again", to);
            }
        }
        if w.home == Home::Far {
            let mut to = w;
            to.score(Home::Near);
            self.push("time", "passes: the home is due", to);
        }
        if w.reread == Reread::Bus {
            let mut to = w;
            to.reread = if w.published { Reread::Operations } else { Reread::Done };
            to.messages[2] = w.published;
            for job in &mut to.jobs {
                if job.now == Job::Absent && job.submit {
                    job.now = Job::Lives;
                }
                if job.cancel && !job.now.ended() {
                    job.now = Job::Cancelled;
                }
                if job.result && job.now == Job::Lives {
                    job.now = Job::Succeeded;
                }
                job.replica = job.now;
            }
            // The scrub of a primary that is new brings every home near.
            to.score(Home::Near);
            return self.push("scheduler", "reread: submits, cancels, results, operations", to);
        }
        if w.reread == Reread::Done && (w.messages.contains(&true) || w.published) {
            let mut to = w;
            to.messages = [false; 3];
            // What both stores lose is lost: a wipe and a failover never hit the same second.
            to.published = false;
            for job in &mut to.jobs {
                *job = Records { submit: false, cancel: false, result: false, replica: job.now, ..*job };
            }
            to.catch_up();
            to.wiped = true;
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
        for hits in 1..8_u8 {
            let mut to = w;
            if hits & 1 != 0 {
                let World { run, hands, .. } = &mut to;
                run.fail_over(hands.iter_mut().map(|hand| &mut hand.seen));
            }
            for (step, bit) in [(0, 2), (1, 4)] {
                if hits & bit != 0 {
                    to.jobs[step].now = to.jobs[step].replica;
                }
            }
            to.reread = Reread::Bus;
            self.fault(Fault::Failover, "Redis", "fails over", to);
        }
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
            Property::<Checked<Keep>>::sometimes("both replicas are about to save", |_, w| {
                w.hands[..GATEWAY].iter().all(|hand| hand.at == At::Save)
            }),
        ]
    }
}
