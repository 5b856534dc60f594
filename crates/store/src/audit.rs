//! The audit log: one stream, in which each entry contains the hash of the one before.
//!
//! This module knows how entries are linked, added, found, trimmed and handed out for export. An act is one entry,
//! however often and by however many replicas it is written, because the script that adds an entry also checks and
//! records its id. Entries are added at the end only. Changing, removing or inserting an entry breaks the chain at that
//! place. Old entries are removed only together with the addition of an entry that records this and holds the hash to
//! which the rest is linked. All of that happens in scripts on one key. `domain::audit` decides what is worth an entry;
//! the callers decide when to trim and to export.
//!
//! Redis has no SHA-256 for scripts, so the caller computes the hashes: it links its entries to the end of the log that
//! it knows, and the script adds them only if the log still ends there. Otherwise the script returns the new end, and
//! the caller links its entries again. A process adds one batch at a time.

mod export;
mod read;
mod trim;
mod verify;

use std::collections::HashSet;

use muster_domain::{Act, Time};
use sha2::{Digest, Sha256};

use crate::{Store, StoreError, keys, scripts};

pub use self::{
    read::{AuditEntry, AuditFilter},
    trim::AuditRetention,
    verify::{AuditBreak, AuditReport},
};

/// The previous hash of the very first entry.
const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// How many entries are added in one step.
const BATCH: usize = 200;
/// How often a batch is linked again before the call fails: each time another process was faster.
const TRIES: usize = 64;

/// The end of the log, as this process last saw it.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    number: u64,
    hash: String,
}

impl Default for Tail {
    fn default() -> Tail {
        Tail { number: 0, hash: GENESIS.to_owned() }
    }
}

/// The hash of an entry: over its number, its content, and the hash before.
fn link(previous: &str, number: &str, body: &str) -> String {
    let mut hash = Sha256::new();
    for part in [previous, number, body] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())
}

/// An act in the form in which the log holds it.
struct NewEntry<'a> {
    act: &'a Act,
    body: String,
}

impl<'a> NewEntry<'a> {
    fn new(act: &'a Act) -> Result<NewEntry<'a>, StoreError> {
        let body = serde_json::to_string(act).map_err(|e| StoreError::Decode(e.to_string()))?;
        Ok(NewEntry { act, body })
    }

    fn millis(&self) -> u64 {
        Time::parse_rfc3339(&self.act.at).unwrap_or_default().0 / 1000
    }
}

impl Store {
    /// Adds acts to the audit log; returns how many are new. Each batch is added as a whole or not at all. Repeating is
    /// harmless: an existing entry stays unchanged. After an error some of the acts may be in the log.
    pub async fn audit(&self, acts: &[Act]) -> Result<u64, StoreError> {
        let mut seen = HashSet::new();
        let entries = acts.iter().filter(|act| seen.insert(act.id.as_str())).map(NewEntry::new);
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let mut tail = self.audit_tail.lock().await;
        let mut added = 0;
        for batch in entries.chunks(BATCH) {
            added += self.append(batch.iter().collect(), "", &mut tail).await?;
        }
        Ok(added)
    }

    /// Adds one batch without the known acts; entries before `keep_from` are removed in the same step.
    async fn append(&self, mut batch: Vec<&NewEntry<'_>>, keep_from: &str, tail: &mut Tail) -> Result<u64, StoreError> {
        for _ in 0..TRIES {
            if batch.is_empty() {
                return Ok(0);
            }
            let mut entries = Vec::with_capacity(batch.len() * 5);
            let mut end = tail.clone();
            for entry in &batch {
                let number = (end.number + 1).to_string();
                end = Tail { number: end.number + 1, hash: link(&end.hash, &number, &entry.body) };
                entries.push(entry.act.id.clone().into_bytes());
                entries.push(entry.millis().to_string().into_bytes());
                entries.push(number.into_bytes());
                entries.push(entry.body.clone().into_bytes());
                entries.push(end.hash.clone().into_bytes());
            }
            let (key, hash) = (keys::audit(), tail.hash.clone().into_bytes());
            let call = scripts::audit::Append { key, tail: hash, keep_from: keep_from.as_bytes().to_vec(), entries };
            let reply = self.run(call).await?;
            *tail = Tail { number: reply.number, hash: String::from_utf8_lossy(&reply.hash).into_owned() };
            if reply.added == 1 {
                return Ok(batch.len() as u64);
            }
            let known: HashSet<&[u8]> = reply.known.iter().map(Vec::as_slice).collect();
            batch.retain(|entry| !known.contains(entry.act.id.as_bytes()));
        }
        Err(StoreError::unavailable("too many processes write to the audit log at once"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tells_apart_what_only_looks_the_same_in_a_row() {
        assert_ne!(link(GENESIS, "1", "23"), link(GENESIS, "12", "3"));
        assert_ne!(link(GENESIS, "1", "a"), link(&"0".repeat(63), "01", "a"));
        assert_eq!(link(GENESIS, "1", "a").len(), 64);
    }
}
