//! A job before it has a record.

use bytes::Bytes;
use muster_domain::{JobId, JobSpec, Time};

use crate::place::Place;

/// A job to be created.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The id, minted or derived from the client's idempotency key.
    pub id: JobId,
    /// The request.
    pub spec: JobSpec,
    /// The payload, verbatim JSON; empty if there is none.
    pub payload: Bytes,
    /// The hash of the request, if the id was derived: another request under the same id is refused.
    pub body_hash: Option<[u8; 16]>,
    /// The job's place in the listing, set by [`Store::prepare`](crate::Store::prepare).
    pub place: Option<Place>,
    /// When the job's home was set, if that is by the clock of the record's node; set by [`Store::prepare`](crate::Store::prepare).
    pub at: Option<Time>,
}
