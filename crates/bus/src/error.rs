//! Errors of the bus, worded for an operator.
//!
//! Every error can be cloned, because one failed message may carry the work of many callers. No
//! error shows a credential.

use std::time::Duration;

use muster_wire::WireError;

/// Why the bus did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// There is no connection, or it broke while an answer was awaited.
    #[error("NATS is away: {detail}")]
    Away {
        /// The operation in progress.
        detail: String,
    },
    /// No answer within the time that the caller allowed.
    #[error("no answer from NATS within {} ms: {what}", after.as_millis())]
    Timeout {
        /// The operation in progress.
        what: String,
        /// How long the caller waited.
        after: Duration,
    },
    /// No subscriber listens on the subject.
    #[error("no subscriber listens on {subject}")]
    NoResponders {
        /// The subject.
        subject: String,
    },
    /// The message is larger than the server takes.
    #[error("a message of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// The size of the message in bytes.
        size: usize,
        /// Most bytes that a message may have.
        limit: usize,
    },
    /// The server answered with an error.
    #[error("NATS refused: {description} (code {code}, {err_code})")]
    Refused {
        /// The status code, as in HTTP.
        code: u16,
        /// JetStream's own error number.
        err_code: u32,
        /// The server's error text.
        description: String,
    },
    /// A stream or consumer differs from what Muster asked for. Older servers ignore fields that
    /// they do not know, so this is always checked.
    #[error("{what} has {field} = {got}, not {want}: the server ignored or changed it")]
    Mismatch {
        /// The stream or consumer.
        what: String,
        /// The field of its configuration.
        field: String,
        /// The value that Muster asked for.
        want: String,
        /// The value that the server reports.
        got: String,
    },
    /// An answer could not be read.
    #[error("unreadable answer: {0}")]
    Unreadable(String),
    /// The address cannot be used.
    #[error("bad NATS address: {0}")]
    Address(String),
    /// The task that should have carried the item has ended.
    #[error("the publisher has stopped")]
    Stopped,
}

/// JetStream's number for "no message found".
pub(crate) const NO_MESSAGE: u32 = 10037;
/// JetStream's number for "stream not found".
pub(crate) const NO_STREAM: u32 = 10059;
/// JetStream's number for "consumer not found".
pub(crate) const NO_CONSUMER: u32 = 10014;
/// JetStream's number for "the stream could not store it".
pub(crate) const STORE_FAILED: u32 = 10077;
/// JetStream's number for "subjects overlap with an existing stream".
pub(crate) const OVERLAP: u32 = 10065;

impl BusError {
    pub(crate) fn away(detail: impl Into<String>) -> BusError {
        BusError::Away { detail: detail.into() }
    }

    /// Whether the same call may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            BusError::Away { .. } | BusError::Timeout { .. } | BusError::NoResponders { .. } => true,
            BusError::Refused { code, err_code, .. } => *code >= 500 || *err_code == NO_STREAM,
            BusError::TooLarge { .. }
            | BusError::Mismatch { .. }
            | BusError::Unreadable(_)
            | BusError::Address(_)
            | BusError::Stopped => false,
        }
    }

    /// Whether the server reports that exactly this object is missing.
    pub(crate) fn is_missing(&self, which: u32) -> bool {
        self.is_refusal(which)
    }

    /// Whether the server refused for exactly this reason.
    pub(crate) fn is_refusal(&self, which: u32) -> bool {
        matches!(self, BusError::Refused { err_code, .. } if *err_code == which)
    }
}

impl From<WireError> for BusError {
    fn from(error: WireError) -> BusError {
        BusError::Unreadable(error.to_string())
    }
}
