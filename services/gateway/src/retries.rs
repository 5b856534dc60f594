//! Creates the retry of an ended job: a new job with the old job's spec. Routes and bulk operations call it.
//!
//! Promises: the new id derives from the old one, so a repeated call finds the same retry.

use muster_domain::{JobId, JobSpec, ProblemCode, Time, TraceParent, job::When};
use muster_flow::{
    admission::{
        Admitted, Answer, Asked, PayloadCheck,
        bounds::{self, Payload},
    },
    failpoint,
};
use muster_store::Record;

use crate::{
    auth::Caller,
    problem::Problem,
    refusals::{out_of_bounds, retry_refused},
    state::Gateway,
    submit::Overrides,
};

/// Creates the retry of an ended job. Repeating the call finds the same retry.
pub(crate) async fn make(
    gateway: &Gateway,
    caller: &Caller,
    old: Record,
    overrides: Overrides,
    trace: Option<TraceParent>,
) -> Result<Answer, Problem> {
    let id = old.id;
    let admitted = prepare(gateway, caller, old, overrides, trace).await?;
    commit(gateway, id, admitted).await
}

/// Prepares the new job, if the caller and the topic allow it.
pub(crate) async fn prepare(
    gateway: &Gateway,
    caller: &Caller,
    old: Record,
    overrides: Overrides,
    trace: Option<TraceParent>,
) -> Result<Admitted, Problem> {
    let mut spec = again(&old.spec, gateway.flow.store.now());
    spec.retry_of = Some(old.id);
    spec.principal.clone_from(&caller.key.id);
    spec.trace = trace.or(spec.trace);
    spec.topic = overrides.topic.unwrap_or(spec.topic);
    spec.priority = overrides.priority.unwrap_or(spec.priority);
    caller.may_touch(&spec.topic)?;
    let changed = overrides.payload.is_some() || spec.topic != old.spec.topic;
    let payload = match (overrides.payload, old.payload) {
        (Some(other), _) => other,
        (None, old) => Payload::check(old.unwrap_or_default())
            .map_err(|fault| Problem::field(ProblemCode::InvalidRequest, "/payload", fault.to_string()))?,
    };
    let asked = Asked {
        id: Some(JobId::derive("retry", &caller.tenant, &old.id.to_string())),
        job: bounds::check(spec, payload).map_err(|fault| out_of_bounds(&fault, ""))?,
        hash: Some(overrides.hash),
        payload_check: if changed { PayloadCheck::Schema } else { PayloadCheck::AcceptedBefore },
    };
    gateway.admission.open().await?.admit(asked).await.map_err(retry_refused)
}

/// Commits the new job, and marks the old one as retried.
pub(crate) async fn commit(gateway: &Gateway, old: JobId, admitted: Admitted) -> Result<Answer, Problem> {
    let answer = gateway.admission.submit(admitted).await;
    if let Ok((job, _)) = &answer {
        failpoint!("retry.after_submit");
        // Mark the old job after the new one is stored: after a crash in between, the next retry request repairs the
        // mark.
        gateway.flow.store.mark_retried(old, job.id).await?;
    }
    Ok(answer)
}

/// The old job's spec without the times that have passed, which would end the new job at once, and without its run: a
/// run retries its own jobs.
fn again(old: &JobSpec, now: Time) -> JobSpec {
    let ahead = |when: Option<When>| when.filter(|when| !matches!(when, When::At(at) if at.reached(now)));
    let (run_at, start_by, deadline) = (ahead(old.run_at), ahead(old.start_by), ahead(old.deadline));
    JobSpec { run_at, start_by, deadline, run: None, ..old.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_domain::{RunId, Tenant, Topic};

    use super::*;

    #[test]
    fn moments_that_have_passed_are_not_copied() {
        let mut old = JobSpec::new(Tenant::default(), Topic::parse("t").unwrap());
        old.run_at = Some(When::At(Time(5)));
        old.deadline = Some(When::At(Time(50)));
        old.start_by = Some(When::In(Duration::from_secs(1)));
        let new = again(&old, Time(10));
        assert_eq!((new.run_at, new.deadline, new.start_by), (None, old.deadline, old.start_by));
        assert_eq!(again(&old, Time(50)).deadline, None);
    }

    #[test]
    fn a_job_that_is_retried_by_hand_belongs_to_no_run() {
        let mut old = JobSpec::new(Tenant::default(), Topic::parse("t").unwrap());
        old.run = Some(RunId::mint(0));
        assert_eq!(again(&old, Time(10)).run, None);
    }
}
