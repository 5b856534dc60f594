//! Every key there is. A [`Key`] can be built here only, so no other file knows the prefix.

use muster_domain::{JobId, Line, Priority, RequestId, Tenant, Topic, WorkerId, slot::Limit};

use crate::lists::Bucket;

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
    Key(id.text_within("muster:job:", ""))
}

/// What every job's hash matches, for a walk over all of them.
pub(crate) const ALL_JOBS: &str = "muster:job:*";

/// Whose hash this is.
pub(crate) fn job_of(key: &[u8]) -> Option<JobId> {
    std::str::from_utf8(key).ok()?.strip_prefix("muster:job:")?.parse().ok()
}

/// One shard of the jobs' homes.
pub(crate) fn homes(shard: u8) -> Key {
    Key::new(format!("muster:due:job:{shard:x}"))
}

/// One priority of the backlog of a topic, or of one of its lines.
pub(crate) fn queue(tenant: &Tenant, line: &Line, priority: Priority) -> Key {
    Key::new(format!("muster:queue:{tenant}:{line}:{priority}"))
}

/// Which lines a topic has beside its plain one, scored by when they were last noted.
pub(crate) fn lines(tenant: &Tenant, topic: &Topic) -> Key {
    Key::new(format!("muster:lines:{tenant}:{topic}"))
}

/// Ids of the jobs that a tenant created in ten minutes, or of some of them.
pub(crate) fn listing(tenant: &Tenant, bucket: Bucket) -> Key {
    Key::new(format!("muster:idx:{tenant}:{bucket}"))
}

/// Which of a tenant's listings exist, scored by their ten minutes.
pub(crate) fn buckets(tenant: &Tenant) -> Key {
    Key::new(format!("muster:idx:{tenant}:buckets"))
}

/// When retention looks next at those of a tenant's listings that it has looked at and kept.
pub(crate) fn kept_buckets(tenant: &Tenant) -> Key {
    Key::new(format!("muster:idx:{tenant}:kept"))
}

/// Whose listings exist.
pub(crate) fn listed_tenants() -> Key {
    Key::new("muster:idx:tenants".to_owned())
}

/// What an HTTP worker's request was given.
pub(crate) fn lease_note(tenant: &Tenant, worker: &WorkerId, request: &RequestId) -> Key {
    Key::new(format!("muster:lease:{tenant}:{}:{}", worker.own_name(), request.as_str()))
}

/// Who holds a slot of a concurrency limit, and who waits for one.
pub(crate) fn slots(tenant: &Tenant, limit: &Limit) -> Key {
    match limit {
        Limit::Key(key) => Key::new(format!("muster:slots:{tenant}:{key}")),
        // Apart, because a concurrency key may have any name.
        Limit::Topic(topic) => Key::new(format!("muster:places:{tenant}:{topic}")),
    }
}

/// Told to leave: a worker that only hears when it asks.
pub(crate) fn drain(worker: &WorkerId) -> Key {
    Key::new(format!("muster:drain:{worker}"))
}

/// A rate limit's state.
pub(crate) fn rate(tenant: &Tenant, scope: &str) -> Key {
    Key::new(format!("muster:rl:{tenant}:{scope}"))
}

/// A tenant's jobs that ended badly.
pub(crate) fn dead_letters(tenant: &Tenant) -> Key {
    match format!("muster:dlq:{tenant}") {
        // A tenant may have the name that the retention's lock has there.
        taken if taken == LeaderLock::Retention.as_str() => Key::new(format!("{taken}:jobs")),
        free => Key::new(free),
    }
}

/// A message that nobody could read.
pub(crate) fn dead_message(id: &str) -> Key {
    Key::new(format!("muster:dlq:message:{id}"))
}

/// Which unreadable messages there are, by time. Two colons: no tenant can have that name.
pub(crate) fn dead_messages() -> Key {
    Key::new("muster:dlq:messages:all".to_owned())
}

/// A bulk operation.
pub(crate) fn operation(id: JobId) -> Key {
    Key::new(format!("muster:operation:{id}"))
}

/// Ids of the bulk operations that may need a carrier, by time.
pub(crate) fn open_operations() -> Key {
    Key::new("muster:operation:open".to_owned())
}

/// Ids of a tenant's bulk operations, by time.
pub(crate) fn operations(tenant: &Tenant) -> Key {
    Key::new(format!("muster:operations:{tenant}"))
}

/// An API key, hashed.
pub(crate) fn api_key(id: &str) -> Key {
    Key::new(format!("muster:auth:key:{id}"))
}

/// Ids of all API keys.
pub(crate) fn api_keys() -> Key {
    Key::new("muster:auth:keys".to_owned())
}

/// The audit log.
pub(crate) fn audit() -> Key {
    Key::new("muster:audit".to_owned())
}

/// What the last complete scrub found.
pub(crate) fn scrub_pass() -> Key {
    Key::new("muster:scheduler:scrub:pass".to_owned())
}

/// Which life of each primary the last look at them met.
pub(crate) fn reread_mark() -> Key {
    Key::new("muster:scheduler:reread:mark".to_owned())
}

/// The live workers, as the leader of the snapshot saw them.
pub(crate) fn worker_snapshot() -> Key {
    Key::new("muster:workers:snapshot".to_owned())
}

/// What a replica says about itself.
pub(crate) fn replica(service: &str, instance: &str) -> Key {
    Key::new(format!("muster:replica:{service}:{instance}"))
}

/// Names of the replicas, scored by when they last spoke.
pub(crate) fn replicas() -> Key {
    Key::new("muster:replicas".to_owned())
}

/// The lock that a scheduler holds while it decides about a job and has to ask somebody else.
pub(crate) fn deciding(id: JobId) -> Key {
    Key::new(format!("{DECIDING}:{id}"))
}

/// What those locks are called where ids do not belong.
pub(crate) const DECIDING: &str = "muster:scheduler:job";

/// What a topic was told.
pub(crate) fn topic(tenant: &Tenant, topic: &Topic) -> Key {
    Key::new(format!("muster:topic:{tenant}:{topic}"))
}

/// Names of the topics that were told something, scored by when.
pub(crate) fn topics() -> Key {
    Key::new("muster:topics".to_owned())
}

/// What all replicas were told.
pub(crate) fn config(scope: &str) -> Key {
    Key::new(format!("muster:config:{scope}"))
}

/// The format of all that is stored.
pub(crate) fn format() -> Key {
    Key::new("muster:meta:version".to_owned())
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
    /// Who reads again what the bus kept.
    Reread,
    /// The writer of the worker snapshot.
    Snapshot,
    /// The retention of records, listings and dead letters.
    Retention,
}

impl LeaderLock {
    /// All of them.
    pub const ALL: [LeaderLock; 6] = [
        LeaderLock::Reconciler,
        LeaderLock::Streams,
        LeaderLock::Scrub,
        LeaderLock::Reread,
        LeaderLock::Snapshot,
        LeaderLock::Retention,
    ];

    /// The key's text, as operators type it.
    pub const fn as_str(self) -> &'static str {
        match self {
            LeaderLock::Reconciler => "muster:reconciler:default",
            LeaderLock::Streams => "muster:scheduler:streams",
            LeaderLock::Scrub => "muster:scheduler:scrub",
            LeaderLock::Reread => "muster:scheduler:reread",
            LeaderLock::Snapshot => "muster:scheduler:snapshot:writer",
            LeaderLock::Retention => "muster:dlq:cleanup",
        }
    }
}

impl From<LeaderLock> for Key {
    fn from(lock: LeaderLock) -> Key {
        Key::new(lock.as_str().to_owned())
    }
}
