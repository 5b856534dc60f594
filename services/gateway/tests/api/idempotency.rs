//! Scenario 41: one key yields one job, whichever gateway is asked.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use muster_domain::{Event, JobId, StartId, WorkerId};
use muster_store::{RedisSettings, Step, Store, StoredResult};
use serde_json::{Value, json};

use crate::gate::Gate;

/// Runs a pending job, as a worker and a scheduler would.
async fn run(id: &Value, result: &'static str) {
    let store = Store::connect(RedisSettings::new(muster_testkit::redis().await.url())).await.unwrap();
    let id: JobId = id.as_str().unwrap().parse().unwrap();
    let start = Step {
        lease: Duration::from_secs(30),
        start_id: StartId([7; 8]),
        worker: Some(WorkerId::trusted("w1")),
        ..Step::new(id, Event::Start, 1)
    };
    let started = store.apply_one(start).await.unwrap();
    let fence = started.done().expect("it starts").fence;
    let result = StoredResult { json: result.into(), ..Default::default() };
    let ended = store.apply_one(Step { result: Some(result), ..Step::new(id, Event::Succeed, fence) }).await.unwrap();
    assert!(ended.done().is_some(), "{ended:?}");
}

#[tokio::test]
async fn fifty_posts_with_one_key_over_two_gateways_make_one_job() {
    let (one, other) = (Gate::start(&[]).await, Gate::start(&[]).await);
    let other = other.for_tenant(one.tenant());
    let body = json!({"topic": "mail.send", "payload": {"n": 1}});
    let posts = (0..50).map(|n| if n % 2 == 0 { &one } else { &other }).map(|gate| {
        let body = body.clone();
        async move { gate.post_keyed("/api/v1/jobs", "the-key", &body).await }
    });
    let answers = join_all(posts).await;
    assert!(answers.iter().all(|answer| answer.status == 202), "{answers:?}");
    let ids: BTreeSet<&str> = answers.iter().map(|answer| answer.json["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
    let fresh = answers.iter().filter(|answer| !answer.headers.contains_key("idempotency-replayed")).count();
    assert_eq!(fresh, 1, "all but the first say that they found it");
    let id = ids.first().unwrap();
    assert!(answers.iter().all(|answer| answer.headers["location"] == format!("/api/v1/jobs/{id}").as_str()));
    assert_eq!(one.count_jobs().await, 1);

    let quoted = other.post_keyed("/api/v1/jobs", "\"the-key\"", &body).await;
    assert_eq!(quoted.json["id"], *id, "quoted or bare");
    let differs =
        other.post_keyed("/api/v1/jobs", "the-key", &json!({"topic": "mail.send", "payload": {"n": 1.0}})).await;
    assert_eq!((differs.status.as_u16(), differs.code()), (422, "idempotency_mismatch"));
    let elsewhere = one.for_tenant(&crate::gate::fresh_tenant()).post_keyed("/api/v1/jobs", "the-key", &body).await;
    assert_ne!(elsewhere.json["id"], *id, "another tenant's key is another key");
}

/// A repeat answers with the current state of the job: what `GET` would show, and no more than the caller may see.
#[tokio::test]
async fn a_repeat_is_answered_with_the_job_as_it_is_now() {
    let gate = Gate::start(&[]).await;
    let body = json!({"topic": "t", "payload": {"n": 1}});
    let alone = gate.post_keyed("/api/v1/jobs", "alone", &body).await;
    assert!(alone.json.get("payload").is_none(), "what its client has just sent");
    let batch = json!({"items": [
        {"topic": "t", "payload": 1, "idempotency_key": "one"},
        {"topic": "t", "payload": 2},
        {"topic": "t", "payload": 3, "idempotency_key": "three"},
    ]});
    let together = gate.post("/api/v1/jobs/batch", &batch).await;
    run(&alone.json["id"], r#"{"sum":1.50}"#).await;
    run(&together.json["items"][2]["job"]["id"], "3").await;

    let repeat = gate.post_keyed("/api/v1/jobs", "alone", &body).await;
    assert_eq!((repeat.status.as_u16(), repeat.headers["idempotency-replayed"].to_str().unwrap()), (202, "true"));
    assert!(repeat.text.contains(r#""result":{"sum":1.50}"#), "{}", repeat.text);
    let read = gate.get(&format!("/api/v1/jobs/{}", alone.json["id"].as_str().unwrap())).await;
    assert_eq!(repeat.json, read.json);
    assert_eq!((&read.json["state"], &read.json["worker"]), (&json!("succeeded"), &json!("w1")));

    let repeat = gate.post("/api/v1/jobs/batch", &batch).await.json;
    let item = |n: usize| (&repeat["items"][n]["replayed"], &repeat["items"][n]["job"]["state"]);
    assert_eq!(
        (item(0), item(2)),
        ((&json!(true), &json!("pending")), (&json!(true), &json!("succeeded"))),
        "{repeat}"
    );
    assert_eq!(item(1), (&json!(null), &json!("pending")), "made anew: {repeat}");
    assert_eq!(repeat["items"][2]["job"]["worker"], "w1", "as it stands now: {repeat}");
    for job in repeat["items"].as_array().unwrap().iter().map(|item| &item["job"]) {
        assert!(job.get("payload").is_none() && job.get("result").is_none(), "a batch shows none: {repeat}");
    }

    let path = format!("/api/v1/jobs/{}/retry", alone.json["id"].as_str().unwrap());
    let retried = gate.post(&path, &json!({})).await;
    run(&retried.json["id"], "2").await;
    assert_eq!(gate.post(&path, &json!({})).await.json["result"], 2, "the second click");
    let first = gate.post_keyed("/api/v1/jobs", "alone", &body).await;
    assert_eq!(first.json["retried_as"], retried.json["id"]);

    let blind = gate.with_key(Some(&gate.make_key(&["submit"], &[]).await));
    let repeat = blind.post_keyed("/api/v1/jobs", "alone", &body).await;
    assert_eq!((&repeat.json["state"], &repeat.json["worker"]), (&json!("succeeded"), &json!("w1")));
    assert!(repeat.json.get("result").is_none() && repeat.json.get("payload").is_none(), "{}", repeat.text);
}
