//! How a worker leaves. It takes no more work and gives back offers that it has not started. It lets running handlers
//! finish; when the time for that is over, it stops them and releases their attempts. It stays until its reports are
//! settled, or a few seconds have passed. An attempt with a result is never released: `results` keeps the first report.

use std::time::Duration;

use tokio::time::Instant;

use super::{Order, context::StopReason, phase::Phase, running::Fate, turn::Turn};

/// How long handlers may take to stop once the time for draining is over: this, or the worker's grace if that is
/// shorter. A handler that has not stopped by then is aborted, and its attempt is released.
pub const LEAVE_GRACE: Duration = Duration::from_secs(3);
/// How much longer than that to wait for a handler that does not yield.
const ABORT_WAIT: Duration = Duration::from_millis(500);
/// How long to stay for `settled`, and how often to repeat reports in that time.
const SETTLE_WAIT: Duration = Duration::from_secs(5);
const SETTLE_REPEAT: Duration = Duration::from_secs(1);

impl Turn {
    /// Takes an order to leave.
    pub(super) fn ordered(&mut self, order: Order) {
        let now = Instant::now();
        let until = match order {
            Order::Work => return,
            Order::Drain => now + self.plan.drain,
            Order::Stop => now,
        };
        match &mut self.phase {
            Phase::Working => {
                tracing::info!(busy = self.slots.taken(), "draining");
                self.phase = Phase::Draining { until };
                self.vitals.drains();
                let freed = self.starts.give_back_unbegun();
                self.slots.give(freed);
                self.results.hurry(SETTLE_REPEAT, now);
            }
            Phase::Draining { until: old } => *old = until.min(*old),
            Phase::Leaving { .. } | Phase::Settling { .. } => {}
        }
    }

    /// Takes the next step on the way out if it is time. Returns true when there is nothing left to wait for.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Working => false,
            Phase::Draining { .. } if self.nothing_runs() && self.starts.is_empty() => self.settle(now),
            Phase::Draining { until } if until <= now => {
                let late = self.running.with_fate(Fate::Ours);
                tracing::info!(jobs = late.len(), "time for draining is over; releasing what still runs");
                let grace = self.plan.grace.min(LEAVE_GRACE);
                self.running.set_grace(grace);
                for attempt in late {
                    self.running.stop(attempt, StopReason::Draining);
                }
                self.phase = Phase::Leaving { until: now + grace + ABORT_WAIT };
                self.advance(now)
            }
            Phase::Draining { .. } => false,
            Phase::Leaving { .. } if self.nothing_runs() => self.settle(now),
            Phase::Leaving { until } if until <= now => {
                // A handler that does not yield cannot be stopped. Its attempt is released nevertheless, and its old
                // fence makes its later writes recognisable.
                for attempt in self.running.with_fate(Fate::Leaving) {
                    if let Some(job) = self.running.get(attempt) {
                        let (context, confirmed) = (job.context.clone(), job.confirmed);
                        self.running.stop(attempt, StopReason::Lost);
                        self.release(attempt, &context, confirmed);
                    }
                }
                self.settle(now)
            }
            Phase::Leaving { .. } => false,
            Phase::Settling { .. } if self.nothing_open() => true,
            Phase::Settling { until } => {
                let over = until <= now;
                if over {
                    self.summary.unsettled = self.results.len();
                    tracing::warn!(unsettled = self.results.len(), "left before everything was settled");
                }
                over
            }
        }
    }

    fn settle(&mut self, now: Instant) -> bool {
        self.phase = Phase::Settling { until: now + SETTLE_WAIT };
        self.nothing_open()
    }

    /// Whether every report was sent and settled.
    fn nothing_open(&self) -> bool {
        self.results.is_empty() && self.starts.is_empty() && self.all_told()
    }

    /// Whether no handler runs whose outcome counts.
    fn nothing_runs(&self) -> bool {
        self.running.with_fate(Fate::Ours).is_empty() && self.running.with_fate(Fate::Leaving).is_empty()
    }
}
