//! Batches of submits and of results, from the delivery to the ack: `intake.rs`, `dispatch.rs`, `settle.rs`.
//!
//! A hand that dies leaves its deliveries unacked, so they are delivered again and handled item by item. An item
//! fails separately, whether its script was applied or not.

use muster_domain::{Event, Outcome, State};

use super::{
    super::record::{Age, Report, Seen},
    Batch, Fault, Flaw, Hand, Jobs, Kind, Left, NONE, Stage, Steps, WHO, World, any,
    stream::{FAILURE, Message, NOW},
};

/// How an item fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fails {
    AfterIts(usize),
    Before(usize),
}

impl Steps<'_> {
    pub(super) fn takes(&mut self, place: usize) {
        for (kind, what, together) in [
            (Kind::Submit, "takes a submit", "takes a submit, and the other's"),
            (Kind::Result, "takes a result", "takes a result, and the other's"),
        ] {
            let mut to = self.world;
            let stream = *to.stream(kind);
            for message in stream.iter() {
                let taken = |hand: &Hand| matches!(hand, Hand::Batch(b) if b.kind == kind && b.deliveries().any(|m| m.of == message.of));
                let again = message.again && self.world.hands.iter().any(taken);
                let mut to = self.put(place, Hand::Batch(Batch::of(kind, message, false)));
                *to.stream(kind) = stream.without(message).with(message.delivered());
                self.unless(again, Fault::Redelivery, WHO[place], what, to);
                let [first, other] = message.of;
                let partner = (1..3).map(|item| Message::single(1, item)).filter(|partner| stream.has(*partner));
                for partner in partner.filter(|_| other == 0 && first != 0 && !message.again) {
                    let both = Message { of: [first, partner.of[1]], again: false };
                    let mut to = self.put(place, Hand::Batch(Batch::of(kind, both, true)));
                    let left = stream.without(message).without(partner);
                    *to.stream(kind) = left.with(message.delivered()).with(partner.delivered());
                    self.push(WHO[place], together, to);
                }
            }
        }
    }

    pub(super) fn batch(&mut self, place: usize, batch: Batch) {
        let who = WHO[place];
        self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::Idle));
        let then = |batch: Batch| Hand::Batch(batch);
        match batch.stage {
            Stage::Apply => self.applies(place, batch),
            Stage::Offer => {
                let after = Batch { offer: NONE, ..batch }.next();
                let mut to = self.put(place, then(after));
                (0..2).for_each(|job| to.offers[job] |= batch.offer[job]);
                self.push(who, "offer", to);
                let unsent = Batch { failed: both(batch.failed, batch.offer), ..after };
                self.fault(Fault::Refused, who, "offer: the bus does not answer", self.put(place, then(unsent)));
            }
            Stage::Finish => {
                let mut to = self.put(place, then(Batch { stage: Stage::Drop, ..batch }));
                to.finish(batch.ended, true);
                self.push(who, "finish: effects", to);
                let unfinished = Batch { failed: both(batch.failed, batch.ended), ended: NONE, ..batch }.next();
                self.fault(Fault::Refused, who, "finish: the store does not answer", self.put(place, then(unfinished)));
            }
            Stage::Drop => {
                let mut to = self.put(place, then(Batch { ended: NONE, ..batch }.next()));
                let all = batch.message.of.map(|item| item != 0);
                to.finish(if self.batches.has(Flaw::DropsAllHomes) { all } else { batch.ended }, false);
                self.push(who, "finish: drop_homes", to);
            }
            Stage::Close => self.closes(place, batch),
            Stage::Ack => {
                let mut to = self.put(place, Hand::Idle);
                batch.ack(&mut to, |_| true);
                self.push(who, "acks the delivery", to);
            }
        }
    }

    /// Applies all items in one pipeline, or item by item. Each item fails separately.
    fn applies(&mut self, place: usize, batch: Batch) {
        let who = WHO[place];
        let what = if batch.kind == Kind::Submit { "apply(dispatch)" } else { "apply(report)" };
        let (to, _) = self.applied(place, batch, None);
        self.push(who, what, to);
        for job in (0..2).filter(|job| batch.turn()[*job]) {
            let (to, moved) = self.applied(place, batch, Some(Fails::AfterIts(job)));
            if moved {
                self.fault(Fault::LostReply, who, "applies, no answer", to);
            }
            let (to, _) = self.applied(place, batch, Some(Fails::Before(job)));
            self.fault(Fault::Refused, who, "applies what is in reach", to);
        }
        let fresh = |job: usize| {
            let record = &self.world.records[job];
            batch.message.of[job] == NOW && record.attempt == 0 && record.state == State::Pending
        };
        if batch.kind == Kind::Submit && !batch.message.again && (0..2).any(fresh) {
            let mut to = self.put(place, Hand::Batch(Batch { stage: Stage::Close, todo: NONE, ..batch }));
            (0..2).for_each(|job| to.offers[job] |= fresh(job));
            self.push(who, "offer (as it is)", to);
        }
    }

    /// Applies the items. Also returns whether the item that fails after its script was changed by it.
    fn applied(&self, place: usize, batch: Batch, fails: Option<Fails>) -> (World, bool) {
        let (mut to, mut batch, mut moved) = (self.world, batch, false);
        let turn = batch.turn();
        for job in (0..2).filter(|job| turn[*job]) {
            batch.todo[job] = false;
            if fails == Some(Fails::Before(job)) {
                batch.failed[job] = true;
                continue;
            }
            let item = self.world.hands[place].item(job);
            let outcome = match batch.kind {
                _ if item == 0 => Outcome::Stale,
                Kind::Submit => {
                    to.apply(job, Event::Dispatch, Seen::Version(if item == NOW { Age::Now } else { Age::Before }))
                }
                Kind::Result => self.settle(&mut to, job, item),
            };
            let done = matches!(outcome, Outcome::Applied | Outcome::Already);
            if fails == Some(Fails::AfterIts(job)) {
                moved = outcome == Outcome::Applied;
                batch.failed[job] = true;
                continue;
            }
            batch.offer[job] = done && batch.kind == Kind::Submit;
            batch.ended[job] = done && to.records[job].ended();
            if outcome == Outcome::Already && batch.ended[job] && self.batches.has(Flaw::EffectsOnce) {
                batch.ended[job] = false;
                to.finish([job == 0, job == 1], false);
            }
        }
        // The batch's own changes have aged the items that it carries.
        let Hand::Batch(aged) = to.hands[place] else { return (to, moved) };
        to.hands[place] = Hand::Batch(Batch { message: aged.message, ..batch }.next());
        (to, moved)
    }

    fn settle(&self, to: &mut World, job: usize, item: u8) -> Outcome {
        let report = if item == FAILURE { Report::Failure } else { Report::Success };
        let event = to.records[job].settled_by(report);
        let outcome = to.apply(job, event, Seen::Fence(true));
        if self.batches.has(Flaw::WritesBlindly) && outcome == Outcome::Illegal && report == Report::Success {
            to.records[job].state = State::Succeeded;
            to.left[job] = Left::All;
            to.moved(job, event, false, true);
            return Outcome::Applied;
        }
        outcome
    }

    fn closes(&mut self, place: usize, batch: Batch) {
        let who = WHO[place];
        let mut to = self.put(place, Hand::Idle);
        if self.batches.has(Flaw::AcksDespiteFailure) || !any(batch.failed) {
            batch.ack(&mut to, |_| true);
            return self.push(who, "acks the delivery", to);
        }
        let items = batch.message.of.map(|item| item != 0);
        let some_done = (0..2).any(|job| items[job] && !batch.failed[job]);
        if batch.message.again && some_done {
            let mut failed = batch.message;
            (0..2).filter(|job| !batch.failed[*job]).for_each(|job| failed.of[job] = 0);
            if !self.batches.has(Flaw::ForgetsWhatFailed) {
                *to.stream(batch.kind) = to.stream(batch.kind).with(Message { again: false, ..failed });
            }
            to.hands[place] = Hand::Batch(Batch { stage: Stage::Ack, ..batch });
            return self.push(who, "publishes what failed", to);
        }
        // Each delivery is acked separately: those without a failed item are done.
        batch.ack(&mut to, |message| !(0..2).any(|job| message.of[job] != 0 && batch.failed[job]));
        self.push(who, "gives the delivery back", to);
    }
}

fn both(one: Jobs, other: Jobs) -> Jobs {
    [one[0] || other[0], one[1] || other[1]]
}

impl Batch {
    fn of(kind: Kind, message: Message, apart: bool) -> Batch {
        let todo = message.of.map(|item| item != 0);
        Batch { kind, message, apart, stage: Stage::Apply, todo, offer: NONE, ended: NONE, failed: NONE }
    }

    /// The items that are handled next: all at once, or one item of a repeated delivery.
    fn turn(&self) -> Jobs {
        match self.todo {
            [true, true] if self.message.again => [true, false],
            todo => todo,
        }
    }

    /// The batch in its next stage.
    fn next(self) -> Batch {
        let stage = match self {
            _ if any(self.offer) => Stage::Offer,
            _ if any(self.ended) => Stage::Finish,
            _ if any(self.todo) => Stage::Apply,
            _ => Stage::Close,
        };
        Batch { stage, ..self }
    }

    /// The messages in which the batch was delivered.
    pub(super) fn deliveries(&self) -> impl Iterator<Item = Message> {
        let [a, b] = self.message.of;
        let all = if self.apart { [Message::single(0, a), Message::single(1, b)] } else { [self.message; 2] };
        all.into_iter().filter(|message| message.of != [0; 2])
    }

    /// Acks the deliveries for which `whole` is true.
    fn ack(&self, to: &mut World, whole: impl Fn(&Message) -> bool) {
        for message in self.deliveries().filter(whole) {
            *to.stream(self.kind) = to.stream(self.kind).without(message.delivered());
        }
    }
}

impl Hand {
    /// The item of this job in the hand's batch.
    fn item(&self, job: usize) -> u8 {
        if let Hand::Batch(batch) = self { batch.message.of[job] } else { 0 }
    }
}
