//! Handlers, how their payloads and results become JSON, and the error by which an attempt fails. This module knows
//! nothing of leases or the bus.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use muster_domain::{JobError, JobErrorCode};
use muster_wire::v1;
use serde::{Serialize, de::DeserializeOwned};

use super::context::Context;

/// The most bytes of a result that are sent; a larger one is a success with a preview.
pub const MAX_RESULT: usize = 256 * 1024;

/// The most bytes of that preview.
pub const RESULT_PREVIEW: usize = 4 * 1024;

/// The most bytes of an error's details; larger details are left out.
const MAX_DETAILS: usize = 64 * 1024;

/// The error code of a payload that its handler cannot parse.
pub const INVALID_PAYLOAD: &str = "invalid_payload";

/// The result of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobResult {
    /// JSON, verbatim; empty if there is none.
    Whole(Bytes),
    /// The size and the beginning of a result of more than [`MAX_RESULT`] bytes.
    Cut {
        /// The size of the result's JSON in bytes.
        size: u64,
        /// The first bytes; anything beyond [`RESULT_PREVIEW`] is left out.
        preview: String,
    },
}

impl From<Bytes> for JobResult {
    fn from(json: Bytes) -> JobResult {
        JobResult::Whole(json)
    }
}

impl JobResult {
    /// The result as it may be sent: cut if it is too large.
    #[must_use]
    pub fn fitted(self) -> JobResult {
        match self {
            JobResult::Whole(json) if json.len() > MAX_RESULT => {
                JobResult::Cut { size: json.len() as u64, preview: beginning(&json) }
            }
            JobResult::Cut { size, preview } if preview.len() > RESULT_PREVIEW => {
                JobResult::Cut { size, preview: beginning(preview.as_bytes()) }
            }
            fits => fits,
        }
    }
}

/// The first bytes, cut on a character boundary.
fn beginning(text: &[u8]) -> String {
    let head = &text[..text.len().min(RESULT_PREVIEW)];
    match std::str::from_utf8(head) {
        Ok(text) => text.to_owned(),
        Err(cut) => String::from_utf8_lossy(&head[..cut.valid_up_to()]).into_owned(),
    }
}

/// The outcome of an attempt: JSON, or why it failed.
pub(super) type Outcome = Result<JobResult, HandlerError>;

/// A handler with its types erased.
pub(super) type Handler = Arc<dyn Fn(Context, Bytes) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// Why an attempt failed. Anything that can be displayed becomes one by `?`: retryable, with the
/// code `handler_error`. (For the same reason it has no `Display` of its own.)
///
/// ```
/// use muster_sdk::HandlerError;
///
/// fn read(text: &str) -> Result<u32, HandlerError> {
///     let number = text.parse::<u32>()?; // retryable
///     if number == 0 {
///         return Err(HandlerError::permanent("zero makes no sense").code("bad_number"));
///     }
///     Ok(number)
/// }
/// assert!(read("x").unwrap_err().retryable);
/// assert!(!read("0").unwrap_err().retryable);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError {
    /// The code to match on; `handler_error` by default.
    pub code: String,
    /// A message for people. Cut to 4,000 bytes on a character boundary when it is sent.
    pub message: String,
    /// Any JSON, verbatim.
    pub details: Option<String>,
    /// Whether another attempt makes sense.
    pub retryable: bool,
    /// When to try again, instead of the job's own backoff.
    pub retry_in: Option<Duration>,
}

impl HandlerError {
    /// A failure after which another attempt makes sense.
    pub fn retryable(message: impl fmt::Display) -> HandlerError {
        HandlerError {
            code: JobErrorCode::HandlerError.as_str().to_owned(),
            message: format!("{message:#}"),
            details: None,
            retryable: true,
            retry_in: None,
        }
    }

    /// A failure that no further attempt would change.
    pub fn permanent(message: impl fmt::Display) -> HandlerError {
        HandlerError { retryable: false, ..HandlerError::retryable(message) }
    }

    /// Sets a code of your own.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> HandlerError {
        self.code = code.into();
        self
    }

    /// Adds details for readers of the job. Left out if they cannot be written as JSON.
    #[must_use]
    pub fn details(mut self, details: &impl Serialize) -> HandlerError {
        self.details = serde_json::to_string(details).ok();
        self
    }

    /// Asks for the next attempt after this time.
    #[must_use]
    pub fn retry_in(mut self, wait: Duration) -> HandlerError {
        self.retryable = true;
        self.retry_in = Some(wait);
        self
    }
}

impl<E: fmt::Display> From<E> for HandlerError {
    fn from(error: E) -> HandlerError {
        HandlerError::retryable(error)
    }
}

/// Wraps a handler that takes and returns typed values.
pub(super) fn typed<T, R, F, Fut>(handler: F) -> Handler
where
    T: DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
    F: Fn(Context, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |context, payload| {
        let handler = Arc::clone(&handler);
        async move {
            let payload = decode(&payload)?;
            let result = handler(context, payload).await?;
            serde_json::to_vec(&result)
                .map(|json| JobResult::Whole(json.into()))
                .map_err(|e| HandlerError::permanent(format_args!("the result cannot be written as JSON: {e}")))
        }
        .boxed()
    })
}

/// Wraps a handler that takes and returns JSON bytes.
pub(super) fn raw<F, Fut, R>(handler: F) -> Handler
where
    R: Into<JobResult> + Send + 'static,
    F: Fn(Context, Bytes) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |context, payload| {
        let handler = Arc::clone(&handler);
        async move {
            let result = handler(context, payload).await?.into();
            // Readers of the job expect JSON; a result that is not JSON would break them.
            let is_json = |json: &[u8]| serde_json::from_slice::<&serde_json::value::RawValue>(json).is_ok();
            if matches!(&result, JobResult::Whole(json) if !json.is_empty() && !is_json(json)) {
                return Err(HandlerError::permanent("the handler's result is not JSON"));
            }
            Ok(result)
        }
        .boxed()
    })
}

/// Parses a payload; an empty one is `null`.
fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, HandlerError> {
    let json: &[u8] = if payload.is_empty() { b"null" } else { payload };
    serde_json::from_slice(json).map_err(|e| HandlerError::permanent(e).code(INVALID_PAYLOAD))
}

/// A success as it is sent: whole, or with a flag, its size and a preview.
pub(super) fn success(result: JobResult) -> v1::Success {
    match result.fitted() {
        JobResult::Whole(result) => v1::Success { result, ..v1::Success::default() },
        JobResult::Cut { size, preview } => v1::Success { result: Bytes::new(), truncated: true, size, preview },
    }
}

/// A failure as it is sent.
pub(super) fn failed(error: HandlerError) -> v1::Failed {
    let code = if error.code.is_empty() { JobErrorCode::HandlerError.as_str().to_owned() } else { error.code };
    // Details are shown verbatim inside a document, so anything other than JSON must not get that far.
    let is_json = |text: &String| serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
    let details = error.details.filter(|text| text.len() <= MAX_DETAILS && is_json(text));
    let cut = JobError { details, ..JobError::new(code, &error.message, error.retryable) };
    let retry_in_ms = error.retry_in.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    v1::Failed { failure: Some(v1::Failure::from(&cut)), retry_in_ms }
}

/// The failure for a panic.
pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> HandlerError {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    HandlerError::retryable(format_args!("the handler panicked: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_over_the_limit_keeps_a_preview_that_ends_on_a_character() {
        let whole = success(Bytes::from(vec![b'1'; MAX_RESULT]).into());
        assert!(!whole.truncated && whole.result.len() == MAX_RESULT && whole.preview.is_empty());

        let text = format!("\"x{}\"", "€".repeat(MAX_RESULT / 3 + 1));
        let cut = success(Bytes::from(text.clone()).into());
        assert!(cut.truncated && cut.result.is_empty());
        assert_eq!(cut.size, text.len() as u64);
        assert!(cut.preview.len() <= RESULT_PREVIEW && cut.preview.len() > RESULT_PREVIEW - 4);
        assert!(text.starts_with(&cut.preview));

        let own = success(JobResult::Cut { size: 20_000_002, preview: text });
        assert_eq!((own.truncated, own.size, own.preview), (true, 20_000_002, cut.preview));
    }

    #[test]
    fn an_error_is_cut_on_a_character_and_keeps_its_wishes() {
        let long = "ü€😀".repeat(2000);
        let sent = failed(HandlerError::retryable(&long).code("").retry_in(Duration::from_secs(2)));
        let failure = sent.failure.unwrap();
        assert!(failure.message.len() <= 4000 && long.starts_with(&failure.message));
        assert_eq!((failure.code.as_str(), failure.retryable, sent.retry_in_ms), ("handler_error", true, Some(2000)));
    }

    #[test]
    fn a_payload_that_does_not_fit_is_permanent_and_none_is_null() {
        let error = decode::<u32>(b"\"x\"").unwrap_err();
        assert_eq!((error.code.as_str(), error.retryable), (INVALID_PAYLOAD, false));
        assert_eq!(decode::<Option<u32>>(b"").unwrap(), None);
    }
}
