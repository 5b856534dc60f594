//! Reruns: a new run that takes over what an ended one did, except for what is to run again.

use std::{collections::BTreeSet, sync::Arc};

use muster_domain::JobId;
use serde_json::Value;
use thiserror::Error;

use super::{
    codec::Record,
    command::job_id,
    document::Run,
    field::Field,
    place::Place,
    plan::{Plan, ROOT},
    records::{About, Each, Page, StepRecord, Undo},
    state::StepState,
};
use crate::definition::{Kind, OnError};

/// What is to run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Again {
    /// A step and every step behind it.
    From(String),
    /// The items of a for-each that did not succeed, and every step behind it.
    FailedItems(String),
}

/// Why there is no rerun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RerunFault {
    /// The old run has not ended.
    #[error("the run has not ended")]
    RunNotDone,
    /// The definition has no such step.
    #[error("there is no such step")]
    UnknownStep,
    /// The step has no for-each.
    #[error("the step has no for_each")]
    NoItems,
    /// The old run was not read as a whole.
    #[error("the run was not read as a whole")]
    NotWhole,
}

/// A rerun: the new run, and what of it is new.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// The new run, queued.
    pub run: Run,
    /// The outermost steps that run again, or for the first time, in the order of the definition.
    pub again: Vec<String>,
    /// The outermost steps that are taken over.
    pub taken: Vec<String>,
    /// For [`Again::FailedItems`]: how many items run again.
    pub items: Option<u32>,
    /// Results that the new run reads and the old one did not keep: the step, and the job that holds it. Each is given
    /// with [`Run::supply`] before the run starts.
    pub wants: Vec<(String, JobId)>,
}

impl Run {
    /// A new run of `plan` that takes over what this one did. `input` is that of the new run.
    pub fn rerun(
        &self,
        plan: &Arc<Plan>,
        about: About,
        input: Option<Value>,
        again: &Again,
    ) -> Result<Rerun, RerunFault> {
        if !self.head.state.is_end() {
            return Err(RerunFault::RunNotDone);
        }
        let (Again::From(id) | Again::FailedItems(id)) = again;
        let from = plan.outermost(plan.find(id).ok_or(RerunFault::UnknownStep)?);
        let each = matches!(again, Again::FailedItems(_));
        if each && plan.step(from).for_each.is_none() {
            return Err(RerunFault::NoItems);
        }
        let nodes = &plan.scope(ROOT).nodes;
        let mut rerun: BTreeSet<usize> = BTreeSet::from([from]);
        for &node in nodes {
            if self.takeable(plan, node)?.is_none() {
                rerun.insert(node);
            }
        }
        // Whatever needs a step that runs again runs again.
        let mut left: Vec<usize> = rerun.iter().copied().collect();
        while let Some(node) = left.pop() {
            left.extend(plan.node(node).needed_by.iter().copied().filter(|&next| rerun.insert(next)));
        }
        let mut run = Run::new(plan.clone(), about, input);
        run.head.ends = self.head.ends;
        run.head.root.open = rerun.len() as u32;
        let ids = |again: bool| {
            let of = nodes.iter().filter(|node| rerun.contains(node) == again);
            of.map(|&node| plan.step(node).id.clone()).collect::<Vec<_>>()
        };
        let (again, taken) = (ids(true), ids(false));
        let mut wants = Vec::new();
        for &node in nodes.iter().filter(|node| !rerun.contains(node)) {
            self.hand_over(&mut run, node);
            wants.extend(self.wanted(plan, node)?);
        }
        let items = if each { Some(self.hand_over_items(&mut run, from)?) } else { None };
        Ok(Rerun { run, again, taken, items, wants })
    }

    /// Gives a rerun a result that the old run did not keep.
    pub fn supply(&mut self, step: &str, result: Value) {
        let Some(place) = self.plan.place(step) else { return };
        let Ok(Some(Record::Step(record))) = self.get(&Field::Step(place.clone())) else { return };
        let record = StepRecord { kept: true, ..record.clone() };
        self.head.bytes += super::size::of(&result);
        self.set(Field::Result(place.clone()), Some(Record::Json(Arc::new(result))));
        self.set(Field::Step(place), Some(Record::Step(record)));
    }

    /// The end of an outermost step, if a rerun may take it over.
    fn takeable(&self, plan: &Plan, node: usize) -> Result<Option<&StepRecord>, RerunFault> {
        let step = plan.step(node);
        let Some(old) = self.plan.find(&step.id).filter(|&old| self.plan.node(old).scope == ROOT) else {
            return Ok(None);
        };
        let old_step = self.plan.step(old);
        let alike = old_step.kind.name() == step.kind.name() && old_step.for_each.is_some() == step.for_each.is_some();
        let record = match self.get(&Field::Step(Place::new(old, &[]))).map_err(|_| RerunFault::NotWhole)? {
            Some(Record::Step(record)) if alike => record,
            _ => return Ok(None),
        };
        let fine = match record.state {
            StepState::Succeeded => true,
            StepState::Skipped => !record.by_failure,
            StepState::Failed | StepState::TimedOut => step.on_error == OnError::Continue,
            _ => false,
        };
        Ok((fine && !self.undo_began(old)).then_some(record))
    }

    /// Whether a compensation began of a step, or of anything in it.
    fn undo_began(&self, node: usize) -> bool {
        let began = |record: &StepRecord| matches!(record.undo, Undo::Running | Undo::Done | Undo::Failed);
        self.shared().any(|(field, record)| {
            let inside = field.place().is_some_and(|place| self.plan.outermost(place.node) == node);
            inside
                && match record.as_ref() {
                    Record::Step(record) => began(record),
                    Record::Page(page) => page.items.values().chain(page.nested.values()).any(began),
                    _ => false,
                }
        })
    }

    /// Copies all fields of an outermost step.
    fn hand_over(&self, run: &mut Run, node: usize) {
        let plan = run.plan.clone();
        let fields: Vec<(Field, Arc<Record>)> = self
            .shared()
            .filter(|(field, _)| {
                field
                    .place()
                    .is_some_and(|place| plan.step(node).id == self.plan.step(self.plan.outermost(place.node)).id)
            })
            .filter_map(|(field, record)| Some((self.same_field(&plan, field)?, self.same_record(&plan, record))))
            .collect();
        for (field, record) in fields {
            if let Record::Json(value) = record.as_ref() {
                run.head.bytes += super::size::of(value);
            }
            run.take_over(field, record);
        }
    }

    /// The same field in another plan.
    fn same_field(&self, plan: &Plan, field: &Field) -> Option<Field> {
        let place = field.place()?;
        let node = plan.find(&self.plan.step(place.node).id)?;
        Some(field.moved(Place { node, at: place.at.clone() }))
    }

    fn same_record(&self, plan: &Plan, record: &Arc<Record>) -> Arc<Record> {
        let taken = |record: &StepRecord| StepRecord { taken: record.taken.or(Some(self.about.run)), ..record.clone() };
        match record.as_ref() {
            Record::Step(record) => Arc::new(Record::Step(taken(record))),
            Record::Page(page) => {
                let nested = page.nested.iter().filter_map(|((node, at), record)| {
                    let node = plan.find(&self.plan.step(*node).id)?;
                    Some(((node, at.clone()), taken(record)))
                });
                let nested = nested.collect();
                let (states, items, taken) = (page.states.clone(), page.items.clone(), page.taken.clone());
                Arc::new(Record::Page(Page { states, items, nested, taken }))
            }
            _ => record.clone(),
        }
    }

    /// The result that a new plan reads of a step, if the old run did not keep it.
    fn wanted(&self, plan: &Plan, node: usize) -> Result<Option<(String, JobId)>, RerunFault> {
        let step = plan.step(node);
        let Some(record) = self.takeable(plan, node)? else { return Ok(None) };
        let lacks = record.state == StepState::Succeeded && !record.kept && !record.truncated;
        let plain_job = matches!(step.kind, Kind::Job(_)) && step.for_each.is_none();
        if !(lacks && plain_job && plan.node(node).read) {
            return Ok(None);
        }
        let Some(old) = self.plan.find(&step.id) else { return Ok(None) };
        let run = record.taken.unwrap_or(self.about.run);
        let about = About { run, ..self.about.as_ref().clone() };
        Ok(Some((step.id.clone(), job_id(&about, &self.plan, &Place::new(old, &[]), 0))))
    }

    /// Gives a new run the items of a for-each that succeeded; returns how many run again.
    fn hand_over_items(&self, run: &mut Run, node: usize) -> Result<u32, RerunFault> {
        let plan = run.plan.clone();
        let Some(old) = self.plan.find(&plan.step(node).id) else { return Ok(0) };
        let place = Place::new(old, &[]);
        let (each, origin) = match self.get(&Field::Step(place)).map_err(|_| RerunFault::NotWhole)? {
            Some(Record::Step(StepRecord { each: Some(each), taken, .. })) => {
                (each.clone(), taken.unwrap_or(self.about.run))
            }
            _ => return Ok(0),
        };
        self.hand_over(run, node);
        let mut again = each.total;
        let new = Place::new(node, &[]);
        for page in 0..super::sight::pages(each.total) {
            let field = Field::Page(new.clone(), page);
            let Ok(Some(Record::Page(old))) = run.get(&field) else { continue };
            let mut kept = old.clone();
            for offset in 0..old.states.len() as u32 {
                let took = old.item(offset).is_some_and(|item| {
                    let began = |record: &StepRecord| matches!(record.undo, Undo::Running | Undo::Done | Undo::Failed);
                    let inside = old
                        .nested
                        .iter()
                        .filter(|((_, at), _)| at.first() == Some(&(page * super::records::PAGE + offset)));
                    item.state == StepState::Succeeded && !began(item) && !inside.map(|(_, r)| r).any(began)
                });
                if took {
                    again -= 1;
                    if old.taken(offset).is_none() {
                        *kept.taken.entry(origin).or_default() |= 1 << offset;
                    }
                } else {
                    kept.taken.values_mut().for_each(|items| *items &= !(1 << offset));
                    kept.states[offset as usize] = StepState::Waiting.code();
                    kept.items.remove(&offset);
                    kept.nested.retain(|(_, at), _| at.first() != Some(&(page * super::records::PAGE + offset)));
                }
            }
            kept.taken.retain(|_, items| *items != 0);
            run.set(field, Some(Record::Page(kept)));
        }
        let fresh = Each { total: each.total, ..Each::default() };
        let record = StepRecord { each: Some(Box::new(fresh)), ..StepRecord::default() };
        run.set(Field::Step(new), Some(Record::Step(record)));
        Ok(again)
    }
}
