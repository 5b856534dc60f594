//! The live workers as one scheduler saw them: one string, so that every gateway shows the same.
//!
//! A snapshot was written as a whole by one replica; a snapshot that is not renewed vanishes by its time to live. The
//! leader of a loop writes it, and the gateway decides which workers a caller may see.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::Time;
use serde::{Deserialize, Serialize};

use crate::{LeaderLock, Lease, Store, StoreError, keys, router::Command};

/// A worker whose heartbeat arrived lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSeen {
    /// The worker's name on the bus.
    pub id: String,
    /// The tenant whose jobs the worker runs.
    pub tenant: String,
    /// On shared topics the worker runs the jobs of every tenant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_tenants: bool,
    /// The topics that the worker takes.
    pub topics: Vec<String>,
    /// How many jobs the worker runs at once.
    pub slots: u32,
    /// How many of these slots are taken.
    pub busy: u32,
    /// Whether the worker takes work; a worker may send heartbeats while its loop hangs.
    pub healthy: bool,
    /// The version of the worker's software.
    pub version: String,
    /// The labels that the worker provides.
    pub labels: BTreeMap<String, String>,
    /// When the last heartbeat arrived.
    #[serde(with = "as_micros")]
    pub last_seen: Time,
}

impl WorkerSeen {
    /// Whether the worker runs jobs of this tenant, on a topic that is shared by all tenants or not.
    pub fn serves(&self, tenant: &str, shared: bool) -> bool {
        self.tenant == tenant || (shared && self.all_tenants)
    }

    /// Whether the worker runs jobs of this topic.
    pub fn takes(&self, topic: &str) -> bool {
        self.topics.iter().any(|taken| taken == topic)
    }
}

/// All live workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSnapshot {
    /// When the snapshot was taken.
    #[serde(with = "as_micros")]
    pub at: Time,
    /// The workers in the order of tenant and name.
    pub workers: Vec<WorkerSeen>,
}

pub(crate) mod as_micros {
    use muster_domain::Time;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        u64::deserialize(from).map(Time)
    }
}

impl Store {
    /// Replaces the snapshot in one write; it vanishes after `ttl` unless it is replaced again.
    ///
    /// Only a leader may call it:
    /// ```
    /// # use muster_store::{Lease, Store, WorkerSnapshot};
    /// async fn tick(store: &Store, lease: &Lease, seen: &WorkerSnapshot, ttl: std::time::Duration) {
    ///     store.put_workers(lease, seen, ttl).await;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0061
    /// # use muster_store::{Store, WorkerSnapshot};
    /// async fn tick(store: &Store, seen: &WorkerSnapshot, ttl: std::time::Duration) {
    ///     store.put_workers(seen, ttl).await;
    /// }
    /// ```
    pub async fn put_workers(&self, lease: &Lease, snapshot: &WorkerSnapshot, ttl: Duration) -> Result<(), StoreError> {
        lease.leads(LeaderLock::Snapshot)?;
        let text = serde_json::to_vec(snapshot).map_err(|fault| StoreError::Decode(fault.to_string()))?;
        let key = keys::worker_snapshot();
        let mut set = redis::cmd("SET");
        set.arg(key.as_bytes()).arg(text).arg("PX").arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self.router().call(Command::plain(set)).await.map(|_| ())
    }

    /// The snapshot; none if none was written lately.
    pub async fn read_workers(&self) -> Result<Option<WorkerSnapshot>, StoreError> {
        let key = keys::worker_snapshot();
        let mut get = redis::cmd("GET");
        get.arg(key.as_bytes());
        match self.router().call(Command::plain(get)).await? {
            redis::Value::Nil => Ok(None),
            value => serde_json::from_slice(&crate::script::bytes(value)?)
                .map(Some)
                .map_err(|fault| StoreError::Decode(format!("the worker snapshot: {fault}"))),
        }
    }
}
