//! A run in memory, with the version that it was read or saved as.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use muster_bus::subjects;
use muster_domain::{RunId, Time, WorkflowName};
use muster_engine::run::{About, Applied, Entry, Event, Outcome, Run, RunState, StepState, What};
use muster_store::{RunVersion, SavedRun, StoredRun};
use muster_telemetry::{
    Counter,
    metrics::{Histogram, count, observe, topic_label},
};
use muster_wire::{Body, run_bytes, v1};

use crate::{
    BUS_PATIENCE, Runs, RunsError,
    asks::{message, message_id},
    notes::{FIELD, HASH, Notes, Unpublished},
};

/// The most timers that are made up for before one event.
const MOST_TIMERS: u32 = 1_000;

/// A run in memory. It may have changes that were not saved.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The run's id.
    pub id: RunId,
    /// The run.
    pub run: Run,
    pub(crate) version: RunVersion,
    pub(crate) notes: Notes,
    pub(crate) hash: Option<Bytes>,
    /// What watchers hear of after the next save.
    pub(crate) news: Vec<v1::RunEvent>,
}

impl Kept {
    /// The version of a run that is not stored.
    pub(crate) const UNSTORED: RunVersion = RunVersion { counter: 0, nonce: 0 };

    /// Whether something changed since it was read or saved.
    pub fn is_changed(&self) -> bool {
        self.run.is_changed() || self.notes.is_changed()
    }

    /// The version that was read or saved.
    pub fn version(&self) -> RunVersion {
        self.version
    }

    /// Whether operations of this run wait to be published.
    pub fn has_unpublished(&self) -> bool {
        !self.notes.unpublished().is_empty()
    }

    /// Applies an event. An event that was applied before changes nothing.
    pub fn apply(&mut self, event: &Event) -> Result<Applied, RunsError> {
        let applied = self.run.apply(event).map_err(|missing| {
            RunsError::unreadable(self.id, format!("these fields were not read: {}", missing.fields.join(", ")))
        })?;
        self.notes.tell(&applied.timeline);
        let news: Vec<v1::RunEvent> = applied.timeline.iter().filter_map(|entry| self.event_of(entry)).collect();
        self.news.extend(news);
        Ok(applied)
    }

    /// The event for watchers, if the entry is about a state.
    fn event_of(&self, entry: &Entry) -> Option<v1::RunEvent> {
        let about = self.run.about();
        let mut event = v1::RunEvent {
            run_id: run_bytes(Some(self.id)),
            tenant: about.tenant.to_string(),
            workflow: about.workflow.clone(),
            version: about.version,
            state: self.run.state().code().into(),
            at: entry.at.0,
            ..v1::RunEvent::default()
        };
        if entry.step.is_empty() {
            let state = RunState::parse(entry.what)?;
            event.state = state.code().into();
            let error = self.run.error().filter(|_| state.is_end() && state != RunState::Succeeded);
            event.error_code = error.map(|error| error.code.clone()).unwrap_or_default();
            return Some(event);
        }
        let state = StepState::parse(entry.what)?;
        event.kind = "step".to_owned();
        event.step = entry.step.clone();
        event.step_state = state.code().into();
        event.error_code = if state.is_failure() { entry.why.clone() } else { String::new() };
        (state != StepState::Waiting).then_some(event)
    }

    /// Applies the timers that were due before this time, each at its own time. Returns whether one changed something.
    pub(crate) fn pass_time(&mut self, until: Time) -> Result<bool, RunsError> {
        let mut changed = false;
        for _ in 0..MOST_TIMERS {
            let Some(due) = self.run.next_look().filter(|due| *due < until) else { break };
            let at = due.max(self.run.now());
            changed |= self.apply(&Event { at, what: What::Timer })?.outcome == Outcome::Applied;
            if self.run.next_look() == Some(due) {
                break;
            }
        }
        Ok(changed)
    }

    /// Applies events in the order of their times, and timers at theirs; returns whether something changed.
    pub fn apply_all(&mut self, mut events: Vec<Event>) -> Result<bool, RunsError> {
        events.sort_by_key(|event| event.at);
        let mut changed = false;
        for event in &events {
            changed |= self.pass_time(event.at)?;
            changed |= self.apply(event)?.outcome == Outcome::Applied;
        }
        Ok(changed)
    }
}

/// Counts an end that was saved.
fn measure(kept: &Kept, event: &v1::RunEvent) {
    if event.kind.is_empty() {
        let state = u8::try_from(event.state).ok().and_then(RunState::from_code);
        let Some(state) = state.filter(|state| state.is_end()) else { return };
        let workflow = topic_label(&event.workflow);
        count(Counter::Runs, &[("workflow", workflow), ("state", state.as_str())], 1);
        if let Some(started) = kept.run.times().0.some() {
            observe(Histogram::RunDuration, &[("workflow", workflow)], Time(event.at).since(started).as_secs_f64());
        }
        return;
    }
    let state = u8::try_from(event.step_state).ok().and_then(StepState::from_code);
    if let Some(state) = state.filter(|state| state.is_end()) {
        count(Counter::RunSteps, &[("state", state.as_str())], 1);
    }
}

/// The engine's fields of a stored run, its notes, and the definition that it pins.
pub(crate) fn about(id: RunId, fields: &HashMap<Bytes, Bytes>) -> Result<About, RunsError> {
    let bytes = fields.get(b"about".as_slice()).ok_or_else(|| RunsError::unreadable(id, "it has no field `about`"))?;
    serde_json::from_slice(bytes).map_err(|fault| RunsError::unreadable(id, format!("the field `about`: {fault}")))
}

impl Runs {
    /// Reads a run with all its fields, and Redis time; none if there is no such run.
    pub async fn read(&self, id: RunId) -> Result<Option<(Kept, Time)>, RunsError> {
        let Some(stored) = self.flow.store.read_run(id).await? else { return Ok(None) };
        let now = stored.now;
        Ok(Some((self.open(id, stored).await?, now)))
    }

    /// Makes a run of its stored fields, all of them.
    pub async fn open(&self, id: RunId, stored: StoredRun) -> Result<Kept, RunsError> {
        let StoredRun { version, fields, .. } = stored;
        let about = about(id, &fields)?;
        let unreadable = |fault: String| RunsError::unreadable(id, fault);
        let name = WorkflowName::parse(&about.workflow).map_err(|fault| unreadable(fault.to_string()))?;
        let workflow = self.workflow(&about.tenant, &name, Some(about.version)).await?;
        let workflow = workflow
            .ok_or_else(|| unreadable(format!("version {} of workflow {name} is not stored", about.version)))?;
        let texts = fields.iter().filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, value.as_ref())));
        let run = Run::load(workflow.plan.clone(), texts).map_err(|fault| RunsError::field(id, &fault))?;
        let notes = Notes::read(&fields).map_err(|fault| unreadable(format!("the field `{FIELD}`: {fault}")))?;
        Ok(Kept { id, run, version, notes, hash: fields.get(HASH.as_bytes()).cloned(), news: Vec::new() })
    }

    /// The version of a run as it is now; none if there is no such run.
    pub async fn version(&self, id: RunId) -> Result<Option<RunVersion>, RunsError> {
        Ok(self.flow.store.read_run_fields(id, &[]).await?.map(|stored| stored.version))
    }

    /// Saves what changed. False: somebody else saved the run since it was read, nothing was written, and the caller
    /// reads it again.
    pub async fn save(&self, kept: &mut Kept) -> Result<bool, RunsError> {
        if !kept.is_changed() {
            return Ok(true);
        }
        let (mut set, mut remove) = (Vec::new(), Vec::new());
        for (name, bytes) in kept.run.changes() {
            match bytes {
                Some(bytes) => set.push((Bytes::from(name), Bytes::from(bytes))),
                None => remove.push(Bytes::from(name)),
            }
        }
        set.push((Bytes::from_static(FIELD.as_bytes()), kept.notes.take_bytes()));
        match self.flow.store.save_run(kept.id, kept.version, fastrand::u64(..), &set, &remove).await? {
            SavedRun::Saved { version, .. } => {
                kept.version = version;
                kept.run.saved();
                kept.notes.saved();
                self.tell_watchers(kept).await;
                Ok(true)
            }
            SavedRun::Conflict { .. } => {
                count(Counter::RunSaveConflicts, &[], 1);
                Ok(false)
            }
        }
    }

    /// Tells watchers what was saved. Watchers read again when they miss an event, so a failed publish is no fault.
    pub(crate) async fn tell_watchers(&self, kept: &mut Kept) {
        if !kept.news.is_empty() {
            kept.news.iter().for_each(|event| measure(kept, event));
            let _ = self.flow.tell_run_watchers(std::mem::take(&mut kept.news)).await;
        }
    }

    /// Brings saved entries of the timeline into its list. Repeating is harmless; what fails now is done later.
    pub async fn list_timeline(&self, kept: &mut Kept) {
        let Some((first, lines)) = kept.notes.unlisted() else { return };
        if self.flow.store.add_timeline(kept.id, first, &lines).await.is_ok() {
            kept.notes.listed();
        }
    }

    /// Publishes the saved operations of a run, so that they outlive a failover of Redis. If the bus does not answer in
    /// time, only Redis holds them. They leave the run with its next save.
    pub async fn publish_operations(&self, kept: &mut Kept) {
        let ops: Vec<Unpublished> = kept.notes.unpublished().to_vec();
        for op in &ops {
            self.publish_operation(kept, op).await;
        }
        let ids: Vec<String> = ops.into_iter().map(|op| op.id).collect();
        kept.notes.published(&ids);
    }

    pub(crate) async fn publish_operation(&self, kept: &Kept, op: &Unpublished) {
        let item = message(kept.id, &kept.run.about().tenant, op);
        let body = Body::RunOp(v1::RunOpGroup { items: vec![item] });
        let id = message_id(kept.id, op);
        let _ = self.flow.bus.publish_within(&subjects::run_op(), Some(&id), None, body, BUS_PATIENCE).await;
    }

    /// How long until a run must be looked at again if nothing happens: its next timer, or half a minute, doubling to
    /// five minutes while nothing changes.
    pub fn next_look(kept: &Kept, now: Time) -> Duration {
        const FIRST: Duration = Duration::from_secs(30);
        const LAST: Duration = Duration::from_secs(300);
        let usual = now.since(kept.run.now()).clamp(FIRST, LAST);
        kept.run.next_look().map_or(usual, |at| at.remaining(now).min(usual))
    }
}
