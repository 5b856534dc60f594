//! The steps of two jobs: a batch on one scheduler, looks on the other, workers, and outside events.

use muster_domain::{Event, Outcome, State};

use super::{
    super::{
        explore::Step,
        record::{Age, Record, Seen},
    },
    BOTH, Batch, Fault, Flaw, Group, Jobs, Kind, OLDEST, Offers, Pair, Run, Stage, World,
};

pub(super) struct Steps<'a> {
    pub(super) pair: &'a Pair,
    pub(super) out: Vec<Step<World>>,
}

impl Steps<'_> {
    fn push(&mut self, who: &'static str, what: &'static str, to: World) {
        self.out.push(Step::new(who, what, to.canonical()));
    }

    fn fault(&mut self, kind: Fault, who: &'static str, what: &'static str, mut to: World) {
        if to.faults > 0 && self.pair.kinds.contains(&kind) {
            to.faults -= 1;
            self.out.push(Step::fault(who, what, to.canonical()));
        }
    }

    pub(super) fn intake(&mut self, w: &World) {
        let Some(batch) = w.batch else {
            for (kind, what) in [(Kind::Submit, "takes submits"), (Kind::Result, "takes results")] {
                let queue = if kind == Kind::Submit { &w.submits } else { &w.results };
                for group in queue {
                    let none = [false; 2];
                    let batch = Batch { kind, group: *group, stage: Stage::Apply, offer: none, failed: none };
                    self.push("S1", what, World { batch: Some(batch), ..w.clone() });
                }
            }
            return;
        };
        if batch.stage != Stage::Apply {
            // The delivery is not acked, so it comes again.
            let mut to = World { batch: None, ..w.clone() };
            mark_again(to.queue(batch.kind), batch.group);
            self.fault(Fault::Crash, "S1", "crashes", to);
        }
        match batch.stage {
            Stage::Apply => self.applies(w, batch),
            Stage::Offer => {
                let mut to = World { batch: Some(Batch { stage: Stage::Close, ..batch }), ..w.clone() };
                let of = |job: usize| batch.offer[job].then(|| offer_age(&w.records[job]));
                let age = (0..2).filter(|job| batch.offer[*job]).map(|job| w.ages[job]).max().unwrap_or_default();
                to.offers.push(Offers { of: [of(0), of(1)], age });
                self.push("S1", "offer", to);
            }
            Stage::Close => self.closes(w, batch),
            Stage::Ack => {
                let mut to = World { batch: None, ..w.clone() };
                acked(&mut to, batch);
                self.push("S1", "acks the delivery", to);
            }
        }
    }

    /// Applies the whole group in one pipeline, or each of its items in one. Each item fails separately.
    fn applies(&mut self, w: &World, batch: Batch) {
        let mut to = w.clone();
        let (mut offer, mut failed) = ([false; 2], [false; 2]);
        for job in (0..2).filter(|job| batch.group.jobs[*job]) {
            if !w.in_reach(job) {
                failed[job] = true;
                continue;
            }
            let outcome = match batch.kind {
                Kind::Submit => to.apply(job, Event::Dispatch, Seen::Version(w.submit_age(job))),
                Kind::Result => to.apply(job, Event::Succeed, Seen::Fence(true)),
            };
            let done = matches!(outcome, Outcome::Applied | Outcome::Already);
            offer[job] = done && batch.kind == Kind::Submit;
        }
        let stage = if any(offer) { Stage::Offer } else { Stage::Close };
        to.batch = Some(Batch { stage, offer, failed, ..batch });
        self.push("S1", "applies what is in reach", to);
    }

    fn closes(&mut self, w: &World, batch: Batch) {
        let mut to = World { batch: None, ..w.clone() };
        let some_done = batch.failed != batch.group.jobs;
        if !any(batch.failed) || self.pair.flaw == Some(Flaw::AcksDespiteFailure) {
            acked(&mut to, batch);
            self.push("S1", "acks the delivery", to);
        } else if batch.group.again && some_done {
            to.queue(batch.kind).push(Group { jobs: batch.failed, again: false });
            to.batch = Some(Batch { stage: Stage::Ack, ..batch });
            self.push("S1", "publishes what failed", to);
        } else {
            mark_again(to.queue(batch.kind), batch.group);
            self.push("S1", "gives the delivery back", to);
        }
    }

    pub(super) fn reconciler(&mut self, w: &World) {
        if let Some(job) = w.reoffers {
            let mut to = World { reoffers: None, ..w.clone() };
            self.fault(Fault::Crash, "S2", "crashes before it offers", to.clone());
            let mut of = [None, None];
            of[job] = Some(offer_age(&w.records[job]));
            to.offers.push(Offers { of, age: w.ages[job] });
            self.push("S2", "offer (again)", to);
            return;
        }
        for job in (0..2).filter(|job| w.in_reach(*job)) {
            let mut to = w.clone();
            match w.records[job].state {
                State::Pending => {
                    let held = w.batch.is_some_and(|b| b.kind == Kind::Submit && b.group.jobs[job]);
                    if !held && !w.submits.iter().any(|group| group.jobs[job]) {
                        let mut jobs = [false; 2];
                        jobs[job] = true;
                        to.submits.push(Group { jobs, again: false });
                        self.push("S2", "look: resubmit", to);
                    }
                }
                State::Dispatched if w.offer_is_lost(job) => {
                    to.apply(job, Event::Reoffer, Seen::Version(Age::Now));
                    to.reoffers = Some(job);
                    self.push("S2", "look: apply(reoffer)", to);
                }
                State::Running if w.runs[job] == Run::None && w.silent[job] && !w.waits => {
                    to.overruled |= w.word[job];
                    to.apply(job, Event::Poison, Seen::Version(Age::Now));
                    self.push("S2", "look: silence is proven, ended", to);
                }
                _ => {}
            }
        }
        // The mark is read when some lease is over. It proves the silence of all jobs whose lease is over by then.
        let over = [0, 1].map(|job| w.records[job].running() && w.runs[job] == Run::None && !w.silent[job]);
        if w.target.is_none() && any(over) {
            let target = Some((u8::try_from(w.results.len()).unwrap_or(u8::MAX), over));
            self.push("S2", "results_mark", World { target, ..w.clone() });
        }
    }

    pub(super) fn workers(&mut self, w: &World) {
        for (place, offers) in w.offers.iter().enumerate() {
            let startable =
                |w: &World, job: usize| offers.of[job] == Some(Age::Now) && w.records[job].state == State::Dispatched;
            for job in (0..2).filter(|job| startable(w, *job) && w.in_reach(*job)) {
                let mut to = w.clone();
                to.apply(job, Event::Start, Seen::Offer(Age::Now, 0));
                to.runs[job] = Run::Runs;
                let rest = startable(&to, 1 - job);
                // The other offer goes back: it stays where it is.
                if !rest {
                    to.offers.remove(place);
                }
                self.push("worker", "apply(start)", to);
            }
            if !startable(w, 0) && !startable(w, 1) {
                let mut to = w.clone();
                to.offers.remove(place);
                self.push("worker", "hears gone, acks the offers", to);
            }
        }
        let may = [0, 1].map(|job| w.runs[job] == Run::Runs);
        let stands = |jobs: Jobs| w.results.iter().any(|group| group.jobs == jobs);
        for jobs in [BOTH, [true, false], [false, true]] {
            if (0..2).any(|job| jobs[job] && !may[job]) || stands(jobs) {
                continue;
            }
            let mut to = w.clone();
            for job in (0..2).filter(|job| jobs[*job]) {
                to.runs[job] = Run::Holds;
                to.word[job] = true;
            }
            to.results.push(Group { jobs, again: false });
            self.push("worker", "reports", to);
        }
        for job in 0..2 {
            let mut to = w.clone();
            to.runs[job] = Run::None;
            match w.runs[job] {
                Run::None => continue,
                Run::Holds if !w.records[job].running() => self.push("worker", "hears settled", to),
                _ => self.fault(Fault::Crash, "worker", "crashes", to),
            }
            if w.runs[job] == Run::Holds && !w.results.iter().any(|group| group.jobs[job]) && w.records[job].running() {
                let mut to = w.clone();
                let mut jobs = [false; 2];
                jobs[job] = true;
                to.word[job] = true;
                to.results.push(Group { jobs, again: false });
                self.push("worker", "reports again", to);
            }
        }
    }

    pub(super) fn world(&mut self, w: &World) {
        let older = |age: u8| (age + 1).min(OLDEST);
        let dispatched = w.records.iter().any(|record| record.state == State::Dispatched);
        if dispatched {
            let mut to = w.clone();
            to.ages = to.ages.map(older);
            to.offers.iter_mut().for_each(|offers| offers.age = older(offers.age));
            self.push("time", "passes", to);
        }
        if !w.submits.is_empty() || !w.offers.is_empty() || !w.results.is_empty() {
            let (submits, offers, results) = Default::default();
            let mut to = World { submits, offers, results, word: [false; 2], ..w.clone() };
            // The stream's creation time has changed: the target is void.
            to.target = None;
            self.fault(Fault::Wipe, "NATS", "loses every stream", to);
        }
        let mut to = World { away: !w.away, ..w.clone() };
        if self.pair.flaw != Some(Flaw::ProbeMisses) {
            to.disturb();
        }
        // A lease is longer than the pause before a delivery comes again. So everything that was on the stream when
        // the record came into reach has been handled by then.
        let settles = w.batch.is_some_and(|batch| batch.kind == Kind::Result);
        if w.waits && !w.away && w.results.is_empty() && !settles {
            self.push("time", "the wait is over", World { waits: false, ..w.clone() });
        }
        if w.away {
            self.push("Redis", "has the second job in reach again", to);
        } else {
            self.fault(Fault::Away, "Redis", "has the second job out of reach", to);
        }
    }
}

/// The age of the offered version: the record's, if the job is still dispatched.
fn offer_age(record: &Record) -> Age {
    if record.state == State::Dispatched { Age::Now } else { Age::Old }
}

fn mark_again(queue: &mut [Group], group: Group) {
    if let Some(group) = queue.iter_mut().find(|g| **g == group) {
        group.again = true;
    }
}

fn acked(to: &mut World, batch: Batch) {
    match batch.kind {
        Kind::Submit => to.submits.retain(|group| *group != batch.group),
        Kind::Result => to.ack_result(batch.group),
    }
}

fn any(jobs: Jobs) -> bool {
    jobs[0] || jobs[1]
}
