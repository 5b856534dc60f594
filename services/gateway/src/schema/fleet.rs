//! The shapes of workers, replicas, loops and locks.

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// Live workers.
#[derive(ToSchema)]
pub(crate) struct WorkerList {
    /// When the list was written; absent if no scheduler writes one at the moment.
    as_of: Option<String>,
    /// The workers, in the order of their names.
    items: Vec<WorkerView>,
}

/// A live worker.
#[derive(ToSchema)]
pub(crate) struct WorkerView {
    /// The name that the worker gave itself.
    id: String,
    /// The tenant whose jobs it runs.
    tenant: String,
    /// True if it runs the jobs of all tenants on shared topics; otherwise absent.
    all_tenants: Option<bool>,
    /// Its topics, as far as the key covers them.
    topics: Vec<String>,
    /// How many jobs it can run at once.
    slots: u32,
    /// How many jobs it runs now.
    busy: u32,
    /// False if it sends heartbeats but takes no work: it drains, or its loop hangs.
    healthy: bool,
    /// The version of its software, if it reports one.
    version: Option<String>,
    /// What it provides.
    labels: BTreeMap<String, String>,
    /// When its last heartbeat arrived.
    last_seen: String,
}

/// A worker that was told to drain.
#[derive(ToSchema)]
pub(crate) struct Drained {
    /// The name of the worker.
    id: String,
    /// Always true.
    draining: bool,
}

/// Replicas.
#[derive(ToSchema)]
pub(crate) struct ReplicaList {
    /// The replicas, by service and name.
    items: Vec<ReplicaView>,
}

/// A replica of a service.
#[derive(ToSchema)]
pub(crate) struct ReplicaView {
    /// `muster-gateway` or `muster-scheduler`.
    service: String,
    /// The name of the replica.
    instance: String,
    /// The version of the software.
    version: String,
    /// The address of its admin port.
    admin: String,
    /// When the replica started.
    started_at: String,
    /// When it last announced itself; it leaves the list after 15 s.
    seen_at: String,
    /// How many loops it has.
    loops: u64,
    /// The loops that it leads, as it reports.
    leads: Vec<String>,
    /// The leader locks that it holds now, by Redis.
    holds: Vec<HeldLock>,
    /// The jobs about which it asks a decider, and whose locks it holds.
    deciding: Vec<String>,
}

/// A leader lock that a replica holds.
#[derive(ToSchema)]
pub(crate) struct HeldLock {
    /// The loop of the lock.
    r#loop: String,
    /// The key in Redis.
    lock: String,
    /// Grows with every new holder.
    fence: u64,
    /// Since when the replica holds the lock, by the clock of Redis.
    since: String,
}

/// Loops.
#[derive(ToSchema)]
pub(crate) struct LoopList {
    /// The loops, by name, service and replica.
    items: Vec<LoopView>,
}

/// A loop on one replica, as the replica reported it at `said_at`.
#[derive(ToSchema)]
pub(crate) struct LoopView {
    /// The name of the loop.
    r#loop: String,
    /// The service that has the loop.
    service: String,
    /// The name of the replica.
    instance: String,
    /// `leader`, `claim` or `idempotent`.
    class: String,
    /// Why any number of replicas may run the loop.
    why_safe: String,
    /// What it costs if two replicas do the same work.
    duplicate_costs: String,
    /// `leading` or `standby`; `active` for loops that need no leader; `not_started`.
    state: String,
    /// The leader lock.
    lock: Option<String>,
    /// The replica that holds the lock now.
    holder: Option<String>,
    /// For a loop with a lock for each shard: the shards whose locks this replica holds.
    shards: Option<Vec<u8>>,
    /// Grows with every new holder.
    fence: Option<u64>,
    /// Since when the holder has the lock, by the clock of Redis; for a loop without a lock, since when it runs here.
    since: Option<String>,
    /// The time between two ticks if no hint wakes the loop.
    interval_ms: u64,
    /// How long a tick should take at most.
    budget_ms: u64,
    /// How many ticks there were.
    ticks: u64,
    /// How many hints arrived while another one was waiting.
    merged_hints: u64,
    /// How long the current tick has been running.
    running_for_ms: Option<u64>,
    /// When the last tick began.
    last_tick_at: Option<String>,
    /// How long the last tick took.
    last_took_ms: Option<u64>,
    /// The outcome of the last tick: `ok`, `overrun`, `error`, `panic` or `lease_lost`.
    outcome: Option<String>,
    /// Why the last tick failed.
    error: Option<String>,
    /// What the last tick did.
    counts: Option<BTreeMap<String, u64>>,
    /// When the next tick is due.
    next_tick_at: Option<String>,
    /// When the replica reported this.
    said_at: String,
}

/// Locks.
#[derive(ToSchema)]
pub(crate) struct LockList {
    /// All leader locks, then the locks of jobs, the one that is held longest first.
    items: Vec<LockView>,
}

/// A leader lock, or the lock of a job about which a decider is asked.
#[derive(ToSchema)]
pub(crate) struct LockView {
    /// The key in Redis.
    key: String,
    /// The job; absent for a leader lock.
    job_id: Option<String>,
    /// Whether a replica holds the lock.
    held: bool,
    /// The replica that holds the lock.
    holder: Option<String>,
    /// The value of the key: the holder with a token that is new with each start of the replica.
    owner: Option<String>,
    /// Grows with every new holder.
    fence: Option<u64>,
    /// Since when the lock is held, by the clock of Redis.
    since: Option<String>,
    /// How long the lock lasts unless it is renewed.
    ttl_ms: Option<u64>,
}
