//! Errors of the store. They contain no URL and no password, so that every error may be logged and shown.

use muster_domain::JobId;
use thiserror::Error;

/// Why a call to Redis gave no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Redis could not be reached, or was not ready, until the call's time budget had passed. The call may or may not
    /// have been carried out. Worth trying again later.
    #[error("the store is unavailable: {detail}")]
    Unavailable {
        /// The last error.
        detail: String,
    },
    /// Redis understood the command and refused it.
    #[error("the store refused ({code}): {message}")]
    Server {
        /// The first word of the reply, such as `WRONGTYPE`.
        code: String,
        /// The rest of the reply.
        message: String,
    },
    /// Redis answered in a shape that was not expected.
    #[error("the store answered in an unexpected shape: {0}")]
    Decode(String),
    /// A job's record exists and makes no sense: it is damaged, or another program wrote it. It stays unreadable until
    /// an operator repairs or removes it; other jobs are not affected.
    #[error("the record of job {job} cannot be read: {what}")]
    Unreadable {
        /// The id of the job.
        job: JobId,
        /// What is wrong with the record.
        what: String,
    },
    /// The data were written by a newer version, in a format that this one does not know.
    #[error("the data has format {found}, and this version reads formats up to {known}: start a newer version")]
    Newer {
        /// The format of the stored data.
        found: u64,
        /// The newest format that this version reads.
        known: u64,
    },
    /// Only a leader may do this, and the lease belongs to another lock or is no longer held. Nothing was written.
    #[error("the lease on {lock} is not held")]
    NotLeader {
        /// The lock that the operation requires.
        lock: &'static str,
    },
    /// The settings cannot be used.
    #[error("the store's settings cannot be used: {0}")]
    Config(String),
}

impl StoreError {
    /// Whether the same call may succeed later without any other change.
    pub fn is_retryable(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }

    /// Whether Redis has reached its memory limit and refuses commands that need memory. Other commands still work.
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Unavailable { detail } if detail.contains("OOM command not allowed"))
    }

    /// Whether a single job's record cannot be read: a lasting fault of that job alone.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, StoreError::Unreadable { .. })
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> StoreError {
        StoreError::Unavailable { detail: detail.into() }
    }
}
