//! The running handlers, one task each.
//!
//! This module knows which attempt each task runs, whether its result still counts, and when its time is up. An attempt
//! stays here, and so keeps its slot, until its task has really ended. A panic or an abort ends one attempt and nothing
//! else. One ordered set of moments serves all time-outs.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::Instant,
};
use tracing::Instrument;

use super::{
    Attempt,
    context::{Context, StopReason},
    handler::{Handler, HandlerError, Outcome, panicked},
    spans,
    starts::Offered,
};

/// What happens to an attempt when its handler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The outcome is published.
    Ours,
    /// The worker leaves: a success is published, anything else becomes a release.
    Leaving,
    /// The outcome is no longer wanted.
    Disowned,
}

/// One attempt whose handler runs.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) context: Context,
    pub(super) fate: Fate,
    /// The last proof that the lease was held.
    pub(super) confirmed: Instant,
    offered: Offered,
    abort: AbortHandle,
    alarm: Option<Instant>,
}

/// A handler that ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) attempt: Attempt,
    pub(super) job: Job,
    pub(super) outcome: Outcome,
}

/// All running handlers.
#[derive(Debug)]
pub(super) struct Running {
    tasks: JoinSet<Outcome>,
    by_task: HashMap<Id, Attempt>,
    jobs: HashMap<Attempt, Job>,
    started: HashMap<Offered, Attempt>,
    alarms: BTreeSet<(Instant, Attempt)>,
    grace: Duration,
}

impl Running {
    /// `grace` is how long a handler that was asked to stop may take before it is aborted.
    pub(super) fn new(grace: Duration) -> Running {
        Running {
            tasks: JoinSet::new(),
            by_task: HashMap::new(),
            jobs: HashMap::new(),
            started: HashMap::new(),
            alarms: BTreeSet::new(),
            grace,
        }
    }

    /// Begins an attempt. `confirmed` is a moment before its start was requested.
    pub(super) fn begin(
        &mut self,
        attempt: Attempt,
        offered: Offered,
        context: Context,
        handler: &Handler,
        payload: bytes::Bytes,
        confirmed: Instant,
    ) {
        let span = spans::of(attempt.job, &context);
        let alarm = context.timeout().map(|limit| Instant::now() + limit);
        // The handler itself is called inside the task, so that a panic before its first await is caught too.
        let (handler, own, watch) = (Handler::clone(handler), context.clone(), spans::Watch::default());
        let work = async move {
            let outcome = handler(own, payload).await;
            watch.ended(&outcome);
            outcome
        };
        let abort = self.tasks.spawn(work.instrument(span));
        self.by_task.insert(abort.id(), attempt);
        self.started.insert(offered, attempt);
        if let Some(at) = alarm {
            self.alarms.insert((at, attempt));
        }
        self.jobs.insert(attempt, Job { context, fate: Fate::Ours, confirmed, offered, abort, alarm });
    }

    /// The next handler that ends; `None` when none runs.
    pub(super) async fn next(&mut self) -> Option<Ended> {
        loop {
            let joined = self.tasks.join_next_with_id().await?;
            if let Some(ended) = self.ended(joined) {
                return Some(ended);
            }
        }
    }

    /// A handler that has already ended, if there is one.
    pub(super) fn try_next(&mut self) -> Option<Ended> {
        self.next().now_or_never().flatten()
    }

    fn ended(&mut self, joined: Result<(Id, Outcome), JoinError>) -> Option<Ended> {
        let (id, outcome) = match joined {
            Ok(done) => done,
            Err(error) => {
                let id = error.id();
                let failure = match error.try_into_panic() {
                    Ok(panic) => panicked(&*panic),
                    Err(_) => HandlerError::retryable("the handler was aborted"),
                };
                (id, Err(failure))
            }
        };
        let attempt = self.by_task.remove(&id)?;
        let job = self.jobs.remove(&attempt)?;
        if let Some(at) = job.alarm {
            self.alarms.remove(&(at, attempt));
        }
        if self.started.get(&job.offered) == Some(&attempt) {
            self.started.remove(&job.offered);
        }
        Some(Ended { attempt, job, outcome })
    }

    /// Asks a handler to stop, and has it aborted if it has not stopped within the grace. Returns whether this worker
    /// held the attempt until now.
    pub(super) fn stop(&mut self, attempt: Attempt, reason: StopReason) -> bool {
        let fate = if reason == StopReason::Draining { Fate::Leaving } else { Fate::Disowned };
        let Some(job) = self.jobs.get_mut(&attempt) else { return false };
        if job.fate == Fate::Disowned {
            return false;
        }
        let was_leaving = job.fate == Fate::Leaving;
        job.fate = fate;
        job.context.stop(reason);
        if !was_leaving {
            let at = Instant::now() + self.grace;
            if let Some(old) = job.alarm.replace(at) {
                self.alarms.remove(&(old, attempt));
            }
            self.alarms.insert((at, attempt));
        }
        true
    }

    /// Sets the grace from now on.
    pub(super) fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// The attempts whose own time is up. Handlers whose grace is over are aborted here.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Attempt> {
        let mut timed_out = Vec::new();
        while let Some(&(at, attempt)) = self.alarms.first() {
            if at > now {
                break;
            }
            self.alarms.pop_first();
            if let Some(job) = self.jobs.get_mut(&attempt) {
                job.alarm = None;
                match job.fate {
                    Fate::Ours => timed_out.push(attempt),
                    Fate::Leaving | Fate::Disowned => job.abort.abort(),
                }
            }
        }
        timed_out
    }

    pub(super) fn get(&self, attempt: Attempt) -> Option<&Job> {
        self.jobs.get(&attempt)
    }

    /// Whether this dispatch was started here and still runs.
    pub(super) fn runs(&self, offered: Offered) -> bool {
        self.started.contains_key(&offered)
    }

    /// Attempts that this worker still holds and whose lease was last confirmed at or before `moment`.
    pub(super) fn to_extend(&self, moment: Instant) -> impl Iterator<Item = (Attempt, &Job)> {
        self.jobs
            .iter()
            .filter(move |(_, job)| job.fate != Fate::Disowned && job.confirmed <= moment)
            .map(|(attempt, job)| (*attempt, job))
    }

    /// The lease was extended by a request sent at `sent`.
    pub(super) fn confirm(&mut self, attempt: Attempt, sent: Instant) {
        if let Some(job) = self.jobs.get_mut(&attempt) {
            job.confirmed = job.confirmed.max(sent);
        }
    }

    /// Attempts with this fate.
    pub(super) fn with_fate(&self, fate: Fate) -> Vec<Attempt> {
        self.jobs.iter().filter(|(_, job)| job.fate == fate).map(|(attempt, _)| *attempt).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}
