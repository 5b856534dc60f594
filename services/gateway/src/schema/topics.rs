//! The shapes of topics.

use utoipa::ToSchema;

use super::Retry;

/// What a topic is told. What is not given is not set.
#[derive(ToSchema)]
pub(crate) struct TopicSettings {
    /// How many jobs run at once.
    concurrency: Option<Concurrency>,
    /// How many jobs are released to workers per second, over all replicas.
    rate: Option<Rate>,
    /// So many jobs may wait; past it a submit gets 429 `backlog_full`.
    max_backlog: Option<u64>,
    /// For jobs whose submit says nothing.
    retry: Option<Retry>,
    /// Longest time of one attempt, for jobs whose submit says nothing.
    timeout_ms: Option<u32>,
    /// For workers that ask for no lease of their own; 5,000 to 900,000.
    lease_ms: Option<u32>,
    /// How long ended jobs are kept.
    retention: Option<TopicRetention>,
    /// A JSON Schema that payloads must fit, 64 KiB at most. `$ref` only into itself, and never in a circle.
    schema: Option<serde_json::Value>,
    /// Workers of all tenants may take the jobs of every tenant's topic of this name. Only for the topic of
    /// tenant `default`, with a key of all tenants.
    shared: Option<bool>,
}

/// How many jobs run at once.
#[derive(ToSchema)]
pub(crate) struct Concurrency {
    /// In all.
    max: Option<u32>,
    /// With the same `concurrency_key`.
    per_key: Option<u32>,
}

/// How many jobs are released.
#[derive(ToSchema)]
pub(crate) struct Rate {
    /// Per second; may be a fraction.
    per_s: f64,
    /// At once; a second's worth unless given.
    burst: Option<u32>,
}

/// How long ended jobs are kept, at least 20 minutes.
#[derive(ToSchema)]
pub(crate) struct TopicRetention {
    /// Those that succeeded or were cancelled.
    succeeded_ms: Option<u64>,
    /// Those that ended badly.
    failed_ms: Option<u64>,
}

/// A topic in a list: what it was told, and who takes it.
#[derive(ToSchema)]
pub(crate) struct ListedTopic {
    /// Its name.
    topic: String,
    /// The tenant that owns the topic.
    tenant: String,
    /// Whether it was ever told anything.
    declared: bool,
    /// Of its settings, as in the `ETag`; 0 if there are none.
    version: u64,
    /// When they were last written.
    updated_at: Option<String>,
    /// Its jobs wait.
    paused: bool,
    /// Since when, by whom and why.
    pause: Option<Pause>,
    /// Its settings.
    #[schema(inline)]
    #[serde(flatten)]
    settings: TopicSettings,
    /// Live workers that take it.
    workers: u64,
}

/// A topic: what it was told, and how it is doing.
#[derive(ToSchema)]
pub(crate) struct Topic {
    /// As in a list.
    #[serde(flatten)]
    listed: ListedTopic,
    /// How many jobs wait, whatever they require: queued, and offered to workers.
    backlog: u64,
    /// That, less what a pause, a rate or a limit holds back, and what no live worker fits: scale workers on this.
    runnable: u64,
    /// Of the job that waits longest in the backlog.
    oldest_age_ms: Option<u64>,
    /// By state, as far as one question tells.
    counts: TopicCounts,
}

/// Jobs by state.
#[derive(ToSchema)]
pub(crate) struct TopicCounts {
    /// In the backlog.
    queued: u64,
    /// Offered on the bus, in messages: busy topics put several offers into one.
    dispatched: Option<u64>,
}

/// Who paused a topic.
#[derive(ToSchema)]
pub(crate) struct Pause {
    /// When the pause began.
    since: String,
    /// The id of the key.
    by: String,
    /// For people.
    reason: Option<String>,
}

/// Topics, without the numbers that each would have to be asked for.
#[derive(ToSchema)]
pub(crate) struct TopicList {
    /// In the order of their names.
    items: Vec<ListedTopic>,
}
