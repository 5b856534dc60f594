//! What can go wrong when the store is asked. Carries no URL and no password, so that every error
//! may be logged and shown.

use muster_domain::JobId;
use thiserror::Error;

/// Why a call to Redis gave no answer that the caller can use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Redis could not be reached, or was not ready, until the call's time budget had passed. The
    /// call may or may not have been carried out. Worth trying again later.
    #[error("the store is unavailable: {detail}")]
    Unavailable {
        /// The last thing that went wrong.
        detail: String,
    },
    /// Redis understood and refused.
    #[error("the store refused ({code}): {message}")]
    Server {
        /// The first word of the reply, such as `WRONGTYPE`.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// Redis answered in a shape that was not expected.
    #[error("the store answered in an unexpected shape: {0}")]
    Decode(String),
    /// A job's record is there and makes no sense: damaged, or written by somebody else. It stays so
    /// until somebody mends or removes it; nobody else is concerned.
    #[error("the record of job {job} cannot be read: {what}")]
    Unreadable {
        /// Whose.
        job: JobId,
        /// What is wrong with it.
        what: String,
    },
    /// The data were written by a newer version, in a format that this one does not know.
    #[error("the data have format {found}, and this version knows {known}: start one that is at least as new")]
    Newer {
        /// What is stored.
        found: u64,
        /// What this version reads.
        known: u64,
    },
    /// What was asked for is a leader's to do, and the lease is another lock's or no longer held. Nothing
    /// was written.
    #[error("the lease on {lock} is not held")]
    NotLeader {
        /// The lock that the work is done under.
        lock: &'static str,
    },
    /// The settings cannot be used.
    #[error("the store's settings cannot be used: {0}")]
    Config(String),
}

impl StoreError {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }

    /// Whether it is one job's record that cannot be read: a fault of that job alone, and a lasting one.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, StoreError::Unreadable { .. })
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> StoreError {
        StoreError::Unavailable { detail: detail.into() }
    }
}
