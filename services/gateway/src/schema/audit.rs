//! The shapes of the audit log.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

/// A page of the audit log.
#[derive(ToSchema)]
pub(crate) struct AuditPage {
    /// The entries, newest first.
    items: Vec<AuditEntry>,
    /// The cursor of the next page; absent at the end.
    next_cursor: Option<String>,
}

/// One entry of the audit log.
#[derive(ToSchema)]
pub(crate) struct AuditEntry {
    /// The id of the action; a repeated action has the same id. `job:<id>:<version>` for what a loop did to a job.
    id: String,
    /// When it was done.
    at: String,
    /// `system`, or the id of a key.
    actor: String,
    /// `system` or `key`.
    actor_type: String,
    /// The tenant that owns the target; empty if no tenant owns it.
    tenant: String,
    /// What was done.
    action: String,
    /// The job that was changed.
    job_id: Option<String>,
    /// What was changed, if it is not a job.
    target: Option<String>,
    /// The job's state before.
    old_status: Option<String>,
    /// The job's state after.
    new_status: Option<String>,
    /// How many attempts had started.
    attempt: Option<u16>,
    /// How many attempts may start.
    max_attempts: Option<u16>,
    /// Further details of the action.
    detail: Option<BTreeMap<String, Value>>,
    /// The number of the entry in the chain.
    number: u64,
    /// The hash of the previous entry.
    previous: String,
    /// The hash of this entry.
    hash: String,
}

/// The result of a verification of the audit log.
#[derive(ToSchema)]
pub(crate) struct AuditVerdict {
    /// Whether all checked entries are unchanged.
    valid: bool,
    /// Whether the end of the log was reached; otherwise continue with `next_cursor`.
    complete: bool,
    /// How many entries were found unchanged since the verification began.
    checked: u64,
    /// The number of the oldest entry that is kept.
    first: u64,
    /// The number of the last entry that was checked.
    last: u64,
    /// The hash of the last entry that was checked. Keep it to find out later whether an earlier entry was changed.
    hash: String,
    /// The place where the chain breaks.
    broken: Option<AuditBreak>,
    /// Where to continue.
    next_cursor: Option<String>,
}

/// The place where the chain of the audit log breaks.
#[derive(ToSchema)]
pub(crate) struct AuditBreak {
    /// The number that the entry should have.
    number: u64,
    /// The id of the entry, if it can be read.
    id: String,
    /// The id of the entry in the Redis stream `muster:audit`; empty if the entry is missing.
    entry: String,
    /// What is wrong.
    reason: String,
}
