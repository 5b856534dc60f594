//! The bounds of an evaluation, and why one failed.

use thiserror::Error;

/// The bounds of one evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many nodes may be evaluated. Long strings, lists and comparisons count more than once, by their size.
    pub nodes: u64,
    /// The largest result, and the largest string on the way to it, in bytes of JSON.
    pub result_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { nodes: 100_000, result_bytes: 256 * 1024 }
    }
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EvalError {
    /// A path leads to nothing: a field that is not there, or a value that the run does not have.
    #[error("{path} has no value: {why}")]
    Missing {
        /// The path, as far as it is known.
        path: String,
        /// Why there is nothing.
        why: String,
    },
    /// The value is too large to be kept with the run, and only its beginning is known.
    #[error("{path} is truncated: {why}")]
    Truncated {
        /// The path.
        path: String,
        /// Why it is truncated, and where the whole value is.
        why: String,
    },
    /// An operator or function does not take such values.
    #[error("{0}")]
    Type(String),
    /// A value is outside of what an operation can express: overflow, division by zero, an unreadable time.
    #[error("{0}")]
    Value(String),
    /// A number of the input, or of a conversion, that no type of the language holds without changing it.
    #[error("{0}")]
    Number(String),
    /// More nodes than [`Limits::nodes`].
    #[error("the expression needs more than its budget of {0} evaluated nodes")]
    Budget(u64),
    /// A larger result than [`Limits::result_bytes`].
    #[error("the result of the expression is larger than {0} bytes")]
    TooLarge(usize),
}

impl EvalError {
    /// The stable error code: `result_truncated` or `expression_error`.
    pub fn code(&self) -> &'static str {
        match self {
            EvalError::Truncated { .. } => "result_truncated",
            _ => "expression_error",
        }
    }
}
