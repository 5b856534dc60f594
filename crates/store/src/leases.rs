//! Locks with a time to live: which replica leads, and until when it may trust its lease.
//!
//! The protocol: a lock is a string `owner:fence` with a TTL. The owner is a replica's name and a random token, so that
//! a restarted replica is another owner. *Take* grants the lock if it is free or already belongs to the same owner.
//! *Renew*, at a third of the TTL, compares the whole value in one script. The holder trusts its lease only until (the
//! instant **before** its last successful request + TTL − margin) on its own monotonic clock: Redis counts from when
//! the request arrived, so the holder always stops first, whatever the network did. The answer "not yours" ends the
//! lease at once; a transport error is retried until the trust runs out, and each call gets no longer than that. A
//! graceful stop releases the lock, so that a successor need not wait for the TTL. A refused replica learns how long
//! the lock still lasts, and asks again the moment it may have run out: a dead holder's successor leads within the TTL,
//! not a poll interval later.
//!
//! Leaders keep their lock for as long as they can ([`LeaseKeeper::run`]). A caller that needs a lock for a single
//! piece of work ([`LeaseKeeper::hold`]) asks once: if the lock is held, another replica is already doing that work. If
//! the lock is lost during the work, the caller takes it back if it is free; if another replica has it, that replica
//! does the work.
//!
//! A lease saves work. Correctness never depends on it: every write compares the version that its writer read, so a
//! holder that wakes up after a long pause changes nothing.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use muster_domain::{JobId, Leads, time::micros};
use muster_telemetry::{
    Counter, count,
    events::{Emit, LeaseLost},
};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use crate::{
    Store, StoreError,
    keys::{self, Key, LeaderLock, ShardedLock},
    locks::LockHolder,
    scripts,
};

/// The TTL of every leader's lock.
pub const LEADER_TTL: Duration = Duration::from_secs(15);
/// The TTL of the lock on a job that is being decided.
pub const DECIDING_TTL: Duration = Duration::from_secs(30);

/// What can be held: a key, and its name in logs and metrics, where ids do not belong.
#[derive(Clone, Debug)]
pub struct Lock {
    key: Key,
    name: &'static str,
    job: Option<JobId>,
    shard: Option<u8>,
}

impl Lock {
    /// The lock for deciding about a job, if that takes more than one script.
    pub fn deciding(job: JobId) -> Lock {
        Lock { key: keys::deciding(job), name: keys::DECIDING, job: Some(job), shard: None }
    }

    /// The lock for leading a loop for one home shard.
    pub fn shard(lock: ShardedLock, shard: u8) -> Lock {
        Lock { key: lock.of(shard), name: lock.as_str(), job: None, shard: Some(shard) }
    }
}

impl From<LeaderLock> for Lock {
    fn from(lock: LeaderLock) -> Lock {
        Lock { key: lock.into(), name: lock.as_str(), job: None, shard: None }
    }
}

/// The result of work that needed a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<T> {
    /// The work was done under the lock.
    Done(T),
    /// The work was not begun: another replica holds the lock, or Redis did not answer.
    Elsewhere,
    /// The work was begun and dropped: the lock was lost, and another replica holds it or Redis is unreachable.
    Lost,
}

/// Proof of leadership. A function that needs leadership takes a lease; the holder of a stale lease can see that it is
/// stale.
///
/// Only a [`LeaseKeeper`] makes a lease, so a function that takes one cannot be called without it. Each function of the
/// store that only a leader may call shows this in its own docs. A caller that does not know whether it leads:
///
/// ```
/// # use muster_store::{LeaseKeeper, ScrubPass, Store};
/// async fn tick(store: &Store, keeper: &LeaseKeeper, pass: &ScrubPass) {
///     if let Some(lease) = keeper.lease() {
///         store.put_scrub_pass(&lease, pass).await;
///     }
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use muster_store::{LeaseKeeper, ScrubPass, Store};
/// async fn tick(store: &Store, keeper: &LeaseKeeper, pass: &ScrubPass) {
///     store.put_scrub_pass(&keeper.lease(), pass).await;
/// }
/// ```
///
/// ```compile_fail,E0451
/// fn forged(keeper: &muster_store::LeaseKeeper) -> Option<muster_store::Lease> {
///     Some(muster_store::Lease { fence: 7, ..keeper.lease()? })
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Lease {
    lock: &'static str,
    shard: Option<u8>,
    value: Arc<str>,
    fence: u64,
    base: Instant,
    trusted_micros: Arc<AtomicU64>,
}

impl Lease {
    /// Fails unless this is a lease on that lock, and still held. Checked before every write of a leader.
    pub fn leads(&self, lock: LeaderLock) -> Result<(), StoreError> {
        let lock = lock.as_str();
        if self.lock == lock && self.is_held() { Ok(()) } else { Err(StoreError::NotLeader { lock }) }
    }

    /// The same for one shard of a sharded lock.
    pub fn leads_shard(&self, lock: ShardedLock, shard: u8) -> Result<(), StoreError> {
        let lock = lock.as_str();
        let leads = self.lock == lock && self.shard == Some(shard) && self.is_held();
        if leads { Ok(()) } else { Err(StoreError::NotLeader { lock }) }
    }

    /// Whether the holder may still trust its lease.
    pub fn is_held(&self) -> bool {
        self.base.elapsed() < Duration::from_micros(self.trusted_micros.load(Ordering::Acquire))
    }

    /// Grows with every new holder.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// The name of the lock.
    pub fn lock(&self) -> &'static str {
        self.lock
    }

    fn trust_left(&self) -> Duration {
        Duration::from_micros(self.trusted_micros.load(Ordering::Acquire)).saturating_sub(self.base.elapsed())
    }

    fn trust_until(&self, instant: Instant) {
        let span = micros(instant.saturating_duration_since(self.base));
        self.trusted_micros.store(span, Ordering::Release);
    }
}

impl Leads for Lease {
    fn is_held(&self) -> bool {
        Lease::is_held(self)
    }
}

/// Takes a lock and keeps it, for as long as [`LeaseKeeper::run`] runs.
#[derive(Debug)]
pub struct LeaseKeeper {
    store: Store,
    lock: Lock,
    owner: String,
    ttl: Duration,
    lease: watch::Sender<Option<Lease>>,
    /// The holder of the lock at the last refusal, and until when it holds the lock at least.
    rival: Mutex<Option<(LockHolder, Instant)>>,
    nudge: Notify,
    /// Until when the lock is left to other replicas.
    aside: watch::Sender<Option<Instant>>,
}

impl LeaseKeeper {
    /// A keeper that holds nothing yet. `replica` is the name that operators see in the lock.
    pub fn new(store: Store, lock: impl Into<Lock>, replica: &str, ttl: Duration) -> LeaseKeeper {
        let owner = format!("{replica}~{:08x}", fastrand::u32(..));
        let (lease, rival, nudge) = (watch::Sender::new(None), Mutex::default(), Notify::new());
        let aside = watch::Sender::new(None);
        let lock: Lock = lock.into();
        if lock.job.is_none() {
            // Shown as 0 before the first loss: a series that appears with its first value looks as if it never rose.
            count(Counter::LeaseLost, &[("lock", lock.name)], 0);
        }
        LeaseKeeper { store, lock, owner, ttl, lease, rival, nudge, aside }
    }

    /// The lease, if it is held and may be trusted.
    pub fn lease(&self) -> Option<Lease> {
        self.lease.borrow().clone().filter(Lease::is_held)
    }

    /// The holder of the lock, as far as this process knows without asking: this keeper, or the holder at the last
    /// refusal if its lock cannot have run out since.
    pub fn holder(&self) -> Option<LockHolder> {
        if let Some(lease) = self.lease() {
            return LockHolder::parse(lease.value.as_bytes()).ok();
        }
        let rival = self.rival().clone();
        rival.filter(|(_, until)| Instant::now() < *until).map(|(holder, _)| holder)
    }

    fn rival(&self) -> MutexGuard<'_, Option<(LockHolder, Instant)>> {
        self.rival.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A receiver for every change of the lease.
    pub fn subscribe(&self) -> watch::Receiver<Option<Lease>> {
        self.lease.subscribe()
    }

    /// Asks for the lock now: its holder may have released it.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Releases the lock, and does not ask for it until `until`, because another replica is in a better state. If no
    /// other replica takes it, this one does afterwards. Returns true if the lock was held.
    pub fn stand_aside(&self, until: Instant) -> bool {
        self.aside.send_replace(Some(until));
        self.lease().is_some()
    }

    /// Waits while the lock is left to other replicas.
    async fn not_aside(&self) {
        let mut aside = self.aside.subscribe();
        loop {
            let until = *aside.borrow_and_update();
            let Some(until) = until.filter(|until| *until > Instant::now()) else { return };
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {}
                _ = aside.changed() => {}
            }
        }
    }

    /// Returns when the lock is to be left to other replicas.
    async fn told_aside(&self) {
        let aside = |until: &Option<Instant>| until.is_some_and(|until| until > Instant::now());
        let _ = self.aside.subscribe().wait_for(aside).await;
    }

    /// Takes, renews, loses, takes again. Ends only by being dropped. A panic in here ends the trust at once, because
    /// the lease is no longer renewed.
    pub async fn run(&self) {
        let _watch = Watch(self);
        loop {
            self.not_aside().await;
            let taken = self.take().await;
            let free_in = taken.as_ref().err().copied().flatten();
            if let Ok(lease) = taken {
                self.lease.send_replace(Some(lease.clone()));
                tokio::select! {
                    () = self.keep(&lease) => self.lose(&lease),
                    () = self.told_aside() => {
                        // A lease that cannot be given up runs out by itself.
                        let _ = timeout(self.trust(), self.release()).await;
                        continue;
                    }
                }
            }
            let usual = self.ttl / 3 + self.ttl.mul_f64(fastrand::f64() * 0.1);
            // A living holder renews before this, so only a dead holder's lock is asked for sooner.
            let pause = free_in.map_or(usual, |left| usual.min(left + self.ttl.mul_f64(fastrand::f64() * 0.01)));
            tokio::select! {
                () = sleep(pause) => {}
                () = self.nudge.notified() => {}
            }
        }
    }

    /// Does one piece of work under the lock, and releases it. Asks for the lock once. A caller that drops this future
    /// should call [`LeaseKeeper::release`], otherwise other replicas wait for the TTL.
    pub async fn hold<T>(&self, work: impl Future<Output = T>) -> Held<T> {
        let Ok(mut lease) = self.take().await else { return Held::Elsewhere };
        let _deciding = self.lock.job.map(|job| self.store.deciding.note(job));
        tokio::pin!(work);
        loop {
            self.lease.send_replace(Some(lease.clone()));
            tokio::select! {
                done = &mut work => {
                    // A lease that cannot be given up runs out by itself.
                    let _ = self.release().await;
                    return Held::Done(done);
                }
                () = self.keep(&lease) => self.lose(&lease),
            }
            match self.take().await {
                Ok(again) => lease = again,
                Err(_) => return Held::Lost,
            }
        }
    }

    fn lose(&self, lease: &Lease) {
        lease.trusted_micros.store(0, Ordering::Release);
        self.lease.send_replace(None);
        LeaseLost { lock: self.lock.name, detail: "not renewed in time, or taken by another replica" }.emit();
    }

    /// Takes the lock, or returns how soon it is free if its holder is dead. `None`: unknown.
    async fn take(&self) -> Result<Lease, Option<Duration>> {
        let before = Instant::now();
        let key = self.lock.key.clone();
        let call = scripts::lease::Take { key, owner: self.owner.clone().into_bytes(), ttl_ms: millis(self.ttl) };
        let reply = match timeout(self.trust(), self.store.run(call)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) | Err(_) => return Err(None),
        };
        if reply.fence == 0 {
            let until = before + Duration::from_millis(reply.left_ms);
            *self.rival() = LockHolder::parse(&reply.holder).ok().map(|holder| (holder, until));
            return Err((reply.left_ms > 0).then(|| Duration::from_millis(reply.left_ms)));
        }
        let lease = Lease {
            lock: self.lock.name,
            shard: self.lock.shard,
            value: String::from_utf8_lossy(&reply.holder).into(),
            fence: reply.fence,
            base: before,
            trusted_micros: Arc::default(),
        };
        lease.trust_until(before + self.trust());
        Ok(lease)
    }

    /// Renews until another replica has the lock or the trust runs out.
    async fn keep(&self, lease: &Lease) {
        loop {
            sleep(self.ttl / 3).await;
            loop {
                let before = Instant::now();
                match timeout(lease.trust_left(), self.renew(lease)).await {
                    Err(_) | Ok(Ok(false)) => return,
                    Ok(Ok(true)) => {
                        lease.trust_until(before + self.trust());
                        break;
                    }
                    Ok(Err(_)) if !lease.is_held() => return,
                    Ok(Err(_)) => sleep(self.ttl / 60).await,
                }
            }
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<bool, StoreError> {
        let key = self.lock.key.clone();
        let call = scripts::lease::Renew { key, value: lease.value.as_bytes().to_vec(), ttl_ms: millis(self.ttl) };
        Ok(self.store.run(call).await?.held == 1)
    }

    /// Releases the lock, so that a successor starts at once; returns true if this keeper held it. Call it after
    /// [`LeaseKeeper::run`] was stopped: the stop may have come between a grant and its answer, so the script checks
    /// the owner, not the lease that this keeper knows.
    pub async fn release(&self) -> Result<bool, StoreError> {
        if let Some(lease) = self.lease.send_replace(None) {
            lease.trusted_micros.store(0, Ordering::Release);
        }
        let call = scripts::lease::Release { key: self.lock.key.clone(), owner: self.owner.clone().into_bytes() };
        Ok(self.store.run(call).await?.freed == 1)
    }

    /// How long a fresh grant is trusted: less than Redis keeps it.
    fn trust(&self) -> Duration {
        self.ttl - self.ttl / 10
    }
}

/// Ends the trust in a lease whose keeper panics.
struct Watch<'a>(&'a LeaseKeeper);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // The value stays, so that the lock can still be released.
        self.0.lease.send_if_modified(|lease| {
            lease.iter().for_each(|lease| lease.trusted_micros.store(0, Ordering::Release));
            lease.is_some()
        });
        LeaseLost { lock: self.0.lock.name, detail: "the task that renews it panicked" }.emit();
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RedisSettings;

    #[tokio::test]
    async fn a_panic_while_it_is_kept_gives_the_lease_up() {
        let store = Store::connect(RedisSettings::new("redis://127.0.0.1:1")).await.unwrap();
        let keeper = LeaseKeeper::new(store, LeaderLock::Scrub, "r", LEADER_TTL);
        let lease = Lease {
            lock: LeaderLock::Scrub.as_str(),
            shard: None,
            value: "r~1:2".into(),
            fence: 2,
            base: Instant::now(),
            trusted_micros: Arc::default(),
        };
        lease.trust_until(Instant::now() + LEADER_TTL);
        keeper.lease.send_replace(Some(lease.clone()));
        drop(Watch(&keeper));
        assert!(keeper.lease().is_some(), "one that is only stopped may still be released in peace");
        let mut news = keeper.subscribe();
        let panics = std::panic::AssertUnwindSafe(|| {
            let _watch = Watch(&keeper);
            panic!("on purpose");
        });
        std::panic::catch_unwind(panics).unwrap_err();
        assert!(keeper.lease().is_none() && !lease.is_held());
        assert!(news.has_changed().unwrap(), "who leads by it hears of it");
        news.mark_unchanged();
    }
}
