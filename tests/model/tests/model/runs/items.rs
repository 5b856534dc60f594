//! A for-each of two items, whose jobs are found by two cursors: `issued` and `confirmed`.
//!
//! Order: save `issued`, submit the items from `confirmed` to `issued` (whoever finds an id taken takes that for its
//! own submit), save `confirmed`. From then on the absence of the job is an error of its item and no reason for another
//! submit: it may have run. An absence counts only when the bus was read again after the last failover. Retention
//! passes over the jobs of a run that has not ended.
//!
//! Abstracts from: the home and the outbox ([`super::keep`]): a replica may look at any moment, and what is to be
//! submitted follows from the cursors. A message is acked with the save. No process is slow for as long as ids of
//! deleted jobs stay taken (20 min), so retention after the end of the run is not in the model.

use stateright::Property;

use super::{
    super::explore::{Checked, Protocol, Step},
    Compares, Job, Kept, Seen, WHO,
};

pub(crate) const LOST_TRUE: &str = "an item is given up only if both stores have lost its job";
pub(crate) const RUNS_ONCE: &str = "an item's job runs once";
pub(crate) const JOIN: &str = "the join comes when every item has ended, and not earlier";
pub(crate) const PARALLEL: &str = "never more items at once than allowed";
pub(crate) const ENDS_ONCE: &str = "a for-each never ends in two ways";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A replica dies between two writes.
    Crash,
    /// The bus does not get the news of a job's end.
    LostNews,
    /// A message is delivered again.
    Redelivery,
    /// Every stream loses its messages.
    Wipe,
    /// A primary fails, and its replica has not got the last writes.
    Failover,
    /// The bus does not take a submit: only Redis has it.
    Silence,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A job is believed absent before the bus was read again.
    AbsentAtOnce,
    /// The job of a confirmed item is submitted again if it is absent.
    AbsentIsSubmitted,
    /// `confirmed` is saved together with `issued`, before the submits.
    ConfirmsFirst,
    /// A submit that finds its id taken fails the item.
    TakenIsFailure,
    /// Ends are counted instead of noted per item.
    CountsEnds,
    /// Retention deletes the ended jobs of a run that has not ended.
    RetentionIgnoresRun,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Items {
    /// `max_parallel`.
    pub(crate) parallel: u8,
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Items {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// The number of items.
const N: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Item {
    Open,
    Succeeded,
    /// Given up: its job is lost.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Doc {
    issued: u8,
    confirmed: u8,
    items: [Item; 2],
    /// The counter of the variant that counts.
    count: u8,
    /// Both items have ended: the step is joined.
    joined: bool,
}

impl Doc {
    const NONE: Doc = Doc { issued: 0, confirmed: 0, items: [Item::Open; 2], count: 0, joined: false };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Record {
    now: Job,
    replica: Job,
    /// On the bus: the submit, and the result.
    submit: bool,
    result: bool,
    /// How often a worker ran it to the end.
    runs: u8,
    /// Both stores have lost it.
    lost: bool,
    /// They lost it before it was confirmed, or while a process was about to submit it: then it may run again.
    early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Idle,
    Save,
    /// The next item to submit.
    Submit(u8),
    Confirm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Hand {
    at: At,
    seen: Seen,
    doc: Doc,
    /// The item whose news are in hand.
    news: Option<u8>,
}

impl Hand {
    const IDLE: Hand = Hand { at: At::Idle, seen: Seen::NONE, doc: Doc::NONE, news: None };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    run: Kept<Doc>,
    jobs: [Record; 2],
    news: [bool; 2],
    hands: [Hand; 2],
    reread: bool,
    told: Option<[Item; 2]>,
    twice: bool,
    faults: u8,
}

impl World {
    fn lost(&self) -> bool {
        self.jobs.iter().any(|job| job.lost)
    }

    /// A process whose next write compares something that will never match again has the same future as an idle one.
    fn canonical(mut self) -> World {
        for hand in &mut self.hands {
            let over = self.run.is_over(hand.seen);
            match hand.at {
                At::Idle => *hand = Hand::IDLE,
                At::Save | At::Confirm if over => *hand = Hand::IDLE,
                _ if over => hand.seen = Seen::NONE,
                _ => {}
            }
        }
        self.hands.sort_unstable();
        self
    }
}

struct Steps<'a> {
    items: &'a Items,
    world: World,
    out: Vec<Step<World>>,
}

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        self.out.push(Step::new(who, what, to.canonical()));
    }

    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.items.kinds.contains(&kind) {
            to.faults -= 1;
            self.out.push(Step::fault(who, what, to.canonical()));
        }
    }

    fn put(&self, place: usize, hand: Hand) -> World {
        let mut to = self.world;
        to.hands[place] = hand;
        to
    }

    /// The engine: this item has ended so.
    fn ended(&self, mut doc: Doc, item: u8, how: Item) -> Doc {
        let of = &mut doc.items[usize::from(item)];
        let counts = self.items.has(Flaw::CountsEnds);
        if doc.joined || (*of != Item::Open && !counts) {
            return doc;
        }
        *of = how;
        doc.count = if counts { doc.count + 1 } else { 0 };
        let ended = (0..).zip(doc.items).filter(|(_, item)| *item != Item::Open).count();
        let ended = if counts { doc.count } else { u8::try_from(ended).unwrap_or(N) };
        doc.issued = doc.issued.max(N.min(ended + self.items.parallel));
        doc.joined = ended >= N;
        if self.items.has(Flaw::ConfirmsFirst) {
            doc.confirmed = doc.issued;
        }
        doc
    }

    fn replica(&mut self, place: usize) {
        let (w, who, hand) = (self.world, WHO[place], self.world.hands[place]);
        if matches!(hand.at, At::Submit(_) | At::Confirm) {
            self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::IDLE));
        }
        match hand.at {
            At::Idle => {
                self.takes(place);
                self.looks(place);
            }
            At::Save | At::Confirm => {
                if !w.run.matches(hand.seen) || !self.may_save() {
                    return self.push(who, "save: somebody was faster", self.put(place, Hand::IDLE));
                }
                let may_fail = w.faults > 0 && self.items.kinds.contains(&Fault::Failover);
                for lags in [false, true] {
                    if lags && (w.run.same || !may_fail) {
                        continue;
                    }
                    let mut to = w;
                    let others = to.hands.iter_mut().enumerate().filter(|(other, _)| *other != place);
                    let seen = to.run.save(hand.doc, lags, others.map(|(_, hand)| &mut hand.seen));
                    to.hands[place] = Hand { at: self.next(hand.doc), seen, news: None, ..hand };
                    if let (At::Save, Some(item)) = (hand.at, hand.news) {
                        to.news[usize::from(item)] = false;
                    }
                    self.push(who, if hand.at == At::Save { "save" } else { "save: confirms" }, to);
                }
            }
            At::Submit(item) => self.submits(place, hand, item),
        }
    }

    /// What follows from what was saved: the items between the cursors are to be submitted.
    fn next(&self, doc: Doc) -> At {
        let first = if self.items.has(Flaw::ConfirmsFirst) {
            (0..doc.issued).find(|item| self.world.jobs[usize::from(*item)].now == Job::Absent)
        } else {
            Some(doc.confirmed)
        };
        first.filter(|item| *item < doc.issued).map_or(At::Idle, At::Submit)
    }

    fn submits(&mut self, place: usize, hand: Hand, item: u8) {
        let who = WHO[place];
        let mut to = self.world;
        let job = &mut to.jobs[usize::from(item)];
        let mut doc = hand.doc;
        let new = job.now == Job::Absent;
        if new {
            (job.replica, job.now) = (Job::Absent, Job::Lives);
        } else if self.items.has(Flaw::TakenIsFailure) {
            doc = self.ended(doc, item, Item::Lost);
        }
        let last = item + 1 >= doc.issued;
        if last && !self.items.has(Flaw::ConfirmsFirst) {
            doc.confirmed = doc.issued;
        }
        let at = match last {
            true if self.items.has(Flaw::ConfirmsFirst) => At::Idle,
            true => At::Confirm,
            false => At::Submit(item + 1),
        };
        to.hands[place] = Hand { at, doc, ..hand };
        if new {
            self.fault(Fault::Silence, who, "submit_step, the bus is silent", to);
            to.jobs[usize::from(item)].submit = true;
        }
        self.push(who, "submit_step", to);
    }

    fn may_save(&self) -> bool {
        !self.world.reread || self.items.has(Flaw::AbsentAtOnce)
    }

    fn takes(&mut self, place: usize) {
        let w = self.world;
        if !self.may_save() {
            return;
        }
        for item in 0..N {
            if !w.news[usize::from(item)] {
                continue;
            }
            let again = w.hands.iter().any(|hand| hand.news == Some(item));
            let doc = self.ended(w.run.now, item, Item::Succeeded);
            let mut to = self.put(place, Hand { at: At::Save, seen: w.run.read(), doc, news: Some(item) });
            if doc == w.run.now {
                // It was applied before. What its save left to be submitted is found by the look.
                to.news[usize::from(item)] = false;
                to.hands[place] = Hand::IDLE;
            }
            if again {
                self.fault(Fault::Redelivery, WHO[place], "takes the news again", to);
            } else {
                self.push(WHO[place], "takes the news", to);
            }
        }
    }

    fn looks(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        if !self.may_save() {
            return;
        }
        let now = w.run.now;
        let hand = Hand { at: At::Save, seen: w.run.read(), doc: now, news: None };
        if now.joined {
            let mut to = w;
            to.twice |= to.told.is_some_and(|told| told != now.items);
            to.told = Some(now.items);
            return self.push(who, "tell_end", to);
        }
        if now.confirmed < now.issued {
            self.push(who, "look: carries out", self.put(place, Hand { at: At::Submit(now.confirmed), ..hand }));
        }
        let mut doc = now;
        for item in 0..now.confirmed {
            let open = now.items[usize::from(item)] == Item::Open;
            match w.jobs[usize::from(item)].now {
                Job::Lives => {}
                Job::Absent if open && self.items.has(Flaw::AbsentIsSubmitted) => {
                    let again = Hand { at: At::Submit(item), ..hand };
                    return self.push(who, "look: carries out again", self.put(place, again));
                }
                Job::Absent if open => doc = self.ended(doc, item, Item::Lost),
                _ if open => doc = self.ended(doc, item, Item::Succeeded),
                _ => {}
            }
        }
        if doc != now {
            self.push(who, "look: a job has ended", self.put(place, Hand { doc, ..hand }));
        }
    }

    fn others(&mut self) {
        let w = self.world;
        for item in 0..2 {
            let mut to = w;
            match w.jobs[item].now {
                Job::Lives if !w.reread => {
                    let may_fail = w.faults > 0 && self.items.kinds.contains(&Fault::Failover);
                    for replica in [Job::Lives, w.jobs[item].replica] {
                        if replica != Job::Lives && !may_fail {
                            continue;
                        }
                        let job = &mut to.jobs[item];
                        (job.replica, job.now, job.result) = (replica, Job::Succeeded, true);
                        job.runs = w.jobs[item].runs + 1;
                        to.news[item] = w.news[item];
                        self.fault(Fault::LostNews, "worker", "ends the job, the news are lost", to);
                        to.news[item] = true;
                        self.push("worker", "ends the job", to);
                    }
                }
                Job::Succeeded => {
                    if !w.news[item] {
                        to.news[item] = true;
                        self.fault(Fault::Redelivery, "NATS", "has the news again", to);
                    }
                    if self.items.has(Flaw::RetentionIgnoresRun) && !w.run.now.joined && !w.reread {
                        let mut to = w;
                        let job = &mut to.jobs[item];
                        (job.now, job.replica, job.submit, job.result) = (Job::Absent, Job::Absent, false, false);
                        self.push("retention", "deletes an ended job", to);
                    }
                }
                _ => {}
            }
        }
        if w.reread {
            let mut to = w;
            to.reread = false;
            for job in &mut to.jobs {
                if job.now == Job::Absent && job.submit {
                    job.now = Job::Lives;
                }
                if job.result && job.now == Job::Lives {
                    job.now = Job::Succeeded;
                }
                job.replica = job.now;
            }
            return self.push("scheduler", "reread: submits, cancels, results, operations", to);
        }
        if w.news.contains(&true) || w.jobs.iter().any(|job| job.submit) {
            let mut to = w;
            to.news = [false; 2];
            for job in &mut to.jobs {
                (job.submit, job.result, job.replica) = (false, false, job.now);
            }
            let World { run, hands, .. } = &mut to;
            run.caught_up(hands.iter_mut().map(|hand| &mut hand.seen));
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
        for hits in 1..8_u8 {
            let mut to = w;
            if hits & 1 != 0 {
                let World { run, hands, .. } = &mut to;
                run.fail_over(hands.iter_mut().map(|hand| &mut hand.seen));
            }
            for item in (0..N).filter(|item| hits & (2 << item) != 0) {
                let submits = |hand: &Hand| matches!(hand.at, At::Submit(next) if next <= item);
                let early = to.run.now.confirmed <= item || w.hands.iter().any(submits);
                let job = &mut to.jobs[usize::from(item)];
                let lost = job.now != job.replica && job.replica == Job::Absent && !job.submit;
                job.early |= lost && early;
                job.lost |= lost;
                job.now = job.replica;
            }
            to.reread = true;
            self.fault(Fault::Failover, "Redis", "fails over", to);
        }
    }
}

impl Protocol for Items {
    type State = World;

    fn begins(&self) -> Vec<World> {
        let confirmed = if self.has(Flaw::ConfirmsFirst) { self.parallel } else { 0 };
        let doc = Doc { issued: self.parallel, confirmed, ..Doc::NONE };
        let job = Record {
            now: Job::Absent,
            replica: Job::Absent,
            submit: false,
            result: false,
            runs: 0,
            lost: false,
            early: false,
        };
        let mut hand = Hand::IDLE;
        let run = Kept::new(doc, Compares::VersionAndLife);
        if self.has(Flaw::ConfirmsFirst) {
            hand = Hand { at: At::Submit(0), seen: run.read(), doc, news: None };
        }
        let (hands, faults) = ([Hand::IDLE, hand], self.faults);
        vec![World { run, jobs: [job; 2], news: [false; 2], hands, reread: false, told: None, twice: false, faults }]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { items: self, world: *world, out: Vec::new() };
        for place in 0..2 {
            // Two equal hands have the same steps.
            if place == 0 || world.hands[0] != world.hands[1] {
                steps.replica(place);
            }
        }
        steps.others();
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        w.run.now.joined && w.told.is_some() && w.hands == [Hand::IDLE; 2] && w.news == [false; 2] && !w.reread
    }

    fn laws(&self) -> Vec<Property<Checked<Items>>> {
        let law = Property::<Checked<Items>>::always;
        vec![
            law(LOST_TRUE, |_, w| {
                w.run.now.items.iter().zip(w.jobs).all(|(item, job)| *item != Item::Lost || job.lost)
            }),
            law(RUNS_ONCE, |_, w| w.jobs.iter().all(|job| job.runs <= 1 || job.early)),
            law(JOIN, |_, w| {
                let ended = |job: &Record| job.now == Job::Succeeded || job.lost;
                let known = w.run.now.items.iter().all(|item| *item != Item::Open);
                let early = w.run.now.joined && !w.jobs.iter().all(ended) && !w.reread;
                !early && known == w.run.now.joined
            }),
            law(PARALLEL, |model, w| {
                let alive = w.jobs.iter().filter(|job| job.now == Job::Lives).count();
                w.reread || w.lost() || alive <= model.protocol.parallel.into()
            }),
            law(ENDS_ONCE, |_, w| !w.twice || w.lost()),
            Property::<Checked<Items>>::sometimes(
                "both replicas submit the same item",
                |_, w| matches!((w.hands[0].at, w.hands[1].at), (At::Submit(a), At::Submit(b)) if a == b),
            ),
        ]
    }
}
