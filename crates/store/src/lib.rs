//! The only crate that knows Redis.
//!
//! This crate knows keys, records, scripts, and which node has which key. Every script takes one key and may be sent
//! twice. A call answers or fails within its time budget. Time is Redis time. `domain` decides what a job needs next,
//! `bus` carries messages, and `flow` orders the writes across both stores.

mod api_keys;
mod audit;
mod backup;
mod dead_letters;
mod definitions;
mod error;
pub mod failpoint;
mod fleet;
mod format;
mod home_kind;
mod homes;
mod jobs;
pub mod keys;
mod lease_requests;
pub mod leases;
mod limits;
mod lines;
mod lists;
mod live_counts;
mod locks;
mod members;
mod minting;
mod new_job;
mod operations;
mod place;
mod queues;
mod record;
mod replicas;
mod reread;
mod retention;
pub mod router;
mod run_retention;
mod run_scan;
mod run_slots;
mod runs;
mod script;
#[rustfmt::skip]
#[expect(dead_code, reason = "generated: some scripts say more than their callers ask")]
mod scripts;
mod scrub;
mod settings;
mod slots;
mod timeline;
mod vitals;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_domain::{JobId, Time};

pub use crate::{
    api_keys::ApiKey,
    audit::{AuditBreak, AuditEntry, AuditFilter, AuditReport, AuditRetention},
    backup::LastBackup,
    dead_letters::{DeadMessage, DeadMessageCause},
    definitions::{Definition, DefinitionVersion, DeletedDefinition, PutDefinition},
    error::StoreError,
    fleet::{WorkerSeen, WorkerSnapshot},
    format::FORMAT,
    home_kind::HomeKind,
    homes::{DueHomes, Homed, Rescore},
    jobs::{Deleted, Extended, Extension, KEEP_STUB, Moved, Step, Submitted},
    keys::{LeaderLock, ShardedLock},
    leases::{DECIDING_TTL, Held, LEADER_TTL, Lease, LeaseKeeper, Lock},
    limits::{RateLimit, Taken, Want},
    lines::{LINE_KEPT, MOST_LINES, TopicLine},
    lists::{ListError, ListFilter, PAGE_BYTES, PAGE_WORK, Page, RunPage, RunSpan},
    live_counts::{LiveCounts, LiveCountsWalk, ScrubPass, TopicCounts},
    locks::{LockHolder, LockSeen},
    new_job::NewJob,
    operations::{Action, Claimed, NewOperation, Operation, OperationStatus, Tally, Walk},
    place::Place,
    queues::{QueueEntry, QueuePlace},
    record::{Fields, Record, StoredResult},
    replicas::{REPLICA_TTL, Replica},
    reread::{KnownMark, Lives, RereadMark},
    retention::{Removed, Retained, Retention, RetentionWalk},
    router::{Kept, NodeAddr, RedisSettings, Router},
    run_retention::{ReadAge, RunAge, RunRetentionWalk, RunsRetained},
    run_scan::RunScan,
    run_slots::{RunSlot, RunSlotTaken},
    runs::{CreatedRun, RunVersion, SavedRun, StoredRun},
    scrub::{ScrubWalk, Scrubbed},
    settings::{ConfigRecord, Put, SeenVersion, TopicChange, TopicRecord},
    slots::{SlotAsk, SlotHeld, SlotRef, SlotTaken},
    timeline::{TIMELINE_ENDS, Timeline},
    vitals::NodeVitals,
};

/// The time of a node's clock, and when its answer arrived here.
pub type Said = Result<(Time, Instant), StoreError>;

/// Everything in Redis. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    router: Router,
    /// Listings that this process has already noted.
    noted: lists::Noted,
    /// The end of the audit log, as this process last saw it; a caller that adds entries locks it.
    audit_tail: Arc<tokio::sync::Mutex<audit::Tail>>,
    /// The jobs whose locks this process holds.
    deciding: locks::Deciding,
}

impl Store {
    /// Connects lazily: a Redis that is away now may come later.
    pub async fn connect(settings: RedisSettings) -> Result<Store, StoreError> {
        Ok(Store {
            router: Router::connect(settings).await?,
            noted: lists::Noted::default(),
            audit_tail: Arc::default(),
            deciding: locks::Deciding::default(),
        })
    }

    /// An estimate of Redis time, for sleeping and for choosing; scripts judge by the real time.
    pub fn now(&self) -> Time {
        Time(self.router.now_estimate())
    }

    /// Asks every primary for its time; fails if one does not answer. Returns the time of the first.
    pub async fn ping(&self) -> Result<Time, StoreError> {
        let times = self.times(Duration::MAX).await?;
        let times = times.into_iter().map(|(_, said)| said).collect::<Result<Vec<_>, _>>()?;
        times.first().map(|(time, _)| *time).ok_or_else(|| StoreError::unavailable("no primary is known"))
    }

    /// Each primary's time and when its answer arrived, or why it did not answer within `limit`: the clock showed that
    /// time then or shortly before, however long the other primaries took. Fails if no primary is known.
    pub async fn times(&self, limit: Duration) -> Result<Vec<(NodeAddr, Said)>, StoreError> {
        let ask = async |node: NodeAddr| {
            let asked = tokio::time::timeout(limit, self.time_of(&node)).await;
            let late = || Err(StoreError::unavailable(format!("{node} did not return its time within {limit:?}")));
            let said = asked.unwrap_or_else(|_| late()).map(|time| (time, Instant::now()));
            (node, said)
        };
        Ok(futures_util::future::join_all(self.router.primaries().await?.into_iter().map(ask)).await)
    }

    async fn time_of(&self, node: &NodeAddr) -> Result<Time, StoreError> {
        let reply = self.router.call_node(node, &redis::cmd("TIME")).await?;
        let (seconds, micros) = redis::from_redis_value::<(u64, u64)>(reply)
            .map_err(|fault| StoreError::Decode(format!("TIME: {fault}")))?;
        let now = Time(seconds * 1_000_000 + micros);
        self.note_time(now);
        Ok(now)
    }

    /// The node that currently has this job's record, as far as the slots are known.
    pub fn node_of(&self, job: JobId) -> Option<NodeAddr> {
        self.router.owner(keys::job(job).as_bytes())
    }

    /// The node that currently has this shard of homes, as far as the slots are known.
    pub fn node_of_homes(&self, shard: u8) -> Option<NodeAddr> {
        self.router.owner(keys::homes(HomeKind::Job, shard).as_bytes())
    }

    /// The router to the nodes.
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

    /// Names and texts of all scripts, for tests that check every one.
    pub fn script_sources() -> impl Iterator<Item = (&'static str, &'static str)> {
        scripts::ALL.iter().map(|s| (s.name, s.body))
    }
}
