//! Sharded leadership of a loop: one lease for each of 16 shards, spread evenly over the replicas.
//!
//! The protocol: each replica joins a set of members, and joins again every third of the TTL; a member that does not
//! join again expires. From the members that it sees, each replica computes which shards it owns (`share`). It asks for
//! the locks of these shards, and gives up the locks of shards that it no longer owns. A hint follows every change, so
//! the other replicas check at once. Each shard has one holder at a time, by its lock, as for any leader. While the
//! members stay the same, shares differ by one at most. A replica that stops leaves the set and frees its locks, so the
//! other replicas own all shards within a second. A replica that dies is replaced within a little more than the TTL.
//! The writes of a loop must stay correct if two replicas believe for a moment that they own the same shard.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use muster_bus::subjects;
use muster_chassis::{Holder, Leadership};
use muster_domain::ids::SHARDS;
use muster_flow::Flow;
use muster_store::{Lease, LeaseKeeper, Lock, ShardedLock};
use muster_wire::{Body, v1::Wake};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{Candidacy, Member, share::owners};

/// How long leaving the set of members may take. It may fail: a member that does not join again expires.
const LEAVE: Duration = Duration::from_millis(500);

/// The shards that this replica owned at the time of the check, each with its lease.
#[derive(Clone, Debug)]
pub struct Shards(Vec<(u8, Lease)>);

impl Shards {
    /// The shards that are still held.
    pub fn held(&self) -> impl Iterator<Item = (u8, &Lease)> {
        self.0.iter().filter(|(_, lease)| lease.is_held()).map(|(shard, lease)| (*shard, lease))
    }
}

/// This replica's share of a loop's leases.
pub struct ShardedLeases {
    inner: Arc<Inner>,
    /// The count of changes that the loop last read: a change since then is never missed.
    seen: Mutex<watch::Receiver<u64>>,
    tasks: Mutex<Vec<JoinHandle<Option<()>>>>,
}

struct Inner {
    flow: Flow,
    lock: ShardedLock,
    /// The name of this process among the members; a restarted replica gets a new one.
    name: String,
    ttl: Duration,
    keepers: Vec<LeaseKeeper>,
    /// Which shards this replica should own.
    wanted: watch::Sender<[bool; SHARDS as usize]>,
    /// Grows with every lease that is won or lost.
    changes: watch::Sender<u64>,
    look: Notify,
    /// Until when the shards are left to other replicas.
    aside: Mutex<Option<Instant>>,
    enough: CancellationToken,
}

impl Member {
    /// Joins the members that share this lock, and starts asking for a share.
    pub fn share(&self, lock: ShardedLock, ttl: Duration) -> ShardedLeases {
        let (store, instance) = (&self.flow.store, &self.chassis.instance);
        let keeper = |shard| LeaseKeeper::new(store.clone(), Lock::shard(lock, shard), instance, ttl);
        let inner = Arc::new(Inner {
            flow: self.flow.clone(),
            lock,
            name: format!("{instance}~{:08x}", fastrand::u32(..)),
            ttl,
            keepers: (0..SHARDS).map(keeper).collect(),
            wanted: watch::Sender::new([false; SHARDS as usize]),
            changes: watch::Sender::new(0),
            look: Notify::new(),
            aside: Mutex::new(None),
            enough: CancellationToken::new(),
        });
        let (nudged, aside) = (inner.clone(), inner.clone());
        self.candidacies().push(Candidacy {
            lock: lock.as_str(),
            nudge: Arc::new(move || nudged.look.notify_one()),
            stand_aside: Arc::new(move |until| aside.stand_aside(until)),
        });
        let mut tasks = vec![self.supervised("share", &inner, |inner| async move { inner.balance().await })];
        for shard in 0..SHARDS {
            tasks.push(self.supervised("lease", &inner, move |inner| async move { inner.keep(shard).await }));
        }
        let seen = Mutex::new(inner.changes.subscribe());
        ShardedLeases { inner, seen, tasks: Mutex::new(tasks) }
    }

    fn supervised<F: Future<Output = ()> + Send + 'static>(
        &self,
        name: &'static str,
        inner: &Arc<Inner>,
        work: impl Fn(Arc<Inner>) -> F + Send + Sync + 'static,
    ) -> JoinHandle<Option<()>> {
        let (inner, stop) = (inner.clone(), self.chassis.tasks.stopping());
        self.chassis.tasks.supervise(name, move || {
            let (enough, stop, work) = (inner.enough.clone(), stop.clone(), work(inner.clone()));
            async move {
                tokio::select! {
                    () = work => {}
                    () = enough.cancelled() => {}
                    () = stop.cancelled() => {}
                }
                Ok(())
            }
        })
    }
}

impl Inner {
    /// Joins the members repeatedly, and computes which shards this replica should own.
    async fn balance(&self) {
        let mut known = Vec::new();
        loop {
            if let Some(left) = self.aside_for() {
                known.clear();
                self.leave().await;
                tokio::select! {
                    () = sleep(left) => {}
                    () = self.look.notified() => {}
                }
                continue;
            }
            let usual = self.ttl / 3;
            let mut pause = usual;
            // If the store is down, nothing changes: the leases expire by themselves.
            if let Ok((members, lapse)) = self.flow.store.join_members(self.lock, &self.name, self.ttl).await {
                let owners = owners(&members);
                let wanted = std::array::from_fn(|n| owners.get(&(n as u8)).is_some_and(|owner| *owner == self.name));
                self.wanted.send_if_modified(|now| std::mem::replace(now, wanted) != wanted);
                // A replica released a lock, or the members changed: ask now for the shards that this replica should
                // own and does not hold.
                self.keepers.iter().for_each(LeaseKeeper::nudge);
                let mine_is_new = !known.contains(&self.name);
                known = members;
                if mine_is_new {
                    self.tell().await;
                }
                // A living member joins again before it expires, so this shortens the pause only for a dead member.
                pause = lapse.map_or(usual, |lapse| usual.min(lapse + Duration::from_millis(10)));
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.look.notified() => {}
            }
        }
    }

    /// Leaves every shard to the other replicas until `until`. Returns whether this replica held one.
    fn stand_aside(&self, until: Instant) -> bool {
        *self.aside.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        // Not by `fold` or `any` alone: every keeper must hear it.
        let held = self.keepers.iter().filter(|keeper| keeper.stand_aside(until)).count();
        self.look.notify_one();
        held > 0
    }

    /// How long the shards are still left to other replicas; none if they are not.
    fn aside_for(&self) -> Option<Duration> {
        let until = (*self.aside.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Leaves the set of members, so that the members that check next do not count this replica. The shards follow:
    /// each keeper releases its lock.
    async fn leave(&self) {
        // A member that cannot leave lapses.
        let left = timeout(LEAVE, self.flow.store.leave_members(self.lock, &self.name)).await;
        let none = [false; SHARDS as usize];
        let had = self.wanted.send_if_modified(|now| std::mem::replace(now, none) != none);
        if had && left.is_ok() {
            self.tell().await;
        }
    }

    /// Keeps the lock of one shard while this replica should own that shard.
    async fn keep(&self, shard: u8) {
        let (n, keeper) = (usize::from(shard), &self.keepers[usize::from(shard)]);
        let (mut wanted, mut lease) = (self.wanted.subscribe(), keeper.subscribe());
        loop {
            if wanted.wait_for(|wanted| wanted[n]).await.is_err() {
                return;
            }
            let count_changes = async {
                while lease.changed().await.is_ok() {
                    self.changes.send_modify(|n| *n += 1);
                }
            };
            tokio::select! {
                () = keeper.run() => {}
                () = count_changes => {}
                _ = wanted.wait_for(|wanted| !wanted[n]) => {}
            }
            let freed = keeper.release().await == Ok(true);
            self.changes.send_modify(|n| *n += 1);
            if freed {
                self.tell().await;
            }
        }
    }

    /// Hints to the other members to check. A lost hint costs a third of the TTL.
    async fn tell(&self) {
        let wake = Wake { r#loop: self.lock.as_str().to_owned(), in_us: 0 };
        let _ = self.flow.bus.broadcast(&subjects::wake(), Body::Wake(wake)).await;
    }
}

impl ShardedLeases {
    /// The shards that this replica owns now.
    pub fn shards(&self) -> Shards {
        let held = |(shard, keeper): (u8, &LeaseKeeper)| Some((shard, keeper.lease()?));
        Shards((0..SHARDS).zip(&self.inner.keepers).filter_map(held).collect())
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<JoinHandle<Option<()>>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leadership for ShardedLeases {
    type Lease = Shards;

    const TICKS_ON_CHANGE: bool = true;

    async fn lease(&self) -> Option<Shards> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).mark_unchanged();
        let shards = self.shards();
        (!shards.0.is_empty()).then_some(shards)
    }

    async fn changed(&self) {
        // The sender lives as long as `self`, so only a change ends this wait.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _ = seen.changed().await;
    }

    /// The first shard that this replica holds, or that another one is known to hold. The API shows all shards.
    fn holder(&self) -> Option<Holder> {
        let own = self.inner.keepers.iter().find(|keeper| keeper.lease().is_some());
        let holder = own.into_iter().chain(&self.inner.keepers).find_map(LeaseKeeper::holder)?;
        let (instance, since) = (holder.instance().to_owned(), holder.since().rfc3339());
        Some(Holder { instance, fence: holder.fence, since })
    }

    async fn release(&self) {
        let inner = &self.inner;
        inner.enough.cancel();
        let tasks = std::mem::take(&mut *self.tasks());
        join_all(tasks).await;
        // Leave the set first, so that the members that check next do not count this replica.
        let left = timeout(LEAVE, inner.flow.store.leave_members(inner.lock, &inner.name)).await;
        // A lease that cannot be given up expires by itself.
        join_all(inner.keepers.iter().map(LeaseKeeper::release)).await;
        if left.is_ok() {
            inner.tell().await;
        }
    }
}
