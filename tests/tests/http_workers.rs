//! Workers in any language, with nothing but HTTP: the five calls, on any gateway, as a program with an HTTP client
//! and no library makes them.

#[path = "http_workers/refusals.rs"]
mod refusals;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use muster_testkit::until;
use muster_tests::{Answer, Options, Probe, Stack};
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const NOBODY: &str = "0198c0de-0000-7000-8000-000000000000";

/// Asks once for up to `max` jobs.
async fn lease(gateway: &Probe, worker: &str, request: &str, topic: &str, max: usize, wait_ms: u64) -> Vec<Value> {
    let body = json!({
        "worker_id": worker, "request_id": request, "topics": [topic], "max": max, "wait_ms": wait_ms,
    });
    let answer = gateway.post("/worker/lease", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.field("drain"), false);
    answer.body["items"].as_array().expect("items").clone()
}

/// Asks for one job, waiting for it.
async fn lease_one(gateway: &Probe, worker: &str, request: &str, topic: &str) -> Value {
    let mut items = lease(gateway, worker, request, topic, 1, 30_000).await;
    assert_eq!(items.len(), 1, "{worker} {request} on {topic}");
    items.remove(0)
}

/// A body with one item about a leased job, with one more field.
fn about(held: &Value, name: &str, value: Value) -> Value {
    let mut item = json!({"job_id": held["job_id"], "fence": held["fence"]});
    item[name] = value;
    json!({"worker_id": "w1", "items": [item]})
}

/// Status and reason of the only item.
fn stands(answer: &Answer) -> (String, Option<String>) {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let item = &answer.body["items"][0];
    (item["status"].as_str().expect("a status").to_owned(), item["reason"].as_str().map(str::to_owned))
}

fn ok() -> (String, Option<String>) {
    ("ok".to_owned(), None)
}

fn stale(reason: &str) -> (String, Option<String>) {
    ("stale".to_owned(), Some(reason.to_owned()))
}

fn keys(items: &[Value]) -> BTreeSet<(String, u64)> {
    items.iter().map(|i| (i["job_id"].as_str().unwrap().to_owned(), i["fence"].as_u64().unwrap())).collect()
}

#[tokio::test]
async fn a_job_is_leased_on_one_gateway_and_completed_on_the_other() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let payload = r#"{"z":1.50, "big":123456789012345678901234567890,"a":"\u00e9"}"#;
    let body = format!(
        r#"{{"topic":"mail","payload":{payload},"labels":{{"k":"v"}},"timeout_ms":60000,"expire_in_ms":600000,"retry":{{"max_attempts":3}}}}"#
    );
    let parent = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let made = two.send(Method::POST, "/api/v1/jobs", &[parent], Some(body.into())).await.unwrap();
    let id = made.id();

    let asked = json!({"worker_id": "w1", "request_id": "r1", "topics": ["none", "mail"], "wait_ms": 30_000, "lease_ms": 20_000});
    let answer = one.post("/worker/lease", &asked).await;
    assert!(answer.text.contains(&format!(r#""payload":{payload}"#)), "to the byte: {}", answer.text);
    let held = &answer.body["items"][0];
    assert_eq!((held["job_id"].as_str(), held["topic"].as_str()), (Some(id.as_str()), Some("mail")));
    assert_eq!((held["attempt"].as_u64(), held["max_attempts"].as_u64()), (Some(1), Some(3)));
    assert_eq!((held["timeout_ms"].as_u64(), &held["labels"]), (Some(60_000), &json!({"k": "v"})));
    assert!(held["deadline"].as_str().is_some_and(|t| t.ends_with('Z')), "{held}");
    assert!(held["traceparent"].as_str().is_some_and(|t| t.contains("4bf92f3577b34da6a3ce929d0e0e4736")));
    assert!((1..=20_000).contains(&held["lease_ms"].as_u64().unwrap()), "what remains: {held}");
    assert!(held["fence"].as_u64().unwrap() < 1 << 53);
    let job = two.job(&id).await;
    assert_eq!((job["state"].as_str(), job["worker"].as_str()), (Some("running"), Some("w1")));
    assert!(job["lease_until"].is_string());

    // A wrong fence and an unknown job are refused, and a batch answers item by item.
    let fence = held["fence"].as_u64().unwrap();
    let result = r#"{"n":1.0,"big":98765432109876543210}"#;
    let body = format!(
        r#"{{"items":[{{"job_id":"{id}","fence":{},"result":1}},{{"job_id":"{NOBODY}","fence":1}},{{"job_id":"{id}","fence":{fence},"result":{result}}}]}}"#,
        fence - 1
    );
    let done = two.send(Method::POST, "/api/v1/worker/complete", &[], Some(body.into())).await.unwrap();
    let words: Vec<(&str, Option<&str>)> = done.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["status"].as_str().unwrap(), item["reason"].as_str()))
        .collect();
    assert_eq!(words, [("stale", Some("lost")), ("invalid", Some("unknown")), ("ok", None)], "{}", done.text);
    let job = one.get(&format!("/jobs/{id}")).await;
    assert_eq!(job.field("state"), "succeeded");
    assert!(job.text.contains(&format!(r#""result":{result}"#)), "to the byte: {}", job.text);

    // A repeat is accepted on either gateway; a late call is not.
    for gateway in [&one, &two] {
        assert_eq!(stands(&gateway.post("/worker/complete", &about(held, "result", json!(7))).await), ok());
    }
    assert!(one.get(&format!("/jobs/{id}")).await.text.contains(result), "the first one counts");
    // The worker holds nothing any more.
    let late = one.post("/worker/extend", &about(held, "progress", json!({"percent": 5}))).await;
    assert_eq!((stands(&late), late.body["items"][0].get("lease_ms")), (stale("lost"), None), "{}", late.text);
    let job = two.job(&id).await;
    assert_eq!((job["state"].as_str(), job.get("progress"), job.get("lease_until")), (Some("succeeded"), None, None));
    let story = one.history(&id).await;
    assert_eq!(
        (story["attempts"][0]["worker"].as_str(), story["attempts"].as_array().map(Vec::len)),
        (Some("w1"), Some(1))
    );
}

#[tokio::test]
async fn failures_are_retried_as_their_worker_asks() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let slow = json!({"max_attempts": 3, "backoff": {"initial_ms": 3_600_000}});
    let id = one.submit(json!({"topic": "flaky", "retry": slow})).await;

    let first = lease_one(&one, "w1", "r1", "flaky").await;
    let error = json!({"code": "busy", "message": "€".repeat(5000), "details": {"n": 12345678901234567890_u64}, "retry_in_ms": 300});
    let begun = Instant::now();
    assert_eq!(stands(&two.post("/worker/fail", &about(&first, "error", error.clone())).await), ok());
    assert_eq!(stands(&one.post("/worker/fail", &about(&first, "error", error)).await), ok(), "a repeat");
    let job = one.job(&id).await;
    assert_eq!(job["error"]["code"], "busy");
    let said = job["error"]["message"].as_str().unwrap();
    assert!(said.len() <= 4000 && said.chars().all(|c| c == '€'), "cut between two characters: {} bytes", said.len());
    let second = lease_one(&two, "w2", "r2", "flaky").await;
    assert!(begun.elapsed() >= Duration::from_millis(300), "not before the worker's own wish");
    assert_eq!((second["attempt"].as_u64(), second["job_id"].as_str()), (Some(2), Some(id.as_str())));
    assert!(second["fence"].as_u64() > first["fence"].as_u64());
    assert_eq!(stands(&one.post("/worker/complete", &about(&first, "result", json!(1))).await), stale("lost"));

    // Without a code the error is `handler_error`, with the job's own back-off.
    assert_eq!(stands(&two.post("/worker/fail", &about(&second, "error", json!({}))).await), ok());
    let job = one.job(&id).await;
    assert_eq!((job["state"].as_str(), job["error"]["code"].as_str()), (Some("retrying"), Some("handler_error")));
    assert_eq!(job["error"]["retryable"], true);
    assert!(job["next_retry_at"].is_string());

    let id = one.submit(json!({"topic": "fatal"})).await;
    let held = lease_one(&two, "w1", "r3", "fatal").await;
    let error = json!({"code": "no_such_user", "message": "gone", "details": [1, "x"], "retryable": false});
    assert_eq!(stands(&one.post("/worker/fail", &about(&held, "error", error)).await), ok());
    let job = two.job(&id).await;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("failed"), Some(1)));
    assert_eq!(
        job["error"],
        json!({"code": "no_such_user", "message": "gone", "details": [1, "x"], "retryable": false})
    );

    let id = one.submit(json!({"topic": "last", "retry": {"max_attempts": 1}})).await;
    let held = lease_one(&one, "w1", "r4", "last").await;
    let fail = about(&held, "error", json!({"message": "m"}));
    assert_eq!(stands(&two.post("/worker/fail", &fail).await), ok());
    assert_eq!(one.job(&id).await["state"], "failed");
    // A repeated report is accepted; any other is refused, and the worker is informed.
    assert_eq!(stands(&one.post("/worker/fail", &fail).await), ok());
    assert_eq!(stands(&one.post("/worker/complete", &about(&held, "result", json!(1))).await), stale("lost"));
    assert_eq!(stands(&two.post("/worker/extend", &about(&held, "progress", json!({}))).await), stale("lost"));
    assert_eq!(one.job(&id).await["state"], "failed");
}

#[tokio::test]
async fn a_released_job_keeps_its_attempt() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let id = one.submit(json!({"topic": "back", "retry": {"max_attempts": 1}})).await;
    let first = lease_one(&one, "w1", "r1", "back").await;
    assert_eq!(stands(&two.post("/worker/release", &about(&first, "delay_ms", json!(0))).await), ok());
    assert_eq!(stands(&one.post("/worker/release", &about(&first, "delay_ms", json!(0))).await), ok(), "again");
    assert_eq!(stands(&one.post("/worker/complete", &about(&first, "result", json!(1))).await), stale("lost"));
    let second = lease_one(&two, "w2", "r1", "back").await;
    assert_eq!((second["attempt"].as_u64(), second["job_id"].as_str()), (Some(1), Some(id.as_str())));
    assert!(second["fence"].as_u64() > first["fence"].as_u64(), "a new fence all the same");
    assert_eq!(stands(&one.post("/worker/complete", &about(&first, "result", json!(1))).await), stale("lost"));
    assert_eq!(lease(&one, "w1", "r1", "back", 1, 0).await, Vec::<Value>::new(), "the first request's job is gone");

    let begun = Instant::now();
    assert_eq!(stands(&one.post("/worker/release", &about(&second, "delay_ms", json!(1500))).await), ok());
    let third = lease_one(&one, "w1", "r2", "back").await;
    assert!(begun.elapsed() >= Duration::from_millis(1500), "not before the delay is over");
    assert_eq!(third["attempt"], 1);
    // Two reports in one call: the first one counts.
    let mut twice = about(&third, "result", json!("at last"));
    let mut other = twice["items"][0].clone();
    other["result"] = json!("another");
    twice["items"].as_array_mut().unwrap().push(other);
    let said = two.post("/worker/complete", &twice).await.body;
    assert!(said["items"].as_array().unwrap().iter().all(|item| item["status"] == "ok"), "{said}");
    let job = one.job(&id).await;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)));
    assert_eq!(job["result"], "at last");
    assert_eq!(stands(&one.post("/worker/extend", &about(&third, "progress", json!({}))).await), stale("lost"));
    let error = json!({"message": "no"});
    assert_eq!(stands(&one.post("/worker/fail", &about(&third, "error", error)).await), stale("lost"));
    assert_eq!(stands(&one.post("/worker/complete", &about(&third, "result", json!(2))).await), ok(), "again");
}

#[tokio::test]
async fn an_extension_keeps_the_job_shows_progress_and_hears_of_a_cancel() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let id = one.submit(json!({"topic": "long"})).await;
    let stays = one.submit(json!({"topic": "long"})).await;
    let held = [lease_one(&one, "w1", "r1", "long").await, lease_one(&two, "w1", "r2", "long").await];
    let of = |id: &str| held.iter().find(|h| h["job_id"] == id).expect("held");

    let progress = json!({"percent": 12.5, "message": "half of a quarter", "data": {"n": 12345678901234567890_u64}});
    let mut body = about(of(&id), "progress", progress.clone());
    body["lease_ms"] = json!(60_000);
    let answer = two.post("/worker/extend", &body).await;
    assert_eq!(stands(&answer), ok());
    assert!((30_001..=60_000).contains(&answer.body["items"][0]["lease_ms"].as_u64().unwrap()), "{}", answer.text);
    assert_eq!(one.job(&id).await["progress"], progress);
    let mut wrong = about(of(&id), "progress", json!({"percent": 99}));
    wrong["items"][0]["fence"] = json!(of(&id)["fence"].as_u64().unwrap() + 1);
    assert_eq!(stands(&one.post("/worker/extend", &wrong).await), stale("lost"));
    assert_eq!(one.job(&id).await["progress"], progress, "nothing is written under another fence");

    // With nothing to report the call waits; a cancel on the other gateway ends the wait at once.
    let items: Vec<Value> = held.iter().map(|h| json!({"job_id": h["job_id"], "fence": h["fence"]})).collect();
    let body = |wait_ms: u64| json!({"worker_id": "w1", "wait_ms": wait_ms, "items": items});
    let begun = Instant::now();
    let answer = one.post("/worker/extend", &body(700)).await;
    assert!(begun.elapsed() >= Duration::from_millis(700));
    assert!(answer.body["items"].as_array().unwrap().iter().all(|item| item["status"] == "ok"), "{}", answer.text);
    let waits = async {
        let answer = one.post("/worker/extend", &body(30_000)).await;
        (answer, Instant::now())
    };
    let cancel = async {
        // By then the call above is in progress: this one came later and has been answered.
        let later = one.post("/worker/extend", &body(300)).await;
        assert_eq!(later.status, 200);
        let cancelled = two.post(&format!("/jobs/{id}/cancel"), &json!({"reason": "enough"})).await;
        assert_eq!((cancelled.status.as_u16(), cancelled.field("state")), (200, &json!("cancelled")));
        Instant::now()
    };
    let ((answer, at), cancelled) = tokio::join!(waits, cancel);
    assert!(at.saturating_duration_since(cancelled) < Duration::from_secs(15), "told at once, not when its time is up");
    for item in answer.body["items"].as_array().unwrap() {
        let expected = if item["job_id"] == id { ("stale", Some("cancelled")) } else { ("ok", None) };
        assert_eq!((item["status"].as_str().unwrap(), item["reason"].as_str()), expected, "{}", answer.text);
    }
    assert_eq!(stands(&two.post("/worker/extend", &about(of(&id), "progress", json!({}))).await), stale("cancelled"));
    assert_eq!(stands(&two.post("/worker/complete", &about(of(&id), "result", json!(1))).await), stale("cancelled"));
    assert_eq!(one.job(&id).await["state"], "cancelled");
    assert_eq!(stands(&two.post("/worker/complete", &about(of(&stays), "result", json!(1))).await), ok());
}

#[tokio::test]
async fn the_same_request_gets_the_same_jobs_again_on_either_gateway() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    one.submit_many(6, &json!({"topic": "again", "payload": {"n": 1}})).await;
    for id in one.get("/jobs").await.body["items"].as_array().unwrap() {
        one.reaches(id["id"].as_str().unwrap(), "dispatched", SOON).await;
    }
    let first = lease(&one, "w1", "r1", "again", 3, 30_000).await;
    assert!(!first.is_empty());
    for gateway in [&two, &one] {
        let again = lease(gateway, "w1", "r1", "again", 3, 0).await;
        assert_eq!(keys(&again), keys(&first), "the same jobs under the same fences");
        assert!(again.iter().all(|item| item["attempt"] == 1 && item["payload"] == json!({"n": 1})));
    }
    // Several at once on both gateways: the first one decides for all.
    let at_once =
        join_all((0..6).map(|n| lease(if n % 2 == 0 { &one } else { &two }, "w1", "r2", "again", 2, 10_000))).await;
    let second = keys(&at_once[0]);
    assert!(!second.is_empty() && second.is_disjoint(&keys(&first)));
    assert!(at_once.iter().all(|items| keys(items) == second), "{at_once:?}");
    // The same request id of another worker is another request.
    let third = keys(&lease(&two, "w2", "r1", "again", 6, 5_000).await);
    assert!(third.is_disjoint(&keys(&first)) && third.is_disjoint(&second));

    for item in &first {
        assert_eq!(stands(&two.post("/worker/complete", &about(item, "result", json!(1))).await), ok());
    }
    assert_eq!(lease(&one, "w1", "r1", "again", 3, 0).await, Vec::<Value>::new(), "all of it is done");
}

#[tokio::test]
async fn a_silent_workers_job_goes_to_another_and_its_late_word_is_refused() {
    let stack = Stack::with(Options::two().env("MUSTER_OUTAGE_WAIT", "2s")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let retry = json!({"max_attempts": 3, "backoff": {"initial_ms": 10}});
    let id = one.submit(json!({"topic": "quiet", "retry": retry})).await;
    let asked =
        json!({"worker_id": "w1", "request_id": "r1", "topics": ["quiet"], "wait_ms": 30_000, "lease_ms": 5_000});
    // Measure before the request: the lease may begin long before the answer arrives.
    let begun = Instant::now();
    let first = one.post("/worker/lease", &asked).await.body["items"][0].clone();
    let second = until(SOON, "another worker to get it", async || {
        let request = format!("at-{}", begun.elapsed().as_millis());
        lease(&two, "w2", &request, "quiet", 1, 20_000).await.pop()
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_secs(5), "not while the lease lasts");
    assert_eq!((second["attempt"].as_u64(), second["job_id"].as_str()), (Some(2), Some(id.as_str())));
    for (path, name, value) in [
        ("/worker/complete", "result", json!("late")),
        ("/worker/fail", "error", json!({"retryable": false})),
        ("/worker/release", "delay_ms", json!(0)),
        ("/worker/extend", "progress", json!({"percent": 50})),
    ] {
        assert_eq!(stands(&one.post(path, &about(&first, name, value)).await), stale("lost"), "{path}");
    }
    assert_eq!(lease(&one, "w1", "r1", "quiet", 1, 0).await, Vec::<Value>::new());
    assert_eq!(stands(&one.post("/worker/complete", &about(&second, "result", json!("in time"))).await), ok());
    let job = two.job(&id).await;
    assert_eq!((job["result"].as_str(), job["attempt"].as_u64()), (Some("in time"), Some(2)));
    assert!(job.get("progress").is_none_or(|p| p["percent"] != json!(50)));
    assert!(stack.metric("scheduler", "muster_stale_writes_total").await >= 4.0, "counted");
}

#[tokio::test]
async fn a_waiting_call_is_answered_when_a_job_comes_and_who_leaves_loses_nothing() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let arrives = async {
        // The other call is in progress: this shorter one came later and has ended.
        assert_eq!(lease(&two, "w0", "r0", "elsewhere", 1, 300).await, Vec::<Value>::new());
        (two.submit(json!({"topic": "comes"})).await, Instant::now())
    };
    let waits = async {
        let held = lease_one(&one, "w1", "r1", "comes").await;
        (held, Instant::now())
    };
    let ((held, at), (id, sent)) = tokio::join!(waits, arrives);
    assert_eq!(held["job_id"], json!(id));
    assert!(at.saturating_duration_since(sent) < Duration::from_secs(15), "when it comes, not when the time is up");

    // Five clients leave before a job comes: the one that stays gets it, at its first attempt.
    let leaver = |n: usize| lease_one(if n.is_multiple_of(2) { &one } else { &two }, "leaver", "left", "stays");
    let left = join_all((0..5).map(|n| tokio::time::timeout(Duration::from_millis(300), leaver(n)))).await;
    assert!(left.iter().all(Result::is_err));
    let id = one.submit(json!({"topic": "stays", "retry": {"max_attempts": 1}})).await;
    let sent = Instant::now();
    let held = lease_one(&two, "stayer", "r1", "stays").await;
    assert_eq!((held["job_id"].as_str(), held["attempt"].as_u64()), (Some(id.as_str()), Some(1)));
    assert!(sent.elapsed() < Duration::from_secs(20), "soon, not after a time-out: {:?}", sent.elapsed());

    // Some clients leave just as jobs come. The jobs that they were given are theirs when they ask again; the others
    // go to other workers; nothing is started twice.
    let jobs: BTreeSet<String> =
        one.submit_many(12, &json!({"topic": "rush", "retry": {"max_attempts": 1}})).await.into_iter().collect();
    let hasty = |n: u64| {
        let (gateway, request) = (if n.is_multiple_of(2) { &one } else { &two }, format!("r{n}"));
        async move {
            let asking = lease(gateway, "hasty", &request, "rush", 1, 5_000);
            let _ = tokio::time::timeout(Duration::from_millis(3 * n), asking).await;
            lease(gateway, "hasty", &request, "rush", 1, 5_000).await
        }
    };
    let mut got: Vec<Value> = join_all((0..12).map(hasty)).await.concat();
    let mut more = 0;
    while got.len() < jobs.len() {
        more += 1;
        got.extend(lease(&one, "patient", &format!("p{more}"), "rush", 12, 20_000).await);
        assert!(more <= 12, "{} of {} came", got.len(), jobs.len());
    }
    let ids: BTreeSet<String> = keys(&got).into_iter().map(|(id, _)| id).collect();
    assert_eq!((got.len(), &ids), (jobs.len(), &jobs), "each once");
    assert!(got.iter().all(|held| held["attempt"] == 1));
}

#[tokio::test]
async fn a_call_takes_a_hundred_at_most_and_reports_as_many() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let jobs: BTreeSet<String> = gateway.submit_many(130, &json!({"topic": "many"})).await.into_iter().collect();
    let (mut held, mut calls) = (Vec::new(), 0);
    while held.len() < jobs.len() {
        calls += 1;
        let items = lease(&gateway, "w1", &format!("r{calls}"), "many", 100, 20_000).await;
        assert!(!items.is_empty() && items.len() <= 100);
        held.extend(items);
    }
    assert_eq!(keys(&held).into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>(), jobs);
    let item = |h: &Value| json!({"job_id": h["job_id"], "fence": h["fence"], "result": 1});
    let items: Vec<Value> = held.iter().map(item).collect();
    let refused = gateway.post("/worker/complete", &json!({"items": &items[..101]})).await;
    assert_eq!((refused.status.as_u16(), refused.body["errors"][0]["pointer"].as_str()), (422, Some("/items")));
    for part in items.chunks(100) {
        let done = gateway.post("/worker/complete", &json!({"items": part})).await;
        assert_eq!(done.status, 200, "{}", done.text);
        let words = done.body["items"].as_array().unwrap();
        assert!(words.len() == part.len() && words.iter().all(|w| w["status"] == "ok"), "{}", done.text);
        let order: Vec<&Value> = words.iter().map(|w| &w["job_id"]).collect();
        assert_eq!(order, part.iter().map(|p| &p["job_id"]).collect::<Vec<_>>(), "in order");
    }
    let left = gateway.get("/jobs?topic=many&state=running,dispatched,queued,pending&limit=500").await;
    assert_eq!(left.body["items"], json!([]));
}
