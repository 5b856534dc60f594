//! Counters of the scheduler that are shown as 0 before their first event: a series that appears with its first value
//! looks as if it never rose, and every scheduler is to tell the same series.

use muster_telemetry::{Counter, count};

/// Reports that can come too late, as `muster_stale_writes_total` names them.
const STALE: &[&str] = &["succeed", "retry", "fail", "release", "extend"];
/// What the loops do for a job, as `muster_reconciled_total` names it.
const RECONCILED: &[&str] = &[
    "resubmit",
    "wake",
    "requeue",
    "reoffer",
    "finish",
    "rescue",
    "abandon",
    "poison",
    "cut_short",
    "time_out",
    "expire",
    "orphan",
    "unreadable",
    "scrub_home",
    "scrub_late",
    "scrub_queued",
    "scrub_listing",
    "scrub_stray",
    "reread_submit",
    "reread_cancel",
    "reread_result",
    "recreate",
];

/// Creates these series with the value 0.
pub(crate) fn show() {
    for &event in STALE {
        count(Counter::StaleWrites, &[("event", event)], 0);
    }
    for &action in RECONCILED {
        count(Counter::Reconciled, &[("action", action)], 0);
    }
}
