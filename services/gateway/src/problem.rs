//! Refusals as clients see them: RFC 9457 `application/problem+json`.
//!
//! Knows: the status, title and wording of every [`ProblemCode`]. Promises: every refusal of this service is a
//! problem with a stable code; 429 and 503 say when to retry. A handler returns a [`Problem`]; the front door
//! ([`crate::front`]) adds what only it knows (request id, trace, path) and writes the body. Leaves to others:
//! deciding what to refuse.

use std::{borrow::Cow, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use muster_domain::{JobId, ProblemCode};
use muster_store::StoreError;
use serde::Serialize;

/// How long a client should wait by default before it retries.
const COME_BACK: Duration = Duration::from_secs(1);

/// One fault of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    #[serde(skip)]
    pub(crate) code: ProblemCode,
    pub(crate) pointer: String,
    pub(crate) detail: String,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) code: ProblemCode,
    pub(crate) detail: Cow<'static, str>,
    pub(crate) errors: Vec<Fault>,
    pub(crate) retry_after: Option<Duration>,
}

impl Problem {
    /// A refusal with this code and this detail.
    pub(crate) fn new(code: ProblemCode, detail: impl Into<Cow<'static, str>>) -> Problem {
        let retry_after = matches!(status_of(code).as_u16(), 429 | 503).then_some(COME_BACK);
        Problem { code, detail: detail.into(), errors: Vec::new(), retry_after }
    }

    /// A refusal of one or more fields. Its code is that of the first fault.
    pub(crate) fn fields(errors: Vec<Fault>) -> Problem {
        let code = errors.first().map_or(ProblemCode::InvalidRequest, |fault| fault.code);
        let detail = match errors.as_slice() {
            [only] if only.pointer.is_empty() => format!("the body {}", only.detail),
            [only] => format!("{}: {}", only.pointer, only.detail),
            many => format!("{} fields were refused; `errors` names each", many.len()),
        };
        Problem { errors, ..Problem::new(code, detail) }
    }

    /// A refusal of one field, query parameter (`/query/..`) or header (`/header/..`).
    pub(crate) fn field(code: ProblemCode, pointer: impl Into<String>, detail: impl Into<String>) -> Problem {
        Problem::fields(vec![Fault { code, pointer: pointer.into(), detail: detail.into() }])
    }

    /// The job does not exist, or belongs to another tenant: the answer does not distinguish the two.
    pub(crate) fn no_job(id: JobId) -> Problem {
        Problem::new(ProblemCode::NotFound, format!("there is no job {id}"))
    }

    /// Redis did not answer.
    pub(crate) fn store_away() -> Problem {
        Problem::new(ProblemCode::StoreUnavailable, "the store does not answer; nothing is known to have been done")
    }

    /// Redis has reached its memory limit.
    pub(crate) fn store_full() -> Problem {
        Problem::new(
            ProblemCode::StoreUnavailable,
            "the store is full: it has reached its memory limit and takes nothing new",
        )
    }

    /// The bus did not answer.
    pub(crate) fn bus_away() -> Problem {
        Problem::new(ProblemCode::StoreUnavailable, "the bus does not answer; ask again")
    }

    /// The HTTP status of this refusal.
    pub(crate) fn status(&self) -> StatusCode {
        status_of(self.code)
    }

    /// The problem document, with what the front door knows about the request.
    pub(crate) fn document<'a>(&'a self, instance: &'a str, request_id: &'a str, trace_id: &'a str) -> Document<'a> {
        let status = self.status();
        Document {
            kind: format!("urn:muster:problem:{}", self.code),
            title: title_of(self.code),
            status: status.as_u16(),
            detail: &self.detail,
            instance: Some(instance).filter(|s| !s.is_empty()),
            code: self.code.as_str(),
            request_id: Some(request_id).filter(|s| !s.is_empty()),
            trace_id: Some(trace_id).filter(|s| !s.is_empty()),
            retryable: matches!(status.as_u16(), 429 | 503),
            errors: &self.errors,
        }
    }

    /// The complete HTTP response.
    pub(crate) fn render(&self, instance: &str, request_id: &str, trace_id: &str) -> Response {
        let body = serde_json::to_vec(&self.document(instance, request_id, trace_id)).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        if self.code == ProblemCode::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Whole seconds, rounded up, so that a client that retries then is not too early.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// The body of a refusal.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    retryable: bool,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    errors: &'a [Fault],
}

/// Carries a problem to the front door, which writes it. Boxed to stay small: most responses carry none.
#[derive(Clone)]
pub(crate) struct Carried(pub(crate) Box<Problem>);

/// A server fault inside a response that succeeds as a whole, such as one item of a batch. The front door logs it.
#[derive(Clone)]
pub(crate) struct Within(pub(crate) Box<Problem>);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(Carried(Box::new(self)));
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match error {
            full if full.is_full() => Problem::store_full(),
            StoreError::Unavailable { .. } => Problem::store_away(),
            unreadable @ StoreError::Unreadable { .. } => {
                Problem::new(ProblemCode::JobUnreadable, unreadable.to_string())
            }
            newer @ StoreError::Newer { .. } => Problem::new(ProblemCode::StoreUnavailable, newer.to_string()),
            other => {
                tracing::error!(event = "store_fault", detail = %other, "the store refused a call");
                Problem::new(ProblemCode::Internal, "the store refused a call; the log has the reason")
            }
        }
    }
}

/// The header of a 202 which says that so far only Redis holds the job.
pub(crate) const MUSTER_BUS: HeaderName = HeaderName::from_static("muster-bus");

/// The HTTP status of each code.
pub(crate) fn status_of(code: ProblemCode) -> StatusCode {
    match code {
        ProblemCode::InvalidJson | ProblemCode::MalformedRequest => StatusCode::BAD_REQUEST,
        ProblemCode::InvalidRequest
        | ProblemCode::UnknownField
        | ProblemCode::UnsupportedField
        | ProblemCode::IdempotencyMismatch => StatusCode::UNPROCESSABLE_ENTITY,
        ProblemCode::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ProblemCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ProblemCode::MissingScope => StatusCode::FORBIDDEN,
        ProblemCode::NotFound => StatusCode::NOT_FOUND,
        ProblemCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ProblemCode::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ProblemCode::JobDone
        | ProblemCode::JobNotDone
        | ProblemCode::JobInRun
        | ProblemCode::AlreadyRetried
        | ProblemCode::RunNotDone
        | ProblemCode::RunDone
        | ProblemCode::ConcurrencyFull
        | ProblemCode::SignalsFull
        | ProblemCode::WrongState => StatusCode::CONFLICT,
        ProblemCode::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        ProblemCode::RateLimited | ProblemCode::BacklogFull => StatusCode::TOO_MANY_REQUESTS,
        ProblemCode::Overloaded | ProblemCode::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        ProblemCode::JobUnreadable | ProblemCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn title_of(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::InvalidJson => "The body is not JSON",
        ProblemCode::MalformedRequest => "The request's head contradicts itself",
        ProblemCode::InvalidRequest => "A field has a value it may not have",
        ProblemCode::UnknownField => "A field nobody knows",
        ProblemCode::UnsupportedField => "A field this version does not honour yet",
        ProblemCode::PayloadTooLarge => "Too large",
        ProblemCode::Unauthorized => "No key, or one that is not known",
        ProblemCode::MissingScope => "The key may not do this",
        ProblemCode::NotFound => "Not found",
        ProblemCode::MethodNotAllowed => "This path does not know this method",
        ProblemCode::UnsupportedMediaType => "The body is not plain JSON, by its declared type or encoding",
        ProblemCode::JobDone => "The job has ended",
        ProblemCode::JobNotDone => "The job has not ended",
        ProblemCode::JobInRun => "The job belongs to a run that is kept",
        ProblemCode::IdempotencyMismatch => "The idempotency key was used with another body",
        ProblemCode::AlreadyRetried => "The job was retried before, with other overrides",
        ProblemCode::RunNotDone => "The run has not ended",
        ProblemCode::RunDone => "The run has ended",
        ProblemCode::ConcurrencyFull => "As many runs of this workflow go on as its concurrency allows",
        ProblemCode::SignalsFull => "Too many signals of this run are unread",
        ProblemCode::WrongState => "The run, or its step, is in a state in which this cannot be done",
        ProblemCode::PreconditionFailed => "Somebody else wrote meanwhile",
        ProblemCode::RateLimited => "Over the rate limit",
        ProblemCode::BacklogFull => "Too many jobs of this topic wait already",
        ProblemCode::Overloaded => "Too much in flight",
        ProblemCode::StoreUnavailable => "A store does not answer",
        ProblemCode::JobUnreadable => "The job's record cannot be read",
        ProblemCode::Internal => "A fault of ours",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(problem: &Problem) -> serde_json::Value {
        serde_json::to_value(problem.document("/api/v1/jobs", "r1", "t1")).unwrap()
    }

    #[test]
    fn a_problem_says_what_where_and_whether_to_try_again() {
        let wrong = Problem::field(ProblemCode::InvalidRequest, "/topic", "is required");
        let shown = shown(&wrong);
        assert_eq!(shown["type"], "urn:muster:problem:invalid_request");
        assert_eq!(shown["status"], 422);
        assert_eq!(shown["code"], "invalid_request");
        assert_eq!(shown["instance"], "/api/v1/jobs");
        assert_eq!(shown["request_id"], "r1");
        assert_eq!(shown["trace_id"], "t1");
        assert_eq!(shown["retryable"], false);
        assert_eq!(shown["errors"], serde_json::json!([{"pointer": "/topic", "detail": "is required"}]));
    }

    #[test]
    fn whoever_may_come_back_is_told_when() {
        for &code in ProblemCode::ALL {
            let problem = Problem::new(code, "x");
            let response = problem.render("", "", "");
            let waits = matches!(response.status().as_u16(), 429 | 503);
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), waits, "{code}");
            assert_eq!(shown(&problem)["retryable"], waits, "{code}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        }
        let late = Some(Duration::from_millis(59_001));
        let slow = Problem { retry_after: late, ..Problem::new(ProblemCode::RateLimited, "x") }.render("", "", "");
        assert_eq!(slow.headers()[header::RETRY_AFTER], "60");
    }

    #[test]
    fn the_first_fault_gives_the_code_and_all_are_listed() {
        let fault = |code, pointer: &str| Fault { code, pointer: pointer.into(), detail: "no".into() };
        let problem =
            Problem::fields(vec![fault(ProblemCode::UnknownField, "/a"), fault(ProblemCode::InvalidRequest, "/b")]);
        assert_eq!(problem.code, ProblemCode::UnknownField);
        assert_eq!(shown(&problem)["errors"].as_array().unwrap().len(), 2);
    }
}
