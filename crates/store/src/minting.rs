//! Chooses ids of new jobs so that a node that is away refuses no job that could be stored elsewhere.
//!
//! This module knows the keys that an id leads to. If every node answers, a shard and an id are taken as they come; if
//! a node is known to be away, others are tried. No node is asked: only the results of the last calls are known, so the
//! first submits of an outage are refused, and later ones are not. Ids that are derived from a client's key cannot be
//! chosen.

use muster_domain::{JobId, ids::SHARDS};

use crate::{HomeKind, Store, keys};

/// How many ids are tried to find one whose record is on a node that answers.
const TRIES: usize = 32;

impl Store {
    /// The shard of homes for the ids of one group: the requested one, or the next whose node answers.
    pub fn home_shard(&self, wished: u8) -> u8 {
        let wished = wished % SHARDS;
        if !self.router().some_are_away() {
            return wished;
        }
        let mut shards = (0..SHARDS).map(|n| (wished + n) % SHARDS);
        shards.find(|shard| !self.router().is_away(keys::homes(HomeKind::Job, *shard).as_bytes())).unwrap_or(wished)
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
