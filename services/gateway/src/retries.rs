//! Creates the retry of an ended job: a new job with the old job's spec. Routes and bulk operations call it.
//!
//! Promises: the new id derives from the old one, so a repeated call finds the same retry.

use muster_domain::{JobId, JobSpec, ProblemCode, Time, TraceParent, job::When};
use muster_flow::failpoint;
use muster_store::{Fields, Record};

use crate::{
    Gateway,
    auth::Caller,
    group::{Answer, Item},
    problem::Problem,
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
    let item = prepare(gateway, caller, old, overrides, trace).await?;
    commit(gateway, id, item).await
}

/// Prepares the new job, if the caller and the topic allow it.
pub(crate) async fn prepare(
    gateway: &Gateway,
    caller: &Caller,
    old: Record,
    overrides: Overrides,
    trace: Option<TraceParent>,
) -> Result<Item, Problem> {
    let mut spec = again(&old.spec, gateway.flow.store.now());
    spec.retry_of = Some(old.id);
    spec.principal.clone_from(&caller.key.id);
    spec.trace = trace.or(spec.trace);
    spec.topic = overrides.topic.unwrap_or(spec.topic);
    spec.priority = overrides.priority.unwrap_or(spec.priority);
    caller.may_touch(&spec.topic)?;
    gateway.lag.admit()?;
    gateway.topics.know().await?;
    let refused = |why: &str| Problem::field(ProblemCode::InvalidRequest, "/topic", why);
    gateway.topics.told(&caller.tenant, &spec.topic).map_err(refused)?;
    let id = JobId::derive("retry", &caller.tenant, &old.id.to_string());
    let changed = overrides.payload.is_some() || spec.topic != old.spec.topic;
    let payload = overrides.payload.or(old.payload).unwrap_or_default();
    // A payload that was accepted for this topic is accepted again, whatever the topic's settings are now.
    if changed && let Err(refused) = gateway.topics.fits(&caller.tenant, &spec.topic, &payload, "/payload").await {
        unless_there(gateway, caller, Some(id), refused).await?;
    }
    if let Err(refused) = gateway.topics.admit(&caller.tenant, &spec.topic).await {
        unless_there(gateway, caller, Some(id), refused).await?;
    }
    Ok(Item { id: Some(id), spec, payload, hash: Some(overrides.hash), paid: false })
}

pub(crate) async fn commit(gateway: &Gateway, old: JobId, item: Item) -> Result<Answer, Problem> {
    let answer = gateway.group.submit(item).await?;
    if let Ok((job, _)) = &answer {
        failpoint!("retry.after_submit");
        // Mark the old job after the new one is stored: after a crash in between, the next retry request repairs the
        // mark.
        gateway.flow.store.mark_retried(old, job.id).await?;
    }
    Ok(answer)
}

/// Lets a refused submit through if its job was accepted before: newer settings of its topic do not refuse a repeat.
pub(crate) async fn unless_there(
    gateway: &Gateway,
    caller: &Caller,
    id: Option<JobId>,
    refused: Problem,
) -> Result<(), Problem> {
    let Some(id) = id else { return Err(refused) };
    match gateway.flow.store.read_one(id, Fields::NONE).await? {
        Some(record) if record.spec.tenant == caller.tenant => Ok(()),
        _ => Err(refused),
    }
}

/// The old job's spec without the times that have passed: they would end the new job at once.
fn again(old: &JobSpec, now: Time) -> JobSpec {
    let ahead = |when: Option<When>| when.filter(|when| !matches!(when, When::At(at) if at.reached(now)));
    JobSpec { run_at: ahead(old.run_at), start_by: ahead(old.start_by), deadline: ahead(old.deadline), ..old.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_domain::{Tenant, Topic};

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
}
