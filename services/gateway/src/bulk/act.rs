//! What is done to one job of a bulk operation. Each deed may be repeated without harm, and counts
//! as done when it is repeated: its job was chosen while the deed was still to be done.

use futures_util::{StreamExt, stream};
use muster_domain::{JobId, ProblemCode};
use muster_flow::Cancelled;
use muster_store::{Action, Deleted, Fields, Record, StoreError};

use crate::{
    Gateway,
    auth::Caller,
    group::Refused,
    problem::Problem,
    routes::{control, retry},
    submit::Overrides,
};

/// How many jobs are dealt with side by side. Retries of one batch share their commits.
const AT_ONCE: usize = 64;
/// What the history of a cancelled job says.
const REASON: &str = "cancelled by a bulk operation";

/// What became of one job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Dealt with, now or before.
    Done,
    /// It needs nothing any more, or allows nothing.
    Skipped,
    /// It cannot be dealt with.
    Failed(String),
    /// A store is away, or a limit is reached: the same again later.
    Later,
}

/// Whether there is nothing to do for a job that matches: it has a retry already.
pub(crate) fn skips(action: Action, record: &Record) -> bool {
    action == Action::Retry && record.retried_as.is_some()
}

/// Deals with all of them; the answers come in any order.
pub(super) async fn all(gateway: &Gateway, who: &Caller, action: Action, jobs: Vec<JobId>) -> Vec<(JobId, Deed)> {
    let deed = |id: JobId| async move {
        let deed = match action {
            Action::Retry => retried(gateway, who, id).await,
            Action::Cancel => cancelled(gateway, who, id).await,
            Action::Delete => deleted(gateway, who, id).await,
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
    match retry::make(gateway, who, old, Overrides::none(), None).await {
        Ok(Ok(_)) => Deed::Done,
        Ok(Err(Refused::Mismatch)) => Deed::Skipped,
        Ok(Err(refused)) => refusal(refused.into_problem(ProblemCode::AlreadyRetried)),
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
    match control::remove(&gateway.flow, &who.tenant, id).await {
        Ok(Deleted::Deleted | Deleted::Missing) => Deed::Done,
        Ok(Deleted::Alive) => Deed::Skipped,
        Err(fault) => faulty(fault),
    }
}

fn faulty(fault: StoreError) -> Deed {
    match fault {
        StoreError::Unavailable { .. } => Deed::Later,
        other => Deed::Failed(other.to_string()),
    }
}

fn refusal(problem: Problem) -> Deed {
    match problem.status().as_u16() {
        429 | 503 => Deed::Later,
        _ => Deed::Failed(problem.detail.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_what_will_not_is_counted() {
        assert_eq!(faulty(StoreError::Unavailable { detail: "away".into() }), Deed::Later);
        assert!(matches!(faulty(StoreError::Decode("odd".into())), Deed::Failed(_)));
        assert_eq!(refusal(Problem::store_away()), Deed::Later);
        assert_eq!(refusal(Problem::rate_limited(std::time::Duration::ZERO)), Deed::Later);
        assert!(matches!(refusal(Problem::new(ProblemCode::MissingScope, "no")), Deed::Failed(_)));
    }
}
