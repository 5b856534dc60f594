//! Commands, built from the run: when they are new, and again if they were not carried out.

use std::collections::BTreeMap;

use muster_domain::{Labels, RunId, Time, topic::check_label};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    command::{Action, Command, Key, Submit, Verb, job_id, sub_run_id, task},
    document::{Missing, Run},
    event::task_labels,
    field::Field,
    place::Place,
    records::{About, Parent, RunError, StopWhy, Undo},
    sight::{Evaluated, Own, Sight},
    state::{RunState, StepState},
    steps,
    work::{Done, Work},
};
use crate::definition::{JobStep, Retry, Step};

/// The computed parts of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rendered {
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    payload: Option<Value>,
    #[serde(rename = "l", default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: Labels,
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<String>,
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
}

/// The input of a compensation, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct KeptUndo {
    #[serde(rename = "j", default, skip_serializing_if = "Option::is_none")]
    job: Option<Rendered>,
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    error: Option<RunError>,
}

fn wrong(what: &str) -> RunError {
    RunError::new("expression_error", what)
}

impl Work<'_> {
    /// Computes the parts of a job.
    pub(crate) fn render(&self, job: &JobStep, sight: &Sight<'_>) -> Evaluated<Rendered> {
        let mut rendered = Rendered::default();
        match self.maybe(job.payload.as_ref(), sight)? {
            Ok(payload) => rendered.payload = payload,
            Err(error) => return Ok(Err(error)),
        }
        match self.maybe(job.concurrency_key.as_ref(), sight)? {
            Ok(None) => {}
            Ok(Some(Value::String(key))) => rendered.concurrency_key = Some(key),
            Ok(Some(_)) => return Ok(Err(wrong("`concurrency_key` is not a string"))),
            Err(error) => return Ok(Err(error)),
        }
        match self.maybe(job.delay_ms.as_ref(), sight)? {
            Ok(None) => {}
            Ok(Some(ms)) => match ms.as_u64() {
                Some(ms) => rendered.delay_ms = Some(ms),
                None => return Ok(Err(wrong("`delay_ms` is not a whole number"))),
            },
            Err(error) => return Ok(Err(error)),
        }
        for (key, template) in &job.labels {
            let value = match self.template(template, sight)? {
                Ok(Value::String(text)) => text,
                Ok(Value::Number(number)) => number.to_string(),
                Ok(Value::Bool(flag)) => flag.to_string(),
                Ok(_) => return Ok(Err(wrong(&format!("the label `{key}` is not a string")))),
                Err(error) => return Ok(Err(error)),
            };
            if let Err(fault) = check_label(key, &value) {
                return Ok(Err(wrong(&format!("the label `{key}`: {fault}"))));
            }
            rendered.labels.insert(key.clone(), value);
        }
        Ok(Ok(rendered))
    }

    /// The job of a step.
    pub(crate) fn submit(&self, place: &Place, step: &Step, job: &JobStep, rendered: Rendered) -> Done<Submit> {
        let whole = Place::new(place.node, &place.at[..self.plan.levels(place.node)]);
        let deadline = self.step(&whole)?.limit;
        let retry = self.plan.definition().retry_of(step);
        Ok(self.submit_of(place, step, job, rendered, deadline, retry, 0))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a job come from as many places")]
    fn submit_of(
        &self,
        place: &Place,
        step: &Step,
        job: &JobStep,
        rendered: Rendered,
        deadline: Time,
        retry: Retry,
        round: u32,
    ) -> Submit {
        let mut labels = step.labels.clone();
        labels.extend(rendered.labels);
        labels.extend(task_labels(self.about.run, &step.id));
        Submit {
            job: job_id(self.about, self.plan, place, round),
            task: task(self.plan, place, round > 0),
            topic: job.topic.clone(),
            payload: rendered.payload,
            priority: job.priority,
            labels,
            requires: job.requires.clone(),
            concurrency_key: rendered.concurrency_key,
            delay_ms: rendered.delay_ms,
            start_within_ms: job.start_within_ms,
            deadline: deadline.some(),
            timeout_ms: job.timeout_ms,
            retry,
            on_lost_lease: job.on_lost_lease,
            durability: job.durability,
        }
    }

    /// Keeps the input of a compensation that could not be computed later.
    pub(crate) fn keep_undo(&mut self, place: &Place, step: &Step, own: &Own) -> Done {
        let Some(job) = step.compensate.as_ref().and_then(|undo| undo.job.as_ref()) else { return Ok(()) };
        let kept = match self.render(job, &Sight::of(place).own(own))? {
            Ok(rendered) => KeptUndo { job: Some(rendered), error: None },
            Err(error) => KeptUndo { job: None, error: Some(error) },
        };
        let value = serde_json::to_value(&kept).unwrap_or_default();
        let field = Field::Undo(place.clone());
        // What undoes a step is kept whatever the size of the run: without it, the step could not be undone.
        self.head.bytes += super::size::of(&value);
        self.put_json(field, value);
        Ok(())
    }

    /// The command that undoes a step.
    pub(crate) fn undo_action(&self, place: &Place, round: u32) -> Evaluated<Action> {
        let step = self.plan.step(place.node);
        let Some(undo) = &step.compensate else { return Ok(Err(wrong("the step declares no compensation"))) };
        let record = self.step(place)?;
        let Some(job) = &undo.job else {
            let attempt = record.attempt.max(1);
            let run = self.sub_run(place, attempt)?;
            return Ok(Ok(Action::UndoRun { run, parent: self.parent(place, attempt) }));
        };
        let rendered = match self.json(&Field::Undo(place.clone()))? {
            Some(kept) => match serde_json::from_value::<KeptUndo>(kept.as_ref().clone()) {
                Ok(KeptUndo { job: Some(rendered), .. }) => rendered,
                Ok(KeptUndo { error, .. }) => return Ok(Err(error.unwrap_or_else(|| wrong("no input was kept")))),
                Err(error) => return Ok(Err(wrong(&error.to_string()))),
            },
            None => match self.render(job, &Sight::of(place))? {
                Ok(rendered) => rendered,
                Err(error) => return Ok(Err(error)),
            },
        };
        let retry = undo.retry.unwrap_or_default();
        Ok(Ok(Action::Submit(Box::new(self.submit_of(place, step, job, rendered, Time::NONE, retry, round)))))
    }

    /// The command of a key.
    fn action(&self, key: &Key) -> Evaluated<Action> {
        let Some(place) = &key.place else { return Ok(self.run_action(key)?.ok_or_else(|| wrong("no such command"))) };
        let step = self.plan.step(place.node);
        match key.verb {
            Verb::Undo | Verb::UndoRun => self.undo_action(place, key.number),
            _ => steps::of(&step.kind).action(self, place, step, key),
        }
    }

    pub(crate) fn run_action(&self, key: &Key) -> Done<Option<Action>> {
        let parent = self.about.parent.clone();
        Ok(match key.verb {
            Verb::ReleaseSlot => self.about.slot.clone().map(|key| Action::ReleaseSlot { key }),
            Verb::TellParent => {
                let output = self.json(&Field::Output)?.map(|value| value.as_ref().clone());
                let (state, error) = (self.head.state, self.head.error.clone());
                parent.map(|parent| Action::TellParent { parent, undone: false, state, output, error })
            }
            Verb::TellUndone => {
                let fine = self.head.undo.state == Undo::Done;
                let state = if fine { RunState::Succeeded } else { RunState::Failed };
                let error =
                    (!fine).then(|| RunError::new("compensation_failed", "a compensation of the sub-run failed"));
                let parent = self.head.undo.tell.clone();
                parent.map(|parent| Action::TellParent { parent, undone: true, state, output: None, error })
            }
            _ => None,
        })
    }

    /// The sub-run of a step. One that was taken over belongs to the run that started it.
    pub(crate) fn sub_run(&self, place: &Place, attempt: u32) -> Done<RunId> {
        Ok(match self.taken(place)? {
            Some(run) => sub_run_id(&About { run, ..self.about.clone() }, self.plan, place, attempt),
            None => sub_run_id(self.about, self.plan, place, attempt),
        })
    }

    /// What a step tells of itself to a sub-run.
    pub(crate) fn parent(&self, place: &Place, attempt: u32) -> Parent {
        Parent { run: self.about.run, step: self.plan.text(place), attempt }
    }

    /// The keys that the cursors of the for-eaches stand for.
    fn cursor_keys(&self) -> Done<Vec<Key>> {
        let mut found = Vec::new();
        let mut lack = None;
        self.running(&self.root(), &mut |place| {
            if self.by_cursor(place) {
                match self.step(place) {
                    Ok(record) => found.extend(item_key(self, place, record.stop, record.sent, record.cancel_sent)),
                    Err(missing) => lack = Some(missing),
                }
            }
        })?;
        lack.map_or(Ok(found), Err)
    }
}

/// The command that an item waits for: the submit or the cancel of its job.
fn item_key(work: &Work<'_>, place: &Place, stop: Option<StopWhy>, sent: bool, cancel_sent: bool) -> Option<Key> {
    match stop {
        None => (!sent).then(|| Key::new(Verb::Submit, place, 0)),
        Some(why) => {
            let awaited = sent && steps::job::is_awaited(work.plan.step(place.node), why);
            (!cancel_sent && !awaited).then(|| Key::new(Verb::CancelJob, place, 0))
        }
    }
}

impl Run {
    /// The commands that were not carried out, cancels first. `limit` bounds how many are built.
    pub fn outbox(&self, limit: usize) -> Result<Vec<Command>, Missing> {
        let work = Work::new(self, self.head.now);
        self.outbox_of(&work, limit).map_err(|lack| self.missing(&lack))
    }

    fn outbox_of(&self, work: &Work<'_>, limit: usize) -> Done<Vec<Command>> {
        let held = work.outbox(&Field::Outbox)?.map_or(&[][..], Vec::as_slice);
        let mut keys: Vec<Key> = held.iter().filter_map(|text| Key::parse(work.plan, text)).collect();
        if !self.head.state.is_end() {
            keys.extend(work.cursor_keys()?);
        }
        let later = |key: &Key| !matches!(key.verb, Verb::CancelJob | Verb::CancelRun);
        keys.sort_by_key(later);
        let build = |key: Key| {
            let action = work.action(&key)?.unwrap_or_else(Action::Broken);
            Ok(Command { key: key.text(work.plan), verb: key.verb, action })
        };
        keys.into_iter().take(limit).map(build).collect()
    }

    /// Whether commands wait to be carried out.
    pub fn has_commands(&self) -> Result<bool, Missing> {
        Ok(!self.outbox(1)?.is_empty())
    }

    /// Whether the end of a task's job should bring its result along.
    pub fn reads_result(&self, task: &str) -> bool {
        let Some(place) = self.plan.place(task) else { return false };
        self.plan.node(place.node).read
    }

    /// The state of a step or item, by the text of its place.
    pub fn step_state(&self, place: &str) -> Result<Option<StepState>, Missing> {
        let Some(place) = self.plan.place(place) else { return Ok(None) };
        let work = Work::new(self, self.head.now);
        work.state(&place).map(Some).map_err(|lack| self.missing(&lack))
    }
}
