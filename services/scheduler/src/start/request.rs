//! A parsed request of a worker to start a job.

use std::sync::Arc;

use muster_domain::JobId;
use muster_wire::v1::StartAsk;

use crate::route_state::RouteState;

pub(super) struct Read {
    pub(super) ask: StartAsk,
    /// The index of its worker among those that ask.
    pub(super) worker: usize,
    /// None if id or names are invalid.
    pub(super) job: Option<(JobId, Arc<RouteState>)>,
    /// Set if the job must not start, whatever its record says.
    pub(super) refused: Option<Refused>,
}

/// Why an offer is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The topic is paused or limited, and the offer was taken back.
    Recalled,
    /// The store did not answer.
    Unknown,
}
