//! Where a job stands. Only a running job has a lease and only an ended one an end: the [`Phase`]
//! makes anything else unsayable.

use std::time::Duration;

use super::state::{Ending, Event, State};
use crate::{StartId, Time, WorkerId};

/// A worker's hold on a running attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub worker: WorkerId,
    /// Which ask for a start won it.
    pub start_id: StartId,
    /// Until when it holds without being extended.
    pub until: Time,
}

/// The part of a job's standing that depends on its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, not decided; a `run_at` ahead makes it scheduled.
    Pending {
        /// Not before.
        run_at: Time,
    },
    /// Not before a time.
    Scheduled {
        /// That time.
        run_at: Time,
    },
    /// Backing off.
    Retrying {
        /// Until then.
        run_at: Time,
    },
    /// Waits for a person.
    AwaitingApproval {
        /// Until then.
        expires: Time,
    },
    /// In the backlog.
    Queued,
    /// On the bus since [`Head::since`].
    Dispatched,
    /// With a worker.
    Running {
        /// Its hold.
        lease: Lease,
        /// When the attempt times out; none if it may take as long as it likes.
        attempt_end: Option<Time>,
    },
    /// Over, since [`Head::since`].
    Ended {
        /// How.
        end: Ending,
        /// When a lease that was cut short ends, or none.
        lease_end: Option<Time>,
    },
}

/// What ended an attempt that is no longer running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The worker's own word.
    Worker(Event),
    /// The lease ran out.
    Silence,
    /// Time-out or deadline.
    Clock,
    /// Somebody cancelled.
    Cancel,
}

/// Where a job stands: what one packed field of its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Changes with every transition.
    pub version: u32,
    /// Attempts begun, less those given back.
    pub attempt: u16,
    /// How many there may be.
    pub max_attempts: u16,
    /// Attempts that ended by silence.
    pub lost: u16,
    /// Attempts given back.
    pub released: u8,
    /// Longest one attempt may take; none if unlimited.
    pub timeout: Option<Duration>,
    /// The last attempt's fencing token; 0 before the first start.
    pub fence: u64,
    /// When the present state was entered.
    pub since: Time,
    /// Over by.
    pub deadline: Option<Time>,
    /// Not started after.
    pub start_by: Option<Time>,
    /// When the last attempt began.
    pub started_at: Option<Time>,
    /// When it was accepted.
    pub created_at: Time,
    /// The event that led here; none for a job that has not moved.
    pub last_event: Option<Event>,
    /// The event that ended the last attempt.
    pub attempt_ended_by: Option<Event>,
    /// Who ran the last attempt.
    pub last_worker: Option<WorkerId>,
    /// The rest, by state.
    pub phase: Phase,
}

impl Head {
    /// The state.
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

    /// Whether it has ever started.
    pub fn was_started(&self) -> bool {
        self.started_at.is_some()
    }

    /// When it ended.
    pub fn finished_at(&self) -> Option<Time> {
        self.state().is_end().then_some(self.since)
    }

    /// The lease, while running.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.phase {
            Phase::Running { lease, .. } => Some(lease),
            _ => None,
        }
    }

    /// Who ended the attempt with this head's fence, if it is over.
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

/// One line of a job's story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What happened; none for the submit.
    pub event: Option<Event>,
    /// Where it led.
    pub to: State,
    /// When.
    pub at: Time,
    /// The attempt it belongs to.
    pub attempt: u16,
    /// The worker for a start, `code: message` for a failure, the reason for a cancel.
    pub note: String,
}
