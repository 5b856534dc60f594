//! Submits many jobs in one request. Each item gets its own answer.

use std::{collections::HashMap, time::Duration};

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use muster_domain::{JobId, ProblemCode};
use muster_flow::Accepted;
use muster_store::{Fields, NewJob, Record, Want};

use super::{Submitter, json};
use crate::{
    Gateway,
    auth::Caller,
    body::{BATCH, Posted},
    group::Item,
    json::{Faults, Object, join},
    limits::Bucket,
    problem::{Problem, Within},
    query::Params,
    retries::unless_there,
    schema,
    submit::{Asked, Place, Told, read_job},
    view::{self, JobView},
};

/// The most jobs in one batch.
const MOST_ITEMS: usize = 1000;

/// Submit up to 1,000 jobs.
/// Each gets its own answer, in order; over the rate limit nothing is stored. Items may carry an `idempotency_key`
/// each, or the request one for all of them. Jobs that existed before are shown in their current state, without payload
/// and result.
#[utoipa::path(
    post, path = "/api/v1/jobs/batch", tag = "jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = "For the items that carry none")),
    request_body = schema::BatchRequest,
    responses(
        (status = 200, description = "What became of each", body = schema::BatchAnswer),
        (status = "4XX", description = "Refused as a whole", body = schema::Problem),
        (status = 503, description = "Overloaded, or a store is away", body = schema::Problem),
    )
)]
pub(super) async fn submit(
    State(gateway): State<Gateway>,
    Submitter { caller, key, trace }: Submitter,
    params: Params,
    body: Posted<BATCH>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    gateway.topics.know().await?;
    let told = |topic: &_| gateway.topics.told(&caller.tenant, topic);
    let mut asked = read_items(&body.bytes, &caller, &told, key.is_some())?;
    for (place, item) in asked.iter_mut().enumerate() {
        let Ok(job) = item else { continue };
        if let Err(refused) = admit(&gateway, &caller, job, (place, key.as_deref())).await {
            *item = Err(refused);
        }
    }
    for job in asked.iter_mut().flatten() {
        job.spec.principal.clone_from(&caller.key.id);
        job.spec.trace = job.spec.trace.or(trace);
    }
    let ids = asked
        .iter()
        .enumerate()
        .filter_map(|(place, job)| derived(&caller, job.as_ref().ok()?, (place, key.as_deref())));
    let ids: Vec<JobId> = ids.collect();
    let good = u32::try_from(asked.iter().flatten().count()).unwrap_or(u32::MAX);
    let mut paid = 0;
    if good > 0 {
        // Check the lag before the rate, so that a batch that cannot get in costs no token.
        gateway.lag.admit()?;
        paid = Box::pin(pay(&gateway, &caller, good, &ids)).await?;
    }
    let (mut items, mut faults) = (Vec::with_capacity(asked.len()), Vec::with_capacity(asked.len()));
    for (place, job) in asked.into_iter().enumerate() {
        let job = match job {
            Ok(job) => job,
            Err(problem) => {
                faults.push(Some(problem));
                continue;
            }
        };
        faults.push(None);
        let id = derived(&caller, &job, (place, key.as_deref()));
        let hash = id.is_some().then_some(job.hash);
        items.push(Item { id, spec: job.spec, payload: job.payload, hash, paid: true });
    }
    let mut answers = gateway.group.submit_all(items).await.into_iter();
    let lost = || Problem::new(ProblemCode::Internal, "no answer for this item");
    let outcomes: Vec<Outcome> = faults
        .into_iter()
        .map(|fault| match fault {
            Some(problem) => Err(problem),
            None => {
                let answer = answers.next().ok_or_else(lost)?;
                answer.map_err(|refused| refused.into_problem(ProblemCode::IdempotencyMismatch))
            }
        })
        .collect();
    // Repeats cost nothing. For jobs that `pay` found to be stored already, no token was taken.
    let replayed = outcomes.iter().flatten().filter(|(_, accepted)| accepted.replayed).count();
    let back = u32::try_from(replayed).unwrap_or(u32::MAX).saturating_sub(good - paid).min(paid);
    if back > 0 {
        gateway.limits.give_back(&caller.tenant, back).await;
    }
    // If no item was accepted because a store does not answer, the client may repeat the whole request unchanged.
    if let Some(Err(first)) = outcomes.first()
        && outcomes.iter().all(|o| matches!(o, Err(p) if p.code == first.code && p.status().as_u16() == 503))
    {
        return Err(first.clone());
    }
    let records = records_of_replayed(&gateway, &outcomes).await;
    let mut response = json(StatusCode::OK, answer(&outcomes, &records));
    if let Some(fault) = outcomes.into_iter().filter_map(Result::err).find(|p| p.status().is_server_error()) {
        response.extensions_mut().insert(Within(Box::new(fault)));
    }
    Ok(response)
}

/// Takes a token for each of `good` jobs or, if there are not that many, only for the jobs that are not stored yet.
/// Returns how many tokens were taken.
async fn pay(gateway: &Gateway, caller: &Caller, good: u32, ids: &[JobId]) -> Result<u32, Problem> {
    let refused = match take(gateway, caller, good).await {
        Ok(()) => return Ok(good),
        Err(refused) => refused,
    };
    if ids.is_empty() || gateway.take_read(caller).await.is_err() {
        return Err(refused);
    }
    let read = gateway.flow.store.read(ids, Fields::NONE).await;
    let there = read.iter().flatten().flatten().filter(|record| record.spec.tenant == caller.tenant).count();
    if there == 0 {
        return Err(refused);
    }
    let new = good.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX));
    if new > 0 {
        take(gateway, caller, new).await?;
    }
    Ok(new)
}

/// Takes `n` tokens, or none.
async fn take(gateway: &Gateway, caller: &Caller, n: u32) -> Result<(), Problem> {
    if let Some(most) = gateway.limits.burst().filter(|most| n > *most) {
        let why = format!("{n} jobs never fit: the tenant's rate lets {most} in at once, so send fewer");
        return Err(Problem { detail: why.into(), ..Problem::rate_limited(Duration::ZERO) });
    }
    let taken = gateway.limits.take(&caller.tenant, Bucket::Submit, n, Want::All).await;
    if taken.granted < n { Err(Problem::rate_limited(taken.retry_after)) } else { Ok(()) }
}

type Outcome = Result<(NewJob, Accepted), Problem>;

/// The derived id of an item: from its own key, or from its place in the batch and the key of the whole request.
fn derived(caller: &Caller, job: &Asked, (place, shared): (usize, Option<&str>)) -> Option<JobId> {
    match (&job.key, shared) {
        (Some(own), _) => Some(JobId::derive("job", &caller.tenant, own)),
        (None, Some(shared)) => Some(JobId::derive("batch", &caller.tenant, &format!("{place}\0{shared}"))),
        (None, None) => None,
    }
}

/// Admits an item, or returns why it is refused.
async fn admit(gateway: &Gateway, caller: &Caller, job: &Asked, named: (usize, Option<&str>)) -> Result<(), Problem> {
    let (topic, at) = (&job.spec.topic, format!("/items/{}/payload", named.0));
    if let Err(refused) = gateway.topics.fits(&caller.tenant, topic, &job.payload, &at).await {
        unless_there(gateway, caller, derived(caller, job, named), refused).await?;
    }
    if let Err(refused) = gateway.topics.admit(&caller.tenant, topic).await {
        unless_there(gateway, caller, derived(caller, job, named), refused).await?;
    }
    Ok(())
}

fn read_items(
    body: &Bytes,
    caller: &Caller,
    told: Told<'_>,
    keyed: bool,
) -> Result<Vec<Result<Asked, Problem>>, Problem> {
    let mut faults = Faults::default();
    let mut whole = Object::from_body(body)?;
    whole.require("items", &mut faults);
    let items = whole.list("items", &mut faults).unwrap_or_default();
    whole.finish(&mut faults);
    if items.len() > MOST_ITEMS {
        faults.invalid("", "items", format_args!("has {} items; at most {MOST_ITEMS}", items.len()));
    }
    faults.into_result()?;
    let read = |(place, raw): (usize, _)| {
        let mut faults = Faults::default();
        let object = Object::from_value(raw, join("/items", &place.to_string()), &mut faults);
        let job = object.and_then(|o| read_job(body, o, &caller.tenant, told, Place::InBatch, keyed, &mut faults));
        faults.into_result()?;
        let job = job.ok_or_else(|| Problem::new(ProblemCode::Internal, "a job was lost while it was read"))?;
        caller.may_touch(&job.spec.topic)?;
        Ok(job)
    };
    Ok(items.into_iter().enumerate().map(read).collect())
}

/// The current records of jobs that were stored before, by one read, without their large fields: a thousand of those
/// would be hundreds of megabytes. A job that was deleted, or that Redis does not return, is shown as its submit
/// found it.
async fn records_of_replayed(gateway: &Gateway, outcomes: &[Outcome]) -> HashMap<JobId, Record> {
    let replayed = outcomes.iter().flatten().filter(|(_, accepted)| accepted.replayed);
    let ids: Vec<JobId> = replayed.map(|(job, _)| job.id).collect();
    if ids.is_empty() {
        return HashMap::new();
    }
    let read = gateway.flow.store.read(&ids, Fields::NONE).await;
    let there = read.into_iter().filter_map(|record| record.ok().flatten()).filter(|record| !record.deleted);
    there.map(|record| (record.id, record)).collect()
}

fn answer(outcomes: &[Outcome], records: &HashMap<JobId, Record>) -> Bytes {
    let one = |json: &mut view::Json, outcome: &Outcome| match outcome {
        Ok((job, accepted)) => {
            json.integer("status", 202);
            if accepted.replayed {
                json.boolean("replayed", true);
            }
            let view = JobView::accepted(job, accepted, records.get(&job.id));
            json.object(Some("job"), |json| view.write(json));
        }
        Err(problem) => {
            json.integer("status", problem.status().as_u16().into());
            let document = serde_json::to_vec(&problem.document("", "", "")).unwrap_or_else(|_| b"{}".to_vec());
            json.raw("error", &document);
        }
    };
    view::document(|json| {
        json.list("items", |json| {
            outcomes.iter().for_each(|outcome| json.object(None, |json| one(json, outcome)));
        });
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_domain::Tenant;

    use super::*;
    use crate::{access::Scopes, auth::Key};

    fn caller(topics: &[&str]) -> Caller {
        let key = Key {
            id: "k".into(),
            name: String::new(),
            tenant: None,
            scopes: Scopes::all(),
            topics: topics.iter().map(|t| (*t).to_owned()).collect(),
            expires_at: None,
        };
        Caller { tenant: Tenant::default(), named: false, key: Arc::new(key) }
    }

    fn read(body: &str, topics: &[&str]) -> Result<Vec<Result<Asked, Problem>>, Problem> {
        read_items(&Bytes::from(body.to_owned()), &caller(topics), &|_| Ok(None), false)
    }

    #[test]
    fn one_bad_item_never_harms_its_neighbours() {
        let body = r#"{"items":[{"topic":"a","payload":1},{"topic":"A"},7,{"topic":"b","idempotency_key":"k"},{"topic":"c","x":1}]}"#;
        let items = read(body, &[]).unwrap();
        let pointers: Vec<Option<&str>> =
            items.iter().map(|item| item.as_ref().err().map(|p| p.errors[0].pointer.as_str())).collect();
        assert_eq!(pointers, [None, Some("/items/1/topic"), Some("/items/2"), None, Some("/items/4/x")]);
        assert_eq!(&items[0].as_ref().unwrap().payload[..], b"1");
        assert_eq!(items[3].as_ref().unwrap().key.as_deref(), Some("k"));
    }

    #[test]
    fn a_batch_that_is_wrong_as_a_whole_is_refused_as_a_whole() {
        let pointer = |body: &str| read(body, &[]).unwrap_err().errors[0].pointer.clone();
        assert_eq!(pointer("{}"), "/items");
        assert_eq!(pointer(r#"{"items":{}}"#), "/items");
        assert_eq!(pointer(r#"{"items":[],"x":1}"#), "/x");
        let many = format!(r#"{{"items":[{}]}}"#, vec![r#"{"topic":"t"}"#; 1001].join(","));
        assert_eq!(pointer(&many), "/items");
    }

    #[test]
    fn a_key_for_some_topics_submits_to_those_only() {
        let items = read(r#"{"items":[{"topic":"mail.send"},{"topic":"pay"}]}"#, &["mail.*"]).unwrap();
        assert!(items[0].is_ok());
        assert_eq!(items[1].as_ref().unwrap_err().status(), 403);
    }
}
