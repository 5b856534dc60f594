//! The steps of a run of jobs: replicas, the gateway that cancels, and outside events.

use super::{
    super::{super::explore::Step, Home, Job, WHO},
    At, Doc, Fault, Flaw, GATEWAY, Hand, Keep, Message, Outbox, Phase, Records, Reread, World,
};

pub(super) struct Steps<'a> {
    pub(super) keep: &'a Keep,
    pub(super) world: World,
    pub(super) out: Vec<Step<World>>,
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

    pub(super) fn replica(&mut self, place: usize) {
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

    pub(super) fn gateway(&mut self) {
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

    pub(super) fn others(&mut self) {
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
