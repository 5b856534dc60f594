//! Carries out what runs ask for. Every command may be carried out twice: its ids are derived, so the second time finds
//! what the first one did.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{JobId, JobSpec, ProblemCode, RunId, WorkflowName, job::When};
use muster_engine::run::{
    Action, Command, Event, Parent, Refusal as RunRefusal, RunError, RunState, SubRunEnd, Submit, What,
};
use muster_flow::admission::{Asked, PayloadCheck, Refusal, bounds};
use muster_runs::{Ask, Kept, OperateRefused, RunsError, Start, StartRefused};
use muster_store::{Fields, NewJob};
use muster_wire::{run_bytes, v1};
use sha2::{Digest, Sha256};

use crate::context::Context;

/// When a command is tried again that met a fault.
const SOON: Duration = Duration::from_secs(1);

/// What became of some commands.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// What the run is told: commands that were carried out, or refused for good.
    pub(crate) events: Vec<Event>,
    /// When to try the other commands again; none if there are none.
    pub(crate) later: Option<Duration>,
}

/// What became of one command.
enum Outcome {
    /// It is done.
    Done,
    /// It is done, and the run learns this too.
    DoneWith(What),
    /// It is refused for good.
    Refused(RunError),
    /// It is to be tried again after this time.
    Later(Duration),
}

impl From<RunsError> for Outcome {
    fn from(fault: RunsError) -> Outcome {
        match fault.is_retryable() {
            true => Outcome::Later(SOON),
            false => Outcome::Refused(RunError::new("run_unreadable", fault.to_string())),
        }
    }
}

/// Carries out commands of a run, all at once.
pub(crate) async fn out(context: &Arc<Context>, kept: &Kept, commands: Vec<Command>) -> Carried {
    let outcomes = join_all(commands.into_iter().map(|Command { key, action, .. }| async move {
        let outcome = one(context, kept, action).await;
        (key, outcome)
    }))
    .await;
    let at = context.runs.flow.store.now().max(kept.run.now());
    let mut carried = Carried::default();
    for (key, outcome) in outcomes {
        let what = match outcome {
            Outcome::Done => What::Done(key),
            Outcome::DoneWith(what) => {
                carried.events.push(Event { at, what: What::Done(key) });
                what
            }
            Outcome::Refused(error) => What::Refused { key, error },
            Outcome::Later(after) => {
                carried.later = Some(carried.later.map_or(after, |later| later.min(after)));
                continue;
            }
        };
        carried.events.push(Event { at, what });
    }
    carried
}

async fn one(context: &Arc<Context>, kept: &Kept, action: Action) -> Outcome {
    match action {
        Action::Submit(submit) => submit_job(context, kept, *submit).await,
        Action::CancelJob { job, topic, labels, only_if_absent, .. } => {
            let mut spec = JobSpec::new(kept.run.about().tenant.clone(), topic);
            spec.labels = labels;
            cancel_job(context, kept, job, spec, only_if_absent).await
        }
        Action::StartRun { run, workflow, version, input, parent, depth } => {
            start_run(context, kept, Child { run, workflow, parent }, version, input, depth).await
        }
        Action::CancelRun { run, workflow, parent, only_if_absent } => {
            cancel_run(context, kept, Child { run, workflow, parent: Some(parent) }, only_if_absent).await
        }
        Action::UndoRun { run, parent } => undo_run(context, kept, run, parent).await,
        Action::TellParent { parent, undone, state, output, error } => {
            let end = SubRunEnd { step: parent.step, run: kept.id, undone, state, output, error };
            match context.runs.deliver(parent.run, &What::SubRunEnded(end)).await {
                Ok(()) => Outcome::Done,
                Err(fault) => fault.into(),
            }
        }
        Action::Notify { id, event_type, data, step } => notify(context, kept, (id, step), event_type, data).await,
        Action::ReleaseSlot { .. } => match context.runs.free_slot(kept).await {
            Ok(()) => Outcome::Done,
            Err(fault) => RunsError::from(fault).into(),
        },
        // An approval is kept in its run, where people find it.
        Action::OpenApproval { .. } | Action::CloseApproval { .. } => Outcome::Done,
        Action::Broken(error) => Outcome::Refused(error),
    }
}

async fn notify(
    context: &Arc<Context>,
    kept: &Kept,
    (id, step): (String, String),
    kind: String,
    data: Option<serde_json::Value>,
) -> Outcome {
    let about = kept.run.about();
    let event = v1::RunEvent {
        run_id: run_bytes(Some(kept.id)),
        tenant: about.tenant.to_string(),
        workflow: about.workflow.clone(),
        version: about.version,
        state: kept.run.state().code().into(),
        at: kept.run.now().0,
        kind,
        step,
        id,
        data: data.map(|data| data.to_string().into_bytes().into()).unwrap_or_default(),
        ..v1::RunEvent::default()
    };
    match context.runs.flow.tell_run_watchers(vec![event]).await {
        Ok(()) => Outcome::Done,
        Err(_) => Outcome::Later(SOON),
    }
}

/// What stands for the body of a step's job: an id is derived from the step, so it never has another body.
fn hash_of(job: JobId) -> [u8; 16] {
    let digest: [u8; 32] = Sha256::digest([b"step\0".as_slice(), job.as_bytes()].concat()).into();
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest[..16]);
    hash
}

async fn submit_job(context: &Arc<Context>, kept: &Kept, submit: Submit) -> Outcome {
    let (job, topic) = (submit.job, submit.topic.clone());
    match admit(context, kept, submit).await {
        Ok(()) => Outcome::Done,
        // The id is taken: by an earlier try of this submit, or by a cancel that came before it.
        Err(Refusal::Mismatch) => Outcome::Done,
        Err(refusal) => match refusal.retry_after() {
            Some(after) => Outcome::Later(after),
            None => {
                tracing::info!(event = "step_refused", run = %kept.id, %job, %topic, %refusal, "a step's job is refused");
                Outcome::Refused(RunError::new(ProblemCode::InvalidRequest.as_str(), said(&topic, &refusal)))
            }
        },
    }
}

/// The reason of a refusal with everything that was found.
fn said(topic: &muster_domain::Topic, refusal: &Refusal) -> String {
    match refusal {
        Refusal::Payload { faults, .. } => {
            let faults: Vec<String> =
                faults.iter().map(|fault| format!("{}: {}", fault.pointer, fault.detail)).collect();
            format!("{refusal}: {}", faults.join("; "))
        }
        Refusal::Undeclared => format!("topic {topic} {refusal}"),
        _ => refusal.to_string(),
    }
}

async fn admit(context: &Arc<Context>, kept: &Kept, submit: Submit) -> Result<(), Refusal> {
    let about = kept.run.about();
    let open = context.admission.open().await?;
    let mut spec = open.spec(&about.tenant, submit.topic)?;
    spec.principal = about.principal.clone();
    spec.priority = submit.priority.unwrap_or(spec.priority);
    spec.labels = submit.labels;
    spec.requires = submit.requires;
    spec.concurrency_key = submit.concurrency_key.unwrap_or_default();
    let after = |ms: Option<u64>| ms.map(|ms| When::In(Duration::from_millis(ms)));
    spec.run_at = after(submit.delay_ms);
    spec.start_by = after(submit.start_within_ms);
    spec.deadline = submit.deadline.map(When::At);
    spec.timeout_ms = submit.timeout_ms.unwrap_or(spec.timeout_ms);
    spec.retry = submit.retry.over(spec.retry);
    spec.on_lost_lease = submit.on_lost_lease.unwrap_or(spec.on_lost_lease);
    spec.durability = submit.durability.unwrap_or(spec.durability);
    spec.run = Some(kept.id);
    let refused = |detail: String| Refusal::Payload {
        topic: spec.topic.clone(),
        faults: vec![muster_flow::admission::SchemaFault { pointer: String::new(), detail }],
    };
    let payload = submit.payload.map(|payload| Bytes::from(payload.to_string())).unwrap_or_default();
    let payload = bounds::Payload::check(payload).map_err(|fault| refused(fault.to_string()))?;
    let refused = refused_field(&spec.topic);
    let job = bounds::check(spec, payload).map_err(|fault| refused(fault.to_string()))?;
    let asked =
        Asked { id: Some(submit.job), job, hash: Some(hash_of(submit.job)), payload_check: PayloadCheck::Schema };
    let admitted = open.admit(asked).await?;
    context.admission.submit(admitted).await.map(drop)
}

fn refused_field(topic: &muster_domain::Topic) -> impl Fn(String) -> Refusal + use<> {
    let topic = topic.clone();
    move |detail| Refusal::Payload {
        topic: topic.clone(),
        faults: vec![muster_flow::admission::SchemaFault { pointer: String::new(), detail }],
    }
}

async fn cancel_job(
    context: &Arc<Context>,
    kept: &Kept,
    job: JobId,
    mut spec: JobSpec,
    only_if_absent: bool,
) -> Outcome {
    let flow = &context.runs.flow;
    if only_if_absent {
        match flow.store.read_one(job, Fields::NONE).await {
            Ok(Some(_)) => return Outcome::Done,
            Ok(None) => {}
            Err(fault) => return RunsError::from(fault).into(),
        }
    }
    spec.principal = kept.run.about().principal.clone();
    spec.run = Some(kept.id);
    let job = NewJob { id: job, spec, payload: Bytes::new(), body_hash: Some(hash_of(job)), place: None, at: None };
    match flow.cancel_or_create(job, "its run stops it").await {
        Ok(_) => Outcome::Done,
        Err(fault) => RunsError::from(fault).into(),
    }
}

/// A sub-run as a command names it.
struct Child {
    run: RunId,
    workflow: String,
    parent: Option<Parent>,
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
        hash: None,
        parent: child.parent,
        depth: about.depth + 1,
    })
}

async fn start_run(
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

async fn cancel_run(context: &Arc<Context>, kept: &Kept, child: Child, only_if_absent: bool) -> Outcome {
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
            Ok(None) => return Outcome::Refused(RunError::new("unknown_workflow", start.workflow.to_string())),
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

async fn undo_run(context: &Arc<Context>, kept: &Kept, run: RunId, parent: Parent) -> Outcome {
    let tenant = &kept.run.about().tenant;
    let op = format!("undo-{}-{}-{}", parent.run, parent.attempt, parent.step);
    let op: String = op.chars().take(64).collect();
    let ended = |state, error| {
        let end = SubRunEnd { step: parent.step.clone(), run, undone: true, state, output: None, error };
        Outcome::DoneWith(What::SubRunEnded(end))
    };
    let ask = Ask::Compensate { tell: Some(parent.clone()) };
    match context.runs.operate(tenant, run, &op, &ask).await {
        Ok(_) => Outcome::Done,
        Err(OperateRefused::Refused { why: RunRefusal::NothingToUndo, .. }) => ended(RunState::Succeeded, None),
        Err(OperateRefused::Refused { .. }) => Outcome::Later(SOON),
        Err(OperateRefused::NotFound) => {
            let error = RunError::new("compensation_failed", format!("the sub-run {run} is gone"));
            ended(RunState::Failed, Some(error))
        }
        Err(OperateRefused::Fault(fault)) => fault.into(),
    }
}
