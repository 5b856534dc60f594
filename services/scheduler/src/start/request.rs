//! One worker's request to start a job, read.

use std::sync::Arc;

use muster_domain::JobId;
use muster_wire::v1::StartAsk;

use crate::route_state::RouteState;

/// One ask, read.
pub(super) struct Read {
    pub(super) ask: StartAsk,
    /// Its place among those who ask.
    pub(super) worker: usize,
    /// None if it makes no sense.
    pub(super) job: Option<(JobId, Arc<RouteState>)>,
    /// It is not to be started, whatever the record says.
    pub(super) refused: Option<Refused>,
}

/// Why an offer is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its topic holds it, and it was taken back.
    Recalled,
    /// The store did not answer.
    Unknown,
}
