//! The other steps: looks and cancels, workers with room for both jobs, the bus.

use muster_domain::Event;

use super::{
    super::record::{Age, Asker, Report, Says, Seen},
    Fault, Flaw, Hand, Jobs, Kind, Left, Part, Steps, WHO, World,
    stream::{FAILURE, Message, NOW, SUCCESS, Stream},
};

impl Steps<'_> {
    /// Looks at a due home and acts on its record, or cancels the job.
    pub(super) fn looks(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        let now = Seen::Version(Age::Now);
        for job in 0..2 {
            let record = &w.records[job];
            if !record.ended() {
                let mut to = self.put(place, Hand::Finish { job, effects: true });
                to.apply(job, Event::Cancel, Seen::Any);
                self.fault(Fault::Cancel, who, "cancel: apply(cancel)", to);
            }
            if w.left[job] == Left::Nothing || self.batches.has(Flaw::NobodyLooks) {
                continue;
            }
            let mut to = w;
            match record.look(true) {
                Says::Nothing | Says::Requeue => {}
                Says::Resubmit => {
                    let announces = |hand: &Hand| matches!(hand, Hand::Announce { job: of, now: true } if *of == job);
                    let under_way = w.in_hand(Kind::Submit, job) || w.hands.iter().any(announces);
                    let to = self.put(place, Hand::Announce { job, now: true });
                    let hasty = w.submits.carries(job) || under_way;
                    self.unless(hasty, Fault::Haste, who, "look: resubmit", to);
                }
                Says::Wake => {
                    to.apply(job, Event::Wake, now);
                    self.fault(Fault::LostReply, who, "applies, no answer", to);
                    to.hands[place] = Hand::Announce { job, now: true };
                    self.push(who, "apply(wake)", to);
                }
                Says::Reoffer => {
                    let will_offer = |hand: &Hand| match hand {
                        Hand::OfferAgain { job: of, now } => *of == job && *now,
                        Hand::Batch(batch) => batch.offer[job],
                        _ => false,
                    };
                    let hasty = w.offers[job] || w.hands.iter().any(will_offer);
                    to.apply(job, Event::Reoffer, now);
                    to.hands[place] = Hand::OfferAgain { job, now: true };
                    self.unless(hasty, Fault::Haste, who, "apply(reoffer)", to);
                }
                // Silence is proven only when there is no result on the stream.
                Says::Apply(event) if !w.results.carries(job) && !w.in_hand(Kind::Result, job) => {
                    to.apply(job, event, now);
                    if self.batches.has(Flaw::LostIsFree) {
                        to.records[job].attempt -= 1;
                    }
                    let lives = w.workers.iter().any(|parts| parts[job] != Part::None);
                    if !lives {
                        self.fault(Fault::LostReply, who, "applies, no answer", to);
                    }
                    if to.records[job].ended() {
                        to.hands[place] = Hand::Finish { job, effects: true };
                    }
                    self.unless(lives, Fault::Expiry, who, "apply(rescue, abandon, poison)", to);
                }
                Says::Apply(_) => {}
                Says::Finish => self.push(who, "look: ended", self.put(place, Hand::Finish { job, effects: true })),
            }
        }
    }

    pub(super) fn goes_on(&mut self, place: usize, hand: Hand) {
        let who = WHO[place];
        self.fault(Fault::Crash, who, "crashes", self.put(place, Hand::Idle));
        let mut to = self.put(place, Hand::Idle);
        match hand {
            Hand::Idle | Hand::Batch(_) => {}
            Hand::Announce { job, now } => {
                let message = Message::single(job, NOW);
                to.submits = if now { to.submits.with(message) } else { to.submits };
                self.push(who, "publish_submits", to);
            }
            Hand::OfferAgain { job, now } => {
                to.offers[job] |= now;
                self.push(who, "offer (again)", to);
            }
            Hand::Finish { job, effects } => {
                to.finish(only(job), effects);
                if effects {
                    to.hands[place] = Hand::Finish { job, effects: false };
                }
                self.push(who, if effects { "finish: effects" } else { "finish: drop_homes" }, to);
            }
        }
    }

    pub(super) fn workers(&mut self) {
        for (place, who) in WORKER.into_iter().enumerate() {
            // Two equal workers have the same steps.
            if place == 1 && self.world.workers[0] == self.world.workers[1] {
                continue;
            }
            for job in 0..2 {
                self.starts(place, job);
                self.stops(place, job);
            }
            self.reports(place);
            if self.world.workers[place] != [Part::None; 2] {
                let mut to = self.world;
                to.workers[place] = [Part::None; 2];
                self.fault(Fault::Crash, who, "crashes", to);
            }
        }
    }

    fn starts(&mut self, place: usize, job: usize) {
        let (w, who) = (self.world, WORKER[place]);
        let part = w.workers[place][job];
        let mut to = w;
        let asker = u8::try_from(place).unwrap_or_default();
        if part == Part::None && w.offers[job] {
            to.apply(job, Event::Start, Seen::Offer(Age::Now, asker));
            to.workers[place][job] = Part::Asks;
            self.fault(Fault::LostReply, who, "apply(start), no answer", to);
            to.workers[place][job] = Part::Runs;
            self.push(who, "apply(start)", to);
        } else if part == Part::Asks {
            // Either the record names the worker's own ask, or the job has moved on.
            let same = w.records[job].start_id == Asker::Open(asker) && w.records[job].running();
            to.workers[place][job] = if same { Part::Runs } else { Part::None };
            self.push(who, if same { "apply(start): already" } else { "hears gone" }, to);
        } else if part == Part::None && w.records[job].running() && self.batches.has(Flaw::StartForAnybody) {
            to.workers[place][job] = Part::Runs;
            self.fault(Fault::Redelivery, who, "apply(start): already", to);
        }
    }

    fn stops(&mut self, place: usize, job: usize) {
        let w = self.world;
        let mut to = w;
        to.workers[place][job] = Part::None;
        match w.workers[place][job] {
            _ if w.records[job].running() => {}
            Part::Runs => self.push(WORKER[place], "extends, is told to stop", to),
            Part::Holds(_) => self.push(WORKER[place], "hears settled", to),
            Part::None | Part::Asks => {}
        }
    }

    /// Reports the attempts that are over, in one message or in one each, and reports again what neither the stream
    /// nor a scheduler has.
    fn reports(&mut self, place: usize) {
        let (w, who) = (self.world, WORKER[place]);
        let parts = w.workers[place];
        let ours = |job: usize| w.records[job].running();
        let runs = [0, 1].map(|job| parts[job] == Part::Runs && ours(job));
        for jobs in [[true, true], [true, false], [false, true]] {
            if (0..2).any(|job| jobs[job] && !runs[job]) {
                continue;
            }
            self.push(who, "reports success", said(w, place, jobs, None));
            for job in (0..2).filter(|job| jobs[*job]) {
                self.fault(Fault::Failure, who, "reports failure", said(w, place, jobs, Some(job)));
            }
        }
        let mut message = Message { of: [0; 2], again: false };
        for job in (0..2).filter(|job| ours(*job)) {
            match parts[job] {
                Part::Holds(report) if !w.results.carries(job) && !w.in_hand(Kind::Result, job) => {
                    message.of[job] = item(report);
                }
                _ => {}
            }
        }
        if message.of != [0; 2] {
            let mut to = w;
            publish(&mut to, message);
            self.push(who, "reports again", to);
        }
    }

    pub(super) fn bus(&mut self) {
        let w = self.world;
        if !w.submits.is_empty() || !w.results.is_empty() || w.offers != [false; 2] {
            let empty = Stream::default();
            let to = World { submits: empty, results: empty, offers: [false; 2], word: [None; 2], ..w };
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
    }
}

const WORKER: [&str; 2] = ["W1", "W2"];

fn only(job: usize) -> Jobs {
    [job == 0, job == 1]
}

fn item(report: Report) -> u8 {
    if report == Report::Failure { FAILURE } else { SUCCESS }
}

/// Reports these jobs in one message; one of them may have failed.
fn said(mut to: World, place: usize, jobs: Jobs, failed: Option<usize>) -> World {
    let mut message = Message { of: [0; 2], again: false };
    for job in (0..2).filter(|job| jobs[*job]) {
        let report = if failed == Some(job) { Report::Failure } else { Report::Success };
        to.workers[place][job] = Part::Holds(report);
        message.of[job] = item(report);
    }
    publish(&mut to, message);
    to
}

/// Stores the message on the stream.
fn publish(to: &mut World, message: Message) {
    to.results = to.results.with(message);
    for job in 0..2 {
        let report = match message.of[job] {
            0 => continue,
            FAILURE => Report::Failure,
            _ => Report::Success,
        };
        to.word[job].get_or_insert(report);
    }
}
