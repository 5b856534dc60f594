//! Timers. Every step knows when it needs one, and everything around a step knows a time before which nothing in it
//! does. That time may be too early, never too late: an early timer finds nothing to do and puts it right.

use muster_domain::Time;

use super::{
    place::{Inside, Place},
    records::{PAGE, Phase, StopWhy},
    state::{RunState, StepState},
    steps,
    work::{Done, Work},
};
use crate::definition::Kind;

impl Work<'_> {
    /// Tells everything around a place that it needs a timer.
    pub(crate) fn touch(&mut self, place: &Place, at: Time) -> Done {
        let mut place = place.clone();
        loop {
            let record = self.step(&place)?;
            if record.due.some().is_none_or(|due| at < due) {
                self.step_mut(&place)?.due = at;
            }
            if self.plan.is_item(&place) {
                let Some((each, item)) = self.plan.item_around(&place) else { return Ok(()) };
                let dues = &mut self.each_mut(&each)?.dues;
                let due = dues.entry(item / PAGE).or_insert(at.0);
                *due = (*due).min(at.0);
                place = each;
                continue;
            }
            match self.plan.holder(&self.plan.scope_of(&place)) {
                Some((holder, _)) => place = holder,
                None => break,
            }
        }
        if self.head.due.some().is_none_or(|due| at < due) {
            self.head.due = at;
        }
        Ok(())
    }

    /// Acts on what is due.
    pub(crate) fn timer(&mut self) -> Done {
        if self.head.state.is_end() {
            return Ok(());
        }
        if self.head.limit.some().is_some_and(|limit| limit.reached(self.now)) {
            self.time_out_run()?;
        }
        if self.frozen() {
            return self.paused_timers();
        }
        if self.is_due(self.head.due) {
            let root = self.root();
            self.visit_scope(&root)?;
        }
        Ok(())
    }

    fn is_due(&self, at: Time) -> bool {
        at.some().is_some_and(|at| at.reached(self.now))
    }

    fn visit_scope(&mut self, inside: &Inside) -> Done {
        for place in self.plan.children(inside) {
            self.visit(&place)?;
        }
        Ok(())
    }

    /// Acts on what is due in a step.
    fn visit(&mut self, place: &Place) -> Done {
        let record = self.step(place)?.clone();
        if record.state != StepState::Running || !self.is_due(record.due) {
            return Ok(());
        }
        if self.is_due(record.limit) && record.stop.is_none() && self.times_itself(place) {
            return self.stop_step(place, StopWhy::TimedOut);
        }
        let Some(each) = record.each.filter(|_| self.plan.is_each(place)) else { return self.visit_body(place) };
        if self.is_due(record.wake) {
            self.step_mut(place)?.wake = Time::NONE;
            self.tasks.push_back(super::work::Task::Each(place.clone()));
        }
        for (page, due) in each.dues {
            if !self.is_due(Time(due)) {
                continue;
            }
            for item in page * PAGE..((page + 1) * PAGE).min(each.issued) {
                let item = place.with(item);
                let record = self.step(&item)?;
                if record.state == StepState::Running && self.is_due(record.due) {
                    self.visit_body(&item)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the engine enforces the time limit of a step; a plain job has it as its deadline.
    fn times_itself(&self, place: &Place) -> bool {
        self.plan.is_each(place) || !matches!(self.plan.step(place.node).kind, Kind::Job(_))
    }

    fn visit_body(&mut self, place: &Place) -> Done {
        let step = self.plan.step(place.node).clone();
        let record = self.step(place)?.clone();
        if self.is_due(record.wake) {
            return match record.phase {
                Phase::Backoff => self.repeat(place),
                _ => steps::of(&step.kind).due(self, place, &step),
            };
        }
        for branch in 0..record.scopes.len() as u32 {
            if record.scopes[branch as usize].begun && !record.scopes[branch as usize].done {
                let inside = self.inner(place, branch)?;
                self.visit_scope(&inside)?;
            }
        }
        Ok(())
    }

    /// Works out anew when the next timer is needed, where the known time has passed.
    pub(crate) fn refresh(&mut self) -> Done {
        if self.head.state.is_end() {
            self.head.due = Time::NONE;
            self.head.limit = Time::NONE;
        } else if self.frozen() {
            self.head.due = self.next_approval()?;
        } else if self.is_due(self.head.due) {
            let root = self.root();
            self.head.due = self.refresh_scope(&root)?;
        }
        Ok(())
    }

    fn refresh_scope(&mut self, inside: &Inside) -> Done<Time> {
        let mut next = Time::NONE;
        for place in self.plan.children(inside) {
            next = earlier(next, self.refresh_step(&place)?);
        }
        Ok(next)
    }

    fn refresh_step(&mut self, place: &Place) -> Done<Time> {
        let record = self.step(place)?.clone();
        if record.state != StepState::Running {
            return Ok(Time::NONE);
        }
        if !self.is_due(record.due) {
            return Ok(record.due);
        }
        let limit = if record.stop.is_none() && self.times_itself(place) { record.limit } else { Time::NONE };
        let mut next = earlier(limit, record.wake);
        if let Some(each) = record.each.filter(|_| self.plan.is_each(place)) {
            for (&page, &due) in &each.dues {
                let due = if self.is_due(Time(due)) { self.refresh_page(place, page, each.issued)? } else { Time(due) };
                let dues = &mut self.each_mut(place)?.dues;
                match due.some() {
                    Some(due) => drop(dues.insert(page, due.0)),
                    None => drop(dues.remove(&page)),
                }
                next = earlier(next, due);
            }
        } else {
            next = earlier(next, self.refresh_inside(place)?);
        }
        self.step_mut(place)?.due = next;
        Ok(next)
    }

    fn refresh_page(&mut self, each: &Place, page: u32, issued: u32) -> Done<Time> {
        let mut next = Time::NONE;
        for item in page * PAGE..((page + 1) * PAGE).min(issued) {
            let item = each.with(item);
            let record = self.step(&item)?;
            if record.state != StepState::Running {
                continue;
            }
            let mut due = record.due;
            if self.is_due(due) {
                due = record.wake;
                due = earlier(due, self.refresh_inside(&item)?);
                self.step_mut(&item)?.due = due;
            }
            next = earlier(next, due);
        }
        Ok(next)
    }

    fn refresh_inside(&mut self, holder: &Place) -> Done<Time> {
        let scopes = self.step(holder)?.scopes.clone();
        let mut next = Time::NONE;
        for (branch, scope) in scopes.iter().enumerate() {
            if scope.begun && !scope.done {
                let inside = self.inner(holder, branch as u32)?;
                next = earlier(next, self.refresh_scope(&inside)?);
            }
        }
        Ok(next)
    }

    fn time_out_run(&mut self) -> Done {
        self.head.limit = Time::NONE;
        if matches!(self.head.state, RunState::Running | RunState::Paused) {
            let error = super::records::RunError::new("run_timeout", "the run took longer than its `timeout_ms`");
            self.stop_run(StopWhy::TimedOut, Some(error));
        }
        self.halt_run()
    }
}

/// The earlier of two times that may be none.
pub(crate) fn earlier(a: Time, b: Time) -> Time {
    match (a.some(), b.some()) {
        (Some(a), Some(b)) => a.min(b),
        _ => Time(a.0.max(b.0)),
    }
}
