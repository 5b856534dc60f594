//! The history of a job, as the gateways show it.

use serde::{Deserialize, Serialize};

use super::job::JobFailure;

/// Everything that happened to a job.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct History {
    /// Every transition, the oldest first; the middle of a long history is left out.
    #[serde(alias = "items")]
    pub transitions: Vec<HistoryEntry>,
    /// Every attempt, the oldest first.
    pub attempts: Vec<AttemptRecord>,
}

/// One transition.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The event; `submit` for the first transition.
    pub event: String,
    /// The state that the transition led to.
    #[serde(alias = "to")]
    pub state: String,
    /// The time of the transition, RFC 3339.
    pub at: String,
    /// The attempt that the transition belongs to.
    pub attempt: u32,
    /// A worker, an error or a reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One attempt.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// The number of the attempt; the first is 1.
    pub attempt: u32,
    /// The worker that ran the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When the attempt began, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When the attempt ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// The event that ended the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Why the attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<JobFailure>,
}
