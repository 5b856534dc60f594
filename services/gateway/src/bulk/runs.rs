//! Bulk operations on runs: cancel, pause or rerun every run that passes a filter.
//!
//! Promises: as for jobs, no run is touched by accident, and a repeated batch does nothing twice: the id of each operation
//! on a run, and the id of each new run, derive from the bulk operation. A rerun begins at the step that failed. Leaves to
//! others: how an operation walks the list (the module above), and what is done to a run (`muster_runs`).

use futures_util::{StreamExt, stream};
use muster_domain::{Act, RunId, Time, WorkflowName};
use muster_engine::run::{Again, Run, RunState, StepState};
use muster_runs::{
    Ask, Kept, ListRefused, OperateRefused, Rerun, RerunRefused, RunFilter, RunValues, RunsError, StartRefused,
};
use muster_store::{Action, Operation};

use super::{
    Bulk, Outlook,
    act::{AT_ONCE, Deed, REASON, faulty, refusal},
    filter::take_labels,
};
use crate::{
    auth::Caller,
    json::{Faults, Object},
    limits::VERSION,
    problem::Problem,
    runs::{may_see, topics},
    state::Gateway,
};

/// The most runs that one page of a dry run names.
const DRY_PAGE: usize = 500;
/// The most pages that a dry run reads.
const DRY_PAGES: usize = 5;

/// Whether an action makes sense for a run in this state.
fn fits(action: Action, state: RunState) -> bool {
    match action {
        Action::RerunRuns => state.is_end() && state != RunState::Succeeded,
        _ => !state.is_end(),
    }
}

fn usual_states(action: Action) -> Vec<RunState> {
    match action {
        Action::PauseRuns => vec![RunState::Running],
        Action::RerunRuns => vec![RunState::Failed, RunState::TimedOut],
        _ => RunState::ALL.iter().copied().filter(|state| !state.is_end()).collect(),
    }
}

/// Reads the field `filter` of a request.
pub(crate) fn read_filter(mut o: Object<'_>, action: Action, faults: &mut Faults) -> RunFilter {
    let states = o.names("state", faults, |word| match RunState::parse(word) {
        None => Err(format!("`{word}` is not a state of a run")),
        Some(state) if !fits(action, state) => {
            Err(format!("runs that are {word} cannot be part of a bulk {}", action.as_str()))
        }
        Some(state) => Ok(state),
    });
    let filter = RunFilter {
        states: states.filter(|states| !states.is_empty()).unwrap_or_else(|| usual_states(action)),
        workflow: o.name("workflow", faults, WorkflowName::parse),
        version: o.integer("version", faults, VERSION).and_then(|version| u32::try_from(version).ok()),
        labels: take_labels(&mut o, faults),
        error_code: o.text("error_code", faults).map(Into::into),
        parent: o.name("parent_run_id", faults, str::parse),
        created_after: o.moment("created_after", faults),
        created_before: o.moment("created_before", faults),
        finished_after: o.moment("finished_after", faults),
        finished_before: o.moment("finished_before", faults),
    };
    o.finish(faults);
    filter
}

/// The filter of an operation, restricted to runs that existed when the operation was requested.
fn filter_of(operation: &Operation) -> Result<RunFilter, Problem> {
    let mut faults = Faults::default();
    let text = operation.asked.filter.as_bytes();
    let filter = read_filter(Object::from_body(text)?, operation.asked.action, &mut faults);
    faults.into_result()?;
    let created = operation.created_at;
    Ok(RunFilter { created_before: Some(filter.created_before.map_or(created, |at| at.min(created))), ..filter })
}

/// One page of the runs that an operation matches, and the next cursor.
pub(super) async fn page(
    bulk: &Bulk,
    operation: &Operation,
    who: &Caller,
    cursor: Option<&str>,
    size: usize,
) -> Result<(Vec<RunId>, Option<String>), ListRefused> {
    let unreadable = |problem: Problem| {
        let fault = muster_store::StoreError::Decode(problem.detail.into_owned());
        ListRefused::Fault(RunsError::Store(fault))
    };
    let filter = filter_of(operation).map_err(unreadable)?;
    let (runs, tenant) = (&bulk.gateway.runs, &operation.asked.tenant);
    let page = runs.list(tenant, cursor, size, &filter, RunValues::default(), |run| may_see(who, run)).await?;
    Ok((page.items.iter().map(|run| run.about().run).collect(), page.next_cursor))
}

/// Counts the matching runs without touching them.
pub(crate) async fn dry_run(gateway: &Gateway, caller: &Caller, filter: &RunFilter) -> Result<Outlook, ListRefused> {
    let mut outlook = Outlook { matched: 0, skipped: 0, more: false };
    let mut cursor: Option<String> = None;
    for _ in 0..DRY_PAGES {
        let sees = |run: &Run| may_see(caller, run);
        let (runs, none) = (&gateway.runs, RunValues::default());
        let page = runs.list(&caller.tenant, cursor.as_deref(), DRY_PAGE, filter, none, sees).await?;
        outlook.matched += page.items.len() as u64;
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(outlook);
        }
    }
    outlook.more = true;
    Ok(outlook)
}

/// The audit entry for one run of an operation. A repeated batch writes the same entry.
pub(super) fn act_on(operation: &Operation, run: RunId, now: Time) -> Act {
    let asked = &operation.asked;
    let action = match asked.action {
        Action::PauseRuns => "run_pause",
        Action::RerunRuns => "run_rerun",
        _ => "run_cancel",
    };
    let act =
        Act::by_key(format!("operation:{}:{run}", asked.id), now, &asked.principal, asked.tenant.as_str(), action);
    act.target(format!("run/{run}")).with("operation", asked.id.to_string())
}

/// Acts on all runs of the current batch. The results come in any order.
pub(super) async fn all(gateway: &Gateway, who: &Caller, operation: &Operation) -> Vec<(RunId, Deed)> {
    let op = &operation.asked.id.to_string();
    let deed = |id: RunId| async move {
        let cancel = || Ask::Cancel { compensate: true, reason: REASON.to_owned() };
        let deed = match operation.asked.action {
            Action::PauseRuns => operated(gateway, who, id, op, &Ask::Pause).await,
            Action::RerunRuns => Box::pin(rerun(gateway, who, id, op)).await,
            _ => operated(gateway, who, id, op, &cancel()).await,
        };
        (id, deed)
    };
    stream::iter(operation.runs()).map(deed).buffer_unordered(AT_ONCE).collect().await
}

async fn operated(gateway: &Gateway, who: &Caller, id: RunId, op: &str, ask: &Ask) -> Deed {
    match gateway.runs.operate(&who.tenant, id, op, ask).await {
        Ok(_) => Deed::Done,
        Err(OperateRefused::Refused { .. } | OperateRefused::NotFound) => Deed::Skipped,
        Err(OperateRefused::Fault(fault)) => broken(fault),
    }
}

async fn rerun(gateway: &Gateway, who: &Caller, id: RunId, op: &str) -> Deed {
    let old = match gateway.runs.read(id).await {
        Ok(Some((old, _))) if fits(Action::RerunRuns, old.run.state()) => old,
        Ok(_) => return Deed::Skipped,
        Err(fault) => return broken(fault),
    };
    let Some(from) = failed_step(&old) else { return Deed::Skipped };
    let rerun = Rerun {
        id: RunId::derive("bulk-rerun", &who.tenant, &format!("{op} {id}")),
        again: Again::From(from),
        version: None,
        input: None,
        principal: who.key.id.clone(),
        topics: who.key.topics.clone(),
        // Only this operation derives this id.
        hash: Some([0; 16]),
    };
    match gateway.runs.known_rerun(&old, &rerun).await {
        Ok(None) => {}
        Ok(Some(_)) => return Deed::Done,
        Err(why) => return rerun_refused(why),
    }
    let plan = match gateway.runs.plan_rerun(&old, &rerun).await {
        Ok(plan) => plan,
        Err(why) => return rerun_refused(why),
    };
    if topics(plan.kept.run.plan().definition()).into_iter().any(|topic| who.may_touch(topic).is_err()) {
        return Deed::Skipped;
    }
    if let Err(problem) = gateway.take_submit(who).await {
        return refusal(problem);
    }
    match gateway.runs.rerun(&old, &rerun, plan).await {
        Ok(_) => Deed::Done,
        Err(why) => rerun_refused(why),
    }
}

/// The step that failed the run, or else the first one that did not come to a good end.
fn failed_step(old: &Kept) -> Option<String> {
    let named = old.run.error().map(|error| error.step.as_str()).filter(|step| !step.is_empty());
    if let Some(step) = named {
        return Some(step.split('[').next().unwrap_or(step).to_owned());
    }
    let good = |state: StepState| matches!(state, StepState::Succeeded | StepState::Skipped);
    old.run.view_steps().ok()?.into_iter().find(|step| !good(step.state)).map(|step| step.id)
}

fn broken(fault: RunsError) -> Deed {
    match fault {
        RunsError::Store(fault) => faulty(fault),
        fault if fault.is_retryable() => Deed::Later,
        fault => Deed::Failed(fault.to_string()),
    }
}

fn rerun_refused(why: RerunRefused) -> Deed {
    match why {
        RerunRefused::Start(StartRefused::Fault(fault)) => broken(fault),
        RerunRefused::NotDone(_) => Deed::Skipped,
        why => Deed::Failed(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, action: Action) -> Result<RunFilter, Problem> {
        let mut faults = Faults::default();
        let filter = read_filter(Object::from_body(text.as_bytes())?, action, &mut faults);
        faults.into_result().map(|()| filter)
    }

    #[test]
    fn without_states_an_action_is_for_what_it_is_meant_for() {
        let states = |action| read("{}", action).unwrap().states;
        assert_eq!(states(Action::PauseRuns), [RunState::Running]);
        assert_eq!(states(Action::RerunRuns), [RunState::Failed, RunState::TimedOut]);
        assert!(states(Action::CancelRuns).iter().all(|state| !state.is_end()));
        for (action, state) in
            [(Action::CancelRuns, "failed"), (Action::PauseRuns, "cancelled"), (Action::RerunRuns, "succeeded")]
        {
            let problem = read(&format!(r#"{{"state":["{state}"]}}"#), action).unwrap_err();
            assert_eq!(problem.errors[0].pointer, "/state/0", "{action:?}");
        }
        assert!(read(r#"{"topic":"t"}"#, Action::CancelRuns).is_err());
    }
}
