//! Runs in memory. A run that was handled stays here, so that the next event needs no read. What is here may be old: a
//! save compares the version, and a look asks for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use muster_domain::RunId;
use muster_runs::Kept;
use tokio::sync::Mutex as AsyncMutex;

/// The most runs that are kept.
const MOST: usize = 4_000;

/// The place of one run. The lock is held for a turn, so that one process handles a run once at a time.
pub(crate) type Seat = Arc<AsyncMutex<Option<Kept>>>;

/// The runs in memory.
#[derive(Default)]
pub(crate) struct Hot(Mutex<HashMap<RunId, Seat>>);

impl Hot {
    fn map(&self) -> MutexGuard<'_, HashMap<RunId, Seat>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a run.
    pub(crate) fn seat(&self, id: RunId) -> Seat {
        let mut map = self.map();
        if map.len() >= MOST && !map.contains_key(&id) {
            // A place that nobody uses is dropped; what was not saved of it is a confirmation, which is asked for again.
            map.retain(|_, seat| Arc::strong_count(seat) > 1);
        }
        map.entry(id).or_default().clone()
    }

    /// Forgets a run that is over.
    pub(crate) fn forget(&self, id: RunId) {
        let mut map = self.map();
        if map.get(&id).is_some_and(|seat| Arc::strong_count(seat) <= 2) {
            map.remove(&id);
        }
    }

    /// All places.
    pub(crate) fn all(&self) -> Vec<Seat> {
        self.map().values().cloned().collect()
    }
}
