//! Who holds which lock, as Redis says this moment.
//!
//! Knows: the leaders' locks by their names; those on jobs by what the replicas say of themselves,
//! since finding keys would mean walking over all of them. Promises: what is shown as held was held
//! when it was read, and `since` is the time of the node that granted it, however often it was
//! renewed. A lock on a job is told within a second; one of a replica that died may be there for
//! another 15 s after the replica is no longer shown. Leaves to others: taking and keeping
//! (`leases`). Nothing in here is ever decided by.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_domain::{JobId, Time};

use crate::{
    LeaderLock, Store, StoreError,
    keys::{self, Key},
    router::Command,
    script::{bytes, number},
};

/// A lock as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSeen {
    /// The key's text.
    pub key: String,
    /// The job that is decided about under it; none if it is a leader's.
    pub job: Option<JobId>,
    /// Who holds it, if anybody does.
    pub holder: Option<LockHolder>,
    /// How long it lasts unless it is renewed.
    pub left: Duration,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The replica's name and, after a `~`, the token of this life of it.
    pub owner: String,
    /// Grows with every new holder.
    pub fence: u64,
}

impl LockHolder {
    /// Reads `owner:fence`.
    pub(crate) fn parse(raw: &[u8]) -> Result<LockHolder, StoreError> {
        let wrong = || StoreError::Decode("a lock".into());
        let (owner, fence) = std::str::from_utf8(raw).ok().and_then(|text| text.rsplit_once(':')).ok_or_else(wrong)?;
        Ok(LockHolder { owner: owner.to_owned(), fence: fence.parse().map_err(|_| wrong())? })
    }

    /// The replica's name.
    pub fn instance(&self) -> &str {
        self.owner.rsplit_once('~').map_or(&self.owner, |(name, _)| name)
    }

    /// When it was granted, by the clock of the node that did: a fence is that moment.
    pub fn since(&self) -> Time {
        Time(self.fence)
    }
}

/// The jobs whose locks this process holds. Copies are the same set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deciding(Arc<Mutex<BTreeSet<JobId>>>);

impl Deciding {
    /// Notes a job, until what is returned is dropped.
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

impl Store {
    /// Every leader's lock, as it stands now.
    pub async fn leader_locks(&self) -> Result<Vec<LockSeen>, StoreError> {
        self.look_at(LeaderLock::ALL.iter().map(|lock| ((*lock).into(), None)).collect()).await
    }

    /// Every leader's lock, and those on jobs that the replicas say they hold and still do; the one
    /// that is held longest first.
    pub async fn locks(&self) -> Result<Vec<LockSeen>, StoreError> {
        let told: BTreeSet<JobId> =
            self.replicas().await?.iter().flat_map(|it| &it.deciding).filter_map(|id| id.parse().ok()).collect();
        let on_jobs = self.look_at(told.into_iter().map(|job| (keys::deciding(job), Some(job))).collect()).await?;
        let mut on_jobs: Vec<_> = on_jobs.into_iter().filter(|seen| seen.holder.is_some()).collect();
        on_jobs.sort_by_key(|seen| seen.holder.as_ref().map(LockHolder::since));
        let mut all = self.leader_locks().await?;
        all.append(&mut on_jobs);
        Ok(all)
    }

    /// Who leads by this lock, if anybody does. One read.
    pub async fn leader(&self, lock: LeaderLock) -> Result<Option<LockHolder>, StoreError> {
        self.holder_of(lock.into()).await
    }

    /// Which replica asks somebody about a job before it decides, if one does. One read.
    pub async fn deciding(&self, job: JobId) -> Result<Option<LockHolder>, StoreError> {
        self.holder_of(keys::deciding(job)).await
    }

    async fn holder_of(&self, key: Key) -> Result<Option<LockHolder>, StoreError> {
        holder(self.router().call(ask("GET", &key)).await?)
    }

    async fn look_at(&self, locks: Vec<(Key, Option<JobId>)>) -> Result<Vec<LockSeen>, StoreError> {
        let calls = locks.iter().flat_map(|(key, _)| [ask("GET", key), ask("PTTL", key)]).collect();
        let mut replies = self.router().many(calls).await.into_iter();
        let mut seen = Vec::with_capacity(locks.len());
        for (key, job) in locks {
            let (Some(value), Some(left)) = (replies.next(), replies.next()) else { break };
            let left = Duration::from_millis(u64::try_from(number::<i64>(&left?)?).unwrap_or(0));
            let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
            seen.push(LockSeen { key, job, holder: holder(value?)?, left });
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
