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
    /// Whether it has to stop because the worker leaves, which hurries: the SDK aborts a handler then that has not
    /// stopped within [`muster_sdk::LEAVE_GRACE`]. False over HTTP, where the worker waits for its handlers.
    pub(super) leaves: Box<dyn Fn() -> bool + Send + Sync>,
}
