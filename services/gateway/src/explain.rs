//! Explains why a job is in its state, and what happens next.
//!
//! Knows: what each state waits for, which worker holds the job, and which scheduler looks at it when nothing else
//! happens. Promises: a pure function of what was read, correct for every state; what does not apply is absent; the
//! sentences and the data say the same. Leaves to others: reading the stores (`routes/explain`), and acting on the
//! job (the scheduler).

mod sentences;

use bytes::Bytes;
use muster_domain::{Event, JobError, JobId, Phase, Priority, State, Time, WorkerId, job::Unmoved, line};
use muster_store::{QueuePlace, Record, TopicRecord, WorkerSnapshot};

use crate::view;

/// Everything that was read about a job at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) record: &'a Record,
    /// When the job's home is due; `None` if the job has no home.
    pub(crate) home: Option<Time>,
    /// The job's place in the backlog, if it is there.
    pub(crate) place: Option<QueuePlace>,
    /// The number of messages with offers on the job's line of the bus. Set if a scheduler may have offered the job
    /// without writing that to its record. `None` if the job cannot be among them, or the number is unknown.
    pub(crate) offers: Option<u64>,
    /// The workers that could run the job; `None` if there is no recent snapshot of the workers.
    pub(crate) workers: Option<Serving>,
    /// The scheduler that is asking the decider about the job.
    pub(crate) deciding: Option<&'a str>,
    /// The scheduler that leads the reconciler, if one does.
    pub(crate) leader: Option<&'a str>,
    /// The settings of the job's topic.
    pub(crate) told: Option<&'a TopicRecord>,
    /// The slots of the job's concurrency key, while the job waits for one.
    pub(crate) slots: Option<&'a SlotsSeen>,
    /// The places of the job's topic, while the job waits and the topic limits how many jobs run at once.
    pub(crate) places: Option<&'a PlacesSeen>,
    /// The time of Redis.
    pub(crate) now: Time,
}

impl Seen<'_> {
    /// The number of messages with offers that the job may be in.
    fn standing_offers(&self) -> Option<u64> {
        self.offers.filter(|messages| *messages > 0)
    }
}

/// Whether a scheduler may have offered this job without changing its record. On a busy topic only the offer shows it
/// (the ADR `offered-as-it-is`). A job that has changed since it was accepted, or has a time or a limit to keep, is
/// never offered this way.
pub(crate) fn may_be_offered_as_it_is(record: &Record, told: Option<&TopicRecord>, now: Time) -> bool {
    let head = &record.head;
    let due = matches!(head.phase, Phase::Pending { run_at } if run_at.some().is_none_or(|at| at.reached(now)));
    let job = Unmoved {
        version: head.version,
        is_bounded: head.deadline.is_some() || head.start_by.is_some(),
        has_key: !record.spec.concurrency_key.is_empty(),
    };
    due && job.may_stay() && !told.is_some_and(|told| told.settings.limits_release())
}

/// The jobs that hold the slots of a concurrency key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotsSeen {
    pub(crate) key: String,
    /// The first jobs that hold a slot.
    pub(crate) held_by: Vec<JobId>,
    pub(crate) held: u64,
    pub(crate) waiting: u64,
}

/// The jobs that hold the places of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlacesSeen {
    pub(crate) max: u64,
    /// The first jobs that hold a place.
    pub(crate) held_by: Vec<JobId>,
    pub(crate) held: u64,
}

impl PlacesSeen {
    /// Whether every place is taken: no other job may start before one of the holders ends.
    pub(crate) fn are_taken(&self) -> bool {
        self.held >= self.max
    }
}

/// The workers that serve a job's topic and tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Serving {
    /// Live workers that take work.
    pub(crate) live: u64,
    /// The most jobs that these workers run at once.
    pub(crate) slots: u64,
    /// How many more jobs they could run now.
    pub(crate) free: u64,
    /// Live workers that take no work.
    pub(crate) unhealthy: u64,
    /// Live workers that lack what the job requires.
    pub(crate) lacking: u64,
    /// The time of the snapshot of the workers.
    pub(crate) at: Time,
}

impl Serving {
    /// Counts the workers in the snapshot that serve this job's topic. `shared` says that all tenants share the
    /// topic.
    pub(crate) fn of(record: &Record, snapshot: &WorkerSnapshot, shared: bool) -> Serving {
        let (tenant, topic) = (record.spec.tenant.as_str(), record.spec.topic.as_str());
        let mut serving = Serving { at: snapshot.at, ..Serving::default() };
        let takes = |topics: &[String]| topics.iter().any(|taken| taken == topic);
        for worker in snapshot.workers.iter().filter(|w| w.serves(tenant, shared) && takes(&w.topics)) {
            let name = WorkerId::trusted(worker.id.as_str());
            if !line::provides(name.own_name(), &worker.labels, &record.spec.requires) {
                serving.lacking += 1;
            } else if worker.healthy {
                serving.live += 1;
                serving.slots += u64::from(worker.slots);
                serving.free += u64::from(worker.slots.saturating_sub(worker.busy));
            } else {
                serving.unhealthy += 1;
            }
        }
        serving
    }
}

/// What a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    Decision,
    Time,
    Approval,
    Turn,
    /// An operator who resumes the topic.
    Resume,
    /// The rate of the topic.
    Rate,
    /// Other jobs to end: the limit of jobs that run at once is reached.
    Limit,
    Worker,
    Result,
    Nothing,
}

impl WaitsFor {
    fn as_str(self) -> &'static str {
        match self {
            WaitsFor::Decision => "decision",
            WaitsFor::Time => "time",
            WaitsFor::Approval => "approval",
            WaitsFor::Turn => "turn",
            WaitsFor::Resume => "resume",
            WaitsFor::Rate => "rate",
            WaitsFor::Limit => "limit",
            WaitsFor::Worker => "worker",
            WaitsFor::Result => "result",
            WaitsFor::Nothing => "nothing",
        }
    }
}

/// The worker that holds the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) worker: String,
    pub(crate) since: Option<Time>,
    pub(crate) lease_until: Time,
    pub(crate) times_out_at: Option<Time>,
}

/// The attempts of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempts {
    pub(crate) used: u16,
    pub(crate) max: u16,
    /// 0 once the job has ended.
    pub(crate) left: u16,
    pub(crate) lost: u16,
    pub(crate) given_back: u8,
}

/// The complete explanation of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Explanation {
    pub(crate) id: JobId,
    pub(crate) state: State,
    pub(crate) since: Time,
    pub(crate) now: Time,
    pub(crate) waits_for: WaitsFor,
    /// The first sentence is the summary.
    pub(crate) sentences: Vec<String>,
    /// The job does not start before this time.
    pub(crate) may_start_at: Option<Time>,
    /// The same time, if it follows a failed attempt.
    pub(crate) next_retry_at: Option<Time>,
    pub(crate) start_by: Option<Time>,
    pub(crate) deadline: Option<Time>,
    pub(crate) attempts: Attempts,
    pub(crate) holder: Option<Holder>,
    /// The scheduler that is asking the decider about the job.
    pub(crate) asked_by: Option<String>,
    pub(crate) slots: Option<SlotsSeen>,
    pub(crate) places: Option<PlacesSeen>,
    pub(crate) backlog: Option<(QueuePlace, Priority)>,
    /// The number of messages with offers on the job's line; one of them may hold the job.
    pub(crate) offers: Option<u64>,
    /// Set only while the job waits to be started.
    pub(crate) workers: Option<Serving>,
    /// The error of the last failed attempt.
    pub(crate) last_error: Option<JobError>,
    /// The event that held, denied or cancelled the job, and the reason that was given with it.
    pub(crate) refused_by: Option<(Event, String)>,
    /// When a scheduler checks the job at the latest.
    pub(crate) looked_at: Option<Time>,
    /// The scheduler that checks it, as long as it leads the reconciler.
    pub(crate) looked_at_by: Option<String>,
    pub(crate) retried_as: Option<JobId>,
}

/// Explains a job.
pub(crate) fn explain(seen: &Seen<'_>) -> Explanation {
    let (record, head) = (seen.record, &seen.record.head);
    let state = head.state();
    let run_at = match head.phase {
        Phase::Pending { run_at } | Phase::Scheduled { run_at } | Phase::Retrying { run_at } => run_at.some(),
        _ => None,
    };
    let left = if state.is_end() { 0 } else { head.max_attempts.saturating_sub(head.attempt) };
    Explanation {
        id: record.id,
        state,
        since: head.since,
        now: seen.now,
        waits_for: waits_for(seen),
        sentences: sentences::about(seen),
        may_start_at: run_at,
        next_retry_at: run_at.filter(|_| state == State::Retrying),
        start_by: head.start_by.filter(|_| !head.was_started()),
        deadline: head.deadline,
        attempts: Attempts {
            used: head.attempt,
            max: head.max_attempts,
            left,
            lost: head.lost,
            given_back: head.released,
        },
        holder: holder(record),
        asked_by: seen.deciding.map(str::to_owned),
        slots: seen.slots.cloned(),
        places: seen.places.cloned(),
        backlog: seen
            .place
            .filter(|_| matches!(state, State::Queued | State::Pending))
            .map(|place| (place, record.spec.priority)),
        offers: seen.standing_offers(),
        workers: seen.workers.filter(|_| !state.is_end() && state != State::Running),
        last_error: record.error.clone().filter(|_| state != State::Succeeded),
        refused_by: refusal(record),
        looked_at: seen.home,
        looked_at_by: seen.leader.map(str::to_owned),
        retried_as: record.retried_as,
    }
}

fn waits_for(seen: &Seen<'_>) -> WaitsFor {
    match &seen.record.head.phase {
        Phase::Pending { run_at } if run_at.some().is_some_and(|at| !at.reached(seen.now)) => WaitsFor::Time,
        Phase::Pending { .. } if seen.place.is_some() => WaitsFor::Turn,
        Phase::Pending { .. } if seen.standing_offers().is_some() => WaitsFor::Worker,
        Phase::Pending { .. } => WaitsFor::Decision,
        Phase::Scheduled { .. } | Phase::Retrying { .. } => WaitsFor::Time,
        Phase::AwaitingApproval { .. } => WaitsFor::Approval,
        Phase::Queued if seen.told.is_some_and(|told| told.paused.is_some()) => WaitsFor::Resume,
        Phase::Queued if seen.places.is_some_and(PlacesSeen::are_taken) => WaitsFor::Limit,
        Phase::Queued if seen.slots.is_some_and(|slots| slots.held > 0) => WaitsFor::Limit,
        Phase::Queued if seen.told.is_some_and(|told| told.settings.rate.is_some()) => WaitsFor::Rate,
        Phase::Queued => WaitsFor::Turn,
        Phase::Dispatched => WaitsFor::Worker,
        Phase::Running { .. } => WaitsFor::Result,
        Phase::Ended { .. } => WaitsFor::Nothing,
    }
}

fn holder(record: &Record) -> Option<Holder> {
    let Phase::Running { lease, attempt_end } = &record.head.phase else { return None };
    Some(Holder {
        worker: lease.worker.own_name().to_owned(),
        since: record.head.started_at,
        lease_until: lease.until,
        times_out_at: *attempt_end,
    })
}

/// The last event, if it held, denied or cancelled the job and came with a reason.
fn refusal(record: &Record) -> Option<(Event, String)> {
    let last = record.history.last()?;
    let event = last.event.filter(|e| matches!(e, Event::Hold | Event::Deny | Event::Cancel | Event::AskApproval))?;
    (!last.note.is_empty()).then(|| (event, last.note.clone()))
}

impl Explanation {
    /// The explanation in one sentence.
    pub(crate) fn summary(&self) -> &str {
        self.sentences.first().map_or("", String::as_str)
    }

    /// The explanation as a JSON document.
    pub(crate) fn document(&self) -> Bytes {
        view::document(|json| {
            json.text("job_id", &self.id.to_string());
            json.text("state", self.state.as_str());
            json.boolean("done", self.state.is_end());
            json.moment("since", self.since.some());
            json.moment("as_of", self.now.some());
            json.text("summary", self.summary());
            json.list("sentences", |json| self.sentences.iter().for_each(|sentence| json.item(sentence)));
            json.text("waits_for", self.waits_for.as_str());
            json.moment("may_start_at", self.may_start_at);
            json.moment("next_retry_at", self.next_retry_at);
            json.moment("start_by", self.start_by);
            json.moment("deadline", self.deadline);
            let attempts = self.attempts;
            json.object(Some("attempts"), |json| {
                json.integer("used", attempts.used.into());
                json.integer("max", attempts.max.into());
                json.integer("left", attempts.left.into());
                json.integer("lost", attempts.lost.into());
                json.integer("given_back", attempts.given_back.into());
            });
            if let Some(holder) = &self.holder {
                json.object(Some("holder"), |json| {
                    json.text("worker", &holder.worker);
                    json.moment("since", holder.since);
                    json.moment("lease_until", Some(holder.lease_until));
                    json.boolean("lease_ran_out", holder.lease_until.reached(self.now));
                    json.moment("times_out_at", holder.times_out_at);
                });
            }
            if let Some(scheduler) = &self.asked_by {
                json.text("asked_by", scheduler);
            }
            if let Some(slots) = &self.slots {
                json.object(Some("concurrency"), |json| {
                    json.text("key", &slots.key);
                    json.integer("held", slots.held);
                    json.integer("waiting", slots.waiting);
                    json.list("held_by", |json| slots.held_by.iter().for_each(|job| json.item(&job.to_string())));
                });
            }
            if let Some(places) = &self.places {
                json.object(Some("topic_limit"), |json| {
                    json.integer("max", places.max);
                    json.integer("held", places.held);
                    json.list("held_by", |json| places.held_by.iter().for_each(|job| json.item(&job.to_string())));
                });
            }
            if let Some((place, priority)) = &self.backlog {
                json.object(Some("backlog"), |json| {
                    json.integer("ahead", place.ahead);
                    json.integer("waiting", place.waiting);
                    json.text("priority", priority.as_str());
                    json.moment("claimed_until", place.claimed_until);
                });
            }
            if let Some(messages) = self.offers {
                json.object(Some("offers"), |json| json.integer("messages", messages));
            }
            if let Some(serving) = self.workers {
                json.object(Some("workers"), |json| {
                    json.integer("live", serving.live);
                    json.integer("slots", serving.slots);
                    json.integer("free", serving.free);
                    json.integer("unhealthy", serving.unhealthy);
                    json.integer("lacking", serving.lacking);
                    json.moment("as_of", serving.at.some());
                });
            }
            if let Some((event, reason)) = &self.refused_by {
                json.object(Some("refused_by"), |json| {
                    json.text("event", event.as_str());
                    json.text("reason", reason);
                });
            }
            if let Some(error) = &self.last_error {
                json.object(Some("last_error"), |json| {
                    json.text("code", &error.code);
                    json.text("message", &error.message);
                    json.boolean("retryable", error.retryable);
                });
            }
            if let Some(at) = self.looked_at {
                json.object(Some("next_look"), |json| {
                    json.text("by", "reconciler");
                    if let Some(scheduler) = &self.looked_at_by {
                        json.text("scheduler", scheduler);
                    }
                    json.moment("at", Some(at));
                    json.boolean("due", at.reached(self.now));
                });
            }
            if let Some(id) = self.retried_as {
                json.text("retried_as", &id.to_string());
            }
        })
    }
}

#[cfg(test)]
mod tests;
