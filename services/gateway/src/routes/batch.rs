//! Submits many jobs in one request. Each item gets its own answer.

use std::collections::HashMap;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use muster_domain::{JobId, ProblemCode, TraceParent};
use muster_flow::{
    Accepted,
    admission::{Asked, PayloadCheck, Refusal, bounds},
};
use muster_store::{Fields, NewJob, Record};

use super::{Submitter, json};
use crate::{
    auth::Caller,
    body::{BATCH, Posted},
    json::{Faults, Object, join},
    limits::MOST_BATCH,
    problem::{Problem, Within},
    query::Params,
    refusals::{out_of_bounds, refused_at},
    schema,
    state::Gateway,
    submit::{Defaults, Place, ReadJob, read_job},
    view::{self, JobView},
};

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
    let open = gateway.admission.open().await?;
    let defaults = |topic| open.spec(&caller.tenant, topic);
    let read = read_items(&body.bytes, &caller, &defaults, key.is_some())?;
    let (mut admitted, mut refused) = (Vec::with_capacity(read.len()), Vec::with_capacity(read.len()));
    for (place, job) in read.into_iter().enumerate() {
        let asked = job.and_then(|job| asked(&caller, job, (place, key.as_deref()), trace));
        let judged = match asked {
            Ok(asked) => match open.admit(asked).await {
                // The schedulers are behind for every job, so the batch is refused as a whole.
                Err(refusal @ Refusal::Behind { .. }) => return Err(refusal.into()),
                judged => judged.map_err(|refusal| refused_at(refusal, &format!("/items/{place}"))),
            },
            Err(problem) => Err(problem),
        };
        refused.push(judged.map(|job| admitted.push(job)).err());
    }
    let mut answers = gateway.admission.submit_all(admitted).await?.into_iter();
    let outcome = |(place, refused): (usize, Option<Problem>)| match refused {
        Some(problem) => Err(problem),
        None => {
            let answer = answers.next().unwrap_or(Err(Refusal::Lost));
            answer.map_err(|refusal| refused_at(refusal, &format!("/items/{place}")))
        }
    };
    let outcomes: Vec<Outcome> = refused.into_iter().enumerate().map(outcome).collect();
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

type Outcome = Result<(NewJob, Accepted), Problem>;

/// The job of one item. Its id derives from its own key, or from its place in the batch and the key of the whole
/// request.
fn asked(
    caller: &Caller,
    job: ReadJob,
    (place, shared): (usize, Option<&str>),
    trace: Option<TraceParent>,
) -> Result<Asked, Problem> {
    let ReadJob { mut spec, payload, hash, key } = job;
    let id = match (key, shared) {
        (Some(own), _) => Some(JobId::derive("job", &caller.tenant, &own)),
        (None, Some(shared)) => Some(JobId::derive("batch", &caller.tenant, &format!("{place}\0{shared}"))),
        (None, None) => None,
    };
    spec.principal.clone_from(&caller.key.id);
    spec.trace = spec.trace.or(trace);
    let job = bounds::check(spec, payload).map_err(|fault| out_of_bounds(&fault, &format!("/items/{place}")))?;
    Ok(Asked { id, job, hash: id.is_some().then_some(hash), payload_check: PayloadCheck::Schema })
}

pub(super) fn read_items(
    body: &Bytes,
    caller: &Caller,
    defaults: Defaults<'_>,
    keyed: bool,
) -> Result<Vec<Result<ReadJob, Problem>>, Problem> {
    let mut faults = Faults::default();
    let mut whole = Object::from_body(body)?;
    whole.require("items", &mut faults);
    let items = whole.list("items", &mut faults).unwrap_or_default();
    whole.finish(&mut faults);
    if items.len() > MOST_BATCH {
        faults.invalid("", "items", format_args!("has {} items; at most {MOST_BATCH}", items.len()));
    }
    faults.into_result()?;
    let read = |(place, raw): (usize, _)| {
        let mut faults = Faults::default();
        let object = Object::from_value(raw, join("/items", &place.to_string()), &mut faults);
        let job = object.and_then(|o| read_job(body, o, &caller.tenant, defaults, Place::InBatch, keyed, &mut faults));
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

    use muster_domain::{JobSpec, Tenant};

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

    fn read(body: &str, topics: &[&str]) -> Result<Vec<Result<ReadJob, Problem>>, Problem> {
        read_items(
            &Bytes::from(body.to_owned()),
            &caller(topics),
            &|topic| Ok(JobSpec::new(Tenant::default(), topic)),
            false,
        )
    }

    #[test]
    fn one_bad_item_never_harms_its_neighbours() {
        let body = r#"{"items":[{"topic":"a","payload":1},{"topic":"A"},7,{"topic":"b","idempotency_key":"k"},{"topic":"c","x":1}]}"#;
        let items = read(body, &[]).unwrap();
        let pointers: Vec<Option<&str>> =
            items.iter().map(|item| item.as_ref().err().map(|p| p.errors[0].pointer.as_str())).collect();
        assert_eq!(pointers, [None, Some("/items/1/topic"), Some("/items/2"), None, Some("/items/4/x")]);
        assert_eq!(items[0].as_ref().unwrap().payload.as_bytes(), b"1");
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
