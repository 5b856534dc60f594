//! One attempt at a job, as handlers see it.

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// One attempt at a job.
pub(super) struct Task {
    pub(super) job_id: String,
    pub(super) attempt: u32,
    pub(super) fence: u64,
    /// JSON; empty if the job has none.
    pub(super) payload: Bytes,
    /// Cancelled when the attempt has to stop.
    pub(super) stop: CancellationToken,
}
