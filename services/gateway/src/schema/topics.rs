//! The shapes of topics.

use utoipa::ToSchema;

use super::Retry;

/// The settings of a topic. A field that is not given is not set.
#[derive(ToSchema)]
pub(crate) struct TopicSettings {
    /// How many jobs run at once.
    concurrency: Option<Concurrency>,
    /// How many jobs are released to workers per second, over all replicas.
    rate: Option<Rate>,
    /// How many jobs may wait; beyond that a submit is answered with 429 `backlog_full`.
    max_backlog: Option<u64>,
    /// The retry policy of jobs whose submit gives none.
    retry: Option<Retry>,
    /// The longest time of one attempt, for jobs whose submit gives none.
    timeout_ms: Option<u32>,
    /// The lease for workers that request none, 5,000 to 900,000.
    lease_ms: Option<u32>,
    /// How long ended jobs are kept.
    retention: Option<TopicRetention>,
    /// A JSON Schema that payloads must fit, at most 64 KiB. `$ref` may only lead into the schema itself, and never in
    /// a circle.
    schema: Option<serde_json::Value>,
    /// Whether workers of all tenants may take the jobs of every tenant's topic of this name. Only for the topic of
    /// tenant `default`, with a key for all tenants.
    shared: Option<bool>,
}

/// How many jobs run at once.
#[derive(ToSchema)]
pub(crate) struct Concurrency {
    /// How many jobs of the topic run at once.
    max: Option<u32>,
    /// How many jobs with the same `concurrency_key` run at once.
    per_key: Option<u32>,
}

/// How many jobs are released to workers.
#[derive(ToSchema)]
pub(crate) struct Rate {
    /// Jobs per second; may be a fraction.
    per_s: f64,
    /// Jobs at once; by default as many as in one second.
    burst: Option<u32>,
}

/// How long ended jobs are kept, at least 20 minutes.
#[derive(ToSchema)]
pub(crate) struct TopicRetention {
    /// For jobs that succeeded or were cancelled.
    succeeded_ms: Option<u64>,
    /// For jobs that ended badly.
    failed_ms: Option<u64>,
}

/// A topic in a list: its settings, and the number of its workers.
#[derive(ToSchema)]
pub(crate) struct ListedTopic {
    /// The name of the topic.
    topic: String,
    /// The tenant that owns the topic.
    tenant: String,
    /// Whether the topic has stored settings.
    declared: bool,
    /// The version of the settings, as in the `ETag`; 0 if there are none.
    version: u64,
    /// When the settings were last written.
    updated_at: Option<String>,
    /// Whether the topic is paused, so that its jobs wait.
    paused: bool,
    /// When, by which key and why the topic was paused.
    pause: Option<Pause>,
    /// The settings.
    #[schema(inline)]
    #[serde(flatten)]
    settings: TopicSettings,
    /// How many live workers take jobs of the topic.
    workers: u64,
}

/// A topic: its settings and its numbers.
#[derive(ToSchema)]
pub(crate) struct Topic {
    /// The same as in a list.
    #[serde(flatten)]
    listed: ListedTopic,
    /// How many jobs wait, whatever they require: in the backlog, and offered to workers.
    backlog: u64,
    /// How many jobs more workers could run now: the backlog, less the jobs that a pause, a rate or a limit holds back,
    /// and less those that no live worker fits. Scale workers on this number.
    runnable: u64,
    /// How long the oldest job has been waiting.
    oldest_age_ms: Option<u64>,
    /// The number of jobs by state.
    counts: TopicCounts,
}

/// The number of waiting jobs by state.
#[derive(ToSchema)]
pub(crate) struct TopicCounts {
    /// Jobs in the backlog.
    queued: u64,
    /// Messages with offers on the bus; a message of a busy topic has several offers.
    dispatched: Option<u64>,
}

/// The pause of a topic.
#[derive(ToSchema)]
pub(crate) struct Pause {
    /// When the pause began.
    since: String,
    /// The id of the key that paused it.
    by: String,
    /// The reason, for people.
    reason: Option<String>,
}

/// A list of topics, without the numbers that need a call for each topic.
#[derive(ToSchema)]
pub(crate) struct TopicList {
    /// The topics, in the order of their names.
    items: Vec<ListedTopic>,
}
