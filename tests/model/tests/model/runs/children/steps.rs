//! The steps of a parent and its child: replicas, the gateway that cancels, and outside events.

use super::{
    super::{super::explore::Step, WHO},
    At, Children, Doc, Fault, Flaw, GATEWAY, Hand, NAMES, Phase, State, World,
};

pub(super) struct Steps<'a> {
    pub(super) model: &'a Children,
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

    pub(super) fn hand(&mut self, place: usize) {
        let (w, who, hand) = (self.world, NAMES[place], self.world.hands[place]);
        if !matches!(hand.at, At::Idle | At::Save) {
            self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::IDLE));
        }
        let at = |at| Hand { at, ..hand };
        let mut to = w;
        match hand.at {
            At::Idle if w.reread => {}
            At::Idle if place == GATEWAY => self.cancels(),
            At::Idle => {
                self.takes(place);
                self.looks(place);
            }
            At::Save => self.save(place, hand, hand.doc, "save"),
            At::Clear => {
                let doc = Doc { phase: hand.doc.phase, ..Doc::NONE };
                self.save(place, hand, doc, "save: clears the outbox");
            }
            At::StartChild => {
                let child = &mut to.child;
                if child.now == State::Absent {
                    (child.replica, child.now) = (State::Absent, State::Runs);
                    to.revived |= !w.reread && (child.stopped || w.told == Some(Phase::Cancelled));
                } else {
                    to.second |= self.model.has(Flaw::NewIds);
                }
                to.hands[place] = at(At::PublishStart);
                self.push(who, "start_child", to);
            }
            At::PublishStart => {
                to.child.start |= !self.model.has(Flaw::UnpublishedStart);
                to.hands[place] = at(At::CheckChild);
                self.push(who, "publish_op: the child's start", to);
            }
            At::Publish => {
                to.published = true;
                to.hands[place] = at(At::Check);
                self.push(who, "publish_op", to);
            }
            At::Check if w.reread || !matches!(w.run.now.phase, Phase::Stopping | Phase::Cancelled) => {
                self.push(who, "holds_op: it was lost", self.put(place, Hand::IDLE));
            }
            At::Check => {
                let next = match hand.doc {
                    _ if place == GATEWAY => At::Answer,
                    Doc { tell: true, .. } => At::Tell,
                    _ => At::CancelChild,
                };
                self.push(who, "holds_op", self.put(place, at(next)));
            }
            At::CancelChild => self.cancels_child(place, hand),
            At::PublishCancel => {
                to.child.cancel |= !self.model.has(Flaw::UnpublishedCancel);
                to.hands[place] = at(At::CheckChild);
                self.push(who, "publish_op: the child's cancel", to);
            }
            At::CheckChild => self.checks_child(place, hand),
            At::Tell => {
                to.twice |= w.told.is_some_and(|told| told != hand.doc.phase);
                to.told = Some(hand.doc.phase);
                to.hands[place] = at(At::Clear);
                self.push(who, "tell_end", to);
            }
            At::Answer => {
                to.hands[place] = Hand::IDLE;
                to.answered = true;
                self.push(who, "answers", to);
            }
        }
    }

    /// `run/save`, where the replica of the primary lags or not.
    fn save(&mut self, place: usize, hand: Hand, doc: Doc, what: &'static str) {
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
            let seen = to.run.save(doc, lags, others.map(|(_, hand)| &mut hand.seen));
            to.news &= !hand.news;
            to.hands[place] = match place {
                GATEWAY => Hand { at: At::Publish, seen, doc, news: false },
                _ => Hand::IDLE,
            };
            self.push(NAMES[place], what, to);
        }
    }

    fn takes(&mut self, place: usize) {
        let w = self.world;
        if !w.news {
            return;
        }
        let doc = w.settled(true);
        let mut to = self.put(place, Hand { at: At::Save, seen: w.run.read(), doc, news: true });
        if doc == w.run.now {
            to.news = false;
            to.hands[place] = Hand::IDLE;
        }
        if w.hands.iter().any(|hand| hand.news) {
            self.fault(Fault::Redelivery, WHO[place], "takes the news again", to);
        } else {
            self.push(WHO[place], "takes the news", to);
        }
    }

    /// Looks at the parent. Of the outbox, cancels come first, then starts, then what is to be told.
    fn looks(&mut self, place: usize) {
        let (w, who, now) = (self.world, WHO[place], self.world.run.now);
        let hand = Hand { at: At::Publish, seen: w.run.read(), doc: now, news: false };
        if now.publish {
            self.push(who, "look: carries out", self.put(place, hand));
        } else if now.start {
            self.push(who, "look: carries out", self.put(place, Hand { at: At::StartChild, ..hand }));
        } else if now.tell {
            self.push(who, "look: carries out", self.put(place, Hand { at: At::Tell, ..hand }));
        }
        let unpublished =
            w.child.now.ended() && w.child.end != Some(w.child.now) && !self.model.has(Flaw::UnpublishedEnd);
        if unpublished || self.model.has(Flaw::LooksAtOutboxOnly) {
            return;
        }
        let mut doc = w.settled(true);
        if self.model.has(Flaw::EndsBeforeChild) && now.phase == Phase::Stopping {
            doc = now.end(Phase::Cancelled);
        }
        // The same for whoever believes that what does not exist cannot come to life.
        let absent = w.child.now == State::Absent && !now.cancel;
        if self.model.has(Flaw::CancelIgnoresAbsent) && now.phase == Phase::Stopping && absent {
            doc = now.end(Phase::Cancelled);
        }
        if doc != now {
            self.push(who, "look: the child has ended", self.put(place, Hand { at: At::Save, doc, ..hand }));
        }
    }

    /// A failover may have lost the write before it was published: then it is to be written again.
    fn checks_child(&mut self, place: usize, hand: Hand) {
        let (w, who) = (self.world, NAMES[place]);
        let mut to = self.put(place, Hand { at: At::Clear, ..hand });
        let cancels = hand.doc.cancel;
        let done = if cancels { w.child.now.ended() } else { w.child.now != State::Absent };
        if w.reread && !self.model.has(Flaw::Unchecked) {
            return self.push(who, "holds_op: not known yet", self.put(place, Hand::IDLE));
        }
        if !done && !self.model.has(Flaw::Unchecked) {
            to.hands[place].at = if cancels { At::CancelChild } else { At::StartChild };
            return self.push(who, "holds_op: it was lost", to);
        }
        to.child.stopped |= cancels && w.child.now != State::Succeeded;
        self.push(who, "holds_op", to);
    }

    fn cancels_child(&mut self, place: usize, hand: Hand) {
        let mut to = self.put(place, Hand { at: At::PublishCancel, ..hand });
        let absent = to.child.now == State::Absent;
        if absent && self.model.has(Flaw::CancelIgnoresAbsent) {
            to.hands[place].at = At::Clear;
            return self.push(NAMES[place], "cancel_child", to);
        }
        // A child that has what it waited for reads it first, and ends as it would have.
        let end = if self.world.worked && !absent { State::Succeeded } else { State::Cancelled };
        let child = &mut to.child;
        if !child.now.ended() {
            (child.replica, child.now, child.late) = (child.now, end, true);
        }
        if child.now == State::Succeeded {
            to.hands[place].at = At::Clear;
        }
        self.push(NAMES[place], "cancel_child", to);
    }

    fn cancels(&mut self) {
        let w = self.world;
        let doc = w.settled(true).cancel();
        if w.answered || doc.phase != Phase::Stopping || w.run.now.phase == Phase::Stopping {
            return;
        }
        let mut to = self.put(GATEWAY, Hand { at: At::Save, seen: w.run.read(), doc, news: false });
        // The time of the cancel is taken first, then everything is read.
        to.child.late = false;
        self.fault(Fault::Cancel, "gateway", "cancel_run", to);
    }

    pub(super) fn others(&mut self) {
        let w = self.world;
        if w.reread {
            let mut to = w;
            to.reread = false;
            let child = &mut to.child;
            if child.now == State::Absent && child.start {
                child.now = State::Runs;
            }
            if let Some(end) = child.end {
                child.now = end;
            } else if child.cancel && !child.now.ended() {
                child.now = State::Cancelled;
            }
            child.replica = child.now;
            if w.published && w.run.now.phase == Phase::Waits {
                let doc = to.settled(false).cancel();
                let World { run, hands, .. } = &mut to;
                run.save(doc, true, hands.iter_mut().map(|hand| &mut hand.seen));
            }
            return self.push("scheduler", "reread: submits, cancels, results, operations", to);
        }
        if w.child.now == State::Runs {
            let mut to = w;
            to.worked = true;
            if w.worked {
                to.child.replica = State::Runs;
                to.child.now = State::Succeeded;
                to.child.late = w.hands[GATEWAY].at != At::Idle || w.run.now.phase == Phase::Stopping;
            }
            self.push("child", "goes on", to);
        }
        if w.child.now.ended() {
            // The child's own outbox: publish the end, which is the news for the parent.
            let mut to = w;
            to.twice |= w.child.told.is_some_and(|told| told != w.child.now);
            (to.child.end, to.child.told) = (Some(w.child.now), Some(w.child.now));
            let first = w.child.end.is_none();
            self.fault(Fault::LostNews, "child", "tell_end, the news are lost", to);
            to.news = true;
            if first {
                self.push("child", "tell_end", to);
            } else {
                self.fault(Fault::Redelivery, "child", "tell_end again", to);
            }
        }
        if w.news || w.published || w.child.start {
            let mut to = w;
            (to.news, to.published) = (false, false);
            // What was told needs no bus once the replica has it.
            (to.child.start, to.child.cancel, to.child.replica) = (false, false, w.child.now);
            let World { run, hands, .. } = &mut to;
            run.caught_up(hands.iter_mut().map(|hand| &mut hand.seen));
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
        for hits in 1..4_u8 {
            let mut to = w;
            if hits & 1 != 0 {
                let World { run, hands, .. } = &mut to;
                run.fail_over(hands.iter_mut().map(|hand| &mut hand.seen));
            }
            if hits & 2 != 0 {
                to.child.now = to.child.replica;
            }
            to.reread = true;
            self.fault(Fault::Failover, "Redis", "fails over", to);
        }
    }
}
