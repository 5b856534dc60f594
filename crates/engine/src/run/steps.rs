//! The kinds of steps: what each does when it starts, when it is stopped, when a timer is due, and when a scope of it
//! ends. One file per kind, and one line in [`of`].

mod approval;
mod delay;
mod fail;
pub(crate) mod job;
pub(crate) mod loops;
mod notify;
mod parallel;
mod scope;
mod set;
mod switch;
mod wait_signal;
mod workflow;

use crate::{
    definition::{Kind, Step},
    run::{Action, Done, End, Evaluated, Key, Place, RunError, StopWhy, Wait, Work},
};

/// What a kind of step does. `place` is the step, or one item of its for-each.
pub(crate) trait Behaviour {
    /// Starts it: the first time, or a new attempt.
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done;

    /// Stops it while it runs. It ends now, or once what it waits for has ended.
    fn stop(&self, work: &mut Work<'_>, place: &Place, _step: &Step, why: StopWhy) -> Done {
        work.end(place, End::stopped(why))
    }

    /// Takes back what it asked for outside, because somebody ends it by hand.
    fn abandon(&self, _work: &mut Work<'_>, _place: &Place, _step: &Step) -> Done {
        Ok(())
    }

    /// Its timer is due.
    fn due(&self, _work: &mut Work<'_>, _place: &Place, _step: &Step) -> Done {
        Ok(())
    }

    /// One of the scopes that it holds has ended.
    fn scope_ended(&self, _work: &mut Work<'_>, _place: &Place, _step: &Step, _branch: u32) -> Done {
        Ok(())
    }

    /// The run resumes after a pause in which it was running.
    fn resumed(&self, _work: &mut Work<'_>, _place: &Place, _step: &Step) -> Done {
        Ok(())
    }

    /// Builds a command of it once more.
    fn action(&self, _work: &Work<'_>, _place: &Place, _step: &Step, _key: &Key) -> Evaluated<Action> {
        Ok(Err(RunError::new("no_command", "this kind of step has no such command")))
    }

    /// What it waits for while it runs, besides its timer and its scopes.
    fn waits(&self, _work: &Work<'_>, _place: &Place, _step: &Step) -> Done<Option<Wait>> {
        Ok(None)
    }
}

/// The behaviour of a kind.
pub(crate) fn of(kind: &Kind) -> &'static dyn Behaviour {
    match kind {
        Kind::Job(_) => &job::Job,
        Kind::Approval(_) => &approval::Approval,
        Kind::Delay(_) => &delay::Delay,
        Kind::WaitSignal(_) => &wait_signal::WaitSignal,
        Kind::Set(_) => &set::Set,
        Kind::Switch(_) => &switch::Switch,
        Kind::Parallel(_) => &parallel::Parallel,
        Kind::Loop(_) => &loops::Loop,
        Kind::Workflow(_) => &workflow::Workflow,
        Kind::Notify(_) => &notify::Notify,
        Kind::Fail { .. } => &fail::Fail,
        Kind::Steps(_) => &scope::Steps,
    }
}

/// Halts the scopes that a step holds; its end follows when they have ended.
fn halt_scopes(work: &mut Work<'_>, place: &Place) -> Done {
    for branch in 0..work.step(place)?.scopes.len() as u32 {
        let inside = work.inner(place, branch)?;
        work.halt(&inside)?;
    }
    Ok(())
}
