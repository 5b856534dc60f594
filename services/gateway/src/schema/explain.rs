//! The shape of an explanation.

use utoipa::ToSchema;

use super::JobError;

/// Why a job stands where it stands. Fields that do not apply are absent.
#[derive(ToSchema)]
pub(crate) struct Explanation {
    /// Which job.
    job_id: String,
    /// Where it stands.
    state: String,
    /// Whether it has ended.
    done: bool,
    /// Since when it stands there.
    since: String,
    /// When this was said.
    as_of: String,
    /// The first sentence.
    summary: String,
    /// Everything, for people.
    sentences: Vec<String>,
    /// `decision`, `time`, `approval`, `turn`, `resume`, `rate`, `limit`, `worker`, `result` or `nothing`.
    waits_for: String,
    /// Not before.
    may_start_at: Option<String>,
    /// The same, where an attempt failed before.
    next_retry_at: Option<String>,
    /// Expires if not started by then.
    start_by: Option<String>,
    /// Over by.
    deadline: Option<String>,
    /// How often it was tried, and may be.
    attempts: AttemptsView,
    /// The worker that has it.
    holder: Option<HolderView>,
    /// The scheduler that asks somebody outside about it, of a job that is yet to be decided.
    asked_by: Option<String>,
    /// Who has the slots of its concurrency key, while it waits for one.
    concurrency: Option<SlotsView>,
    /// Who has the places of its topic, while it waits and the topic has a `concurrency.max`.
    topic_limit: Option<PlacesView>,
    /// Its place in the backlog.
    backlog: Option<BacklogPlace>,
    /// What stands on the bus for its topic, of a job that may have been offered without a word in its record.
    offers: Option<OffersView>,
    /// Who could run it, where that is known and it is yet to be started.
    workers: Option<ServingView>,
    /// What held it up, denied or cancelled it, where that said why.
    refused_by: Option<Refusal>,
    /// Why the last failed attempt failed.
    last_error: Option<JobError>,
    /// Who looks at it if nothing else happens.
    next_look: Option<NextLook>,
    /// The job that is its retry.
    retried_as: Option<String>,
}

/// Who has the slots of a concurrency key.
#[derive(ToSchema)]
pub(crate) struct SlotsView {
    /// The key.
    key: String,
    /// How many are taken.
    held: u64,
    /// How many wait for one.
    waiting: u64,
    /// The jobs that have one, 16 at most.
    held_by: Vec<String>,
}

/// Who has the places of a topic.
#[derive(ToSchema)]
pub(crate) struct PlacesView {
    /// How many there are.
    max: u64,
    /// How many are taken.
    held: u64,
    /// The jobs that have one, 16 at most.
    held_by: Vec<String>,
}

/// How often a job was tried, and may be.
#[derive(ToSchema)]
pub(crate) struct AttemptsView {
    /// Begun, less those given back.
    used: u16,
    /// How many there may be.
    max: u16,
    /// Still to be used; 0 once it has ended.
    left: u16,
    /// Of the used ones, those whose worker fell silent.
    lost: u16,
    /// How often one was given back.
    given_back: u8,
}

/// The worker that has a job.
#[derive(ToSchema)]
pub(crate) struct HolderView {
    /// The name of the worker.
    worker: String,
    /// When the attempt began.
    since: Option<String>,
    /// Until when it holds without being extended.
    lease_until: String,
    /// It was not extended in time.
    lease_ran_out: bool,
    /// When the attempt takes too long.
    times_out_at: Option<String>,
}

/// A place in the backlog of a topic.
#[derive(ToSchema)]
pub(crate) struct BacklogPlace {
    /// How many jobs go before it.
    ahead: u64,
    /// How many wait in all, itself among them.
    waiting: u64,
    /// With which priority it waits.
    priority: String,
    /// A scheduler has claimed it until then, and is about to offer it.
    claimed_until: Option<String>,
}

/// Offers of a job's topic that stand on the bus, its own perhaps among them.
#[derive(ToSchema)]
pub(crate) struct OffersView {
    /// In so many messages; those of a busy topic carry several offers.
    messages: u64,
}

/// The workers of a job's topic and tenant.
#[derive(ToSchema)]
pub(crate) struct ServingView {
    /// Who live and take work.
    live: u64,
    /// How many jobs they run at most.
    slots: u64,
    /// How many more they could run.
    free: u64,
    /// Who live and take nothing.
    unhealthy: u64,
    /// Live, and lacking what the job requires.
    lacking: u64,
    /// When that was so.
    as_of: String,
}

/// What held a job up, denied or cancelled it.
#[derive(ToSchema)]
pub(crate) struct Refusal {
    /// `hold`, `deny`, `cancel` or `ask_approval`.
    event: String,
    /// In its own words.
    reason: String,
}

/// Who looks at a job if nothing else happens.
#[derive(ToSchema)]
pub(crate) struct NextLook {
    /// `reconciler`: of the scheduler that leads.
    by: String,
    /// Which one does, as its lock says; absent if none leads at this moment.
    scheduler: Option<String>,
    /// When the look is due.
    at: String,
    /// That has come.
    due: bool,
}
