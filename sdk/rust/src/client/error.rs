//! Errors between a program and the gateways, and whether repeating a call makes sense.

use std::time::Duration;

use muster_domain::RunId;
use serde::{Deserialize, Serialize};

/// A field that the gateway rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct FieldError {
    /// The field, as a JSON pointer into the request.
    pub pointer: String,
    /// What is wrong with the field.
    pub detail: String,
}

/// Why the gateway refused a request, as a problem document (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The code to match on, like `not_found`; empty if a proxy in between answered.
    pub code: String,
    /// A short title.
    pub title: String,
    /// What is wrong with this request.
    pub detail: String,
    /// Every rejected field.
    pub errors: Vec<FieldError>,
    /// The id of the request, for finding it in the logs.
    pub request_id: Option<String>,
    /// The id of the trace, for finding it in the traces.
    pub trace_id: Option<String>,
    /// Whether the same request may succeed later; `None` if the answer does not say.
    pub retryable: Option<bool>,
    /// How long to wait before that, if the gateway says so.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.detail.is_empty() { &self.title } else { &self.detail };
        write!(f, "{what}")?;
        for error in &self.errors {
            write!(f, "; {}: {}", error.pointer, error.detail)?;
        }
        if self.code.is_empty() {
            return write!(f, " (status {})", self.status);
        }
        write!(f, " ({}, status {})", self.code, self.status)
    }
}

impl Problem {
    /// Reads an error's body; a body that is no problem document becomes one.
    pub(super) fn read(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Problem {
        let mut problem = serde_json::from_slice::<Problem>(body).unwrap_or_else(|_| Problem {
            detail: String::from_utf8_lossy(&body[..body.len().min(500)]).trim().to_owned(),
            ..Problem::default()
        });
        problem.status = status;
        problem.retry_after = retry_after;
        if problem.detail.is_empty() && problem.title.is_empty() {
            problem.title = "the gateway refused without saying why".to_owned();
        }
        problem
    }
}

/// Why a run, a step or an item failed.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunFailure {
    /// The code to match on.
    pub code: String,
    /// A message for people.
    pub message: String,
    /// The step that failed first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

impl std::fmt::Display for RunFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        self.step.as_ref().map_or(Ok(()), |step| write!(f, " (step {step})"))
    }
}

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The gateway refused.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// No gateway could be reached, or the answer was lost. The request may have had its effect.
    #[error("no gateway answered: {0}")]
    Unreachable(String),
    /// The request is invalid; nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The answer could not be read.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
    /// The job or run had not ended when the time for waiting was over.
    #[error("it has not ended within {} ms", .0.as_millis())]
    NotDone(Duration),
    /// The run whose output was asked for ended, but not well.
    #[error("run {run} ended as {state}{}", error.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    RunEnded {
        /// The run.
        run: RunId,
        /// Its state.
        state: String,
        /// Why it failed.
        error: Option<Box<RunFailure>>,
    },
}

impl ClientError {
    /// The gateway's code, like `not_found`.
    pub fn code(&self) -> Option<&str> {
        self.problem().map(|problem| problem.code.as_str()).filter(|code| !code.is_empty())
    }

    /// The HTTP status.
    pub fn status(&self) -> Option<u16> {
        self.problem().map(|problem| problem.status)
    }

    /// The refusal, if it is one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            ClientError::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether the gateway answered that the resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            ClientError::Refused(problem) => {
                problem.retryable.unwrap_or(matches!(problem.status, 429 | 502 | 503 | 504))
            }
            ClientError::Unreachable(_) | ClientError::NotDone(_) => true,
            ClientError::Invalid(_) | ClientError::Unexpected(_) | ClientError::RunEnded { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_read_and_anything_else_becomes_one() {
        let body = br#"{"type":"x","title":"Bad","status":422,"detail":"no","code":"invalid_request",
            "errors":[{"pointer":"/topic","detail":"bad topic","more":1}],"retryable":false,"new":{}}"#;
        let error = ClientError::Refused(Box::new(Problem::read(422, None, body)));
        assert_eq!((error.code(), error.status(), error.is_retryable()), (Some("invalid_request"), Some(422), false));
        assert_eq!(error.to_string(), "no; /topic: bad topic (invalid_request, status 422)");

        let error = ClientError::Refused(Box::new(Problem::read(502, None, b"<html>bad gateway</html>")));
        assert_eq!((error.code(), error.is_retryable()), (None, true));
        assert!(error.to_string().contains("bad gateway"));
        assert!(!Problem::read(500, None, b"").to_string().is_empty());
    }
}
