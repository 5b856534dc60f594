//! `wait_signal`: ends with the body of a signal, or fails without one in time.

use std::time::Duration;

use super::Behaviour;
use crate::{
    definition::{Kind, Step, WaitSignalStep},
    run::{Done, End, Place, RunError, StopWhy, Wait, Work},
};

pub(crate) struct WaitSignal;

fn given(step: &Step) -> Option<&WaitSignalStep> {
    match &step.kind {
        Kind::WaitSignal(given) => Some(given),
        _ => None,
    }
}

impl Behaviour for WaitSignal {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Some(given) = given(step) else { return Ok(()) };
        if let Some(ms) = given.timeout_ms {
            let wake = work.now + Duration::from_millis(ms);
            work.step_mut(place)?.wake = wake;
            work.touch(place, wake)?;
        }
        work.wait_for_signal(place, &given.name)
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, step: &Step, why: StopWhy) -> Done {
        self.abandon(work, place, step)?;
        work.end(place, End::stopped(why))
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        given(step).map_or(Ok(()), |given| work.leave_signal(place, &given.name))
    }

    fn due(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        self.abandon(work, place, step)?;
        let name = given(step).map_or("", |given| &given.name);
        work.end(place, End::failed(RunError::new("signal_timeout", format!("no signal `{name}` came in time"))))
    }

    fn resumed(&self, work: &mut Work<'_>, _: &Place, step: &Step) -> Done {
        given(step).map_or(Ok(()), |given| work.match_signals(&given.name))
    }

    fn waits(&self, work: &Work<'_>, place: &Place, step: &Step) -> Done<Option<Wait>> {
        let step_text = work.plan.text(place);
        Ok(given(step).map(|given| Wait::Signal { step: step_text, name: given.name.clone() }))
    }
}
