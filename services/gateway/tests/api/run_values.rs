//! Tests of values that a run cannot hold: they are refused where they come in, and the run stays readable.

use reqwest::Method;
use serde_json::{Value, json};

use crate::gate::{Answer, Gate};

/// Lists in lists, so many levels deep.
fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// Values that no run holds: too deep, or with a field whose name the parser of JSON reads as something else.
fn unfit() -> Vec<String> {
    let hidden = format!(r#"{{"x":{{"$serde_json::private::RawValue":"{}"}}}}"#, nested(127));
    let late = r#"{"a":1,"$serde_json::private::Number":"x"}"#.to_owned();
    vec![nested(101), nested(127), nested(128), nested(10_000), hidden, late]
}

async fn send(gate: &Gate, path: &str, body: &str) -> Answer {
    let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
    gate.send(Method::POST, path, &headers, Some(body.to_owned().into())).await
}

async fn refused(gate: &Gate, path: &str, body: &str, pointer: &str) {
    let answer = send(gate, path, body).await;
    let shown = &body[..body.len().min(200)];
    assert_eq!((answer.status.as_u16(), answer.code()), (422, "invalid_request"), "{path} {shown}: {}", answer.text);
    assert_eq!(answer.pointers(), [pointer], "{path} {shown}: {}", answer.text);
}

/// A run of a workflow that waits for the signal `go`, and then for a job.
async fn waiting(gate: &Gate, body: &str) -> String {
    let steps = json!([
        {"id": "a", "wait_signal": {"name": "go"}},
        {"id": "b", "needs": ["a"], "job": {"topic": "t", "payload": "${{ input }}"}},
    ]);
    let definition = json!({"steps": steps, "output": "${{ steps.b.result }}"}).to_string();
    let headers = [("content-type", "application/json")];
    let put = gate.send(Method::PUT, "/api/v1/workflows/deep", &headers, Some(definition.into())).await;
    assert!(put.status.is_success(), "{}", put.text);
    let started = send(gate, "/api/v1/workflows/deep/runs", body).await;
    assert_eq!(started.status, 202, "{}", started.text);
    format!("/api/v1/runs/{}", started.json["id"].as_str().expect("an id"))
}

async fn read(gate: &Gate, path: &str) -> Value {
    let run = gate.get(path).await;
    assert_eq!(run.status, 200, "{}", run.text);
    run.json
}

#[tokio::test]
async fn values_of_a_hundred_levels_are_taken_and_read_everywhere() {
    let gate = Gate::start(&[]).await;
    let most = nested(100);
    let value: Value = serde_json::from_str(&most).unwrap();
    let path = waiting(&gate, &format!(r#"{{"input":{most}}}"#)).await;
    assert_eq!(read(&gate, &path).await["input"], value);
    for name in ["late", "go"] {
        let sent = send(&gate, &format!("{path}/signals/{name}"), &most).await;
        assert_eq!(sent.status, 200, "{}", sent.text);
        read(&gate, &path).await;
    }
    let done = send(&gate, &format!("{path}/steps/b/complete"), &format!(r#"{{"output":{most}}}"#)).await;
    assert_eq!(done.status, 200, "{}", done.text);
    let run = read(&gate, &path).await;
    assert_eq!((&run["state"], &run["output"]), (&json!("succeeded"), &value));
    assert_eq!(run["steps"][0]["result"], value);
    let again = send(&gate, &format!("{path}/rerun"), &format!(r#"{{"from":"b","input":{most}}}"#)).await;
    assert_eq!(again.status, 202, "{}", again.text);
    let new = format!("/api/v1/runs/{}", again.json["id"].as_str().expect("an id"));
    assert_eq!(read(&gate, &new).await["input"], value);
}

#[tokio::test]
async fn values_that_a_run_cannot_hold_are_refused_and_the_run_stays_readable() {
    let gate = Gate::start(&[]).await;
    let path = waiting(&gate, "{}").await;
    let before = read(&gate, &path).await;
    let runs = "/api/v1/workflows/deep/runs";
    for value in unfit() {
        refused(&gate, &format!("{path}/signals/go"), &value, "").await;
        refused(&gate, &format!("{path}/signals/other"), &value, "").await;
        refused(&gate, &format!("{path}/steps/a/complete"), &format!(r#"{{"output":{value}}}"#), "/output").await;
        refused(&gate, &format!("{path}/rerun"), &format!(r#"{{"from":"a","input":{value}}}"#), "/input").await;
        refused(&gate, runs, &format!(r#"{{"input":{value}}}"#), "/input").await;
        refused(&gate, &format!("{runs}?signal=go"), &format!(r#"{{"signal":{value}}}"#), "/signal").await;
    }
    assert_eq!(read(&gate, &path).await, before);
    let list = gate.get("/api/v1/runs").await;
    assert_eq!(list.json["items"].as_array().map(Vec::len), Some(1), "{}", list.text);
    let told = send(&gate, &format!("{path}/signals/go"), &nested(101)).await;
    assert!(told.text.contains("nests deeper than 100 levels"), "{}", told.text);
    let broken = send(&gate, &format!("{path}/signals/go"), "[[").await;
    assert_eq!((broken.status.as_u16(), broken.code()), (400, "invalid_json"), "{}", broken.text);

    // The same names in a definition would come back as something else.
    let literal = json!({"steps": [{"id": "a", "set": {"$serde_json::private::Number": "x"}}]});
    let headers = [("content-type", "application/json")];
    let put = gate.send(Method::PUT, "/api/v1/workflows/odd", &headers, Some(literal.to_string().into())).await;
    assert_eq!(put.status, 422, "{}", put.text);
}
