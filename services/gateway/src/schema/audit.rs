//! The shapes of the audit log.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

/// A page of the audit log.
#[derive(ToSchema)]
pub(crate) struct AuditPage {
    /// Newest first.
    items: Vec<AuditEntry>,
    /// Where the next page begins; absent at the end.
    next_cursor: Option<String>,
}

/// Something that was done.
#[derive(ToSchema)]
pub(crate) struct AuditEntry {
    /// The same for the same act: `job:<id>:<version>` for what a loop did to a job.
    id: String,
    /// When it was done.
    at: String,
    /// Who: `system`, or a key's id.
    actor: String,
    /// `system` or `key`.
    actor_type: String,
    /// Whose thing it was done to; empty if it is nobody's.
    tenant: String,
    /// What was done.
    action: String,
    /// To which job.
    job_id: Option<String>,
    /// To what, if that is no job.
    target: Option<String>,
    /// The job's state before.
    old_status: Option<String>,
    /// The job's state after.
    new_status: Option<String>,
    /// Attempts begun.
    attempt: Option<u16>,
    /// Attempts allowed.
    max_attempts: Option<u16>,
    /// Whatever else is worth knowing.
    detail: Option<BTreeMap<String, Value>>,
    /// Its place in the chain.
    number: u64,
    /// The hash of the entry before.
    previous: String,
    /// Its own.
    hash: String,
}

/// What a walk along the chain has found.
#[derive(ToSchema)]
pub(crate) struct AuditVerdict {
    /// Whether all that was looked at is as it was written.
    valid: bool,
    /// Whether that is all there is; otherwise go on with `next_cursor`.
    complete: bool,
    /// Entries that are as they were written, since the walk began.
    checked: u64,
    /// The number of the oldest entry that is kept.
    first: u64,
    /// The number of the last one looked at.
    last: u64,
    /// Its hash. Whoever notes it can tell later whether anything before was changed.
    hash: String,
    /// Where the chain breaks.
    broken: Option<AuditBreak>,
    /// Where to go on.
    next_cursor: Option<String>,
}

/// Where the chain breaks.
#[derive(ToSchema)]
pub(crate) struct AuditBreak {
    /// The number that the entry should have.
    number: u64,
    /// Its id, as far as it can be read.
    id: String,
    /// Where it stands in the stream `muster:audit`; empty if it is gone.
    entry: String,
    /// What is wrong.
    reason: String,
}
