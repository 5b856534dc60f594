//! The bytes of a run's fields.

use std::{collections::BTreeMap, sync::Arc};

use muster_domain::RunId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use thiserror::Error;

use super::{
    field::Field,
    plan::Plan,
    records::{About, Head, PAGE, Page, Queue, Signal, StepRecord},
    state::StepState,
};

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Record {
    Head(Head),
    About(About),
    Step(StepRecord),
    Page(Page),
    Items(Arc<Vec<Arc<Value>>>),
    Json(Arc<Value>),
    Outbox(Vec<String>),
    Places(Vec<String>),
    Queue(Queue),
    Signal(Signal),
    Hashes(Vec<u64>),
}

/// A field that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the run's field {field} cannot be read: {why}")]
pub struct Unreadable {
    /// The field's name.
    pub field: String,
    /// Why.
    pub why: String,
}

/// A page as bytes hold it: one digit per item, and whatever has more to say.
#[derive(Serialize, Deserialize)]
struct PageForm {
    s: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    d: BTreeMap<u32, StepRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    n: BTreeMap<String, StepRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    t: BTreeMap<String, u64>,
}

impl Page {
    /// What is known of an item.
    pub(crate) fn item(&self, offset: u32) -> Option<&StepRecord> {
        if let Some(record) = self.items.get(&offset) {
            return Some(record);
        }
        self.states.get(offset as usize).map(|short| &plain_items()[usize::from(*short)])
    }

    /// The run that an item was taken over from, if it was.
    pub(crate) fn taken(&self, offset: u32) -> Option<RunId> {
        self.taken.iter().find(|(_, items)| *items >> offset & 1 == 1).map(|(run, _)| *run)
    }

    /// What is known of an item, for changing it.
    pub(crate) fn item_mut(&mut self, offset: u32) -> &mut StepRecord {
        let short = self.states.get(offset as usize).copied().unwrap_or_default();
        self.items.entry(offset).or_insert_with(|| plain_items()[usize::from(short)].clone())
    }

    /// Brings the short forms up to date, and forgets records that say no more than those.
    pub(crate) fn settle(&mut self) {
        let states = &mut self.states;
        self.items.retain(|offset, record| {
            let offset = *offset as usize;
            if states.len() <= offset {
                states.resize(offset + 1, 0);
            }
            states[offset] = short(record);
            *record != plain_items()[usize::from(short(record))]
        });
    }

    fn encode(&self, plan: &Plan) -> Vec<u8> {
        let s = self.states.iter().map(|short| char::from(b'0' + short)).collect();
        let n = self.nested.iter().map(|((node, at), record)| {
            let numbers: String = at.iter().map(|n| format!("[{n}]")).collect();
            (format!("{}{numbers}", plan.step(*node).id), record.clone())
        });
        let t = self.taken.iter().map(|(run, items)| (run.to_string(), *items)).collect();
        json(&PageForm { s, d: self.items.clone(), n: n.collect(), t })
    }

    fn decode(plan: &Plan, bytes: &[u8]) -> Result<Page, String> {
        let form: PageForm = read(bytes)?;
        let states = form.s.bytes().take(PAGE as usize);
        let states = states.map(|b| Some(b.wrapping_sub(b'0')).filter(|n| usize::from(*n) < plain_items().len()));
        let states = states.collect::<Option<_>>().ok_or("no such state")?;
        let mut nested = BTreeMap::new();
        for (text, record) in form.n {
            let (id, numbers) = text.split_once('[').unwrap_or((&text, ""));
            let Some(node) = plan.find(id) else { continue };
            let numbers = numbers.trim_end_matches(']').split("][").filter(|n| !n.is_empty());
            let at = numbers.map(|n| n.parse().map_err(|_| "no such place")).collect::<Result<_, _>>()?;
            nested.insert((node, at), record);
        }
        let taken = form.t.iter().map(|(run, items)| Ok((run.parse().map_err(|_| "no such run")?, *items)));
        Ok(Page { states, items: form.d, nested, taken: taken.collect::<Result<_, &str>>()? })
    }
}

/// The records that a page holds as one digit: each state with nothing else known, and an item that runs and whose
/// submit was confirmed.
fn plain_items() -> &'static [StepRecord] {
    use std::sync::LazyLock;
    static PLAIN: LazyLock<Vec<StepRecord>> = LazyLock::new(|| {
        let states = StepState::ALL.iter().map(|&state| StepRecord { state, ..StepRecord::default() });
        let sent = StepRecord { state: StepState::Running, sent: true, ..StepRecord::default() };
        states.chain([sent]).collect()
    });
    &PLAIN
}

/// The digit that says most of a record.
fn short(record: &StepRecord) -> u8 {
    match record.state {
        StepState::Running if record.sent => StepState::ALL.len() as u8,
        state => state.code(),
    }
}

/// The record of a step of which nothing is known.
pub(crate) fn waiting() -> &'static StepRecord {
    &plain_items()[0]
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Maps with text as keys and plain numbers: there is nothing that JSON could not hold.
    serde_json::to_vec(value).unwrap_or_default()
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

impl Record {
    /// The bytes of a field.
    pub(crate) fn encode(&self, plan: &Plan) -> Vec<u8> {
        match self {
            Record::Head(head) => json(head),
            Record::About(about) => json(about),
            Record::Step(step) => json(step),
            Record::Page(page) => page.encode(plan),
            Record::Items(items) => json(&items.iter().map(AsRef::as_ref).collect::<Vec<&Value>>()),
            Record::Json(value) => json(value.as_ref()),
            Record::Outbox(list) | Record::Places(list) => json(list),
            Record::Queue(queue) => json(queue),
            Record::Signal(signal) => json(signal),
            Record::Hashes(list) => json(list),
        }
    }

    /// Reads the bytes of a field.
    pub(crate) fn decode(plan: &Plan, field: &Field, bytes: &[u8]) -> Result<Record, Unreadable> {
        let record = match field {
            Field::Head => read(bytes).map(Record::Head),
            Field::About => read(bytes).map(Record::About),
            Field::Step(_) => read(bytes).map(Record::Step),
            Field::Page(..) => Page::decode(plan, bytes).map(Record::Page),
            Field::Items(..) => {
                read::<Vec<Value>>(bytes).map(|l| Record::Items(Arc::new(l.into_iter().map(Arc::new).collect())))
            }
            Field::Input | Field::Output | Field::Result(_) | Field::Collected(_) | Field::LoopState(_) => {
                read(bytes).map(|v: Value| Record::Json(Arc::new(v)))
            }
            Field::Undo(_) => read(bytes).map(|v: Value| Record::Json(Arc::new(v))),
            Field::Outbox => read(bytes).map(Record::Outbox),
            Field::UndoList => read(bytes).map(Record::Places),
            Field::Queue(_) => read(bytes).map(Record::Queue),
            Field::Signal(_) => read(bytes).map(Record::Signal),
            Field::Read(_) | Field::Ops => read(bytes).map(Record::Hashes),
        };
        record.map_err(|why| Unreadable { field: field.name(plan), why })
    }
}
