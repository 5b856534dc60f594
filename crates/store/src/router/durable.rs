//! Connections for writes that wait for replicas or for the disk.
//!
//! WAIT and WAITAOF block their connection and count only what was written on it. So such a write has a connection of
//! its own, with write and wait in one pipeline. These connections are opened on demand and kept for the next write;
//! the limit counts them together with the shared ones.
//!
//! If a node reported after a write that it has no replica, later writes to it wait only for a short time. Each of them
//! asks again, so only the first write after a replica has connected can be answered too early.

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;

use super::{
    address::NodeAddr,
    node::{Counted, Fault, Gauge, Node},
    slots::slot_of,
};

/// An unused connection is closed after this time, unless it is one of those kept open in advance.
const IDLE: Duration = Duration::from_secs(60);
/// How long a write waits for replicas of a node that had none after the last one.
const ALONE_WAIT: Duration = Duration::from_millis(50);

/// What a durable write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// This many replicas have the write.
    ByReplicas(usize),
    /// The write is on the node's own disk. Servers before 7.2 cannot confirm that, so there the count is always 0.
    OnDisk,
}

/// What a durable call waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durability {
    pub(super) kept: Kept,
    /// The longest wait.
    pub(super) wait: Duration,
}

/// A connection that one durable call uses alone.
pub(super) struct Own {
    pub(super) conn: MultiplexedConnection,
    addr: NodeAddr,
    used: Instant,
    _counted: Counted,
}

/// The idle connections, and the limit on all connections.
pub(super) struct Dedicated {
    idle: Mutex<Vec<Own>>,
    open: Arc<Gauge>,
    shared: Arc<Gauge>,
    ceiling: usize,
    warm: usize,
    tags: Mutex<HashMap<u16, u32>>,
    /// The nodes that had no replica after the last durable write.
    alone: Mutex<HashSet<NodeAddr>>,
}

impl Dedicated {
    pub(super) fn new(ceiling: usize, warm: usize, shared: Arc<Gauge>) -> Dedicated {
        let (idle, open, tags, alone) = Default::default();
        Dedicated { idle, open, shared, ceiling, warm, tags, alone }
    }

    /// The number of open connections, and how many of them are idle.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.open.count(), self.idle().len())
    }

    /// A connection to `node`: an idle one, a new one within the bound, or the next that comes free.
    pub(super) async fn take(&self, node: &Arc<Node>, until: Instant) -> Result<Own, Fault> {
        loop {
            let mut freed = pin!(self.open.closed.notified());
            // Register before checking, so that a connection that is returned in the meantime is not missed.
            freed.as_mut().enable();
            match self.grant(&node.addr) {
                Grant::Idle(own) => return Ok(own),
                Grant::Open(counted) => {
                    let conn = node.open().await?;
                    return Ok(Own { conn, addr: node.addr.clone(), used: Instant::now(), _counted: counted });
                }
                Grant::Full => {}
            }
            if tokio::time::timeout_at(until.into(), freed).await.is_err() {
                return Err(Fault::Away(format!("all {} connections are in use", self.ceiling)));
            }
        }
    }

    /// Returns a connection that works.
    pub(super) fn give_back(&self, mut own: Own) {
        own.used = Instant::now();
        let mut idle = self.idle();
        idle.push(own);
        let mut excess = (self.open.count() + self.shared.count()).saturating_sub(self.warm);
        idle.retain(|own| {
            let close = excess > 0 && own.used.elapsed() > IDLE;
            excess -= usize::from(close);
            !close
        });
        drop(idle);
        self.open.closed.notify_one();
    }

    /// Drops the idle connections to a node on which one has failed: the others are broken as well.
    pub(super) fn forget(&self, addr: &NodeAddr) {
        self.idle().retain(|own| own.addr != *addr);
    }

    /// The key of the marker that is written after a group of commands; `key` is the key of the first. A script that
    /// finds its work done writes nothing, so WAIT would not count the earlier write; but a replica that has the later
    /// marker has the earlier write too. The marker is in the key's hash slot, so it is on the same node, and begins
    /// with the key's first segment: `<segment>:sync:{<number>}`.
    pub(super) fn marker(&self, key: &[u8]) -> Vec<u8> {
        let slot = slot_of(key);
        let mut tags = self.tags.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = tags.entry(slot).or_insert_with(|| {
            (0_u32..).find(|tag| slot_of(tag.to_string().as_bytes()) == slot).expect("decimals reach every slot")
        });
        let segment = key.split_inclusive(|&byte| byte == b':').next().filter(|segment| segment.ends_with(b":"));
        let mut marker = segment.filter(|segment| !segment.contains(&b'{')).unwrap_or_default().to_vec();
        marker.extend_from_slice(format!("sync:{{{tag}}}").as_bytes());
        marker
    }

    /// How long a write on this node waits.
    pub(super) fn wait(&self, addr: &NodeAddr, durability: Durability) -> Duration {
        match durability.kept {
            Kept::ByReplicas(_) if self.alone().contains(addr) => durability.wait.min(ALONE_WAIT),
            Kept::ByReplicas(_) | Kept::OnDisk => durability.wait,
        }
    }

    /// Notes whether this node has a replica.
    pub(super) fn note_replicas(&self, addr: &NodeAddr, any: bool) {
        let mut alone = self.alone();
        if any {
            alone.remove(addr);
        } else if !alone.contains(addr) {
            alone.insert(addr.clone());
        }
    }

    fn alone(&self) -> MutexGuard<'_, HashSet<NodeAddr>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grant(&self, addr: &NodeAddr) -> Grant {
        let mut idle = self.idle();
        if let Some(at) = idle.iter().rposition(|own| own.addr == *addr) {
            return Grant::Idle(idle.remove(at));
        }
        // Even with a low limit, one durable call at a time is possible.
        let room = self.ceiling.saturating_sub(self.shared.count()).max(1);
        if self.open.count() >= room && !idle.is_empty() {
            idle.remove(0);
        }
        if self.open.count() < room { Grant::Open(Counted::one(&self.open)) } else { Grant::Full }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Own>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Grant {
    Idle(Own),
    Open(Counted),
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_lies_in_the_slot_of_its_key() {
        let dedicated = Dedicated::new(1, 0, Arc::default());
        for key in [&b"a:job:1"[..], b"a:job:{2}", b"{a:b}:c", b"plain", b"", b"x:"] {
            let marker = dedicated.marker(key);
            assert_eq!(slot_of(&marker), slot_of(key));
            assert_eq!(dedicated.marker(key), marker);
        }
        assert!(dedicated.marker(b"a:job:1").starts_with(b"a:sync:{"));
        assert!(dedicated.marker(b"{a:b}:c").starts_with(b"sync:{"));
    }
}
