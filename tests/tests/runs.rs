//! Runs of workflows on whole stacks: replicas killed in the middle, NATS wiped, a gateway killed while it starts runs.
//! Every job of a run is executed once, and every run ends as its definition says. `services/workflow/tests` has crashes
//! between any two writes.

use std::{collections::HashMap, fs, time::Duration};

use futures_util::{StreamExt, stream};
use muster_testkit::until;
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack, TestWorker};
use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(150);

/// Items, then two branches beside each other, then a join that reads them.
fn order() -> Value {
    json!({
        "steps": [
            {"id": "reserve",
             "for_each": {"items": "input.lines", "as": "line", "max_parallel": 8, "collect": "steps.reserve.result.n"},
             "job": {"topic": "stock", "payload": {"n": "${{ line }}"}},
             "retry": {"max_attempts": 1}},
            {"id": "both", "needs": ["reserve"], "parallel": {"branches": {
                "pay": [{"id": "charge", "job": {"topic": "stock", "payload": {"n": 1000}}}],
                "pack": [{"id": "rest", "delay": {"ms": 300}},
                         {"id": "box", "needs": ["rest"], "job": {"topic": "stock", "payload": {"n": 2000}}}],
            }}},
            {"id": "send", "needs": ["both"], "job": {"topic": "stock", "payload": {"n": "${{ size(steps.reserve.items) }}"}}},
        ],
        "output": {"lines": "${{ steps.reserve.items.map(each, each.result) }}", "sent": "${{ steps.send.result.n }}"},
    })
}

/// The jobs that a run of `order` has besides its items.
const OTHERS: usize = 3;

async fn define(gateway: &Probe, name: &str, definition: &Value) {
    let body = Some(definition.to_string().into_bytes());
    let answer = gateway.send(Method::PUT, &format!("/api/v1/workflows/{name}"), &[], body).await.expect("an answer");
    assert!(answer.status.is_success(), "{} {}", answer.status, answer.text);
}

/// Starts a run with an idempotency key; `None` if there was no answer.
async fn start_as(gateway: &Probe, workflow: &str, key: &str, input: &Value) -> Option<Answer> {
    let body = Some(json!({ "input": input }).to_string().into_bytes());
    let path = format!("/api/v1/workflows/{workflow}/runs");
    gateway.send(Method::POST, &path, &[("Idempotency-Key", key)], body).await.ok()
}

async fn start(gateway: &Probe, workflow: &str, input: Value) -> String {
    let answer = gateway.post(&format!("/workflows/{workflow}/runs"), &json!({ "input": input })).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    answer.id()
}

async fn ended(gateway: &Probe, id: &str, within: Duration) -> Value {
    until(within, &format!("run {id} to end"), async || {
        let run = gateway.get(&format!("/runs/{id}?wait_ms=5000")).await.body;
        (run["done"] == json!(true)).then_some(run)
    })
    .await
}

async fn step_is(gateway: &Probe, id: &str, step: &str, state: &str) {
    until(SOON, &format!("step {step} of {id} to be {state}"), async || {
        let run = gateway.get(&format!("/runs/{id}")).await.body;
        let steps = run["steps"].as_array()?;
        steps.iter().any(|each| each["id"] == step && each["state"] == state).then_some(())
    })
    .await;
}

async fn explained(gateway: &Probe, id: &str) -> String {
    gateway.get(&format!("/runs/{id}/explain")).await.text
}

async fn nothing_is_left(stack: &Stack) {
    let store = stack.store().await;
    until(SOON, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
}

fn worker(runs: &Executions, stack: &Stack, id: &str, takes: Duration) -> TestWorker {
    let mut setup = Setup::new(id, "stock");
    setup.slots = 16;
    runs.worker(stack, setup, move |_, payload| async move {
        tokio::time::sleep(takes).await;
        Ok(payload)
    })
}

/// Checks that every run of `order` ended well and each of its jobs was executed once.
async fn all_ended_once(gateway: &Probe, ids: &[String], lines: usize, executed: &Executions) {
    let expected = json!({"lines": (0..lines).collect::<Vec<_>>(), "sent": lines});
    for id in ids {
        let run = ended(gateway, id, LONG).await;
        assert_eq!(run["state"], json!("succeeded"), "{run}\n{}", explained(gateway, id).await);
        assert_eq!(run["output"], expected, "{id}");
    }
    let counts = executed.counts();
    let twice: HashMap<&String, &usize> = counts.iter().filter(|(_, n)| **n != 1).collect();
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
    assert_eq!(counts.len(), ids.len() * (lines + OTHERS), "no job too many, none too few");
}

#[tokio::test]
async fn runs_go_on_when_the_replicas_that_own_them_are_killed() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let executed = Executions::default();
    let _worker = worker(&executed, &stack, "w1", Duration::from_millis(150));
    define(&one, "order", &order()).await;
    let lines: Vec<usize> = (0..30).collect();
    let mut ids = Vec::new();
    for n in 0..8 {
        ids.push(start(if n % 2 == 0 { &one } else { &two }, "order", json!({ "lines": lines })).await);
    }
    executed.reach(30, SOON).await;
    let first = stack.kill9("workflow-1");
    stack.replaced("workflow-1", first).await;
    executed.reach(120, LONG).await;
    stack.kill9("workflow-2");
    assert!(executed.all().len() < 8 * (30 + OTHERS), "killed in the middle of the runs");
    all_ended_once(&two, &ids, 30, &executed).await;
    nothing_is_left(&stack).await;
}

#[tokio::test]
async fn a_nats_that_comes_back_empty_disturbs_no_run() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let executed = Executions::default();
    let _worker = worker(&executed, &stack, "w1", Duration::from_millis(150));
    define(&one, "order", &order()).await;
    define(&one, "hold", &json!({"steps": [{"id": "go", "wait_signal": {"name": "go"}}]})).await;
    let lines: Vec<usize> = (0..30).collect();
    let held = start(&one, "hold", Value::Null).await;
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(start(if n % 2 == 0 { &one } else { &two }, "order", json!({ "lines": lines })).await);
    }
    executed.reach(40, SOON).await;
    let store = stack.folder().join("data/single/nats-1/jetstream");
    let nats = stack.take_down("nats-1");
    fs::rename(&store, stack.folder().join("what-nats-held")).unwrap();
    assert!(executed.all().len() < 6 * (30 + OTHERS), "wiped in the middle of the runs");
    // A start and a signal that the bus never hears of.
    ids.push(start(&two, "order", json!({ "lines": lines })).await);
    let signalled = one.post(&format!("/runs/{held}/signals/go"), &json!({"by": "ann"})).await;
    assert_eq!(signalled.status, 200, "{}", signalled.text);
    nats.comes_back().await;

    all_ended_once(&one, &ids, 30, &executed).await;
    assert_eq!(ended(&two, &held, LONG).await["state"], json!("succeeded"));
    nothing_is_left(&stack).await;
}

#[tokio::test]
async fn a_start_that_a_dying_gateway_answered_or_did_not_answer_is_one_run() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let executed = Executions::default();
    let _worker = worker(&executed, &stack, "w1", Duration::ZERO);
    define(&one, "order", &order()).await;
    let input = json!({"lines": [0, 1]});
    let keys: Vec<String> = (0..60).map(|n| format!("order-{n}")).collect();
    let answered = std::sync::atomic::AtomicUsize::new(0);
    let answers: Vec<(&String, Option<Answer>)> = stream::iter(&keys)
        .map(|key| {
            let (one, input, stack, answered) = (&one, &input, &stack, &answered);
            async move {
                let answer = start_as(one, "order", key, input).await;
                if answer.is_some() && answered.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == 20 {
                    stack.kill9("gateway-1");
                }
                (key, answer)
            }
        })
        .buffer_unordered(8)
        .collect()
        .await;
    assert!(answers.iter().any(|(_, answer)| answer.is_none()), "killed while it started runs");
    let mut ids = Vec::new();
    for (key, first) in answers {
        let again = start_as(&two, "order", key, &input).await.expect("the other gateway answers");
        assert_eq!(again.status, 202, "{}", again.text);
        if let Some(first) = first.filter(|first| first.status == 202) {
            assert_eq!(first.id(), again.id(), "the same key is the same run");
        }
        ids.push(again.id());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), keys.len());
    all_ended_once(&two, &ids, 2, &executed).await;
    nothing_is_left(&stack).await;
}

#[tokio::test]
async fn a_run_is_paused_signalled_resumed_and_cancelled_at_any_gateway_while_its_owner_is_frozen() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let executed = Executions::default();
    let _worker = worker(&executed, &stack, "w1", Duration::from_millis(10));
    let definition = json!({"steps": [
        {"id": "first", "job": {"topic": "stock", "payload": {"n": 1}},
         "compensate": {"job": {"topic": "stock", "payload": {"n": -1}}}},
        {"id": "go", "needs": ["first"], "wait_signal": {"name": "go"}},
        {"id": "second", "needs": ["go"], "job": {"topic": "stock", "payload": {"n": 2}}},
        {"id": "stop", "needs": ["second"], "wait_signal": {"name": "stop"}},
    ]});
    define(&gateway, "held", &definition).await;
    let id = start(&gateway, "held", Value::Null).await;
    step_is(&gateway, &id, "go", "running").await;

    stack.signal("workflow-1", Signal::SIGSTOP);
    for (what, body) in [("pause", json!({})), ("signals/go", json!(7)), ("resume", json!({}))] {
        let answer = gateway.post(&format!("/runs/{id}/{what}"), &body).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text);
    }
    stack.signal("workflow-1", Signal::SIGCONT);
    step_is(&gateway, &id, "stop", "running").await;

    stack.signal("workflow-1", Signal::SIGSTOP);
    let cancelled = gateway.post(&format!("/runs/{id}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text);
    stack.signal("workflow-1", Signal::SIGCONT);
    let run = ended(&gateway, &id, SOON).await;
    assert_eq!((&run["state"], &run["compensation"]["failed"]), (&json!("cancelled"), &json!(0)), "{run}");
    assert_eq!(executed.all().len(), 3, "two steps and one compensation");
    assert!(executed.counts().values().all(|n| *n == 1), "each once");
    nothing_is_left(&stack).await;
}
