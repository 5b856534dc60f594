//! Tests of runs as far as a gateway works without the workflow service: operations are saved and seen at once, refused
//! ones change nothing, lists filter and turn pages, and nobody sees a run of another tenant.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use muster_bus::{Bus, BusSettings};
use muster_domain::{RunId, job::Ending};
use muster_engine::run::{Event, JobEnd, RunError, Wait, What};
use muster_flow::Flow;
use muster_runs::Runs;
use muster_store::{RedisSettings, Store};
use muster_testkit::{nats, redis, until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::gate::{Answer, Gate};

/// Defines a workflow.
async fn define(gate: &Gate, name: &str, definition: &Value) {
    let headers = [("content-type", "application/json")];
    let path = format!("/api/v1/workflows/{name}");
    let put = gate.send(Method::PUT, &path, &headers, Some(definition.to_string().into())).await;
    assert!(put.status.is_success(), "{}", put.text);
}

/// Starts a run, and returns its path.
async fn start(gate: &Gate, name: &str, body: &Value) -> String {
    let started = gate.post(&format!("/api/v1/workflows/{name}/runs"), body).await;
    assert_eq!(started.status, 202, "{}", started.text);
    format!("/api/v1/runs/{}", started.json["id"].as_str().expect("an id"))
}

/// A run of a workflow that waits for the signal `go`, then for a job.
async fn waiting(gate: &Gate) -> String {
    let steps = json!([
        {"id": "a", "wait_signal": {"name": "go", "schema": {"type": ["object", "null"]}}},
        {"id": "b", "needs": ["a"], "job": {"topic": "t", "payload": "${{ steps.a.result }}"}},
    ]);
    define(gate, "waiting", &json!({"steps": steps, "output": "${{ steps.b.result }}"})).await;
    start(gate, "waiting", &json!({"input": {"n": 1}})).await
}

async fn ask(gate: &Gate, path: &str, what: &str, body: Value) -> Answer {
    gate.post(&format!("{path}/{what}"), &body).await
}

/// The state that an operation answers with.
fn state(answer: &Answer) -> &str {
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.json["steps"].is_null(), "an operation answers without steps: {}", answer.text);
    answer.json["state"].as_str().expect("a state")
}

/// A step of a run.
async fn step(gate: &Gate, path: &str, id: &str) -> Value {
    let run = gate.get(path).await;
    let steps = run.json["steps"].as_array().unwrap_or_else(|| panic!("{}", run.text));
    steps.iter().find(|step| step["id"] == id).unwrap_or_else(|| panic!("{}", run.text)).clone()
}

/// The actions of the tenant's entries in the audit log, oldest first.
async fn told(gate: &Gate) -> Vec<String> {
    let page = gate.get(&format!("/api/v1/audit?limit=500&tenant={}", gate.tenant())).await;
    assert_eq!(page.status, 200, "{}", page.text);
    let of_runs = |entry: &Value| {
        let action = entry["action"].as_str().expect("an action").to_owned();
        action.starts_with("run_").then_some(action)
    };
    page.json["items"].as_array().expect("items").iter().rev().filter_map(of_runs).collect()
}

/// What the workflow service uses, over the servers that all tests share.
async fn service() -> Runs {
    let store = Store::connect(RedisSettings::new(redis().await.url())).await.expect("Redis");
    let bus = Bus::connect(BusSettings::new(nats().await.url(), "test")).await.expect("NATS");
    let clock = store.clone();
    bus.set_clock(Arc::new(move || clock.now()));
    bus.connected().await;
    Runs::new(Flow::new(store, bus))
}

/// Ends every job that the run waits for, as the workflow service does when it hears of it: those whose task is in
/// `failing` fail.
async fn end_jobs(runs: &Runs, path: &str, failing: &[&str]) {
    let id: RunId = path.rsplit('/').next().unwrap().parse().unwrap();
    loop {
        let (mut kept, now) = runs.read(id).await.unwrap().expect("the run");
        let ends = kept.run.waits_for(usize::MAX).unwrap().into_iter().filter_map(|wait| {
            let Wait::Job { task, job, .. } = wait else { return None };
            let bad = failing.contains(&task.as_str());
            Some(JobEnd {
                ending: if bad { Ending::Failed } else { Ending::Succeeded },
                result: (!bad && kept.run.reads_result(&task)).then(|| json!({"of": task.as_str()})),
                error: bad.then(|| RunError::new("boom", "told to fail")),
                truncated: false,
                attempts: 1,
                task,
                job,
            })
        });
        let at = now.max(kept.run.now());
        let ends: Vec<Event> = ends.map(|end| Event { at, what: What::JobEnded(end) }).collect();
        if ends.is_empty() {
            return;
        }
        kept.apply_all(ends).unwrap();
        assert!(runs.save(&mut kept).await.unwrap());
    }
}

#[tokio::test]
async fn a_run_is_paused_signalled_resumed_and_cancelled() {
    let gate = Gate::start(&[]).await;
    let path = waiting(&gate).await;
    assert_eq!(gate.get(&path).await.json["state"], "running");
    for _ in 0..2 {
        assert_eq!(state(&ask(&gate, &path, "pause", json!({})).await), "paused");
    }
    assert_eq!(state(&ask(&gate, &path, "signals/go", json!({"x": 12345678901234567890_u64})).await), "paused");
    assert_eq!(step(&gate, &path, "a").await["state"], "running", "a paused run goes nowhere");
    for _ in 0..2 {
        assert_eq!(state(&ask(&gate, &path, "resume", json!({})).await), "running");
    }
    let read = step(&gate, &path, "a").await;
    assert_eq!((&read["state"], &read["result"]), (&json!("succeeded"), &json!({"x": 12345678901234567890_u64})));
    assert_eq!(step(&gate, &path, "b").await["state"], "running");

    let odd = ask(&gate, &path, "cancel", json!({"compensate": 1, "reasons": ""})).await;
    assert_eq!((odd.status.as_u16(), odd.pointers()), (422, vec!["/compensate", "/reasons"]), "{}", odd.text);
    for _ in 0..2 {
        let cancelled = ask(&gate, &path, "cancel", json!({"reason": "no more"})).await;
        assert!(["stopping", "cancelled"].contains(&state(&cancelled)), "{}", cancelled.text);
        assert_eq!(cancelled.json["error"]["message"], "no more");
    }
    assert_eq!(told(&gate).await, ["run_pause", "run_resume", "run_cancel"], "each once, and no entry for a signal");
    let story = gate.get(&format!("{path}/timeline")).await;
    let lines: Vec<String> = story.json["items"].as_array().unwrap().iter().map(ToString::to_string).collect();
    for what in ["paused", "signal", "stopping"] {
        assert!(lines.iter().any(|line| line.contains(&format!("\"what\":\"{what}\""))), "{what}: {}", story.text);
    }
    assert_eq!(story.json["dropped"], 0);
}

#[tokio::test]
async fn refused_operations_change_nothing() {
    let gate = Gate::start(&[]).await;
    let path = waiting(&gate).await;
    let before = gate.get(&path).await.text;
    let refusals = [
        ("compensate", json!({}), 409, "run_not_done"),
        ("rerun", json!({"from": "a"}), 409, "run_not_done"),
        ("steps/b/complete", json!({"output": 1}), 409, "wrong_state"),
        ("steps/b/skip", json!({}), 409, "wrong_state"),
        ("steps/nobody/skip", json!({}), 404, "not_found"),
        ("steps/a[1]/skip", json!({}), 404, "not_found"),
        ("signals/go", json!(7), 422, "invalid_request"),
        ("signals/-", json!(null), 422, "invalid_request"),
        ("signals/go", json!({"x": "y".repeat(256 * 1024)}), 413, "payload_too_large"),
        ("rerun", json!({}), 422, "invalid_request"),
        ("rerun", json!({"from": "a", "failed_items": "a"}), 422, "invalid_request"),
    ];
    for (what, body, status, code) in &refusals {
        let refused = ask(&gate, &path, what, body.clone()).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (*status, *code), "{what}: {}", refused.text);
    }
    assert_eq!(gate.get(&path).await.text, before);
    assert_eq!(told(&gate).await, Vec::<String>::new());

    // An ended run.
    assert_eq!(state(&ask(&gate, &path, "steps/a/complete", json!({"output": {}})).await), "running");
    assert_eq!(state(&ask(&gate, &path, "steps/b/complete", json!({})).await), "succeeded");
    let (before, entries) = (gate.get(&path).await.text, told(&gate).await);
    for what in ["cancel", "pause", "resume", "signals/go", "steps/b/skip"] {
        let refused = ask(&gate, &path, what, json!({})).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (409, "run_done"), "{what}: {}", refused.text);
    }
    assert_eq!(state(&ask(&gate, &path, "compensate", json!({})).await), "succeeded", "there is nothing to undo");
    assert_eq!((gate.get(&path).await.text, told(&gate).await), (before, entries));
}

#[tokio::test]
async fn a_stuck_step_is_completed_or_skipped_by_hand() {
    let gate = Gate::start(&[]).await;
    let steps = json!([{"id": "a", "job": {"topic": "t"}}, {"id": "b", "needs": ["a"], "job": {"topic": "t"}}]);
    define(&gate, "stuck", &json!({"steps": steps})).await;
    let path = start(&gate, "stuck", &json!({})).await;
    for _ in 0..2 {
        let skipped = ask(&gate, &path, "steps/a/skip", json!({"reason": "nobody will"})).await;
        assert_eq!(state(&skipped), "running", "again is the same operation");
    }
    let step_a = step(&gate, &path, "a").await;
    assert_eq!((&step_a["state"], &step_a["reason"]), (&json!("skipped"), &json!("nobody will")));
    assert_eq!(step(&gate, &path, "b").await["state"], "running");

    let path = waiting(&gate).await;
    for _ in 0..2 {
        let done = ask(&gate, &path, "steps/a/complete", json!({"output": {"k": 1.50}, "reason": "by phone"})).await;
        assert_eq!(state(&done), "running", "again is the same operation");
    }
    let step_a = step(&gate, &path, "a").await;
    assert_eq!((&step_a["result"], &step_a["reason"]), (&json!({"k": 1.5}), &json!("by phone")));
    let other = ask(&gate, &path, "steps/a/complete", json!({"output": 2})).await;
    assert_eq!((other.status.as_u16(), other.code()), (409, "wrong_state"), "{}", other.text);
    let keyed = async |n: i32| gate.post_keyed(&format!("{path}/steps/b/complete"), "k", &json!({"output": n})).await;
    let first = keyed(1).await;
    assert_eq!((state(&first), &first.json["output"]), ("succeeded", &json!(1)));
    let again = keyed(1).await;
    assert_eq!((state(&again), &again.headers["idempotency-replayed"]), ("succeeded", &"true".parse().unwrap()));
}

#[tokio::test]
async fn a_signal_with_a_key_is_one_signal_and_too_many_are_refused() {
    let gate = Gate::start(&[]).await;
    define(&gate, "deaf", &json!({"steps": [{"id": "a", "job": {"topic": "t"}}]})).await;
    let path = start(&gate, "deaf", &json!({})).await;
    let send = async |key: &str, body: &Value| gate.post_keyed(&format!("{path}/signals/s"), key, body).await;
    let large = json!("x".repeat(250_000));
    for key in ["1", "2", "3", "4"] {
        let (first, again) = (send(key, &large).await, send(key, &large).await);
        assert_eq!((state(&first), state(&again)), ("running", "running"));
        assert!(!first.headers.contains_key("idempotency-replayed"));
        assert_eq!(again.headers["idempotency-replayed"], "true", "{key}");
    }
    let full = send("5", &large).await;
    assert_eq!((full.status.as_u16(), full.code()), (409, "signals_full"), "{}", full.text);
    assert_eq!(send("1", &large).await.status, 200, "a signal that the run holds is the same one");
    let none = gate.send(Method::POST, &format!("{path}/signals/s"), &[], None).await;
    assert_eq!(none.status, 200, "no body is null: {}", none.text);
    let broken = gate.send(Method::POST, &format!("{path}/signals/s"), &[], Some(b"{".to_vec())).await;
    assert_eq!(broken.code(), "invalid_json");
}

#[tokio::test]
async fn two_hundred_signals_at_once_are_all_taken() {
    let gate = Gate::start(&[]).await;
    let each = json!({"items": "input", "as": "n", "max_parallel": 200});
    let steps = json!([{"id": "a", "for_each": each, "wait_signal": {"name": "s"}}]);
    define(&gate, "heard", &json!({"steps": steps})).await;
    let path = start(&gate, "heard", &json!({"input": (0..200).collect::<Vec<_>>()})).await;
    let sends = (0..200).map(|n| {
        let (gate, path) = (&gate, format!("{path}/signals/s"));
        async move { gate.post(&path, &json!(n)).await.status.as_u16() }
    });
    let answers = futures_util::future::join_all(sends).await;
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    assert_eq!(gate.get(&path).await.json["state"], "succeeded");
}

#[tokio::test]
async fn lists_filter_and_turn_pages() {
    let gate = Gate::start(&[]).await;
    define(&gate, "one", &json!({"steps": [{"id": "a", "wait_signal": {"name": "go"}}], "output": 7})).await;
    define(&gate, "two", &json!({"steps": [{"id": "a", "fail": {"code": "boom", "message": "m"}}]})).await;
    let mut ones = Vec::new();
    for n in 0..5 {
        ones.push(start(&gate, "one", &json!({"input": n, "labels": {"n": n.to_string()}})).await);
    }
    let two = start(&gate, "two", &json!({})).await;
    assert_eq!(state(&ask(&gate, &ones[1], "signals/go", json!(null)).await), "succeeded");
    let id = |path: &String| path.rsplit('/').next().unwrap().to_owned();
    let list = async |query: &str| {
        let page = gate.get(&format!("/api/v1/runs?{query}")).await;
        assert_eq!(page.status, 200, "{query}: {}", page.text);
        assert!(page.json["items"][0]["steps"].is_null() && page.json["items"][0]["input"].is_null(), "{}", page.text);
        let items = page.json["items"].as_array().unwrap().iter();
        items.map(|run| run["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let newest: Vec<String> = [&two].into_iter().chain(ones.iter().rev()).map(id).collect();
    assert_eq!(list("").await, newest);
    assert_eq!(list("workflow=one").await, newest[1..]);
    assert_eq!(list("state=succeeded").await, [id(&ones[1])]);
    assert_eq!(list("state=failed,succeeded").await, [id(&two), id(&ones[1])]);
    assert_eq!(list("label.n=3").await, [id(&ones[3])]);
    assert_eq!(list("label.n=3&workflow=two").await, Vec::<String>::new());
    assert_eq!(list("error_code=boom").await, [id(&two)]);
    assert_eq!(list("version=2").await, Vec::<String>::new());
    let since = gate.get(&ones[2]).await.json["created_at"].as_str().unwrap().to_owned();
    assert_eq!(list(&format!("created_after={since}")).await, newest[..4]);
    assert_eq!(list(&format!("created_before={since}")).await, newest[4..]);
    let ended = gate.get(&two).await.json["ended_at"].as_str().unwrap().to_owned();
    assert!(list(&format!("finished_after={ended}")).await.contains(&id(&two)));
    assert!(!list(&format!("finished_before={ended}")).await.contains(&id(&two)));

    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = gate.get(&format!("/api/v1/runs?limit=2&workflow=one{cursor}")).await;
        let items = page.json["items"].as_array().unwrap();
        assert!(items.len() <= 2, "{}", page.text);
        seen.extend(items.iter().map(|run| run["id"].as_str().unwrap().to_owned()));
        // A run that is started meanwhile moves no page.
        start(&gate, "two", &json!({})).await;
        match page.json["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, newest[1..]);
    assert_eq!(gate.get("/api/v1/runs?cursor=b.1.2").await.pointers(), ["/query/cursor"]);

    let shown = gate.get("/api/v1/runs?workflow=one&state=succeeded&include=input,output").await;
    assert_eq!((&shown.json["items"][0]["input"], &shown.json["items"][0]["output"]), (&json!(1), &json!(7)));
    let reader = gate.with_key(Some(&gate.make_key(&["read"], &[]).await));
    assert_eq!(reader.get("/api/v1/runs?include=input").await.code(), "missing_scope");
    assert_eq!(reader.get("/api/v1/runs").await.status, 200);
}

#[tokio::test]
async fn a_page_of_large_values_ends_early_and_loses_none() {
    let gate = Gate::start(&[]).await;
    define(&gate, "large", &json!({"steps": [{"id": "a", "wait_signal": {"name": "go"}}]})).await;
    let input = "x".repeat(500_000);
    let mut started = Vec::new();
    for _ in 0..12 {
        started.push(start(&gate, "large", &json!({"input": input})).await);
    }
    let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = gate.get(&format!("/api/v1/runs?include=input{cursor}")).await;
        assert!(page.text.len() < 5 << 20, "{} bytes", page.text.len());
        let items = page.json["items"].as_array().unwrap();
        assert!(items.iter().all(|run| run["input"].as_str() == Some(&input)));
        seen.extend(items.iter().map(|run| format!("/api/v1/runs/{}", run["id"].as_str().unwrap())));
        pages += 1;
        match page.json["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert!(pages > 1);
    assert!(seen.iter().eq(started.iter().rev()), "{seen:?}");
}

#[tokio::test]
async fn nobody_sees_a_run_of_another_tenant_or_of_other_topics() {
    let gate = Gate::start(&[]).await;
    let path = waiting(&gate).await;
    let all = ["read", "submit", "control", "payloads"];
    let others = [gate.for_tenant("nobody"), gate.with_key(Some(&gate.make_key(&all, &["other.*"]).await))];
    let before = gate.get(&path).await.text;
    for other in &others {
        for what in ["timeline", "explain", "graph", "steps/a/items"] {
            assert_eq!(other.get(&format!("{path}/{what}")).await.code(), "not_found", "{what}");
        }
        for what in ["cancel", "pause", "resume", "compensate", "signals/go", "steps/a/skip", "steps/a/complete"] {
            assert_eq!(ask(other, &path, what, json!({})).await.code(), "not_found", "{what}");
        }
        assert_eq!(ask(other, &path, "rerun", json!({"from": "a"})).await.code(), "not_found");
        let page = other.get("/api/v1/runs").await;
        assert_eq!((page.status.as_u16(), &page.json["items"]), (200, &json!([])), "{}", page.text);
    }
    for nothing in ["not-an-id", "0198c0de-0000-7000-8000-000000000000"] {
        assert_eq!(ask(&gate, &format!("/api/v1/runs/{nothing}"), "cancel", json!({})).await.code(), "not_found");
        assert_eq!(gate.get(&format!("/api/v1/runs/{nothing}/explain")).await.code(), "not_found");
    }
    assert_eq!(gate.get(&path).await.text, before);

    let reader = gate.with_key(Some(&gate.make_key(&["read"], &[]).await));
    for what in ["cancel", "pause", "resume", "compensate", "signals/go", "steps/a/skip", "rerun"] {
        assert_eq!(ask(&reader, &path, what, json!({})).await.code(), "missing_scope", "{what}");
    }
    let sender = gate.with_key(Some(&gate.make_key(&["submit"], &[]).await));
    let sent = ask(&sender, &path, "signals/go", json!({})).await;
    assert_eq!((sent.status.as_u16(), &sent.json["input"]), (200, &Value::Null), "no values: {}", sent.text);
}

#[tokio::test]
async fn a_rerun_takes_over_what_was_done() {
    let gate = Gate::start(&[]).await;
    let runs = service().await;
    let steps = json!([
        {"id": "a", "job": {"topic": "t"}},
        {"id": "b", "needs": ["a"], "job": {"topic": "t", "payload": "${{ steps.a.result.of }}"}},
        {"id": "c", "needs": ["b"], "job": {"topic": "t"}},
    ]);
    define(&gate, "chain", &json!({"steps": steps})).await;
    let old = start(&gate, "chain", &json!({"input": 5, "labels": {"k": "v"}})).await;
    end_jobs(&runs, &old, &["b"]).await;
    assert_eq!(gate.get(&old).await.json["state"], "failed");
    let count = async || gate.get("/api/v1/runs").await.json["items"].as_array().unwrap().len();

    let dry = ask(&gate, &old, "rerun", json!({"from": "b", "dry_run": true})).await;
    let expected = json!({"dry_run": true, "workflow": "chain", "version": 1, "again": ["b", "c"], "taken": ["a"]});
    assert_eq!((dry.status.as_u16(), &dry.json), (200, &expected));
    let faults = [
        (json!({"from": "x"}), "/from"),
        (json!({"failed_items": "a"}), "/failed_items"),
        (json!({"from": "a", "version": 2}), "/version"),
        (json!({"from": "a", "again": 1}), "/again"),
    ];
    for (body, pointer) in faults {
        let refused = ask(&gate, &old, "rerun", body).await;
        assert_eq!((refused.status.as_u16(), refused.pointers()), (422, vec![pointer]), "{}", refused.text);
    }
    assert_eq!((count().await, told(&gate).await), (1, Vec::new()), "nothing was stored");

    let rerun = |key: &'static str, body: Value| {
        let (gate, path) = (&gate, format!("{old}/rerun"));
        async move { gate.post_keyed(&path, key, &body).await }
    };
    let first = rerun("k", json!({"from": "b"})).await;
    assert_eq!(first.status, 202, "{}", first.text);
    let new = format!("/api/v1/runs/{}", first.json["id"].as_str().unwrap());
    assert_eq!(first.headers["location"], new.as_str());
    let old_id = old.rsplit('/').next().unwrap();
    assert_eq!(
        [&first.json["rerun_of"], &first.json["input"], &first.json["labels"]],
        [&json!(old_id), &json!(5), &json!({"k": "v"})]
    );
    let (a, b) = (step(&gate, &new, "a").await, step(&gate, &new, "b").await);
    assert_eq!((&a["state"], &b["state"]), (&json!("succeeded"), &json!("running")));
    assert_eq!(a["job_id"], step(&gate, &old, "a").await["job_id"], "its result is that of the old job");
    let again = rerun("k", json!({"from": "b"})).await;
    assert_eq!(
        (&again.json["id"], &again.headers["idempotency-replayed"]),
        (&first.json["id"], &"true".parse().unwrap())
    );
    assert_eq!(rerun("k", json!({"from": "a"})).await.code(), "idempotency_mismatch");
    let other = rerun("l", json!({"from": "a", "input": 6})).await;
    assert_ne!(other.json["id"], first.json["id"]);
    assert_eq!(other.json["input"], 6);
    assert_eq!((count().await, told(&gate).await), (3, vec!["run_rerun".to_owned(), "run_rerun".to_owned()]));

    end_jobs(&runs, &new, &[]).await;
    assert_eq!(gate.get(&new).await.json["state"], "succeeded");
    assert_eq!(gate.get(&old).await.json["state"], "failed", "the old run stays as it is");
}

#[tokio::test]
async fn failed_items_run_again_and_items_turn_pages() {
    let gate = Gate::start(&[]).await;
    let runs = service().await;
    let each = json!({"items": "input", "as": "n", "max_parallel": 200, "collect": "n * 2"});
    let steps = json!([{"id": "e", "for_each": each, "job": {"topic": "t", "payload": "${{ n }}"}}]);
    define(&gate, "each", &json!({"steps": steps})).await;
    let path = start(&gate, "each", &json!({"input": (0..130).collect::<Vec<_>>()})).await;
    let items = async |gate: &Gate, path: &str, query: &str| gate.get(&format!("{path}/steps/e/items?{query}")).await;
    let page = items(&gate, &path, "").await;
    assert_eq!((&page.json["total"], &page.json["next_from"]), (&json!(130), &json!(50)), "{}", page.text);
    end_jobs(&runs, &path, &["e[7]", "e[70]"]).await;
    assert_eq!(gate.get(&path).await.json["state"], "failed");

    let (mut seen, mut jobs, mut from) = (Vec::new(), BTreeSet::new(), 0);
    loop {
        let page = items(&gate, &path, &format!("from={from}&limit=60")).await;
        for item in page.json["items"].as_array().unwrap() {
            seen.push(item["index"].as_u64().unwrap());
            jobs.insert(item["job_id"].as_str().unwrap().to_owned());
            let bad = [7, 70].contains(seen.last().unwrap());
            let state = item["state"].as_str().unwrap();
            assert_eq!(bad, state == "failed", "{item}");
            assert_eq!(bad, item["error"]["code"] == "boom", "{item}");
            if state == "succeeded" {
                assert_eq!(item["value"], 2 * seen.last().unwrap(), "{item}");
            }
        }
        match page.json["next_from"].as_u64() {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!((seen, jobs.len()), ((0..130).collect(), 130));
    assert_eq!(items(&gate, &path, "from=500").await.json, json!({"total": 130, "items": []}));
    assert_eq!(items(&gate, &path, "limit=501").await.pointers(), ["/query/limit"]);
    assert_eq!(gate.get(&format!("{path}/steps/none/items")).await.code(), "not_found");
    let reader = gate.with_key(Some(&gate.make_key(&["read"], &[]).await));
    let unseen = items(&reader, &path, "").await;
    assert!(unseen.status == 200 && unseen.json["items"].to_string().contains("succeeded"));
    assert!(!unseen.text.contains("\"value\""), "{}", unseen.text);

    let again = json!({"failed_items": "e", "dry_run": true});
    let dry = ask(&gate, &path, "rerun", again).await;
    assert!(dry.json["items"].as_u64() >= Some(2), "{}", dry.text);
    let new = ask(&gate, &path, "rerun", json!({"failed_items": "e"})).await;
    let new = format!("/api/v1/runs/{}", new.json["id"].as_str().unwrap());
    let page = items(&gate, &new, "limit=10").await;
    let states: Vec<&str> =
        page.json["items"].as_array().unwrap().iter().map(|item| item["state"].as_str().unwrap()).collect();
    assert_eq!((states[6], states[7]), ("succeeded", "running"), "{}", page.text);
}

#[tokio::test]
async fn a_run_is_explained_and_drawn() {
    let gate = Gate::start(&[]).await;
    let path = waiting(&gate).await;
    let told = gate.get(&format!("{path}/explain")).await;
    assert_eq!((told.status.as_u16(), &told.json["state"]), (200, &json!("running")), "{}", told.text);
    let wait = &told.json["waits_for"][0];
    assert_eq!((&wait["step"], &wait["for"]), (&json!("a"), &json!("signal")), "{}", told.text);
    assert!(wait["sentence"].as_str().unwrap().contains("`go`") && told.json["next_look"].is_string(), "{}", told.text);
    ask(&gate, &path, "signals/go", json!({})).await;
    let told = gate.get(&format!("{path}/explain")).await;
    let job = told.json["waits_for"].as_array().unwrap().iter().find(|wait| wait["for"] == "job").unwrap().clone();
    assert_eq!(job["job_id"], step(&gate, &path, "b").await["job_id"]);

    let svg = gate.get(&format!("{path}/graph")).await;
    assert_eq!((svg.status.as_u16(), svg.headers["content-type"].to_str().unwrap()), (200, "image/svg+xml"));
    assert!(svg.text.contains("<title>a: succeeded</title>") && svg.text.contains("<title>b: running</title>"));
    let mermaid = gate.get(&format!("{path}/graph?format=mermaid")).await;
    assert!(mermaid.text.starts_with("flowchart") && mermaid.text.contains("succeeded"), "{}", mermaid.text);
    assert_eq!(gate.get(&format!("{path}/graph?format=png")).await.pointers(), ["/query/format"]);
}

/// The operation once it has ended.
async fn operation(gate: &Gate, body: &Value) -> Value {
    let asked = gate.post("/api/v1/runs/bulk", body).await;
    assert_eq!(asked.status, 202, "{}", asked.text);
    assert_eq!(asked.json["of"], "runs");
    let path = asked.headers["location"].to_str().unwrap().to_owned();
    until(Duration::from_secs(60), "the operation to end", async || {
        let now = gate.get(&path).await.json;
        (now["done"] == true).then_some(now)
    })
    .await
}

#[tokio::test]
async fn many_runs_are_paused_cancelled_and_rerun_by_a_filter() {
    let gate = Gate::start(&[]).await;
    let runs = service().await;
    let steps = json!([{"id": "a", "job": {"topic": "t"}}, {"id": "b", "needs": ["a"], "job": {"topic": "t"}}]);
    define(&gate, "chain", &json!({"steps": steps})).await;
    let mut paths = Vec::new();
    for n in 0..6 {
        paths.push(start(&gate, "chain", &json!({"labels": {"odd": (n % 2).to_string()}})).await);
    }
    let states = async |of: &[usize]| {
        let mut states = Vec::new();
        for n in of {
            states.push(gate.get(&paths[*n]).await.json["state"].as_str().unwrap().to_owned());
        }
        states
    };
    let odd = json!({"workflow": "chain", "labels": {"odd": "1"}});
    let dry = gate.post("/api/v1/runs/bulk", &json!({"action": "pause", "filter": odd, "dry_run": true})).await;
    assert_eq!((dry.status.as_u16(), &dry.json["matched"]), (200, &json!(3)), "{}", dry.text);
    let done = operation(&gate, &json!({"action": "pause", "filter": odd, "rate_per_s": 5_000})).await;
    assert_eq!((&done["action"], &done["counts"]["done"]), (&json!("pause"), &json!(3)), "{done}");
    assert_eq!(states(&[1, 3, 5]).await, ["paused"; 3]);
    assert_eq!(states(&[0, 2, 4]).await, ["running"; 3]);
    let wrong = gate.post("/api/v1/runs/bulk", &json!({"action": "retry", "filter": {"topic": "t"}})).await;
    assert_eq!(wrong.pointers(), ["/action"]);

    for path in [&paths[0], &paths[2]] {
        end_jobs(&runs, path, &["b"]).await;
    }
    let done = operation(&gate, &json!({"action": "rerun", "filter": {"workflow": "chain"}})).await;
    assert_eq!(done["counts"], json!({"matched": 2, "done": 2, "skipped": 0, "failed": 0}), "{done}");
    let all = gate.get("/api/v1/runs?state=running").await;
    let items = all.json["items"].as_array().unwrap();
    let reruns: Vec<&Value> = items.iter().filter(|run| !run["rerun_of"].is_null()).collect();
    assert_eq!(reruns.len(), 2, "{}", all.text);
    let new = format!("/api/v1/runs/{}", reruns[0]["id"].as_str().unwrap());
    assert_eq!(step(&gate, &new, "a").await["state"], "succeeded", "it goes on at the step that failed");

    let done = operation(&gate, &json!({"action": "cancel", "filter": {}, "canary": 2})).await;
    assert_eq!((&done["status"], &done["counts"]["done"]), (&json!("canary"), &json!(2)), "{done}");
    let done = operation(&gate, &json!({"action": "cancel", "filter": {}, "rate_per_s": 5_000})).await;
    assert_eq!(done["status"], "done", "{done}");
    for state in states(&[1, 3, 4, 5]).await {
        assert!(["stopping", "cancelled"].contains(&state.as_str()), "{state}");
    }
    assert_eq!(states(&[0, 2]).await, ["failed"; 2], "what has ended is left alone");
    let entries = told(&gate).await;
    let count = |action: &str| entries.iter().filter(|entry| *entry == action).count();
    assert_eq!((count("run_pause"), count("run_rerun")), (3, 2), "{entries:?}");
}
