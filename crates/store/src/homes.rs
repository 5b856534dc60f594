//! Homes: where everything alive can be found, scored by when it must be looked at next.
//!
//! An entry is there before the 202 and leaves after the effects of the end. Readers re-score by
//! compare; everybody else forwards. Members of one shard go in one call; every call may be
//! repeated.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use muster_domain::{JobId, Time, ids::SHARDS, time::micros};

use crate::{LeaderLock, Lease, Store, StoreError, keys, router::Command, scripts};

/// Most members one call carries: Lua's stack bounds it.
const CHUNK: usize = 500;

/// What is due in one shard.
#[derive(Clone, Debug, Default)]
pub struct DueHomes {
    /// Ids and scores, earliest first.
    pub entries: Vec<(JobId, u64)>,
    /// Redis time of the answer.
    pub now: Time,
    /// When the next one is due; none if there is none, or if more are due now than were read.
    pub next: Option<Time>,
}

/// A home whose score was read and is to be set.
#[derive(Clone, Copy, Debug)]
pub struct Rescore {
    /// Whose.
    pub job: JobId,
    /// The score as read.
    pub read: u64,
    /// When to look again, from now.
    pub after: Duration,
}

pub(crate) fn text(id: JobId) -> Vec<u8> {
    id.text_within("", "")
}

pub(crate) fn by_shard<T: Copy>(items: &[T], id: impl Fn(&T) -> JobId) -> Vec<(u8, Vec<T>)> {
    let mut shards: BTreeMap<u8, Vec<T>> = BTreeMap::new();
    for item in items {
        shards.entry(id(item).shard()).or_default().push(*item);
    }
    shards.into_iter().flat_map(|(s, all)| all.chunks(CHUNK).map(|c| (s, c.to_vec())).collect::<Vec<_>>()).collect()
}

impl Store {
    /// Gives jobs their home, due after `after`, whatever stood there before.
    pub async fn set_homes(&self, ids: &[JobId], after: Duration) -> Result<(), StoreError> {
        self.set_each_home(ids, after).await.into_iter().try_for_each(|set| set.map(drop))
    }

    /// The same, each for itself: a shard that is away harms nobody in another. Tells when, by the shard's node.
    pub(crate) async fn set_each_home(&self, ids: &[JobId], after: Duration) -> Vec<Result<Time, StoreError>> {
        let groups = by_shard(ids, |id| *id);
        let call = |(shard, ids): &(u8, Vec<JobId>)| scripts::home::Set {
            key: keys::homes(*shard),
            after: micros(after),
            jobs: ids.iter().copied().map(text).collect(),
        };
        let replies = self.run_many(groups.iter().map(call).collect()).await;
        let mut times = [Time::NONE; SHARDS as usize];
        let mut away: HashMap<JobId, StoreError> = HashMap::new();
        for ((shard, members), reply) in groups.iter().zip(replies) {
            match reply {
                Ok(reply) => {
                    times[usize::from(*shard)] = Time(reply.now);
                    self.note_time(Time(reply.now));
                }
                Err(fault) => away.extend(members.iter().map(|id| (*id, fault.clone()))),
            }
        }
        ids.iter().map(|id| away.get(id).cloned().map_or(Ok(times[usize::from(id.shard())]), Err)).collect()
    }

    /// Brings homes nearer, adds those that are missing. Always changes the score.
    pub async fn forward_homes(&self, items: &[(JobId, Duration)]) -> Result<(), StoreError> {
        let call = |(shard, items): (u8, Vec<(JobId, Duration)>)| scripts::home::Forward {
            key: keys::homes(shard),
            pairs: items
                .into_iter()
                .flat_map(|(id, after)| [text(id), micros(after).to_string().into_bytes()])
                .collect(),
        };
        let replies = self.run_many(by_shard(items, |i| i.0).into_iter().map(call).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Sets when homes are due next, where the score is still the one that was read.
    ///
    /// A leader's alone:
    /// ```
    /// # use muster_store::{Lease, Rescore, Store};
    /// async fn tick(store: &Store, lease: &Lease, items: &[Rescore]) {
    ///     store.rescore_homes(lease, items).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::{Rescore, Store};
    /// async fn tick(store: &Store, items: &[Rescore]) {
    ///     store.rescore_homes(items).await;
    /// }
    /// ```
    pub async fn rescore_homes(&self, lease: &Lease, items: &[Rescore]) -> Result<(), StoreError> {
        lease.leads(LeaderLock::Reconciler)?;
        let number = |n: u64| n.to_string().into_bytes();
        let call = |(shard, items): (u8, Vec<Rescore>)| scripts::home::Rescore {
            key: keys::homes(shard),
            triples: items.into_iter().flat_map(|r| [text(r.job), number(r.read), number(micros(r.after))]).collect(),
        };
        let replies = self.run_many(by_shard(items, |r| r.job).into_iter().map(call).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Removes the homes of jobs that have ended and whose effects are done.
    pub async fn drop_homes(&self, ids: &[JobId]) -> Result<(), StoreError> {
        let command = |(shard, ids): (u8, Vec<JobId>)| {
            let key = keys::homes(shard);
            let mut cmd = redis::cmd("ZREM");
            cmd.arg(key.as_bytes());
            for id in ids {
                cmd.arg(text(id));
            }
            Command::plain(cmd)
        };
        let replies = self.router().many(by_shard(ids, |id| *id).into_iter().map(command).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Removes an entry without a record, if it is due and untouched since it was read.
    ///
    /// A leader's alone:
    /// ```
    /// # use muster_store::{Lease, Store};
    /// async fn tick(store: &Store, lease: &Lease, id: muster_domain::JobId, read: u64) {
    ///     store.drop_orphan_home(lease, id, read).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::Store;
    /// async fn tick(store: &Store, id: muster_domain::JobId, read: u64) {
    ///     store.drop_orphan_home(id, read).await;
    /// }
    /// ```
    pub async fn drop_orphan_home(&self, lease: &Lease, id: JobId, read: u64) -> Result<bool, StoreError> {
        lease.leads(LeaderLock::Reconciler)?;
        let call = scripts::home::DropOrphan { key: keys::homes(id.shard()), job: text(id), read };
        Ok(self.run(call).await?.dropped == 1)
    }

    /// Who is due in a shard, and when the next one is. Changes nothing.
    pub async fn due_homes(&self, shard: u8, limit: usize) -> Result<DueHomes, StoreError> {
        let call = scripts::home::Due { key: keys::homes(shard), limit: limit.clamp(1, 4 * CHUNK) as u64 };
        let reply = self.run(call).await?;
        let now = Time(reply.now);
        self.note_time(now);
        let entry = |pair: &[Vec<u8>]| {
            let id = std::str::from_utf8(&pair[0]).ok()?.parse().ok()?;
            let score: f64 = std::str::from_utf8(pair.get(1)?).ok()?.parse().ok()?;
            Some((id, score as u64))
        };
        let entries = reply.entries.chunks(2).filter_map(entry).collect();
        Ok(DueHomes { entries, now, next: Time(reply.next).some() })
    }

    /// When a job's home is due, in Redis time; none if it has no home.
    pub async fn home_of(&self, id: JobId) -> Result<Option<Time>, StoreError> {
        let key = keys::homes(id.shard());
        let mut cmd = redis::cmd("ZSCORE");
        cmd.arg(key.as_bytes()).arg(text(id));
        let reply = self.router().call(Command::plain(cmd)).await?;
        let score = redis::from_redis_value::<Option<f64>>(reply).map_err(|e| StoreError::Decode(e.to_string()))?;
        Ok(score.map(|s| Time(s as u64)))
    }

    /// How many homes there are in all shards: everything alive, and what is about to be removed.
    pub async fn count_homes(&self) -> Result<u64, StoreError> {
        let command = |shard| {
            let key = keys::homes(shard);
            let mut cmd = redis::cmd("ZCARD");
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many((0..SHARDS).map(command).collect()).await;
        replies.into_iter().try_fold(0, |sum, reply| Ok(sum + crate::script::number::<u64>(&reply?)?))
    }
}
