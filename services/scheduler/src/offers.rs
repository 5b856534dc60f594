//! Offers: what a worker gets to see of a job, made from a submit or from a record.
//!
//! Promises: an offer carries the version and the moment of its dispatch as the record has them.

use muster_domain::{Head, JobId};
use muster_store::Record;
use muster_wire::v1::{Offer, Submit};

use crate::events::raw;

/// From the submit that a dispatch was decided on.
pub(crate) fn from_submit(submit: Submit, head: &Head) -> Offer {
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
    }
}

/// From a record that was read with its payload; `head` is where the job stands since.
pub(crate) fn from_record(id: JobId, record: Record, head: &Head) -> Offer {
    let spec = record.spec;
    Offer {
        job_id: raw(id),
        version: head.version,
        dispatched_at: head.since.0,
        tenant: spec.tenant.to_string(),
        topic: spec.topic.to_string(),
        payload: record.payload.unwrap_or_default(),
        labels: spec.labels,
        max_attempts: head.max_attempts.into(),
        timeout_ms: spec.timeout_ms,
        deadline: head.deadline.map_or(0, |d| d.0),
        traceparent: spec.trace.map(|t| t.to_string()).unwrap_or_default(),
    }
}
