//! What can go wrong when the store is asked. Carries no URL and no password, so that every error
//! may be logged and shown.

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
    /// The data were written by a newer version, in a format that this one does not know.
    #[error("the data have format {found}, and this version knows {known}: start one that is at least as new")]
    Newer {
        /// What is stored.
        found: u64,
        /// What this version reads.
        known: u64,
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

    pub(crate) fn unavailable(detail: impl Into<String>) -> StoreError {
        StoreError::Unavailable { detail: detail.into() }
    }
}
