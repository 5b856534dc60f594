//! `job`: submits a job and ends as it does. Its retries are the job's own.

use super::Behaviour;
use crate::{
    definition::{Kind, Step},
    run::{
        Action, Done, End, Evaluated, Key, Place, RunError, Sight, StepState, StopWhy, Verb, Wait, Work, job_id, task,
        task_labels,
    },
};

pub(crate) struct Job;

/// Whether a stopped step is awaited instead of cancelled: it declares a compensation, and what it did would be unknown.
pub(crate) fn is_awaited(step: &Step, why: StopWhy) -> bool {
    step.compensate.is_some() && why == StopWhy::Cancelled
}

fn submit(work: &Work<'_>, place: &Place, step: &Step, sight: &Sight<'_>) -> Evaluated<Action> {
    let Kind::Job(job) = &step.kind else { return Ok(Err(RunError::new("no_command", "not a job"))) };
    let rendered = match work.render(job, sight)? {
        Ok(rendered) => rendered,
        Err(error) => return Ok(Err(error)),
    };
    Ok(Ok(Action::Submit(Box::new(work.submit(place, step, job, rendered)?))))
}

/// The cancel of a job. One that is awaited is only kept from being submitted, if it was not.
fn cancel(work: &Work<'_>, place: &Place, step: &Step, only_if_absent: bool) -> Option<Action> {
    let Kind::Job(job) = &step.kind else { return None };
    let mut labels = step.labels.clone();
    labels.extend(task_labels(work.about.run, &step.id));
    Some(Action::CancelJob {
        job: job_id(work.about, work.plan, place, 0),
        topic: job.topic.clone(),
        task: task(work.plan, place, false),
        labels,
        only_if_absent,
    })
}

impl Behaviour for Job {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let action = match submit(work, place, step, &Sight::of(place))? {
            Ok(action) => action,
            Err(error) => return work.end(place, End::unborn(error)),
        };
        let key = Key::new(Verb::Submit, place, 0);
        if work.by_cursor(place) {
            work.tell(&key, action);
            return Ok(());
        }
        work.send(&key, action)
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, step: &Step, why: StopWhy) -> Done {
        let awaited = is_awaited(step, why);
        if awaited && work.step(place)?.sent {
            return Ok(());
        }
        let Some(action) = cancel(work, place, step, awaited) else { return Ok(()) };
        let key = Key::new(Verb::CancelJob, place, 0);
        if work.by_cursor(place) {
            work.tell(&key, action);
            return Ok(());
        }
        work.unsend(&Key::new(Verb::Submit, place, 0))?;
        work.send(&key, action)
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Some(action) = cancel(work, place, step, false) else { return Ok(()) };
        work.unsend(&Key::new(Verb::Submit, place, 0))?;
        work.send(&Key::new(Verb::CancelJob, place, 0), action)
    }

    fn action(&self, work: &Work<'_>, place: &Place, step: &Step, key: &Key) -> Evaluated<Action> {
        let record = work.step(place)?;
        match key.verb {
            Verb::Submit => submit(work, place, step, &Sight::of(place).at_time(record.started)),
            _ => {
                let runs = record.state == StepState::Running;
                let only_if_absent = runs && record.stop.is_some_and(|why| is_awaited(step, why));
                Ok(cancel(work, place, step, only_if_absent).ok_or_else(|| RunError::new("no_command", "not a job")))
            }
        }
    }

    fn waits(&self, work: &Work<'_>, place: &Place, _: &Step) -> Done<Option<Wait>> {
        Ok(Some(Wait::Job {
            task: task(work.plan, place, false),
            job: job_id(work.about, work.plan, place, 0),
            confirmed: work.step(place)?.sent,
        }))
    }
}
