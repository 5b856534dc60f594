//! `approval`: asks people, and ends with who decided; rejected or too late, it fails.

use std::time::Duration;

use muster_domain::Time;
use serde_json::Value;

use super::Behaviour;
use crate::{
    definition::{ApprovalStep, Kind, Step},
    run::{Action, Done, End, Evaluated, Key, Place, RunError, Sight, StopWhy, Verb, Wait, Work},
};

pub(crate) struct Approval;

fn given(step: &Step) -> Option<&ApprovalStep> {
    match &step.kind {
        Kind::Approval(given) => Some(given),
        _ => None,
    }
}

fn open(work: &Work<'_>, place: &Place, step: &Step, started: Time) -> Evaluated<Action> {
    let Some(given) = given(step) else { return Ok(Err(RunError::new("no_command", "not an approval"))) };
    let sight = Sight::of(place).at_time(started);
    let title = match work.template(&given.title, &sight)? {
        Ok(Value::String(title)) => title,
        Ok(other) => other.to_string(),
        Err(error) => return Ok(Err(error)),
    };
    Ok(work.maybe(given.show.as_ref(), &sight)?.map(|show| Action::OpenApproval {
        step: work.plan.text(place),
        title,
        from: given.from.clone(),
        quorum: given.quorum,
        expires: given.expires_ms.map(|ms| started + Duration::from_millis(ms)),
        show,
    }))
}

fn close(work: &mut Work<'_>, place: &Place) -> Done {
    work.unsend(&Key::new(Verb::OpenApproval, place, 0))?;
    let action = Action::CloseApproval { step: work.plan.text(place) };
    work.send(&Key::new(Verb::CloseApproval, place, 0), action)
}

impl Behaviour for Approval {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let started = work.now;
        let action = match open(work, place, step, started)? {
            Ok(action) => action,
            Err(error) => return work.end(place, End::unborn(error)),
        };
        work.send(&Key::new(Verb::OpenApproval, place, 0), action)?;
        match given(step).and_then(|given| given.expires_ms) {
            Some(ms) => {
                let wake = started + Duration::from_millis(ms);
                work.step_mut(place)?.wake = wake;
                work.touch(place, wake)
            }
            None => Ok(()),
        }
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, _: &Step, why: StopWhy) -> Done {
        close(work, place)?;
        work.end(place, End::stopped(why))
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        close(work, place)
    }

    fn due(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        close(work, place)?;
        let error = RunError::new("approval_expired", "nobody decided in time");
        work.end(place, End::failed(error))
    }

    fn action(&self, work: &Work<'_>, place: &Place, step: &Step, key: &Key) -> Evaluated<Action> {
        match key.verb {
            Verb::OpenApproval => open(work, place, step, work.step(place)?.started),
            _ => Ok(Ok(Action::CloseApproval { step: work.plan.text(place) })),
        }
    }

    fn waits(&self, work: &Work<'_>, place: &Place, _: &Step) -> Done<Option<Wait>> {
        Ok(Some(Wait::Approval { step: work.plan.text(place) }))
    }
}

impl Work<'_> {
    /// Takes the decision of an approval.
    pub(crate) fn approval(&mut self, step: &str, granted: bool, by: &Value) -> Done {
        let Some(place) = self.plan.place(step) else { return Ok(()) };
        let asks = matches!(self.plan.step(place.node).kind, Kind::Approval(_)) && !self.plan.is_each(&place);
        if !asks || self.head.state.is_end() || !matches!(self.state(&place)?, crate::run::StepState::Running) {
            return Ok(());
        }
        self.unsend(&Key::new(Verb::OpenApproval, &place, 0))?;
        match granted {
            true => self.end(&place, End::succeeded(Some(by.clone()))),
            false => self.end(&place, End::failed(RunError::new("rejected", "the approval was rejected"))),
        }
    }
}
