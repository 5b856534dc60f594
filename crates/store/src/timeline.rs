//! The timeline of a run: what happened in it, oldest first, as entries that are opaque here.
//!
//! Its first and last entries stay; those between are removed in groups. Each entry has a number, counted over the whole
//! run by the caller, so that an addition may be repeated: after a lost reply, or by a replica that takes over.

use bytes::Bytes;
use muster_domain::RunId;

use crate::{Store, StoreError, keys, router::Command, script::list, scripts};

/// How many entries stay at the beginning of a timeline, and how many at its end.
pub const TIMELINE_ENDS: usize = 1000;

/// The entries of a timeline that stayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The first entries, oldest first.
    pub first: Vec<Bytes>,
    /// How many entries were removed behind them, or lost by a failover.
    pub missing: u64,
    /// The last entries, oldest first.
    pub last: Vec<Bytes>,
}

impl Timeline {
    /// The number of the next entry.
    pub fn next(&self) -> u64 {
        self.missing + (self.first.len() + self.last.len()) as u64
    }
}

impl Store {
    /// Adds entries to the end of a run's timeline; `first` is the number of the first of them, counted from 0 over the
    /// whole run. Entries that are there already are skipped, so repeating is harmless. Returns the number of the next
    /// entry. An empty entry is refused.
    pub async fn add_timeline(&self, id: RunId, first: u64, entries: &[Bytes]) -> Result<u64, StoreError> {
        if entries.iter().any(Bytes::is_empty) {
            return Err(StoreError::Decode("an empty entry of a timeline".into()));
        }
        let entries = entries.iter().map(|entry| entry.to_vec()).collect();
        Ok(self.run(scripts::timeline::Add { key: keys::timeline(id), first, entries }).await?.next)
    }

    /// Reads a run's timeline; empty if there is none.
    pub async fn read_timeline(&self, id: RunId) -> Result<Timeline, StoreError> {
        let key = keys::timeline(id);
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(key.as_bytes()).arg(0).arg(-1);
        let mut entries = list(self.router().call(Command::plain(cmd)).await?)?.into_iter();
        let Some(next) = entries.next() else { return Ok(Timeline::default()) };
        let next: Option<u64> = std::str::from_utf8(&next).ok().and_then(|text| text.parse().ok());
        let next = next.ok_or_else(|| StoreError::Decode("the beginning of a timeline".into()))?;
        let mut first: Vec<Bytes> = entries.map(Bytes::from).collect();
        let mut last = first.split_off(first.len().min(TIMELINE_ENDS));
        // The script removes several entries at once, so there may be some more than are promised.
        last.drain(..last.len().saturating_sub(TIMELINE_ENDS));
        let missing = next.saturating_sub((first.len() + last.len()) as u64);
        Ok(Timeline { first, missing, last })
    }
}
