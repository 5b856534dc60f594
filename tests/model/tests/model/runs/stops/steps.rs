//! The steps of a run that is stopped: the engine, replicas, and outside events.

use super::{
    super::{super::explore::Step, Job, WHO},
    Command, Doc, End, Fault, Flaw, Hand, Rule, Stops, TIMER, World,
};

pub(super) struct Steps<'a> {
    pub(super) model: &'a Stops,
    pub(super) world: World,
    pub(super) out: Vec<Step<World>>,
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

    pub(super) fn replica(&mut self, place: usize) {
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

    pub(super) fn others(&mut self) {
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
