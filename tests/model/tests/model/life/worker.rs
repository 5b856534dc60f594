//! A worker with one slot, and the scheduler that answers its start: `start.rs`, `sdk/worker`.
//!
//! The worker pulls an offer, asks with one `start_id` until it gets an answer, acks, runs the job and publishes its
//! result. It keeps the result until it learns that the attempt is settled or no longer its own. While it holds an
//! attempt it extends the lease. A scheduler that dies between the script, the forward and the answer has the same
//! effect as a lost answer: the worker asks again.

use muster_domain::{Event, Outcome};

use super::{
    super::record::{Age, Asker, Report, Seen},
    Fault, Flaw, Steps, World,
};

/// What the worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Worker {
    Idle,
    /// The worker has an offer, and asks for its start.
    Asks {
        offer: Age,
    },
    /// The start is applied; the home is to be forwarded before the answer.
    Granted {
        offer: Age,
        ours: bool,
    },
    /// The worker gets `go`.
    Told {
        offer: Age,
        ours: bool,
    },
    Runs {
        ours: bool,
    },
    /// The worker has reported its result, and waits for `settled`.
    Holds {
        report: Report,
        ours: bool,
    },
}

impl Worker {
    pub(super) fn older(&mut self) {
        if let Worker::Asks { offer } | Worker::Granted { offer, .. } | Worker::Told { offer, .. } = self {
            *offer = offer.older();
        }
    }

    /// Marks the fence as old: another attempt has started.
    pub(super) fn outrun(&mut self) {
        match self {
            Worker::Granted { ours, .. }
            | Worker::Told { ours, .. }
            | Worker::Runs { ours }
            | Worker::Holds { ours, .. } => *ours = false,
            Worker::Idle | Worker::Asks { .. } => {}
        }
    }

    /// Whether its ask is open.
    pub(super) fn asks(&self) -> bool {
        matches!(self, Worker::Asks { .. } | Worker::Granted { .. })
    }

    /// Whether the worker holds the record's fence and believes so.
    pub(super) fn holds(&self) -> bool {
        matches!(self, Worker::Told { ours: true, .. } | Worker::Runs { ours: true } | Worker::Holds { ours: true, .. })
    }

    /// The worker without what can never match again: an ask for an old offer gets `gone`, and a report under an old
    /// fence is stale.
    pub(super) fn settled_down(self) -> Worker {
        match self {
            Worker::Asks { offer: Age::Old }
            | Worker::Told { ours: false, .. }
            | Worker::Runs { ours: false }
            | Worker::Holds { ours: false, .. } => Worker::Idle,
            other => other,
        }
    }

    /// Whether the worker may still report under the record's fence.
    pub(super) fn may_speak(&self) -> bool {
        self.holds() || matches!(self, Worker::Granted { ours: true, .. })
    }

    /// The offer that was delivered to the worker and is not yet acked.
    fn unacked(&self) -> Option<Age> {
        match self {
            Worker::Asks { offer } | Worker::Granted { offer, .. } | Worker::Told { offer, .. } => Some(*offer),
            _ => None,
        }
    }
}

impl World {
    /// Whether a worker will extend the lease of the running attempt.
    pub(super) fn worker_lives(&self) -> bool {
        let asked = self.record.map(|record| record.start_id);
        (0..)
            .zip(&self.workers)
            .any(|(place, worker)| worker.holds() || (worker.asks() && asked == Some(Asker::Open(place))))
    }
}

const WHO: [&str; 2] = ["W1", "W2"];

impl Steps<'_> {
    pub(super) fn workers(&mut self) {
        for place in 0..2 {
            self.worker(place);
        }
    }

    fn worker(&mut self, place: usize) {
        let (w, who) = (self.world, WHO[place]);
        let put = |worker| {
            let mut to = w;
            to.workers[place] = worker;
            to
        };
        let current = w.runs_under_fence();
        let worker = w.workers[place];
        if !matches!(worker, Worker::Idle) {
            self.fault(Fault::Crash, who, "crashes", put(Worker::Idle));
        }
        match worker {
            Worker::Idle => {
                let other = w.workers[1 - place].unacked();
                for offer in w.offers.iter() {
                    let again = other == Some(offer);
                    self.unless(again, Fault::Redelivery, who, "pulls an offer", put(Worker::Asks { offer }));
                }
            }
            Worker::Asks { offer } => self.asks(place, offer),
            Worker::Granted { offer, ours } => {
                let mut to = put(Worker::Told { offer, ours });
                to.touch_home();
                self.push(who, "forward_homes, go", to);
                self.fault(Fault::LostReply, who, "hears no answer", put(Worker::Asks { offer }));
            }
            Worker::Told { offer, ours } => {
                let mut to = put(Worker::Runs { ours });
                self.fault(Fault::Redelivery, who, "begins, its ack is lost", to);
                to.offers = to.offers.without(offer);
                self.push(who, "acks the offer and begins", to);
            }
            Worker::Runs { ours } => {
                for (report, what) in [(Report::Success, "reports success"), (Report::Failure, "reports failure")] {
                    let mut to = put(Worker::Holds { report, ours });
                    to.report(report, ours);
                    if self.life.has(Flaw::ForgetsResults) {
                        to.workers[place] = Worker::Idle;
                    }
                    self.push(who, what, to);
                }
                let mut to = put(Worker::Holds { report: Report::Release, ours });
                to.report(Report::Release, ours);
                if self.life.has(Flaw::LeavesAfterRelease) {
                    to.workers[place] = Worker::Idle;
                }
                self.fault(Fault::Drain, who, "drains: releases its attempt", to);
                if !(current && ours) {
                    self.push(who, "extends, is told to stop", put(Worker::Idle));
                }
            }
            Worker::Holds { report, ours } if current && ours => {
                if !w.results.has(report, ours) {
                    let mut to = w;
                    to.report(report, ours);
                    self.push(who, "reports again", to);
                }
                if self.life.has(Flaw::ReleasesAfterResult) {
                    let mut to = put(Worker::Idle);
                    to.report(Report::Release, ours);
                    self.fault(Fault::Drain, who, "drains: releases what it has reported", to);
                }
            }
            Worker::Holds { .. } => self.push(who, "hears settled, or that it is not its own", put(Worker::Idle)),
        }
    }

    fn asks(&mut self, place: usize, offer: Age) {
        let (w, who) = (self.world, WHO[place]);
        let mut to = w;
        let asker = u8::try_from(place).unwrap_or_default();
        let mut outcome = to.apply(Event::Start, Seen::Offer(offer, asker));
        let started = w.record.is_some_and(|r| r.last == Some(Event::Start)) && offer == Age::Before;
        if self.life.has(Flaw::StartByWorker) && outcome == Outcome::Stale && started {
            outcome = Outcome::Already;
        }
        let (what, lost) = match outcome {
            Outcome::Applied => ("apply(start)", "apply(start), no answer"),
            Outcome::Already => ("apply(start): already", "apply(start): already, no answer"),
            // The job was started by another ask, has ended, or is offered again under a new version.
            _ => {
                to.offers = to.offers.without(offer);
                to.workers[place] = Worker::Idle;
                return self.push(who, "apply(start): gone, acks the offer", to);
            }
        };
        // The start, now or in an earlier try, made the offer's version the version before the last change.
        let offer = Age::Before;
        let gives_up = self.life.has(Flaw::GivesUpAsking);
        self.fault(Fault::LostReply, who, lost, {
            let mut to = to;
            to.workers[place] = if gives_up { Worker::Idle } else { Worker::Asks { offer } };
            to
        });
        to.workers[place] = Worker::Granted { offer, ours: true };
        self.push(who, what, to);
        if outcome == Outcome::Applied {
            // A lease as long as the time to the look at an offer needs no forward.
            to.workers[place] = Worker::Told { offer, ours: true };
            self.push(who, "apply(start), go", to);
        }
    }
}
