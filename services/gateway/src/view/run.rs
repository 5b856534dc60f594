//! Writes a run as JSON: the run itself, its steps, and the values that it keeps.
//!
//! Knows: which fields exist and when each applies; a field that does not apply is absent. Promises: a value is written
//! only if the caller of this module asked for it. Leaves to others: whether a client may see values (the routes), and
//! how a run is seen (`muster_engine`).

use std::time::Duration;

use bytes::Bytes;
use muster_domain::{ProblemCode, Time};
use muster_engine::run::{Missing, Run, RunError, StepView, Undo};
use serde_json::Value;

use super::{Json, document};
use crate::problem::Problem;

/// The parts of a run that are shown besides its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunParts {
    /// Its steps.
    pub(crate) steps: bool,
    /// Its input.
    pub(crate) input: bool,
    /// Its output.
    pub(crate) output: bool,
    /// The results of its steps, if its steps are shown.
    pub(crate) results: bool,
}

impl RunParts {
    /// The head alone.
    pub(crate) const HEAD: RunParts = RunParts { steps: false, input: false, output: false, results: false };
    /// The head and the steps, without any value.
    pub(crate) const STEPS: RunParts = RunParts { steps: true, ..RunParts::HEAD };
    /// Everything.
    pub(crate) const ALL: RunParts = RunParts { steps: true, input: true, output: true, results: true };
}

/// A run with the parts that are shown.
pub(crate) struct RunView<'a> {
    run: &'a Run,
    input: Option<&'a Value>,
    output: Option<&'a Value>,
    steps: Option<Vec<(StepView, Option<&'a Value>)>>,
}

impl<'a> RunView<'a> {
    /// The parts of a run. A part that needs a field which was not read is refused.
    pub(crate) fn of(run: &'a Run, parts: RunParts) -> Result<RunView<'a>, Missing> {
        let with_result = |step: StepView| {
            let result = if parts.results { run.step_result(&step.place)? } else { None };
            Ok((step, result))
        };
        let steps = if parts.steps { run.view_steps()? } else { Vec::new() };
        let steps = steps.into_iter().map(with_result).collect::<Result<Vec<_>, Missing>>()?;
        Ok(RunView {
            run,
            input: if parts.input { run.input()? } else { None },
            output: if parts.output { run.output()? } else { None },
            steps: parts.steps.then_some(steps),
        })
    }

    /// Writes the fields into an object.
    pub(crate) fn write(&self, json: &mut Json) {
        let (about, state) = (self.run.about(), self.run.state());
        let (started, ended) = self.run.times();
        json.text("id", &about.run.to_string());
        json.text("tenant", about.tenant.as_str());
        json.text("workflow", &about.workflow);
        json.integer("version", about.version.into());
        json.text("state", state.as_str());
        json.boolean("done", state.is_end());
        json.object(Some("labels"), |json| about.labels.iter().for_each(|(key, value)| json.text(key, value)));
        json.text("principal", &about.principal);
        json.moment("created_at", about.created.some());
        write_span(json, started, ended);
        write_value(json, "input", self.input);
        write_value(json, "output", self.output);
        write_error(json, self.run.error());
        if let Some(old) = about.rerun_of {
            json.text("rerun_of", &old.to_string());
        }
        if let Some(parent) = &about.parent {
            json.text("parent_run_id", &parent.run.to_string());
            json.integer("depth", about.depth.into());
        }
        let (compensation, failed) = self.run.compensation();
        json.object(Some("compensation"), |json| {
            json.text("state", compensation.as_str());
            json.integer("failed", failed.into());
        });
        if let Some(steps) = &self.steps {
            json.list("steps", |json| {
                for (step, result) in steps {
                    json.object(None, |json| write_step(json, step, *result));
                }
            });
        }
    }

    /// The run as a document of its own.
    pub(crate) fn document(&self) -> Bytes {
        document(|json| self.write(json))
    }
}

/// A run as a document of its own.
pub(crate) fn run(run: &Run, parts: RunParts) -> Result<Bytes, Problem> {
    Ok(RunView::of(run, parts).map_err(unread)?.document())
}

/// A part of a run was to be shown whose fields were not read: a fault of the caller of this module.
pub(crate) fn unread(Missing { fields, .. }: Missing) -> Problem {
    tracing::error!(event = "run_fields_unread", ?fields, "a run was shown without all fields it needs");
    Problem::new(ProblemCode::Internal, "the run was not read as a whole; the log has the reason")
}

fn write_step(json: &mut Json, step: &StepView, result: Option<&Value>) {
    json.text("place", &step.place);
    json.text("id", &step.id);
    json.text("kind", step.kind);
    json.text("state", step.state.as_str());
    write_span(json, step.started, step.ended);
    if step.attempts > 0 {
        json.integer("attempts", step.attempts.into());
    }
    write_error(json, step.error.as_ref());
    if let Some(reason) = &step.reason {
        json.text("reason", reason);
    }
    if let Some(job) = step.job {
        json.text("job_id", &job.to_string());
    }
    if let Some(run) = step.sub_run {
        json.text("run_id", &run.to_string());
    }
    if let Some(each) = step.each {
        json.object(Some("items"), |json| {
            json.integer("total", each.total.into());
            json.integer("issued", each.issued.into());
            json.integer("succeeded", each.succeeded.into());
            json.integer("failed", each.failed.into());
            json.integer("running", each.running.into());
        });
    }
    step.iteration.into_iter().for_each(|n| json.integer("iteration", n.into()));
    step.branch.into_iter().for_each(|n| json.integer("branch", n.into()));
    if step.compensation != Undo::None {
        json.text("compensation", step.compensation.as_str());
    }
    if step.truncated {
        json.boolean("truncated", true);
    }
    write_value(json, "result", result);
}

/// Writes why something failed; nothing if it did not.
pub(crate) fn write_error(json: &mut Json, error: Option<&RunError>) {
    let Some(error) = error else { return };
    json.object(Some("error"), |json| {
        json.text("code", &error.code);
        json.text("message", &error.message);
        if !error.step.is_empty() {
            json.text("step", &error.step);
        }
    });
}

/// Writes a value that a run keeps; nothing if there is none.
pub(crate) fn write_value(json: &mut Json, name: &str, value: Option<&Value>) {
    if let Some(value) = value {
        json.raw(name, value.to_string().as_bytes());
    }
}

fn write_span(json: &mut Json, started: Time, ended: Time) {
    json.moment("started_at", started.some());
    json.moment("ended_at", ended.some());
    if let (Some(started), Some(ended)) = (started.some(), ended.some()) {
        let lasted: Duration = ended.since(started);
        json.integer("duration_ms", u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX));
    }
}
