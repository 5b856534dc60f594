//! Every key there is. A [`Key`] can be built here only, so no other file knows the prefix.

use muster_domain::{JobId, Priority, RequestId, Tenant, Topic, WorkerId};

/// A key in Redis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Vec<u8>);

impl Key {
    fn new(text: String) -> Key {
        Key(text.into_bytes())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, given away.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A job's hash.
pub(crate) fn job(id: JobId) -> Key {
    Key::new(format!("muster:job:{id}"))
}

/// One shard of the jobs' homes.
pub(crate) fn homes(shard: u8) -> Key {
    Key::new(format!("muster:due:job:{shard:x}"))
}

/// One priority of one topic's backlog.
pub(crate) fn queue(tenant: &Tenant, topic: &Topic, priority: Priority) -> Key {
    Key::new(format!("muster:queue:{tenant}:{topic}:{priority}"))
}

/// Ids of the jobs that a tenant created in ten minutes.
pub(crate) fn listing(tenant: &Tenant, bucket: u64) -> Key {
    Key::new(format!("muster:idx:{tenant}:{bucket}"))
}

/// Which of a tenant's listings exist.
pub(crate) fn buckets(tenant: &Tenant) -> Key {
    Key::new(format!("muster:idx:{tenant}:buckets"))
}

/// What an HTTP worker's request was given.
pub(crate) fn lease_note(tenant: &Tenant, worker: &WorkerId, request: &RequestId) -> Key {
    Key::new(format!("muster:lease:{tenant}:{}:{}", worker.own_name(), request.as_str()))
}

/// A rate limit's state.
pub(crate) fn rate(tenant: &Tenant, scope: &str) -> Key {
    Key::new(format!("muster:rl:{tenant}:{scope}"))
}

/// A tenant's jobs that ended badly.
pub(crate) fn dead_letters(tenant: &Tenant) -> Key {
    Key::new(format!("muster:dlq:{tenant}"))
}

/// A message that nobody could read.
pub(crate) fn dead_message(id: &str) -> Key {
    Key::new(format!("muster:dlq:message:{id}"))
}

/// An API key, hashed.
pub(crate) fn api_key(id: &str) -> Key {
    Key::new(format!("muster:auth:key:{id}"))
}

/// Ids of all API keys.
pub(crate) fn api_keys() -> Key {
    Key::new("muster:auth:keys".to_owned())
}

/// A lock that makes one replica the leader of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaderLock {
    /// The reconciler.
    Reconciler,
    /// The keeper of streams and consumers.
    Streams,
    /// The scrub.
    Scrub,
    /// The writer of the worker snapshot.
    Snapshot,
}

impl LeaderLock {
    /// The key's text, as operators type it.
    pub const fn as_str(self) -> &'static str {
        match self {
            LeaderLock::Reconciler => "muster:reconciler:default",
            LeaderLock::Streams => "muster:scheduler:streams",
            LeaderLock::Scrub => "muster:scheduler:scrub",
            LeaderLock::Snapshot => "muster:scheduler:snapshot:writer",
        }
    }
}

impl From<LeaderLock> for Key {
    fn from(lock: LeaderLock) -> Key {
        Key::new(lock.as_str().to_owned())
    }
}
