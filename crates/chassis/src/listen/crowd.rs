//! Counts the connections of unknown clients, and cuts some off when there are too many.
//!
//! A connection belongs to a stranger (an unauthenticated client) until a request on it comes from a known client
//! ([`Client::is_known`]). Strangers hold at most a share of the process's file descriptors. Beyond that share, the
//! oldest idle stranger is cut off, so that any number of connections without an API key leaves room for known clients.
//! A stranger with a request in progress is never cut off. The service decides which clients are known.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;
use tracing::debug;

/// Strangers of one port.
pub(super) struct Crowd {
    most: usize,
    strangers: Mutex<Strangers>,
}

#[derive(Default)]
struct Strangers {
    next: u64,
    /// In the order in which the strangers connected.
    by_age: BTreeMap<u64, Arc<Connected>>,
}

struct Connected {
    peer: SocketAddr,
    known: AtomicBool,
    busy: AtomicBool,
    ambiguous: AtomicBool,
    cut: Notify,
}

/// The client that sent a request. Every request carries it as an extension.
#[derive(Clone)]
pub struct Client {
    id: u64,
    crowd: Arc<Crowd>,
    of: Arc<Connected>,
}

/// A connection's place in the crowd, until it is dropped.
pub(super) struct Membership(pub(super) Client);

impl Crowd {
    pub(super) fn new(most: usize) -> Arc<Crowd> {
        Arc::new(Crowd { most: most.max(1), strangers: Mutex::default() })
    }

    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new connection. At the limit, cuts off the oldest idle stranger.
    pub(super) fn enter(self: &Arc<Crowd>, peer: SocketAddr) -> Membership {
        let (known, busy, ambiguous) = Default::default();
        let of = Arc::new(Connected { peer, known, busy, ambiguous, cut: Notify::new() });
        let mut strangers = self.strangers();
        if strangers.by_age.len() >= self.most {
            strangers.cut(1);
        }
        let id = strangers.next;
        strangers.next += 1;
        strangers.by_age.insert(id, of.clone());
        Membership(Client { id, crowd: self.clone(), of })
    }

    /// Makes room when the process has no descriptor left.
    pub(super) fn make_room(&self) {
        self.strangers().cut(CUT_AT_ONCE);
    }
}

/// How many strangers are cut off at once when no descriptor is left.
const CUT_AT_ONCE: usize = 16;

impl Strangers {
    fn cut(&mut self, most: usize) {
        let idle = self.by_age.iter().filter(|(_, who)| !who.busy.load(Ordering::Relaxed));
        let oldest: Vec<u64> = idle.map(|(id, _)| *id).take(most).collect();
        for who in oldest.iter().filter_map(|id| self.by_age.remove(id)) {
            debug!(peer = %who.peer, "too many connections: closing an idle one without a key");
            who.cut.notify_one();
        }
    }
}

impl Client {
    /// The address that the connection comes from.
    pub fn peer(&self) -> SocketAddr {
        self.of.peer
    }

    /// Marks this client as known: its connection is not cut off to make room.
    pub fn is_known(&self) {
        if !self.of.known.load(Ordering::Relaxed) {
            self.of.known.store(true, Ordering::Relaxed);
            self.crowd.strangers().by_age.remove(&self.id);
        }
    }

    /// Whether the head of the current request names the length of its body in more than one way.
    pub fn length_is_ambiguous(&self) -> bool {
        self.of.ambiguous.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self, ambiguous: bool) {
        self.of.ambiguous.store(ambiguous, Ordering::Relaxed);
        self.of.busy.store(true, Ordering::Relaxed);
    }

    pub(super) fn answered(&self) {
        self.of.busy.store(false, Ordering::Relaxed);
    }

    /// Returns when the connection must be cut off.
    pub(super) async fn cut(&self) {
        loop {
            self.of.cut.notified().await;
            // A request may have arrived in between.
            if !self.of.busy.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.crowd.strangers().by_age.remove(&self.0.id);
    }
}
