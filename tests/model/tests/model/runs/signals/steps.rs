//! The steps of a run that waits for signals: replicas, gateways, and outside events.

use super::{
    super::{super::explore::Step, WHO},
    At, Doc, Fault, Flaw, Hand, List, NAMES, SIGNALS, START, Signals, World,
};

pub(super) struct Steps<'a> {
    pub(super) model: &'a Signals,
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

    pub(super) fn replica(&mut self, place: usize) {
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

    pub(super) fn start(&mut self) {
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

    pub(super) fn signal(&mut self, signal: u8) {
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

    pub(super) fn others(&mut self) {
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
