//! What happened to jobs, for whoever watches.
//!
//! Promises: one message per batch; a lost event costs a watcher a re-read, never a job. Leaves to
//! others: the events of ends, which go with the other effects of an end (`flow`).

use bytes::Bytes;
use muster_bus::{Bus, subjects};
use muster_domain::{Head, JobId, State, Time};
use muster_telemetry::{Histogram, observe};
use muster_wire::{
    Body,
    v1::{EventGroup, JobEvent, Submit},
};

use crate::route_state::RouteState;

/// Most events of one message; each has about a hundred bytes.
const CHUNK: usize = 2_000;

/// The raw id as messages carry it.
pub(crate) fn raw(id: JobId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

/// A job has just come to stand like this.
pub(crate) fn moved(id: JobId, route: &RouteState, head: &Head) -> JobEvent {
    muster_flow::job_event(id, &route.tenant, &route.topic, head, None)
}

/// A job is pending: told by whoever decides about it, so that its gateway need not.
pub(crate) fn pending(submit: &Submit, route: &RouteState) -> JobEvent {
    JobEvent {
        job_id: submit.job_id.clone(),
        tenant: route.tenant.to_string(),
        topic: route.topic.to_string(),
        state: State::Pending.code().into(),
        version: submit.version,
        attempt: submit.attempt,
        at: submit.pending_since,
        run_id: String::new(),
        error_code: String::new(),
    }
}

/// A job was dispatched that could have been since `since`: told once for each job, of its first
/// dispatch. What a retry waits for is its back-off.
pub(crate) fn observe_first_dispatch(head: &Head, since: Time) {
    if head.attempt == 0 && head.released == 0 {
        observe_dispatch(since, head.since);
    }
}

/// The same, of a job that is offered at `at` for the first time.
pub(crate) fn observe_dispatch(since: Time, at: Time) {
    observe(Histogram::DispatchLatency, &[], at.since(since).as_secs_f64());
}

/// Tells them, in their order.
pub(crate) async fn tell(bus: &Bus, mut events: Vec<JobEvent>) {
    while !events.is_empty() {
        let rest = events.split_off(events.len().min(CHUNK));
        // Watchers heal by reading again; the fault itself is told by the bus.
        let _ = bus.broadcast(&subjects::event(), Body::Event(EventGroup { items: events })).await;
        events = rest;
    }
}
