//! Shows which replica holds which lock, as Redis says at this moment.
//!
//! This module finds the leaders' locks, sharded or not, by their names, and the locks on jobs by the replicas'
//! announcements, because finding the keys would mean scanning all keys. A lock shown as held was
//! held when it was read, and `since` is the time of the node that granted it, however often it was
//! renewed. A lock on a job is announced within a second; the lock of a dead replica may exist for
//! another 15 s after the replica is no longer shown. `leases` takes and keeps locks. Nothing here
//! is ever used for a decision.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_domain::{JobId, Time, ids::SHARDS};

use crate::{
    LeaderLock, ShardedLock, Store, StoreError,
    keys::{self, Key},
    router::Command,
    script::{bytes, number},
};

/// A lock in its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSeen {
    /// The text of the key.
    pub key: String,
    /// The job that is decided under the lock; none for a leader's lock.
    pub job: Option<JobId>,
    /// The sharded lock and its shard, if it is one.
    pub shard: Option<(ShardedLock, u8)>,
    /// The holder of the lock, if there is one.
    pub holder: Option<LockHolder>,
    /// How long the lock lasts unless it is renewed.
    pub left: Duration,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The replica's name and, after a `~`, a token that changes with every start.
    pub owner: String,
    /// Grows with every new holder.
    pub fence: u64,
}

impl LockHolder {
    /// Parses `owner:fence`.
    pub(crate) fn parse(raw: &[u8]) -> Result<LockHolder, StoreError> {
        let wrong = || StoreError::Decode("a lock".into());
        let (owner, fence) = std::str::from_utf8(raw).ok().and_then(|text| text.rsplit_once(':')).ok_or_else(wrong)?;
        Ok(LockHolder { owner: owner.to_owned(), fence: fence.parse().map_err(|_| wrong())? })
    }

    /// The replica's name.
    pub fn instance(&self) -> &str {
        self.owner.rsplit_once('~').map_or(&self.owner, |(name, _)| name)
    }

    /// When the lock was granted, by the clock of the granting node: a fence is that time.
    pub fn since(&self) -> Time {
        Time(self.fence)
    }
}

/// The jobs whose locks this process holds. Clones share the same set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deciding(Arc<Mutex<BTreeSet<JobId>>>);

impl Deciding {
    /// Adds a job, until the returned value is dropped.
    pub(crate) fn note(&self, job: JobId) -> impl Drop + use<> {
        self.set().insert(job);
        Noted(self.clone(), job)
    }

    pub(crate) fn jobs(&self) -> Vec<JobId> {
        self.set().iter().copied().collect()
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<JobId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Noted(Deciding, JobId);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.set().remove(&self.1);
    }
}

/// A lock to look at.
struct Asked {
    key: Key,
    job: Option<JobId>,
    shard: Option<(ShardedLock, u8)>,
}

impl Store {
    /// The current state of every leader's lock, held or not, and the locks of shards that are held.
    pub async fn leader_locks(&self) -> Result<Vec<LockSeen>, StoreError> {
        let whole = LeaderLock::ALL.iter().map(|lock| Asked { key: (*lock).into(), job: None, shard: None });
        let shards = ShardedLock::ALL.iter().flat_map(|lock| (0..SHARDS).map(|shard| (*lock, shard)));
        let shards = shards.map(|(lock, shard)| Asked { key: lock.of(shard), job: None, shard: Some((lock, shard)) });
        let mut seen = self.look_at(whole.chain(shards).collect()).await?;
        seen.retain(|seen| seen.shard.is_none() || seen.holder.is_some());
        Ok(seen)
    }

    /// Every leader's lock, and the locks on jobs that replicas announce and still hold; of the
    /// latter, the one that is held longest comes first.
    pub async fn locks(&self) -> Result<Vec<LockSeen>, StoreError> {
        let announced: BTreeSet<JobId> =
            self.replicas().await?.iter().flat_map(|it| &it.deciding).filter_map(|id| id.parse().ok()).collect();
        let on_jobs = self
            .look_at(
                announced
                    .into_iter()
                    .map(|job| Asked { key: keys::deciding(job), job: Some(job), shard: None })
                    .collect(),
            )
            .await?;
        let mut on_jobs: Vec<_> = on_jobs.into_iter().filter(|seen| seen.holder.is_some()).collect();
        on_jobs.sort_by_key(|seen| seen.holder.as_ref().map(LockHolder::since));
        let mut all = self.leader_locks().await?;
        all.append(&mut on_jobs);
        Ok(all)
    }

    /// The leader by this lock, if there is one. One read.
    pub async fn leader(&self, lock: LeaderLock) -> Result<Option<LockHolder>, StoreError> {
        self.holder_of(lock.into()).await
    }

    /// The replica that asks the decider about a job, if there is one. One read.
    pub async fn deciding(&self, job: JobId) -> Result<Option<LockHolder>, StoreError> {
        self.holder_of(keys::deciding(job)).await
    }

    async fn holder_of(&self, key: Key) -> Result<Option<LockHolder>, StoreError> {
        holder(self.router().call(ask("GET", &key)).await?)
    }

    async fn look_at(&self, locks: Vec<Asked>) -> Result<Vec<LockSeen>, StoreError> {
        let calls = locks.iter().flat_map(|lock| [ask("GET", &lock.key), ask("PTTL", &lock.key)]).collect();
        let mut replies = self.router().many(calls).await.into_iter();
        let mut seen = Vec::with_capacity(locks.len());
        for Asked { key, job, shard } in locks {
            let (Some(value), Some(left)) = (replies.next(), replies.next()) else { break };
            let left = Duration::from_millis(u64::try_from(number::<i64>(&left?)?).unwrap_or(0));
            let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
            seen.push(LockSeen { key, job, shard, holder: holder(value?)?, left });
        }
        Ok(seen)
    }
}

fn ask(name: &str, key: &Key) -> Command {
    let mut cmd = redis::cmd(name);
    cmd.arg(key.as_bytes());
    Command::plain(cmd)
}

fn holder(reply: redis::Value) -> Result<Option<LockHolder>, StoreError> {
    match reply {
        redis::Value::Nil => Ok(None),
        value => LockHolder::parse(&bytes(value)?).map(Some),
    }
}
