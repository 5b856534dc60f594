//! Tests of what callers send with operations on runs, and of runs that they must not learn about.

use reqwest::Method;
use serde_json::{Value, json};

use crate::gate::{Answer, Gate, fresh_tenant};

/// Stores a version of a workflow.
async fn define(gate: &Gate, name: &str, steps: &Value) {
    let headers = [("content-type", "application/json")];
    let definition = json!({"steps": steps}).to_string().into();
    let put = gate.send(Method::PUT, &format!("/api/v1/workflows/{name}"), &headers, Some(definition)).await;
    assert!(put.status.is_success(), "{}", put.text);
}

/// Starts a run of the latest version, and returns its id.
async fn start(gate: &Gate, name: &str) -> String {
    let started = gate.post(&format!("/api/v1/workflows/{name}/runs"), &json!({})).await;
    assert_eq!(started.status, 202, "{}", started.text);
    started.json["id"].as_str().expect("an id").to_owned()
}

/// A run that waits for the signal `go`.
async fn waiting(gate: &Gate) -> String {
    define(gate, "waiting", &json!([{"id": "a", "wait_signal": {"name": "go"}}])).await;
    start(gate, "waiting").await
}

/// Sends a body as it is.
async fn send(gate: &Gate, path: &str, what: &str, body: Option<&str>) -> Answer {
    let headers = [("content-type", "application/json")];
    gate.send(Method::POST, &format!("{path}/{what}"), &headers, body.map(|body| body.as_bytes().to_vec())).await
}

#[tokio::test]
async fn operations_without_fields_refuse_every_field_and_take_no_body() {
    let gate = Gate::start(&[]).await;
    let path = format!("/api/v1/runs/{}", waiting(&gate).await);
    for what in ["pause", "resume", "compensate"] {
        let unknown = send(&gate, &path, what, Some(r#"{"reason": "typo"}"#)).await;
        assert_eq!((unknown.status.as_u16(), unknown.pointers()), (422, vec!["/reason"]), "{what}: {}", unknown.text);
        assert_eq!(unknown.code(), "unknown_field", "{what}");
        let list = send(&gate, &path, what, Some("[]")).await;
        assert_eq!((list.status.as_u16(), list.code()), (422, "invalid_request"), "{what}: {}", list.text);
    }
    assert_eq!(gate.get(&path).await.json["state"], "running", "nothing of this paused it");
    for (what, state) in [("pause", "paused"), ("resume", "running")] {
        for body in [None, Some(""), Some("{}"), Some(" {} ")] {
            let done = send(&gate, &path, what, body).await;
            assert_eq!((done.status.as_u16(), &done.json["state"]), (200, &json!(state)), "{body:?}: {}", done.text);
        }
    }
}

#[tokio::test]
async fn a_body_of_blanks_is_not_json() {
    let gate = Gate::start(&[]).await;
    let path = format!("/api/v1/runs/{}", waiting(&gate).await);
    let before = gate.get(&path).await.text;
    for what in ["pause", "resume", "compensate", "cancel", "signals/go", "steps/a/skip", "steps/a/complete"] {
        for blank in ["\r", " \n\t"] {
            let refused = send(&gate, &path, what, Some(blank)).await;
            assert_eq!(refused.code(), "invalid_json", "{what} {blank:?}: {}", refused.text);
        }
    }
    assert_eq!(gate.get(&path).await.text, before);
    let done = send(&gate, &path, "signals/go", None).await;
    assert_eq!((done.status.as_u16(), &done.json["state"]), (200, &json!("succeeded")), "none is null: {}", done.text);
}

#[tokio::test]
async fn a_key_of_a_tenant_does_not_learn_that_a_run_is_damaged() {
    let gate = Gate::start(&[]).await;
    let id = waiting(&gate).await;
    muster_testkit::redis().await.cli(&["HSET", &format!("muster:wf:run:{id}"), "head", "noise"]).await;
    let elsewhere = gate.for_tenant(&fresh_tenant());
    let key = elsewhere.make_key(&["read", "submit", "control", "payloads"], &[]).await;
    let other = gate.with_key(Some(&key));
    let path = format!("/api/v1/runs/{id}");
    for what in ["signals/go", "pause", "cancel", "compensate", "steps/a/skip", "steps/a/complete"] {
        let hidden = send(&other, &path, what, None).await;
        assert_eq!((hidden.status.as_u16(), hidden.code()), (404, "not_found"), "{what}: {}", hidden.text);
    }
    for what in ["", "?wait_ms=50", "/timeline", "/explain", "/graph"] {
        let hidden = other.get(&format!("{path}{what}")).await;
        assert_eq!((hidden.status.as_u16(), hidden.code()), (404, "not_found"), "{what}: {}", hidden.text);
    }
    let told = send(&gate, &path, "signals/go", None).await;
    assert_eq!(
        (told.status.as_u16(), told.code()),
        (500, "internal"),
        "a key for all tenants learns it: {}",
        told.text
    );
}

#[tokio::test]
async fn a_repeated_rerun_shows_no_run_of_other_topics() {
    let gate = Gate::start(&[]).await;
    define(&gate, "changing", &json!([{"id": "a", "fail": {"code": "boom", "message": "m"}}])).await;
    let old = start(&gate, "changing").await;
    define(&gate, "changing", &json!([{"id": "a", "job": {"topic": "secret"}}])).await;
    let path = format!("/api/v1/runs/{old}/rerun");
    let body = json!({"from": "a", "version": 2});
    let first = gate.post_keyed(&path, "k", &body).await;
    assert_eq!((first.status.as_u16(), &first.json["version"]), (202, &json!(2)), "{}", first.text);

    let scopes = ["read", "submit", "control", "payloads"];
    let narrow = gate.with_key(Some(&gate.make_key(&scopes, &["mail"]).await));
    assert_eq!(narrow.get(&format!("/api/v1/runs/{old}")).await.status, 200, "the old run has no topics");
    for key in ["k", "another"] {
        let refused = narrow.post_keyed(&path, key, &body).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "missing_scope"), "{key}: {}", refused.text);
    }
    let wide = gate.with_key(Some(&gate.make_key(&scopes, &["secret"]).await));
    let again = wide.post_keyed(&path, "k", &body).await;
    assert_eq!((again.status.as_u16(), &again.json["id"]), (202, &first.json["id"]), "{}", again.text);
}
