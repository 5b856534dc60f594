//! Starts runs. The order is that of a submit: home and list entry, hash, message, check, home due now, answer. A run is
//! stored with its first steps started, so nothing but its own hash says what is to be done.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use muster_bus::subjects;
use muster_domain::{Labels, RunId, Tenant, WorkflowName};
use muster_engine::run::{About, Event, Parent, Run, RunError, What};
use muster_store::{CreatedRun, StoreError};
use muster_wire::{Body, v1};
use serde_json::Value;

use crate::{
    BUS_PATIENCE, InputFault, Kept, MOST_DEPTH, Runs, RunsError, StartBody, Workflow,
    asks::{message, message_id},
    notes::{FIELD, HASH, Notes, Unpublished},
};

/// A run that somebody wants to start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The id, minted or derived. A derived id that is taken is the earlier run.
    pub id: RunId,
    /// The owner.
    pub tenant: Tenant,
    /// The name of the workflow.
    pub workflow: WorkflowName,
    /// The version; `None` is the latest.
    pub version: Option<u32>,
    /// The input.
    pub input: Option<Value>,
    /// The labels.
    pub labels: Labels,
    /// Whose rights the run has.
    pub principal: String,
    /// Globs of the topics to which the run, and the runs below it, may submit jobs. Empty: all topics.
    pub topics: Vec<String>,
    /// The hash of the request, if the id was derived from a key that the caller gave.
    pub hash: Option<[u8; 16]>,
    /// The step of another run that starts it and waits for it.
    pub parent: Option<Parent>,
    /// How many runs are above it.
    pub depth: u32,
}

/// A run that is stored.
#[derive(Debug)]
pub struct Started {
    /// The run.
    pub kept: Kept,
    /// Whether it was there before this call.
    pub replayed: bool,
    /// Whether the bus did not confirm the start in time: then only Redis holds it.
    pub bus_deferred: bool,
}

/// Why a run was not started. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum StartRefused {
    /// The tenant has no such workflow, or no such version of it.
    #[error("there is no workflow {0}")]
    UnknownWorkflow(String),
    /// The input breaks the workflow's schema.
    #[error("the input does not fit the workflow's schema")]
    Input(Vec<InputFault>),
    /// Too many runs are above it.
    #[error("sub-runs nest deeper than {MOST_DEPTH}")]
    TooDeep,
    /// The key of the workflow's concurrency cannot be computed from the input.
    #[error("{}", .0.message)]
    Key(RunError),
    /// As many runs as the workflow's concurrency allows have not ended, and it says `when_full: reject`.
    #[error("{max} runs of this workflow with the concurrency key `{key}` have not ended")]
    Full {
        /// The value of the key.
        key: String,
        /// How many runs may go on at once.
        max: u32,
    },
    /// The id belongs to a run that was started by another request.
    #[error("this idempotency key was used with another body")]
    Mismatch,
    /// The stores did not answer, or the run that is there cannot be read.
    #[error(transparent)]
    Fault(#[from] RunsError),
}

impl From<StoreError> for StartRefused {
    fn from(fault: StoreError) -> StartRefused {
        StartRefused::Fault(fault.into())
    }
}

impl Start {
    /// What is needed to start this run again.
    pub(crate) fn body(&self, kept: &Kept) -> StartBody {
        StartBody {
            workflow: self.workflow.to_string(),
            version: kept.run.about().version,
            input: self.input.clone(),
            labels: self.labels.clone(),
            principal: self.principal.clone(),
            topics: self.topics.clone(),
            parent: self.parent.clone(),
            depth: self.depth,
            hash: self.hash.map(hex).unwrap_or_default(),
            rerun: None,
        }
    }
}

impl Runs {
    /// The workflow that a start would run, and what is wrong with the start.
    pub async fn check_start(&self, start: &Start) -> Result<Arc<Workflow>, StartRefused> {
        if start.depth > MOST_DEPTH {
            return Err(StartRefused::TooDeep);
        }
        let workflow = self.workflow(&start.tenant, &start.workflow, start.version).await?;
        let workflow = workflow.ok_or_else(|| StartRefused::UnknownWorkflow(start.workflow.to_string()))?;
        let faults = workflow.check_input(start.input.as_ref());
        if faults.is_empty() { Ok(workflow) } else { Err(StartRefused::Input(faults)) }
    }

    /// Starts a run. Repeating with the same id is harmless, and finishes what an earlier call left undone.
    pub async fn start(&self, start: Start) -> Result<Started, StartRefused> {
        // A repeat finds its run, also if the workflow was deleted or changed meanwhile.
        if (start.hash.is_some() || start.depth > 0)
            && let Some(known) = self.known(&start).await?
        {
            return Ok(known);
        }
        let workflow = self.check_start(&start).await?;
        let mut kept = self.unstored(&start, &workflow);
        let created = kept.run.about().created;
        if self.may_begin(&mut kept).await? {
            kept.apply(&Event { at: created, what: What::Start })?;
        }
        let body = start.body(&kept);
        self.begin(&start, kept, body.unpublished(created)).await
    }

    /// Stores a new run, publishes its start, and makes it due.
    pub(crate) async fn begin(&self, start: &Start, mut kept: Kept, op: Unpublished) -> Result<Started, StartRefused> {
        kept.notes.publish(op.clone());
        muster_flow::failpoint!("run.start.before_create");
        if !self.create(&mut kept).await? {
            return self.known(start).await?.ok_or_else(|| RunsError::Contended(start.id).into());
        }
        muster_flow::failpoint!("run.start.after_create");
        let body = Body::RunOp(v1::RunOpGroup { items: vec![message(start.id, &start.tenant, &op)] });
        let id = message_id(start.id, &op);
        let told = self.flow.bus.publish_within(&subjects::run_op(), Some(&id), None, body, BUS_PATIENCE).await;
        muster_flow::failpoint!("run.start.after_publish");
        if told.is_ok() && self.version(start.id).await?.is_none() {
            // A failover lost it before it was on the bus: it is started again when the bus is read again.
            return Err(RunsError::Store(StoreError::Unavailable { detail: "the run was lost".into() }).into());
        }
        self.wake(start.id, Duration::ZERO).await?;
        Ok(Started { kept, replayed: false, bus_deferred: told.is_err() })
    }

    /// The run with this id, if it is there: the answer to a repeat.
    pub(crate) async fn known(&self, start: &Start) -> Result<Option<Started>, StartRefused> {
        let Some((kept, _)) = self.read(start.id).await? else { return Ok(None) };
        let hash = start.hash.map(hex);
        if kept.run.about().tenant != start.tenant || kept.hash.as_deref() != hash.as_deref().map(str::as_bytes) {
            return Err(StartRefused::Mismatch);
        }
        // What an earlier call saved and did not publish.
        for op in kept.notes.unpublished() {
            self.publish_operation(&kept, op).await;
        }
        self.wake(start.id, Duration::ZERO).await?;
        Ok(Some(Started { kept, replayed: true, bus_deferred: false }))
    }

    /// A run that is not stored yet: queued.
    pub fn unstored(&self, start: &Start, workflow: &Workflow) -> Kept {
        self.unstored_as(start, workflow, About::clone)
    }

    /// The same, with another description than that of a start now.
    pub(crate) fn unstored_as(&self, start: &Start, workflow: &Workflow, change: impl FnOnce(&About) -> About) -> Kept {
        let about = About {
            tenant: start.tenant.clone(),
            run: start.id,
            workflow: start.workflow.to_string(),
            version: workflow.version,
            labels: start.labels.clone(),
            principal: start.principal.clone(),
            topics: start.topics.clone(),
            created: self.flow.store.now(),
            generation: 0,
            parent: start.parent.clone(),
            depth: start.depth,
            rerun_of: None,
            slot: None,
        };
        let run = Run::new(workflow.plan.clone(), change(&about), start.input.clone());
        let hash = start.hash.map(|hash| Bytes::from(hex(hash)));
        Kept { id: start.id, run, version: Kept::UNSTORED, notes: Notes::default(), hash, news: Vec::new() }
    }

    /// Stores a run that was made by [`Runs::unstored`] or by a rerun. False if the id is taken.
    pub async fn create(&self, kept: &mut Kept) -> Result<bool, RunsError> {
        let mut fields: Vec<(Bytes, Bytes)> = Vec::new();
        for (name, bytes) in kept.run.all() {
            fields.push((Bytes::from(name), Bytes::from(bytes)));
        }
        fields.push((Bytes::from_static(FIELD.as_bytes()), kept.notes.take_bytes()));
        fields.extend(kept.hash.clone().map(|hash| (Bytes::from_static(HASH.as_bytes()), hash)));
        let tenant = kept.run.about().tenant.clone();
        match self.flow.store.create_run(kept.id, &tenant, &fields, fastrand::u64(..)).await? {
            CreatedRun::Created { version, .. } => {
                kept.version = version;
                kept.run.saved();
                kept.notes.saved();
                self.tell_watchers(kept).await;
                Ok(true)
            }
            CreatedRun::Exists => Ok(false),
        }
    }
}

fn hex(hash: [u8; 16]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
