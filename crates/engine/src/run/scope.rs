//! Scopes: which steps start, what follows a step's end, and how a scope stops.

use serde_json::Value;

use super::{
    command::{Key, Verb},
    field::Field,
    place::{Inside, Place},
    plan::attempts,
    records::{Phase, RunError, ScopeRecord, StopWhy, Undo},
    sight::{Own, Sight},
    state::{RunMove, StepMove, StepState},
    steps,
    work::{Done, Task, Work},
};
use crate::{
    definition::{CompensateWhen, Kind, OnError, OnFailure, RunIf},
    value,
};

/// The most bytes of the values of a run.
pub(crate) const MOST_BYTES: u64 = 8 * 1024 * 1024;

/// How a step ends.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) event: StepMove,
    pub(crate) result: Option<Value>,
    pub(crate) truncated: bool,
    pub(crate) error: Option<RunError>,
    pub(crate) attempts: Option<u32>,
    pub(crate) reason: Option<String>,
    /// Whether the work was never begun, so that there is nothing to undo.
    pub(crate) untouched: bool,
}

impl End {
    fn new(event: StepMove) -> End {
        End { event, result: None, truncated: false, error: None, attempts: None, reason: None, untouched: false }
    }

    pub(crate) fn succeeded(result: Option<Value>) -> End {
        End { result, ..End::new(StepMove::Succeed) }
    }

    pub(crate) fn failed(error: RunError) -> End {
        End { error: Some(error), ..End::new(StepMove::Fail) }
    }

    /// Failed before anything was done.
    pub(crate) fn unborn(error: RunError) -> End {
        End { untouched: true, ..End::failed(error) }
    }

    pub(crate) fn stopped(why: StopWhy) -> End {
        match why {
            StopWhy::TimedOut => End {
                error: Some(RunError::new("step_timeout", "the step took longer than its `timeout_ms`")),
                ..End::new(StepMove::TimeOut)
            },
            _ => End::new(StepMove::Cancel),
        }
    }

    pub(crate) fn skipped(reason: String) -> End {
        End { reason: Some(reason), ..End::new(StepMove::Skip) }
    }
}

impl Work<'_> {
    /// Begins a scope that a step or item holds.
    pub(crate) fn begin_scope(&mut self, holder: &Place, branch: u32) -> Done {
        let inside = self.inner(holder, branch)?;
        let open = self.plan.scope(inside.scope).nodes.len() as u32;
        self.change_scope(&inside, |scope| *scope = ScopeRecord { open, begun: true, ..ScopeRecord::default() })?;
        self.examine_all(&inside);
        if open == 0 {
            self.tasks.push_back(Task::Scope(inside));
        }
        Ok(())
    }

    /// Has every step of a scope looked at that needs no other.
    pub(crate) fn examine_all(&mut self, inside: &Inside) {
        for place in self.plan.children(inside) {
            if self.plan.node(place.node).needs.is_empty() {
                self.tasks.push_back(Task::Examine(place));
            }
        }
    }

    /// Starts or skips a step whose needed steps have all ended.
    pub(crate) fn examine(&mut self, place: &Place) -> Done {
        if self.frozen() || self.state(place)? != StepState::Waiting {
            return Ok(());
        }
        let scope = self.scope(&self.plan.scope_of(place))?;
        if !scope.begun || scope.halted {
            return Ok(());
        }
        let (mut fine, mut bad) = (true, false);
        for &need in &self.plan.node(place.node).needs {
            let record = self.step(&Place::new(need, &place.at))?;
            if !record.state.is_end() {
                return Ok(());
            }
            bad |= record.state.is_failure() || record.by_failure;
            fine &= !record.state.is_failure() || self.plan.step(need).on_error == OnError::Continue;
        }
        let step = self.plan.step(place.node);
        match step.run_if {
            RunIf::Success if scope.failing => return self.skip(place, "another step failed", true),
            RunIf::Success if !fine => return self.skip(place, "a needed step failed", true),
            RunIf::Failure if !bad => return self.skip(place, "no needed step failed", false),
            _ => {}
        }
        if let Some(when) = &step.when {
            match self.condition(when, &Sight::of(place))? {
                Ok(true) => {}
                Ok(false) => return self.skip(place, "`when` is false", false),
                Err(error) => return self.end(place, End::unborn(error)),
            }
        }
        self.start(place)
    }

    fn skip(&mut self, place: &Place, why: &str, by_failure: bool) -> Done {
        self.step_mut(place)?.by_failure = by_failure;
        self.end(place, End::skipped(why.to_owned()))
    }

    fn start(&mut self, place: &Place) -> Done {
        self.spend();
        if !self.move_step(place, StepMove::Start)? {
            return Ok(());
        }
        let step = self.plan.step(place.node).clone();
        let limit = self.plan.definition().timeout_of(&step);
        let limit = limit.map(|ms| self.now + std::time::Duration::from_millis(ms));
        // The deadline of its job bounds a job step.
        let own_timer = step.for_each.is_some() || !matches!(step.kind, Kind::Job(_));
        let record = self.step_mut(place)?;
        record.limit = limit.unwrap_or_default();
        if let Some(limit) = limit.filter(|_| own_timer) {
            self.touch(place, limit)?;
        }
        if self.plan.item_around(place).is_none() {
            self.note("running", Some(place), "");
        }
        match step.for_each {
            Some(_) => self.begin_each(place),
            None => self.start_body(place),
        }
    }

    /// Starts what a step does, once for the step or for an item of it.
    pub(crate) fn start_body(&mut self, place: &Place) -> Done {
        let step = self.plan.step(place.node).clone();
        if attempts(&step) > 1 {
            self.step_mut(place)?.attempt = 1;
        }
        steps::of(&step.kind).start(self, place, &step)
    }

    /// Fails an attempt of a step that the engine itself repeats, or the step if no attempt is left.
    pub(crate) fn fail_attempt(&mut self, place: &Place, error: RunError) -> Done {
        let step = self.plan.step(place.node).clone();
        let record = self.step(place)?;
        let attempt = record.attempt.max(1);
        if record.stop.is_some() || attempt >= attempts(&step) {
            return self.end(place, End::failed(error));
        }
        let policy = step.retry.unwrap_or_default().over(muster_domain::RetryPolicy::default());
        let dice = super::command::job_id(self.about, self.plan, place, 0);
        let wake = self.now + policy.backoff.wait(dice, u16::try_from(attempt).unwrap_or(u16::MAX));
        let record = self.step_mut(place)?;
        record.phase = Phase::Backoff;
        record.wake = wake;
        let why = format!("attempt {attempt} failed: {}: {}", error.code, error.message);
        self.note("retrying", Some(place), &why);
        self.touch(place, wake)
    }

    /// Starts the next attempt of a step that the engine itself repeats.
    pub(crate) fn repeat(&mut self, place: &Place) -> Done {
        if !self.spend() || !self.move_repeat(place)? {
            return Ok(());
        }
        let step = self.plan.step(place.node).clone();
        steps::of(&step.kind).start(self, place, &step)
    }

    fn move_repeat(&mut self, place: &Place) -> Done<bool> {
        let started = self.step(place)?.started;
        let moved = self.move_step(place, StepMove::Repeat)?;
        let undoes = self.plan.node(place.node).undoes;
        if moved && !undoes && super::plan::repeats(self.plan.step(place.node)) {
            self.forget_inner(place)?;
        }
        if moved {
            let record = self.step_mut(place)?;
            (record.started, record.phase, record.wake) = (started, Phase::Work, muster_domain::Time::NONE);
            record.attempt = record.attempt.max(1) + 1;
            record.number = 0;
            record.sent = false;
            record.scopes.clear();
        }
        Ok(moved)
    }

    /// Ends a step, or an item of a for-each.
    pub(crate) fn end(&mut self, place: &Place, mut end: End) -> Done {
        let Some(state) = self.state(place)?.after(end.event) else { return Ok(()) };
        let step = self.plan.step(place.node).clone();
        let node = self.plan.node(place.node);
        let is_item = self.plan.is_item(place);
        let before = self.step(place)?.clone();
        let own = Own {
            place: place.clone(),
            state,
            attempts: end.attempts.unwrap_or(before.attempt.max(1)),
            result: end.result.take().map(std::sync::Arc::new),
            truncated: end.truncated,
            error: end.error.clone(),
        };
        let owes = !end.untouched
            && step.compensate.as_ref().is_some_and(|undo| match state {
                StepState::Succeeded => true,
                StepState::Skipped => false,
                _ => undo.when == CompensateWhen::Started && before.state == StepState::Running,
            });
        let mut event = end.event;
        let mut lost = None;
        if is_item
            && state == StepState::Succeeded
            && let Err(error) = self.collect(place, &own)?
        {
            (event, lost) = (StepMove::Fail, Some(error));
        }
        let keeps = match (&step.kind, is_item) {
            _ if own.result.is_none() || lost.is_some() => false,
            (Kind::Job(_), true) => false,
            (Kind::Job(_), false) => node.read || end.reason.is_some(),
            _ => true,
        };
        if let (true, Some(result)) = (keeps, &own.result) {
            if let Err(error) = self.grow(&Field::Result(place.clone()), result) {
                (event, lost) = (StepMove::Fail, Some(error));
            } else {
                self.put(Field::Result(place.clone()), super::codec::Record::Json(result.clone()));
            }
        }
        if owes && (node.keeps_undo || lost.is_some()) {
            self.keep_undo(place, &step, &own)?;
        }
        if !self.move_step(place, event)? {
            return Ok(());
        }
        self.head.ends += 1;
        let order = self.head.ends;
        let error = lost.or(end.error).map(|error| error.of(&self.plan.text(place)));
        let in_page = self.plan.item_around(place).is_some();
        let told_later = matches!(&step.kind, Kind::Notify(_)) || matches!(&step.kind, Kind::Workflow(w) if !w.wait);
        let record = self.step_mut(place)?;
        record.attempt = end.attempts.unwrap_or(record.attempt);
        record.error = error.map(Box::new);
        record.reason = end.reason.map(Into::into);
        record.truncated = end.truncated;
        record.kept = keeps && record.state == StepState::Succeeded;
        record.wake = muster_domain::Time::NONE;
        record.due = muster_domain::Time::NONE;
        record.phase = Phase::Work;
        record.order = order;
        record.undo = match owes {
            true if record.state == StepState::Succeeded => Undo::None,
            true => Undo::Due,
            false => Undo::None,
        };
        if in_page {
            // Pages stay small: what has ended says no more than it must.
            record.limit = muster_domain::Time::NONE;
            record.ended = muster_domain::Time::NONE;
            record.stop = None;
            record.sent = false;
            record.cancel_sent = false;
            if record.attempt == 1 {
                record.attempt = 0;
            }
            if is_item || !node.undoes {
                record.order = 0;
            }
            if !told_later {
                record.started = muster_domain::Time::NONE;
            }
        }
        self.unsend(&Key::new(Verb::Submit, place, 0))?;
        if is_item { self.item_ended(place) } else { self.step_ended(place) }
    }

    /// Counts bytes that a run keeps, or says why it cannot hold the value.
    pub(crate) fn grow(&mut self, field: &Field, value: &Value) -> Result<(), RunError> {
        if let Err(fault) = value::check(value) {
            return Err(RunError::new("expression_error", format!("the value {fault}")));
        }
        let bytes = super::size::of(value);
        if self.head.bytes + bytes > MOST_BYTES {
            let name = field.name(self.plan);
            return Err(RunError::new("run_too_large", format!("{bytes} more bytes ({name}) are beyond 8 MB")));
        }
        self.head.bytes += bytes;
        Ok(())
    }

    /// Counts bytes that a run no longer keeps.
    pub(crate) fn shrink(&mut self, value: &Value) {
        self.head.bytes = self.head.bytes.saturating_sub(super::size::of(value));
    }

    fn step_ended(&mut self, place: &Place) -> Done {
        let record = self.step(place)?.clone();
        let why = match (&record.error, &record.reason) {
            (Some(error), _) => format!("{}: {}", error.code, error.message),
            (None, Some(reason)) => reason.to_string(),
            _ => String::new(),
        };
        if self.plan.item_around(place).is_none() || matches!(record.state, StepState::Failed | StepState::TimedOut) {
            self.note(record.state.as_str(), Some(place), &why);
        }
        let inside = self.plan.scope_of(place);
        let open = self.change_scope(&inside, |scope| {
            scope.open = scope.open.saturating_sub(1);
            scope.open
        })?;
        let failed = matches!(record.state, StepState::Failed | StepState::TimedOut);
        if failed && self.plan.step(place.node).on_error == OnError::Fail {
            self.fail_scope(&inside, record.error.as_deref())?;
        }
        for &next in &self.plan.node(place.node).needed_by {
            self.tasks.push_back(Task::Examine(Place::new(next, &inside.at)));
        }
        if open == 0 {
            self.tasks.push_back(Task::Scope(inside));
        }
        Ok(())
    }

    fn fail_scope(&mut self, inside: &Inside, error: Option<&RunError>) -> Done {
        let first = self.change_scope(inside, |scope| {
            let first = !scope.failing && !scope.halted;
            if first {
                scope.failing = true;
                scope.error = error.cloned().map(Box::new);
            }
            first
        })?;
        if first && !self.frozen() {
            self.stop_after_failure(inside)?;
        }
        Ok(())
    }

    /// What follows the first failure of a scope, as soon as the run is not paused.
    pub(crate) fn stop_after_failure(&mut self, inside: &Inside) -> Done {
        if *inside == self.root() && self.head.stop.is_none() {
            let error = self.head.root.error.as_deref().cloned();
            self.stop_run(StopWhy::Failed, error);
        }
        if self.plan.on_failure() == OnFailure::Cancel {
            for place in self.plan.children(inside) {
                self.stop_step(&place, StopWhy::Cancelled)?;
            }
        }
        Ok(())
    }

    /// Begins to stop the run: it will end for this reason.
    pub(crate) fn stop_run(&mut self, why: StopWhy, error: Option<RunError>) {
        let text = error.as_ref().map(|error| format!("{}: {}", error.code, error.message)).unwrap_or_default();
        if self.head.stop.is_none() && self.move_run(RunMove::Stop, &text) {
            self.head.stop = Some(why);
            self.head.error = error;
        }
    }

    /// Stops a running step.
    pub(crate) fn stop_step(&mut self, place: &Place, why: StopWhy) -> Done {
        let record = self.step(place)?;
        if record.state != StepState::Running || record.stop.is_some() {
            return Ok(());
        }
        self.step_mut(place)?.stop = Some(why);
        match self.plan.is_each(place) {
            true => self.stop_each(place),
            false => self.stop_kind(place, why),
        }
    }

    /// Stops a running item.
    pub(crate) fn stop_item(&mut self, place: &Place, why: StopWhy) -> Done {
        let record = self.step(place)?;
        if record.state != StepState::Running || record.stop.is_some() {
            return Ok(());
        }
        self.step_mut(place)?.stop = Some(why);
        self.stop_kind(place, why)
    }

    fn stop_kind(&mut self, place: &Place, why: StopWhy) -> Done {
        let step = self.plan.step(place.node).clone();
        if self.step(place)?.phase == Phase::Backoff {
            return self.end(place, End::stopped(why));
        }
        steps::of(&step.kind).stop(self, place, &step, why)
    }

    /// Stops a scope for good: nothing in it starts any more.
    pub(crate) fn halt(&mut self, inside: &Inside) -> Done {
        let known = self.scope(inside)?;
        if !known.begun || known.halted || known.done {
            return Ok(());
        }
        self.change_scope(inside, |scope| scope.halted = true)?;
        for place in self.plan.children(inside) {
            match self.state(&place)? {
                StepState::Waiting => self.skip(&place, "its scope was stopped", true)?,
                StepState::Running => self.stop_step(&place, StopWhy::Cancelled)?,
                _ => {}
            }
        }
        // All its steps may have ended before, while the run was paused.
        self.tasks.push_back(Task::Scope(inside.clone()));
        Ok(())
    }

    /// Takes the end of a scope, once all its steps have ended.
    pub(crate) fn scope_ended(&mut self, inside: &Inside) -> Done {
        let scope = self.scope(inside)?;
        if self.frozen() || !scope.begun || scope.open > 0 || scope.done {
            return Ok(());
        }
        self.change_scope(inside, |scope| scope.done = true)?;
        let Some((holder, branch)) = self.plan.holder(inside) else { return self.root_ended() };
        if self.state(&holder)? != StepState::Running {
            return Ok(());
        }
        let step = self.plan.step(holder.node).clone();
        steps::of(&step.kind).scope_ended(self, &holder, &step, branch)
    }

    /// Ends a step or item whose only scope has ended.
    pub(crate) fn end_with_scope(&mut self, holder: &Place, branch: u32, result: Option<Value>) -> Done {
        if let Some(why) = self.step(holder)?.stop {
            return self.end(holder, End::stopped(why));
        }
        let scope = self.scope(&self.inner(holder, branch)?)?;
        match (scope.failing, scope.halted) {
            (true, _) => self.fail_attempt(holder, scope.error.map_or_else(lost_error, |error| *error)),
            (false, true) => self.end(holder, End::stopped(StopWhy::Cancelled)),
            (false, false) => self.end(holder, End::succeeded(result)),
        }
    }
}

/// The error of a scope that failed without one; there is no such scope.
pub(crate) fn lost_error() -> RunError {
    RunError::new("failed", "a step failed")
}
