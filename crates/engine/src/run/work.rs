//! One event being applied: what changed so far, what is to be looked at next, and what the run asks for. Nothing is
//! written to the run before the whole event was applied, so that a field that was not read costs a second try and no
//! more.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use muster_domain::{RunId, Time};
use serde_json::Value;

use super::{
    codec::{Record, waiting},
    command::{Action, Command, Key, Verb},
    document::{Lack, Run},
    field::Field,
    place::{Inside, Place},
    plan::{Plan, ROOT},
    records::{About, Each, Head, PAGE, Page, ScopeRecord, StepRecord},
    state::{RunMove, RunState, StepMove, StepState},
    timeline::Entry,
};

/// What a function gives that reads the run.
pub(crate) type Done<T = ()> = Result<T, Lack>;

/// How many steps one event starts before the rest is put off to the next timer.
const BUDGET: u32 = 2_000;

/// Where a record is in a page: the field, the place in the page, and for a step inside the item its own place from the
/// item on.
type InPage = (Field, u32, Option<(usize, Vec<u32>)>);

/// Something to look at before the event is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// A step that may be ready to start.
    Examine(Place),
    /// A scope whose steps may all have ended.
    Scope(Inside),
    /// A for-each that may start items, or end.
    Each(Place),
    /// Compensations that may go on: those of an item, or of the run.
    Undo(Option<(Place, u32)>),
}

/// One event being applied.
pub(crate) struct Work<'a> {
    run: &'a Run,
    pub(crate) plan: &'a Plan,
    pub(crate) about: &'a About,
    pub(crate) head: Head,
    /// The time of the event; never before that of an earlier one.
    pub(crate) now: Time,
    changed: HashMap<Field, Option<Record>>,
    pub(crate) tasks: VecDeque<Task>,
    budget: u32,
    timeline: Vec<Entry>,
    commands: Vec<Command>,
}

/// What an event did.
pub(crate) struct Finished {
    pub(crate) head: Head,
    pub(crate) changed: HashMap<Field, Option<Record>>,
    pub(crate) timeline: Vec<Entry>,
    pub(crate) commands: Vec<Command>,
}

macro_rules! typed {
    ($get:ident, $edit:ident, $variant:ident, $ty:ty) => {
        pub(crate) fn $get(&self, field: &Field) -> Done<Option<&$ty>> {
            Ok(match self.get(field)? {
                Some(Record::$variant(record)) => Some(record),
                _ => None,
            })
        }

        pub(crate) fn $edit(&mut self, field: &Field) -> Done<&mut $ty> {
            let record = self.edit(field, || Record::$variant(Default::default()))?;
            if !matches!(record, Record::$variant(_)) {
                *record = Record::$variant(Default::default());
            }
            match record {
                Record::$variant(record) => Ok(record),
                _ => Err(Lack(vec![field.clone()])),
            }
        }
    };
}

impl<'a> Work<'a> {
    pub(crate) fn new(run: &'a Run, at: Time) -> Work<'a> {
        Work {
            run,
            plan: &run.plan,
            about: &run.about,
            head: run.head.clone(),
            now: at.max(run.head.now),
            changed: HashMap::new(),
            tasks: VecDeque::new(),
            budget: BUDGET,
            timeline: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// Ends the event.
    pub(crate) fn finish(mut self) -> Finished {
        self.changed.retain(|field, record| {
            let empty = match record {
                Some(Record::Outbox(list)) => list.is_empty(),
                Some(Record::Queue(queue)) => queue.unread.is_empty() && queue.waiting.is_empty(),
                Some(Record::Page(page)) => {
                    page.settle();
                    false
                }
                _ => false,
            };
            if empty {
                *record = None;
            }
            let same = match (self.run.get(field), record.as_ref()) {
                (Ok(Some(old)), Some(new)) => old == new,
                (Ok(None), None) => true,
                _ => false,
            };
            !same
        });
        if !self.changed.is_empty() || self.head != self.run.head {
            self.head.now = self.now;
        }
        Finished { head: self.head, changed: self.changed, timeline: self.timeline, commands: self.commands }
    }

    fn get(&self, field: &Field) -> Done<Option<&Record>> {
        match self.changed.get(field) {
            Some(record) => Ok(record.as_ref()),
            None => self.run.get(field),
        }
    }

    fn edit(&mut self, field: &Field, new: impl FnOnce() -> Record) -> Done<&mut Record> {
        if !self.changed.contains_key(field) {
            let record = self.run.get(field)?.cloned();
            self.changed.insert(field.clone(), record);
        }
        let slot = self.changed.entry(field.clone()).or_default();
        Ok(slot.get_or_insert_with(new))
    }

    pub(crate) fn put(&mut self, field: Field, record: Record) {
        self.changed.insert(field, Some(record));
    }

    /// Deletes a field, whether it exists or not.
    pub(crate) fn delete(&mut self, field: Field) {
        if !matches!(self.run.get(&field), Ok(None)) || self.changed.contains_key(&field) {
            self.changed.insert(field, None);
        }
    }

    typed!(page, page_mut, Page, Page);
    typed!(queue, queue_mut, Queue, super::records::Queue);
    typed!(outbox, outbox_mut, Outbox, Vec<String>);
    typed!(hashes, hashes_mut, Hashes, Vec<u64>);

    pub(crate) fn places(&self, field: &Field) -> Done<Option<&Vec<String>>> {
        Ok(match self.get(field)? {
            Some(Record::Places(places)) => Some(places),
            _ => None,
        })
    }

    pub(crate) fn signal(&self, id: u64) -> Done<Option<&super::records::Signal>> {
        Ok(match self.get(&Field::Signal(id))? {
            Some(Record::Signal(signal)) => Some(signal),
            _ => None,
        })
    }

    pub(crate) fn json(&self, field: &Field) -> Done<Option<Arc<Value>>> {
        Ok(match self.get(field)? {
            Some(Record::Json(value)) => Some(value.clone()),
            _ => None,
        })
    }

    pub(crate) fn put_json(&mut self, field: Field, value: Value) {
        self.changed.insert(field, Some(Record::Json(Arc::new(value))));
    }

    /// The value of an item.
    pub(crate) fn item_value(&self, each: &Place, item: u32) -> Done<Arc<Value>> {
        Ok(match self.get(&Field::Items(each.clone(), item / PAGE))? {
            Some(Record::Items(values)) => values.get((item % PAGE) as usize).cloned().unwrap_or_default(),
            _ => Arc::default(),
        })
    }

    /// Where the record of a place is, if it is in a page.
    fn page_of(&self, place: &Place) -> Option<InPage> {
        let (each, item) = self.plan.item_around(place)?;
        let nested = (!self.plan.is_item(place)).then(|| (place.node, place.at[each.at.len()..].to_vec()));
        Some((Field::Page(each, item / PAGE), item % PAGE, nested))
    }

    /// What is known of a step or an item.
    pub(crate) fn step(&self, place: &Place) -> Done<&StepRecord> {
        let Some((field, offset, nested)) = self.page_of(place) else {
            return Ok(match self.get(&Field::Step(place.clone()))? {
                Some(Record::Step(record)) => record,
                _ => waiting(),
            });
        };
        let Some(page) = self.page(&field)? else { return Ok(waiting()) };
        let record = match nested {
            None => page.item(offset),
            Some(key) => page.nested.get(&key),
        };
        Ok(match record {
            Some(record) => record,
            None => waiting(),
        })
    }

    /// The run that a step or an item was taken over from, if it was.
    pub(crate) fn taken(&self, place: &Place) -> Done<Option<RunId>> {
        let mut place = place.clone();
        loop {
            if let Some(run) = self.step(&place)?.taken {
                return Ok(Some(run));
            }
            let Some((each, item)) = self.plan.item_around(&place) else { return Ok(None) };
            let page = self.page(&Field::Page(each.clone(), item / PAGE))?;
            if let Some(run) = page.and_then(|page| page.taken(item % PAGE)) {
                return Ok(Some(run));
            }
            place = each;
        }
    }

    /// What is known of a step or an item, for changing it.
    pub(crate) fn step_mut(&mut self, place: &Place) -> Done<&mut StepRecord> {
        let Some((field, offset, nested)) = self.page_of(place) else {
            let field = Field::Step(place.clone());
            let record = self.edit(&field, || Record::Step(StepRecord::default()))?;
            return match record {
                Record::Step(record) => Ok(record),
                _ => Err(Lack(vec![field])),
            };
        };
        let page = self.page_mut(&field)?;
        Ok(match nested {
            None => page.item_mut(offset),
            Some(key) => page.nested.entry(key).or_default(),
        })
    }

    /// Forgets a step; not for items.
    pub(crate) fn forget_record(&mut self, place: &Place) -> Done {
        match self.page_of(place) {
            None => self.delete(Field::Step(place.clone())),
            Some((field, _, Some(key))) => drop(self.page_mut(&field)?.nested.remove(&key)),
            Some(_) => {}
        }
        Ok(())
    }

    pub(crate) fn state(&self, place: &Place) -> Done<StepState> {
        Ok(self.step(place)?.state)
    }

    /// The for-each of a place, for changing it.
    pub(crate) fn each_mut(&mut self, place: &Place) -> Done<&mut Each> {
        Ok(self.step_mut(place)?.each.get_or_insert_default())
    }

    pub(crate) fn each(&self, place: &Place) -> Done<Each> {
        Ok(self.step(place)?.each.as_deref().cloned().unwrap_or_default())
    }

    /// What is known of a scope.
    pub(crate) fn scope(&self, inside: &Inside) -> Done<ScopeRecord> {
        let Some((holder, branch)) = self.plan.holder(inside) else { return Ok(self.head.root.clone()) };
        if inside.at != self.inner(&holder, branch)?.at {
            // An earlier attempt or iteration: it has ended.
            return Ok(ScopeRecord { begun: true, halted: true, done: true, ..ScopeRecord::default() });
        }
        Ok(self.step(&holder)?.scopes.get(branch as usize).cloned().unwrap_or_default())
    }

    /// Changes what is known of a scope.
    pub(crate) fn change_scope<T>(&mut self, inside: &Inside, change: impl FnOnce(&mut ScopeRecord) -> T) -> Done<T>
    where
        T: Default,
    {
        let Some((holder, branch)) = self.plan.holder(inside) else { return Ok(change(&mut self.head.root)) };
        if inside.at != self.inner(&holder, branch)?.at {
            return Ok(T::default());
        }
        let scopes = &mut self.step_mut(&holder)?.scopes;
        if scopes.len() <= branch as usize {
            scopes.resize(branch as usize + 1, ScopeRecord::default());
        }
        Ok(change(&mut scopes[branch as usize]))
    }

    /// The scope that a step or item holds now: that of its attempt and iteration.
    pub(crate) fn inner(&self, holder: &Place, branch: u32) -> Done<Inside> {
        let record = self.step(holder)?;
        let step = self.plan.step(holder.node);
        let mut at = holder.at.clone();
        if super::plan::repeats(step) {
            at.push(record.attempt);
        }
        if matches!(step.kind, crate::definition::Kind::Loop(_)) {
            at.push(record.number);
        }
        Ok(Inside { scope: self.plan.node(holder.node).inner[branch as usize], at })
    }

    /// Whether nothing may start, and nothing but results is taken.
    pub(crate) fn frozen(&self) -> bool {
        self.head.state == RunState::Paused
    }

    /// Moves the run along its table; false if the move is illegal.
    pub(crate) fn move_run(&mut self, event: RunMove, why: &str) -> bool {
        let Some(state) = self.head.state.after(event) else { return false };
        self.head.state = state;
        if state.is_end() {
            self.head.ended = self.now;
        }
        self.note(state.as_str(), None, why);
        true
    }

    /// Moves a step along its table; false if the move is illegal.
    pub(crate) fn move_step(&mut self, place: &Place, event: StepMove) -> Done<bool> {
        let now = self.now;
        let Some(state) = self.state(place)?.after(event) else { return Ok(false) };
        let record = self.step_mut(place)?;
        record.state = state;
        match state {
            StepState::Running => record.started = now,
            _ => record.ended = now,
        }
        Ok(true)
    }

    /// Takes one from what this event may still start.
    pub(crate) fn spend(&mut self) -> bool {
        self.budget = self.budget.saturating_sub(1);
        self.budget > 0
    }

    /// Adds to the timeline.
    pub(crate) fn note(&mut self, what: &'static str, place: Option<&Place>, why: &str) {
        let step = place.map(|place| self.plan.text(place)).unwrap_or_default();
        self.timeline.push(Entry { at: self.now, what, step, why: why.to_owned() });
    }

    /// Adds a command to the outbox.
    pub(crate) fn send(&mut self, key: &Key, action: Action) -> Done {
        let text = key.text(self.plan);
        let outbox = self.outbox_mut(&Field::Outbox)?;
        if !outbox.contains(&text) {
            outbox.push(text.clone());
        }
        self.hand_out(text, key.verb, action);
        Ok(())
    }

    /// Hands a command out that the outbox does not hold: a for-each's cursors stand for it.
    pub(crate) fn tell(&mut self, key: &Key, action: Action) {
        self.hand_out(key.text(self.plan), key.verb, action);
    }

    fn hand_out(&mut self, key: String, verb: Verb, action: Action) {
        self.commands.push(Command { key, verb, action });
    }

    /// Takes a command out of the outbox, because it was carried out or is not needed any more.
    pub(crate) fn unsend(&mut self, key: &Key) -> Done<bool> {
        let text = key.text(self.plan);
        let held = self.outbox(&Field::Outbox)?.is_some_and(|outbox| outbox.contains(&text));
        if held {
            self.outbox_mut(&Field::Outbox)?.retain(|other| *other != text);
        }
        Ok(held)
    }

    pub(crate) fn root(&self) -> Inside {
        Inside { scope: ROOT, at: Vec::new() }
    }
}
