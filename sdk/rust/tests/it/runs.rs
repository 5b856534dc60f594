//! Tests of the calls about workflows and runs, seen from the gateway's side.

use std::time::Duration;

use muster_sdk::{
    CancelOptions, Client, ClientError, GraphFormat, RerunRequest, RunFilter, RunId, StartOptions, WorkflowSource,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::gateway::{Asked, Gateway};

fn run(id: RunId, state: &str, rest: &str) -> String {
    let done = matches!(state, "succeeded" | "failed" | "cancelled" | "timed_out");
    format!(r#"{{"id":"{id}","workflow":"order","version":2,"state":"{state}","done":{done}{rest}}}"#)
}

fn client(gateway: &Gateway) -> Client {
    Client::new([&gateway.url], "secret").unwrap()
}

/// The only request since the last question.
fn only(gateway: &Gateway) -> Asked {
    let mut asked = gateway.asked();
    assert_eq!(asked.len(), 1);
    asked.remove(0)
}

#[derive(Serialize)]
struct Order {
    total: u32,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Receipt {
    number: u64,
}

#[tokio::test]
async fn a_start_that_was_put_off_is_repeated_with_the_same_key_and_body() {
    let (gateway, id) = (Gateway::start().await, RunId::mint(0));
    gateway.then(503, &[], r#"{"code":"store_unavailable"}"#);
    gateway.then(202, &[("idempotency-replayed", "true")], &run(id, "running", ""));
    let options = StartOptions::new().label("shop", "east").version(2).wait(Duration::from_secs(90));
    let started = client(&gateway).start_run("order", &json!({"total": 12}), options).await.unwrap();
    assert!(started.replayed && started.run.id == id && !started.run.done);
    let asked = gateway.asked();
    assert_eq!(asked[0].uri, "/api/v1/workflows/order/runs?wait_ms=30000", "no gateway waits longer");
    assert_eq!(asked[0].json(), json!({"input": {"total": 12}, "labels": {"shop": "east"}, "version": 2}));
    let key = asked[0].header("idempotency-key").unwrap();
    assert_eq!((asked[1].header("idempotency-key"), &asked[1].body), (Some(key), &asked[0].body));

    gateway.then(202, &[], &run(id, "running", ""));
    client(&gateway).start_run("order", &(), StartOptions::new().idempotency_key("mine")).await.unwrap();
    let asked = only(&gateway);
    assert_eq!((asked.header("idempotency-key"), asked.json()), (Some("mine"), json!({"input": null})));
}

#[tokio::test]
async fn a_typed_handle_waits_for_the_output_and_tells_a_bad_end() {
    let (gateway, id) = (Gateway::start().await, RunId::mint(0));
    let orders = client(&gateway).workflow::<Order, Receipt>("order");
    gateway.then(202, &[], &run(id, "running", ""));
    let handle = orders.start(&Order { total: 12 }).await.unwrap();
    assert_eq!((handle.id(), only(&gateway).json()), (id, json!({"input": {"total": 12}})));

    gateway.then(200, &[], &run(id, "running", ""));
    assert_eq!(handle.state().await.unwrap(), "running");
    gateway.then(200, &[], &run(id, "running", ""));
    handle.signal("approved", &"ada").await.unwrap();
    gateway.then(200, &[], &run(id, "running", "")).then(200, &[], &run(id, "succeeded", r#","output":{"number":7}"#));
    assert_eq!(handle.result().await.unwrap(), Receipt { number: 7 });

    gateway.asked();
    let failed = r#","error":{"code":"no_stock","message":"none left","step":"reserve[3]"}"#;
    gateway.then(200, &[], &run(id, "failed", failed));
    let ended = handle.result().await.unwrap_err();
    assert!(matches!(&ended, ClientError::RunEnded { state, .. } if state == "failed") && !ended.is_retryable());
    assert_eq!(ended.to_string(), format!("run {id} ended as failed: no_stock: none left (step reserve[3])"));
    assert!(only(&gateway).uri.starts_with(&format!("/api/v1/runs/{id}?wait_ms=")));

    for _ in 0..9 {
        gateway.then(200, &[], &run(id, "running", ""));
    }
    let late = handle.result_within(Duration::from_millis(250)).await;
    assert!(matches!(late, Err(ClientError::NotDone(_))));
    // An end that this release does not know is an end.
    let gateway = Gateway::start().await;
    gateway.then(200, &[], &format!(r#"{{"id":"{id}","state":"evaporated","done":true}}"#));
    let strange = client(&gateway).run::<Receipt>(id).result().await;
    assert!(matches!(strange, Err(ClientError::RunEnded { state, .. }) if state == "evaporated"));
}

#[tokio::test]
async fn definitions_go_as_they_were_written_and_a_version_can_be_guarded() {
    let gateway = Gateway::start().await;
    let client = client(&gateway);
    let stored = r#"{"name":"order","version":3,"created_at":"2026-01-02T03:04:05.678Z"}"#;
    gateway.then(201, &[("etag", "\"3\"")], stored);
    let yaml = "steps: # a comment\n  - {id: a, set: 1}\n";
    assert_eq!(client.put_workflow("order", &WorkflowSource::yaml(yaml)).await.unwrap().version, 3);
    let asked = only(&gateway);
    assert_eq!((asked.method.as_str(), asked.uri.as_str()), ("PUT", "/api/v1/workflows/order"));
    assert_eq!((asked.header("content-type"), &asked.body[..]), (Some("application/yaml"), yaml.as_bytes()));
    assert_eq!(asked.header("if-match"), None);

    gateway.then(412, &[], r#"{"code":"precondition_failed"}"#);
    let json = WorkflowSource::json(&json!({"steps": []})).unwrap();
    let error = client.replace_workflow("order", &json, 2).await.unwrap_err();
    assert_eq!(error.status(), Some(412));
    let asked = only(&gateway);
    assert_eq!((asked.header("if-match"), asked.header("content-type")), (Some("\"2\""), Some("application/json")));

    gateway.then(200, &[], r#"{"items":[{"name":"a","version":1}],"next_cursor":"a"}"#);
    gateway.then(200, &[], r#"{"items":[{"name":"b","version":2,"steps":4}]}"#);
    let listed = client.list_workflows().await.unwrap();
    assert_eq!(listed.iter().map(|w| (w.name.as_str(), w.steps)).collect::<Vec<_>>(), [("a", 0), ("b", 4)]);
    gateway.then(404, &[], r#"{"code":"not_found"}"#);
    client.delete_workflow("order").await.unwrap();
    gateway.then(200, &[], "flowchart TD\n");
    assert_eq!(client.workflow_graph("order", Some(2), GraphFormat::Mermaid).await.unwrap(), "flowchart TD\n");
    gateway.then(200, &[], stored);
    client.get_workflow_version("order", 3).await.unwrap();
    let uris: Vec<String> = gateway.asked().iter().map(|ask| format!("{} {}", ask.method, ask.uri)).collect();
    assert_eq!(
        uris,
        [
            "GET /api/v1/workflows",
            "GET /api/v1/workflows?cursor=a",
            "DELETE /api/v1/workflows/order",
            "GET /api/v1/workflows/order/graph?format=mermaid&version=2",
            "GET /api/v1/workflows/order/versions/3",
        ]
    );
}

#[tokio::test]
async fn operations_on_runs_go_where_the_contract_says() {
    let (gateway, id) = (Gateway::start().await, RunId::mint(0));
    let client = client(&gateway);
    for _ in 0..8 {
        gateway.then(200, &[], &run(id, "stopping", ""));
    }
    client.cancel_run(id, &CancelOptions::new().without_compensation().reason("enough")).await.unwrap();
    client.cancel_run(id, &CancelOptions::new()).await.unwrap();
    client.pause_run(id).await.unwrap();
    client.resume_run(id).await.unwrap();
    client.compensate_run(id).await.unwrap();
    client.signal_run_once(id, "paid/now", &json!({"by": "card"}), "k1").await.unwrap();
    client.complete_step(id, "charge", &json!({"id": 9}), Some("by phone")).await.unwrap();
    client.skip_step(id, "mail", None).await.unwrap();
    gateway.then(202, &[], &run(RunId::mint(0), "queued", &format!(r#","rerun_of":"{id}""#)));
    let again = RerunRequest::failed_items("reserve").input(&json!({"total": 1})).unwrap().version(3);
    assert_eq!(client.rerun_run(id, &again).await.unwrap().run.rerun_of, Some(id));
    gateway.then(200, &[], r#"{"dry_run":true,"again":["charge"],"taken":["reserve"]}"#);
    assert_eq!(client.plan_rerun(id, &RerunRequest::from_step("charge")).await.unwrap().again, ["charge"]);

    let asked = gateway.asked();
    let seen: Vec<(String, serde_json::Value)> = asked.iter().map(|ask| (ask.uri.clone(), ask.json())).collect();
    let at = |rest: &str| format!("/api/v1/runs/{id}/{rest}");
    let expected = [
        (at("cancel"), json!({"compensate": false, "reason": "enough"})),
        (at("cancel"), json!({})),
        (at("pause"), json!({})),
        (at("resume"), json!({})),
        (at("compensate"), json!({})),
        (at("signals/paid%2Fnow"), json!({"by": "card"})),
        (at("steps/charge/complete"), json!({"output": {"id": 9}, "reason": "by phone"})),
        (at("steps/mail/skip"), json!({})),
        (at("rerun"), json!({"failed_items": "reserve", "input": {"total": 1}, "version": 3})),
        (at("rerun"), json!({"from": "charge", "dry_run": true})),
    ];
    assert_eq!(seen, expected);
    assert_eq!(asked[5].header("idempotency-key"), Some("k1"));
    assert!(asked.iter().all(|ask| ask.method == "POST"));
}

#[tokio::test]
async fn runs_are_listed_and_looked_into() {
    let (gateway, id) = (Gateway::start().await, RunId::mint(0));
    let client = client(&gateway);
    let page = |rest: &str| format!(r#"{{"items":[{}]{rest}}}"#, run(id, "failed", ""));
    gateway.then(200, &[], &page(r#","next_cursor":"x""#)).then(200, &[], &page(""));
    let filter = RunFilter::new().workflow("order").state("failed").state("timed_out").label("shop", "a&b");
    let runs = client.list_runs(filter.include_output().limit(1)).all().await.unwrap();
    assert_eq!(runs.len(), 2);
    gateway.then(200, &[], r#"{"items":[{"at":"2026-01-02T03:04:05.678Z","what":"running"}],"dropped":0}"#);
    assert_eq!(client.run_timeline(id).await.unwrap().items[0].what, "running");
    gateway.then(200, &[], r#"{"state":"paused","waits_for":[{"for":"resume"}],"sentences":["is paused"]}"#);
    assert_eq!(client.run_explain(id).await.unwrap().waits_for[0].what, "resume");
    gateway.then(200, &[], r#"{"total":3,"items":[{"index":2,"state":"succeeded","value":4}]}"#);
    assert_eq!(client.run_items(id, "each", 2, 100).await.unwrap().items[0].value_as::<u8>().unwrap(), 4);
    gateway.then(200, &[], "<svg/>");
    assert_eq!(client.run_graph(id, GraphFormat::Svg).await.unwrap(), "<svg/>");
    let uris: Vec<String> = gateway.asked().into_iter().map(|ask| ask.uri).collect();
    let list = "/api/v1/runs?state=failed%2Ctimed_out&include=output&workflow=order&label.shop=a%26b&limit=1";
    assert_eq!(
        uris,
        [
            list.to_owned(),
            format!("{list}&cursor=x"),
            format!("/api/v1/runs/{id}/timeline"),
            format!("/api/v1/runs/{id}/explain"),
            format!("/api/v1/runs/{id}/steps/each/items?from=2&limit=100"),
            format!("/api/v1/runs/{id}/graph?format=svg"),
        ]
    );
}
