//! What a run's hash holds besides the engine's fields: operations that were not published yet, entries of the timeline
//! that may not be in its list yet, the run that makes room for it, and the hash of the request that started the run. They are written by the save that
//! they belong to, so no crash separates them from it, and are cleared by a later save.

use std::collections::HashMap;

use bytes::Bytes;
use muster_domain::{RunId, Time};
use muster_engine::run::Entry;
use serde::{Deserialize, Serialize};

/// The name of the field.
pub(crate) const FIELD: &str = "notes";
/// The name of the field with the hash of the starting request; written once.
pub(crate) const HASH: &str = "hash";

/// An operation that is to be published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Unpublished {
    #[serde(rename = "i")]
    pub(crate) id: String,
    #[serde(rename = "t")]
    pub(crate) at: u64,
    #[serde(rename = "k")]
    pub(crate) kind: String,
    /// The operation as JSON text.
    #[serde(rename = "b")]
    pub(crate) body: String,
}

/// One entry of the timeline as stored and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line<'a> {
    at: u64,
    what: &'a str,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    step: &'a str,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    why: &'a str,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Form {
    /// Operations that were not published.
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    ops: Vec<Unpublished>,
    /// The number of the first of `lines` over the whole run.
    #[serde(rename = "n", default)]
    first: u64,
    /// Entries of the timeline.
    #[serde(rename = "t", default, skip_serializing_if = "Vec::is_empty")]
    lines: Vec<String>,
    /// The run that was cancelled to make room for this one.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    room: Option<String>,
}

/// The notes of a run in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    form: Form,
    /// How many of the lines are in the timeline's list.
    listed: usize,
    dirty: bool,
}

impl Notes {
    pub(crate) fn read(fields: &HashMap<Bytes, Bytes>) -> Result<Notes, serde_json::Error> {
        let form = match fields.get(FIELD.as_bytes()) {
            Some(bytes) => serde_json::from_slice(bytes)?,
            None => Form::default(),
        };
        Ok(Notes { form, listed: 0, dirty: false })
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.dirty
    }

    /// The bytes of the field, without what was published and listed meanwhile.
    pub(crate) fn take_bytes(&mut self) -> Bytes {
        self.form.lines.drain(..self.listed);
        self.form.first += self.listed as u64;
        self.listed = 0;
        serde_json::to_vec(&self.form).unwrap_or_default().into()
    }

    pub(crate) fn saved(&mut self) {
        self.dirty = false;
    }

    pub(crate) fn tell(&mut self, entries: &[Entry]) {
        for Entry { at, what, step, why } in entries {
            let line = Line { at: at.0, what, step, why };
            self.form.lines.push(serde_json::to_string(&line).unwrap_or_default());
            self.dirty = true;
        }
    }

    pub(crate) fn publish(&mut self, op: Unpublished) {
        self.form.ops.push(op);
        self.dirty = true;
    }

    pub(crate) fn unpublished(&self) -> &[Unpublished] {
        &self.form.ops
    }

    /// Notes that these operations are on the bus, or need not be.
    pub(crate) fn published(&mut self, ids: &[String]) {
        let before = self.form.ops.len();
        self.form.ops.retain(|op| !ids.contains(&op.id));
        self.dirty |= self.form.ops.len() != before;
    }

    /// The run that is cancelled to make room for this one.
    pub(crate) fn room(&self) -> Option<RunId> {
        self.form.room.as_ref()?.parse().ok()
    }

    pub(crate) fn take_room_of(&mut self, run: RunId) {
        self.form.room = Some(run.to_string());
        self.dirty = true;
    }

    /// Saved lines that may not be in the list: the number of the first, and the lines.
    pub(crate) fn unlisted(&self) -> Option<(u64, Vec<Bytes>)> {
        let lines = &self.form.lines[self.listed..];
        let bytes = || lines.iter().map(|line| Bytes::from(line.clone().into_bytes())).collect();
        (!lines.is_empty()).then(|| (self.form.first + self.listed as u64, bytes()))
    }

    /// Notes that all saved lines are in the list. They leave the hash with the next save, which this alone is no
    /// reason for.
    pub(crate) fn listed(&mut self) {
        self.listed = self.form.lines.len();
    }
}

/// An entry of a timeline as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineEntry {
    /// When.
    pub at: Time,
    /// What: a state of the run or of the step, or the name of what happened.
    pub what: String,
    /// The step; empty for the run.
    pub step: String,
    /// Why; empty if there is nothing to say.
    pub why: String,
}

impl TimelineEntry {
    /// Reads a stored entry; none if it cannot be read.
    pub fn read(bytes: &[u8]) -> Option<TimelineEntry> {
        #[derive(Deserialize)]
        struct Owned {
            at: u64,
            what: String,
            #[serde(default)]
            step: String,
            #[serde(default)]
            why: String,
        }
        let Owned { at, what, step, why } = serde_json::from_slice(bytes).ok()?;
        Some(TimelineEntry { at: Time(at), what, step, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(what: &'static str) -> Entry {
        Entry { at: Time(7), what, step: "a[1]".into(), why: String::new() }
    }

    fn fields(bytes: Bytes) -> HashMap<Bytes, Bytes> {
        HashMap::from([(Bytes::from_static(FIELD.as_bytes()), bytes)])
    }

    #[test]
    fn lines_keep_their_numbers_across_saves_and_reads() {
        let mut notes = Notes::default();
        notes.tell(&[entry("running"), entry("succeeded")]);
        let read = Notes::read(&fields(notes.take_bytes())).unwrap();
        assert_eq!(read.unlisted().unwrap().0, 0);
        notes.listed();
        assert_eq!(notes.unlisted(), None);
        notes.tell(&[entry("failed")]);
        let (first, lines) = Notes::read(&fields(notes.take_bytes())).unwrap().unlisted().unwrap();
        assert_eq!((first, lines.len()), (2, 1));
        let shown = TimelineEntry::read(&lines[0]).unwrap();
        assert_eq!((shown.what.as_str(), shown.step.as_str(), shown.at), ("failed", "a[1]", Time(7)));
    }

    #[test]
    fn an_operation_stays_until_it_is_published() {
        let mut notes = Notes::default();
        notes.publish(Unpublished { id: "x".into(), at: 1, kind: "cancel".into(), body: "{}".into() });
        let mut read = Notes::read(&fields(notes.take_bytes())).unwrap();
        assert!(!read.is_changed());
        read.published(&["x".to_owned()]);
        assert!(read.is_changed() && read.unpublished().is_empty());
    }
}
