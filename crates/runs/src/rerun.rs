//! Reruns: a new run that takes over what an ended one did. The engine decides what runs again; the results that the new
//! run reads and the old one did not keep are read from their jobs. The new run is stored and published as any start.

use muster_domain::{JobId, RunId, WorkflowName};
use muster_engine::{
    run::{About, Again, Event, RerunFault, RunState, What},
    value,
};
use muster_store::{Fields, StoreError};
use serde_json::Value;

use crate::{InputFault, Kept, Runs, RunsError, Start, StartBody, StartRefused, Started, asks::RerunBody};

/// A rerun that somebody wants.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// The id of the new run, minted or derived. A derived id that is taken is the earlier rerun.
    pub id: RunId,
    /// What runs again.
    pub again: Again,
    /// The version of the workflow; `None` is that of the old run.
    pub version: Option<u32>,
    /// The input; `None` is that of the old run.
    pub input: Option<Value>,
    /// Whose rights the new run has.
    pub principal: String,
    /// Globs of the topics to which the new run may submit jobs. Empty: all topics.
    pub topics: Vec<String>,
    /// The hash of the request, if the id was derived from a key that the caller gave.
    pub hash: Option<[u8; 16]>,
}

/// What a rerun does, before it is stored.
#[derive(Debug)]
pub struct RerunPlan {
    /// The new run, queued.
    pub kept: Kept,
    /// The outermost steps that run again, or for the first time.
    pub again: Vec<String>,
    /// The outermost steps that are taken over.
    pub taken: Vec<String>,
    /// How many items run again, if only failed ones do.
    pub items: Option<u32>,
    start: Start,
}

/// Why there is no rerun. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum RerunRefused {
    /// The old run has not ended.
    #[error("the run has not ended: it is {0}")]
    NotDone(RunState),
    /// The version has no such step.
    #[error("the workflow has no such step")]
    UnknownStep,
    /// The step has no for-each.
    #[error("the step has no `for_each`")]
    NoItems,
    /// The workflow has no such version.
    #[error("the workflow has no version {0}")]
    UnknownVersion(u32),
    /// The input breaks the workflow's schema.
    #[error("the input does not fit the workflow's schema")]
    Input(Vec<InputFault>),
    /// A result that would be taken over is not stored any more, or a run cannot hold it.
    #[error("the result of step `{step}` in job {job} is no longer stored, or nests too deep; rerun from this step")]
    ResultGone {
        /// The step.
        step: String,
        /// Its job.
        job: JobId,
    },
    /// The new run was refused as any start may be.
    #[error(transparent)]
    Start(#[from] StartRefused),
}

impl From<RunsError> for RerunRefused {
    fn from(fault: RunsError) -> RerunRefused {
        RerunRefused::Start(fault.into())
    }
}

impl From<StoreError> for RerunRefused {
    fn from(fault: StoreError) -> RerunRefused {
        RerunRefused::Start(fault.into())
    }
}

/// The start of the new run.
fn start_of(old: &Kept, rerun: &Rerun) -> Result<Start, RunsError> {
    let before = old.run.about();
    let workflow = WorkflowName::parse(&before.workflow);
    let workflow = workflow.map_err(|fault| RunsError::unreadable(old.id, fault.to_string()))?;
    let input = old.run.input().map_err(|_| RunsError::unreadable(old.id, "not read as a whole"))?;
    Ok(Start {
        id: rerun.id,
        tenant: before.tenant.clone(),
        workflow,
        version: Some(rerun.version.unwrap_or(before.version)),
        input: rerun.input.clone().or_else(|| input.cloned()),
        labels: before.labels.clone(),
        principal: rerun.principal.clone(),
        topics: rerun.topics.clone(),
        hash: rerun.hash,
        parent: None,
        depth: 0,
    })
}

impl Runs {
    /// What a rerun of an ended run would do. Stores nothing.
    pub async fn plan_rerun(&self, old: &Kept, rerun: &Rerun) -> Result<RerunPlan, RerunRefused> {
        if !old.run.state().is_end() {
            return Err(RerunRefused::NotDone(old.run.state()));
        }
        let start = start_of(old, rerun)?;
        let version = rerun.version.unwrap_or(old.run.about().version);
        let workflow = self.workflow(&start.tenant, &start.workflow, Some(version)).await?;
        let workflow = workflow.ok_or(RerunRefused::UnknownVersion(version))?;
        let faults = workflow.check_input(start.input.as_ref());
        if !faults.is_empty() {
            return Err(RerunRefused::Input(faults));
        }
        let mut kept = self.unstored(&start, &workflow);
        let about = About { rerun_of: Some(old.id), ..kept.run.about().clone() };
        let new =
            old.run.rerun(&workflow.plan, about, start.input.clone(), &rerun.again).map_err(|fault| match fault {
                RerunFault::RunNotDone => RerunRefused::NotDone(old.run.state()),
                RerunFault::UnknownStep => RerunRefused::UnknownStep,
                RerunFault::NoItems => RerunRefused::NoItems,
                RerunFault::NotWhole => RunsError::unreadable(old.id, "not read as a whole").into(),
            })?;
        kept.run = new.run;
        for (step, job) in new.wants {
            let record = self
                .flow
                .store
                .read_one(job, Fields { result: true, ..Fields::NONE })
                .await?
                .filter(|record| !record.deleted);
            let result = record.as_ref().and_then(|record| record.result.as_ref()).filter(|result| !result.truncated);
            let value = result.and_then(|result| value::parse(&result.json).ok());
            match value {
                Some(value) => kept.run.supply(&step, value),
                None => return Err(RerunRefused::ResultGone { step, job }),
            }
        }
        Ok(RerunPlan { kept, again: new.again, taken: new.taken, items: new.items, start })
    }

    /// The rerun that this request made before, if it is there.
    pub async fn known_rerun(&self, old: &Kept, rerun: &Rerun) -> Result<Option<Started>, RerunRefused> {
        if rerun.hash.is_none() {
            return Ok(None);
        }
        Ok(self.known(&start_of(old, rerun)?).await?)
    }

    /// Stores and starts a rerun. Repeating with the same id is harmless, and finishes what an earlier call left undone.
    pub async fn rerun(&self, old: &Kept, rerun: &Rerun, plan: RerunPlan) -> Result<Started, RerunRefused> {
        let RerunPlan { mut kept, start, .. } = plan;
        self.note_need(old.id, rerun.id).await?;
        let created = kept.run.about().created;
        if self.may_begin(&mut kept).await? {
            kept.apply(&Event { at: created, what: What::Start })?;
        }
        let body = StartBody { rerun: Some(RerunBody::new(old.id, &rerun.again)), ..start.body(&kept) };
        Ok(self.begin(&start, kept, body.unpublished(created)).await?)
    }
}
