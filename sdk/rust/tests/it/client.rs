//! Tests of the client's guarantees, seen from the gateway's side.

use std::time::{Duration, Instant};

use muster_sdk::{Client, ClientError, JobFilter, JobId, JobRequest, NewKey, Priority, RetryRequest, State};
use muster_testkit::free_port;

use super::gateway::Gateway;

fn job(id: JobId, state: &str, done: bool) -> String {
    format!(r#"{{"id":"{id}","topic":"t","state":"{state}","done":{done},"attempt":1,"result":{{"n": 1.0}}}}"#)
}

fn client(gateway: &Gateway) -> Client {
    Client::new([&gateway.url], "secret").unwrap()
}

#[tokio::test]
async fn a_submit_that_was_put_off_is_repeated_with_the_same_key() {
    let (gateway, id) = (Gateway::start().await, JobId::mint(0));
    gateway.then(503, &[("retry-after", "1")], r#"{"code":"store_unavailable","retryable":true}"#);
    gateway.then(429, &[("retry-after", "1")], r#"{"code":"rate_limited"}"#);
    gateway.then(202, &[("idempotency-replayed", "true"), ("muster-bus", "deferred")], &job(id, "pending", false));
    let began = Instant::now();
    let client = Client::builder().gateway(&gateway.url).api_key("secret").tenant("acme").build().unwrap();
    let submitted = client.submit(JobRequest::new("t").payload(&[1, 2])).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "Retry-After is honoured");
    assert!(submitted.replayed && submitted.bus_deferred && submitted.job.id == id);

    let asked = gateway.asked();
    assert_eq!(asked.len(), 3);
    let key = asked[0].header("idempotency-key").unwrap();
    assert!(!key.is_empty());
    for ask in &asked {
        assert_eq!((ask.method.as_str(), ask.uri.as_str()), ("POST", "/api/v1/jobs"));
        assert_eq!(ask.header("idempotency-key"), Some(key));
        assert_eq!(ask.header("authorization"), Some("Bearer secret"));
        assert_eq!(ask.header("muster-tenant"), Some("acme"));
        assert_eq!(ask.json(), serde_json::json!({ "topic": "t", "payload": [1, 2] }));
    }
}

#[tokio::test]
async fn gateways_are_tried_in_turn_and_the_one_that_answers_is_kept() {
    let (gateway, id) = (Gateway::start().await, JobId::mint(0));
    let dead = format!("http://127.0.0.1:{}", free_port());
    gateway.then(202, &[], &job(id, "pending", false)).then(200, &[], &job(id, "running", false));
    let client = Client::new([dead.as_str(), gateway.url.as_str()], "secret").unwrap();
    let began = Instant::now();
    client.submit(JobRequest::new("t").idempotency_key("mine")).await.unwrap();
    assert_eq!(client.get(id).await.unwrap().state, "running");
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(gateway.asked()[0].header("idempotency-key"), Some("mine"));

    let nobody = Client::builder().gateway(&dead).retry_for(Duration::from_millis(200)).build().unwrap();
    assert!(matches!(nobody.get(id).await, Err(ClientError::Unreachable(_))));
}

#[tokio::test]
async fn a_refusal_is_told_with_all_its_fields_and_not_repeated() {
    let gateway = Gateway::start().await;
    let body = r#"{"type":"x","title":"Unprocessable","status":422,"detail":"bad request","code":"invalid_request",
        "retryable":false,"errors":[{"pointer":"/topic","detail":"a topic is lowercase"}]}"#;
    gateway.then(422, &[("content-type", "application/problem+json")], body);
    let error = client(&gateway).submit(JobRequest::new("T")).await.unwrap_err();
    assert_eq!((error.code(), error.status(), error.is_retryable()), (Some("invalid_request"), Some(422), false));
    assert_eq!(error.problem().unwrap().errors[0].pointer, "/topic");
    assert_eq!(gateway.asked().len(), 1);
    let bad = client(&gateway).submit(JobRequest::new("t").payload_json("{")).await.unwrap_err();
    assert!(matches!(bad, ClientError::Invalid(_)));
    assert!(gateway.asked().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn waiting_goes_on_until_the_job_is_done_or_the_time_is_up() {
    let (gateway, id) = (Gateway::start().await, JobId::mint(0));
    gateway.then(200, &[], &job(id, "running", false)).then(200, &[], &job(id, "who-knows", true));
    let done = client(&gateway).wait(id, Duration::from_secs(10)).await.unwrap();
    assert_eq!((done.state.as_str(), done.known_state()), ("who-knows", None));
    assert_eq!(done.result.unwrap().get(), r#"{"n": 1.0}"#);
    let asked = gateway.asked();
    assert!(asked[0].uri.starts_with(&format!("/api/v1/jobs/{id}?wait_ms=")), "{}", asked[0].uri);

    for _ in 0..9 {
        gateway.then(200, &[], &job(id, "running", false));
    }
    let late = client(&gateway).wait(id, Duration::from_millis(250)).await;
    assert!(matches!(late, Err(ClientError::NotDone(_))));

    let other = Gateway::start().await;
    other.then(200, &[], &job(id, "succeeded", true));
    let submitted = client(&other).submit_wait(JobRequest::new("t"), Duration::from_secs(5)).await.unwrap();
    assert!(submitted.job.done);
    assert!(other.asked()[0].uri.ends_with("?wait_ms=5000"));
}

#[tokio::test]
async fn a_batch_is_answered_item_by_item_and_each_item_has_a_key() {
    let (gateway, id) = (Gateway::start().await, JobId::mint(0));
    let items = format!(
        r#"{{"items":[{{"status":202,"job":{}}},{{"status":422,"error":{{"code":"invalid_request","detail":"no"}}}}]}}"#,
        job(id, "pending", false)
    );
    gateway.then(503, &[], "").then(200, &[], &items);
    let requests = [JobRequest::new("t").priority(Priority::High), JobRequest::new("T").idempotency_key("mine")];
    let answers = client(&gateway).batch(requests).await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap().id, id);
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!((error.code(), error.status()), (Some("invalid_request"), Some(422)));
    let asked = gateway.asked();
    assert_eq!(asked[0].body, asked[1].body, "the repetition carries the same keys");
    let sent = asked[0].json();
    assert!(sent["items"][0]["idempotency_key"].is_string());
    assert_eq!(sent["items"][1]["idempotency_key"], "mine");
    assert!(client(&gateway).batch([]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_list_is_read_page_by_page_with_its_filter() {
    let (gateway, ids) = (Gateway::start().await, [JobId::mint(0), JobId::mint(1)]);
    let page = |id, next: &str| format!(r#"{{"items":[{}]{next}}}"#, job(id, "failed", true));
    gateway
        .then(200, &[], &page(ids[0], r#","next_cursor":"a/b c""#))
        .then(200, &[], r#"{"items":[],"next_cursor":"x"}"#)
        .then(200, &[], &page(ids[1], ""));
    let filter = JobFilter::new().state(State::Failed).state(State::TimedOut).label("team", "a&b").limit(1);
    let jobs = client(&gateway).list(filter.include_result()).all().await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), ids);
    let asked = gateway.asked();
    assert_eq!(asked[0].uri, "/api/v1/jobs?state=failed%2Ctimed_out&include=result&label.team=a%26b&limit=1");
    assert!(asked[1].uri.ends_with("&cursor=a%2Fb+c"));
    assert_eq!(asked.len(), 3, "an empty page does not end the list");
}

#[tokio::test]
async fn the_other_calls_go_where_the_contract_says() {
    let (gateway, id) = (Gateway::start().await, JobId::mint(0));
    let client = client(&gateway);
    gateway.then(200, &[], &job(id, "cancelled", true));
    client.cancel(id, Some("enough")).await.unwrap();
    gateway.then(202, &[], &job(id, "pending", false));
    client.retry(id, &RetryRequest::new().priority(Priority::Low)).await.unwrap();
    gateway.then(404, &[], r#"{"code":"not_found"}"#);
    client.delete(id).await.unwrap();
    gateway.then(
        200,
        &[],
        r#"{"job_id":"x","items":[{"event":"submit","state":"pending","at":"2026-01-01T00:00:00Z",
        "attempt":0}],"attempts":[{"attempt":1,"worker":"w","outcome":"retry","error":{"code":"c","message":"m"}}]}"#,
    );
    let history = client.history(id).await.unwrap();
    assert_eq!((history.transitions[0].state.as_str(), history.attempts.len()), ("pending", 1));
    gateway.then(200, &[], r#"{"status":"ok","version":"1","instance":"g","more":1}"#);
    assert_eq!(client.status().await.unwrap().instance, "g");
    gateway.then(200, &[], r#"{"tenant":"acme","scopes":["read"]}"#);
    assert_eq!(client.whoami().await.unwrap().scopes, ["read"]);
    gateway.then(201, &[], r#"{"id":"k","name":"n","scopes":["read"],"key":"mst_k_s"}"#);
    let key = client.create_key(&NewKey::new("n").tenant("acme").scope("read")).await.unwrap();
    assert_eq!(key.key.as_deref(), Some("mst_k_s"));
    gateway.then(200, &[], r#"{"items":[{"id":"k"}]}"#);
    assert_eq!(client.keys().await.unwrap()[0].id, "k");
    gateway.then(204, &[], "");
    client.delete_key("k/1").await.unwrap();

    let paths: Vec<String> = gateway.asked().iter().map(|ask| format!("{} {}", ask.method, ask.uri)).collect();
    let at = |rest: &str| rest.replace("ID", &id.to_string());
    let expected = [
        at("POST /api/v1/jobs/ID/cancel"),
        at("POST /api/v1/jobs/ID/retry"),
        at("DELETE /api/v1/jobs/ID"),
        at("GET /api/v1/jobs/ID/history"),
        at("GET /api/v1/status"),
        at("GET /api/v1/whoami"),
        at("POST /api/v1/keys"),
        at("GET /api/v1/keys"),
        at("DELETE /api/v1/keys/k%2F1"),
    ];
    assert_eq!(paths, expected);
}

#[test]
fn a_client_without_a_usable_gateway_is_refused() {
    assert!(matches!(Client::new(["nats://x"], "k"), Err(ClientError::Invalid(_))));
    assert!(matches!(Client::new(Vec::<String>::new(), "k"), Err(ClientError::Invalid(_))));
    let client = Client::new(["http://a:1, http://b:2/muster/"], "k").unwrap();
    assert!(format!("{client:?}").contains("http://b:2/muster/api/v1"));
    assert!(!format!("{client:?}").contains("\"k\""), "the key is not shown");
}
