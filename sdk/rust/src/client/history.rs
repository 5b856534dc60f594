//! The story of a job, as the gateways tell it.

use serde::{Deserialize, Serialize};

use super::job::JobFailure;

/// Everything that happened to a job.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct History {
    /// Every transition, the oldest first; of a long story the middle is left out.
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
    /// What happened; `submit` for the first.
    pub event: String,
    /// Where it led.
    #[serde(alias = "to")]
    pub state: String,
    /// When, RFC 3339.
    pub at: String,
    /// The attempt it belongs to.
    pub attempt: u32,
    /// A worker, an error, a reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One attempt.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// Which; the first is 1.
    pub attempt: u32,
    /// Who ran it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When it began, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it was over, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// The event that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<JobFailure>,
}
