//! Commands about sub-runs: their start, their cancel, their compensations.

use std::{sync::Arc, time::Duration};

use muster_domain::{RunId, WorkflowName};
use muster_engine::run::{Event, Parent, Refusal as RunRefusal, RunError, RunState, SubRunEnd, Undo, What};
use muster_runs::{Ask, Kept, OperateRefused, Operated, RunsError, Start, StartRefused};
use sha2::{Digest, Sha256};

use super::{Outcome, SOON};
use crate::context::Context;

/// A sub-run as a command names it.
pub(super) struct Child {
    pub(super) run: RunId,
    pub(super) workflow: String,
    pub(super) parent: Option<Parent>,
}

fn start_of(kept: &Kept, child: Child) -> Result<Start, RunError> {
    let about = kept.run.about();
    let name = WorkflowName::parse(&child.workflow);
    let workflow = name.map_err(|fault| RunError::new("unknown_workflow", fault.to_string()))?;
    Ok(Start {
        id: child.run,
        tenant: about.tenant.clone(),
        workflow,
        version: None,
        input: None,
        labels: Default::default(),
        principal: about.principal.clone(),
        topics: about.topics.clone(),
        hash: None,
        parent: child.parent,
        depth: about.depth + 1,
    })
}

pub(super) async fn start_run(
    context: &Arc<Context>,
    kept: &Kept,
    child: Child,
    version: Option<u32>,
    input: Option<serde_json::Value>,
    depth: u32,
) -> Outcome {
    let start = match start_of(kept, child) {
        Ok(start) => Start { version, input, depth, ..start },
        Err(error) => return Outcome::Refused(error),
    };
    match context.runs.start(start).await {
        // The id is taken by this step's sub-run, whatever it is.
        Ok(_) | Err(StartRefused::Mismatch) => Outcome::Done,
        Err(StartRefused::Fault(fault)) => fault.into(),
        Err(StartRefused::Input(faults)) => {
            let faults: Vec<String> =
                faults.iter().map(|fault| format!("{}: {}", fault.pointer, fault.detail)).collect();
            Outcome::Refused(RunError::new("invalid_input", faults.join("; ")))
        }
        Err(refused @ StartRefused::UnknownWorkflow(_)) => {
            Outcome::Refused(RunError::new("unknown_workflow", refused.to_string()))
        }
        Err(StartRefused::Key(error)) => Outcome::Refused(error),
        Err(refused @ StartRefused::Full { .. }) => {
            Outcome::Refused(RunError::new("concurrency_full", refused.to_string()))
        }
        Err(refused @ StartRefused::TooDeep) => Outcome::Refused(RunError::new("too_deep", refused.to_string())),
    }
}

pub(super) async fn cancel_run(context: &Arc<Context>, kept: &Kept, child: Child, only_if_absent: bool) -> Outcome {
    let runs = &context.runs;
    let (run, tenant) = (child.run, kept.run.about().tenant.clone());
    if only_if_absent {
        match runs.version(run).await {
            Ok(Some(_)) => return Outcome::Done,
            Ok(None) => {}
            Err(fault) => return fault.into(),
        }
    }
    let ask = Ask::Cancel { compensate: true, reason: format!("the run {} stops it", kept.id) };
    let op = format!("above-{}", kept.id);
    for _ in 0..2 {
        match runs.operate(&tenant, run, &op, &ask).await {
            Ok(_) | Err(OperateRefused::Refused { .. }) => return Outcome::Done,
            Err(OperateRefused::Fault(fault)) => return fault.into(),
            Err(OperateRefused::NotFound) => {}
        }
        // It was never started: it is created as cancelled, so that a late start finds it ended.
        let start = match start_of(kept, Child { run, workflow: child.workflow.clone(), parent: child.parent.clone() })
        {
            Ok(start) => start,
            Err(error) => return Outcome::Refused(error),
        };
        let workflow = match runs.workflow(&tenant, &start.workflow, None).await {
            Ok(Some(workflow)) => workflow,
            Ok(None) => return never_began(run, child.parent),
            Err(fault) => return RunsError::from(fault).into(),
        };
        let mut unborn = runs.unstored(&start, &workflow);
        let at = unborn.run.about().created;
        let done = unborn.apply(&Event { at, what: ask.event(&op) });
        if let Err(fault) = done {
            return fault.into();
        }
        match runs.create(&mut unborn).await {
            Ok(true) => {
                return match runs.wake(run, Duration::ZERO).await {
                    Ok(()) => Outcome::Done,
                    Err(fault) => RunsError::from(fault).into(),
                };
            }
            // It was started in the meantime: cancel it.
            Ok(false) => {}
            Err(fault) => return fault.into(),
        }
    }
    Outcome::Later(SOON)
}

/// A sub-run that was not started and cannot be any more: its workflow is gone. Its step learns that it is cancelled.
fn never_began(run: RunId, parent: Option<Parent>) -> Outcome {
    let Some(Parent { step, .. }) = parent else { return Outcome::Done };
    let end = SubRunEnd { step, run, undone: false, state: RunState::Cancelled, output: None, error: None };
    Outcome::DoneWith(What::SubRunEnded(end))
}

/// Asks a sub-run for its compensations. `key` names the command, and so the round of compensations.
pub(super) async fn undo_run(context: &Arc<Context>, kept: &Kept, key: &str, run: RunId, parent: Parent) -> Outcome {
    let tenant = &kept.run.about().tenant;
    let digest = Sha256::digest([kept.id.as_bytes().as_slice(), key.as_bytes()].concat());
    let op = digest.iter().take(16).fold("undo-".to_owned(), |op, byte| op + &format!("{byte:02x}"));
    let ended = |state, error| {
        let end = SubRunEnd { step: parent.step.clone(), run, undone: true, state, output: None, error };
        Outcome::DoneWith(What::SubRunEnded(end))
    };
    let ask = Ask::Compensate { tell: Some(parent.clone()) };
    match context.runs.operate(tenant, run, &op, &ask).await {
        Ok(Operated { before: false, .. }) => Outcome::Done,
        // It knew, or others asked for the same: it may tell nobody when it is done.
        Ok(Operated { kept: child, .. }) => match child.run.compensation().0 {
            Undo::Done | Undo::None => ended(RunState::Succeeded, None),
            Undo::Failed => {
                let error = RunError::new("compensation_failed", format!("a compensation of the sub-run {run} failed"));
                ended(RunState::Failed, Some(error))
            }
            _ => Outcome::Later(SOON),
        },
        Err(OperateRefused::Refused { why: RunRefusal::NothingToUndo, .. }) => ended(RunState::Succeeded, None),
        Err(OperateRefused::Refused { .. }) => Outcome::Later(SOON),
        Err(OperateRefused::NotFound) => {
            let error = RunError::new("compensation_failed", format!("the sub-run {run} is gone"));
            ended(RunState::Failed, Some(error))
        }
        Err(OperateRefused::Fault(fault)) => fault.into(),
    }
}
