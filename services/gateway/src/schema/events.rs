//! The shapes of events.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

/// One event: a CloudEvent 1.0. It is the `data` of a server-sent event with the same `id`.
#[derive(ToSchema)]
pub(crate) struct CloudEvent {
    /// Always `1.0`.
    specversion: String,
    /// Where to resume; valid on every gateway. Absent for progress.
    id: Option<String>,
    /// Always `urn:muster:jobs`.
    source: String,
    /// `muster.job.<state>`, `muster.job.progress`, `muster.run.<state>`, `muster.step.<state>`, the type of an event
    /// that a `notify` step emits, or `muster.gap` where events are missing.
    #[schema(rename = "type")]
    kind: String,
    /// The job or the run; absent for a gap.
    subject: Option<String>,
    /// When it happened.
    time: String,
    /// Always `application/json`.
    datacontenttype: String,
    /// Of a job `job_id`, `tenant`, `topic`; for a state also `state`, `done`, `attempt`, `version` and, if there is one,
    /// `error_code`; for progress `progress`. Of a run `run_id`, `tenant`, `workflow`, `version`, for a state also
    /// `state`, `done` and, if there is one, `error_code`; of a step also `step`; for an event of a `notify` step
    /// `step`, `event_id` and, with the scope `payloads`, `data`. For a gap `detail`.
    data: BTreeMap<String, Value>,
}
