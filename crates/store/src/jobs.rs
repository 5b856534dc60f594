//! Jobs: created by one script, moved by one script, read whole.
//!
//! Every call here is pipelined, handles many jobs at once, and answers item by item: a fault of one job affects no
//! other. Each script is atomic, touches one key, and may be sent twice without harm: a repetition by the same holder
//! is answered [`Outcome::Already`] with the same values. A record that exists and makes no sense gives
//! [`StoreError::Unreadable`] in every call, and is logged.

use std::time::Duration;

use muster_domain::{
    Event, Head, JobError, JobId, JobSpec, Outcome, Progress, StartId, Time, WorkerId, job::When, time::micros,
};
use muster_wire::v1;

use crate::{
    Kept, NewJob, Store, StoreError, keys,
    record::{Fields, Record, StoredResult, fault_of, read_head, read_record, write_result, write_whole},
    router::Command,
    script::{Script, number},
    scripts,
};

/// The result of a submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The job exists now.
    Created(Head),
    /// The job existed before, from the same request.
    Exists(Head),
    /// Another request has this id.
    Mismatch,
}

/// One event for one job.
#[derive(Clone, Debug)]
pub struct Step {
    /// The job.
    pub job: JobId,
    /// The event.
    pub event: Event,
    /// The version or fence that the caller acts on, by [`Event::seen`].
    pub seen: u64,
    /// The time until run_at or until the approval expires, for events that set it.
    pub wait: Duration,
    /// The length of the lease, for a start.
    pub lease: Duration,
    /// For a dispatch: the job runs under a concurrency slot, taken under the version that the caller acts on.
    pub slot: bool,
    /// For a dispatch under a slot: one of the slots is a place of the job's topic.
    pub place: bool,
    /// The id of the start request, for a start.
    pub start_id: StartId,
    /// The worker, for a start.
    pub worker: Option<WorkerId>,
    /// A note for the history; cut to 240 bytes.
    pub note: String,
    /// A result to store with the event.
    pub result: Option<StoredResult>,
    /// An error to store with the event.
    pub error: Option<JobError>,
}

impl Step {
    /// An event without further data.
    pub fn new(job: JobId, event: Event, seen: u64) -> Step {
        Step {
            job,
            event,
            seen,
            wait: Duration::ZERO,
            lease: Duration::ZERO,
            slot: false,
            place: false,
            start_id: StartId([0; 8]),
            worker: None,
            note: String::new(),
            result: None,
            error: None,
        }
    }

    /// The same, with an error that is stored and noted in the history.
    pub fn with_error(mut self, error: JobError) -> Step {
        self.note = format!("{}: {}", error.code, error.message);
        self.error = Some(error);
        self
    }
}

/// The result of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The outcome that the script returned.
    pub outcome: Outcome,
    /// The current head of the job; none only if the job is missing.
    pub head: Option<Head>,
    /// Redis time of the answer.
    pub now: Time,
    /// The home must be forwarded to this long from now, before anything is acked or answered.
    pub forward: Option<Duration>,
}

impl Moved {
    /// The head, if the event was applied now or before.
    pub fn done(&self) -> Option<&Head> {
        self.head.as_ref().filter(|_| matches!(self.outcome, Outcome::Applied | Outcome::Already))
    }
}

/// A lease to be extended.
#[derive(Clone, Debug)]
pub struct Extension {
    /// The job.
    pub job: JobId,
    /// The attempt's fence.
    pub fence: u64,
    /// The length of the lease, from now.
    pub lease: Duration,
    /// Progress to store with the extension.
    pub progress: Option<Progress>,
}

/// The result of an extension.
#[derive(Clone, Debug)]
pub struct Extended {
    /// Whether the attempt still runs under this fence.
    pub held: bool,
    /// The current head of the job; none if the job is missing.
    pub head: Option<Head>,
    /// The remaining time of the lease.
    pub remaining: Duration,
}

/// The result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The job is deleted.
    Deleted,
    /// The job has not ended.
    Alive,
    /// There is no such job.
    Missing,
}

/// No wait is longer than a hundred years: beyond what a number in a script holds exactly, moments would be wrong.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The most bytes of a worker's name: a record stores the length in one byte.
const LONGEST_NAME: usize = 255;

/// How long a trace of a job stays after its end, at least, by its node's clock: the stub of a job that was deleted by
/// hand, the record of every other job. It is twice as long as the bus keeps the job's submit, from which the job would
/// be recreated.
pub const KEEP_STUB: Duration = Duration::from_secs(20 * 60);
/// How long an idempotency key stays taken, at least.
pub(crate) const KEEP_KEY: Duration = Duration::from_secs(24 * 3600);

/// For this long, the time at which a home was set may also be used for its record.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// A script's answer begins with this plus an outcome; otherwise it is the record itself, which begins with its state.
const SAID: u8 = 128;
/// The outcome of a submit whose job existed before, from the same request.
const EXISTS: u8 = 2;

/// A script's answer.
enum Reply {
    /// The record has just been written with this head, and its home need not be forwarded.
    Done(Head),
    /// An outcome, the time to forward the home to if needed, Redis time, and a head, if the job exists.
    Said(u8, Option<Duration>, Time, Option<Head>),
}

impl Reply {
    fn read(mut reply: &[u8]) -> Result<Reply, StoreError> {
        let cut = || StoreError::Decode("a script's answer is cut short".into());
        let Some(outcome) = reply.first().ok_or_else(cut)?.checked_sub(SAID) else {
            return read_head(&mut reply).map(Reply::Done);
        };
        let number = |range| -> Result<u64, StoreError> {
            let bytes: &[u8] = reply.get::<std::ops::Range<usize>>(range).ok_or_else(cut)?;
            Ok(u64::from_be_bytes(bytes.try_into().map_err(|_| cut())?))
        };
        let (forward, now, mut head) = (number(1..9)?, Time(number(9..17)?), &reply[17..]);
        let head = if head.is_empty() { None } else { Some(read_head(&mut head)?) };
        Ok(Reply::Said(outcome, forward.checked_sub(1).map(Duration::from_micros), now, head))
    }
}

fn moved(reply: &[u8]) -> Result<Moved, StoreError> {
    match Reply::read(reply)? {
        // A record that was just written holds the time of the write as `since`.
        Reply::Done(head) => Ok(Moved { outcome: Outcome::Applied, now: head.since, head: Some(head), forward: None }),
        Reply::Said(code, forward, now, head) => {
            let unknown = || StoreError::Decode(format!("unknown outcome {code}"));
            let outcome = Outcome::from_code(code).ok_or_else(unknown)?;
            if head.is_none() && outcome != Outcome::Missing {
                return Err(StoreError::Decode("a script's answer is cut short".into()));
            }
            Ok(Moved { outcome, head, now, forward })
        }
    }
}

fn note(text: &str) -> Vec<u8> {
    cut(text, 240)
}

fn name(worker: &WorkerId) -> Vec<u8> {
    cut(worker.as_str(), LONGEST_NAME)
}

fn cut(text: &str, limit: usize) -> Vec<u8> {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.as_bytes()[..end].to_vec()
}

fn bounds(spec: &JobSpec, accepted: Time) -> scripts::job::SubmitBounds {
    scripts::job::SubmitBounds {
        max_attempts: spec.retry.max_attempts,
        timeout_ms: spec.timeout_ms,
        run_at: When::signed(spec.run_at),
        start_by: When::signed(spec.start_by),
        deadline: When::signed(spec.deadline),
        accepted: accepted.0,
    }
}

fn ask(step: &Step) -> scripts::job::ApplyAsk {
    let lease = match (step.slot, step.place) {
        (true, place) => 1 + u64::from(place),
        (false, _) => micros(step.lease),
    };
    scripts::job::ApplyAsk {
        event: step.event.code(),
        seen: step.seen,
        wait: micros(step.wait.min(LONGEST_WAIT)),
        lease,
        start_id: step.start_id.0,
    }
}

fn submit_call(job: &NewJob, accepted: Time) -> scripts::job::Submit {
    scripts::job::Submit {
        key: keys::job(job.id),
        bounds: bounds(&job.spec, accepted),
        spec: v1::Spec::from(&job.spec).into_bytes(),
        payload: job.payload.to_vec(),
        body_hash: job.body_hash.map(|h| h.to_vec()).unwrap_or_default(),
        place: job.place.map(|place| place.to_bytes().to_vec()).unwrap_or_default(),
    }
}

/// The one command that creates a job, and the job's head after it. None if the script is needed: a client has named
/// the job, the time of its node is no longer known, or the job cannot be written whole.
fn whole_call(job: &NewJob, now: Time) -> Option<(Command, Head)> {
    let (None, Some(place), Some(at)) = (job.body_hash, job.place, job.at) else { return None };
    if now.since(at) > KNOWN_FOR {
        return None;
    }
    let (whole, head) = write_whole(job, place, at)?;
    let key = keys::job(job.id);
    let mut cmd = redis::Cmd::with_capacity(4, key.as_bytes().len() + whole.len() + 8);
    cmd.arg("HSETNX").arg(key.as_bytes()).arg("j").arg(whole);
    Some((Command::plain(cmd), head))
}

/// The scripts' answers, job by job: an unreadable answer is a fault of its own job only.
fn each<R, T>(
    jobs: impl IntoIterator<Item = JobId>,
    replies: Vec<Result<R, StoreError>>,
    read: impl Fn(R) -> Result<T, StoreError>,
) -> Vec<Result<T, StoreError>> {
    let of = |(job, reply): (JobId, Result<R, StoreError>)| reply.and_then(&read).map_err(|fault| fault_of(job, fault));
    jobs.into_iter().zip(replies).map(of).collect()
}

impl Store {
    /// Creates jobs, each as a whole or not at all. Repeating changes nothing.
    pub async fn submit(&self, jobs: &[NewJob]) -> Vec<Result<Submitted, StoreError>> {
        // Write all of them by single commands or none; otherwise a small job could get an older time than a large one
        // before it.
        let now = self.now();
        if let Some(calls) = jobs.iter().map(|job| whole_call(job, now)).collect::<Option<Vec<_>>>() {
            return self.submit_whole(jobs, calls).await;
        }
        let replies = self.run_many(jobs.iter().map(|job| submit_call(job, Time::NONE)).collect()).await;
        let read = |reply: scripts::job::SubmitReply| self.submitted(&reply.reply);
        each(jobs.iter().map(|job| job.id), replies, read)
    }

    async fn submit_whole(&self, jobs: &[NewJob], calls: Vec<(Command, Head)>) -> Vec<Result<Submitted, StoreError>> {
        let (commands, heads): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let replies = self.router().many(commands).await;
        let new = each(jobs.iter().map(|job| job.id), replies, |reply| Ok(number::<u64>(&reply)? > 0));
        let mut submitted = Vec::with_capacity(jobs.len());
        for ((job, head), new) in jobs.iter().zip(heads).zip(new) {
            submitted.push(match new {
                Ok(true) => Ok(Submitted::Created(head)),
                // The job existed: nearly always because this very command was sent before, and its reply was lost.
                Ok(false) => self.found(job.id).await,
                Err(fault) => Err(fault),
            });
        }
        submitted
    }

    async fn found(&self, id: JobId) -> Result<Submitted, StoreError> {
        let lost = || StoreError::unavailable("the job existed, but its record is gone now");
        self.read_one(id, Fields::NONE).await?.map(|record| Submitted::Exists(record.head)).ok_or_else(lost)
    }

    /// Creates jobs that were accepted before, each at its time of acceptance, and that Redis has lost. Like
    /// [`Store::submit`].
    pub(crate) async fn submit_again(&self, jobs: &[(NewJob, Time)]) -> Vec<Result<Submitted, StoreError>> {
        let replies = self.run_many(jobs.iter().map(|(job, accepted)| submit_call(job, *accepted)).collect()).await;
        let read = |reply: scripts::job::SubmitReply| self.submitted(&reply.reply);
        each(jobs.iter().map(|(job, _)| job.id), replies, read)
    }

    /// Writes what must exist before a record does: the job's home, due after `look`, and its place in the tenant's
    /// listing. Each job has its own answer. A repetition sets the home again and adds another entry to the listing;
    /// only the one in the record counts. A job that is prepared and never submitted leaves a home that is dropped when
    /// it is due, and a place that is never shown.
    pub async fn prepare(&self, jobs: &mut [NewJob], look: Duration) -> Vec<Result<(), StoreError>> {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let (homes, places) = tokio::join!(self.set_each_home(&ids, look), self.place_jobs(jobs));
        // The nodes of a cluster each have their own clock, and a record is judged by the clock of its own node. On a
        // single server all these jobs get the same time, one microsecond apart: the first job is the oldest.
        let set = homes.iter().filter_map(|home| home.as_ref().ok()).max().copied();
        let at = set.filter(|_| !self.router().is_cluster());
        let mut prepared = Vec::with_capacity(jobs.len());
        for (n, ((job, home), place)) in jobs.iter_mut().zip(homes).zip(places).enumerate() {
            prepared.push(home.and(place).map(|place| {
                job.place = Some(place);
                job.at = at.map(|at| at + Duration::from_micros(n as u64));
            }));
        }
        prepared
    }

    /// Creates jobs, each as a whole or not at all, and waits until they are stored as asked; returns how many nodes
    /// store them. Their homes must be set. Repeating is harmless. After an error a job may exist.
    pub async fn submit_durable(
        &self,
        jobs: &[NewJob],
        kept: Kept,
        wait: Duration,
    ) -> Vec<Result<(Submitted, usize), StoreError>> {
        let commands = jobs.iter().map(|j| submit_call(j, Time::NONE).into_command()).collect();
        let replies = self.router().durable(commands, kept, wait).await;
        let read = |(value, keepers)| {
            let reply = scripts::job::Submit::decode(value)?;
            Ok((self.submitted(&reply.reply)?, keepers))
        };
        each(jobs.iter().map(|job| job.id), replies, read)
    }

    fn submitted(&self, reply: &[u8]) -> Result<Submitted, StoreError> {
        let (now, submitted) = match Reply::read(reply)? {
            Reply::Done(head) => (head.since, Submitted::Created(head)),
            Reply::Said(EXISTS, _, now, Some(head)) => (now, Submitted::Exists(head)),
            Reply::Said(_, _, now, _) => (now, Submitted::Mismatch),
        };
        self.note_time(now);
        Ok(submitted)
    }

    /// Moves jobs along the state table. This is the only writer of a job's state. Each event is one atomic script; a
    /// repetition by the same holder returns [`Outcome::Already`] with the same values. An event that does not apply is
    /// an outcome, not an error.
    pub async fn apply(&self, steps: Vec<Step>) -> Vec<Result<Moved, StoreError>> {
        let call = |step: Step| scripts::job::Apply {
            key: keys::job(step.job),
            ask: ask(&step),
            worker: step.worker.map(|w| name(&w)).unwrap_or_default(),
            note: note(&step.note),
            result: step.result.as_ref().map(write_result).unwrap_or_default(),
            error: step.error.as_ref().map(|e| v1::Failure::from(e).to_bytes()).unwrap_or_default(),
        };
        let ids: Vec<JobId> = steps.iter().map(|step| step.job).collect();
        let replies = self.run_many(steps.into_iter().map(call).collect()).await;
        let read = |reply: scripts::job::ApplyReply| {
            let moved = moved(&reply.reply)?;
            self.note_time(moved.now);
            Ok(moved)
        };
        each(ids, replies, read)
    }

    /// Creates a job that an event ends before its submit comes, such as a cancel, if the job does not exist; its submit
    /// then finds it ended. One atomic call. The job must have a home and a place ([`Store::prepare`]); its payload is
    /// not stored. [`Outcome::Applied`]: created; [`Outcome::Already`]: it exists, and nothing was changed;
    /// [`Outcome::Missing`]: the event creates no job. A call that is sent twice creates once.
    pub async fn forestall(&self, job: &NewJob, event: Event, text: &str) -> Result<Moved, StoreError> {
        let call = scripts::job::Forestall {
            key: keys::job(job.id),
            bounds: scripts::job::ForestallBounds {
                event: event.code(),
                max_attempts: job.spec.retry.max_attempts,
                timeout_ms: job.spec.timeout_ms,
            },
            spec: v1::Spec::from(&job.spec).into_bytes(),
            place: job.place.map(|place| place.to_bytes().to_vec()).unwrap_or_default(),
            note: note(text),
            body_hash: job.body_hash.map(|h| h.to_vec()).unwrap_or_default(),
        };
        let reply = self.run(call).await.map_err(|fault| fault_of(job.id, fault))?;
        let moved = moved(&reply.reply).map_err(|fault| fault_of(job.id, fault))?;
        self.note_time(moved.now);
        Ok(moved)
    }

    /// [`Store::apply`] for one event of one job.
    pub async fn apply_one(&self, step: Step) -> Result<Moved, StoreError> {
        self.apply(vec![step]).await.pop().unwrap_or(Err(StoreError::Decode("no answer".into())))
    }

    /// Extends leases under their fences and stores progress, each in one script. Never shortens a lease. Repeating is
    /// harmless.
    pub async fn extend(&self, items: Vec<Extension>) -> Vec<Result<Extended, StoreError>> {
        let call = |item: Extension| scripts::job::Extend {
            key: keys::job(item.job),
            fence: item.fence,
            lease: micros(item.lease),
            progress: item.progress.as_ref().map(|p| v1::Progress::from(p).to_bytes()).unwrap_or_default(),
        };
        let ids: Vec<JobId> = items.iter().map(|item| item.job).collect();
        let replies = self.run_many(items.into_iter().map(call).collect()).await;
        let read = |reply: scripts::job::ExtendReply| {
            let moved = moved(&reply.reply)?;
            self.note_time(moved.now);
            let until = moved.head.as_ref().and_then(Head::lease).map_or(Time::NONE, |l| l.until);
            let held = moved.outcome == Outcome::Applied;
            Ok(Extended { held, remaining: until.remaining(moved.now), head: moved.head })
        };
        each(ids, replies, read)
    }

    /// Reads jobs, including deleted ones, which are marked as such.
    pub async fn read(&self, ids: &[JobId], fields: Fields) -> Vec<Result<Option<Record>, StoreError>> {
        let names = fields.names();
        let command = |id: &JobId| {
            let key = keys::job(*id);
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(key.as_bytes()).arg(&names);
            Command::plain(cmd)
        };
        let replies = self.router().many(ids.iter().map(command).collect()).await;
        let read = |(id, reply): (&JobId, Result<redis::Value, StoreError>)| {
            reply.and_then(|reply| read_record(*id, fields, reply)).map_err(|fault| fault_of(*id, fault))
        };
        ids.iter().zip(replies).map(read).collect()
    }

    /// Reads one job.
    pub async fn read_one(&self, id: JobId, fields: Fields) -> Result<Option<Record>, StoreError> {
        self.read(&[id], fields).await.pop().unwrap_or(Ok(None))
    }

    /// Removes an ended job's record, except for the stub that holds its idempotency key and keeps the job from being
    /// recreated. Repeating is harmless.
    pub async fn delete_ended(&self, id: JobId) -> Result<Deleted, StoreError> {
        let (keep_key, keep_stub) = (micros(KEEP_KEY), micros(KEEP_STUB));
        let call = scripts::job::Delete { key: keys::job(id), keep_key, keep_stub, kept: 0 };
        let reply = self.run(call).await.map_err(|fault| fault_of(id, fault))?;
        Ok(match reply.outcome {
            1 => Deleted::Deleted,
            2 => Deleted::Alive,
            _ => Deleted::Missing,
        })
    }

    /// Removes a job with an unreadable record, with its home and its dead letter, whatever tenant owns it. Returns
    /// true if the record was unreadable: a job that is gone, or can be read by now, is left alone. Other entries that
    /// name the job (a listing, a queue, a slot) are dropped by their readers once the record is gone. Repeating is
    /// harmless.
    pub async fn delete_unreadable(&self, id: JobId) -> Result<bool, StoreError> {
        match self.read_one(id, Fields::ALL).await {
            Err(StoreError::Unreadable { .. }) => {}
            Err(fault) => return Err(fault),
            Ok(_) => return Ok(false),
        }
        // Delete the record last: while it exists, a call that died half-way can be repeated.
        self.drop_homes(&[id]).await?;
        for tenant in self.listed_tenants().await? {
            self.drop_dead_letter(&tenant, id).await?;
        }
        let key = keys::job(id);
        let mut cmd = redis::cmd("DEL");
        cmd.arg(key.as_bytes());
        self.router().call(Command::plain(cmd)).await?;
        Ok(true)
    }

    /// Records on a job the id of its retry. Repeating is harmless.
    pub async fn mark_retried(&self, old: JobId, new: JobId) -> Result<(), StoreError> {
        let call = scripts::job::MarkRetried { key: keys::job(old), retried_as: new.as_bytes().to_vec() };
        self.run(call).await.map(|_| ())
    }
}
