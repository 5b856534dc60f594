//! The effects of an end: one list for every writer of an end (settle, cancel, time-out, rescue, and the reconciler's
//! check that repeats it). Each effect has a deterministic id, so repeating is harmless. Stopping half-way is not, so
//! the home is removed last.

use std::time::Duration;

use muster_bus::subjects;
use muster_domain::{Head, JobId, Phase, RunId, State, Tenant, Time, Topic, TraceParent, WorkerId};
use muster_store::{QueueEntry, Record, SlotRef, StoreError};
use muster_telemetry::{
    metrics::{Counter, Histogram, count, observe, topic_label},
    spans,
};
use muster_wire::{Body, v1};

use crate::{Flow, failpoint, runs::JobEnd};

/// A job that has ended. [`End::new`] is the only place that lists its fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct End {
    /// The id of the job.
    pub id: JobId,
    /// The tenant that owns the job.
    pub tenant: Tenant,
    /// The topic of the job.
    pub topic: Topic,
    /// The head, with the kind and the time of the end.
    pub head: Head,
    /// The error code, if the job ended badly.
    pub error_code: Option<String>,
    /// Whether this call wrote the end. Otherwise it repeats effects that an earlier call may have left undone.
    pub first: bool,
    /// The worker to notify that its attempt is over, if the worker did not end the attempt itself.
    pub tell: Option<WorkerId>,
    /// The concurrency slots that the job holds, if its worker did not give them back itself.
    pub slots: Vec<SlotRef>,
    /// The job's backlog entry, if the job ended before a scheduler took it from there.
    pub entry: Option<QueueEntry>,
    /// The trace that the job belongs to, if the caller has it.
    pub trace: Option<TraceParent>,
    /// The run of a workflow that the job belongs to.
    pub run: Option<RunId>,
}

impl End {
    /// The end of a job of which only this is known. Nothing else follows from it.
    pub fn new(id: JobId, (tenant, topic): (&Tenant, &Topic), head: &Head, first: bool) -> End {
        End {
            id,
            tenant: tenant.clone(),
            topic: topic.clone(),
            head: head.clone(),
            error_code: None,
            first,
            tell: None,
            slots: Vec::new(),
            entry: None,
            trace: None,
            run: None,
        }
    }

    /// The end of a job with everything that its record says.
    pub fn of(record: &Record, first: bool) -> End {
        let mut end = End::new(record.id, (&record.spec.tenant, &record.spec.topic), &record.head, first);
        end.error_code = record.error.as_ref().map(|e| e.code.clone());
        end.slots = SlotRef::of(record);
        end.entry = QueueEntry::left_by(record);
        end.trace = record.spec.trace;
        end.run = record.spec.run;
        end
    }

    /// With this error code.
    pub fn error(mut self, code: Option<String>) -> End {
        self.error_code = code;
        self
    }

    /// Notifies this worker that its attempt is over.
    pub fn tell(mut self, worker: Option<WorkerId>) -> End {
        self.tell = worker;
        self
    }

    /// Within this trace.
    pub fn trace(mut self, trace: Option<TraceParent>) -> End {
        self.trace = trace;
        self
    }

    /// Of a job of this run.
    pub fn run(mut self, run: Option<RunId>) -> End {
        self.run = run;
        self
    }

    /// For how long the worker may still run the job and so keep the slot.
    fn slot_held_for(&self, now: Time) -> Option<Duration> {
        let Phase::Ended { lease_end: Some(end), .. } = self.head.phase else { return None };
        (!self.slots.is_empty() && !end.reached(now)).then(|| end.remaining(now))
    }
}

/// The result of the effects of ends.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Jobs whose workers may still run them, each with the remaining time: they keep their slot and their home.
    pub held: Vec<(JobId, Duration)>,
    /// Slots that were freed.
    pub freed: Vec<SlotRef>,
    /// The jobs that get the freed slots next.
    pub next: Vec<SlotRef>,
}

/// The event about a transition that watchers receive.
pub fn job_event(
    id: JobId,
    (tenant, topic): (&Tenant, &Topic),
    head: &Head,
    run: Option<RunId>,
    error_code: Option<&str>,
) -> v1::JobEvent {
    v1::JobEvent {
        job_id: id.as_bytes().to_vec().into(),
        tenant: tenant.to_string(),
        topic: topic.to_string(),
        state: head.state().code().into(),
        version: head.version,
        attempt: head.attempt.into(),
        at: head.since.0,
        run_id: run.map(|run| run.to_string()).unwrap_or_default(),
        error_code: error_code.unwrap_or_default().to_owned(),
    }
}

/// The message id for a cancel event. A gateway applies a cancel and publishes the event; the scheduler that replays
/// the cancel publishes it again, and the stream keeps one of them by this id. Other events are published again only
/// after a failure.
fn told_again(items: &[v1::JobEvent]) -> Option<String> {
    let [only] = items else { return None };
    let job = JobId::from_slice(&only.job_id).filter(|_| only.state == u32::from(State::Cancelled.code()))?;
    Some(format!("event-{job}-{}", only.version))
}

impl Flow {
    /// Does all effects of these ends, and removes the homes last. Repeating is harmless.
    pub async fn finish(&self, ends: Vec<End>) -> Result<Finished, StoreError> {
        let mut finished = Finished::default();
        if ends.is_empty() {
            return Ok(finished);
        }
        let dead: Vec<_> = ends
            .iter()
            .filter(|e| e.head.state().is_bad_end())
            .map(|e| (e.tenant.clone(), e.id, e.head.since))
            .collect();
        if !dead.is_empty() {
            self.store.add_dead_letters(&dead).await?;
        }
        failpoint!("finish.after_dead_letters");
        let left: Vec<_> = ends.iter().filter_map(|e| e.entry.clone()).collect();
        self.store.remove_queued(&left).await?;
        for end in &ends {
            self.tell_worker(end).await;
        }
        let event = |e: &End| job_event(e.id, (&e.tenant, &e.topic), &e.head, e.run, e.error_code.as_deref());
        self.tell_watchers(ends.iter().map(event).collect()).await;
        if ends.iter().any(|e| e.run.is_some()) {
            self.tell_runs(&ends).await?;
        }
        failpoint!("finish.after_runs");
        let now = self.store.now();
        let mut ids = Vec::with_capacity(ends.len());
        for end in &ends {
            match end.slot_held_for(now) {
                Some(left) => finished.held.push((end.id, left)),
                None => {
                    finished.freed.extend(end.slots.iter().cloned());
                    ids.push(end.id);
                }
            }
        }
        if !finished.freed.is_empty() {
            failpoint!("finish.before_slots");
            for next in self.store.free_slots(&finished.freed).await {
                finished.next.extend(next?);
            }
        }
        failpoint!("finish.before_home");
        self.store.drop_homes(&ids).await?;
        ends.iter().filter(|e| e.first).for_each(measure);
        Ok(finished)
    }

    /// Publishes events to watchers. Watchers read again when they miss an event, so a failed publish is no fault.
    pub async fn tell_watchers(&self, mut items: Vec<v1::JobEvent>) {
        while !items.is_empty() {
            let rest = items.split_off(items.len().min(512));
            let id = told_again(&items);
            let (subject, body) = (subjects::event(), Body::Event(v1::EventGroup { items }));
            let _ = match id {
                Some(id) => self.bus.broadcast_once(&subject, &id, body).await,
                None => self.bus.broadcast(&subject, body).await,
            };
            items = rest;
        }
    }

    async fn tell_runs(&self, ends: &[End]) -> Result<(), StoreError> {
        let of = |e: &End| Some(JobEnd { job: e.id, run: e.run?, state: e.head.state(), at: e.head.since });
        self.tell_job_ends(ends.iter().filter_map(of).collect()).await
    }

    async fn tell_worker(&self, end: &End) {
        let Some(worker) = &end.tell else { return };
        self.stop_attempt(worker, end.id, &end.head).await;
    }

    /// Notifies a worker that it no longer holds its attempt. The worker would also learn this at its next extension.
    pub async fn stop_attempt(&self, worker: &WorkerId, id: JobId, head: &Head) {
        let notice = v1::CancelNotice {
            job_id: id.as_bytes().to_vec().into(),
            fence: head.fence,
            standing: muster_wire::standing_of(head, head.fence).into(),
        };
        let control = v1::Control { cancelled: vec![notice], ..Default::default() };
        let _ = self.bus.broadcast(&subjects::worker_ctl(worker), Body::Control(control)).await;
    }
}

fn measure(end: &End) {
    let topic = topic_label(end.topic.as_str());
    count(Counter::Jobs, &[("topic", topic), ("state", end.head.state().as_str())], 1);
    if let Some(started) = end.head.started_at {
        observe(Histogram::JobDuration, &[("topic", topic)], end.head.since.since(started).as_secs_f64());
    }
    if let Some(trace) = end.trace {
        spans::job(trace, end.id, &end.tenant, &end.topic, &end.head, end.error_code.as_deref());
    }
}
