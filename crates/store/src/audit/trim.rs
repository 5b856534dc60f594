//! Removes old entries so that the log can still be verified.
//!
//! The removal adds an entry with the last removed number and its hash, to which the rest is linked. That entry is part
//! of the chain like any other, and is added in the same step.

use std::time::Duration;

use muster_domain::Act;

use super::{NewEntry, read::AuditEntry};
use crate::{Store, StoreError, keys, router::Command, script::number};

/// The action of an entry that records a removal.
pub(super) const TRIMMED: &str = "audit_trimmed";

/// How much of the log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditRetention {
    /// The longest age of an entry.
    pub age: Duration,
    /// The most entries.
    pub entries: u64,
}

/// The last removed number and its hash, if the entry records a removal.
pub(super) fn anchor(act: &Act) -> Option<(u64, &str)> {
    let through = act.detail.get("through")?.as_u64()?;
    let hash = act.detail.get("hash")?.as_str()?;
    (act.action == TRIMMED).then_some((through, hash))
}

impl Store {
    /// Removes at most `limit` old entries; returns how many. Repeating is harmless, and if several replicas do it at
    /// once, one of them succeeds. The newest entry stays.
    pub async fn trim_audit(&self, keep: &AuditRetention, limit: usize) -> Result<u64, StoreError> {
        let oldest = self.audit_after("", limit + 1).await?;
        let mut count = redis::cmd("XLEN");
        count.arg(keys::audit().as_bytes());
        let length: u64 = number(&self.router().call(Command::plain(count)).await?)?;
        // The counted log must begin where the read one does: entries are removed only at that end, and if another
        // replica removed some in the meantime, it has done this work.
        let begins = self.audit_after("", 1).await?;
        if begins.first().map(|entry| &entry.cursor) != oldest.first().map(|entry| &entry.cursor) {
            return Ok(0);
        }
        let until = self.now().before(keep.age).0 / 1000;
        let spare = usize::try_from(length.saturating_sub(keep.entries)).unwrap_or(usize::MAX);
        let leaves = |(n, entry): &(usize, &AuditEntry)| *n < spare || entry.millis() < until;
        let n = oldest.iter().enumerate().take_while(leaves).count().min(oldest.len().saturating_sub(1));
        // Entries that only record removals are not worth a removal of their own: that would add another such entry.
        let worthwhile = |entry: &AuditEntry| entry.act().is_none_or(|act| act.action != TRIMMED);
        if !oldest[..n].iter().any(worthwhile) {
            return Ok(0);
        }
        let (last, stays) = (&oldest[n - 1], &oldest[n]);
        let act = Act::by_system(format!("audit:{}", last.number), self.now(), "", TRIMMED)
            .with("through", last.number.parse::<u64>().unwrap_or(0))
            .with("hash", last.hash.as_str())
            .with("removed", n);
        let entry = NewEntry::new(&act)?;
        let mut tail = self.audit_tail.lock().await;
        self.append(vec![&entry], &stays.cursor, &mut tail).await.map(|added| if added > 0 { n as u64 } else { 0 })
    }
}
