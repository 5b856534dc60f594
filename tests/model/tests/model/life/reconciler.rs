//! The reconciler, on both schedulers: reads a due home, does what `look` says, re-scores.
//!
//! Every event compares the version that was read, and a re-score compares the score. A reader never removes the home
//! of an active job. A hand that dies leaves the home due.

use muster_domain::{Event, Outcome, State};

use super::{
    super::record::{Age, Says, Seen},
    Fault, Flaw, Steps,
    scheduler::{Act, By, Hand, WHO},
};

impl Steps<'_> {
    /// A reader finds the home due, and asks `look` what the job needs.
    pub(super) fn look(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        let reads = |act| Hand::Look { read: true, act };
        let Some(record) = w.record else {
            let mut to = self.put(place, reads(Act::DropOrphan));
            to.gateway = to.gateway.slowed();
            return self.push(who, "look: no record", to);
        };
        // Whether what the job waits for is over, and whether that conclusion is a fault.
        let (over, fault) = match record.state {
            State::Pending => {
                let under_way = in_hand(&w.hands, Hand::will_decide, Age::Now) || w.gateway.announces();
                (true, (w.submits.has(Age::Now) || under_way).then_some(Fault::Haste))
            }
            State::Dispatched => {
                let under_way = in_hand(&w.hands, Hand::will_offer, Age::Now);
                (true, (w.offers.has(Age::Now) || under_way).then_some(Fault::Haste))
            }
            // Silence is proven only when there is no result on the stream.
            State::Running => {
                let proven = !w.results.any_ours() || self.life.has(Flaw::NoAckFloor);
                (proven, w.worker_lives().then_some(Fault::Expiry))
            }
            _ => (true, None),
        };
        let (act, what) = match record.look(over) {
            Says::Nothing | Says::Requeue => return,
            Says::Resubmit => (reads(Act::Announce(Age::Now)), "look: resubmit"),
            Says::Wake => (reads(Act::Wake(Age::Now)), "look: wake"),
            Says::Reoffer => (reads(Act::Reoffer(Age::Now)), "look: reoffer"),
            Says::Apply(event) => (reads(Act::End(Age::Now, event)), "look: the lease is over"),
            Says::Finish => (Hand::Finish { by: By::Look, effects: true }, "look: ended"),
        };
        let to = self.put(place, act);
        match fault {
            Some(kind) => self.fault(kind, who, what, to),
            None => self.push(who, what, to),
        }
        // Or it is too early to tell, and the home is only re-scored. That matters only if another hand reads too.
        let other = matches!(w.hands[1 - place], Hand::Look { read: true, .. });
        if other || self.life.has(Flaw::DropsInsteadOfRescoring) {
            self.push(who, "look: nothing", self.put(place, reads(Act::Rescore)));
        }
    }

    pub(super) fn acts(&mut self, place: usize, read: bool, act: Act) {
        let (w, who) = (self.world, WHO[place]);
        let then = |act| Hand::Look { read, act };
        match act {
            Act::Announce(age) => {
                let mut to = self.put(place, then(Act::Rescore));
                to.submits = to.submits.with(age);
                self.push(who, "publish_submits", to);
            }
            Act::Offer(age) => {
                let mut to = self.put(place, then(Act::Rescore));
                to.offers = to.offers.with(age);
                self.push(who, "offer (again)", to);
            }
            Act::Wake(age) => self.moves(place, read, age, Event::Wake, Act::Announce(Age::Now), "apply(wake)"),
            Act::Reoffer(age) => self.moves(place, read, age, Event::Reoffer, Act::Offer(Age::Now), "apply(reoffer)"),
            Act::End(age, event) => self.moves(place, read, age, event, Act::Rescore, "apply(rescue, abandon, poison)"),
            Act::Rescore => {
                let mut to = self.put(place, Hand::Idle);
                if read && self.life.has(Flaw::DropsInsteadOfRescoring) {
                    to.drop_home();
                    self.push(who, "drops the home", to);
                } else {
                    if read {
                        to.touch_home();
                    }
                    self.push(who, "rescore_homes", to);
                }
            }
            Act::DropOrphan => {
                let mut to = self.put(place, Hand::Idle);
                if w.home && (read || self.life.has(Flaw::UncomparedRemoval)) {
                    to.drop_home();
                    to.home_orphaned = w.record.is_some() || w.gateway.is_slow();
                }
                self.push(who, "drop_orphan_home", to);
            }
        }
    }

    /// Applies one event of a look by version, then takes the next act if the event was applied.
    fn moves(&mut self, place: usize, read: bool, age: Age, event: Event, next: Act, what: &'static str) {
        let who = WHO[place];
        let mut to = self.world;
        let outcome = to.apply(event, Seen::Version(age));
        let ended = to.record.is_some_and(|record| record.ended());
        let then = |act| Hand::Look { read, act };
        if outcome == Outcome::Applied {
            to.hands[place] = then(Act::Rescore);
            self.fault(Fault::LostReply, who, "applies, no answer", to);
        }
        let done = matches!(outcome, Outcome::Applied | Outcome::Already);
        to.hands[place] = match (done, ended) {
            (true, true) => Hand::Finish { by: By::Look, effects: true },
            (true, false) => then(next),
            (false, _) => then(Act::Rescore),
        };
        self.push(who, what, to);
    }
}

/// Whether a hand holds this message.
fn in_hand(hands: &[Hand], what: impl Fn(&Hand) -> Option<Age>, age: Age) -> bool {
    hands.iter().any(|hand| what(hand) == Some(age))
}
