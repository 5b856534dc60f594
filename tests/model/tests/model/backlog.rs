//! Releasing a queued job, or a pending job in the backlog: `scheduler/backlog.rs` on both schedulers, with the look
//! that puts entries back, and `admit_anew` of `scheduler/slots.rs`, which changes a queued job while its entry
//! exists.
//!
//! Order: claim the head, `apply(dispatch)` by the entry's version, `offer`, `forward_homes`, `remove_queued`. For a
//! job that has not changed since it was accepted: claim, `offer`, `remove_queued`. An entry is a job and the version
//! at which it was queued. A scheduler that finds the job queued under another version adds the entry of that
//! version, then removes the older one. The job's home is near (a look comes within 30 s) or far (a quarter of an
//! hour). Only a re-score by comparison makes it far. A state that only a far look could heal counts as lost here,
//! with one exception: a dispatched job whose entry was lost in a failover before its releaser died too.
//! [`super::rounds`] has two jobs. Abstracts from: other jobs in the queue, windows, and the rest of the job's life,
//! which takes one step each.

use muster_domain::{Event, Outcome, State};
use stateright::Property;

use super::{
    explore::{Checked, Protocol, Step},
    record::{Age, Ages, Record, Seen},
};

pub(crate) const QUEUED_FOUND: &str =
    "a queued job has its entry, or an older one that leads to it, or is looked at soon";
pub(crate) const PENDING_NEAR: &str = "a pending job is looked at soon, whether it stands in line or not";
pub(crate) const OFFER_FOUND: &str = "an offer that was not made is found by an entry or a look";

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A member is the job without its version.
    NoVersion,
    /// A scheduler that finds the job dispatched by another scheduler only removes the entry.
    LoserRemoves,
    /// The entry is removed before the home is forwarded.
    RemovesBeforeForward,
    /// The head is popped instead of claimed.
    Pops,
    /// A scheduler that finds the job queued under another version only removes the entry.
    DropsOlder,
}

/// The model, and how many faults of any kind may happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    pub(crate) faults: u8,
    pub(crate) flaw: Option<Flaw>,
}

impl Backlog {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Hand {
    Idle,
    /// The job is held: the entry of this version is to be added.
    Enqueue {
        entry: Age,
    },
    /// The scheduler has found that the slot was taken under this version long ago.
    AdmitAnew {
        version: Age,
    },
    /// The scheduler has found the job queued under another version than this entry's: the entry of that version is
    /// to be added first.
    Renew {
        entry: Age,
        to: Age,
    },
    /// The scheduler has claimed this entry.
    Claimed {
        entry: Age,
    },
    /// `forward`: the home is later than the next look at an offer.
    Offer {
        entry: Age,
        offer: Age,
        forward: bool,
    },
    Forward {
        entry: Age,
    },
    Remove {
        entry: Age,
    },
    /// The scheduler has read that the job has not changed since it was accepted: it offers it under the entry's own
    /// version.
    OfferAsItIs {
        entry: Age,
    },
    /// The scheduler has looked at the queued job: it puts the entry back.
    PutBack {
        entry: Age,
        read: bool,
    },
    /// `read`: the home's score is still the one that was read.
    Rescore {
        read: bool,
    },
    /// The scheduler has looked at a lost offer.
    Reoffer {
        version: Age,
    },
    OfferAgain {
        offer: Age,
    },
}

impl Hand {
    fn ages(&mut self) -> [Option<&mut Age>; 2] {
        match self {
            Hand::Idle | Hand::Rescore { .. } => [None, None],
            Hand::Offer { entry, offer, .. } => [Some(entry), Some(offer)],
            Hand::Renew { entry, to } => [Some(entry), Some(to)],
            Hand::Enqueue { entry: age }
            | Hand::AdmitAnew { version: age }
            | Hand::Claimed { entry: age }
            | Hand::OfferAsItIs { entry: age }
            | Hand::Forward { entry: age }
            | Hand::Remove { entry: age }
            | Hand::PutBack { entry: age, .. }
            | Hand::Reoffer { version: age }
            | Hand::OfferAgain { offer: age } => [Some(age), None],
        }
    }

    fn misread(&mut self) {
        if let Hand::PutBack { read, .. } | Hand::Rescore { read } = self {
            *read = false;
        }
    }

    fn will_offer(&self) -> bool {
        matches!(self, Hand::Offer { offer: Age::Now, .. } | Hand::OfferAgain { offer: Age::Now })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Topic {
    record: Record,
    /// The entries, and which of them are claimed.
    entries: Ages,
    claims: Ages,
    offers: Ages,
    near: bool,
    hands: [Hand; 2],
    /// A failover lost the entry; the scrub or the next look puts it back.
    entry_lost: bool,
    faults: u8,
}

impl Topic {
    fn apply(&mut self, bare: bool, event: Event, seen: Seen) -> Outcome {
        let outcome = self.record.apply(event, seen);
        if outcome == Outcome::Applied {
            self.offers = self.offers.older();
            if !bare {
                self.entries = self.entries.older();
                self.claims = self.claims.older();
            }
            for hand in &mut self.hands {
                let is_entry = !matches!(hand, Hand::Reoffer { .. } | Hand::OfferAgain { .. });
                for (place, age) in hand.ages().into_iter().enumerate() {
                    if let Some(age) = age
                        && !(bare && is_entry && place == 0)
                    {
                        *age = age.older();
                    }
                }
            }
        }
        outcome
    }

    fn forward(&mut self) {
        self.near = true;
        self.hands.iter_mut().for_each(Hand::misread);
    }

    fn enqueue(&mut self, entry: Age) {
        self.entries = self.entries.with(entry);
        self.entry_lost &= entry != Age::Now;
    }

    fn canonical(mut self) -> Topic {
        self.hands.sort_unstable();
        self.record.start_id = super::record::Asker::Nobody;
        self
    }
}

const WHO: [&str; 2] = ["S1", "S2"];

impl Backlog {
    fn hand(&self, w: &Topic, place: usize, out: &mut Vec<Step<Topic>>) {
        let (who, bare) = (WHO[place], self.has(Flaw::NoVersion));
        let put = |hand| {
            let mut to = *w;
            to.hands[place] = hand;
            to
        };
        let mut push = |what, to: Topic| out.push(Step::new(who, what, to.canonical()));
        match w.hands[place] {
            Hand::Idle => self.takes(w, place, out),
            Hand::Enqueue { entry } => {
                let mut to = put(Hand::Idle);
                to.enqueue(entry);
                push("enqueue", to);
            }
            Hand::AdmitAnew { version } => {
                let mut to = *w;
                let outcome = to.apply(bare, Event::Hold, Seen::Version(version));
                let older = if outcome == Outcome::Applied { version.older() } else { version };
                to.hands[place] = match outcome {
                    Outcome::Applied | Outcome::Already => Hand::Renew { entry: older, to: Age::Now },
                    _ => Hand::Idle,
                };
                push("admit_anew: apply(hold)", to);
                if outcome == Outcome::Applied && w.faults > 0 {
                    to.hands[place] = Hand::Idle;
                    to.faults -= 1;
                    out.push(Step::fault(who, "admit_anew: apply(hold), no answer", to.canonical()));
                }
            }
            Hand::Renew { entry, to: version } => {
                let mut to = put(Hand::Remove { entry });
                to.enqueue(version);
                push("enqueue (under its other version)", to);
            }
            Hand::Claimed { entry } => {
                let mut to = *w;
                // A pending job in the backlog has a near look, as all pending jobs have.
                let lined = w.record.state == State::Pending;
                // Without a version in the member, only the record's own version can be compared.
                let seen = if bare && w.record.state == State::Queued { Age::Now } else { entry };
                let outcome = to.apply(bare, Event::Dispatch, Seen::Version(seen));
                let entry = if outcome == Outcome::Applied && !bare { entry.older() } else { entry };
                let offered = to.record.state == State::Dispatched;
                let ours = outcome == Outcome::Applied || !self.has(Flaw::LoserRemoves);
                let gone = self.has(Flaw::Pops);
                to.hands[place] = match (offered && ours, gone) {
                    (true, _) => {
                        Hand::Offer { entry, offer: Age::Now, forward: !(lined && outcome == Outcome::Applied) }
                    }
                    (false, false) if to.record.state == State::Queued && !self.has(Flaw::DropsOlder) => {
                        Hand::Renew { entry, to: Age::Now }
                    }
                    (false, false) => Hand::Remove { entry },
                    (false, true) => Hand::Idle,
                };
                push("apply(dispatch)", to);
                if outcome == Outcome::Applied && w.faults > 0 {
                    // The answer is unknown: the entry stays.
                    to.hands[place] = Hand::Idle;
                    to.faults -= 1;
                    out.push(Step::fault(who, "apply(dispatch), no answer", to.canonical()));
                }
                if lined && entry == Age::Now && !bare {
                    out.push(Step::new(
                        who,
                        "reads that it stands as it was",
                        put(Hand::OfferAsItIs { entry }).canonical(),
                    ));
                }
            }
            Hand::OfferAsItIs { entry } => {
                let mut to = put(Hand::Remove { entry });
                to.offers = to.offers.with(entry);
                push("offer (as it is)", to);
            }
            Hand::Offer { entry, offer, forward } => {
                let remove_first = self.has(Flaw::RemovesBeforeForward) || !forward;
                let mut to = put(if remove_first { Hand::Remove { entry } } else { Hand::Forward { entry } });
                to.offers = to.offers.with(offer);
                push("offer", to);
            }
            Hand::Forward { entry } => {
                let over = self.has(Flaw::RemovesBeforeForward) || self.has(Flaw::Pops);
                let mut to = put(if over { Hand::Idle } else { Hand::Remove { entry } });
                to.forward();
                push("forward_homes", to);
            }
            Hand::Remove { entry } => {
                let dispatched = w.record.state == State::Dispatched;
                let forwards = self.has(Flaw::RemovesBeforeForward) && dispatched;
                let mut to = put(if forwards { Hand::Forward { entry } } else { Hand::Idle });
                (to.entries, to.claims) = (to.entries.without(entry), to.claims.without(entry));
                push("remove_queued", to);
            }
            Hand::PutBack { entry, read } => {
                let mut to = put(Hand::Rescore { read });
                to.enqueue(entry);
                push("look: put_back", to);
            }
            Hand::Rescore { read } => {
                let mut to = put(Hand::Idle);
                if read {
                    to.forward();
                    to.near = false;
                }
                push("rescore_homes", to);
            }
            Hand::Reoffer { version } => {
                let mut to = *w;
                let outcome = to.apply(bare, Event::Reoffer, Seen::Version(version));
                let done = outcome == Outcome::Applied;
                to.hands[place] = if done { Hand::OfferAgain { offer: Age::Now } } else { Hand::Idle };
                push("apply(reoffer)", to);
            }
            Hand::OfferAgain { offer } => {
                let mut to = put(Hand::Idle);
                to.offers = to.offers.with(offer);
                push("offer (again)", to);
            }
        }
        if w.hands[place] != Hand::Idle && w.faults > 0 {
            let mut to = put(Hand::Idle);
            to.faults -= 1;
            out.push(Step::fault(who, "crashes", to.canonical()));
        }
    }

    fn takes(&self, w: &Topic, place: usize, out: &mut Vec<Step<Topic>>) {
        let (who, bare) = (WHO[place], self.has(Flaw::NoVersion));
        let mut push = |what, to: Topic| out.push(Step::new(who, what, to.canonical()));
        for entry in w.entries.iter().filter(|entry| !w.claims.has(*entry)) {
            let mut to = *w;
            if self.has(Flaw::Pops) {
                to.entries = to.entries.without(entry);
            } else {
                to.claims = to.claims.with(entry);
            }
            to.hands[place] = Hand::Claimed { entry };
            push("claim_queued", to);
        }
        // A scheduler that took a slot under this version had claimed its entry.
        let waits = matches!(w.record.state, State::Queued | State::Pending);
        if waits && w.entries.has(Age::Now) && !bare {
            let mut to = *w;
            to.hands[place] = Hand::AdmitAnew { version: Age::Now };
            push("reclaim: its slot was taken long ago", to);
        }
        let offered = w.offers.has(Age::Now) || w.hands.iter().any(Hand::will_offer);
        match w.record.state {
            State::Pending => {
                let mut to = *w;
                to.apply(bare, Event::Hold, Seen::Version(Age::Now));
                to.hands[place] = Hand::Enqueue { entry: Age::Now };
                push("apply(hold)", to);
                let mut to = *w;
                to.hands[place] = Hand::Enqueue { entry: Age::Now };
                push("stands in line", to);
                let mut to = *w;
                to.offers = to.offers.with(Age::Now);
                push("offer (as it is)", to);
            }
            State::Queued => {
                let mut to = *w;
                if w.near {
                    to.hands[place] = Hand::PutBack { entry: Age::Now, read: true };
                    push("look: requeue", to);
                }
                if w.entry_lost {
                    to.hands[place] = Hand::Enqueue { entry: Age::Now };
                    push("scrub: the entry is gone", to);
                }
            }
            State::Dispatched if w.entry_lost && !w.near => {
                // The releaser died before the offer, and the entry that led to the job is gone: only this case waits
                // for a far look.
                let mut to = *w;
                to.forward();
                to.entry_lost = false;
                push("look: late, for a failover had lost the entry", to);
            }
            State::Dispatched if w.near && !offered => {
                let mut to = *w;
                to.hands[place] = Hand::Reoffer { version: Age::Now };
                push("look: reoffer", to);
            }
            _ => {}
        }
    }

    fn others(&self, w: &Topic, out: &mut Vec<Step<Topic>>) {
        let bare = self.has(Flaw::NoVersion);
        let mut push = |who, what, to: Topic| out.push(Step::new(who, what, to.canonical()));
        for entry in w.claims.iter() {
            push("time", "a claim lapses", Topic { claims: w.claims.without(entry), ..*w });
        }
        let mut to = *w;
        match w.record.state {
            State::Dispatched | State::Pending if w.offers.has(Age::Now) => {
                to.offers = to.offers.without(Age::Now);
                to.apply(bare, Event::Start, Seen::Offer(Age::Now, 0));
                push("worker", "apply(start), acks the offer", to);
            }
            State::Running => {
                to.apply(bare, Event::Succeed, Seen::Fence(true));
                push("worker", "succeeds", to);
                if w.record.attempt == 1 {
                    let mut to = *w;
                    to.apply(bare, Event::Retry, Seen::Fence(true));
                    to.apply(bare, Event::Wake, Seen::Version(Age::Now));
                    to.forward();
                    push("worker", "fails, the job is pending again", to);
                }
            }
            _ => {}
        }
        if w.faults > 0 {
            let mut fault = |who, what, to: Topic| {
                out.push(Step::fault(who, what, Topic { faults: w.faults - 1, ..to }.canonical()));
            };
            if !w.offers.is_empty() {
                fault("NATS", "loses every offer", Topic { offers: Ages::default(), ..*w });
            }
            if matches!(w.record.state, State::Queued | State::Pending) {
                let mut to = *w;
                to.apply(bare, Event::Cancel, Seen::Any);
                fault("gateway", "apply(cancel)", to);
                if w.entries.has(Age::Now) && !bare {
                    let (entries, claims) = (w.entries.without(Age::Now), w.claims.without(Age::Now));
                    // Nothing shows that the entry of a pending job is missing, and nothing needs to.
                    let entry_lost = w.record.state == State::Queued;
                    fault("Redis", "fails over and loses the entry", Topic { entries, claims, entry_lost, ..*w });
                }
            }
        }
    }
}

impl Protocol for Backlog {
    type State = Topic;

    fn begins(&self) -> Vec<Topic> {
        vec![Topic {
            record: Record::created(),
            entries: Ages::default(),
            claims: Ages::default(),
            offers: Ages::default(),
            near: true,
            hands: [Hand::Idle; 2],
            entry_lost: false,
            faults: self.faults,
        }]
    }

    fn steps(&self, w: &Topic) -> Vec<Step<Topic>> {
        let mut out = Vec::new();
        for place in 0..2 {
            self.hand(w, place, &mut out);
        }
        self.others(w, &mut out);
        out
    }

    fn is_goal(&self, w: &Topic) -> bool {
        w.record.ended() && w.entries.is_empty() && w.hands == [Hand::Idle; 2]
    }

    fn laws(&self) -> Vec<Property<Checked<Backlog>>> {
        vec![
            Property::<Checked<Backlog>>::always(QUEUED_FOUND, |_, w| {
                let idle = w.hands == [Hand::Idle; 2] && w.record.state == State::Queued;
                !idle || w.near || w.entry_lost || !w.entries.is_empty()
            }),
            Property::<Checked<Backlog>>::always(OFFER_FOUND, |_, w| {
                let idle = w.hands == [Hand::Idle; 2] && w.record.state == State::Dispatched;
                !idle || w.near || w.offers.has(Age::Now) || !w.entries.is_empty() || w.entry_lost
            }),
            Property::<Checked<Backlog>>::always(PENDING_NEAR, |_, w| w.record.state != State::Pending || w.near),
            Property::<Checked<Backlog>>::sometimes("a job is queued twice and succeeds", |_, w| {
                w.record.state == State::Succeeded && w.record.attempt == 2
            }),
        ]
    }
}
