//! Runs in requests: which runs a caller may see, and how refusals of runs look to clients.
//!
//! Promises: a run of another tenant, or of a workflow with topics that the caller's key does not cover, is answered like
//! one that does not exist. Leaves to others: what a run does (`muster_runs`, `muster_engine`).

use std::{collections::BTreeSet, time::Duration};

use muster_domain::{ProblemCode, RunId, Topic};
use muster_engine::{
    definition::{Definition, JobStep, Kind, Scope as Steps},
    run::{Missing, Run},
};
use muster_runs::{Kept, RunsError};

use crate::{auth::Caller, problem::Problem, state::Gateway};

impl Problem {
    /// The run does not exist, or is not the caller's: the answer does not distinguish the two.
    pub(crate) fn no_run(id: RunId) -> Problem {
        Problem::new(ProblemCode::NotFound, format!("there is no run {id}"))
    }
}

impl From<RunsError> for Problem {
    fn from(fault: RunsError) -> Problem {
        match fault {
            RunsError::Store(fault) => fault.into(),
            RunsError::Unreadable { run, fault } => {
                tracing::error!(event = "run_unreadable", %run, detail = %fault, "a run cannot be read");
                Problem::new(ProblemCode::Internal, format!("run {run} cannot be read; the log has the reason"))
            }
            RunsError::Contended(run) => Problem::new(
                ProblemCode::Overloaded,
                format!("run {run} was changed by others again and again; ask again"),
            ),
        }
    }
}

fn job_of(kind: &Kind) -> Option<&JobStep> {
    if let Kind::Job(job) = kind { Some(job) } else { None }
}

/// The topics of a definition's jobs, those of its compensations included.
pub(crate) fn topics(definition: &Definition) -> BTreeSet<&Topic> {
    fn add<'a>(steps: &'a Steps, topics: &mut BTreeSet<&'a Topic>) {
        for step in &steps.steps {
            let undo = step.compensate.as_ref().and_then(|compensate| compensate.job.as_ref());
            topics.extend(job_of(&step.kind).into_iter().chain(undo).map(|job| &job.topic));
            step.kind.scopes().into_iter().for_each(|steps| add(steps, topics));
        }
    }
    let mut topics = BTreeSet::new();
    add(&definition.steps, &mut topics);
    topics
}

/// Whether the caller may see a run: it is of the caller's tenant, and the key covers all topics of its workflow.
pub(crate) fn may_see(caller: &Caller, run: &Run) -> bool {
    run.about().tenant == caller.tenant && covers(caller, run.plan().definition())
}

/// Whether the caller's key covers all topics of a definition.
pub(crate) fn covers(caller: &Caller, definition: &Definition) -> bool {
    caller.covers_all() || topics(definition).iter().all(|topic| caller.covers(topic.as_str()))
}

/// Reads a whole run that the caller may see. The tenant of an unreadable run is unknown, so only keys for all tenants learn
/// about it.
pub(crate) async fn find(gateway: &Gateway, caller: &Caller, id: RunId) -> Result<Kept, Problem> {
    let found = match gateway.runs.read(id).await {
        Err(RunsError::Unreadable { .. }) if caller.key.tenant.is_some() => None,
        found => found?,
    };
    found.map(|(kept, _)| kept).filter(|kept| may_see(caller, &kept.run)).ok_or_else(|| Problem::no_run(id))
}

/// Looks at a part of a run that the caller may see. Reads only the fields that `look` asks for.
pub(crate) async fn seen<T>(
    gateway: &Gateway,
    caller: &Caller,
    id: RunId,
    look: impl Fn(&Run) -> Result<T, Missing>,
) -> Result<(Run, T), Problem> {
    let found = match gateway.runs.view(id, look).await {
        // The tenant of an unreadable run is unknown.
        Err(RunsError::Unreadable { .. }) if caller.key.tenant.is_some() => None,
        found => found?,
    };
    found.filter(|(run, _)| may_see(caller, run)).ok_or_else(|| Problem::no_run(id))
}

/// Reads a run once it has ended, or as it is when the time is up or this gateway stops. While it waits it looks at the
/// head of the run only: a whole run may be large, many requests may wait for it, and its end wakes all of them.
pub(crate) async fn wait_for(gateway: &Gateway, caller: &Caller, id: RunId, limit: Duration) -> Result<Kept, Problem> {
    let deadline = tokio::time::Instant::now() + limit;
    let waiting = gateway.waits.wait_for_run(id).await;
    loop {
        let (_, ended) = seen(gateway, caller, id, |run| Ok(run.state().is_end())).await?;
        if ended {
            break;
        }
        tokio::select! {
            () = waiting.woken() => {}
            () = tokio::time::sleep_until(deadline) => break,
            () = gateway.stop.cancelled() => break,
        }
    }
    let _turn = gateway.awaited_runs.turn().await?;
    find(gateway, caller, id).await
}
