//! Writes a job as JSON, exactly as the contract defines it.
//!
//! Knows: which fields exist and when each applies; a field that does not apply is absent. Promises: payload, result,
//! error details and progress data come back byte for byte as they were sent: they are copied, never parsed. Leaves
//! to others: whether the caller may see payload and result (the routes pass only what it may see).

pub(crate) mod run;

use bytes::Bytes;
use muster_domain::{
    Durability, Event, Head, JobError, JobId, JobSpec, Phase, Progress, State, Time, WorkerId,
    job::{Transition, When},
};
use muster_flow::Accepted;
use muster_store::{NewJob, Record, StoredResult};

/// Writes JSON objects without building a tree.
pub(crate) struct Json {
    out: Vec<u8>,
    fresh: bool,
}

impl Json {
    pub(crate) fn new() -> Json {
        Json { out: Vec::with_capacity(512), fresh: true }
    }

    fn comma(&mut self) {
        if !self.fresh {
            self.out.push(b',');
        }
        self.fresh = false;
    }

    fn string(&mut self, text: &str) {
        // Writing a string into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.out, text);
    }

    fn name(&mut self, name: &str) {
        self.comma();
        // Nearly all names are fixed names of the API, which need no escaping.
        if name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
            self.out.push(b'"');
            self.out.extend_from_slice(name.as_bytes());
            self.out.extend_from_slice(b"\":");
        } else {
            self.string(name);
            self.out.push(b':');
        }
    }

    /// A field that is a string.
    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.string(value);
    }

    /// A field that is a whole number.
    pub(crate) fn integer(&mut self, name: &str, value: u64) {
        self.name(name);
        // Writing a number into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.out, &value);
    }

    /// A field that is a number.
    pub(crate) fn number(&mut self, name: &str, value: f64) {
        self.name(name);
        // Writing a number into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.out, &value);
    }

    /// A field that is true or false.
    pub(crate) fn boolean(&mut self, name: &str, value: bool) {
        self.raw(name, if value { b"true" } else { b"false" });
    }

    /// A field that is JSON already.
    pub(crate) fn raw(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.out.extend_from_slice(json);
    }

    /// A field that is a time; absent if there is none.
    pub(crate) fn moment(&mut self, name: &str, at: Option<Time>) {
        if let Some(at) = at {
            self.text(name, &at.rfc3339());
        }
    }

    /// A field, or an item of a list if it has no name, that is an object.
    pub(crate) fn object(&mut self, name: Option<&str>, fill: impl FnOnce(&mut Json)) {
        self.nested(name, b'{', b'}', fill);
    }

    /// A field that is a list; `fill` writes its items.
    pub(crate) fn list(&mut self, name: &str, fill: impl FnOnce(&mut Json)) {
        self.nested(Some(name), b'[', b']', fill);
    }

    /// An item of a list that is a string.
    pub(crate) fn item(&mut self, value: &str) {
        self.comma();
        self.string(value);
    }

    fn nested(&mut self, name: Option<&str>, open: u8, close: u8, fill: impl FnOnce(&mut Json)) {
        match name {
            Some(name) => self.name(name),
            None => self.comma(),
        }
        self.out.push(open);
        self.fresh = true;
        fill(self);
        self.out.push(close);
        self.fresh = false;
    }

    /// The whole document.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.out.into()
    }
}

/// One document: an object that `fill` writes.
pub(crate) fn document(fill: impl FnOnce(&mut Json)) -> Bytes {
    let mut json = Json::new();
    json.object(None, fill);
    json.into_bytes()
}

/// The parts of a job that are shown.
pub(crate) struct JobView<'a> {
    pub(crate) id: JobId,
    pub(crate) spec: &'a JobSpec,
    pub(crate) head: &'a Head,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) result: Option<&'a StoredResult>,
    pub(crate) error: Option<&'a JobError>,
    pub(crate) progress: Option<&'a Progress>,
    pub(crate) retried_as: Option<JobId>,
    pub(crate) durability: Durability,
}

impl<'a> JobView<'a> {
    /// An accepted job: its record, if it was read; otherwise the job as its submit created or found it, without the
    /// fields that the client just sent.
    pub(crate) fn accepted(job: &'a NewJob, accepted: &'a Accepted, record: Option<&'a Record>) -> JobView<'a> {
        let view = record.map_or_else(|| JobView::bare(job.id, &job.spec, &accepted.head), JobView::of);
        JobView { durability: accepted.durability, ..view }
    }

    fn bare(id: JobId, spec: &'a JobSpec, head: &'a Head) -> JobView<'a> {
        JobView {
            id,
            spec,
            head,
            payload: None,
            result: None,
            error: None,
            progress: None,
            retried_as: None,
            durability: spec.durability,
        }
    }

    /// The whole job, with the large fields that were read with the record.
    pub(crate) fn of(record: &'a Record) -> JobView<'a> {
        JobView {
            id: record.id,
            spec: &record.spec,
            head: &record.head,
            payload: record.payload.as_deref().filter(|p| !p.is_empty()),
            result: record.result.as_ref(),
            error: record.error.as_ref(),
            progress: record.progress.as_ref(),
            retried_as: record.retried_as,
            durability: record.spec.durability,
        }
    }

    /// Writes the fields into an object.
    pub(crate) fn write(&self, json: &mut Json) {
        let (head, spec) = (self.head, self.spec);
        let state = head.state();
        json.raw("id", &self.id.text_within("\"", "\""));
        json.text("tenant", spec.tenant.as_str());
        json.text("topic", spec.topic.as_str());
        json.text("state", state.as_str());
        json.boolean("done", state.is_end());
        json.integer("attempt", head.attempt.into());
        json.integer("max_attempts", head.max_attempts.into());
        json.text("priority", spec.priority.as_str());
        json.object(Some("labels"), |json| spec.labels.iter().for_each(|(key, value)| json.text(key, value)));
        if !spec.requires.is_empty() {
            json.object(Some("requires"), |json| spec.requires.iter().for_each(|(key, value)| json.text(key, value)));
        }
        if !spec.concurrency_key.is_empty() {
            json.text("concurrency_key", &spec.concurrency_key);
        }
        if let Some(payload) = self.payload {
            json.raw("payload", payload);
        }
        if let Some(result) = self.result {
            write_result(json, result);
        }
        if let Some(error) = self.error.filter(|_| state != State::Succeeded) {
            json.object(Some("error"), |json| write_error(json, error));
        }
        if let Some(progress) = self.progress {
            json.object(Some("progress"), |json| write_progress(json, progress));
        }
        if let Some(worker) = head.lease().map(|lease| &lease.worker).or(head.last_worker.as_ref()) {
            json.text("worker", worker.own_name());
        }
        json.moment("lease_until", head.lease().map(|lease| lease.until));
        json.moment("created_at", head.created_at.some());
        json.moment("started_at", head.started_at);
        json.moment("finished_at", head.finished_at());
        if let (Some(started), Some(finished)) = (head.started_at, head.finished_at()) {
            json.integer("duration_ms", u64::try_from(finished.since(started).as_millis()).unwrap_or(u64::MAX));
        }
        let (retry_at, run_at) = match head.phase {
            Phase::Retrying { run_at } => (run_at.some(), None),
            Phase::Scheduled { run_at } => (None, run_at.some()),
            _ => (None, None),
        };
        json.moment("next_retry_at", retry_at);
        let asked = spec.run_at.map(|when| when.resolve(head.created_at));
        json.moment("run_at", run_at.or(asked));
        json.moment("deadline", head.deadline.or_else(|| spec.deadline.and_then(absolute)));
        json.text("durability", self.durability.as_str());
        if let Some(run) = spec.run {
            json.text("run_id", &run.to_string());
        }
        if let Some(old) = spec.retry_of {
            json.text("retry_of", &old.to_string());
        }
        if let Some(new) = self.retried_as {
            json.text("retried_as", &new.to_string());
        }
    }

    /// The job as a document of its own.
    pub(crate) fn document(&self) -> Bytes {
        document(|json| self.write(json))
    }
}

fn absolute(when: When) -> Option<Time> {
    match when {
        When::At(at) => Some(at),
        When::In(_) => None,
    }
}

fn write_result(json: &mut Json, result: &StoredResult) {
    if result.truncated {
        json.boolean("result_truncated", true);
        json.integer("result_size", result.size);
        json.text("result_preview", &result.preview);
    } else if !result.json.is_empty() {
        json.raw("result", &result.json);
    }
}

fn write_error(json: &mut Json, error: &JobError) {
    json.text("code", &error.code);
    json.text("message", &error.message);
    if let Some(details) = &error.details {
        json.raw("details", details.as_bytes());
    }
    json.boolean("retryable", error.retryable);
}

/// Writes the fields of progress into an object.
pub(crate) fn write_progress(json: &mut Json, progress: &Progress) {
    if let Some(percent) = progress.percent {
        json.raw("percent", percent.to_string().as_bytes());
    }
    if let Some(message) = &progress.message {
        json.text("message", message);
    }
    if let Some(data) = &progress.data {
        json.raw("data", data.as_bytes());
    }
}

/// A job's history: every transition that is kept, and what the transitions say about each attempt.
pub(crate) fn history(id: JobId, transitions: &[Transition]) -> Bytes {
    document(|json| {
        json.text("job_id", &id.to_string());
        json.list("transitions", |json| {
            for line in transitions {
                json.object(None, |json| {
                    json.text("event", line.event.map_or("submit", Event::as_str));
                    json.text("state", line.to.as_str());
                    json.moment("at", line.at.some());
                    json.integer("attempt", line.attempt.into());
                    if !line.note.is_empty() {
                        json.text("note", &shown_note(line));
                    }
                });
            }
        });
        json.list("attempts", |json| attempts(transitions, json));
    })
}

/// The note of a start is the worker's name on the bus. The history shows the name that the worker gave itself.
fn shown_note(line: &Transition) -> String {
    match line.event {
        Some(Event::Start) => WorkerId::trusted(line.note.clone()).own_name().to_owned(),
        _ => line.note.clone(),
    }
}

fn attempts(transitions: &[Transition], json: &mut Json) {
    for (i, start) in transitions.iter().enumerate().filter(|(_, line)| line.event == Some(Event::Start)) {
        let end = transitions.get(i + 1);
        json.object(None, |json| {
            json.integer("attempt", start.attempt.into());
            json.text("worker", &shown_note(start));
            json.moment("started_at", start.at.some());
            let Some(end) = end else { return };
            json.moment("ended_at", end.at.some());
            json.text("outcome", end.event.map_or("submit", Event::as_str));
            let failed = !matches!(end.event, Some(Event::Succeed | Event::Release | Event::Cancel));
            if let Some((code, message)) = end.note.split_once(": ").filter(|_| failed) {
                json.object(Some("error"), |json| {
                    json.text("code", code);
                    json.text("message", message);
                });
            }
        });
    }
}

#[cfg(test)]
mod tests;
