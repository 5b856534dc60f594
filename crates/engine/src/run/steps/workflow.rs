//! `workflow`: starts a run of another workflow and ends as it does, or at once with `wait: false`.

use serde_json::json;

use super::{Behaviour, job::is_awaited};
use crate::{
    definition::{Kind, Step, WorkflowStep},
    run::{
        Action, Done, End, Evaluated, Key, Place, RunError, RunState, Sight, StepMove, StepState, StopWhy, SubRunEnd,
        Verb, Wait, Work, sub_run_id,
    },
};

pub(crate) struct Workflow;

/// How deep runs may start runs.
const DEEPEST: u32 = 10;

fn given(step: &Step) -> Option<&WorkflowStep> {
    match &step.kind {
        Kind::Workflow(given) => Some(given),
        _ => None,
    }
}

fn start(work: &Work<'_>, place: &Place, step: &Step, attempt: u32, sight: &Sight<'_>) -> Evaluated<Action> {
    let Some(given) = given(step) else { return Ok(Err(RunError::new("no_command", "not a workflow"))) };
    let depth = work.about.depth + 1;
    if depth > DEEPEST {
        let message = format!("runs start runs at most {DEEPEST} deep");
        return Ok(Err(RunError::new("sub_run_too_deep", message)));
    }
    Ok(work.maybe(given.input.as_ref(), sight)?.map(|input| Action::StartRun {
        run: sub_run_id(work.about, work.plan, place, attempt),
        workflow: given.name.clone(),
        version: given.version,
        input,
        parent: given.wait.then(|| work.parent(place, attempt)),
        depth,
    }))
}

fn cancel(work: &Work<'_>, place: &Place, step: &Step, attempt: u32, only_if_absent: bool) -> Option<Action> {
    given(step).map(|given| Action::CancelRun {
        run: sub_run_id(work.about, work.plan, place, attempt),
        workflow: given.name.clone(),
        parent: work.parent(place, attempt),
        only_if_absent,
    })
}

fn send_cancel(work: &mut Work<'_>, place: &Place, step: &Step, only_if_absent: bool) -> Done {
    let attempt = work.step(place)?.attempt.max(1);
    let Some(action) = cancel(work, place, step, attempt, only_if_absent) else { return Ok(()) };
    work.unsend(&Key::new(Verb::StartRun, place, attempt))?;
    work.send(&Key::new(Verb::CancelRun, place, attempt), action)
}

impl Behaviour for Workflow {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let attempt = work.step(place)?.attempt.max(1);
        let action = match start(work, place, step, attempt, &Sight::of(place))? {
            Ok(action) => action,
            Err(error) => return work.end(place, End::unborn(error)),
        };
        work.send(&Key::new(Verb::StartRun, place, attempt), action)?;
        if given(step).is_some_and(|given| !given.wait) {
            let run = sub_run_id(work.about, work.plan, place, attempt);
            return work.end(place, End::succeeded(Some(json!({"run_id": run.to_string()}))));
        }
        Ok(())
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, step: &Step, why: StopWhy) -> Done {
        let awaited = is_awaited(step, why);
        if awaited && work.step(place)?.sent {
            return Ok(());
        }
        send_cancel(work, place, step, awaited)
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        send_cancel(work, place, step, false)
    }

    fn action(&self, work: &Work<'_>, place: &Place, step: &Step, key: &Key) -> Evaluated<Action> {
        let record = work.step(place)?;
        match key.verb {
            Verb::StartRun => start(work, place, step, key.number, &Sight::of(place).at_time(record.started)),
            _ => {
                let runs = record.state == StepState::Running;
                let only_if_absent = runs && record.stop.is_some_and(|why| is_awaited(step, why));
                let action = cancel(work, place, step, key.number, only_if_absent);
                Ok(action.ok_or_else(|| RunError::new("no_command", "not a workflow")))
            }
        }
    }

    fn waits(&self, work: &Work<'_>, place: &Place, _: &Step) -> Done<Option<Wait>> {
        let record = work.step(place)?;
        let run = sub_run_id(work.about, work.plan, place, record.attempt.max(1));
        Ok(Some(Wait::SubRun { step: work.plan.text(place), run, confirmed: record.sent }))
    }
}

impl Work<'_> {
    /// Takes the end of a sub-run.
    pub(crate) fn sub_run_ended(&mut self, end: &SubRunEnd) -> Done {
        let Some(place) = self.plan.place(&end.step) else { return Ok(()) };
        let step = self.plan.step(place.node).clone();
        if given(&step).is_none() || self.plan.is_each(&place) {
            return Ok(());
        }
        if end.undone {
            return self.sub_run_undone(&place, end);
        }
        let record = self.step(&place)?;
        let attempt = record.attempt.max(1);
        let same = sub_run_id(self.about, self.plan, &place, attempt) == end.run;
        if !same || record.state != StepState::Running || self.head.state.is_end() {
            return Ok(());
        }
        let stop = record.stop;
        for verb in [Verb::StartRun, Verb::CancelRun] {
            self.unsend(&Key::new(verb, &place, attempt))?;
        }
        let error =
            end.error.clone().unwrap_or_else(|| RunError::new(end.state.as_str(), "the sub-run did not succeed"));
        match (end.state, stop) {
            (RunState::Succeeded, _) => self.end(&place, End::succeeded(end.output.clone())),
            (RunState::Cancelled, Some(why)) => self.end(&place, End::stopped(why)),
            (RunState::TimedOut, _) => self.end(&place, End { event: StepMove::TimeOut, ..End::failed(error) }),
            _ => self.fail_attempt(&place, error),
        }
    }
}
