//! The steps of two jobs under one limit: schedulers, workers, and outside events.
//!
//! A hand that dies leaves its result unacked and its slot taken. A script whose answer is lost leaves the entry
//! where it is.

use muster_domain::{Event, Outcome, State};

use super::{
    super::{
        explore::Step,
        record::{Age, Report, Says, Seen},
    },
    Fault, Flaw, Hand, Held, Limit, Member, Run, Said, Slots, Verdict, World,
};

pub(super) struct Steps<'a> {
    pub(super) slots: &'a Slots,
    pub(super) world: &'a World,
    pub(super) out: Vec<Step<World>>,
}

const WHO: [&str; 2] = ["S1", "S2"];

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        self.out.push(Step::new(who, what, to.canonical()));
    }

    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.slots.kinds.contains(&kind) {
            to.faults -= 1;
            self.out.push(Step::fault(who, what, to.canonical()));
        }
    }

    fn unless(&mut self, needs: bool, kind: Fault, who: &'static str, what: &'static str, to: World) {
        if needs { self.fault(kind, who, what, to) } else { self.push(who, what, to) }
    }

    fn put(&self, place: usize, hand: Hand) -> World {
        let mut to = self.world.clone();
        to.hands[place] = hand;
        to
    }

    pub(super) fn hands(&mut self) {
        for place in 0..2 {
            // Two equal hands have the same steps.
            if place == 0 || self.world.hands[0] != self.world.hands[1] {
                self.hand(place);
            }
        }
    }

    fn hand(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        let hand = w.hands[place];
        // A crash before the first write is the same as not having begun.
        if !matches!(hand, Hand::Idle | Hand::Take { had: 0, .. } | Hand::Settle(_) | Hand::Cancel { .. }) {
            self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::Idle));
        }
        match hand {
            Hand::Idle => {
                self.claims(place);
                self.looks(place);
            }
            Hand::Take { member, had } => self.take(place, member, had),
            Hand::Unplace { member, holder } => {
                let mut to = self.put(place, self.found(holder));
                self.remove(&mut to, 0, member);
                self.push(who, "take_keys: gives the place back", to);
            }
            Hand::Dispatch(member) => self.dispatch(place, member),
            Hand::Offer(member) => {
                let mut to = self.put(place, Hand::Idle);
                to.jobs[member.job].offered |= w.age(member) == Age::Now;
                self.push(who, "offer, forward_homes, remove_queued", to);
            }
            Hand::Reclaim(held) => self.reclaim(place, held),
            Hand::AdmitAnew(held) => {
                let mut to = w.clone();
                let outcome = to.apply(held.member.job, Event::Hold, Seen::Version(w.age(held.member)));
                let done = matches!(outcome, Outcome::Applied | Outcome::Already);
                to.hands[place] = Hand::Idle;
                if outcome == Outcome::Applied {
                    self.fault(Fault::LostReply, who, "admit_anew: apply(hold), no answer", to.clone());
                }
                to.hands[place] = if done { Hand::FreeOne(held) } else { Hand::Idle };
                self.push(who, "admit_anew: apply(hold)", to);
            }
            Hand::FreeOne(held) => {
                let mut to = w.clone();
                self.remove(&mut to, held.of, held.member);
                to.hands[place] = next(&to, held.of);
                self.push(who, "free_slot", to);
            }
            Hand::Free { slot, done, said } => self.free(place, slot, done, said),
            Hand::Next(member) => self.hand_over(place, member),
            Hand::Settle(said) => self.settle(place, said),
            Hand::Cancel { job, named } => self.cancel(place, job, named),
        }
    }

    /// Whether two members are the same.
    fn same(&self, one: Member, other: Member) -> bool {
        one == other || (self.slots.has(Flaw::BareMember) && one.job == other.job)
    }

    /// `slot/free`: removes the member whatever its score.
    fn remove(&self, to: &mut World, of: usize, member: Member) {
        let set = &mut to.sets[of];
        set.line.retain(|waits| !self.same(*waits, member));
        if set.holder.is_some_and(|holds| self.same(holds, member)) {
            (set.holder, set.lapsed) = (None, false);
        }
    }

    /// What a scheduler does next when it finds all slots taken.
    fn found(&self, holder: Option<Held>) -> Hand {
        let looks = holder.filter(|_| !self.slots.has(Flaw::NeverReclaims));
        looks.map_or(Hand::Idle, Hand::Reclaim)
    }

    /// Claims a waiting entry, or one whose dispatcher may have died.
    fn claims(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        for job in 0..2 {
            let at = |version| Member { job, version };
            match (w.jobs[job].record.state, w.jobs[job].named) {
                (State::Queued, _) => {
                    let member = at(w.jobs[job].version);
                    self.push(who, "claim_queued", self.put(place, Hand::Take { member, had: 0 }));
                }
                (State::Dispatched, Some(named)) => {
                    self.push(who, "claim_queued (dispatched)", self.put(place, Hand::Dispatch(at(named))));
                }
                _ => {}
            }
        }
        for said in w.said.iter().copied() {
            let again = w.hands.iter().any(|hand| hand.said() == Some(said));
            let to = self.put(place, Hand::Settle(said));
            self.unless(again, Fault::Redelivery, who, "takes a result", to);
        }
    }

    /// `slot/take`, one limit after the other.
    fn take(&mut self, place: usize, member: Member, had: usize) {
        let (w, who) = (self.world, WHO[place]);
        let mut to = w.clone();
        let (set, limit) = (&mut to.sets[had], self.slots.limits[had]);
        let gives_up = |holder| match had {
            0 => self.found(holder),
            _ => Hand::Unplace { member, holder },
        };
        let Some(holder) = set.holder else {
            set.line.retain(|waits| *waits != member);
            (set.holder, set.lapsed) = (Some(member), false);
            to.hands[place] = gives_up(None);
            self.fault(Fault::LostReply, who, "take_slots, no answer", to.clone());
            let all = had + 1 == self.slots.limits.len();
            to.hands[place] = if all { Hand::Dispatch(member) } else { Hand::Take { member, had: had + 1 } };
            return self.push(who, "take_slots: admitted", to);
        };
        let before = self.same(holder, member);
        if !before && limit == Limit::Key && !set.line.contains(&member) {
            set.line.push(member);
        }
        let lapsed = set.lapsed;
        to.hands[place] = gives_up(Some(Held { of: had, member: holder, lapsed }));
        self.push(who, if before { "take_slots: was admitted before" } else { "take_slots: all are taken" }, to);
    }

    fn dispatch(&mut self, place: usize, member: Member) {
        let (w, who, job) = (self.world, WHO[place], member.job);
        let mut to = w.clone();
        let outcome = to.apply(job, Event::Dispatch, Seen::Version(w.age(member)));
        if outcome == Outcome::Applied {
            to.hands[place] = Hand::Idle;
            self.fault(Fault::LostReply, who, "apply(dispatch), no answer", to.clone());
        }
        if matches!(outcome, Outcome::Applied | Outcome::Already) {
            to.hands[place] = Hand::Offer(Member { job, version: to.jobs[job].version });
            return self.push(who, "apply(dispatch)", to);
        }
        // Another scheduler was faster. What this one has read may be older, and then it says less.
        let over = w.judged(member) == Verdict::Over || self.slots.has(Flaw::LoserFrees);
        to.hands[place] = if over { Hand::Free { slot: member, done: 0, said: None } } else { Hand::Idle };
        self.push(who, "apply(dispatch): somebody was faster", to);
    }

    fn reclaim(&mut self, place: usize, held: Held) {
        let time_alone = held.lapsed && self.slots.has(Flaw::TimeAlone);
        let then = match self.world.judged(held.member) {
            _ if time_alone => Hand::FreeOne(held),
            Verdict::Over => Hand::FreeOne(held),
            Verdict::Admitting if held.lapsed && self.slots.has(Flaw::FreesAdmitting) => Hand::FreeOne(held),
            Verdict::Admitting if held.lapsed => Hand::AdmitAnew(held),
            Verdict::Admitting | Verdict::Held => Hand::Idle,
        };
        self.push(WHO[place], "reclaim: judges the holder", self.put(place, then));
    }

    /// First the effects and the home of an end, then the slots, then the next job in line.
    fn free(&mut self, place: usize, slot: Member, done: usize, said: Option<Said>) {
        let who = WHO[place];
        let mut to = self.world.clone();
        to.jobs[slot.job].home &= !to.jobs[slot.job].record.ended();
        self.remove(&mut to, done, slot);
        if done + 1 < self.slots.limits.len() {
            to.hands[place] = Hand::Free { slot, done: done + 1, said };
            return self.push(who, "finish: drop_homes, free_slot", to);
        }
        to.said.retain(|other| Some(*other) != said);
        to.hands[place] = next(&to, done);
        self.push(who, "finish: drop_homes, free_slot, acks the delivery", to);
    }

    fn hand_over(&mut self, place: usize, member: Member) {
        let (w, who) = (self.world, WHO[place]);
        let of = self.slots.limits.len() - 1;
        let job = &w.jobs[member.job];
        if job.record.state == State::Queued && job.version == member.version {
            return self.push(who, "hand_over: it waits", self.put(place, Hand::Take { member, had: 0 }));
        }
        let mut to = self.put(place, Hand::Idle);
        if w.judged(member) == Verdict::Over || self.slots.has(Flaw::HandOverFrees) {
            self.remove(&mut to, of, member);
            to.hands[place] = next(&to, of);
        }
        self.push(who, "hand_over: it has moved on", to);
    }

    fn settle(&mut self, place: usize, said: Said) {
        let who = WHO[place];
        let (mut to, job) = (self.world.clone(), said.slot.job);
        let event = to.jobs[job].record.settled_by(said.report);
        let outcome = to.apply(job, event, Seen::Fence(said.ours));
        if outcome == Outcome::Applied {
            to.hands[place] = Hand::Idle;
            self.fault(Fault::LostReply, who, "apply(report), no answer", to.clone());
        }
        // Whatever the result of the report is, its attempt is over.
        to.hands[place] = Hand::Free { slot: said.slot, done: 0, said: Some(said) };
        self.push(who, "apply(report)", to);
    }

    /// The findings of the reconciler, a cancel, and a refused start.
    fn looks(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        for job in 0..2 {
            let of = &w.jobs[job];
            let now = Seen::Version(Age::Now);
            let slot = of.named.map(|version| Member { job, version });
            let frees = slot.map_or(Hand::Idle, |slot| Hand::Free { slot, done: 0, said: None });
            let mut to = w.clone();
            match of.record.state {
                State::Pending => {
                    to.apply(job, Event::Hold, now);
                    self.push(who, "apply(hold)", to);
                }
                State::Retrying => {
                    to.apply(job, Event::Wake, now);
                    self.push(who, "apply(wake)", to);
                }
                State::Dispatched if of.offered => {
                    to.apply(job, Event::Recall, now);
                    to.hands[place] = frees;
                    self.fault(Fault::Pause, who, "apply(recall)", to);
                }
                State::Dispatched if !w.hands.iter().any(|hand| hand.offers(job, of.version)) => {
                    to.apply(job, Event::Reoffer, now);
                    to.hands[place] = Hand::Offer(Member { job, version: to.jobs[job].version });
                    self.push(who, "apply(reoffer)", to);
                }
                State::Running if !of.leased && !w.said.iter().any(|said| said.ours && said.slot.job == job) => {
                    let Says::Apply(event) = of.record.look(true) else { continue };
                    to.apply(job, event, now);
                    if self.slots.has(Flaw::LostIsFree) {
                        to.jobs[job].record.attempt -= 1;
                    }
                    to.hands[place] = frees;
                    self.push(who, "apply(rescue, abandon, poison)", to);
                }
                // While the worker may still run the job, the end is not finished.
                _ if of.record.ended() && of.home => {
                    let held = of.leased && slot.is_some() && !self.slots.has(Flaw::EndFrees);
                    to.jobs[job].home = slot.is_some();
                    to.hands[place] = if held { Hand::Idle } else { frees };
                    self.push(who, "look: ended, finish", to);
                }
                _ => {}
            }
            if !of.record.ended() {
                let to = self.put(place, Hand::Cancel { job, named: of.named });
                self.fault(Fault::Cancel, who, "cancel: reads the record", to);
            }
        }
    }

    fn cancel(&mut self, place: usize, job: usize, named: Option<u8>) {
        let mut to = self.put(place, Hand::Idle);
        let done = matches!(to.apply(job, Event::Cancel, Seen::Any), Outcome::Applied | Outcome::Already);
        let held = to.jobs[job].leased && named.is_some() && !self.slots.has(Flaw::EndFrees);
        if done && !held {
            // The record may name another slot by now than was read: then a job that needs that slot finds it.
            to.jobs[job].home &= named.is_some();
            if let Some(version) = named {
                to.hands[place] = Hand::Free { slot: Member { job, version }, done: 0, said: None };
            }
        }
        self.push(WHO[place], "cancel: apply(cancel)", to);
    }

    pub(super) fn workers(&mut self) {
        for job in 0..2 {
            self.worker(job);
        }
    }

    fn worker(&mut self, job: usize) {
        let w = self.world;
        let of = &w.jobs[job];
        let put = |run| {
            let mut to = w.clone();
            to.jobs[job].run = run;
            to
        };
        if let (State::Dispatched, true, Some(version)) = (of.record.state, of.offered, of.named) {
            let mut to = put(Run::Works(Member { job, version }));
            to.apply(job, Event::Start, Seen::Offer(Age::Now, 0));
            self.push("worker", "apply(start)", to);
        }
        // If another process has ended the attempt, the record does not run or names another slot.
        let ours = |slot: Member| of.record.running() && of.named == Some(slot.version);
        match of.run {
            Run::None => return,
            Run::Works(slot) if ours(slot) => {
                let say = |report| {
                    let said = Said { report, slot, ours: true };
                    let mut to = put(Run::Holds(said));
                    to.said.push(said);
                    to
                };
                let (well, badly) = (say(Report::Success), say(Report::Failure));
                self.push("worker", "reports success", well);
                self.fault(Fault::Failure, "worker", "reports failure", badly);
            }
            Run::Works(slot) => {
                let mut to = put(Run::None);
                to.said.push(Said { report: Report::Release, slot, ours: of.named == Some(slot.version) });
                self.push("worker", "reports that it has stopped", to);
            }
            Run::Holds(said) if ours(said.slot) => {
                if !w.said.contains(&said) {
                    let mut to = w.clone();
                    to.said.push(said);
                    self.push("worker", "reports again", to);
                }
            }
            Run::Holds(_) => self.push("worker", "hears settled", put(Run::None)),
        }
        self.fault(Fault::Crash, "worker", "crashes", put(Run::None));
        if of.record.running() && !of.leased {
            let mut to = w.clone();
            to.jobs[job].leased = true;
            self.push("worker", "extend: not too late", to);
        }
    }

    pub(super) fn world(&mut self) {
        let w = self.world;
        for job in 0..2 {
            let of = &w.jobs[job];
            if of.leased {
                let mut to = w.clone();
                to.jobs[job].leased = false;
                let lives = of.record.running() && of.run != Run::None;
                self.unless(lives, Fault::Expiry, "time", "passes: a lease is over", to);
            }
        }
        for of in 0..self.slots.limits.len() {
            let set = &w.sets[of];
            let Some(member) = set.holder.filter(|_| !set.lapsed) else { continue };
            if w.judged(member) == Verdict::Admitting || self.slots.has(Flaw::TimeAlone) {
                let mut to = w.clone();
                to.sets[of].lapsed = true;
                let under_way = w.hands.iter().any(|hand| hand.admits(member));
                self.unless(under_way, Fault::Slow, "time", "passes: a slot is to be looked at", to);
            }
        }
        if !w.said.is_empty() || w.jobs.iter().any(|job| job.offered) {
            let mut to = w.clone();
            to.said.clear();
            to.jobs.iter_mut().for_each(|job| job.offered = false);
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
    }
}

/// The next job in line, as `slot/free` returns it.
fn next(w: &World, of: usize) -> Hand {
    w.sets[of].line.first().map_or(Hand::Idle, |member| Hand::Next(*member))
}

impl Hand {
    /// The result that was delivered to this hand.
    fn said(&self) -> Option<Said> {
        match self {
            Hand::Settle(said) | Hand::Free { said: Some(said), .. } => Some(*said),
            _ => None,
        }
    }

    /// Whether the hand is about to publish this offer.
    fn offers(&self, job: usize, version: u8) -> bool {
        *self == Hand::Offer(Member { job, version })
    }

    /// Whether the hand has a slot for this member and is about to dispatch.
    fn admits(&self, member: Member) -> bool {
        match self {
            Hand::Take { member: of, had } => *of == member && *had > 0,
            Hand::Unplace { member: of, .. } | Hand::Dispatch(of) => *of == member,
            _ => false,
        }
    }
}
