//! The shapes of events.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

/// One event: a CloudEvent 1.0. Each is the `data` of a server-sent event whose `id` is its own.
#[derive(ToSchema)]
pub(crate) struct CloudEvent {
    /// Always `1.0`.
    specversion: String,
    /// Where to resume: the same on every gateway. Absent on progress.
    id: Option<String>,
    /// Always `urn:muster:jobs`.
    source: String,
    /// `muster.job.<state>`, `muster.job.progress`, or `muster.gap` where events are missing.
    #[schema(rename = "type")]
    kind: String,
    /// The job; absent on a gap.
    subject: Option<String>,
    /// When it happened.
    time: String,
    /// Always `application/json`.
    datacontenttype: String,
    /// `job_id`, `tenant`, `topic`; of a state also `state`, `done`, `attempt`, `version` and, where there is
    /// one, `error_code`; of progress `progress`; of a gap `detail`.
    data: BTreeMap<String, Value>,
}
