//! Publishes what happened to jobs, for watchers.
//!
//! Promises: one message per batch; a lost event costs a watcher a re-read, never a job. Leaves to
//! others: the events of ends, which go with the other effects of an end (`flow`).

use bytes::Bytes;
use muster_bus::{Bus, subjects};
use muster_domain::{Head, JobId, RunId, State, Time};
use muster_telemetry::{Histogram, observe};
use muster_wire::{
    Body,
    v1::{EventGroup, JobEvent, Submit},
};

use crate::route_state::RouteState;

/// Most events in one message; each has about a hundred bytes.
const CHUNK: usize = 2_000;

/// The raw id as messages carry it.
pub(crate) fn raw(id: JobId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// The event that a job has the state of this head.
pub(crate) fn moved(id: JobId, route: &RouteState, head: &Head, run: Option<RunId>) -> JobEvent {
    muster_flow::job_event(id, (&route.tenant, &route.topic), head, run, None)
}

/// The run that a submitted job belongs to.
pub(crate) fn run_of(submit: &Submit) -> Option<RunId> {
    submit.spec.as_ref().and_then(|spec| RunId::from_slice(&spec.run_id))
}

/// The event that a job is pending. The scheduler that decides about the job publishes it, so that the gateway need
/// not.
pub(crate) fn pending(submit: &Submit, route: &RouteState) -> JobEvent {
    JobEvent {
        job_id: submit.job_id.clone(),
        tenant: route.tenant.to_string(),
        topic: route.topic.to_string(),
        state: State::Pending.code().into(),
        version: submit.version,
        attempt: submit.attempt,
        at: submit.pending_since,
        run_id: run_of(submit).map(|run| run.to_string()).unwrap_or_default(),
        error_code: String::new(),
    }
}

/// Observes the dispatch latency of a job that could have been dispatched since `since`. Only the first dispatch of a
/// job counts: a retry waits for its back-off.
pub(crate) fn observe_first_dispatch(head: &Head, since: Time) {
    if head.attempt == 0 && head.released == 0 {
        observe_dispatch(since, head.since);
    }
}

/// Observes the latency of a job that is first offered at `at`.
pub(crate) fn observe_dispatch(since: Time, at: Time) {
    observe(Histogram::DispatchLatency, &[], at.since(since).as_secs_f64());
}

/// Publishes the events in this order.
pub(crate) async fn tell(bus: &Bus, mut events: Vec<JobEvent>) {
    while !events.is_empty() {
        let rest = events.split_off(events.len().min(CHUNK));
        // Watchers recover by reading again; the bus logs the fault.
        let _ = bus.broadcast(&subjects::event(), Body::Event(EventGroup { items: events })).await;
        events = rest;
    }
}
