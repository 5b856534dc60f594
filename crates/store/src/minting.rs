//! Ids of new jobs, chosen so that a node that is away refuses nobody who could stand elsewhere.
//!
//! Knows: which keys an id leads to. Promises: where every node answers, a shard and an id are taken as
//! they come; where one is known to be away, others are tried. Nobody is asked: what the last calls met
//! is all that is known, so the first submits of an outage are refused, and later ones are not.
//! Leaves to others: ids that a client's key derives, which are what they are.

use muster_domain::{JobId, ids::SHARDS};

use crate::{Store, keys};

/// Ids that are tried for one whose record stands on a node that answers.
const TRIES: usize = 32;

impl Store {
    /// The shard of homes for the ids of one group: the one wished for, or the next whose node answers.
    pub fn home_shard(&self, wished: u8) -> u8 {
        let wished = wished % SHARDS;
        if !self.router().some_are_away() {
            return wished;
        }
        let mut shards = (0..SHARDS).map(|n| (wished + n) % SHARDS);
        shards.find(|shard| !self.router().is_away(keys::homes(*shard).as_bytes())).unwrap_or(wished)
    }

    /// A fresh id in that shard.
    pub fn mint(&self, shard: u8) -> JobId {
        let id = JobId::mint(shard);
        if !self.router().some_are_away() {
            return id;
        }
        let others = (0..TRIES).map(|_| JobId::mint(shard));
        let stands = |id: &JobId| !self.router().is_away(keys::job(*id).as_bytes());
        std::iter::once(id).chain(others).find(stands).unwrap_or(id)
    }
}
