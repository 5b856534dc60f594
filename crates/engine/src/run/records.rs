//! What the fields of a run hold. Every field is JSON with names of one letter: small, readable with `redis-cli`, and
//! tolerant of names that a newer version adds. What has its usual value is left out.

use std::collections::BTreeMap;

use muster_domain::{Labels, RunId, Tenant, Time};
use serde::{Deserialize, Serialize};

use super::state::{RunState, StepState, coded, numbered};

/// The version of the format, in the head.
pub(crate) const FORMAT: u32 = 1;

/// How many items a page holds.
pub(crate) const PAGE: u32 = 64;

/// Why a run, a step or an item failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunError {
    /// The code to match on.
    #[serde(rename = "c")]
    pub code: String,
    /// A message for people.
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The step that failed first, with the numbers of its item and iteration; empty for the run itself.
    #[serde(rename = "s", default, skip_serializing_if = "String::is_empty")]
    pub step: String,
}

impl RunError {
    /// An error that belongs to no step yet.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> RunError {
        let mut message = message.into();
        if message.len() > MOST_MESSAGE {
            let end = (0..=MOST_MESSAGE).rev().find(|&n| message.is_char_boundary(n)).unwrap_or(0);
            message.truncate(end);
        }
        RunError { code: code.into(), message, step: String::new() }
    }

    /// The same error, which names the step unless it names one already.
    pub(crate) fn of(mut self, step: &str) -> RunError {
        if self.step.is_empty() {
            step.clone_into(&mut self.step);
        }
        self
    }
}

/// The most bytes of an error's message in a run.
const MOST_MESSAGE: usize = 1000;

mod micros {
    use muster_domain::Time;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        u64::deserialize(from).map(Time)
    }
}

mod text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

mod tenant {
    use muster_domain::Tenant;
    use serde::{Deserialize, Deserializer, de::Error};

    pub(super) use super::text::serialize;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Tenant, D::Error> {
        Tenant::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

mod maybe_run {
    use muster_domain::RunId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(run: &Option<RunId>, to: S) -> Result<S::Ok, S::Error> {
        match run {
            Some(run) => to.collect_str(run),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RunId>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a run is, from its start on. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The owner.
    #[serde(with = "tenant")]
    pub tenant: Tenant,
    /// The run's id.
    #[serde(with = "text")]
    pub run: RunId,
    /// The name of its workflow.
    pub workflow: String,
    /// The version of the definition that it runs.
    pub version: u32,
    /// Its labels.
    #[serde(default, skip_serializing_if = "is_default")]
    pub labels: Labels,
    /// Whose rights it has.
    #[serde(default, skip_serializing_if = "is_default")]
    pub principal: String,
    /// Globs of the topics to which it may submit jobs: those of the key that started it. Empty: all topics.
    #[serde(default, skip_serializing_if = "is_default")]
    pub topics: Vec<String>,
    /// When it was stored.
    #[serde(with = "micros")]
    pub created: Time,
    /// Distinguishes the ids of two runs that were stored under one id, one after the other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub generation: u32,
    /// The step of another run that started it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub parent: Option<Parent>,
    /// How many runs are above it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub depth: u32,
    /// The run that it repeats.
    #[serde(default, skip_serializing_if = "is_default", with = "maybe_run")]
    pub rerun_of: Option<RunId>,
    /// The value of its concurrency key: it holds a slot of it from start to end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slot: Option<String>,
}

/// The step that started a sub-run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parent {
    /// The run.
    #[serde(with = "text")]
    pub run: RunId,
    /// The step, with the numbers of its item and iteration.
    pub step: String,
    /// The attempt of the step.
    pub attempt: u32,
}

numbered! {
    /// Why a run or a step is being stopped.
    pub(crate) StopWhy {
        /// Another step failed, or somebody cancelled the run.
        Cancelled = 1,
        /// Its time ran out.
        TimedOut = 2,
        /// A step failed the run.
        Failed = 3,
    }
}

coded! {
    /// How far the compensation of one step, or of the run, is.
    Undo {
        /// Nothing to undo.
        None = 0 "none",
        /// To be undone if the run fails.
        Due = 1 "due",
        /// Its compensation runs.
        Running = 2 "running",
        /// Undone.
        Done = 3 "done",
        /// Its compensation failed for good.
        Failed = 4 "failed",
    }
}

numbered! {
    /// What a running step waits for besides its work.
    pub(crate) Phase {
        /// Nothing.
        Work = 0,
        /// The end of the backoff before its next attempt.
        Backoff = 1,
        /// Its next iteration, put off so that one event costs a bounded time.
        Next = 2,
    }
}

numbered! {
    /// Why a for-each starts no further items.
    pub(crate) EachStop {
        /// It goes on.
        No = 0,
        /// More items failed than are tolerated.
        Failed = 1,
        /// Enough succeeded.
        Enough = 2,
        /// The step is being stopped.
        Stopped = 3,
    }
}

macro_rules! usual {
    ($($name:ident::$variant:ident),*) => {$(
        impl Default for $name { fn default() -> $name { $name::$variant } }
    )*};
}
usual!(StepState::Waiting, Undo::None, Phase::Work, EachStop::No);

/// The head: what nearly every event reads and changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The version of the format.
    #[serde(rename = "v")]
    pub(crate) format: u32,
    #[serde(rename = "s")]
    pub(crate) state: RunState,
    /// The time of the last event that changed something.
    #[serde(rename = "n", with = "micros")]
    pub(crate) now: Time,
    #[serde(rename = "t", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) started: Time,
    #[serde(rename = "e", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) ended: Time,
    /// When the run times out.
    #[serde(rename = "l", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) limit: Time,
    /// No step needs a timer before this.
    #[serde(rename = "d", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) due: Time,
    /// How many ends were counted: the order of completion.
    #[serde(rename = "q", default, skip_serializing_if = "is_default")]
    pub(crate) ends: u32,
    /// The outermost scope.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) root: ScopeRecord,
    /// Why it stops.
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub(crate) stop: Option<StopWhy>,
    /// Whether the compensations are left out.
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub(crate) without_undo: bool,
    /// The error of the run.
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) error: Option<RunError>,
    /// How far its compensations are.
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub(crate) undo: UndoHead,
    /// Signals that no step has read.
    #[serde(rename = "g", default, skip_serializing_if = "is_default")]
    pub(crate) signals: u32,
    /// Their bytes.
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    pub(crate) signal_bytes: u32,
    /// How many signals were read.
    #[serde(rename = "i", default, skip_serializing_if = "is_default")]
    pub(crate) signals_read: u32,
    /// Roughly how many bytes the values of the run have.
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub(crate) bytes: u64,
}

/// How far the compensations of a run are.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct UndoHead {
    /// `none` before they begin; `done` and `failed` are ends.
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(crate) state: Undo,
    /// How many times they were begun.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) round: u32,
    /// Which entry of the list runs.
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(crate) at: u32,
    /// How many failed in this round.
    #[serde(rename = "f", default, skip_serializing_if = "is_default")]
    pub(crate) failed: u32,
    /// The step of another run that is told of the end.
    #[serde(rename = "t", default, skip_serializing_if = "is_default")]
    pub(crate) tell: Option<Parent>,
    /// How many were undone in all rounds.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) done: u32,
}

/// One graph of steps in a run.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct ScopeRecord {
    /// How many of its steps have not ended.
    #[serde(rename = "o", default, skip_serializing_if = "is_default")]
    pub(crate) open: u32,
    /// Whether it began.
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub(crate) begun: bool,
    /// Whether one of its steps failed it.
    #[serde(rename = "f", default, skip_serializing_if = "is_default")]
    pub(crate) failing: bool,
    /// Whether nothing in it may start any more.
    #[serde(rename = "h", default, skip_serializing_if = "is_default")]
    pub(crate) halted: bool,
    /// Whether its end was taken.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) done: bool,
    /// The first failure.
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) error: Option<Box<RunError>>,
}

/// One step, one item, or one step of an item or iteration.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct StepRecord {
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(crate) state: StepState,
    #[serde(rename = "t", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) started: Time,
    #[serde(rename = "e", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) ended: Time,
    /// Its place in the order of completion.
    #[serde(rename = "q", default, skip_serializing_if = "is_default")]
    pub(crate) order: u32,
    /// The attempt: of the job once that has ended, of the scope or sub-run while it runs.
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(crate) attempt: u32,
    /// When the whole step times out.
    #[serde(rename = "l", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) limit: Time,
    /// When the step itself has something to do.
    #[serde(rename = "w", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) wake: Time,
    /// Neither the step nor anything in it needs a timer before this.
    #[serde(rename = "d", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) due: Time,
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) error: Option<Box<RunError>>,
    /// Why it was skipped, or what a person said who ended it by hand.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) reason: Option<Box<str>>,
    /// Whether it was skipped because of a failure.
    #[serde(rename = "f", default, skip_serializing_if = "is_default")]
    pub(crate) by_failure: bool,
    /// Why it is being stopped.
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub(crate) stop: Option<StopWhy>,
    /// Whether the submit of its job, or the start of its sub-run, was confirmed.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub(crate) sent: bool,
    /// Whether the cancel of its job was confirmed.
    #[serde(rename = "v", default, skip_serializing_if = "is_default")]
    pub(crate) cancel_sent: bool,
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    pub(crate) phase: Phase,
    /// The iteration of a loop; the branch that a switch took.
    #[serde(rename = "i", default, skip_serializing_if = "is_default")]
    pub(crate) number: u32,
    /// The scopes that it holds, in this attempt and iteration.
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub(crate) scopes: Vec<ScopeRecord>,
    #[serde(rename = "z", default, skip_serializing_if = "is_default")]
    pub(crate) each: Option<Box<Each>>,
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub(crate) undo: Undo,
    /// Whether its result is too large to be kept.
    #[serde(rename = "g", default, skip_serializing_if = "is_default")]
    pub(crate) truncated: bool,
    /// Whether a result is kept in a field of its own.
    #[serde(rename = "j", default, skip_serializing_if = "is_default")]
    pub(crate) kept: bool,
    /// The run that the end was taken over from.
    #[serde(rename = "o", default, skip_serializing_if = "is_default", with = "maybe_run")]
    pub(crate) taken: Option<RunId>,
}

/// A for-each as a whole.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Each {
    #[serde(rename = "n")]
    pub(crate) total: u32,
    /// Items below this were started.
    #[serde(rename = "i", default, skip_serializing_if = "is_default")]
    pub(crate) issued: u32,
    /// Items below this were confirmed or have ended.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub(crate) confirmed: u32,
    /// Items below this have ended.
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub(crate) low: u32,
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub(crate) succeeded: u32,
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub(crate) failed: u32,
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) running: u32,
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub(crate) stop: EachStop,
    /// Pages with timers, each with a time before which it needs none.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) dues: BTreeMap<u32, u64>,
    /// The first failure.
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) error: Option<Box<RunError>>,
    /// Compensations: items below this were looked at, from the last one down.
    #[serde(rename = "ui", default, skip_serializing_if = "is_default")]
    pub(crate) undo_issued: u32,
    /// Items whose compensations run.
    #[serde(rename = "ur", default, skip_serializing_if = "is_default")]
    pub(crate) undo_running: u32,
}

/// Sixty-four items, and the steps inside them.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Page {
    /// The [short form](super::codec::short) of each item.
    pub(crate) states: Vec<u8>,
    /// Items of which more is known, by their place in the page.
    pub(crate) items: BTreeMap<u32, StepRecord>,
    /// Steps inside the items: the step's number, and its place's numbers from the item on.
    pub(crate) nested: BTreeMap<(usize, Vec<u32>), StepRecord>,
    /// Items that a rerun took over, one bit each, by the run that they ran in.
    pub(crate) taken: BTreeMap<RunId, u64>,
}

/// A signal, read or unread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Signal {
    #[serde(rename = "n", default, skip_serializing_if = "is_default")]
    pub(crate) name: String,
    /// The body; gone once a step read it.
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub(crate) body: Option<serde_json::Value>,
    #[serde(rename = "t", with = "micros", default, skip_serializing_if = "is_default")]
    pub(crate) at: Time,
    #[serde(rename = "z", default, skip_serializing_if = "is_default")]
    pub(crate) bytes: u32,
}

/// The signals of one name that nobody read, and the steps that wait for one, both in order.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Queue {
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub(crate) unread: Vec<u64>,
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub(crate) waiting: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_with_nothing_to_say_is_small() {
        assert_eq!(serde_json::to_string(&StepRecord::default()).unwrap(), "{}");
        let ended = StepRecord { state: StepState::Succeeded, ..StepRecord::default() };
        assert_eq!(serde_json::to_string(&ended).unwrap(), r#"{"s":2}"#);
    }

    #[test]
    fn names_that_a_newer_version_adds_are_passed_over() {
        let read: StepRecord = serde_json::from_str(r#"{"s":3,"new":{"a":[1]},"x":{"c":"boom","else":1}}"#).unwrap();
        assert_eq!(read.state, StepState::Failed);
        assert_eq!(read.error.unwrap().code, "boom");
    }
}
