//! The export of entries: a consumer group of the stream remembers which entries were handed out and not yet confirmed.
//!
//! Each new entry is handed to one of the callers. An entry that was not confirmed in time is handed out again, to the
//! next caller; so every entry is exported at least once, whichever process dies.

use std::time::Duration;

use redis::Value;

use super::read::{AuditEntry, entries};
use crate::{Store, StoreError, keys, router::Command};

/// All replicas are one consumer: what counts is when an entry was handed out, not to which replica.
const GROUP: &str = "export";
const CONSUMER: &str = "relay";

impl Store {
    /// Entries to export: those that were not confirmed within `patience`, then new ones. They count as handed out from
    /// now on. If the answer is lost, they are handed out again after `patience`.
    pub async fn audit_to_export(&self, limit: usize, patience: Duration) -> Result<Vec<AuditEntry>, StoreError> {
        let key = keys::audit();
        let mut again = redis::cmd("XAUTOCLAIM");
        again.arg(key.as_bytes()).arg(GROUP).arg(CONSUMER).arg(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        again.arg("0-0").arg("COUNT").arg(limit);
        let late = match self.router().call(Command::plain(again)).await {
            Err(fault) if fault.to_string().contains("NOGROUP") => {
                let mut create = redis::cmd("XGROUP");
                create.arg("CREATE").arg(key.as_bytes()).arg(GROUP).arg("0").arg("MKSTREAM");
                // Another replica may have been faster.
                let _ = self.router().call(Command::plain_at(create, 2)).await;
                Vec::new()
            }
            // The reply holds the cursor, the entries, and the entries that are gone.
            reply => match reply? {
                Value::Array(mut parts) if parts.len() >= 2 => entries(parts.swap_remove(1))?,
                other => return Err(StoreError::Decode(format!("XAUTOCLAIM: {other:?}"))),
            },
        };
        if !late.is_empty() {
            return Ok(late);
        }
        let mut fresh = redis::cmd("XREADGROUP");
        fresh.arg("GROUP").arg(GROUP).arg(CONSUMER).arg("COUNT").arg(limit);
        fresh.arg("STREAMS").arg(key.as_bytes()).arg(">");
        match self.router().call(Command::plain_at(fresh, 7)).await? {
            // One stream: its name and its entries.
            Value::Array(mut streams) => match streams.pop() {
                Some(Value::Array(mut named)) => entries(named.pop().unwrap_or(Value::Nil)),
                _ => Ok(Vec::new()),
            },
            Value::Map(mut streams) => entries(streams.pop().map_or(Value::Nil, |(_, found)| found)),
            _ => Ok(Vec::new()),
        }
    }

    /// Confirms that these entries have arrived. Repeating is harmless.
    pub async fn audit_exported(&self, cursors: &[String]) -> Result<(), StoreError> {
        if cursors.is_empty() {
            return Ok(());
        }
        let key = keys::audit();
        let mut cmd = redis::cmd("XACK");
        cmd.arg(key.as_bytes()).arg(GROUP).arg(cursors);
        self.router().call(Command::plain(cmd)).await.map(|_| ())
    }
}
