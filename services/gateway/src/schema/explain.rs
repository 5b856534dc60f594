//! The shape of an explanation.

use utoipa::ToSchema;

use super::JobError;

/// Why a job is in its current state, and what happens next. Fields that do not apply are absent.
#[derive(ToSchema)]
pub(crate) struct Explanation {
    /// The id of the job.
    job_id: String,
    /// The state of the job.
    state: String,
    /// Whether the job has ended.
    done: bool,
    /// Since when the job is in this state.
    since: String,
    /// When this explanation was made.
    as_of: String,
    /// The first sentence.
    summary: String,
    /// The whole explanation, for people.
    sentences: Vec<String>,
    /// What the job waits for: `decision`, `time`, `approval`, `turn`, `resume`, `rate`, `limit`, `worker`, `result` or
    /// `nothing`.
    waits_for: String,
    /// The job does not start before this time.
    may_start_at: Option<String>,
    /// The job does not start before this time, because its last attempt failed.
    next_retry_at: Option<String>,
    /// The job expires if it has not started by this time.
    start_by: Option<String>,
    /// The time by which the job must have ended.
    deadline: Option<String>,
    /// The attempts that were used, and that are left.
    attempts: AttemptsView,
    /// The worker that runs the job.
    holder: Option<HolderView>,
    /// The scheduler that asks a decider about the job.
    asked_by: Option<String>,
    /// The jobs that have the concurrency slots of its key, while the job waits for one.
    concurrency: Option<SlotsView>,
    /// The jobs that have the places of its topic, while the job waits and the topic has a `concurrency.max`.
    topic_limit: Option<PlacesView>,
    /// The position of the job in the backlog.
    backlog: Option<BacklogPlace>,
    /// The offers of its topic on the bus, if the job may have been offered without a write to its record.
    offers: Option<OffersView>,
    /// The workers that could run the job, if they are known and the job has not started.
    workers: Option<ServingView>,
    /// What held, denied or cancelled the job, if a reason was given.
    refused_by: Option<Refusal>,
    /// Why the last failed attempt failed.
    last_error: Option<JobError>,
    /// The next check of the job, if nothing else happens before.
    next_look: Option<NextLook>,
    /// The job that is the retry of this one.
    retried_as: Option<String>,
}

/// The concurrency slots of a key.
#[derive(ToSchema)]
pub(crate) struct SlotsView {
    /// The key.
    key: String,
    /// How many slots are taken.
    held: u64,
    /// How many jobs wait for a slot.
    waiting: u64,
    /// The jobs that have a slot, at most 16.
    held_by: Vec<String>,
}

/// The places of a topic.
#[derive(ToSchema)]
pub(crate) struct PlacesView {
    /// How many places there are.
    max: u64,
    /// How many places are taken.
    held: u64,
    /// The jobs that have a place, at most 16.
    held_by: Vec<String>,
}

/// The attempts of a job.
#[derive(ToSchema)]
pub(crate) struct AttemptsView {
    /// How many attempts were used: started, less those that were given back.
    used: u16,
    /// How many attempts may start.
    max: u16,
    /// How many attempts are left; 0 once the job has ended.
    left: u16,
    /// How many of the used attempts ended because the worker stopped responding.
    lost: u16,
    /// How often a worker gave the job back.
    given_back: u8,
}

/// The worker that runs a job.
#[derive(ToSchema)]
pub(crate) struct HolderView {
    /// The name of the worker.
    worker: String,
    /// When the attempt started.
    since: Option<String>,
    /// When the lease ends unless it is extended.
    lease_until: String,
    /// Whether the lease has ended.
    lease_ran_out: bool,
    /// When the attempt exceeds its time limit.
    times_out_at: Option<String>,
}

/// The position of a job in the backlog of its topic.
#[derive(ToSchema)]
pub(crate) struct BacklogPlace {
    /// How many jobs are before it.
    ahead: u64,
    /// How many jobs wait, including this one.
    waiting: u64,
    /// The priority with which the job waits.
    priority: String,
    /// Until when a scheduler has claimed the job to offer it.
    claimed_until: Option<String>,
}

/// The offers on the bus for the topic of a job; one of them may be for this job.
#[derive(ToSchema)]
pub(crate) struct OffersView {
    /// How many messages there are; a message of a busy topic has several offers.
    messages: u64,
}

/// The live workers for the topic and the tenant of a job.
#[derive(ToSchema)]
pub(crate) struct ServingView {
    /// How many workers take work.
    live: u64,
    /// How many jobs these workers run at most.
    slots: u64,
    /// How many more jobs these workers could run.
    free: u64,
    /// How many workers are alive but take no work.
    unhealthy: u64,
    /// How many workers do not provide what the job requires.
    lacking: u64,
    /// When the workers were counted.
    as_of: String,
}

/// What held, denied or cancelled a job.
#[derive(ToSchema)]
pub(crate) struct Refusal {
    /// `hold`, `deny`, `cancel` or `ask_approval`.
    event: String,
    /// The reason that was given.
    reason: String,
}

/// The next check of a job, if nothing else happens before.
#[derive(ToSchema)]
pub(crate) struct NextLook {
    /// The loop that checks: `reconciler`.
    by: String,
    /// The scheduler that leads the loop, by its lock; absent if no scheduler leads it now.
    scheduler: Option<String>,
    /// When the check is due.
    at: String,
    /// Whether that time has come.
    due: bool,
}
