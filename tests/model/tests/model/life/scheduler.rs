//! What the schedulers do: dispatch, settle, finish, cancel, scrub; two things at a time. Looks are in
//! [`super::reconciler`].
//!
//! A hand that dies leaves its message unacked, so the message is delivered again. A script whose answer is lost
//! counts as failed: a message goes back, and a look is re-scored and repeated.

use muster_domain::{Event, Outcome};

use super::{
    super::record::{Age, Report, Seen},
    Fault, Flaw, Steps, World,
};

/// The activity on whose behalf the effects of an end are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum By {
    Settle { report: Report, ours: bool },
    Look,
    Cancel,
}

/// What a reader has decided to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Act {
    Wake(Age),
    /// Publishes the submit of this version.
    Announce(Age),
    Reoffer(Age),
    /// Publishes the offer of this version.
    Offer(Age),
    End(Age, Event),
    Rescore,
    DropOrphan,
}

/// One running activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Hand {
    Idle,
    /// A submit of this version, not yet applied.
    Dispatch {
        submit: Age,
    },
    /// The job is offered without changing its record, under the submit's own version.
    OfferAsItIs {
        submit: Age,
    },
    /// The dispatch is applied: the offer of this version is to be published, the home forwarded.
    Offer {
        offer: Age,
        publish: bool,
        forward: bool,
    },
    AckSubmit {
        submit: Age,
    },
    Settle {
        report: Report,
        ours: bool,
    },
    Forward {
        report: Report,
        ours: bool,
    },
    AckResult {
        report: Report,
        ours: bool,
    },
    /// The effects are to be done, then the home is to be removed.
    Finish {
        by: By,
        effects: bool,
    },
    /// `read`: the home's score is still the one that was read.
    Look {
        read: bool,
        act: Act,
    },
    Scrub,
    /// The home is forwarded, the cancel is to be applied.
    Cancel,
}

impl Hand {
    pub(super) fn older(&mut self) {
        match self {
            Hand::Dispatch { submit: age }
            | Hand::OfferAsItIs { submit: age }
            | Hand::Offer { offer: age, .. }
            | Hand::AckSubmit { submit: age } => *age = age.older(),
            Hand::Look { act, .. } => match act {
                Act::Wake(age) | Act::Announce(age) | Act::Reoffer(age) | Act::Offer(age) | Act::End(age, _) => {
                    *age = age.older();
                }
                Act::Rescore | Act::DropOrphan => {}
            },
            _ => {}
        }
    }

    /// Marks the fence as old: another attempt has started.
    pub(super) fn outrun(&mut self) {
        match self {
            Hand::Settle { ours, .. }
            | Hand::Forward { ours, .. }
            | Hand::AckResult { ours, .. }
            | Hand::Finish { by: By::Settle { ours, .. }, .. } => *ours = false,
            _ => {}
        }
    }

    /// Notes that the home's score has changed.
    pub(super) fn misread(&mut self) {
        if let Hand::Look { read, .. } = self {
            *read = false;
        }
    }

    /// The hand without what can never match again: an old submit is dropped, a report under an old fence is stale,
    /// and no worker can start an old offer.
    pub(super) fn settled_down(self) -> Hand {
        match self {
            Hand::Dispatch { submit: Age::Old }
            | Hand::OfferAsItIs { submit: Age::Old }
            | Hand::AckSubmit { submit: Age::Old }
            | Hand::Settle { ours: false, .. }
            | Hand::AckResult { ours: false, .. }
            | Hand::Offer { offer: Age::Old, forward: false, .. } => Hand::Idle,
            Hand::Offer { offer: Age::Old, forward, .. } => Hand::Offer { offer: Age::Old, publish: false, forward },
            other => other,
        }
    }

    /// Whether the hand holds a version that it may compare with the version before the last change.
    pub(super) fn knows_before(&self) -> bool {
        match self {
            Hand::Dispatch { submit: age }
            | Hand::OfferAsItIs { submit: age }
            | Hand::Offer { offer: age, .. }
            | Hand::AckSubmit { submit: age } => *age != Age::Old,
            Hand::Look { act, .. } => match act {
                Act::Wake(age) | Act::Announce(age) | Act::Reoffer(age) | Act::Offer(age) | Act::End(age, _) => {
                    *age != Age::Old
                }
                Act::Rescore | Act::DropOrphan => false,
            },
            _ => false,
        }
    }

    /// Whether the hand may still settle an attempt under the record's fence.
    pub(super) fn may_settle(&self) -> bool {
        self.result().is_some_and(|(_, ours)| ours)
    }

    fn submit(&self) -> Option<Age> {
        match self {
            Hand::Dispatch { submit } | Hand::OfferAsItIs { submit } | Hand::AckSubmit { submit } => Some(*submit),
            Hand::Offer { offer, .. } => Some(offer.older()),
            _ => None,
        }
    }

    fn result(&self) -> Option<(Report, bool)> {
        match *self {
            Hand::Settle { report, ours }
            | Hand::Forward { report, ours }
            | Hand::AckResult { report, ours }
            | Hand::Finish { by: By::Settle { report, ours }, .. } => Some((report, ours)),
            _ => None,
        }
    }

    /// The version of the submit that the hand is about to decide or to publish.
    pub(super) fn will_decide(&self) -> Option<Age> {
        match *self {
            Hand::Dispatch { submit: age } | Hand::Look { act: Act::Announce(age), .. } => Some(age),
            _ => None,
        }
    }

    /// The version of the offer that the hand is about to publish.
    pub(super) fn will_offer(&self) -> Option<Age> {
        match *self {
            Hand::Offer { offer: age, publish: true, .. } | Hand::Look { act: Act::Offer(age), .. } => Some(age),
            _ => None,
        }
    }
}

pub(super) const WHO: [&str; 2] = ["S1", "S2"];

impl Steps<'_> {
    pub(super) fn hands(&mut self) {
        for place in 0..2 {
            // Two idle hands are alike.
            if place == 0 || self.world.hands[0] != self.world.hands[1] {
                self.hand(place);
            }
        }
    }

    pub(super) fn put(&self, place: usize, hand: Hand) -> World {
        let mut to = self.world;
        to.hands[place] = hand;
        to
    }

    fn hand(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        let hand = w.hands[place];
        // A crash before the first write is the same as not having begun.
        if !matches!(hand, Hand::Idle | Hand::Dispatch { .. } | Hand::Settle { .. } | Hand::Scrub | Hand::Cancel) {
            self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::Idle));
        }
        match hand {
            Hand::Idle => self.takes(place),
            Hand::Dispatch { submit } => {
                self.dispatch(place, submit);
                // Or, on a hot topic, it offers the job without reading or changing the record.
                self.push(who, "decides to offer it as it is", self.put(place, Hand::OfferAsItIs { submit }));
            }
            Hand::OfferAsItIs { submit } => {
                let mut to = self.put(place, Hand::AckSubmit { submit });
                to.offers = to.offers.with(submit);
                self.push(who, "offer (as it is)", to);
            }
            Hand::Offer { offer, publish, forward } => {
                let next = |publish, forward| match (publish, forward) {
                    (false, false) => Hand::AckSubmit { submit: offer.older() },
                    _ => Hand::Offer { offer, publish, forward },
                };
                if publish {
                    let mut to = self.put(place, next(false, forward));
                    to.offers = to.offers.with(offer);
                    self.push(who, "offer", to);
                }
                if forward {
                    let mut to = self.put(place, next(publish, false));
                    to.touch_home();
                    self.push(who, "forward_homes", to);
                }
            }
            Hand::AckSubmit { submit } => {
                let mut to = self.put(place, Hand::Idle);
                to.submits = to.submits.without(submit);
                self.push(who, "acks the submit", to);
            }
            Hand::Settle { report, ours } => self.settle(place, report, ours),
            Hand::Forward { report, ours } => {
                let mut to = self.put(place, Hand::AckResult { report, ours });
                to.touch_home();
                self.push(who, "forward_homes", to);
            }
            Hand::AckResult { report, ours } => {
                let mut to = self.put(place, Hand::Idle);
                to.results = to.results.without(report, ours);
                self.push(who, "tells settled, acks the result", to);
            }
            Hand::Finish { by, effects } => self.finish(place, by, effects),
            Hand::Look { read, act } => self.acts(place, read, act),
            Hand::Cancel => {
                let mut to = w;
                let outcome = to.apply(Event::Cancel, Seen::Any);
                let done = matches!(outcome, Outcome::Applied | Outcome::Already);
                to.hands[place] = if done { Hand::Finish { by: By::Cancel, effects: true } } else { Hand::Idle };
                self.push(who, "cancel: apply(cancel)", to);
            }
            Hand::Scrub => {
                let mut to = self.put(place, Hand::Idle);
                if !w.home {
                    to.touch_home();
                }
                self.push(who, "scrub: puts the home back if it is gone", to);
            }
        }
    }

    fn takes(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        let other = w.hands[1 - place];
        for submit in w.submits.iter() {
            let again = other.submit() == Some(submit);
            let to = self.put(place, Hand::Dispatch { submit });
            self.unless(again, Fault::Redelivery, who, "takes a submit", to);
        }
        for (report, ours) in w.results.iter() {
            let again = other.result() == Some((report, ours));
            let to = self.put(place, Hand::Settle { report, ours });
            self.unless(again, Fault::Redelivery, who, "takes a result", to);
        }
        if w.home {
            self.look(place);
        }
        let Some(record) = w.record else { return };
        if !record.ended() {
            let mut to = self.put(place, Hand::Cancel);
            to.touch_home();
            self.fault(Fault::Cancel, who, "cancel: forward_homes", to);
        }
        // If homes are never lost, a scrub is useful only for a record that never had a home.
        let needed = self.life.kinds.contains(&Fault::LostHome) || (!w.home && !w.effects);
        let passed_over = record.ended() && self.life.has(Flaw::ScrubOnlyLiving);
        if needed && !passed_over && !self.life.has(Flaw::NoScrub) {
            self.push(who, "scrub: reads the record", self.put(place, Hand::Scrub));
        }
    }

    fn dispatch(&mut self, place: usize, submit: Age) {
        let who = WHO[place];
        let mut to = self.world;
        match to.apply(Event::Dispatch, Seen::Version(submit)) {
            Outcome::Applied => {
                to.hands[place] = Hand::Idle;
                self.fault(Fault::LostReply, who, "apply(dispatch), no answer", to);
                // The home of a new pending job is near enough.
                to.hands[place] = Hand::Offer { offer: Age::Now, publish: true, forward: false };
                self.push(who, "apply(dispatch)", to);
            }
            Outcome::Already => {
                to.hands[place] = Hand::Offer { offer: Age::Now, publish: true, forward: true };
                self.push(who, "apply(dispatch): already", to);
            }
            _ => {
                to.hands[place] = Hand::AckSubmit { submit };
                self.push(who, "apply(dispatch): somebody was faster", to);
            }
        }
    }

    fn settle(&mut self, place: usize, report: Report, ours: bool) {
        let who = WHO[place];
        let mut to = self.world;
        let event = to.record.map_or(Event::Succeed, |record| record.settled_by(report));
        let outcome = to.apply(event, Seen::Fence(ours));
        let ended = to.record.is_some_and(|record| record.ended());
        let finish = |effects| Hand::Finish { by: By::Settle { report, ours }, effects };
        if outcome == Outcome::Applied {
            to.hands[place] = Hand::Idle;
            self.fault(Fault::LostReply, who, "apply(report), no answer", to);
        }
        match (outcome, ended) {
            (Outcome::Applied, true) => {
                to.hands[place] = finish(true);
                self.push(who, "apply(report): ended", to);
            }
            (Outcome::Already, true) => {
                to.hands[place] = finish(!self.life.has(Flaw::EffectsOnce));
                self.push(who, "apply(report): already, ended", to);
            }
            (Outcome::Applied, false) => {
                // The home is forwarded only if it must be due before the end of the lease.
                to.hands[place] = Hand::AckResult { report, ours };
                self.push(who, "apply(report)", to);
                to.hands[place] = Hand::Forward { report, ours };
                self.push(who, "apply(report), to be forwarded", to);
            }
            (Outcome::Already, false) => {
                to.hands[place] = Hand::Forward { report, ours };
                self.push(who, "apply(report): already", to);
            }
            _ => {
                to.hands[place] = Hand::AckResult { report, ours };
                self.push(who, "apply(report): stale", to);
            }
        }
    }

    /// `flow::finish`: the effects, then the home. `effects`: they are still to be done.
    fn finish(&mut self, place: usize, by: By, effects: bool) {
        let who = WHO[place];
        let home_first = self.life.has(Flaw::HomeBeforeEffects);
        let after = match by {
            By::Settle { report, ours } => Hand::AckResult { report, ours },
            By::Look | By::Cancel => Hand::Idle,
        };
        let next = if effects { Hand::Finish { by, effects: false } } else { after };
        let mut to = self.put(place, next);
        if effects != home_first {
            to.effects = true;
            self.push(who, "finish: effects", to);
        } else {
            to.hasty_drop |= !to.effects;
            to.drop_home();
            self.push(who, "finish: drop_homes", to);
        }
    }
}
