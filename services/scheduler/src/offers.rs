//! Offers: the part of a job that workers see, made from its submit.
//!
//! Promises: an offer has the version under which it may be started, and the time it was made. Leaves to others: offers
//! from records, and publishing (`flow`).

use muster_domain::{Head, Line, Time, job::USUAL_ATTEMPTS};
use muster_wire::{
    carried_of,
    v1::{Offer, Submit},
};

/// The offer for a dispatched job, from its submit and the head after the dispatch.
pub(crate) fn from_submit(submit: Submit, head: &Head, line: &Line) -> Offer {
    let deadline = head.deadline.map_or(0, |d| d.0);
    let max_attempts = head.max_attempts.into();
    Offer { version: head.version, max_attempts, deadline, ..as_it_is(submit, head.since, line) }
}

/// The offer for a job that stays `pending` until it is started. `now` is Redis time, as this replica estimates it.
pub(crate) fn as_it_is(submit: Submit, now: Time, line: &Line) -> Offer {
    let spec = submit.spec.unwrap_or_default();
    Offer {
        job_id: submit.job_id,
        version: submit.version,
        dispatched_at: now.0,
        tenant: spec.tenant,
        topic: spec.topic,
        payload: submit.payload,
        labels: spec.labels,
        max_attempts: spec.retry.map_or(USUAL_ATTEMPTS.into(), |retry| retry.max_attempts),
        timeout_ms: spec.timeout_ms,
        deadline: submit.deadline,
        traceparent: spec.traceparent,
        pool: line.pool().to_owned(),
        // Jobs under a limit wait in the backlog, and are offered from their records.
        slot: None,
        carried: carried_of(spec.run_id),
    }
}
