//! The only crate that knows Redis.
//!
//! Knows: keys, records, scripts, which node has what. Promises: every script takes one key and
//! may be sent twice; a call answers or fails within its time budget; time is Redis time. Leaves
//! to others: what a job needs next (`domain`), messages (`bus`), the order of writes across both
//! stores (`flow`).

mod api_keys;
mod audit;
mod census;
mod dead_letters;
mod error;
mod fleet;
mod format;
mod homes;
mod jobs;
pub mod keys;
pub mod leases;
mod limits;
mod lists;
mod minting;
mod notes;
mod operations;
mod queues;
mod record;
mod replicas;
mod retention;
pub mod router;
mod script;
#[rustfmt::skip]
#[expect(dead_code, reason = "generated: some scripts say more than their callers ask")]
mod scripts;
mod scrub;
mod settings;
mod slots;

use std::sync::Arc;

use muster_domain::Time;

pub use crate::{
    api_keys::ApiKey,
    audit::{AuditBreak, AuditEntry, AuditFilter, AuditReport, AuditRetention},
    census::{Census, CensusWalk, ScrubPass, TopicCensus},
    dead_letters::DeadMessage,
    error::StoreError,
    fleet::{WorkerSeen, WorkerSnapshot},
    format::FORMAT,
    homes::{DueHomes, Rescore},
    jobs::{Deleted, Extended, Extension, Moved, NewJob, Step, Submitted},
    keys::LeaderLock,
    leases::{DECIDING_TTL, Held, LEADER_TTL, Lease, LeaseKeeper, Lock},
    limits::{RateLimit, Taken, Want},
    lists::{ListError, ListFilter, PAGE_WORK, Page, Place},
    operations::{Action, Claimed, NewOperation, Operation, OperationStatus, Tally, Walk},
    queues::{QueueEntry, QueuePlace, Waiting},
    record::{Fields, Record, StoredResult},
    replicas::{LockHolder, LockSeen, REPLICA_TTL, Replica},
    retention::{Retained, Retention, RetentionWalk},
    router::{Kept, RedisSettings, Router},
    scrub::{ScrubWalk, Scrubbed},
    settings::{ConfigRecord, Put, SeenVersion, TopicChange, TopicRecord},
    slots::{SlotAsk, SlotHeld, SlotRef, SlotTaken},
};

/// Everything in Redis. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    router: Router,
    /// Listings that this process has noted already.
    noted: lists::Noted,
    /// How the audit log ends, as this process last heard; whoever adds to it holds this.
    audit_tail: Arc<tokio::sync::Mutex<audit::Tail>>,
}

impl Store {
    /// Connects lazily: a Redis that is away now may come later.
    pub async fn connect(settings: RedisSettings) -> Result<Store, StoreError> {
        Ok(Store {
            router: Router::connect(settings).await?,
            noted: lists::Noted::default(),
            audit_tail: Arc::default(),
        })
    }

    /// An estimate of Redis time, for sleeping and for choosing; scripts judge by the real one.
    pub fn now(&self) -> Time {
        Time(self.router.now_estimate())
    }

    /// Asks every primary for its time; fails if one does not answer. Returns the first one's.
    pub async fn ping(&self) -> Result<Time, StoreError> {
        let mut first = None;
        for node in self.router.primaries().await? {
            let reply = self.router.call_node(&node, &redis::cmd("TIME")).await?;
            let (seconds, micros) = redis::from_redis_value::<(u64, u64)>(reply)
                .map_err(|fault| StoreError::Decode(format!("TIME: {fault}")))?;
            first.get_or_insert(Time(seconds * 1_000_000 + micros));
        }
        let now = first.ok_or_else(|| StoreError::unavailable("no primary is known"))?;
        self.note_time(now);
        Ok(now)
    }

    /// The way to the nodes.
    pub fn router(&self) -> &Router {
        &self.router
    }

    fn note_time(&self, now: Time) {
        self.router.note_time(now.0);
    }

    async fn run<S: script::Script>(&self, call: S) -> Result<S::Reply, StoreError> {
        S::decode(self.router.call(call.into_command()).await?)
    }

    async fn run_many<S: script::Script>(&self, calls: Vec<S>) -> Vec<Result<S::Reply, StoreError>> {
        let replies = self.router.many(calls.into_iter().map(S::into_command).collect()).await;
        replies.into_iter().map(|reply| reply.and_then(S::decode)).collect()
    }

    /// Names and texts of all scripts, for tests that go over every one.
    pub fn script_sources() -> impl Iterator<Item = (&'static str, &'static str)> {
        scripts::ALL.iter().map(|s| (s.name, s.body))
    }
}
