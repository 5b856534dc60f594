//! Encodes and decodes protobuf, nothing else.
//!
//! This crate knows the bytes of messages and stored specs, and how they become domain values. A
//! value that was encoded here decodes to the same value. Bytes that do not decode give an error
//! with the reason, never a panic. `bus` decides which message goes where, and `store` decides
//! where bytes are kept.

mod carried;
mod envelope;
mod job;

/// The generated messages.
#[expect(missing_docs, reason = "generated; the .proto files carry the docs")]
#[expect(clippy::all, reason = "generated")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/muster.v1.rs"));
}

pub use carried::{carried_of, carried_run};
pub use envelope::{Body, FORMAT, decode, encode, encoded_len, seal};
pub use job::{job_id, run_bytes, run_id, standing_of};
pub use v1::Envelope;

/// Why bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not protobuf, or truncated.
    #[error("not a message of ours: {0}")]
    Malformed(String),
    /// Written by a newer release.
    #[error("envelope format {0} is newer than this reader")]
    TooNew(u32),
    /// A field holds a value that is not allowed.
    #[error("field {field}: {fault}")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// What is wrong with the field's value.
        fault: String,
    },
    /// The envelope is empty or carries another body than its subject allows.
    #[error("unexpected body")]
    UnexpectedBody,
}
