//! Pausing and resuming. While a run is paused, only ends of what runs are taken, as they come; what would follow from
//! them is made up for when the run resumes, in the order of the definition.

use muster_domain::Time;

use super::{
    event::{Outcome, Refusal},
    place::{Inside, Place},
    state::{RunMove, RunState, StepState},
    steps,
    timers::earlier,
    work::{Done, Task, Work},
};
use crate::definition::Kind;

impl Work<'_> {
    pub(crate) fn pause(&mut self) -> Done<Outcome> {
        if self.head.state == RunState::Paused {
            return Ok(Outcome::Nothing);
        }
        if self.move_run(RunMove::Pause, "") {
            return Ok(Outcome::Applied);
        }
        Ok(Outcome::Refused(if self.head.state.is_end() { Refusal::RunDone } else { Refusal::WrongState }))
    }

    pub(crate) fn resume(&mut self) -> Done<Outcome> {
        if self.head.state == RunState::Running {
            return Ok(Outcome::Nothing);
        }
        if !self.move_run(RunMove::Resume, "") {
            let refusal = if self.head.state.is_end() { Refusal::RunDone } else { Refusal::WrongState };
            return Ok(Outcome::Refused(refusal));
        }
        let root = self.root();
        self.catch_up(&root)?;
        self.drain()?;
        // Timers that came due meanwhile act now, if what they are for is still running.
        if !self.head.state.is_end() {
            self.head.due = self.now;
            self.timer()?;
        }
        Ok(Outcome::Applied)
    }

    /// Does for a scope what was put off while the run was paused.
    pub(crate) fn catch_up(&mut self, inside: &Inside) -> Done {
        let scope = self.scope(inside)?;
        if !scope.begun || scope.done {
            return Ok(());
        }
        for place in self.plan.children(inside) {
            match self.state(&place)? {
                StepState::Waiting => self.tasks.push_back(Task::Examine(place)),
                StepState::Running if self.plan.is_each(&place) => {
                    let each = self.each(&place)?;
                    for item in each.low..each.issued {
                        let item = place.with(item);
                        if self.state(&item)? == StepState::Running {
                            self.catch_up_inside(&item)?;
                        }
                    }
                    self.tasks.push_back(Task::Each(place));
                }
                StepState::Running => self.catch_up_inside(&place)?,
                _ => {}
            }
        }
        if scope.failing {
            self.stop_after_failure(inside)?;
        }
        self.tasks.push_back(Task::Scope(inside.clone()));
        Ok(())
    }

    fn catch_up_inside(&mut self, holder: &Place) -> Done {
        for branch in 0..self.step(holder)?.scopes.len() as u32 {
            let inside = self.inner(holder, branch)?;
            self.catch_up(&inside)?;
        }
        let step = self.plan.step(holder.node).clone();
        steps::of(&step.kind).resumed(self, holder, &step)
    }

    /// Lets approvals expire, which a pause does not hold up.
    pub(crate) fn paused_timers(&mut self) -> Done {
        let now = self.now;
        for place in self.open_approvals()? {
            let record = self.step(&place)?;
            if record.wake.some().is_some_and(|wake| wake.reached(now)) {
                let step = self.plan.step(place.node).clone();
                steps::of(&step.kind).due(self, &place, &step)?;
            }
        }
        Ok(())
    }

    /// When the next approval expires.
    pub(crate) fn next_approval(&self) -> Done<Time> {
        let mut next = Time::NONE;
        for place in self.open_approvals()? {
            next = earlier(next, self.step(&place)?.wake);
        }
        Ok(next)
    }

    fn open_approvals(&self) -> Done<Vec<Place>> {
        let mut open = Vec::new();
        if self.plan.has_approvals() {
            self.running(&self.root(), &mut |place| {
                if matches!(self.plan.step(place.node).kind, Kind::Approval(_)) && !self.plan.is_each(place) {
                    open.push(place.clone());
                }
            })?;
        }
        Ok(open)
    }

    /// Visits every running step and item, from the outside in.
    pub(crate) fn running(&self, inside: &Inside, visit: &mut dyn FnMut(&Place)) -> Done {
        for place in self.plan.children(inside) {
            if self.state(&place)? != StepState::Running {
                continue;
            }
            visit(&place);
            if !self.plan.is_each(&place) {
                self.running_inside(&place, visit)?;
                continue;
            }
            let each = self.each(&place)?;
            for item in each.low..each.issued {
                let item = place.with(item);
                if self.state(&item)? == StepState::Running {
                    visit(&item);
                    self.running_inside(&item, visit)?;
                }
            }
        }
        Ok(())
    }

    fn running_inside(&self, holder: &Place, visit: &mut dyn FnMut(&Place)) -> Done {
        let scopes = self.step(holder)?.scopes.clone();
        for (branch, scope) in scopes.iter().enumerate() {
            if scope.begun && !scope.done {
                self.running(&self.inner(holder, branch as u32)?, visit)?;
            }
        }
        Ok(())
    }
}
