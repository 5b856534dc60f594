//! Retry by hand: a new job with the old one's spec. An ended job never moves again.

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_domain::{JobId, JobSpec, ProblemCode, Time, TraceParent, job::When};
use muster_flow::failpoint;
use muster_store::{Fields, Record};

use super::{
    Id, Submitter,
    control::not_done,
    jobs::{find, note_acceptance, unless_there, visible},
    json,
};
use crate::{
    Gateway,
    auth::Caller,
    body::{Posted, SINGLE},
    group::{Answer, Item},
    json::Faults,
    problem::Problem,
    query::Params,
    schema,
    submit::{Overrides, read_overrides},
    view::JobView,
};

/// Retry an ended job as a new one, perhaps with another payload, topic or priority. The new id is
/// derived from the old one, so that a double click makes one job.
#[utoipa::path(
    post, path = "/api/v1/jobs/{id}/retry", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    request_body = schema::RetryRequest,
    responses(
        (status = 202, description = "The new job", body = schema::Job),
        (status = 404, description = "No such job, or not yours", body = schema::Problem),
        (status = 409, description = "`job_not_done`, or `already_retried` with other overrides", body = schema::Problem),
    )
)]
pub(super) async fn retry(
    State(gateway): State<Gateway>,
    Submitter { caller, trace, .. }: Submitter,
    Id(id): Id,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let mut faults = Faults::default();
    let overrides = read_overrides(&body.bytes, &mut faults)?;
    faults.into_result()?;
    let old = find(&gateway, &caller, id, Fields::PAYLOAD).await?;
    if !old.head.state().is_end() {
        return Err(not_done(&old));
    }
    let first = old.retried_as.is_none();
    let item = prepare(&gateway, &caller, old, overrides, trace).await?;
    // Told once nothing but the stores can refuse it.
    if first {
        gateway.tell(gateway.act(&caller, "job_retry_by_hand").job(id)).await?;
        failpoint!("retry.after_audit");
    }
    let made = commit(&gateway, id, item).await?;
    let (job, accepted) = made.map_err(|refused| refused.into_problem(ProblemCode::AlreadyRetried))?;
    let record = if accepted.replayed { find(&gateway, &caller, job.id, visible(&caller)).await.ok() } else { None };
    let mut response = json(StatusCode::ACCEPTED, JobView::accepted(&job, &accepted, record.as_ref()).document());
    note_acceptance(&mut response, job.id, &accepted);
    Ok(response)
}

/// Makes an ended job's retry. Repeating finds the same one.
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

/// The new job, if the caller and its topic allow it.
async fn prepare(
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
    // A payload that was accepted for this topic is tried again, whatever the topic was told since.
    if changed && let Err(refused) = gateway.topics.fits(&caller.tenant, &spec.topic, &payload, "/payload").await {
        unless_there(gateway, caller, Some(id), refused).await?;
    }
    if let Err(refused) = gateway.topics.admit(&caller.tenant, &spec.topic).await {
        unless_there(gateway, caller, Some(id), refused).await?;
    }
    Ok(Item { id: Some(id), spec, payload, hash: Some(overrides.hash), paid: false })
}

async fn commit(gateway: &Gateway, old: JobId, item: Item) -> Result<Answer, Problem> {
    let answer = gateway.group.submit(item).await?;
    if let Ok((job, _)) = &answer {
        failpoint!("retry.after_submit");
        // After the new job: a crash in between is mended by the next click.
        gateway.flow.store.mark_retried(old, job.id).await?;
    }
    Ok(answer)
}

/// The same wishes, less those moments that have passed: they would end the new job at once.
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
