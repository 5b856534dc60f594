//! Carries out what runs ask for. Every command may be carried out twice: its ids are derived, so the second time finds
//! what the first one did.

mod sub_runs;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{JobId, JobSpec, ProblemCode, Topic, job::When, topic::glob_matches};
use muster_engine::run::{Action, Command, Event, RunError, SubRunEnd, Submit, What};
use muster_flow::admission::{Asked, PayloadCheck, Refusal, bounds};
use muster_runs::{Kept, RunsError};
use muster_store::{Fields, NewJob};
use muster_wire::{run_bytes, v1};
use sha2::{Digest, Sha256};

use self::sub_runs::{Child, cancel_run, start_run, undo_run};
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
        let outcome = one(context, kept, &key, action).await;
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

async fn one(context: &Arc<Context>, kept: &Kept, key: &str, action: Action) -> Outcome {
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
        Action::UndoRun { run, parent } => undo_run(context, kept, key, run, parent).await,
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

/// Whether a run may submit jobs to a topic: the key that started it, or started the runs above it, covers the topic.
fn covers(kept: &Kept, topic: &Topic) -> bool {
    let globs = &kept.run.about().topics;
    globs.is_empty() || globs.iter().any(|glob| glob_matches(glob, topic.as_str()))
}

async fn submit_job(context: &Arc<Context>, kept: &Kept, submit: Submit) -> Outcome {
    let (job, topic) = (submit.job, submit.topic.clone());
    if !covers(kept, &topic) {
        let why = format!("the key that started the run does not cover the topic `{topic}`");
        return Outcome::Refused(RunError::new(ProblemCode::MissingScope.as_str(), why));
    }
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
