//! All keys. A [`Key`] can be built only here, so no other file knows the prefix.

use muster_domain::{
    JobId, Line, OperationId, Priority, RequestId, RunId, Tenant, Topic, WorkerId, WorkflowName, slot::Limit,
};

use crate::{
    home_kind::HomeKind,
    place::{Bucket, Listing},
};

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

    /// The bytes, by value.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Keys that the operator's CLI uses by name. It must not use this crate, so `muster-codegen` copies this block
/// to `tools/muster/src/redis/keys.rs`.
pub(crate) mod operator {
    /// In front of every key of Muster, with a colon behind it.
    #[expect(dead_code, reason = "the CLI counts keys by the word behind it; here each key is spelled whole")]
    pub(crate) const PREFIX: &str = "muster";
    /// The format of all that is stored.
    pub(crate) const FORMAT: &str = "muster:meta:version";
    /// A hash: when the data was last backed up.
    pub(crate) const BACKUP: &str = "muster:meta:backup";
    /// How far the schedulers have read the bus again. Without it they read all that the bus keeps.
    pub(crate) const REREAD_MARK: &str = "muster:scheduler:reread:mark";
    /// The same for operations on runs.
    pub(crate) const RUN_REREAD_MARK: &str = "muster:workflow-engine:reread:mark";
}

/// A job's hash.
pub(crate) fn job(id: JobId) -> Key {
    Key(id.text_within("muster:job:", ""))
}

/// The pattern that every job's hash matches, for a scan over all of them.
pub(crate) const ALL_JOBS: &str = "muster:job:*";

/// The job that this hash belongs to.
pub(crate) fn job_of(key: &[u8]) -> Option<JobId> {
    std::str::from_utf8(key).ok()?.strip_prefix("muster:job:")?.parse().ok()
}

/// One shard of the homes of one kind.
pub(crate) fn homes(kind: HomeKind, shard: u8) -> Key {
    let kind = match kind {
        HomeKind::Job => "job",
        HomeKind::Run => "run",
        HomeKind::Schedule => "schedule",
    };
    Key::new(format!("muster:due:{kind}:{shard:x}"))
}

/// One priority of the backlog of a topic, or of one of its lines.
pub(crate) fn queue(tenant: &Tenant, line: &Line, priority: Priority) -> Key {
    Key::new(format!("muster:queue:{tenant}:{line}:{priority}"))
}

/// The lines that a topic has besides the one without requirements, scored by when they were last noted.
pub(crate) fn lines(tenant: &Tenant, topic: &Topic) -> Key {
    Key::new(format!("muster:lines:{tenant}:{topic}"))
}

/// The ids of the jobs or runs that a tenant created in ten minutes, or of some of them.
pub(crate) fn listing(of: Listing, tenant: &Tenant, bucket: Bucket) -> Key {
    Key::new(format!("muster:idx:{}{tenant}:{bucket}", of.infix()))
}

/// The existing listings of a tenant, scored by their ten minutes.
pub(crate) fn buckets(of: Listing, tenant: &Tenant) -> Key {
    Key::new(format!("muster:idx:{}{tenant}:buckets", of.infix()))
}

/// When retention checks the tenant's listings again that it has checked and kept.
pub(crate) fn kept_buckets(tenant: &Tenant) -> Key {
    Key::new(format!("muster:idx:{tenant}:kept"))
}

/// The tenants that have listings.
pub(crate) fn listed_tenants(of: Listing) -> Key {
    Key::new(format!("muster:idx:{}tenants", of.infix()))
}

/// A run's hash.
pub(crate) fn run(id: RunId) -> Key {
    Key(id.text_within("muster:wf:run:", ""))
}

/// The pattern that every run's hash matches, for a scan over all of them.
pub(crate) const ALL_RUNS: &str = "muster:wf:run:*";

/// The run that this hash belongs to.
pub(crate) fn run_of(key: &[u8]) -> Option<RunId> {
    std::str::from_utf8(key).ok()?.strip_prefix("muster:wf:run:")?.parse().ok()
}

/// What happened in a run.
pub(crate) fn timeline(id: RunId) -> Key {
    Key(id.text_within("muster:wf:timeline:", ""))
}

/// The versions of a workflow's definition.
pub(crate) fn definition(tenant: &Tenant, name: &WorkflowName) -> Key {
    Key::new(format!("muster:wf:def:{tenant}:{name}"))
}

/// The names of a tenant's workflows.
pub(crate) fn definitions(tenant: &Tenant) -> Key {
    Key::new(format!("muster:wf:defs:{tenant}"))
}

/// The leases that an HTTP worker's request was given.
pub(crate) fn lease_note(tenant: &Tenant, worker: &WorkerId, request: &RequestId) -> Key {
    Key::new(format!("muster:lease:{tenant}:{}:{}", worker.own_name(), request.as_str()))
}

/// The holders of slots of a concurrency limit, and the jobs that wait for one.
pub(crate) fn slots(tenant: &Tenant, limit: &Limit) -> Key {
    match limit {
        Limit::Key(key) => Key::new(format!("muster:slots:{tenant}:{key}")),
        // A separate prefix, because a concurrency key may have any name.
        Limit::Topic(topic) => Key::new(format!("muster:places:{tenant}:{topic}")),
    }
}

/// The holders of slots of a workflow's concurrency, and the runs that wait for one. A separate prefix, because a job's
/// concurrency key may have any name.
pub(crate) fn run_slots(tenant: &Tenant, workflow: &WorkflowName, key: &str) -> Key {
    Key::new(format!("muster:wf:slots:{tenant}:{workflow}:{key}"))
}

/// A mark that an HTTP worker should leave; such a worker learns it when it asks for work.
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
        // A tenant's name may collide with the key of the retention's lock.
        taken if taken == LeaderLock::Retention.as_str() => Key::new(format!("{taken}:jobs")),
        free => Key::new(free),
    }
}

/// A message that could not be read.
pub(crate) fn dead_message(id: &str) -> Key {
    Key::new(format!("muster:dlq:message:{id}"))
}

/// The ids of the unreadable messages, by time. Two colons: no tenant can have that name.
pub(crate) fn dead_messages() -> Key {
    Key::new("muster:dlq:messages:all".to_owned())
}

/// A bulk operation.
pub(crate) fn operation(id: OperationId) -> Key {
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

/// The result of the last complete scrub.
pub(crate) fn scrub_pass() -> Key {
    Key::new("muster:scheduler:scrub:pass".to_owned())
}

/// The life of each primary that the last reread of operations on runs saw.
pub(crate) fn run_reread_mark() -> Key {
    Key::new(operator::RUN_REREAD_MARK.to_owned())
}

/// The life of each primary that the last reread saw.
pub(crate) fn reread_mark() -> Key {
    Key::new(operator::REREAD_MARK.to_owned())
}

/// The live workers, as the leader of the snapshot saw them.
pub(crate) fn worker_snapshot() -> Key {
    Key::new("muster:workers:snapshot".to_owned())
}

/// The announcement of a replica.
pub(crate) fn replica(service: &str, instance: &str) -> Key {
    Key::new(format!("muster:replica:{service}:{instance}"))
}

/// Names of the replicas, scored by the time of their last announcement.
pub(crate) fn replicas() -> Key {
    Key::new("muster:replicas".to_owned())
}

/// The lock that a scheduler holds on a job while it asks the decider about it.
pub(crate) fn deciding(id: JobId) -> Key {
    Key::new(format!("{DECIDING}:{id}"))
}

/// The name of those locks where ids do not belong.
pub(crate) const DECIDING: &str = "muster:scheduler:job";

/// The settings of a topic.
pub(crate) fn topic(tenant: &Tenant, topic: &Topic) -> Key {
    Key::new(format!("muster:topic:{tenant}:{topic}"))
}

/// Names of the topics that have settings, scored by the time of the last change.
pub(crate) fn topics() -> Key {
    Key::new("muster:topics".to_owned())
}

/// The run-time settings of all replicas.
pub(crate) fn config(scope: &str) -> Key {
    Key::new(format!("muster:config:{scope}"))
}

/// The format of all stored data.
pub(crate) fn format() -> Key {
    Key::new(operator::FORMAT.to_owned())
}

/// A mark that Redis lacked jobs that the streams remembered, kept for a while after it was found.
pub(crate) fn emptied() -> Key {
    Key::new("muster:meta:emptied".to_owned())
}

/// When the data was last backed up.
pub(crate) fn backup() -> Key {
    Key::new(operator::BACKUP.to_owned())
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
    /// The loop that reads the bus again.
    Reread,
    /// The loop that reads operations on runs again.
    RunReread,
    /// The writer of the worker snapshot.
    Snapshot,
    /// The retention of records, listings and dead letters.
    Retention,
}

impl LeaderLock {
    /// All locks.
    pub const ALL: [LeaderLock; 7] = [
        LeaderLock::Reconciler,
        LeaderLock::Streams,
        LeaderLock::Scrub,
        LeaderLock::Reread,
        LeaderLock::RunReread,
        LeaderLock::Snapshot,
        LeaderLock::Retention,
    ];

    /// The lock with this key.
    pub const fn named(text: &str) -> Option<LeaderLock> {
        let mut n = 0;
        while n < LeaderLock::ALL.len() {
            if same(LeaderLock::ALL[n].as_str().as_bytes(), text.as_bytes()) {
                return Some(LeaderLock::ALL[n]);
            }
            n += 1;
        }
        None
    }

    /// The text of the key, as operators type it.
    pub const fn as_str(self) -> &'static str {
        match self {
            LeaderLock::Reconciler => "muster:reconciler:default",
            LeaderLock::Streams => "muster:scheduler:streams",
            LeaderLock::Scrub => "muster:scheduler:scrub",
            LeaderLock::Reread => "muster:scheduler:reread",
            LeaderLock::RunReread => "muster:workflow-engine:reread",
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

/// A lock that exists once for each home shard: 16 leaders of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShardedLock {
    /// The owners of workflow runs.
    Runs,
    /// The owners of schedules.
    Schedules,
}

impl ShardedLock {
    /// All locks.
    pub const ALL: [ShardedLock; 2] = [ShardedLock::Runs, ShardedLock::Schedules];

    /// The lock with keys of this text.
    pub const fn named(text: &str) -> Option<ShardedLock> {
        let mut n = 0;
        while n < ShardedLock::ALL.len() {
            if same(ShardedLock::ALL[n].as_str().as_bytes(), text.as_bytes()) {
                return Some(ShardedLock::ALL[n]);
            }
            n += 1;
        }
        None
    }

    /// The text of the keys, as in docs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            ShardedLock::Runs => "muster:workflow-engine:reconciler:<shard>",
            ShardedLock::Schedules => "muster:workflow-engine:schedules:<shard>",
        }
    }

    /// The lock of one shard.
    pub(crate) fn of(self, shard: u8) -> Key {
        Key::new(self.as_str().replace("<shard>", &format!("{shard:x}")))
    }

    /// The set of replicas that share the shards.
    pub(crate) fn members(self) -> Key {
        Key::new(self.as_str().replace("<shard>", "replicas"))
    }
}

/// Whether both are equal, at compile time.
const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut n = 0;
    while n < one.len() && one[n] == other[n] {
        n += 1;
    }
    n == one.len()
}
