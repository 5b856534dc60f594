//! Applying one event: a match and nothing else, and the work that follows from it.

use super::{
    command::{Key, Verb},
    document::{Applied, Missing, Run},
    event::{Event, JobEnd, Outcome, Refusal, RunOp, What},
    field::Field,
    place::Place,
    records::{RunError, StopWhy, Undo},
    scope::End,
    state::{RunMove, RunState, StepMove, StepState},
    steps,
    work::{Done, Task, Work},
};
use crate::{
    definition::{Kind, WorkflowStep},
    value,
};
use muster_domain::job::Ending;

/// How many requests a run remembers, to know one that comes twice.
const MOST_OPS: usize = 128;

impl Run {
    /// Applies an event. Changes the run in memory, or nothing if fields are missing.
    pub fn apply(&mut self, event: &Event) -> Result<Applied, Missing> {
        let mut work = Work::new(self, event.at);
        let outcome = match apply(&mut work, event) {
            Ok(outcome) => outcome,
            Err(lack) => return Err(self.missing(&lack)),
        };
        let done = work.finish();
        if done.changed.is_empty() && done.head == self.head {
            let outcome = if outcome == Outcome::Applied { Outcome::Nothing } else { outcome };
            return Ok(Applied { outcome, commands: Vec::new(), timeline: Vec::new() });
        }
        if done.head != self.head {
            self.set_head(done.head);
        }
        for (field, record) in done.changed {
            self.set(field, record);
        }
        Ok(Applied { outcome, commands: done.commands, timeline: done.timeline })
    }
}

/// Applies an event and all that follows from it.
pub(crate) fn apply(work: &mut Work<'_>, event: &Event) -> Done<Outcome> {
    let outcome = match &event.what {
        What::Start => work.start_run()?,
        What::Refuse(error) => work.refuse_run(error)?,
        What::Timer => done(work.timer()?),
        What::JobEnded(end) => done(work.job_ended(end)?),
        What::JobLost { task, job } => done(work.job_lost(task, *job)?),
        What::SubRunEnded(end) => done(work.sub_run_ended(end)?),
        What::Signal { id, name, body } => work.take_signal(id, name, body, event.at)?,
        What::Approval { step, granted, by } => done(work.approval(step, *granted, by)?),
        What::Done(key) => done(work.confirmed(key)?),
        What::Refused { key, error } => done(work.refused(key, error)?),
        What::Op { id, op } => work.asked(id, op)?,
    };
    work.drain()?;
    work.refresh()?;
    Ok(outcome)
}

fn done((): ()) -> Outcome {
    Outcome::Applied
}

impl Work<'_> {
    /// Looks at everything that an event left to be looked at.
    pub(crate) fn drain(&mut self) -> Done {
        while let Some(task) = self.tasks.pop_front() {
            match task {
                Task::Examine(place) => self.examine(&place)?,
                Task::Scope(inside) => self.scope_ended(&inside)?,
                Task::Each(place) => self.pump(&place)?,
                Task::Undo(item) => self.undo_next(item.as_ref())?,
            }
        }
        Ok(())
    }

    fn start_run(&mut self) -> Done<Outcome> {
        if !self.move_run(RunMove::Start, "") {
            return Ok(Outcome::Nothing);
        }
        self.head.started = self.now;
        let limit = self.plan.definition().timeout_ms;
        self.head.limit =
            limit.map(|ms| self.now + std::time::Duration::from_millis(ms)).unwrap_or(muster_domain::Time::NONE);
        let root = self.root();
        self.head.root.begun = true;
        self.examine_all(&root);
        if self.about.rerun_of.is_some() {
            // Steps whose needed steps were all taken over.
            self.tasks.extend(self.plan.children(&root).map(Task::Examine));
            self.tasks.push_back(Task::Scope(root));
        }
        Ok(Outcome::Applied)
    }

    fn refuse_run(&mut self, error: &RunError) -> Done<Outcome> {
        if !self.move_run(RunMove::Fail, &error.code) {
            return Ok(Outcome::Nothing);
        }
        self.head.error = Some(error.clone());
        self.after_end()?;
        Ok(Outcome::Applied)
    }

    fn job_ended(&mut self, end: &JobEnd) -> Done {
        let Some((place, undo)) = self.task_place(&end.task) else { return Ok(()) };
        if undo {
            return self.undo_job_ended(&place, end);
        }
        if super::command::job_id(self.about, self.plan, &place, 0) != end.job {
            return Ok(());
        }
        let record = self.step(&place)?;
        if record.state != StepState::Running || self.plan.is_each(&place) || self.head.state.is_end() {
            return Ok(());
        }
        let stop = record.stop;
        self.unsend(&Key::new(Verb::CancelJob, &place, 0))?;
        let given = end.error.clone();
        let error = |code: &str, text: &str| given.unwrap_or_else(|| RunError::new(code, text));
        let how = match (end.ending, stop) {
            (Ending::Succeeded, _) => {
                // What the run cannot hold counts as truncated: there is no result, and reading it is an error.
                let held = end.result.as_ref().is_none_or(|result| value::check(result).is_ok());
                let truncated = end.truncated || !held;
                End { truncated, ..End::succeeded(end.result.clone().filter(|_| held)) }
            }
            (Ending::Cancelled, Some(why)) => End::stopped(why),
            (Ending::Cancelled, None) => End::failed(error("cancelled", "the job was cancelled by hand")),
            (Ending::TimedOut, _) => {
                End { event: StepMove::TimeOut, ..End::failed(error("deadline_exceeded", "the job ran out of time")) }
            }
            (Ending::Expired, _) => {
                End { event: StepMove::TimeOut, ..End::failed(error("expired", "the job ran out of time")) }
            }
            (Ending::Denied, _) => End::failed(error("denied", "the job was denied")),
            (Ending::Quarantined, _) => End::failed(error("quarantined", "the job is in quarantine")),
            (Ending::Failed, _) => End::failed(error("handler_error", "the job failed")),
        };
        self.end(&place, End { attempts: Some(end.attempts), ..how })
    }

    fn job_lost(&mut self, task: &str, job: muster_domain::JobId) -> Done {
        let Some((place, undo)) = self.task_place(task) else { return Ok(()) };
        let error = RunError::new("job_lost", format!("the job {job} was submitted, and is gone without an end"));
        if undo {
            return self.undo_refused(&place, &error);
        }
        let same = super::command::job_id(self.about, self.plan, &place, 0) == job;
        if !same || !self.step(&place)?.sent || self.plan.is_each(&place) || self.head.state.is_end() {
            return Ok(());
        }
        self.end(&place, End::failed(error))
    }

    /// The place that a task's name means, and whether it is its compensation.
    fn task_place(&self, task: &str) -> Option<(Place, bool)> {
        match task.strip_prefix("undo:") {
            Some(text) => Some((self.plan.place(text)?, true)),
            None => Some((self.plan.place(task)?, false)),
        }
    }

    fn asked(&mut self, id: &str, op: &RunOp) -> Done<Outcome> {
        let hash = super::signals::hash(id);
        if self.hashes(&Field::Ops)?.is_some_and(|seen| seen.contains(&hash)) {
            return Ok(Outcome::Nothing);
        }
        let outcome = match op {
            RunOp::Cancel { compensate, reason } => self.cancel(*compensate, reason)?,
            RunOp::Pause => self.pause()?,
            RunOp::Resume => self.resume()?,
            RunOp::Complete { step, result, reason } => {
                if let Err(fault) = value::check(result) {
                    return Ok(Outcome::Refused(Refusal::Value(fault)));
                }
                let end = End { reason: Some(reason.clone()), ..End::succeeded(Some(result.clone())) };
                self.end_by_hand(step, end)?
            }
            RunOp::Skip { step, reason } => self.end_by_hand(step, End::skipped(reason.clone()))?,
            RunOp::Compensate { tell } => self.compensate_again(tell.as_ref())?,
        };
        // Also what did nothing is remembered: coming again later, it might do something.
        let seen = self.hashes_mut(&Field::Ops)?;
        seen.push(hash);
        if seen.len() > MOST_OPS {
            seen.remove(0);
        }
        Ok(outcome)
    }

    fn cancel(&mut self, compensate: bool, reason: &str) -> Done<Outcome> {
        let error = RunError::new("cancelled", reason);
        match self.head.state {
            RunState::Queued => {
                self.move_run(RunMove::Cancel, reason);
                self.head.error = Some(error);
                self.after_end()?;
            }
            RunState::Running | RunState::Paused => {
                self.head.without_undo = !compensate;
                self.stop_run(StopWhy::Cancelled, Some(error));
                self.halt_run()?;
            }
            RunState::Stopping => {
                let root = self.root();
                if self.scope(&root)?.halted {
                    return Ok(Outcome::Nothing);
                }
                self.halt_run()?;
            }
            RunState::Compensating => return Ok(Outcome::Nothing),
            RunState::Cancelled => return Ok(Outcome::Nothing),
            _ => return Ok(Outcome::Refused(Refusal::RunDone)),
        }
        Ok(Outcome::Applied)
    }

    /// Stops all that runs and lets nothing start.
    pub(crate) fn halt_run(&mut self) -> Done {
        let root = self.root();
        self.halt(&root)?;
        // While the run was paused, the last step may have ended of a scope that was stopped before.
        self.catch_up(&root)
    }

    fn end_by_hand(&mut self, step: &str, end: End) -> Done<Outcome> {
        let Some(place) = self.plan.place(step) else { return Ok(Outcome::Refused(Refusal::NotRunning)) };
        if self.head.state.is_end() || self.state(&place)? != StepState::Running {
            return Ok(Outcome::Refused(Refusal::NotRunning));
        }
        if self.plan.is_each(&place) {
            self.stop_each(&place)?;
        } else if self.step(&place)?.stop.is_none() {
            self.step_mut(&place)?.stop = Some(StopWhy::Cancelled);
            let given = self.plan.step(place.node).clone();
            steps::of(&given.kind).abandon(self, &place, &given)?;
        }
        self.end(&place, end)?;
        Ok(Outcome::Applied)
    }

    fn confirmed(&mut self, text: &str) -> Done {
        let Some(key) = Key::parse(self.plan, text) else { return Ok(()) };
        self.unsend(&key)?;
        let Some(place) = &key.place else { return Ok(()) };
        let running = self.state(place)? == StepState::Running;
        match key.verb {
            Verb::Submit | Verb::StartRun if running && !self.step(place)?.sent => {
                let stale = key.verb == Verb::StartRun && self.step(place)?.attempt.max(1) != key.number;
                if !stale {
                    self.step_mut(place)?.sent = true;
                }
                if self.by_cursor(place)
                    && let Some((each, _)) = self.plan.item_around(place)
                {
                    // Only the payload needs it, and that has arrived: the page stays small.
                    self.step_mut(place)?.started = muster_domain::Time::NONE;
                    self.advance(&each)?;
                }
            }
            Verb::CancelJob if running && self.by_cursor(place) => self.step_mut(place)?.cancel_sent = true,
            _ => {}
        }
        Ok(())
    }

    fn refused(&mut self, text: &str, error: &RunError) -> Done {
        let Some(key) = Key::parse(self.plan, text) else { return Ok(()) };
        let held = self.unsend(&key)?;
        let Some(place) = &key.place else { return Ok(()) };
        let record = self.step(place)?;
        let open = record.state == StepState::Running && !record.sent && !self.head.state.is_end();
        match key.verb {
            Verb::Submit if open && !self.plan.is_each(place) => self.end(place, End::unborn(error.clone())),
            Verb::StartRun if open && held => match &self.plan.step(place.node).kind {
                Kind::Workflow(WorkflowStep { wait: true, .. }) => self.fail_attempt(place, error.clone()),
                _ => Ok(()),
            },
            Verb::OpenApproval if open => self.end(place, End::unborn(error.clone())),
            Verb::Undo | Verb::UndoRun if held => {
                let undoing = self.step(place)?.undo == Undo::Running;
                if undoing { self.undo_refused(place, error) } else { Ok(()) }
            }
            Verb::Notify => {
                self.note("notify_refused", Some(place), &error.code);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
