//! Homes: sorted sets in which every living job, run and schedule has an entry, scored by the time of its next look.
//!
//! An entry exists before the 202 and is removed after the effects of the end. The replica that reads an entry sets its
//! next score by compare-and-set; all other writers only forward it. The members of one shard go in one call; every
//! call may be repeated.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use muster_domain::{JobId, RunId, ScheduleId, ShardedId, Time, ids::SHARDS, time::micros};

use crate::{LeaderLock, Lease, ShardedLock, Store, StoreError, home_kind::HomeKind, keys, router::Command, scripts};

/// The most members of one call: Lua's stack limits it.
const CHUNK: usize = 500;

impl HomeKind {
    /// Fails unless this is the lease of the replica that looks at the homes of this shard.
    pub fn led_by(self, lease: &Lease, shard: u8) -> Result<(), StoreError> {
        match self {
            HomeKind::Job => lease.leads(LeaderLock::Reconciler),
            HomeKind::Run => lease.leads_shard(ShardedLock::Runs, shard),
            HomeKind::Schedule => lease.leads_shard(ShardedLock::Schedules, shard),
        }
    }
}

/// An id with a home: its kind determines the key and the lock.
pub trait Homed: ShardedId {
    /// The kind.
    const KIND: HomeKind;
}

impl Homed for JobId {
    const KIND: HomeKind = HomeKind::Job;
}

impl Homed for RunId {
    const KIND: HomeKind = HomeKind::Run;
}

impl Homed for ScheduleId {
    const KIND: HomeKind = HomeKind::Schedule;
}

/// The due homes of one shard.
#[derive(Clone, Debug, Default)]
pub struct DueHomes<I = JobId> {
    /// Ids and scores, earliest first.
    pub entries: Vec<(I, u64)>,
    /// Redis time of the answer.
    pub now: Time,
    /// When the next home is due; none if there is none, or if more are due now than were read.
    pub next: Option<Time>,
}

/// A home with the score that was read, to be given a new score.
#[derive(Clone, Copy, Debug)]
pub struct Rescore<I = JobId> {
    /// The id.
    pub job: I,
    /// The score as read.
    pub read: u64,
    /// The time from now to the next look.
    pub after: Duration,
}

pub(crate) fn text(id: impl ShardedId) -> Vec<u8> {
    id.text_within("", "")
}

pub(crate) fn by_shard<T: Copy, I: ShardedId>(items: &[T], id: impl Fn(&T) -> I) -> Vec<(u8, Vec<T>)> {
    let mut shards: BTreeMap<u8, Vec<T>> = BTreeMap::new();
    for item in items {
        shards.entry(id(item).shard()).or_default().push(*item);
    }
    shards.into_iter().flat_map(|(s, all)| all.chunks(CHUNK).map(|c| (s, c.to_vec())).collect::<Vec<_>>()).collect()
}

impl Store {
    /// Gives jobs, runs or schedules their home, due after `after`, and overwrites an existing one. Each shard is one
    /// atomic call, or several for many members. Repeating is harmless. After an error some homes may be set.
    pub async fn set_homes<I: Homed>(&self, ids: &[I], after: Duration) -> Result<(), StoreError> {
        self.set_each_home(ids, after).await.into_iter().try_for_each(|set| set.map(drop))
    }

    /// The same with one answer each: an unavailable shard affects only its own members. Returns the time of the
    /// shard's node.
    pub(crate) async fn set_each_home<I: Homed>(&self, ids: &[I], after: Duration) -> Vec<Result<Time, StoreError>> {
        let groups = by_shard(ids, |id| *id);
        let call = |(shard, ids): &(u8, Vec<I>)| scripts::home::Set {
            key: keys::homes(I::KIND, *shard),
            after: micros(after),
            jobs: ids.iter().copied().map(text).collect(),
        };
        let replies = self.run_many(groups.iter().map(call).collect()).await;
        let mut times = [Time::NONE; SHARDS as usize];
        let mut away: HashMap<I, StoreError> = HashMap::new();
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

    /// Forwards homes: moves each to this long from now if that is earlier, and adds missing ones. Always changes the
    /// score, so that a replica that has read the old one cannot rescore the home. Repeating is harmless. After an
    /// error some homes may be forwarded.
    pub async fn forward_homes<I: Homed>(&self, items: &[(I, Duration)]) -> Result<(), StoreError> {
        let call = |(shard, items): (u8, Vec<(I, Duration)>)| scripts::home::Forward {
            key: keys::homes(I::KIND, shard),
            pairs: items
                .into_iter()
                .flat_map(|(id, after)| [text(id), micros(after).to_string().into_bytes()])
                .collect(),
        };
        let replies = self.run_many(by_shard(items, |i| i.0).into_iter().map(call).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Sets when homes are due next, each only if its score is still the one that was read. A repetition changes
    /// nothing. After an error some homes may be rescored.
    ///
    /// Only a leader may call it:
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
    pub async fn rescore_homes<I: Homed>(&self, lease: &Lease, items: &[Rescore<I>]) -> Result<(), StoreError> {
        let groups = by_shard(items, |r| r.job);
        groups.iter().try_for_each(|(shard, _)| I::KIND.led_by(lease, *shard))?;
        let number = |n: u64| n.to_string().into_bytes();
        let call = |(shard, items): (u8, Vec<Rescore<I>>)| scripts::home::Rescore {
            key: keys::homes(I::KIND, shard),
            triples: items.into_iter().flat_map(|r| [text(r.job), number(r.read), number(micros(r.after))]).collect(),
        };
        let replies = self.run_many(groups.into_iter().map(call).collect()).await;
        replies.into_iter().try_for_each(|reply| reply.map(|_| ()))
    }

    /// Removes the homes of jobs that have ended and whose effects are done. Repeating is harmless. After an error some
    /// homes may be removed.
    pub async fn drop_homes<I: Homed>(&self, ids: &[I]) -> Result<(), StoreError> {
        let command = |(shard, ids): (u8, Vec<I>)| {
            let key = keys::homes(I::KIND, shard);
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

    /// Removes an entry without a record in one step, if it is due and unchanged since it was read. Returns true if
    /// this call removed it.
    ///
    /// Only a leader may call it:
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
    pub async fn drop_orphan_home<I: Homed>(&self, lease: &Lease, id: I, read: u64) -> Result<bool, StoreError> {
        I::KIND.led_by(lease, id.shard())?;
        let call = scripts::home::DropOrphan { key: keys::homes(I::KIND, id.shard()), job: text(id), read };
        Ok(self.run(call).await?.dropped == 1)
    }

    /// The due jobs of a shard, and when the next one is due. Changes nothing.
    pub async fn due_homes(&self, shard: u8, limit: usize) -> Result<DueHomes, StoreError> {
        self.due_homes_of(shard, limit).await
    }

    /// The same for any kind.
    pub async fn due_homes_of<I: Homed>(&self, shard: u8, limit: usize) -> Result<DueHomes<I>, StoreError> {
        let call = scripts::home::Due { key: keys::homes(I::KIND, shard), limit: limit.clamp(1, 4 * CHUNK) as u64 };
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

    /// When a home is due, in Redis time; none if there is none.
    pub async fn home_of<I: Homed>(&self, id: I) -> Result<Option<Time>, StoreError> {
        let key = keys::homes(I::KIND, id.shard());
        let mut cmd = redis::cmd("ZSCORE");
        cmd.arg(key.as_bytes()).arg(text(id));
        let reply = self.router().call(Command::plain(cmd)).await?;
        let score = redis::from_redis_value::<Option<f64>>(reply).map_err(|e| StoreError::Decode(e.to_string()))?;
        Ok(score.map(|s| Time(s as u64)))
    }

    /// The number of homes of jobs in all shards: all living jobs, and ended ones whose homes are about to be removed.
    pub async fn count_homes(&self) -> Result<u64, StoreError> {
        let command = |shard| {
            let key = keys::homes(HomeKind::Job, shard);
            let mut cmd = redis::cmd("ZCARD");
            cmd.arg(key.as_bytes());
            Command::plain(cmd)
        };
        let replies = self.router().many((0..SHARDS).map(command).collect()).await;
        replies.into_iter().try_fold(0, |sum, reply| Ok(sum + crate::script::number::<u64>(&reply?)?))
    }
}
