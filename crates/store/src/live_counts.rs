//! Counts all living jobs by topic and state, and reads figures that need no count.
//!
//! It uses the homes, which name everything alive, and the queues. A step reads a bounded number of homes and their
//! records, however many there are, so a whole count takes longer the more jobs there are, and its result is as old as
//! the count took. The figures from single calls (lengths, the oldest, the overdue) cost the same however many jobs
//! wait. This module only reads. The callers decide how often to count, and show the result.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{JobId, Line, Phase, Priority, State, Tenant, Time, Topic, ids::SHARDS};
use redis::Value;
use serde::{Deserialize, Serialize};

use crate::{
    HomeKind, LeaderLock, Lease, Store, StoreError, keys,
    record::Fields,
    router::Command,
    script::{bytes, list, number},
};

/// The living jobs of one tenant's topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicCounts {
    /// The number of jobs in each state.
    pub states: BTreeMap<State, u64>,
    /// When the oldest job that waits to be started (pending, queued or dispatched) began to wait.
    pub oldest_waiting: Option<Time>,
    /// When the oldest running attempt began.
    pub oldest_running: Option<Time>,
}

/// All living jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// When the count began: it is no older than that.
    pub begun: Time,
    /// The living jobs by tenant and topic.
    pub topics: BTreeMap<(Tenant, Topic), TopicCounts>,
    /// Jobs that have a home and an unreadable record.
    pub unreadable: u64,
}

impl LiveCounts {
    fn count(&mut self, record: &crate::Record) {
        let state = record.head.state();
        if state.is_end() || record.deleted {
            return;
        }
        let topic = self.topics.entry((record.spec.tenant.clone(), record.spec.topic.clone())).or_default();
        *topic.states.entry(state).or_default() += 1;
        let earlier = |known: &mut Option<Time>, at: Time| *known = Some(known.map_or(at, |known| known.min(at)));
        match record.head.phase {
            Phase::Pending { .. } | Phase::Queued | Phase::Dispatched => {
                earlier(&mut topic.oldest_waiting, record.head.since);
            }
            Phase::Running { .. } => {
                earlier(&mut topic.oldest_running, record.head.started_at.unwrap_or(record.head.since));
            }
            _ => {}
        }
    }
}

/// The progress of a count.
#[derive(Debug, Default)]
pub struct LiveCountsWalk {
    shard: u8,
    cursor: u64,
    counted: LiveCounts,
}

impl LiveCountsWalk {
    /// A count that has not begun yet.
    pub fn new() -> LiveCountsWalk {
        LiveCountsWalk::default()
    }
}

/// The result of the last complete scrub of all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPass {
    /// When the scrub ended, in microseconds of Redis time.
    pub at: u64,
    /// The number of records that it checked.
    pub scanned: u64,
    /// The number of accepted jobs that had not ended and had no home, so that the reconciler would never have checked
    /// them. The scrub gave them their homes back.
    pub homeless: u64,
}

/// How long the result of a scrub is kept.
const SCRUB_PASS_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

impl Store {
    /// One step of a count: reads about `limit` homes. Returns the count once it is complete; the next step then begins
    /// another. Jobs that come, move or end in the meantime may be counted or not.
    pub async fn count_live(&self, walk: &mut LiveCountsWalk, limit: usize) -> Result<Option<LiveCounts>, StoreError> {
        let mut looked = 0;
        while looked < limit {
            if walk.shard == 0 && walk.cursor == 0 {
                walk.counted = LiveCounts { begun: self.now(), ..LiveCounts::default() };
            }
            let (cursor, ids) = self.scan_homes(walk.shard, walk.cursor, (limit - looked).min(500)).await?;
            looked += ids.len().max(1);
            for record in self.read(&ids, Fields::NONE).await {
                match record {
                    Err(fault) if fault.is_unreadable() => walk.counted.unreadable += 1,
                    record => record?.iter().for_each(|record| walk.counted.count(record)),
                }
            }
            walk.cursor = cursor;
            if cursor == 0 {
                walk.shard += 1;
                if walk.shard == SHARDS {
                    walk.shard = 0;
                    return Ok(Some(std::mem::take(&mut walk.counted)));
                }
            }
        }
        Ok(None)
    }

    async fn scan_homes(&self, shard: u8, cursor: u64, count: usize) -> Result<(u64, Vec<JobId>), StoreError> {
        let key = keys::homes(HomeKind::Job, shard);
        let mut cmd = redis::cmd("ZSCAN");
        cmd.arg(key.as_bytes()).arg(cursor).arg("COUNT").arg(count.max(1));
        let wrong = || StoreError::Decode("ZSCAN".into());
        let Value::Array(reply) = self.router().call(Command::plain(cmd)).await? else { return Err(wrong()) };
        let [cursor, found] = <[Value; 2]>::try_from(reply).map_err(|_| wrong())?;
        let id = |pair: &[Vec<u8>]| -> Option<JobId> { std::str::from_utf8(&pair[0]).ok()?.parse().ok() };
        Ok((number(&cursor)?, list(found)?.chunks(2).filter_map(id).collect()))
    }

    /// How many homes of this kind have been due for more than `late`, by the clock of their own node as this process
    /// last saw it.
    pub async fn count_overdue(&self, kind: HomeKind, late: Duration) -> Result<u64, StoreError> {
        let until = self.now().before(late).0;
        let command = |shard| {
            let key = keys::homes(kind, shard);
            let mut cmd = redis::cmd("ZCOUNT");
            cmd.arg(key.as_bytes()).arg("-inf").arg(until);
            Command::plain(cmd)
        };
        let replies = self.router().many((0..SHARDS).map(command).collect()).await;
        replies.into_iter().try_fold(0, |sum, reply| Ok(sum + number::<u64>(&reply?)?))
    }

    /// Since when the oldest entry of each line's backlog waits; entries that are claimed at the moment are not
    /// included.
    pub async fn oldest_queued(&self, lines: &[(Tenant, Line)]) -> Result<Vec<Option<Time>>, StoreError> {
        let command = |key: keys::Key| {
            let mut cmd = redis::cmd("ZRANGEBYSCORE");
            cmd.arg(key.as_bytes()).arg(0).arg("+inf").arg("WITHSCORES").arg("LIMIT").arg(0).arg(1);
            Command::plain(cmd)
        };
        let queues = lines
            .iter()
            .flat_map(|(tenant, line)| Priority::ALL.iter().map(move |&priority| keys::queue(tenant, line, priority)));
        let replies = self.router().many(queues.map(command).collect()).await;
        let mut since = Vec::with_capacity(replies.len());
        for reply in replies {
            let pair = list(reply?)?;
            let score = pair.get(1).and_then(|text| std::str::from_utf8(text).ok()?.parse::<f64>().ok());
            since.push(score.map(|score| Time(score as u64)));
        }
        Ok(since.chunks(Priority::ALL.len()).map(|four| four.iter().copied().flatten().min()).collect())
    }

    /// Stores the result of a complete scrub, for the fleet's metrics. One write; repeating is harmless.
    ///
    /// Only a leader may call it:
    /// ```
    /// # use muster_store::{Lease, ScrubPass, Store};
    /// async fn tick(store: &Store, lease: &Lease, pass: &ScrubPass) {
    ///     store.put_scrub_pass(lease, pass).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::{ScrubPass, Store};
    /// async fn tick(store: &Store, pass: &ScrubPass) {
    ///     store.put_scrub_pass(pass).await;
    /// }
    /// ```
    pub async fn put_scrub_pass(&self, lease: &Lease, pass: &ScrubPass) -> Result<(), StoreError> {
        lease.leads(LeaderLock::Scrub)?;
        let key = keys::scrub_pass();
        let text = serde_json::to_vec(pass).map_err(|e| StoreError::Decode(e.to_string()))?;
        let mut cmd = redis::cmd("SET");
        cmd.arg(key.as_bytes()).arg(text).arg("EX").arg(SCRUB_PASS_TTL.as_secs());
        self.router().call(Command::plain(cmd)).await.map(|_| ())
    }

    /// The result of the last complete scrub; none if none has ended lately.
    pub async fn scrub_pass(&self) -> Result<Option<ScrubPass>, StoreError> {
        let key = keys::scrub_pass();
        let mut cmd = redis::cmd("GET");
        cmd.arg(key.as_bytes());
        match self.router().call(Command::plain(cmd)).await? {
            Value::Nil => Ok(None),
            value => serde_json::from_slice(&bytes(value)?)
                .map(Some)
                .map_err(|e| StoreError::Decode(format!("a scrub: {e}"))),
        }
    }
}
