//! The action of a bulk operation on one job. Repeating an action is harmless, and a repeated action counts as done:
//! the job was chosen while the action was still needed.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use muster_domain::JobId;
use muster_flow::{Cancelled, admission::Refusal};
use muster_store::{Action, Deleted, Fields, Record, Store, StoreError};

use crate::{
    auth::Caller, problem::Problem, refusals::retry_refused, removal, retries, state::Gateway, submit::Overrides,
};

/// The number of jobs or runs handled concurrently. Retries of one batch share their commits.
pub(super) const AT_ONCE: usize = 64;
/// The reason in the history of a cancelled job or run.
pub(super) const REASON: &str = "cancelled by a bulk operation";

/// The result of the action on one job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// The action was carried out, now or before.
    Done,
    /// The job no longer needs the action, or does not allow it.
    Skipped,
    /// The action failed for this job, for this reason.
    Failed(String),
    /// A store did not answer, or a limit was reached: the same action is tried again later.
    Later,
}

/// The matching jobs that get no action: retries of jobs that were already retried, deletes of jobs whose runs are kept.
pub(crate) async fn skipped(store: &Store, action: Action, jobs: &[&Record]) -> Result<HashSet<JobId>, StoreError> {
    match action {
        Action::Retry => Ok(jobs.iter().filter(|job| job.retried_as.is_some()).map(|job| job.id).collect()),
        Action::Cancel | Action::CancelRuns | Action::PauseRuns | Action::RerunRuns => Ok(HashSet::new()),
        Action::Delete => {
            let of_runs: Vec<_> = jobs.iter().map(|job| (job.id, job.spec.run)).collect();
            store.in_stored_runs(&of_runs).await
        }
    }
}

/// Acts on all of these jobs. The results come in any order.
pub(super) async fn all(gateway: &Gateway, who: &Caller, action: Action, jobs: Vec<JobId>) -> Vec<(JobId, Deed)> {
    let deed = |id: JobId| async move {
        let deed = match action {
            Action::Retry => retried(gateway, who, id).await,
            Action::Cancel => cancelled(gateway, who, id).await,
            Action::Delete => deleted(gateway, who, id).await,
            // Actions on runs are in `runs`.
            Action::CancelRuns | Action::PauseRuns | Action::RerunRuns => Deed::Skipped,
        };
        (id, deed)
    };
    stream::iter(jobs).map(deed).buffer_unordered(AT_ONCE).collect().await
}

async fn retried(gateway: &Gateway, who: &Caller, id: JobId) -> Deed {
    let store = &gateway.flow.store;
    let old = match store.read_one(id, Fields::PAYLOAD).await {
        Ok(Some(old)) if !old.deleted && old.head.state().is_end() => old,
        Ok(_) => return Deed::Skipped,
        Err(fault) => return faulty(fault),
    };
    match retries::make(gateway, who, old, Overrides::none(), None).await {
        Ok(Ok(_)) => Deed::Done,
        Ok(Err(Refusal::Mismatch)) => Deed::Skipped,
        Ok(Err(refused)) => refusal(retry_refused(refused)),
        Err(problem) => refusal(problem),
    }
}

async fn cancelled(gateway: &Gateway, who: &Caller, id: JobId) -> Deed {
    match gateway.flow.cancel(&who.tenant, id, REASON).await {
        Ok(Cancelled::Now(_) | Cancelled::Before(_)) => Deed::Done,
        Ok(Cancelled::EndedOtherwise(_) | Cancelled::NotFound) => Deed::Skipped,
        Err(fault) => faulty(fault),
    }
}

async fn deleted(gateway: &Gateway, who: &Caller, id: JobId) -> Deed {
    match removal::remove(&gateway.flow, &who.tenant, id).await {
        Ok(Deleted::Deleted | Deleted::Missing) => Deed::Done,
        Ok(Deleted::Alive) => Deed::Skipped,
        Err(fault) => faulty(fault),
    }
}

pub(super) fn faulty(fault: StoreError) -> Deed {
    match fault {
        StoreError::Unavailable { .. } => Deed::Later,
        other => Deed::Failed(other.to_string()),
    }
}

pub(super) fn refusal(problem: Problem) -> Deed {
    match problem.status().as_u16() {
        429 | 503 => Deed::Later,
        _ => Deed::Failed(problem.detail.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::ProblemCode;

    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_what_will_not_is_counted() {
        assert_eq!(faulty(StoreError::Unavailable { detail: "away".into() }), Deed::Later);
        assert!(matches!(faulty(StoreError::Decode("odd".into())), Deed::Failed(_)));
        assert_eq!(refusal(Problem::store_away()), Deed::Later);
        assert_eq!(refusal(Refusal::RateLimited { retry_after: std::time::Duration::ZERO }.into()), Deed::Later);
        assert!(matches!(refusal(Problem::new(ProblemCode::MissingScope, "no")), Deed::Failed(_)));
    }
}
