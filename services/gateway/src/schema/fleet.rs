//! The shapes of workers, replicas, loops and locks.

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// Live workers.
#[derive(ToSchema)]
pub(crate) struct WorkerList {
    /// When the list was written; absent if nobody writes one at the moment.
    as_of: Option<String>,
    /// In the order of their names.
    items: Vec<WorkerView>,
}

/// A worker that was heard of lately.
#[derive(ToSchema)]
pub(crate) struct WorkerView {
    /// As it calls itself.
    id: String,
    /// Whose jobs it runs.
    tenant: String,
    /// On shared topics it runs the jobs of every tenant; absent if not.
    all_tenants: Option<bool>,
    /// Of which topics, as far as the key may touch them.
    topics: Vec<String>,
    /// How many at once.
    slots: u32,
    /// How many of those are taken.
    busy: u32,
    /// False if it beats but takes no work: it drains, or its loop hangs.
    healthy: bool,
    /// Of the software, if it says so.
    version: Option<String>,
    /// What it says about itself.
    labels: BTreeMap<String, String>,
    /// When it was last heard.
    last_seen: String,
}

/// A worker that was told to leave.
#[derive(ToSchema)]
pub(crate) struct Drained {
    /// As it calls itself.
    id: String,
    /// Always true.
    draining: bool,
}

/// Replicas.
#[derive(ToSchema)]
pub(crate) struct ReplicaList {
    /// By service and name.
    items: Vec<ReplicaView>,
}

/// A replica of a service.
#[derive(ToSchema)]
pub(crate) struct ReplicaView {
    /// `muster-gateway` and so on.
    service: String,
    /// Its name.
    instance: String,
    /// Of the software.
    version: String,
    /// Where its admin port is.
    admin: String,
    /// Since when it runs.
    started_at: String,
    /// When it last said so; gone after 15 s.
    seen_at: String,
    /// How many loops it has.
    loops: u64,
    /// Which of them it leads, as it says itself.
    leads: Vec<String>,
    /// Which leaders' locks are its own, as Redis says now.
    holds: Vec<HeldLock>,
    /// Jobs that it asks somebody outside about, and holds the locks of.
    deciding: Vec<String>,
}

/// A leader's lock that a replica holds.
#[derive(ToSchema)]
pub(crate) struct HeldLock {
    /// Of which loop.
    r#loop: String,
    /// The key in Redis.
    lock: String,
    /// Grows with every new holder.
    fence: u64,
    /// Since when it holds it, by the clock of Redis.
    since: String,
}

/// Loops.
#[derive(ToSchema)]
pub(crate) struct LoopList {
    /// By loop, service and replica.
    items: Vec<LoopView>,
}

/// A loop on one replica, as the replica told it at `said_at`.
#[derive(ToSchema)]
pub(crate) struct LoopView {
    /// The name of the loop.
    r#loop: String,
    /// The service that has the loop.
    service: String,
    /// On which replica.
    instance: String,
    /// `leader`, `claim` or `idempotent`.
    class: String,
    /// Why any number of replicas may have it.
    why_safe: String,
    /// What it costs when two of them do the same.
    duplicate_costs: String,
    /// `leading` or `standby`; `active` for loops that need no leader; `not_started`.
    state: String,
    /// The leader's lock.
    lock: Option<String>,
    /// Which replica holds that now.
    holder: Option<String>,
    /// Of a loop with a lock for each shard: the shards whose locks this replica holds.
    shards: Option<Vec<u8>>,
    /// Grows with every new holder.
    fence: Option<u64>,
    /// Since when the holder has the lock, by the clock of Redis; of a loop without a lock, since when
    /// it runs here.
    since: Option<String>,
    /// How often it looks when nothing wakes it.
    interval_ms: u64,
    /// How long a tick should take at most.
    budget_ms: u64,
    /// How many there were.
    ticks: u64,
    /// Hints that came while one was waiting.
    merged_hints: u64,
    /// How long a tick has been running.
    running_for_ms: Option<u64>,
    /// When the last one began.
    last_tick_at: Option<String>,
    /// How long it took.
    last_took_ms: Option<u64>,
    /// `ok`, `overrun`, `error`, `panic` or `lease_lost`.
    outcome: Option<String>,
    /// Why it failed.
    error: Option<String>,
    /// What it did.
    counts: Option<BTreeMap<String, u64>>,
    /// When the next is due.
    next_tick_at: Option<String>,
    /// When the replica told all this.
    said_at: String,
}

/// Locks.
#[derive(ToSchema)]
pub(crate) struct LockList {
    /// All leaders' locks, then those on jobs, the one that is held longest first.
    items: Vec<LockView>,
}

/// A leader's lock, or one on a job that somebody outside is being asked about.
#[derive(ToSchema)]
pub(crate) struct LockView {
    /// The key in Redis.
    key: String,
    /// Which job is decided about under it; absent if it is a leader's.
    job_id: Option<String>,
    /// Whether anybody holds it.
    held: bool,
    /// Which replica.
    holder: Option<String>,
    /// The same with the token of this life of it, as it stands in the key.
    owner: Option<String>,
    /// Grows with every new holder.
    fence: Option<u64>,
    /// Since when, by the clock of Redis.
    since: Option<String>,
    /// How long it lasts unless it is renewed.
    ttl_ms: Option<u64>,
}
