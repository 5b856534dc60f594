//! Old entries leave, and the log stays one that can be verified.
//!
//! What leaves is followed by an entry that names the last number that left and its hash: what the
//! rest hangs on. That entry is part of the chain like any other, and added in the same step.

use std::time::Duration;

use muster_domain::Act;

use super::{Told, read::AuditEntry};
use crate::{Store, StoreError, keys, router::Command, script::number};

/// The action of an entry that says what left.
pub(super) const TRIMMED: &str = "audit_trimmed";

/// How much of the log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditRetention {
    /// How long.
    pub age: Duration,
    /// How many entries.
    pub entries: u64,
}

/// The last number that left and its hash, if the entry says so.
pub(super) fn anchor(act: &Act) -> Option<(u64, &str)> {
    let through = act.detail.get("through")?.as_u64()?;
    let hash = act.detail.get("hash")?.as_str()?;
    (act.action == TRIMMED).then_some((through, hash))
}

impl Store {
    /// Lets at most `limit` old entries leave; how many did. Repeating is harmless, and of several
    /// who do it at once one is heard. The newest entry stays.
    pub async fn trim_audit(&self, keep: &AuditRetention, limit: usize) -> Result<u64, StoreError> {
        let oldest = self.audit_after("", limit + 1).await?;
        let mut count = redis::cmd("XLEN");
        count.arg(keys::audit().as_bytes());
        let length: u64 = number(&self.router().call(Command::plain(count)).await?)?;
        // What was counted must begin where what was read does: entries only ever leave at that end, and
        // whoever made some leave meanwhile has done this work.
        let begins = self.audit_after("", 1).await?;
        if begins.first().map(|entry| &entry.cursor) != oldest.first().map(|entry| &entry.cursor) {
            return Ok(0);
        }
        let until = self.now().before(keep.age).0 / 1000;
        let spare = usize::try_from(length.saturating_sub(keep.entries)).unwrap_or(usize::MAX);
        let leaves = |(n, entry): &(usize, &AuditEntry)| *n < spare || entry.millis() < until;
        let n = oldest.iter().enumerate().take_while(leaves).count().min(oldest.len().saturating_sub(1));
        // What only says that others left need not leave by itself: that would have to be said too.
        let worthwhile = |entry: &AuditEntry| entry.act().is_none_or(|act| act.action != TRIMMED);
        if !oldest[..n].iter().any(worthwhile) {
            return Ok(0);
        }
        let (last, stays) = (&oldest[n - 1], &oldest[n]);
        let act = Act::by_system(format!("audit:{}", last.number), self.now(), "", TRIMMED)
            .with("through", last.number.parse::<u64>().unwrap_or(0))
            .with("hash", last.hash.as_str())
            .with("removed", n);
        let told = Told::new(&act)?;
        let mut tail = self.audit_tail.lock().await;
        self.append(vec![&told], &stays.cursor, &mut tail).await.map(|added| if added > 0 { n as u64 } else { 0 })
    }
}
