//! `notify`: emits an event of the user's, and ends without waiting for it.

use super::Behaviour;
use crate::{
    definition::{Kind, Step},
    run::{Action, Done, End, Evaluated, Key, Place, RunError, Sight, Verb, Work, job_id},
};

pub(crate) struct Notify;

fn event(work: &Work<'_>, place: &Place, step: &Step, sight: &Sight<'_>) -> Evaluated<Action> {
    let Kind::Notify(notify) = &step.kind else { return Ok(Err(RunError::new("no_command", "not a notify"))) };
    Ok(work.maybe(notify.data.as_ref(), sight)?.map(|data| Action::Notify {
        id: job_id(work.about, work.plan, place, 0).to_string(),
        event_type: notify.event_type.clone(),
        data,
        step: work.plan.text(place),
    }))
}

impl Behaviour for Notify {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        match event(work, place, step, &Sight::of(place))? {
            Ok(action) => {
                work.send(&Key::new(Verb::Notify, place, 0), action)?;
                work.end(place, End::succeeded(None))
            }
            Err(error) => work.end(place, End::unborn(error)),
        }
    }

    fn action(&self, work: &Work<'_>, place: &Place, step: &Step, _: &Key) -> Evaluated<Action> {
        let started = work.step(place)?.started;
        event(work, place, step, &Sight::of(place).at_time(started))
    }
}
