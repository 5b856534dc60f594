//! The end of a run, and the compensations before it. They run in reverse order of completion, one after the other;
//! the items of one for-each together, each item's own again in reverse order.

use super::{
    codec::Record,
    command::{Key, Verb, job_id},
    event::{JobEnd, Outcome, Refusal, SubRunEnd},
    field::Field,
    place::{Inside, Place},
    plan::{ROOT, repeats},
    records::{Parent, RunError, StepRecord, StopWhy, Undo, UndoHead},
    sight::Sight,
    state::{RunMove, RunState, StepState},
    work::{Done, Task, Work},
};
use crate::definition::Kind;
use muster_domain::job::Ending;

impl Work<'_> {
    /// Takes the end of the outermost scope.
    pub(crate) fn root_ended(&mut self) -> Done {
        if self.head.stop.is_some() {
            return self.wind_up();
        }
        let output = self.plan.definition().output.clone();
        match self.maybe(output.as_ref(), &Sight::outside())? {
            Ok(output) => {
                if let Some(output) = output {
                    // An end always fits.
                    self.put_json(Field::Output, output);
                }
                if self.move_run(RunMove::Succeed, "") {
                    self.after_end()?;
                }
                Ok(())
            }
            Err(error) => {
                self.stop_run(StopWhy::Failed, Some(error));
                self.wind_up()
            }
        }
    }

    /// Begins the compensations of a run that stops, or ends it.
    fn wind_up(&mut self) -> Done {
        let owed = if self.head.without_undo { Vec::new() } else { self.owed_by_run()? };
        if owed.is_empty() {
            return self.end_run();
        }
        self.move_run(RunMove::Compensate, "");
        self.begin_undo(&owed)
    }

    fn begin_undo(&mut self, owed: &[Place]) -> Done {
        let round = self.head.undo.round + 1;
        let (done, tell) = (self.head.undo.done, self.head.undo.tell.take());
        self.head.undo = UndoHead { state: Undo::Running, round, at: 0, failed: 0, tell, done };
        let places = owed.iter().map(|place| self.plan.text(place)).collect();
        self.put(Field::UndoList, Record::Places(places));
        self.tasks.push_back(Task::Undo(None));
        Ok(())
    }

    fn end_run(&mut self) -> Done {
        let failed = self.head.undo.state == Undo::Failed;
        let event = match self.head.stop {
            Some(StopWhy::Cancelled) => RunMove::Cancel,
            Some(StopWhy::TimedOut) => RunMove::TimeOut,
            _ => RunMove::Fail,
        };
        if failed && event == RunMove::Fail {
            let cause = self.head.error.take();
            let cause = cause.map(|error| format!("{} ({}: {})", error.step, error.code, error.message));
            let message = format!("a compensation failed, after {}", cause.unwrap_or_default());
            self.head.error = Some(RunError::new("compensation_failed", message));
        }
        let why = self.head.error.as_ref().map(|error| error.code.clone()).unwrap_or_default();
        if self.move_run(event, &why) {
            self.after_end()?;
        }
        Ok(())
    }

    /// What a run asks for when it has ended.
    pub(crate) fn after_end(&mut self) -> Done {
        let mut keys = Vec::new();
        if self.about.slot.is_some() && self.head.started.some().is_some() {
            keys.push(Key::of_run(Verb::ReleaseSlot, 0));
        }
        if self.about.parent.is_some() {
            keys.push(Key::of_run(Verb::TellParent, 0));
        }
        for key in keys {
            if let Some(action) = self.run_action(&key)? {
                self.send(&key, action)?;
            }
        }
        Ok(())
    }

    /// Undoes what is left to undo, of a run that has ended.
    pub(crate) fn compensate_again(&mut self, tell: Option<&Parent>) -> Done<Outcome> {
        if !self.head.state.is_end() {
            return Ok(Outcome::Refused(Refusal::RunNotDone));
        }
        if self.head.undo.state == Undo::Running {
            return Ok(Outcome::Nothing);
        }
        let root = self.root();
        self.owe_again(&root)?;
        let owed = self.owed_by_run()?;
        if owed.is_empty() && tell.is_none() {
            return Ok(Outcome::Refused(Refusal::NothingToUndo));
        }
        self.head.undo.tell = tell.cloned();
        self.note("compensating", None, "");
        self.begin_undo(&owed)?;
        Ok(Outcome::Applied)
    }

    /// Whether a step or item must be undone.
    pub(crate) fn owes(&self, place: &Place, record: &StepRecord) -> bool {
        let declares = self.plan.step(place.node).compensate.is_some() && !self.plan.is_each(place);
        declares
            && match record.undo {
                Undo::None => record.state == StepState::Succeeded,
                Undo::Due | Undo::Running | Undo::Failed => true,
                Undo::Done => false,
            }
    }

    fn owed_by_run(&self) -> Done<Vec<Place>> {
        let mut owed = Vec::new();
        self.owed(&Inside { scope: ROOT, at: Vec::new() }, &mut owed)?;
        owed.sort_by_key(|(order, _)| std::cmp::Reverse(*order));
        Ok(owed.into_iter().map(|(_, place)| place).collect())
    }

    /// What must be undone in a scope, with the order of completion. A for-each is one entry.
    fn owed(&self, inside: &Inside, owed: &mut Vec<(u32, Place)>) -> Done {
        for place in self.plan.children(inside) {
            let record = self.step(&place)?;
            if !self.plan.node(place.node).undoes || record.state == StepState::Waiting {
                continue;
            }
            if self.plan.is_each(&place) {
                if record.each.is_some() && self.any_owed_item(&place)? {
                    owed.push((record.order, place));
                }
                continue;
            }
            if self.owes(&place, record) {
                owed.push((record.order, place.clone()));
            }
            for inside in self.every_inner(&place)? {
                self.owed(&inside, owed)?;
            }
        }
        Ok(())
    }

    fn any_owed_item(&self, each: &Place) -> Done<bool> {
        for item in 0..self.each(each)?.issued {
            if !self.owed_by_item(&each.with(item))?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn owed_by_item(&self, item: &Place) -> Done<Vec<Place>> {
        let record = self.step(item)?;
        let mut owed = Vec::new();
        if self.owes(item, record) {
            owed.push((u32::MAX, item.clone()));
        }
        for inside in self.every_inner(item)? {
            self.owed(&inside, &mut owed)?;
        }
        owed.sort_by_key(|(order, _)| std::cmp::Reverse(*order));
        Ok(owed.into_iter().map(|(_, place)| place).collect())
    }

    /// Every scope that a step or item holds or held: in all its attempts and iterations.
    pub(crate) fn every_inner(&self, holder: &Place) -> Done<Vec<Inside>> {
        let step = self.plan.step(holder.node);
        let attempts = if repeats(step) { self.step(holder)?.attempt.max(1) } else { 1 };
        let mut found = Vec::new();
        for &scope in &self.plan.node(holder.node).inner {
            for attempt in 1..=attempts {
                let mut at = holder.at.clone();
                if repeats(step) {
                    at.push(attempt);
                }
                if !matches!(step.kind, Kind::Loop(_)) {
                    found.push(Inside { scope, at });
                    continue;
                }
                for number in 0..=u32::MAX {
                    let inside = Inside { scope, at: [at.as_slice(), &[number]].concat() };
                    let mut blank = true;
                    for place in self.plan.children(&inside) {
                        blank &= self.state(&place)? == StepState::Waiting;
                    }
                    if blank {
                        break;
                    }
                    found.push(inside);
                }
            }
        }
        Ok(found)
    }

    /// Makes what could not be undone due again.
    fn owe_again(&mut self, inside: &Inside) -> Done {
        for place in self.plan.children(inside) {
            if !self.plan.node(place.node).undoes || self.state(&place)? == StepState::Waiting {
                continue;
            }
            if !self.plan.is_each(&place) {
                self.owe_again_at(&place)?;
                continue;
            }
            let each = self.each_mut(&place)?;
            (each.undo_issued, each.undo_running) = (0, 0);
            for item in 0..each.issued {
                self.owe_again_at(&place.with(item))?;
            }
        }
        Ok(())
    }

    fn owe_again_at(&mut self, place: &Place) -> Done {
        if matches!(self.step(place)?.undo, Undo::Failed | Undo::Running) {
            self.step_mut(place)?.undo = Undo::Due;
        }
        for inside in self.every_inner(place)? {
            self.owe_again(&inside)?;
        }
        Ok(())
    }

    /// Goes on with the compensations of the run, or of an item.
    pub(crate) fn undo_next(&mut self, item: Option<&(Place, u32)>) -> Done {
        if self.head.undo.state != Undo::Running {
            return Ok(());
        }
        match item {
            None => self.undo_next_of_run(),
            Some((each, item)) => {
                if self.undo_in_order(&each.with(*item))? {
                    let each_record = self.each_mut(each)?;
                    each_record.undo_running = each_record.undo_running.saturating_sub(1);
                    if self.undo_items(each)? {
                        self.tasks.push_back(Task::Undo(self.plan.item_around(each)));
                    }
                }
                Ok(())
            }
        }
    }

    fn undo_next_of_run(&mut self) -> Done {
        loop {
            let next = self.places(&Field::UndoList)?.and_then(|list| list.get(self.head.undo.at as usize)).cloned();
            let Some(text) = next else { return self.undo_ended() };
            let over = self.plan.place(&text).map_or(Ok(true), |place| self.undo_one(&place))?;
            if !over {
                return Ok(());
            }
            self.head.undo.at += 1;
        }
    }

    /// Undoes what is owed in an item, one after the other; true if nothing is left.
    fn undo_in_order(&mut self, item: &Place) -> Done<bool> {
        for place in self.owed_by_item(item)? {
            if !self.undo_one(&place)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Undoes one entry: a step, an item, or a for-each; true if that is over, well or not.
    fn undo_one(&mut self, place: &Place) -> Done<bool> {
        if self.plan.is_each(place) {
            return self.undo_items(place);
        }
        match self.step(place)?.undo {
            Undo::Done | Undo::Failed => return Ok(true),
            Undo::Running => return Ok(false),
            Undo::None | Undo::Due => {}
        }
        let round = self.head.undo.round;
        match self.undo_action(place, round)? {
            Ok(action) => {
                self.step_mut(place)?.undo = Undo::Running;
                self.send(&self.undo_key(place), action)?;
                Ok(false)
            }
            Err(error) => {
                self.undo_failed(place, &error)?;
                Ok(true)
            }
        }
    }

    fn undo_key(&self, place: &Place) -> Key {
        let step = self.plan.step(place.node);
        let job = step.compensate.as_ref().is_some_and(|undo| undo.job.is_some());
        Key::new(if job { Verb::Undo } else { Verb::UndoRun }, place, self.head.undo.round)
    }

    /// Undoes the items of a for-each, so many at a time, the last one first; true if all are over.
    fn undo_items(&mut self, place: &Place) -> Done<bool> {
        let most = self.plan.step(place.node).for_each.as_ref().map_or(1, |each| each.max_parallel.max(1));
        loop {
            let each = self.each(place)?;
            if each.undo_issued >= each.issued {
                return Ok(each.undo_running == 0);
            }
            if each.undo_running >= most {
                return Ok(false);
            }
            let item = place.with(each.issued - 1 - each.undo_issued);
            self.each_mut(place)?.undo_issued += 1;
            if !self.undo_in_order(&item)? {
                self.each_mut(place)?.undo_running += 1;
            }
        }
    }

    fn undo_failed(&mut self, place: &Place, error: &RunError) -> Done {
        self.step_mut(place)?.undo = Undo::Failed;
        self.head.undo.failed += 1;
        self.note("compensation_failed", Some(place), &format!("{}: {}", error.code, error.message));
        Ok(())
    }

    /// Takes the end of a compensation.
    fn undo_over(&mut self, place: &Place, result: Result<(), RunError>) -> Done {
        self.unsend(&self.undo_key(place))?;
        match result {
            Ok(()) => {
                self.step_mut(place)?.undo = Undo::Done;
                self.head.undo.done += 1;
                if self.plan.item_around(place).is_none() {
                    self.note("compensated", Some(place), "");
                }
            }
            Err(error) => self.undo_failed(place, &error)?,
        }
        self.tasks.push_back(Task::Undo(self.plan.item_around(place)));
        Ok(())
    }

    pub(crate) fn undo_job_ended(&mut self, place: &Place, end: &JobEnd) -> Done {
        let same = job_id(self.about, self.plan, place, self.head.undo.round) == end.job;
        if !same || self.step(place)?.undo != Undo::Running {
            return Ok(());
        }
        let error =
            || end.error.clone().unwrap_or_else(|| RunError::new(end.ending.as_str(), "the job did not succeed"));
        let result = if end.ending == Ending::Succeeded { Ok(()) } else { Err(error()) };
        self.undo_over(place, result)
    }

    pub(crate) fn undo_refused(&mut self, place: &Place, error: &RunError) -> Done {
        match self.step(place)?.undo {
            Undo::Running => self.undo_over(place, Err(error.clone())),
            _ => Ok(()),
        }
    }

    pub(crate) fn sub_run_undone(&mut self, place: &Place, end: &SubRunEnd) -> Done {
        let attempt = self.step(place)?.attempt.max(1);
        let same = self.sub_run(place, attempt)? == end.run;
        if !same || self.step(place)?.undo != Undo::Running {
            return Ok(());
        }
        let error = || end.error.clone().unwrap_or_else(|| RunError::new("compensation_failed", "of the sub-run"));
        let result = if end.state == RunState::Succeeded { Ok(()) } else { Err(error()) };
        self.undo_over(place, result)
    }

    fn undo_ended(&mut self) -> Done {
        let failed = self.head.undo.failed > 0;
        self.head.undo.state = if failed { Undo::Failed } else { Undo::Done };
        self.delete(Field::UndoList);
        if self.head.state == RunState::Compensating {
            return self.end_run();
        }
        self.note(if failed { "compensation_failed" } else { "compensated" }, None, "");
        let key = Key::of_run(Verb::TellUndone, self.head.undo.round);
        match self.run_action(&key)? {
            Some(action) => self.send(&key, action),
            None => Ok(()),
        }
    }
}
