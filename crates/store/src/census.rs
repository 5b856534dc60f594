//! A count of everything that lives, by topic and state, and what may be told without counting.
//!
//! Knows: the homes, which name everything alive, and the queues. Promises: a step reads a bounded
//! number of homes and their records, however many there are, so a whole count takes the longer the
//! more there is, and is as old as it took; what one call tells (lengths, the oldest, the overdue)
//! costs the same whatever waits. Only reads. Leaves to others: how often, and who shows it.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{JobId, Line, Phase, Priority, State, Tenant, Time, Topic, ids::SHARDS};
use redis::Value;
use serde::{Deserialize, Serialize};

use crate::{
    LeaderLock, Lease, Store, StoreError, keys,
    record::Fields,
    router::Command,
    script::{bytes, list, number},
};

/// What lives of one tenant's topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicCensus {
    /// How many are in each state.
    pub states: BTreeMap<State, u64>,
    /// When the oldest of those began that wait to be started: pending, queued or dispatched.
    pub oldest_waiting: Option<Time>,
    /// When the oldest running attempt began.
    pub oldest_running: Option<Time>,
}

/// What lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// When the count began: it is no older than that.
    pub begun: Time,
    /// By tenant and topic.
    pub topics: BTreeMap<(Tenant, Topic), TopicCensus>,
    /// Those that have a home and a record that cannot be read.
    pub unreadable: u64,
}

impl Census {
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

/// How far a count has come.
#[derive(Debug, Default)]
pub struct CensusWalk {
    shard: u8,
    cursor: u64,
    counted: Census,
}

impl CensusWalk {
    /// A count that has yet to begin.
    pub fn new() -> CensusWalk {
        CensusWalk::default()
    }
}

/// What the last complete scrub of all records found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPass {
    /// When it ended, in microseconds of Redis time.
    pub at: u64,
    /// Records that it looked at.
    pub scanned: u64,
    /// Those that were accepted, had not ended, and that nobody would have looked at again: it gave them
    /// their homes back.
    pub homeless: u64,
}

/// How long the word of a scrub counts.
const SCRUB_PASS_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

impl Store {
    /// One step of a count: looks at about `limit` homes. The count, once it is complete; the next step
    /// then begins another. Jobs that come, move or end meanwhile are counted where they were met, or not.
    pub async fn census(&self, walk: &mut CensusWalk, limit: usize) -> Result<Option<Census>, StoreError> {
        let mut looked = 0;
        while looked < limit {
            if walk.shard == 0 && walk.cursor == 0 {
                walk.counted = Census { begun: self.now(), ..Census::default() };
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
        let key = keys::homes(shard);
        let mut cmd = redis::cmd("ZSCAN");
        cmd.arg(key.as_bytes()).arg(cursor).arg("COUNT").arg(count.max(1));
        let wrong = || StoreError::Decode("ZSCAN".into());
        let Value::Array(reply) = self.router().call(Command::plain(cmd)).await? else { return Err(wrong()) };
        let [cursor, found] = <[Value; 2]>::try_from(reply).map_err(|_| wrong())?;
        let id = |pair: &[Vec<u8>]| -> Option<JobId> { std::str::from_utf8(&pair[0]).ok()?.parse().ok() };
        Ok((number(&cursor)?, list(found)?.chunks(2).filter_map(id).collect()))
    }

    /// How many homes should have been looked at more than `late` ago, by the clock of their own node as
    /// this process last heard it.
    pub async fn count_overdue(&self, late: Duration) -> Result<u64, StoreError> {
        let until = self.now().before(late).0;
        let command = |shard| {
            let key = keys::homes(shard);
            let mut cmd = redis::cmd("ZCOUNT");
            cmd.arg(key.as_bytes()).arg("-inf").arg(until);
            Command::plain(cmd)
        };
        let replies = self.router().many((0..SHARDS).map(command).collect()).await;
        replies.into_iter().try_fold(0, |sum, reply| Ok(sum + number::<u64>(&reply?)?))
    }

    /// Since when the oldest of each line's backlog waits; one that is claimed at the moment is not seen.
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

    /// Leaves word of a complete scrub, for whoever tells the fleet.
    ///
    /// A leader's alone:
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

    /// What the last complete scrub found; none if none has ended lately.
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
