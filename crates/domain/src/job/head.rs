//! The current state of a job. Only a running job has a lease and only an ended job has an end: the
//! [`Phase`] rules out every other combination.

use std::time::Duration;

use super::state::{Ending, Event, State};
use crate::{StartId, Time, WorkerId};

/// A worker's lease on a running attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The worker that holds the lease.
    pub worker: WorkerId,
    /// The start request that won the lease.
    pub start_id: StartId,
    /// When the lease ends unless the worker extends it.
    pub until: Time,
}

/// The part of a job's head that depends on its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, but not yet decided. If `run_at` lies in the future, the scheduler schedules the
    /// job.
    Pending {
        /// The earliest time at which the job may run.
        run_at: Time,
    },
    /// Waiting for its `run_at`.
    Scheduled {
        /// The earliest time at which the job may run.
        run_at: Time,
    },
    /// Waiting for the backoff after a failed attempt.
    Retrying {
        /// When the backoff ends.
        run_at: Time,
    },
    /// Waiting for a person's approval.
    AwaitingApproval {
        /// When the request for approval expires.
        expires: Time,
    },
    /// Waiting in the backlog.
    Queued,
    /// Offered on the bus since [`Head::since`].
    Dispatched,
    /// A worker runs the job.
    Running {
        /// The worker's lease.
        lease: Lease,
        /// When the attempt times out; none if it has no time limit.
        attempt_end: Option<Time>,
    },
    /// Ended at [`Head::since`].
    Ended {
        /// How the job ended.
        end: Ending,
        /// When the lease ends that was still alive when the job ended; none if there was none.
        lease_end: Option<Time>,
    },
}

/// What ended an attempt that is no longer running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The worker's own report.
    Worker(Event),
    /// The lease ran out.
    Silence,
    /// A time-out or the deadline.
    Clock,
    /// A cancel.
    Cancel,
}

/// The current state of a job: the content of one packed field of its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The version of the record; changes with every transition.
    pub version: u32,
    /// Attempts started, less the attempts that workers released.
    pub attempt: u16,
    /// How many attempts may be started.
    pub max_attempts: u16,
    /// Attempts that ended because the lease ran out.
    pub lost: u16,
    /// Attempts that workers released.
    pub released: u8,
    /// The longest time one attempt may take; none if unlimited.
    pub timeout: Option<Duration>,
    /// The fence of the last attempt; 0 before the first start.
    pub fence: u64,
    /// When the job entered its current state.
    pub since: Time,
    /// When the job must have ended.
    pub deadline: Option<Time>,
    /// When the job must have started.
    pub start_by: Option<Time>,
    /// When the last attempt started.
    pub started_at: Option<Time>,
    /// When the job was accepted.
    pub created_at: Time,
    /// The event that led to the current state; none for a job that has not moved since its submit.
    pub last_event: Option<Event>,
    /// The event that ended the last attempt.
    pub attempt_ended_by: Option<Event>,
    /// The worker that ran the last attempt.
    pub last_worker: Option<WorkerId>,
    /// The fields that depend on the state.
    pub phase: Phase,
}

impl Head {
    /// The job's state.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Pending { .. } => State::Pending,
            Phase::Scheduled { .. } => State::Scheduled,
            Phase::Retrying { .. } => State::Retrying,
            Phase::AwaitingApproval { .. } => State::AwaitingApproval,
            Phase::Queued => State::Queued,
            Phase::Dispatched => State::Dispatched,
            Phase::Running { .. } => State::Running,
            Phase::Ended { end, .. } => end.into(),
        }
    }

    /// Whether the job has ever started.
    pub fn was_started(&self) -> bool {
        self.started_at.is_some()
    }

    /// When the job ended.
    pub fn finished_at(&self) -> Option<Time> {
        self.state().is_end().then_some(self.since)
    }

    /// The lease, while the job is running.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.phase {
            Phase::Running { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// What ended the last attempt, if that attempt is over.
    pub fn ended_by(&self) -> Option<EndedBy> {
        Some(match self.attempt_ended_by? {
            e @ (Event::Succeed | Event::Retry | Event::Fail | Event::Release | Event::Quarantine) => {
                EndedBy::Worker(e)
            }
            Event::Rescue | Event::Abandon | Event::Poison => EndedBy::Silence,
            Event::Cancel => EndedBy::Cancel,
            _ => EndedBy::Clock,
        })
    }
}

/// One entry of a job's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The event; none for the submit.
    pub event: Option<Event>,
    /// The state that the event led to.
    pub to: State,
    /// When the transition happened.
    pub at: Time,
    /// The attempt that the transition belongs to.
    pub attempt: u16,
    /// The worker for a start, `code: message` for a failure, the reason for a cancel.
    pub note: String,
}
