//! The steps of two jobs in a backlog: decisions, rounds, looks, workers, and outside events.

use muster_domain::{Event, Outcome, State};

use super::{
    super::{
        explore::Step,
        record::{Age, MAX_ATTEMPTS, Seen},
    },
    Fault, Flaw, GROUPS, Hand, Item, Jobs, Rounds, Stage, World,
};

pub(super) struct Steps<'a> {
    pub(super) rounds: &'a Rounds,
    pub(super) world: World,
    pub(super) out: Vec<Step<World>>,
}

/// How an item fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fails {
    AfterIts(usize),
    Before(usize),
}

const WHO: [&str; 2] = ["S1", "S2"];

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        self.out.push(Step::new(who, what, to.canonical()));
    }

    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.rounds.kinds.contains(&kind) {
            to.faults -= 1;
            self.out.push(Step::fault(who, what, to.canonical()));
        }
    }

    fn put(&self, place: usize, hand: Hand) -> World {
        let mut to = self.world;
        to.hands[place] = hand;
        to
    }

    pub(super) fn hands(&mut self) {
        for (place, who) in WHO.into_iter().enumerate() {
            // Two equal hands have the same steps.
            if place == 1 && self.world.hands[0] == self.world.hands[1] {
                continue;
            }
            let hand = self.world.hands[place];
            if hand != Hand::Idle {
                self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::Idle));
            }
            match hand {
                Hand::Idle => {
                    self.decides(place);
                    self.claims(place);
                    self.looks(place);
                }
                Hand::Round { stage, items } => self.round(place, stage, items),
                other => self.goes_on(place, other),
            }
        }
    }

    /// Decides a batch of submits of pending jobs: they are held, put into the backlog, or offered without a change.
    fn decides(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        let decidable = |job: usize| w.near[job] || w.submits[job];
        let pending = [0, 1].map(|job| w.records[job].state == State::Pending && decidable(job));
        let fresh = [0, 1].map(|job| pending[job] && w.records[job].last.is_none());
        for jobs in GROUPS {
            if within(jobs, pending) {
                self.push(who, "apply(hold)", self.held(place, jobs, None));
                for job in (0..2).filter(|job| jobs[*job]) {
                    let (after, before) = (Fails::AfterIts(job), Fails::Before(job));
                    self.fault(Fault::LostReply, who, "apply(hold), no answer", self.held(place, jobs, Some(after)));
                    self.fault(Fault::Refused, who, "apply(hold), not served", self.held(place, jobs, Some(before)));
                }
            }
            // Only for a first delivery, and for jobs that have not changed.
            if within(jobs, fresh) {
                let entries = jobs.map(|is| is.then_some(Age::Now));
                self.push(who, "stands in line", self.put(place, Hand::Enqueue(entries)));
                let mut to = w;
                (0..2).for_each(|job| to.offers[job] |= jobs[job]);
                self.push(who, "offer (as it is)", to);
            }
        }
    }

    fn held(&self, place: usize, jobs: Jobs, fails: Option<Fails>) -> World {
        let (mut to, mut entries) = (self.world, [None; 2]);
        for job in (0..2).filter(|job| jobs[*job]) {
            if fails == Some(Fails::Before(job)) {
                continue;
            }
            to.apply(job, Event::Hold, Seen::Version(Age::Now));
            entries[job] = (fails != Some(Fails::AfterIts(job))).then_some(Age::Now);
        }
        to.hands[place] = if entries == [None; 2] { Hand::Idle } else { Hand::Enqueue(entries) };
        to
    }

    /// Claims one entry, or one of each job: as many as the window has room for.
    fn claims(&mut self, place: usize) {
        let w = self.world;
        let one = |job: usize| w.entries[job].iter().map(Item::Claimed).chain([Item::None]);
        for first in one(0) {
            for second in one(1).filter(|second| [first, *second] != [Item::None; 2]) {
                // On a busy topic the scheduler reads the records first. That helps only jobs that have not changed
                // since they were accepted.
                let reads = [false, true].into_iter().filter(|read| !read || (0..2).any(|job| self.as_accepted(job)));
                for read in reads.collect::<Vec<_>>() {
                    let hand = Hand::Round { stage: Stage::Dispatch { read }, items: [first, second] };
                    self.push(WHO[place], "claim_queued", self.put(place, hand));
                }
            }
        }
    }

    fn looks(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        if self.rounds.has(Flaw::NobodyLooks) {
            return;
        }
        for job in (0..2).filter(|job| w.near[*job]) {
            let will_offer = |hand: &Hand| match hand {
                Hand::Round { items, .. } => matches!(items[job], Item::Offer { offer: Age::Now, .. }),
                Hand::OfferAgain { job: of, offer } => *of == job && *offer == Age::Now,
                _ => false,
            };
            match w.records[job].state {
                State::Queued => {
                    let to = self.put(place, Hand::PutBack { job, entry: Age::Now, read: true });
                    self.push(who, "look: requeue", to);
                }
                State::Pending if self.rounds.has(Flaw::LinedFar) && w.entries[job].has(Age::Now) => {
                    self.push(who, "look: nothing", self.put(place, Hand::Rescore { job, read: true }));
                }
                State::Dispatched if !w.offers[job] && !w.hands.iter().any(will_offer) => {
                    let mut to = w;
                    to.apply(job, Event::Reoffer, Seen::Version(Age::Now));
                    to.hands[place] = Hand::OfferAgain { job, offer: Age::Now };
                    self.push(who, "apply(reoffer)", to);
                }
                _ => {}
            }
        }
    }

    fn goes_on(&mut self, place: usize, hand: Hand) {
        let who = WHO[place];
        let mut to = self.put(place, Hand::Idle);
        match hand {
            Hand::Idle | Hand::Round { .. } => {}
            Hand::Enqueue(entries) => {
                self.fault(Fault::Refused, who, "enqueue: the store does not answer", to);
                for (job, entry) in entries.into_iter().enumerate() {
                    to.entries[job] = entry.map_or(to.entries[job], |entry| to.entries[job].with(entry));
                }
                self.push(who, "enqueue", to);
            }
            Hand::PutBack { job, entry, read } => {
                to.entries[job] = to.entries[job].with(entry);
                to.hands[place] = Hand::Rescore { job, read };
                self.push(who, "look: put_back", to);
            }
            Hand::Rescore { job, read } => {
                if read {
                    to.forward(job);
                    to.near[job] = false;
                }
                self.push(who, "rescore_homes", to);
            }
            Hand::OfferAgain { job, offer } => {
                to.offers[job] |= offer == Age::Now;
                self.push(who, "offer (again)", to);
            }
        }
    }

    fn round(&mut self, place: usize, stage: Stage, items: [Item; 2]) {
        let who = WHO[place];
        let w = self.world;
        let then = |stage, items| {
            let mut to = w;
            to.hands[place] = Hand::Round { stage, items };
            to
        };
        match stage {
            Stage::Dispatch { read: true } => {
                let stands = |(job, item): (usize, Item)| match item {
                    Item::Claimed(Age::Now) if self.as_accepted(job) => {
                        Item::Offer { entry: Age::Now, offer: Age::Now, forward: false }
                    }
                    other => other,
                };
                let items = [(0, items[0]), (1, items[1])].map(stands);
                let all = !items.iter().any(|item| matches!(item, Item::Claimed(_)));
                let stage = if all { Stage::Publish } else { Stage::Dispatch { read: false } };
                self.push(who, "reads that it stands as it was", then(stage, items));
            }
            Stage::Dispatch { read: false } => self.dispatches(place, items),
            Stage::Publish => {
                let mut to = then(Stage::Forward, items);
                let current = |item: &Item| matches!(item, Item::Offer { offer: Age::Now, .. });
                (0..2).for_each(|job| to.offers[job] |= current(&items[job]));
                self.push(who, "offer", to);
                let removes = self.rounds.has(Flaw::RemovesUnsent);
                for unsent in GROUPS {
                    let left = [0, 1].map(|job| match items[job] {
                        Item::Offer { entry, .. } if unsent[job] && removes => Item::Over(entry),
                        Item::Offer { .. } if unsent[job] => Item::None,
                        other => other,
                    });
                    let mut to = then(Stage::Forward, left);
                    (0..2).for_each(|job| to.offers[job] |= current(&left[job]));
                    if left != items {
                        self.fault(Fault::Refused, who, "offer: the bus does not answer", to);
                    }
                }
            }
            Stage::Forward => {
                let mut to = then(Stage::Remove, items);
                for (job, item) in items.iter().enumerate() {
                    if let Item::Offer { forward: true, .. } = item {
                        to.forward(job);
                    }
                }
                self.push(who, "forward_homes", to);
                // Then only the entries that were already done are removed.
                let over = items.map(|item| if let Item::Offer { .. } = item { Item::None } else { item });
                self.fault(Fault::Refused, who, "forward_homes: no answer", then(Stage::Remove, over));
            }
            Stage::Remove => {
                let mut to = self.put(place, Hand::Idle);
                for (job, item) in items.into_iter().enumerate() {
                    if let Item::Offer { entry, .. } | Item::Over(entry) = item {
                        to.entries[job] = to.entries[job].without(entry);
                    }
                }
                self.push(who, "remove_queued", to);
            }
        }
    }

    /// Whether the job has not changed since it was accepted.
    fn as_accepted(&self, job: usize) -> bool {
        let record = &self.world.records[job];
        record.state == State::Pending && record.last.is_none()
    }

    /// Dispatches the claimed entries in one pipeline. Each item fails separately.
    fn dispatches(&mut self, place: usize, items: [Item; 2]) {
        let who = WHO[place];
        let (to, _) = self.dispatched(place, items, None);
        self.push(who, "apply(dispatch)", to);
        for job in (0..2).filter(|job| matches!(items[*job], Item::Claimed(_))) {
            let (to, moved) = self.dispatched(place, items, Some(Fails::AfterIts(job)));
            if moved {
                self.fault(Fault::LostReply, who, "apply(dispatch), no answer", to);
            }
            let (to, _) = self.dispatched(place, items, Some(Fails::Before(job)));
            self.fault(Fault::Refused, who, "apply(dispatch), not served", to);
        }
    }

    fn dispatched(&self, place: usize, items: [Item; 2], fails: Option<Fails>) -> (World, bool) {
        let (mut to, mut moved) = (self.world, false);
        // A change of the record ages what all hands hold, including this one.
        let items_of = |to: &World| if let Hand::Round { items, .. } = to.hands[place] { items } else { items };
        let mut decided = [None; 2];
        for job in 0..2 {
            let Item::Claimed(entry) = items[job] else { continue };
            let unknown = if self.rounds.has(Flaw::RemovesUnknown) { Item::Over(entry) } else { Item::None };
            if fails == Some(Fails::Before(job)) {
                decided[job] = Some(unknown);
                continue;
            }
            // A pending job in the backlog has a near look, as all pending jobs have.
            let lined = self.world.records[job].state == State::Pending;
            let outcome = to.apply(job, Event::Dispatch, Seen::Version(entry));
            let first = outcome == Outcome::Applied;
            let Item::Claimed(entry) = items_of(&to)[job] else { continue };
            decided[job] = Some(match to.records[job].state {
                _ if fails == Some(Fails::AfterIts(job)) => {
                    moved = first;
                    if self.rounds.has(Flaw::RemovesUnknown) { Item::Over(entry) } else { Item::None }
                }
                State::Dispatched => Item::Offer { entry, offer: Age::Now, forward: !(lined && first) },
                _ => Item::Over(entry),
            });
        }
        let aged = items_of(&to);
        let items = [0, 1].map(|job| decided[job].unwrap_or(aged[job]));
        to.hands[place] = Hand::Round { stage: Stage::Publish, items };
        (to, moved)
    }

    pub(super) fn others(&mut self) {
        let w = self.world;
        for jobs in GROUPS.into_iter().filter(|jobs| within(*jobs, w.offers)) {
            let mut to = w;
            for job in (0..2).filter(|job| jobs[*job]) {
                to.apply(job, Event::Recall, Seen::Version(Age::Now));
                to.submits[job] = true;
            }
            self.fault(Fault::Pause, "scheduler", "apply(recall), publish_submits", to);
        }
        for job in 0..2 {
            let mut to = w;
            match w.records[job].state {
                State::Dispatched | State::Pending if w.offers[job] => {
                    to.apply(job, Event::Start, Seen::Offer(Age::Now, 0));
                    self.push("worker", "apply(start), acks the offer", to);
                }
                State::Running => {
                    to.apply(job, Event::Succeed, Seen::Fence(true));
                    self.push("worker", "succeeds", to);
                    if w.records[job].attempt < MAX_ATTEMPTS {
                        let mut to = w;
                        to.apply(job, Event::Retry, Seen::Fence(true));
                        to.apply(job, Event::Wake, Seen::Version(Age::Now));
                        to.forward(job);
                        self.fault(Fault::Failure, "worker", "fails, the job is pending again", to);
                    }
                }
                _ => {}
            }
            if !w.records[job].ended() {
                let mut to = w;
                to.apply(job, Event::Cancel, Seen::Any);
                self.fault(Fault::Cancel, "gateway", "apply(cancel)", to);
            }
        }
        if (w.offers, w.submits) != ([false; 2], [false; 2]) {
            let to = World { offers: [false; 2], submits: [false; 2], ..w };
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
    }
}

/// Whether the first set is a subset of the second.
fn within(these: Jobs, those: Jobs) -> bool {
    (0..2).all(|job| !these[job] || those[job])
}
