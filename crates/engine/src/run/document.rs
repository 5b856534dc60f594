//! A run in memory: the fields that were read, and which of them changed since the last save.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use muster_domain::Time;
use serde_json::Value;

use super::{
    codec::{Record, Unreadable},
    command::Command,
    event::Outcome,
    field::Field,
    plan::Plan,
    records::{About, FORMAT, Head, RunError, ScopeRecord, UndoHead},
    state::RunState,
    timeline::Entry,
};

/// Fields that an event needs and that were not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Their names.
    pub fields: Vec<String>,
}

/// A run in memory.
#[derive(Clone, Debug)]
pub struct Run {
    pub(crate) plan: Arc<Plan>,
    pub(crate) head: Head,
    pub(crate) about: Arc<About>,
    /// Fields that were read or written; `None` for one that does not exist.
    fields: HashMap<Field, Option<Arc<Record>>>,
    /// Whether a field that is not in `fields` does not exist.
    whole: bool,
    dirty: BTreeSet<Field>,
}

/// What applying an event did.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// What became of the event.
    pub outcome: Outcome,
    /// New commands, in order. They are in the outbox too.
    pub commands: Vec<Command>,
    /// What is new in the timeline.
    pub timeline: Vec<Entry>,
}

impl Run {
    /// A run that was not stored yet: queued, with every field changed.
    pub fn new(plan: Arc<Plan>, about: About, input: Option<Value>) -> Run {
        let open = plan.scope(super::plan::ROOT).nodes.len() as u32;
        let head = Head {
            format: FORMAT,
            state: RunState::Queued,
            now: about.created,
            started: Time::NONE,
            ended: Time::NONE,
            limit: Time::NONE,
            due: Time::NONE,
            ends: 0,
            root: ScopeRecord { open, ..ScopeRecord::default() },
            stop: None,
            without_undo: false,
            error: None,
            undo: UndoHead::default(),
            signals: 0,
            signal_bytes: 0,
            signals_read: 0,
            bytes: 0,
        };
        let mut run = Run {
            plan,
            head,
            about: Arc::new(about),
            fields: HashMap::new(),
            whole: true,
            dirty: BTreeSet::from([Field::Head, Field::About]),
        };
        if let Some(input) = input {
            run.set(Field::Input, Some(Record::Json(Arc::new(input))));
        }
        run
    }

    /// Reads a run from all its fields. Names that are not the engine's are passed over.
    pub fn load<'a>(plan: Arc<Plan>, fields: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Run, Unreadable> {
        let mut run = Run::load_some(plan, fields.into_iter().map(|(name, bytes)| (name, Some(bytes))))?;
        run.whole = true;
        Ok(run)
    }

    /// Reads a run from some of its fields, `head` and `about` among them; `None` is a field that does not exist.
    pub fn load_some<'a>(
        plan: Arc<Plan>,
        fields: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) -> Result<Run, Unreadable> {
        let (mut head, mut about, mut rest) = (None, None, HashMap::new());
        for (name, bytes) in fields {
            let Some(field) = Field::parse(&plan, name) else { continue };
            match bytes.map(|bytes| Record::decode(&plan, &field, bytes)).transpose()? {
                Some(Record::Head(read)) => head = Some(read),
                Some(Record::About(read)) => about = Some(read),
                record => drop(rest.insert(field, record.map(Arc::new))),
            }
        }
        let lost = |field: &str| Unreadable { field: field.to_owned(), why: "it does not exist".to_owned() };
        Ok(Run {
            plan,
            head: head.ok_or_else(|| lost("head"))?,
            about: Arc::new(about.ok_or_else(|| lost("about"))?),
            fields: rest,
            whole: false,
            dirty: BTreeSet::new(),
        })
    }

    /// Adds a field that was read later.
    pub fn add(&mut self, name: &str, bytes: Option<&[u8]>) -> Result<(), Unreadable> {
        let Some(field) = Field::parse(&self.plan, name) else { return Ok(()) };
        if matches!(field, Field::Head | Field::About) || self.fields.contains_key(&field) {
            return Ok(());
        }
        let record = bytes.map(|bytes| Record::decode(&self.plan, &field, bytes)).transpose()?;
        self.fields.insert(field, record.map(Arc::new));
        Ok(())
    }

    /// Notes the slot that a run holds from its start to its end. For a run that was not stored yet: what it is never
    /// changes afterwards.
    pub fn hold_slot(&mut self, key: String) {
        Arc::make_mut(&mut self.about).slot = Some(key);
        self.dirty.insert(Field::About);
    }

    pub(crate) fn missing(&self, lack: &Lack) -> Missing {
        Missing { fields: lack.0.iter().map(|field| field.name(&self.plan)).collect() }
    }

    /// Sets the head.
    pub(crate) fn set_head(&mut self, head: Head) {
        self.head = head;
        self.dirty.insert(Field::Head);
    }

    /// Sets a field, or deletes it.
    pub(crate) fn set(&mut self, field: Field, record: Option<Record>) {
        self.dirty.insert(field.clone());
        self.fields.insert(field, record.map(Arc::new));
    }

    /// Gives a new run a field of another one.
    pub(crate) fn take_over(&mut self, field: Field, record: Arc<Record>) {
        self.dirty.insert(field.clone());
        self.fields.insert(field, Some(record));
    }

    pub(crate) fn shared(&self) -> impl Iterator<Item = (&Field, &Arc<Record>)> {
        self.fields.iter().filter_map(|(field, record)| Some((field, record.as_ref()?)))
    }

    pub(crate) fn get(&self, field: &Field) -> Result<Option<&Record>, Lack> {
        match self.fields.get(field) {
            Some(record) => Ok(record.as_deref()),
            None if self.whole => Ok(None),
            None => Err(Lack(vec![field.clone()])),
        }
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = (&Field, &Record)> {
        self.fields.iter().filter_map(|(field, record)| Some((field, record.as_deref()?)))
    }

    /// The fields that changed since the last save, with their bytes; `None` deletes a field.
    pub fn changes(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let bytes = |field: &Field| match field {
            Field::Head => Some(Record::Head(self.head.clone()).encode(&self.plan)),
            Field::About => Some(Record::About(self.about.as_ref().clone()).encode(&self.plan)),
            field => self.fields.get(field)?.as_ref().map(|record| record.encode(&self.plan)),
        };
        self.dirty.iter().map(|field| (field.name(&self.plan), bytes(field))).collect()
    }

    /// All fields that are in memory, with their bytes.
    pub fn all(&self) -> Vec<(String, Vec<u8>)> {
        let fixed = [
            (Field::Head, Record::Head(self.head.clone())),
            (Field::About, Record::About(self.about.as_ref().clone())),
        ];
        let fixed = fixed.iter().map(|(field, record)| (field.name(&self.plan), record.encode(&self.plan)));
        let rest = self.fields().map(|(field, record)| (field.name(&self.plan), record.encode(&self.plan)));
        let mut all: Vec<_> = fixed.chain(rest).collect();
        all.sort();
        all
    }

    /// Whether anything changed since the last save.
    pub fn is_changed(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Notes that the changes were saved.
    pub fn saved(&mut self) {
        self.dirty.clear();
    }

    /// Its plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// What it is.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Its state.
    pub fn state(&self) -> RunState {
        self.head.state
    }

    /// Its error.
    pub fn error(&self) -> Option<&RunError> {
        self.head.error.as_ref()
    }

    /// The time of the last event that changed it.
    pub fn now(&self) -> Time {
        self.head.now
    }

    /// When it started and ended; [`Time::NONE`] before.
    pub fn times(&self) -> (Time, Time) {
        (self.head.started, self.head.ended)
    }

    /// When it needs a [`What::Timer`](super::What::Timer) event next; `None` if no time is waited for.
    pub fn next_look(&self) -> Option<Time> {
        let times = [self.head.limit, self.head.due];
        let live = !self.head.state.is_end();
        times.into_iter().filter_map(Time::some).min().filter(|_| live)
    }
}

/// Fields that are needed and were not read.
#[derive(Debug)]
pub(crate) struct Lack(pub(crate) Vec<Field>);
