//! Why a run could not be read or changed.

use muster_domain::RunId;
use muster_engine::run::Unreadable;
use muster_store::StoreError;

/// Why a run could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// Redis did not answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A field of the run cannot be read: a lasting fault of this run alone.
    #[error("run {run}: {fault}")]
    Unreadable {
        /// The run.
        run: RunId,
        /// What is wrong.
        fault: String,
    },
    /// Other processes changed the run each time this one tried to save it.
    #[error("run {0} was changed by others again and again")]
    Contended(RunId),
}

impl RunsError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            RunsError::Store(fault) => fault.is_retryable(),
            RunsError::Unreadable { .. } => false,
            RunsError::Contended(_) => true,
        }
    }

    pub(crate) fn unreadable(run: RunId, fault: impl Into<String>) -> RunsError {
        RunsError::Unreadable { run, fault: fault.into() }
    }

    pub(crate) fn field(run: RunId, fault: &Unreadable) -> RunsError {
        RunsError::unreadable(run, fault.to_string())
    }
}
