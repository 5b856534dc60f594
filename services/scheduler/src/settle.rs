//! Settles attempts: a worker's report becomes the job's next state, under the attempt's fence.
//!
//! Knows: what follows from each report. Promises: one event per report; the successes of a batch in one pipeline,
//! without a read. A report under an old fence changes nothing and is counted, and its worker gets the standing of its
//! attempt. A repeated report repeats the effects of the first. A worker receives `settled` only after everything is
//! done. Leaves to others: the effects of an end (`flow`), the consequences of a failure (`domain`).

mod report;

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use muster_bus::{Subject, subjects};
use muster_domain::{Act, Event, JobId, Outcome, State, WorkerId, audit};
use muster_flow::{End, job_event};
use muster_store::{Fields, Moved, SlotRef, StoreError};
use muster_telemetry::{Counter, Emit, count, events::StaleWrite, spans};
use muster_wire::{
    Body, standing_of,
    v1::{Control, JobEvent, Result as Report, ResultGroup, Settled, Standing},
};

use crate::{
    context::{Context, forward_of},
    events,
    intake::{Work, bury},
    slots,
};
use report::{Kind, Read, step_after, succeed};

/// Most notices to one worker in one message.
const NOTICES: usize = 1_000;

/// Groups of results.
pub(crate) struct Settle;

impl Work for Settle {
    type Item = Report;
    const NAME: &'static str = "settle";

    fn subject() -> Subject {
        subjects::result()
    }

    fn open(body: Body) -> Option<Vec<Report>> {
        match body {
            Body::Result(group) => Some(group.items),
            _ => None,
        }
    }

    fn close(items: Vec<Report>) -> Body {
        Body::Result(ResultGroup { items })
    }

    async fn handle(context: &Context, items: Vec<Report>, _again: bool) -> Vec<usize> {
        let (reads, mut failed) = read(context, items).await;
        let answered = apply(context, reads).await;
        muster_flow::failpoint!("settle.after_apply");
        let mut todo = Consequences::of(answered.len());
        for (read, event, moved) in answered {
            todo.add(read, event, moved);
        }
        failed.extend(carry_out(context, todo).await);
        failed
    }
}

/// Parses ids and names. A report that cannot be parsed becomes a dead letter.
async fn read(context: &Context, items: Vec<Report>) -> (Vec<Read>, Vec<usize>) {
    let (mut reads, mut failed) = (Vec::with_capacity(items.len()), Vec::new());
    for (place, item) in items.into_iter().enumerate() {
        match Read::new(&context.routes, place, item) {
            Ok(read) => reads.push(read),
            Err((item, reason)) => {
                if !bury::<Settle>(context, *item, &reason).await {
                    failed.push(place);
                }
            }
        }
    }
    (reads, failed)
}

type Answered = (Read, Event, Result<Moved, StoreError>);

/// Applies successes in one pipeline, and the other reports in another one after their records were read.
async fn apply(context: &Context, reads: Vec<Read>) -> Vec<Answered> {
    let (mut well, mut steps, mut other) =
        (Vec::with_capacity(reads.len()), Vec::with_capacity(reads.len()), Vec::new());
    for mut read in reads {
        match std::mem::take(&mut read.kind) {
            Kind::Success(success) => {
                steps.push(succeed(&read, success));
                well.push(read);
            }
            kind => {
                read.kind = kind;
                other.push(read);
            }
        }
    }
    let successes = async {
        let moved = if steps.is_empty() { Vec::new() } else { context.store().apply(steps).await };
        well.into_iter().zip(moved).map(|(read, moved)| (read, Event::Succeed, moved)).collect::<Vec<_>>()
    };
    let (mut answered, others) = tokio::join!(successes, apply_read(context, other));
    answered.extend(others);
    // An unreadable record cannot be written by any redelivery, so it counts as missing.
    let unreadable = |moved: &Result<Moved, StoreError>| moved.as_ref().is_err_and(StoreError::is_unreadable);
    for (.., moved) in answered.iter_mut().filter(|(.., moved)| unreadable(moved)) {
        *moved = Ok(missing(context));
    }
    answered
}

/// Failures and releases: their effects depend on the record.
async fn apply_read(context: &Context, reads: Vec<Read>) -> Vec<Answered> {
    if reads.is_empty() {
        return Vec::new();
    }
    let ids: Vec<JobId> = reads.iter().map(|read| read.id).collect();
    let records = context.store().read(&ids, Fields::NONE).await;
    let (mut asked, mut steps, mut answered) = (Vec::new(), Vec::new(), Vec::new());
    for (mut read, record) in reads.into_iter().zip(records) {
        match record {
            Ok(Some(record)) => {
                let step = step_after(&mut read, &record, context.store().now());
                asked.push((read, step.event));
                steps.push(step);
            }
            Ok(None) => answered.push((read, Event::Fail, Ok(missing(context)))),
            Err(fault) => answered.push((read, Event::Fail, Err(fault))),
        }
    }
    let moved = if steps.is_empty() { Vec::new() } else { context.store().apply(steps).await };
    answered.extend(asked.into_iter().zip(moved).map(|((read, event), moved)| (read, event, moved)));
    answered
}

fn missing(context: &Context) -> Moved {
    Moved { outcome: Outcome::Missing, head: None, now: context.store().now(), forward: None }
}

/// The work that follows from a batch of reports.
#[derive(Default)]
struct Consequences {
    ends: Vec<(usize, End)>,
    homes: Vec<(usize, JobId, Duration)>,
    events: Vec<JobEvent>,
    notices: Vec<(usize, String, Settled)>,
    slots: Vec<(usize, SlotRef)>,
    /// Ends by a time limit, for the audit log: it has them whether the worker or the reconciler noticed first.
    acts: Vec<(usize, Act)>,
    failed: Vec<usize>,
}

impl Consequences {
    /// With capacity for this many reports, nearly all of which are ends.
    fn of(reports: usize) -> Consequences {
        let (ends, notices) = (Vec::with_capacity(reports), Vec::with_capacity(reports));
        Consequences { ends, notices, ..Consequences::default() }
    }

    fn add(&mut self, read: Read, event: Event, moved: Result<Moved, StoreError>) {
        let Read { place, id, route, fence, worker, error_code, carried, run, told_of, .. } = read;
        // `Early` means that this replica's estimate of the time was ahead: the report is delivered again.
        let Some(moved) = moved.ok().filter(|moved| moved.outcome != Outcome::Early) else {
            self.failed.push(place);
            return;
        };
        let standing = match (&moved.head, moved.done()) {
            (None, _) => Standing::UnknownJob,
            (Some(_), Some(_)) => Standing::Ok,
            (Some(head), None) => {
                StaleWrite { event: event.as_str(), job: &id }.emit();
                match standing_of(head, fence) {
                    // The worker has reported something else about this attempt before, and that report counts.
                    Standing::Ok => Standing::Lost,
                    standing => standing,
                }
            }
        };
        // Whatever happened to the report, its attempt is over and no longer uses its concurrency slot.
        if let Some(slot) = carried.slot {
            let slots = SlotRef::carried(&route.tenant, &route.topic, id, slot);
            self.slots.extend(slots.into_iter().map(|slot| (place, slot)));
        }
        let raw_id = events::raw(id);
        self.notices.push((place, worker, Settled { job_id: raw_id, fence, standing: standing.into() }));
        let Some(head) = moved.done() else { return };
        let first = moved.outcome == Outcome::Applied;
        if first {
            count(Counter::JobAttempts, &[("topic", route.topic.as_str()), ("outcome", outcome_of(event))], 1);
        }
        if let Some(after) = forward_of(&moved, head) {
            self.homes.push((place, id, after));
        }
        if let Some(spec) = told_of {
            self.acts.extend(audit::of_transition(id, &spec, State::Running, head).map(|act| (place, act)));
        }
        if head.state().is_end() {
            let error_code = error_code.filter(|_| head.state() != State::Succeeded);
            let end = End::new(id, (&route.tenant, &route.topic), head, first);
            self.ends.push((place, end.error(error_code).trace(spans::carried(&carried.traceparent)).run(run)));
        } else {
            self.events.push(job_event(id, (&route.tenant, &route.topic), head, run, error_code.as_deref()));
        }
    }
}

/// The outcome of an attempt, as a metric label.
fn outcome_of(event: Event) -> &'static str {
    match event {
        Event::Succeed => "succeeded",
        Event::Release => "released",
        Event::Quarantine => "quarantined",
        Event::TimeOut => "timed_out",
        _ => "failed",
    }
}

async fn carry_out(context: &Context, todo: Consequences) -> Vec<usize> {
    let Consequences { mut ends, homes, events, mut notices, slots, acts, mut failed } = todo;
    if !acts.is_empty() {
        let (places, acts): (Vec<usize>, Vec<Act>) = acts.into_iter().unzip();
        // Written before the home is removed: without a home, no check would find a missing entry.
        if context.store().audit(&acts).await.is_err() {
            ends.retain(|(place, _)| !places.contains(place));
            failed.extend(places);
        }
        muster_flow::failpoint!("settle.after_audit");
    }
    let due: Vec<_> = homes.iter().map(|(_, id, after)| (*id, *after)).collect();
    let (ended, ends): (Vec<usize>, Vec<End>) = ends.into_iter().unzip();
    let (forwarded, finished) = tokio::join!(context.forward(&due), context.flow.finish(ends));
    if forwarded.is_err() {
        failed.extend(homes.into_iter().map(|(place, ..)| place));
    }
    if finished.is_err() {
        failed.extend(ended);
    }
    muster_flow::failpoint!("settle.after_finish");
    if !slots.is_empty() {
        let slots = slots.into_iter().filter(|(place, _)| !failed.contains(place)).map(|(_, slot)| slot);
        slots::free(context, slots.collect()).await;
    }
    // Unfinished reports get no notice, so that the worker keeps its result and sends it again.
    if !failed.is_empty() {
        notices.retain(|(place, ..)| !failed.contains(place));
    }
    tokio::join!(notify(context, notices), events::tell(context.bus(), events));
    failed
}

/// Sends workers the standing of their reports, one message per worker.
async fn notify(context: &Context, notices: Vec<(usize, String, Settled)>) {
    let mut workers: BTreeMap<String, Vec<Settled>> = BTreeMap::new();
    for (_, worker, notice) in notices {
        workers.entry(worker).or_default().push(notice);
    }
    let tells = workers.into_iter().map(|(worker, mut settled)| async move {
        let subject = subjects::worker_ctl(&WorkerId::trusted(worker));
        while !settled.is_empty() {
            let rest = settled.split_off(settled.len().min(NOTICES));
            // If a notice is lost, the worker reports again and gets another notice.
            let control = Control { settled, ..Default::default() };
            let _ = context.bus().broadcast(&subject, Body::Control(control)).await;
            settled = rest;
        }
    });
    join_all(tells).await;
}
