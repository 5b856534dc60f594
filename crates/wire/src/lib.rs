//! Protobuf in and out, nothing else.
//!
//! Knows: the bytes of messages and stored specs, and how they become domain values.
//! Promises: what was encoded here decodes to the same value; bytes that do not decode give an
//! error that says why, never a panic. Leaves to others: who sends what to whom (`bus`), and
//! where it is kept (`store`).

mod envelope;
mod job;

/// The generated messages.
#[expect(missing_docs, reason = "generated; the .proto files carry the docs")]
#[expect(clippy::all, reason = "generated")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/muster.v1.rs"));
}

pub use envelope::{Body, FORMAT, decode, encode, encoded_len, seal};
pub use job::{job_id, standing_of};
pub use v1::Envelope;

/// Why bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not protobuf, or cut short.
    #[error("not a message of ours: {0}")]
    Malformed(String),
    /// Written by a newer release.
    #[error("envelope format {0} is newer than this reader")]
    TooNew(u32),
    /// A field holds what it may not.
    #[error("field {field}: {fault}")]
    Field {
        /// Which.
        field: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// The envelope is empty or carries something else than this subject does.
    #[error("unexpected body")]
    UnexpectedBody,
}
