//! For-each: which items start, and when the step ends. Two cursors, issued and confirmed, stand for the commands of
//! its jobs, so that ten thousand items need no ten thousand entries in the outbox.

use std::sync::Arc;

use serde_json::Value;

use super::{
    codec::Record,
    field::Field,
    place::Place,
    plan::Plan,
    records::{Each, EachStop, PAGE, Page, RunError, StopWhy},
    scope::{End, lost_error},
    sight::{Own, Sight, pages},
    state::{StepMove, StepState},
    work::{Done, Task, Work},
};
use crate::definition::{ForEach, Kind, OnFailure, Tolerate};

/// The most items of a for-each.
pub(crate) const MOST_ITEMS: usize = 10_000;

/// The most bytes that `collect` keeps of an item.
pub(crate) const MOST_COLLECTED: u64 = 256;

fn for_each(plan: &Plan, place: &Place) -> Option<ForEach> {
    plan.step(place.node).for_each.clone()
}

/// How many items may fail.
fn tolerated(tolerate: Tolerate, total: u32) -> u32 {
    match tolerate {
        Tolerate::Count(count) => count,
        Tolerate::Percent(percent) => (u64::from(total) * u64::from(percent) / 100) as u32,
    }
}

impl Work<'_> {
    /// Begins a for-each: reads its list and stores the items.
    pub(crate) fn begin_each(&mut self, place: &Place) -> Done {
        let Some(each) = for_each(self.plan, place) else { return Ok(()) };
        if self.step(place)?.each.is_some() {
            // A rerun took the list over, and the items that succeeded.
            self.tasks.push_back(Task::Each(place.clone()));
            return Ok(());
        }
        let items = match self.expr(&each.items, &Sight::of(place))? {
            Ok(Value::Array(items)) => items,
            Ok(_) => {
                let error = RunError::new("expression_error", "`items` is not a list");
                return self.end(place, End::unborn(error));
            }
            Err(error) => return self.end(place, End::unborn(error)),
        };
        if items.len() > MOST_ITEMS {
            let error = RunError::new("too_many_items", format!("{} items; at most 10,000 may be", items.len()));
            return self.end(place, End::unborn(error));
        }
        let total = items.len() as u32;
        let items = Value::Array(items);
        if let Err(error) = self.grow(&Field::Items(place.clone(), 0), &items) {
            return self.end(place, End::unborn(error));
        }
        let Value::Array(items) = items else { return Ok(()) };
        let mut items = items.into_iter().map(Arc::new);
        for page in 0..pages(total) {
            let values: Vec<Arc<Value>> = items.by_ref().take(PAGE as usize).collect();
            let states = vec![0; values.len()];
            self.put(Field::Items(place.clone(), page), Record::Items(Arc::new(values)));
            self.put(Field::Page(place.clone(), page), Record::Page(Page { states, ..Page::default() }));
        }
        *self.each_mut(place)? = Each { total, ..Each::default() };
        self.tasks.push_back(Task::Each(place.clone()));
        Ok(())
    }

    /// Starts the items that may start, and ends the for-each if nothing is left to wait for.
    pub(crate) fn pump(&mut self, place: &Place) -> Done {
        let record = self.step(place)?;
        if self.frozen() || record.state != StepState::Running || record.each.is_none() {
            return Ok(());
        }
        let Some(given) = for_each(self.plan, place) else { return Ok(()) };
        self.judge(place, &given)?;
        loop {
            let each = self.each(place)?;
            let done = each.stop != EachStop::No || each.issued >= each.total;
            if done && each.running == 0 {
                return self.end_each(place, &given);
            }
            if done || each.running >= given.max_parallel.max(1) {
                return Ok(());
            }
            if !self.spend() {
                let now = self.now;
                self.step_mut(place)?.wake = now;
                return self.touch(place, now);
            }
            let item = place.with(each.issued);
            let taken = self.state(&item)?.is_end();
            let each = self.each_mut(place)?;
            each.issued += 1;
            if taken {
                each.succeeded += 1;
                self.advance(place)?;
            } else {
                each.running += 1;
                self.move_step(&item, StepMove::Start)?;
                self.start_body(&item)?;
                self.judge(place, &given)?;
            }
        }
    }

    /// Stops a for-each of which enough items succeeded or too many failed.
    fn judge(&mut self, place: &Place, given: &ForEach) -> Done {
        let each = self.each(place)?;
        if each.stop != EachStop::No {
            return Ok(());
        }
        let enough = given.min_success.is_some_and(|n| each.succeeded >= n) && each.total > 0;
        if each.failed > tolerated(given.tolerate, each.total) {
            self.each_mut(place)?.stop = EachStop::Failed;
            if self.plan.on_failure() == OnFailure::Cancel {
                self.stop_items(place)?;
            }
        } else if enough && (each.running > 0 || each.issued < each.total) {
            self.each_mut(place)?.stop = EachStop::Enough;
            self.stop_items(place)?;
        }
        Ok(())
    }

    /// Stops a for-each from outside.
    pub(crate) fn stop_each(&mut self, place: &Place) -> Done {
        self.each_mut(place)?.stop = EachStop::Stopped;
        self.stop_items(place)?;
        self.tasks.push_back(Task::Each(place.clone()));
        Ok(())
    }

    fn stop_items(&mut self, place: &Place) -> Done {
        let each = self.each(place)?;
        for item in each.low..each.issued {
            self.stop_item(&place.with(item), StopWhy::Cancelled)?;
        }
        Ok(())
    }

    fn end_each(&mut self, place: &Place, given: &ForEach) -> Done {
        let record = self.step(place)?;
        if let Some(why) = record.stop {
            return self.end(place, End::stopped(why));
        }
        let each = self.each(place)?;
        if each.stop == EachStop::Failed {
            return self.end(place, End::failed(each.error.map_or_else(lost_error, |error| *error)));
        }
        match given.min_success.filter(|least| each.succeeded < *least && each.total > 0) {
            Some(least) => {
                let message = format!("{} items succeeded; min_success is {least}", each.succeeded);
                self.end(place, End::failed(RunError::new("too_few_succeeded", message)))
            }
            None => self.end(place, End::succeeded(None)),
        }
    }

    /// Counts the end of an item.
    pub(crate) fn item_ended(&mut self, item: &Place) -> Done {
        let Some((each, number)) = self.plan.item_around(item) else { return Ok(()) };
        let record = self.step(item)?.clone();
        let counts = self.each_mut(&each)?;
        counts.running = counts.running.saturating_sub(1);
        match record.state {
            StepState::Succeeded => counts.succeeded += 1,
            StepState::Failed | StepState::TimedOut => {
                counts.failed += 1;
                if counts.error.is_none() {
                    counts.error = record.error.clone();
                }
            }
            _ => {}
        }
        if let Some(error) = &record.error {
            if self.each(&each)?.failed <= MOST_NOTED {
                self.note(record.state.as_str(), Some(item), &format!("{}: {}", error.code, error.message));
            }
            // The whole error is in the item's job; a page keeps its code.
            let code = RunError::new(error.code.clone(), "");
            self.step_mut(item)?.error = Some(Box::new(RunError { step: error.step.clone(), ..code }));
        }
        let _ = number;
        self.advance(&each)?;
        self.tasks.push_back(Task::Each(each));
        Ok(())
    }

    /// Moves the cursors over items that have ended or were confirmed.
    pub(crate) fn advance(&mut self, place: &Place) -> Done {
        let each = self.each(place)?;
        let (mut low, mut confirmed) = (each.low, each.confirmed);
        while low < each.issued && self.state(&place.with(low))?.is_end() {
            low += 1;
        }
        confirmed = confirmed.max(low);
        while confirmed < each.issued {
            let record = self.step(&place.with(confirmed))?;
            if !record.sent && !record.state.is_end() {
                break;
            }
            confirmed += 1;
        }
        if (low, confirmed) != (each.low, each.confirmed) {
            let each = self.each_mut(place)?;
            (each.low, each.confirmed) = (low, confirmed);
        }
        Ok(())
    }

    /// Keeps what `collect` gives of an item that succeeded.
    pub(crate) fn collect(&mut self, item: &Place, own: &Own) -> Done<Result<(), RunError>> {
        let Some(collect) = for_each(self.plan, item).and_then(|each| each.collect) else { return Ok(Ok(())) };
        let mut sight = Sight::of(item).own(own);
        if self.plan.node(item.node).inner.len() == 1 && !self.step(item)?.scopes.is_empty() {
            let inside = self.inner(item, 0)?;
            sight = sight.within(&inside.at);
        }
        let value = match self.expr(&collect, &sight)? {
            Ok(value) => value,
            Err(error) => return Ok(Err(error)),
        };
        let bytes = super::size::of(&value);
        if bytes > MOST_COLLECTED {
            let message = format!("`collect` keeps at most 256 bytes of an item, and this value has {bytes}");
            return Ok(Err(RunError::new("collected_too_large", message)));
        }
        let field = Field::Collected(item.clone());
        if let Err(error) = self.grow(&field, &value) {
            return Ok(Err(error));
        }
        self.put_json(field, value);
        Ok(Ok(()))
    }

    /// Whether the cursors of a for-each stand for the submits of a place.
    pub(crate) fn by_cursor(&self, place: &Place) -> bool {
        self.plan.is_item(place) && matches!(self.plan.step(place.node).kind, Kind::Job(_))
    }
}

/// How many failed items of one for-each the timeline names.
const MOST_NOTED: u32 = 20;
