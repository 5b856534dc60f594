//! Tests of starts of runs. No workflow service runs here, so a run stays where its start has left it.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use muster_store::{RedisSettings, RunSpan, Store};
use serde_json::{Value, json};

use crate::{
    definitions::{of_topic, put},
    gate::{Answer, Gate, fresh_tenant},
};

const RUNS: &str = "/api/v1/workflows/order/runs";

/// A workflow with an input that has a schema.
fn order() -> Value {
    json!({
        "input": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
        "steps": [{"id": "a", "job": {"topic": "pay", "payload": "${{ input.n }}"}}],
    })
}

/// A gateway with this workflow.
async fn with(definition: &Value) -> Gate {
    let gate = Gate::start(&[]).await;
    let stored = put(&gate, "order", definition).await;
    assert_eq!(stored.status, 201, "{}", stored.text);
    gate
}

/// How many runs the tenant has.
async fn count_runs(gate: &Gate) -> usize {
    let store = Store::connect(RedisSettings::new(muster_testkit::redis().await.url())).await.unwrap();
    let tenant = muster_domain::Tenant::parse(gate.tenant()).unwrap();
    let page = store.list_runs(&tenant, None, 500, RunSpan::default(), &[b"about"], |_, _| true).await.unwrap();
    page.items.len()
}

fn replayed(answer: &Answer) -> bool {
    answer.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
}

#[tokio::test]
async fn a_started_run_is_stored_with_its_first_steps_and_the_version_that_it_keeps() {
    let gate = with(&order()).await;
    let body = json!({"input": {"n": 7, "big": 12345678901234567890_u64}, "labels": {"shop": "north"}});
    let started = gate.post(RUNS, &body).await;
    assert_eq!(started.status, 202, "{}", started.text);
    let id = started.json["id"].as_str().unwrap();
    assert_eq!(started.headers["location"], format!("/api/v1/runs/{id}").as_str());
    assert!(started.json.get("input").is_none(), "what its client has just sent");
    let path = format!("/api/v1/runs/{id}");
    let run = gate.get(&path).await;
    assert_eq!(run.status, 200, "{}", run.text);
    let expected = json!({
        "workflow": "order", "version": 1, "tenant": gate.tenant(), "state": "running", "done": false,
        "labels": {"shop": "north"}, "principal": "bootstrap", "input": body["input"],
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(run.json[name], *value, "{name}");
    }
    assert!(run.text.contains("12345678901234567890"), "{}", run.text);
    let step = &run.json["steps"][0];
    assert_eq!((&step["place"], &step["kind"], &step["state"]), (&json!("a"), &json!("job"), &json!("running")));

    // A new version changes no run; a start may choose an older one.
    put(&gate, "order", &of_topic("other")).await;
    assert_eq!(gate.get(&path).await.json["version"], 1);
    assert_eq!(gate.post(RUNS, &json!({})).await.json["version"], 2);
    let old = gate.post(RUNS, &json!({"version": 1, "input": {"n": 1}})).await;
    assert_eq!(old.json["version"], 1, "{}", old.text);
    let none = gate.post(RUNS, &json!({"version": 3})).await;
    assert_eq!((none.status.as_u16(), none.pointers()), (422, vec!["/version"]), "{}", none.text);
    assert_eq!(count_runs(&gate).await, 3);
}

#[tokio::test]
async fn one_key_is_one_run_whichever_gateway_is_asked() {
    let gate = with(&order()).await;
    let other = Gate::start(&[]).await.for_tenant(gate.tenant());
    let body = json!({"input": {"n": 1}});
    let posts = (0..20).map(|n| if n % 2 == 0 { &gate } else { &other }).map(|gate| gate.post_keyed(RUNS, "k", &body));
    let answers = join_all(posts).await;
    assert!(answers.iter().all(|answer| answer.status == 202), "{answers:?}");
    let ids: BTreeSet<&str> = answers.iter().map(|answer| answer.json["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(answers.iter().filter(|answer| !replayed(answer)).count(), 1, "all but one say that they found it");
    assert_eq!(count_runs(&gate).await, 1);

    for differs in [json!({"input": {"n": 2}}), json!({"input": {"n": 1}, "labels": {"a": "b"}})] {
        let refused = gate.post_keyed(RUNS, "k", &differs).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (422, "idempotency_mismatch"), "{}", refused.text);
    }
    put(&gate, "letter", &order()).await;
    let elsewhere = gate.post_keyed("/api/v1/workflows/letter/runs", "k", &body).await;
    assert_eq!(elsewhere.code(), "idempotency_mismatch", "the key was used for another workflow");

    // A repeat finds its run, whatever became of the workflow, and is shown the run as it is.
    assert_eq!(gate.delete("/api/v1/workflows/order").await.status, 204);
    let repeat = gate.post_keyed(RUNS, "k", &body).await;
    assert_eq!((repeat.status.as_u16(), repeat.json["id"].as_str()), (202, ids.first().copied()), "{}", repeat.text);
    assert!(replayed(&repeat) && repeat.json["input"] == body["input"], "{}", repeat.text);
    assert_eq!(gate.post_keyed(RUNS, "new", &body).await.code(), "not_found");
    assert_eq!(gate.post(RUNS, &json!({"version": 1, "input": {"n": 1}})).await.code(), "not_found");
    assert_eq!(count_runs(&gate).await, 1);
}

#[tokio::test]
async fn a_refused_start_names_every_fault_and_stores_nothing() {
    let gate = with(&order()).await;
    let refused = async |body: Value| {
        let answer = gate.post(RUNS, &body).await;
        assert_eq!(answer.status, 422, "{body}: {}", answer.text);
        answer.pointers().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(refused(json!({"input": {"n": "secret"}})).await, ["/input/n"]);
    assert_eq!(refused(json!({"input": {}})).await, ["/input"]);
    assert_eq!(refused(json!({})).await, ["/input"], "none is null");
    assert_eq!(refused(json!({"inptu": 1, "version": 0, "labels": [1]})).await, ["/labels", "/version", "/inptu"]);
    let wrong = gate.post(RUNS, &json!({"input": {"n": "secret"}})).await;
    assert!(!wrong.text.contains("secret"), "{}", wrong.text);
    let large = gate.post(RUNS, &json!({"input": {"n": 1, "x": "x".repeat(600 * 1024)}})).await;
    assert_eq!((large.status.as_u16(), large.code()), (413, "payload_too_large"));
    assert_eq!(gate.post("/api/v1/workflows/nobody/runs", &json!({})).await.code(), "not_found");
    assert_eq!(gate.post(&format!("{RUNS}?wait=1"), &json!({"input": {"n": 1}})).await.pointers(), ["/query/wait"]);
    let elsewhere = gate.for_tenant(&fresh_tenant());
    assert_eq!(elsewhere.post(RUNS, &json!({"input": {"n": 1}})).await.code(), "not_found");
    assert_eq!(count_runs(&gate).await, 0);
}

#[tokio::test]
async fn a_wait_ends_with_the_run_or_with_its_time() {
    let gate = with(&json!({"steps": [{"id": "a", "wait_signal": {"name": "go"}}]})).await;
    let began = Instant::now();
    let started = gate.post(&format!("{RUNS}?wait_ms=300"), &json!({"input": [1]})).await;
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!((started.status.as_u16(), &started.json["done"]), (202, &json!(false)), "{}", started.text);
    assert_eq!(started.json["input"], json!([1]), "whoever waits sees the run as it is");
    let path = format!("/api/v1/runs/{}", started.json["id"].as_str().unwrap());
    let waited = gate.get(&format!("{path}?wait_ms=100")).await;
    assert_eq!((waited.status.as_u16(), &waited.json["state"]), (200, &json!("running")));
    assert_eq!(gate.get(&format!("{path}?wait_ms=30001")).await.pointers(), ["/query/wait_ms"]);

    // A run that needs nobody is over when it is stored.
    put(&gate, "order", &json!({"steps": [{"id": "a", "set": 6}], "output": "${{ steps.a.result + 1 }}"})).await;
    let done = gate.post(&format!("{RUNS}?wait_ms=30000"), &json!({})).await;
    assert_eq!((done.status.as_u16(), &done.json["state"]), (200, &json!("succeeded")), "{}", done.text);
    assert_eq!((&done.json["output"], &done.json["steps"][0]["result"]), (&json!(7), &json!(6)));
    assert_eq!(gate.post(RUNS, &json!({})).await.status, 202, "without a wait");
}

#[tokio::test]
async fn a_start_with_a_signal_is_one_run_and_one_signal_however_often_it_is_sent() {
    let line = json!({"name": "line", "schema": {"type": "integer"}});
    let definition = json!({
        "steps": [{"id": "a", "wait_signal": line}, {"id": "b", "needs": ["a"], "wait_signal": line}],
        "output": ["${{ steps.a.result }}", "${{ steps.b.result }}"],
    });
    let gate = with(&definition).await;
    let path = format!("{RUNS}?signal=line");
    let keyless = gate.post(&path, &json!({"signal": 1})).await;
    assert_eq!((keyless.status.as_u16(), keyless.pointers()), (422, vec!["/header/Idempotency-Key"]));
    assert_eq!(gate.post_keyed(RUNS, "k", &json!({"signal": 1})).await.pointers(), ["/signal"]);
    assert_eq!(gate.post_keyed(&path, "k", &json!({"signal": "x"})).await.pointers(), ["/signal"]);
    assert_eq!(gate.post_keyed(&format!("{RUNS}?signal=a%20b"), "k", &json!({})).await.pointers(), ["/query/signal"]);
    assert_eq!(count_runs(&gate).await, 0);

    let first = gate.post_keyed(&path, "k", &json!({"signal": 1})).await;
    assert_eq!((first.status.as_u16(), &first.json["state"]), (202, &json!("running")), "{}", first.text);
    let state = |answer: &Answer| answer.json["steps"].as_array().unwrap().iter().map(|s| s["state"].clone()).collect();
    let states: Vec<Value> = state(&first);
    assert_eq!(states, ["succeeded", "running"]);
    let again = gate.post_keyed(&path, "k", &json!({"signal": 1})).await;
    assert!(replayed(&again) && again.json["id"] == first.json["id"], "{}", again.text);
    let states: Vec<Value> = state(&again);
    assert_eq!(states, ["succeeded", "running"], "it is the same signal");

    let ends = format!("{path}&wait_ms=30000");
    let second = gate.post_keyed(&ends, "k", &json!({"signal": 2})).await;
    assert_eq!((second.status.as_u16(), &second.json["output"]), (200, &json!([1, 2])), "{}", second.text);
    assert_eq!(second.json["id"], first.json["id"], "another signal is for the same run");
    let repeat = gate.post_keyed(&ends, "k", &json!({"signal": 2})).await;
    assert_eq!((repeat.status.as_u16(), &repeat.json["output"]), (200, &json!([1, 2])), "{}", repeat.text);
    let late = gate.post_keyed(&path, "k", &json!({"signal": 3})).await;
    assert_eq!((late.status.as_u16(), late.code()), (409, "run_done"), "{}", late.text);
    assert_eq!(count_runs(&gate).await, 1);
}

#[tokio::test]
async fn a_key_starts_and_sees_what_its_scopes_and_topics_allow() {
    let gate = with(&order()).await;
    let body = json!({"input": {"n": 1}});
    let narrow = gate.with_key(Some(&gate.make_key(&["submit", "read"], &["mail.*"]).await));
    let refused = narrow.post(RUNS, &body).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (403, "missing_scope"), "{}", refused.text);
    let reader = gate.with_key(Some(&gate.make_key(&["read"], &[]).await));
    assert_eq!(reader.post(RUNS, &body).await.status, 403);
    assert_eq!(count_runs(&gate).await, 0);

    let blind = gate.with_key(Some(&gate.make_key(&["submit"], &["pay"]).await));
    let started = blind.post_keyed(&format!("{RUNS}?wait_ms=10"), "k", &body).await;
    assert_eq!(started.status, 202, "{}", started.text);
    assert!(started.json.get("input").is_none(), "{}", started.text);
    assert_ne!(started.json["principal"], "bootstrap", "the run has the rights of the key that started it");
    assert_eq!(narrow.post_keyed(RUNS, "k", &body).await.status, 403, "a repeat shows no run of other topics");
    let path = format!("/api/v1/runs/{}", started.json["id"].as_str().unwrap());
    let read = reader.get(&path).await;
    assert!(read.status == 200 && read.json.get("input").is_none(), "{}", read.text);
    assert_eq!(read.json["steps"][0]["id"], "a");
    for other in [&narrow, &gate.for_tenant(&fresh_tenant())] {
        assert_eq!(other.get(&path).await.code(), "not_found");
    }
    for none in ["0198c0de-0000-7000-8000-000000000000", "x"] {
        assert_eq!(gate.get(&format!("/api/v1/runs/{none}")).await.code(), "not_found");
    }
}

#[tokio::test]
async fn starts_count_against_the_rate_of_submits_and_repeats_do_not() {
    let gate = Gate::start(&[("API_RATE_LIMIT_RPS", "0.01"), ("API_RATE_LIMIT_BURST", "2")]).await;
    put(&gate, "order", &of_topic("pay")).await;
    let body = json!({});
    assert_eq!(gate.post_keyed(RUNS, "one", &body).await.status, 202);
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "pay"})).await.status, 202);
    let refused = gate.post_keyed(RUNS, "two", &body).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (429, "rate_limited"), "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    for _ in 0..3 {
        assert!(replayed(&gate.post_keyed(RUNS, "one", &body).await));
    }
    assert_eq!(count_runs(&gate).await, 1);
}

#[tokio::test]
async fn a_full_workflow_that_rejects_stores_nothing() {
    let definition = json!({
        "concurrency": {"key": "string(input.n)", "max": 1, "when_full": "reject"},
        "steps": [{"id": "a", "wait_signal": {"name": "go"}}],
    });
    let gate = with(&definition).await;
    let start = async |input: Value| gate.post(RUNS, &json!({"input": input})).await;
    assert_eq!(start(json!({"n": 1})).await.status, 202);
    let full = start(json!({"n": 1})).await;
    assert_eq!((full.status.as_u16(), full.code()), (409, "concurrency_full"), "{}", full.text);
    assert_eq!(start(json!({"n": 2})).await.status, 202, "another key");
    let none = start(json!({})).await;
    assert_eq!((none.status.as_u16(), none.pointers()), (422, vec!["/input"]), "{}", none.text);
    assert_eq!(count_runs(&gate).await, 2);
}
