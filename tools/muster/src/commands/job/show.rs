//! Prints a job, a list of jobs, a job's history and its explanation for people.

use std::time::Duration;

use serde_json::Value;

use crate::{
    output::{self, cell},
    spans,
};

/// Prints every field of a job that applies.
pub(super) fn job(job: &Value) {
    let error = &job["error"];
    let error = match error.is_object() {
        true => format!("{}: {}", cell(&error["code"]), cell(&error["message"])),
        false => String::new(),
    };
    output::facts(&[
        ("id", cell(&job["id"])),
        ("topic", cell(&job["topic"])),
        ("tenant", cell(&job["tenant"])),
        ("state", cell(&job["state"])),
        ("attempt", format!("{} of {}", cell(&job["attempt"]), cell(&job["max_attempts"]))),
        ("priority", cell(&job["priority"])),
        ("labels", labels(&job["labels"])),
        ("worker", cell(&job["worker"])),
        ("created", cell(&job["created_at"])),
        ("run at", cell(&job["run_at"])),
        ("started", cell(&job["started_at"])),
        ("finished", cell(&job["finished_at"])),
        ("took", took(job)),
        ("next retry", cell(&job["next_retry_at"])),
        ("deadline", cell(&job["deadline"])),
        ("progress", cell(&job["progress"])),
        ("retry of", cell(&job["retry_of"])),
        ("retried as", cell(&job["retried_as"])),
        ("of the run", cell(&job["run_id"])),
        ("payload", cell(&job["payload"])),
        ("result", result(job)),
        ("error", error),
    ]);
}

/// Prints one line per job.
pub(super) fn jobs(jobs: &[Value]) {
    let row = |job: &Value| {
        vec![
            cell(&job["id"]),
            cell(&job["topic"]),
            cell(&job["state"]),
            format!("{}/{}", cell(&job["attempt"]), cell(&job["max_attempts"])),
            cell(&job["created_at"]),
            took(job),
            cell(&job["error"]["code"]),
        ]
    };
    output::rows(&["ID", "TOPIC", "STATE", "ATTEMPT", "CREATED", "TOOK", "ERROR"], jobs.iter().map(row));
}

/// Prints one line per transition.
pub(super) fn history(answer: &Value) {
    let row = |step: &Value| ["at", "event", "state", "attempt", "note"].map(|name| cell(&step[name])).to_vec();
    let steps = answer["transitions"].as_array().map(Vec::as_slice).unwrap_or_default();
    output::rows(&["TIME", "EVENT", "STATE", "ATTEMPT", "NOTE"], steps.iter().map(row));
}

/// Prints the state, then one sentence per line.
pub(super) fn explanation(answer: &Value) {
    output::line(format_args!("job {} is {}", cell(&answer["job_id"]), cell(&answer["state"])));
    for sentence in answer["sentences"].as_array().map(Vec::as_slice).unwrap_or_default() {
        output::line(format_args!("- {}", cell(sentence)));
    }
}

fn took(job: &Value) -> String {
    job["duration_ms"].as_u64().map(|ms| spans::show(Duration::from_millis(ms))).unwrap_or_default()
}

fn labels(labels: &Value) -> String {
    let pair = |(name, value): (&String, &Value)| format!("{name}={}", cell(value));
    labels.as_object().map(|all| all.iter().map(pair).collect::<Vec<_>>().join(" ")).unwrap_or_default()
}

fn result(job: &Value) -> String {
    match job["result_truncated"].as_bool() {
        Some(true) => format!("{} bytes, beginning with {}", cell(&job["result_size"]), cell(&job["result_preview"])),
        _ => job.get("result").map(Value::to_string).unwrap_or_default(),
    }
}
