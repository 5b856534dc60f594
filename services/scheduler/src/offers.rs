//! Offers: what a worker gets to see of a job, made from the submit that came with it.
//!
//! Promises: an offer carries the version and the moment of its dispatch as the record has them.
//! Leaves to others: offers from records, and publishing (`flow`).

use muster_domain::{Head, Line};
use muster_wire::v1::{Offer, Submit};

/// From the submit that a dispatch was decided on.
pub(crate) fn from_submit(submit: Submit, head: &Head, line: &Line) -> Offer {
    let spec = submit.spec.unwrap_or_default();
    Offer {
        job_id: submit.job_id,
        version: head.version,
        dispatched_at: head.since.0,
        tenant: spec.tenant,
        topic: spec.topic,
        payload: submit.payload,
        labels: spec.labels,
        max_attempts: head.max_attempts.into(),
        timeout_ms: spec.timeout_ms,
        deadline: head.deadline.map_or(0, |d| d.0),
        traceparent: spec.traceparent,
        pool: line.pool().to_owned(),
        // Jobs under a limit wait in the backlog, and are offered from their records.
        slot: None,
    }
}
