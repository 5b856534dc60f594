//! A run as people see it: its steps, the items of a for-each, and the values that it keeps. Reading changes nothing and,
//! like an event, names all fields that it needs and that were not read.
//!
//! A list of steps costs one small field a step, whatever a for-each holds: items are read page by page. Only the
//! compensations of items need their pages, and only where the definition declares some.

use std::{collections::BTreeSet, sync::Arc};

use muster_domain::{JobId, RunId, Time};
use serde_json::Value;

use super::{
    codec::Record,
    command::job_id,
    document::{Lack, Missing, Run},
    field::Field,
    place::{Inside, Place},
    records::{About, RunError, StepRecord, Undo},
    sight::pages,
    state::{RunState, StepState},
    work::{Done, Work},
};
use crate::definition::Kind;

/// A step of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepView {
    /// Its place: the id, with the numbers of the attempts and iterations around it.
    pub place: String,
    /// Its id in the definition.
    pub id: String,
    /// The kind of step, as the definition names it.
    pub kind: &'static str,
    /// Its state.
    pub state: StepState,
    /// When it started; [`Time::NONE`] if it did not.
    pub started: Time,
    /// When it ended; [`Time::NONE`] if it did not.
    pub ended: Time,
    /// How many attempts it had. Those of a job are known once it has ended.
    pub attempts: u32,
    /// Why it failed.
    pub error: Option<RunError>,
    /// Why it was skipped, or what a person said who ended it by hand.
    pub reason: Option<String>,
    /// Its job, from its start on; none for a for-each, whose items have one each.
    pub job: Option<JobId>,
    /// The run that it started, in its latest attempt.
    pub sub_run: Option<RunId>,
    /// The items of a for-each that has begun.
    pub each: Option<EachView>,
    /// The latest iteration of a loop; 0 is the first.
    pub iteration: Option<u32>,
    /// The branch that a switch took.
    pub branch: Option<u32>,
    /// How far its compensation is; for a for-each, the furthest from done of all that its items hold.
    pub compensation: Undo,
    /// Whether its result is too large to be kept.
    pub truncated: bool,
}

/// The items of a for-each, counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EachView {
    /// All items.
    pub total: u32,
    /// Items that were started.
    pub issued: u32,
    /// Items that succeeded.
    pub succeeded: u32,
    /// Items that failed or timed out.
    pub failed: u32,
    /// Items that run.
    pub running: u32,
}

/// Some items of a for-each.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemsView {
    /// How many items the for-each has; 0 before it begins.
    pub total: u32,
    /// The items that were asked for, in order.
    pub items: Vec<ItemView>,
}

/// One item of a for-each.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemView {
    /// Its number; 0 is the first.
    pub index: u32,
    /// Its state.
    pub state: StepState,
    /// Why it failed: the code, and the step in it that failed first. The message is in the job.
    pub error: Option<RunError>,
    /// Its job, from its start on.
    pub job: Option<JobId>,
    /// The run that it started, in its latest attempt.
    pub sub_run: Option<RunId>,
    /// What `collect` kept of it, or the result of what is not a job.
    pub value: Option<Arc<Value>>,
}

impl Run {
    /// Every step of the outermost scope, and every nested step that has begun, in the order of the definition. Of a
    /// loop, the iterations that are kept. What the items of a for-each hold is not listed.
    pub fn view_steps(&self) -> Result<Vec<StepView>, Missing> {
        let work = Work::new(self, self.head.now);
        work.view_scope(&work.root()).map_err(|lack| self.missing(&lack))
    }

    /// At most `limit` items of a for-each, from an index on; `None` if there is no such step or it has no for-each.
    pub fn view_items(&self, step: &str, from: u32, limit: u32) -> Result<Option<ItemsView>, Missing> {
        let Some(place) = self.plan.place(step).filter(|place| self.plan.is_each(place)) else { return Ok(None) };
        let work = Work::new(self, self.head.now);
        work.view_items(&place, from, limit).map(Some).map_err(|lack| self.missing(&lack))
    }

    /// Its input.
    pub fn input(&self) -> Result<Option<&Value>, Missing> {
        self.value(&Field::Input)
    }

    /// Its output; `None` before it succeeded.
    pub fn output(&self) -> Result<Option<&Value>, Missing> {
        self.value(&Field::Output)
    }

    /// The result of a step or item that the run keeps; `None` if there is no such place. The result of a job is kept
    /// only if an expression reads it, and that of an item only by `collect`; all others are in their jobs.
    pub fn step_result(&self, place: &str) -> Result<Option<&Value>, Missing> {
        let Some(place) = self.plan.place(place) else { return Ok(None) };
        let work = Work::new(self, self.head.now);
        let record = work.step(&place).map_err(|lack| self.missing(&lack))?;
        if record.state != StepState::Succeeded {
            return Ok(None);
        }
        if self.plan.is_item(&place) && work.collects(&place) {
            return self.value(&Field::Collected(place));
        }
        if record.kept { self.value(&Field::Result(place)) } else { Ok(None) }
    }

    /// How far the compensations of the run are, and how many failed in the latest round.
    pub fn compensation(&self) -> (Undo, u32) {
        (self.head.undo.state, self.head.undo.failed)
    }

    fn value(&self, field: &Field) -> Result<Option<&Value>, Missing> {
        match self.get(field) {
            Ok(Some(Record::Json(value))) => Ok(Some(value.as_ref())),
            Ok(_) => Ok(None),
            Err(lack) => Err(self.missing(&lack)),
        }
    }
}

impl Work<'_> {
    fn view_scope(&self, inside: &Inside) -> Done<Vec<StepView>> {
        let whole = *inside == self.root();
        let children = self.plan.children(inside).map(|place| self.view_tree(&place, whole));
        Ok(together(children)?.into_iter().flatten().collect())
    }

    /// A step and those nested in it; nothing of a step that has not begun, unless it is listed anyway.
    fn view_tree(&self, place: &Place, listed: bool) -> Done<Vec<StepView>> {
        let record = self.step(place)?;
        if record.state == StepState::Waiting {
            return if listed { Ok(vec![self.view(place, record)?]) } else { Ok(Vec::new()) };
        }
        let mut views = vec![self.view(place, record)?];
        if !self.plan.is_each(place) {
            let scopes = self.kept_scopes(place)?;
            let nested = together(scopes.iter().map(|inside| self.view_scope(inside)))?;
            views.extend(nested.into_iter().flatten());
        }
        Ok(views)
    }

    fn view(&self, place: &Place, record: &StepRecord) -> Done<StepView> {
        let step = self.plan.step(place.node);
        let each = self.plan.is_each(place);
        let began = record.state == StepState::Running || record.started.some().is_some();
        let is_job = matches!(step.kind, Kind::Job(_));
        let attempts = match began && !(is_job && record.state.is_end()) {
            true => record.attempt.max(1),
            false => record.attempt,
        };
        let scope_begun = |scope: u32| record.scopes.get(scope as usize).is_some_and(|scope| scope.begun);
        let counts = record.each.as_deref().filter(|_| each);
        Ok(StepView {
            place: self.plan.text(place),
            id: step.id.clone(),
            kind: step.kind.name(),
            state: record.state,
            started: record.started,
            ended: record.ended,
            attempts,
            error: record.error.as_deref().cloned(),
            reason: record.reason.as_deref().map(str::to_owned),
            job: if is_job && began && !each { Some(self.job_of(place)?) } else { None },
            sub_run: if began && !each { self.sub_run_of(place, record)? } else { None },
            each: counts.map(|each| EachView {
                total: each.total,
                issued: each.issued,
                succeeded: each.succeeded,
                failed: each.failed,
                running: each.running,
            }),
            iteration: (matches!(step.kind, Kind::Loop(_)) && scope_begun(0)).then_some(record.number),
            branch: (matches!(step.kind, Kind::Switch(_)) && scope_begun(record.number)).then_some(record.number),
            compensation: match (self.head.state, each) {
                // Nothing of it will be undone.
                (RunState::Succeeded, _) => Undo::None,
                (_, true) => self.undo_of_items(place)?,
                (_, false) => self.own_undo(place, record),
            },
            truncated: record.truncated,
        })
    }

    fn view_items(&self, each: &Place, from: u32, limit: u32) -> Done<ItemsView> {
        let total = self.each(each)?.total;
        let items = from.min(total)..from.saturating_add(limit).min(total);
        Ok(ItemsView { total, items: together(items.map(|index| self.view_item(each, index)))? })
    }

    fn view_item(&self, each: &Place, index: u32) -> Done<ItemView> {
        let place = each.with(index);
        let record = self.step(&place)?;
        let begun = record.state != StepState::Waiting;
        let is_job = matches!(self.plan.step(place.node).kind, Kind::Job(_));
        Ok(ItemView {
            index,
            state: record.state,
            error: record.error.as_deref().cloned(),
            job: if is_job && begun { Some(self.job_of(&place)?) } else { None },
            sub_run: if begun { self.sub_run_of(&place, record)? } else { None },
            value: self.kept_of(&place)?,
        })
    }

    fn collects(&self, place: &Place) -> bool {
        self.plan.step(place.node).for_each.as_ref().is_some_and(|each| each.collect.is_some())
    }

    /// The job of a step or item. One that was taken over belongs to the run that submitted it.
    fn job_of(&self, place: &Place) -> Done<JobId> {
        Ok(match self.taken(place)? {
            Some(run) => job_id(&About { run, ..self.about.clone() }, self.plan, place, 0),
            None => job_id(self.about, self.plan, place, 0),
        })
    }

    fn sub_run_of(&self, place: &Place, record: &StepRecord) -> Done<Option<RunId>> {
        let starts = matches!(self.plan.step(place.node).kind, Kind::Workflow(_));
        if starts { self.sub_run(place, record.attempt.max(1)).map(Some) } else { Ok(None) }
    }

    /// How far the compensation is that a step or item itself declares.
    fn own_undo(&self, place: &Place, record: &StepRecord) -> Undo {
        match record.undo {
            Undo::None if self.owes(place, record) => Undo::Due,
            undo => undo,
        }
    }

    /// How far the compensations of a for-each's items are, and of all that they hold.
    fn undo_of_items(&self, each: &Place) -> Done<Undo> {
        let mut gravest = Undo::None;
        if !self.plan.node(each.node).undoes {
            return Ok(gravest);
        }
        let issued = self.each(each)?.issued;
        let began = self.head.undo.state != Undo::None;
        if began {
            together((0..pages(issued)).map(|page| self.page(&Field::Page(each.clone(), page))))?;
        }
        for item in 0..issued {
            gravest = graver(gravest, self.undo_within(&each.with(item))?);
            if !began && gravest == Undo::Due {
                break;
            }
        }
        Ok(gravest)
    }

    fn undo_within(&self, holder: &Place) -> Done<Undo> {
        let mut gravest = self.own_undo(holder, self.step(holder)?);
        for inside in self.every_inner(holder)? {
            for place in self.plan.children(&inside) {
                let waits = !self.plan.node(place.node).undoes || self.state(&place)? == StepState::Waiting;
                let undo = match (waits, self.plan.is_each(&place)) {
                    (true, _) => Undo::None,
                    (false, true) => self.undo_of_items(&place)?,
                    (false, false) => self.undo_within(&place)?,
                };
                gravest = graver(gravest, undo);
            }
        }
        Ok(gravest)
    }
}

/// The one of two compensations that is further from being done.
fn graver(a: Undo, b: Undo) -> Undo {
    let rank = |undo| match undo {
        Undo::None => 0,
        Undo::Done => 1,
        Undo::Due => 2,
        Undo::Failed => 3,
        Undo::Running => 4,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// All parts, or all fields that they lack together, so that a reader fetches them at once.
fn together<T>(parts: impl Iterator<Item = Done<T>>) -> Done<Vec<T>> {
    let (mut whole, mut lack) = (Vec::new(), BTreeSet::new());
    for part in parts {
        match part {
            Ok(part) => whole.push(part),
            Err(Lack(fields)) => lack.extend(fields),
        }
    }
    if lack.is_empty() { Ok(whole) } else { Err(Lack(lack.into_iter().collect())) }
}
