//! Answers start requests: a worker asks before it runs a job, and one script decides.
//!
//! Knows: the meaning of each outcome of a start for the worker. Promises: only a request with the offer's version
//! starts the job, and only the same `start_id` gets `go` again; the answer is sent after the home was forwarded.
//! Leaves to others: counting the attempt and creating the fence (the script), the next offer (`backlog`, which is
//! poked from here).

mod recall;
mod request;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_bus::Received;
use muster_domain::{
    Event, Head, JobError, JobErrorCode, JobId, Outcome, StartId, Time, WorkerId,
    job::{LONGEST_LEASE, Lease},
};
use muster_flow::End;
use muster_store::{Fields, Moved, Step, StoreError};
use muster_telemetry::{Histogram, observe};
use muster_wire::{
    Body, carried_run, job_id,
    v1::{JobEvent, StartAnswer, StartAsk, StartReply, start_answer::Verdict},
};

use crate::{
    context::{Context, forward_of},
    events,
    route_state::RouteState,
};
use request::{Read, Refused};

/// The shortest lease that is granted. The documented least is 5 s; only tests ask for less.
pub(crate) const LEAST_LEASE: Duration = Duration::from_secs(1);
/// The lease of a worker that asks for none, on a topic that sets none.
const USUAL_LEASE: Duration = Duration::from_secs(30);
/// How long an offer without a record is answered `unknown`: the record may be restored from the stream.
const UNKNOWN_FOR: Duration = Duration::from_secs(20 * 60);

/// The lease to grant: what the worker asks for, otherwise the topic's setting.
pub(crate) fn lease_of(context: &Context, tenant: &str, topic: &str, asked_ms: u32) -> Duration {
    let told = || context.flow.settings.topic(tenant, topic)?.settings.lease_ms;
    bounded(if asked_ms == 0 { told().unwrap_or(0) } else { asked_ms })
}

fn bounded(ms: u32) -> Duration {
    match ms {
        0 => USUAL_LEASE,
        ms => Duration::from_millis(ms.into()).clamp(LEAST_LEASE, LONGEST_LEASE),
    }
}

/// Answers a group of requests with one pipeline.
pub(crate) async fn answer(context: Arc<Context>, requests: Vec<Received>) {
    let (mut reads, mut workers, mut replies) = (Vec::new(), Vec::new(), Vec::new());
    for request in requests {
        let (_, body, reply) = request.into_parts();
        // A request with another body on this subject gets no answer.
        let Body::Start(request) = body else { continue };
        let worker = workers.len();
        workers.push(WorkerId::trusted(request.worker));
        replies.push((reply, request.items.len()));
        reads.reserve(request.items.len());
        for ask in request.items {
            let job = read(&context, &ask);
            reads.push(Read { ask, worker, job, refused: None });
        }
    }
    recall::in_vain(&context, &mut reads).await;
    let steps = reads.iter().filter(|read| read.refused.is_none()).filter_map(|read| {
        let lease = lease_of(&context, &read.ask.tenant, &read.ask.topic, read.ask.lease_ms);
        Some(step(read.job.as_ref()?.0, &read.ask, &workers[read.worker], lease))
    });
    let steps = steps.collect();
    let mut moved = context.store().apply(steps).await.into_iter();
    muster_flow::failpoint!("start.after_apply");
    let (answers, events) = (Vec::with_capacity(reads.len()), Vec::with_capacity(reads.len()));
    let mut outcome = Outcomes { answers, events, ..Outcomes::default() };
    for Read { ask, job, refused, .. } in reads {
        if let Some(refused) = refused {
            outcome.refuse(&ask, job, refused);
            continue;
        }
        let moved = if job.is_some() { moved.next() } else { None };
        outcome.add(&ask, job, moved);
    }
    let Outcomes { mut answers, homes, events, ends, .. } = outcome;
    let due: Vec<_> = homes.iter().map(|(_, id, after)| (*id, *after)).collect();
    if context.forward(&due).await.is_err() {
        // Not answered as started: the worker asks again, and gets `go` once the home is forwarded.
        for (place, ..) in homes {
            answers[place].verdict = Verdict::Retry.into();
        }
    }
    finish(&context, ends, &mut answers).await;
    muster_flow::failpoint!("start.before_answer");
    // Publish the events before a worker can run the jobs, so that watchers see the end after this.
    events::tell(context.bus(), events).await;
    let mut answers = answers.into_iter();
    for (reply, n) in replies {
        let items = answers.by_ref().take(n).collect();
        // If the answer is lost, the worker asks again.
        let _ = reply.send(Body::Started(StartReply { items })).await;
    }
    for route in outcome.routes {
        if route.can_release() {
            context.routes.poke(&route);
        }
    }
}

fn read(context: &Context, ask: &StartAsk) -> Option<(JobId, Arc<RouteState>)> {
    Some((job_id(&ask.job_id).ok()?, context.routes.route_named(&ask.tenant, &ask.topic, &ask.pool).ok()?))
}

fn step(id: JobId, ask: &StartAsk, worker: &WorkerId, lease: Duration) -> Step {
    if ask.undecodable {
        let text = "the worker could not read the offer";
        let error = JobError::new(JobErrorCode::Undecodable.as_str(), text, false);
        return Step::new(id, Event::Reject, ask.version.into()).with_error(error);
    }
    let mut start_id = [0; 8];
    let given = ask.start_id.len().min(8);
    start_id[..given].copy_from_slice(&ask.start_id[..given]);
    Step {
        lease,
        start_id: StartId(start_id),
        worker: Some(worker.clone()),
        ..Step::new(id, Event::Start, ask.version.into())
    }
}

/// The results of a group of requests.
#[derive(Default)]
struct Outcomes {
    answers: Vec<StartAnswer>,
    /// With the index of the answer that waits for the forward.
    homes: Vec<(usize, JobId, Duration)>,
    events: Vec<JobEvent>,
    ends: Vec<(usize, End)>,
    routes: Vec<Arc<RouteState>>,
}

impl Outcomes {
    fn add(&mut self, ask: &StartAsk, job: Option<(JobId, Arc<RouteState>)>, moved: Option<Result<Moved, StoreError>>) {
        let place = self.answers.len();
        let (Some((id, route)), Some(moved)) = (job, moved) else {
            self.answers.push(verdict(ask, Verdict::Gone, "unreadable"));
            return;
        };
        let answer = match moved {
            // The record is unreadable, so no worker can start the job. If it is repaired, the check offers the job
            // again.
            Err(fault) if fault.is_unreadable() => {
                route.window().consumed(1, Instant::now());
                verdict(ask, Verdict::Gone, "unreadable")
            }
            Err(_) => verdict(ask, Verdict::Retry, ""),
            Ok(moved) => {
                self.note(place, id, &route, ask, &moved);
                judge(ask, &moved)
            }
        };
        self.answers.push(answer);
        if !self.routes.iter().any(|known| Arc::ptr_eq(known, &route)) {
            self.routes.push(route);
        }
    }

    /// Answers a request for an offer that must not start.
    fn refuse(&mut self, ask: &StartAsk, job: Option<(JobId, Arc<RouteState>)>, refused: Refused) {
        self.answers.push(match refused {
            Refused::Recalled => verdict(ask, Verdict::Gone, "held"),
            Refused::Unknown => verdict(ask, Verdict::Retry, ""),
        });
        if let Some((_, route)) = job.filter(|_| refused == Refused::Recalled) {
            route.window().consumed(1, Instant::now());
        }
    }

    /// Notes what follows from an outcome besides its answer.
    fn note(&mut self, place: usize, id: JobId, route: &RouteState, ask: &StartAsk, moved: &Moved) {
        // An offer that a worker starts or drops has left the stream; an offer that it asks about again has not.
        let repeated = moved.outcome == Outcome::Already && !ask.undecodable;
        if moved.outcome != Outcome::Missing && !repeated {
            route.window().consumed(1, Instant::now());
        }
        let Some(head) = moved.done() else { return };
        if let Some(after) = forward_of(moved, head) {
            self.homes.push((place, id, after));
        }
        if head.state().is_end() {
            let first = moved.outcome == Outcome::Applied;
            // The offer could not be read, so its trace is unknown.
            let end = End::new(id, (&route.tenant, &route.topic), head, first);
            self.ends.push((place, end.error(Some(JobErrorCode::Undecodable.as_str().to_owned()))));
            return;
        }
        self.events.push(events::moved(id, route, head, carried_run(&ask.carried)));
        if moved.outcome == Outcome::Applied {
            route.window().aged(Time(ask.dispatched_at), head.since);
            let waited = head.since.since(runnable_since(ask, head));
            observe(Histogram::JobWait, &[("topic", route.topic.as_str())], waited.as_secs_f64());
        }
    }
}

/// Since when a job that has just started could have been started: since its submit. But if it was scheduled, retried
/// or offered again, it has more than the four versions of the normal way, and the offer's time counts.
fn runnable_since(ask: &StartAsk, head: &Head) -> Time {
    if head.version <= 4 { head.created_at } else { Time(ask.dispatched_at) }
}

/// Does the effects of jobs that were ended here. If that fails, the worker must ask again.
async fn finish(context: &Context, ends: Vec<(usize, End)>, answers: &mut [StartAnswer]) {
    if ends.is_empty() {
        return;
    }
    muster_flow::failpoint!("start.before_finish");
    let (places, mut ends): (Vec<usize>, Vec<End>) = ends.into_iter().unzip();
    // Nothing of the offer could be read, so only the record knows the run that the job belongs to.
    let ids: Vec<JobId> = ends.iter().map(|end| end.id).collect();
    let records = context.store().read(&ids, Fields::NONE).await;
    let mut done = true;
    for (end, record) in ends.iter_mut().zip(records) {
        match record {
            Ok(record) => end.run = record.and_then(|record| record.spec.run),
            Err(fault) => done &= fault.is_unreadable(),
        }
    }
    if !done || context.flow.finish(ends).await.is_err() {
        for place in places {
            answers[place].verdict = Verdict::Retry.into();
        }
    }
}

fn verdict(ask: &StartAsk, verdict: Verdict, reason: &str) -> StartAnswer {
    StartAnswer { job_id: ask.job_id.clone(), verdict: verdict.into(), reason: reason.to_owned(), ..Default::default() }
}

/// The answer to the worker.
fn judge(ask: &StartAsk, moved: &Moved) -> StartAnswer {
    let Some(head) = &moved.head else {
        // A record that a failover lost may still be restored from the stream.
        let young = (Time(ask.dispatched_at) + UNKNOWN_FOR) > moved.now;
        return verdict(ask, if young { Verdict::Unknown } else { Verdict::Gone }, "no such job");
    };
    let granted = moved.done().and_then(Head::lease).filter(|_| !ask.undecodable);
    match granted {
        Some(lease) => go(ask, head, lease, moved.now),
        None if ask.undecodable => verdict(ask, Verdict::Gone, JobErrorCode::Undecodable.as_str()),
        None => verdict(ask, Verdict::Gone, head.state().as_str()),
    }
}

fn go(ask: &StartAsk, head: &Head, lease: &Lease, now: Time) -> StartAnswer {
    StartAnswer {
        job_id: ask.job_id.clone(),
        verdict: Verdict::Go.into(),
        fence: head.fence,
        attempt: head.attempt.into(),
        max_attempts: head.max_attempts.into(),
        lease_us: u64::try_from(lease.until.remaining(now).as_micros()).unwrap_or(u64::MAX),
        reason: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_bounded() {
        assert_eq!(bounded(0), USUAL_LEASE);
        assert_eq!(bounded(1), LEAST_LEASE);
        assert_eq!(bounded(7_000), Duration::from_secs(7));
        assert_eq!(bounded(u32::MAX), LONGEST_LEASE);
    }

    #[test]
    fn an_offer_without_a_record_is_unknown_for_a_while_and_then_gone() {
        let now = Time(1_800_000_000_000_000);
        let moved = Moved { outcome: Outcome::Missing, head: None, now, forward: None };
        let verdict_at = |age| {
            let ask = StartAsk { dispatched_at: now.before(age).0, ..Default::default() };
            judge(&ask, &moved).verdict()
        };
        assert_eq!(verdict_at(Duration::from_secs(60)), Verdict::Unknown);
        assert_eq!(verdict_at(UNKNOWN_FOR), Verdict::Gone);
    }
}
