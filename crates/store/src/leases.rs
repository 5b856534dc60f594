//! Locks with a time to live: who leads, and until when they may trust themselves.
//!
//! The protocol. A lock is a string `owner:fence` with a TTL. The owner is a replica's name and a
//! random token, so that a restarted replica is somebody else. *Take* grants the lock if it is
//! free or already the same owner's. *Renew*, at a third of the TTL, compares the whole value in
//! one script. The holder trusts itself only until (the instant **before** its last successful
//! request + TTL − margin) on its own monotonic clock: Redis counts from when the request
//! arrived, so the holder always stops first, whatever the network did. "Not yours" ends the
//! lease at once; a transport error is retried until the trust runs out, and each call is given
//! no longer than that. A graceful stop releases, so that a successor need not wait for the TTL.
//!
//! A lease saves work. It is never what correctness rests on: every write compares the version it
//! read, so a holder that wakes up after a long pause changes nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use muster_domain::time::micros;
use muster_telemetry::events::{Emit, LeaseLost};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use crate::{
    Store, StoreError,
    keys::{Key, LeaderLock},
    scripts,
};

/// TTL of every leader's lock.
pub const LEADER_TTL: Duration = Duration::from_secs(15);

/// Proof of leadership. A function that needs it takes it; whoever holds a stale one can see so.
#[derive(Clone, Debug)]
pub struct Lease {
    lock: &'static str,
    value: Arc<str>,
    fence: u64,
    base: Instant,
    trusted_micros: Arc<AtomicU64>,
}

impl Lease {
    /// Whether the holder may still trust itself.
    pub fn is_held(&self) -> bool {
        self.base.elapsed() < Duration::from_micros(self.trusted_micros.load(Ordering::Acquire))
    }

    /// Grows with every new holder.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Which lock.
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

/// Takes a lock and keeps it, for as long as [`LeaseKeeper::run`] runs.
#[derive(Debug)]
pub struct LeaseKeeper {
    store: Store,
    lock: LeaderLock,
    owner: String,
    ttl: Duration,
    lease: watch::Sender<Option<Lease>>,
    nudge: Notify,
}

impl LeaseKeeper {
    /// A keeper that holds nothing yet. `replica` is who operators see in the lock.
    pub fn new(store: Store, lock: LeaderLock, replica: &str, ttl: Duration) -> LeaseKeeper {
        let owner = format!("{replica}~{:08x}", fastrand::u32(..));
        LeaseKeeper { store, lock, owner, ttl, lease: watch::Sender::new(None), nudge: Notify::new() }
    }

    /// The lease, if it is held and may be trusted.
    pub fn lease(&self) -> Option<Lease> {
        self.lease.borrow().clone().filter(Lease::is_held)
    }

    /// Tells of every change of holding.
    pub fn subscribe(&self) -> watch::Receiver<Option<Lease>> {
        self.lease.subscribe()
    }

    /// Try now: somebody may have let go.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Takes, renews, loses, takes again. Ends only by being dropped.
    pub async fn run(&self) {
        loop {
            if let Some(lease) = self.take().await {
                self.lease.send_replace(Some(lease.clone()));
                self.keep(&lease).await;
                lease.trusted_micros.store(0, Ordering::Release);
                self.lease.send_replace(None);
                LeaseLost { lock: self.lock.as_str(), detail: "not renewed in time, or taken by another" }.emit();
            }
            let pause = self.ttl / 3 + self.ttl.mul_f64(fastrand::f64() * 0.1);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.nudge.notified() => {}
            }
        }
    }

    async fn take(&self) -> Option<Lease> {
        let before = Instant::now();
        let key: Key = self.lock.into();
        let call = scripts::lease::Take { key, owner: self.owner.clone().into_bytes(), ttl_ms: millis(self.ttl) };
        let reply = timeout(self.trust(), self.store.run(call)).await.ok()?.ok()?;
        if reply.fence == 0 {
            return None;
        }
        let lease = Lease {
            lock: self.lock.as_str(),
            value: String::from_utf8_lossy(&reply.holder).into(),
            fence: reply.fence,
            base: before,
            trusted_micros: Arc::default(),
        };
        lease.trust_until(before + self.trust());
        Some(lease)
    }

    /// Renews until the lock is somebody else's or the trust runs out.
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
        let key: Key = self.lock.into();
        let call = scripts::lease::Renew { key, value: lease.value.as_bytes().to_vec(), ttl_ms: millis(self.ttl) };
        Ok(self.store.run(call).await?.held == 1)
    }

    /// Lets go, so that a successor starts at once. Call it after [`LeaseKeeper::run`] was stopped.
    pub async fn release(&self) -> Result<(), StoreError> {
        let Some(lease) = self.lease.send_replace(None) else { return Ok(()) };
        lease.trusted_micros.store(0, Ordering::Release);
        let key: Key = self.lock.into();
        self.store.run(scripts::lease::Release { key, value: lease.value.as_bytes().to_vec() }).await.map(|_| ())
    }

    /// How long a fresh grant is trusted: less than Redis keeps it.
    fn trust(&self) -> Duration {
        self.ttl - self.ttl / 10
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
