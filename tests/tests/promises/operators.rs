//! What an operator relies on: every stuck job can be removed, and all gateways report the same.

use std::time::{Duration, Instant};

use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack, WorkerProcess};
use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{SOON, one_end};

#[tokio::test]
async fn every_stuck_job_can_be_got_rid_of() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let _broken = runs.worker(&stack, Setup::new("w1", "broken"), |_, _| async {
        Err::<Value, _>(muster_sdk::HandlerError::retryable("not yet"))
    });
    // A worker that hangs with all its jobs: its process is stopped, not dead.
    let args = ["--topic", "hung", "--builtin", "sleep", "--concurrency", "4", "--lease", "5m", "--id", "hanging"];
    let hanging = WorkerProcess::start(&stack, &args);
    let running = one.submit(json!({"topic": "hung", "payload": {"ms": 600_000}})).await;
    one.reaches(&running, "running", SOON).await;
    hanging.signal(Signal::SIGSTOP);

    let scheduled = one.submit(json!({"topic": "nobody", "delay_ms": 600_000})).await;
    let backoff = json!({"initial_ms": 600_000, "max_ms": 600_000, "jitter": 0});
    let retrying = one.submit(json!({"topic": "broken", "retry": {"max_attempts": 3, "backoff": backoff}})).await;
    let crowd = one.submit_many(200, &json!({"topic": "nobody"})).await;
    one.reaches(&retrying, "retrying", SOON).await;
    let mut stuck = vec![(running, "running"), (scheduled, "scheduled"), (retrying, "retrying")];
    for state in ["dispatched", "queued"] {
        let found = until(SOON, state, async || {
            let page = two.get(&format!("/jobs?topic=nobody&limit=1&state={state}")).await;
            page.body["items"][0]["id"].as_str().map(str::to_owned)
        });
        stuck.push((found.await, state));
    }
    // The schedulers hang, so no job is decided: pending.
    let schedulers = ["scheduler-1", "scheduler-2"];
    for name in &schedulers {
        stack.signal(name, Signal::SIGSTOP);
    }
    stuck.push((one.submit(json!({"topic": "nobody"})).await, "pending"));

    for (id, state) in &stuck {
        assert_eq!(two.job(id).await["state"], *state);
        let cancelled = two.post(&format!("/jobs/{id}/cancel"), &json!({"reason": "stuck"})).await;
        assert_eq!((cancelled.status.as_u16(), cancelled.field("state")), (200, &json!("cancelled")), "{state}");
        assert_eq!(one.job(id).await["state"], "cancelled", "{state}: at once, whoever hangs");
    }
    for name in &schedulers {
        stack.signal(name, Signal::SIGCONT);
    }
    for (id, state) in &stuck {
        assert_eq!(one_end(&one, id).await["state"], "cancelled", "{state}");
        let path = format!("/api/v1/jobs/{id}");
        until(SOON, "it to be deleted", async || {
            let answer = one.send(Method::DELETE, &path, &[], None).await.unwrap();
            [204, 404].contains(&answer.status.as_u16()).then_some(())
        })
        .await;
        assert_eq!(two.get(&format!("/jobs/{id}")).await.status, 404, "{state}");
    }
    // And all jobs of a topic at once.
    let asked = two.post("/jobs/bulk", &json!({"action": "cancel", "filter": {"topic": "nobody"}})).await;
    assert_eq!(asked.status, 202, "{}", asked.text);
    for id in crowd.iter().filter(|id| !stuck.iter().any(|(gone, _)| gone == *id)) {
        assert_eq!(one_end(&one, id).await["state"], "cancelled");
    }
    hanging.signal(Signal::SIGCONT);
    assert!(runs.all().iter().all(|run| run.attempt == 1));
}

async fn workers(gateway: &Probe) -> Vec<String> {
    let answer = gateway.get("/workers").await;
    let items = answer.body["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|worker| worker["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn what_one_gateway_is_told_the_other_knows_also_when_the_snapshots_writer_dies() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let slow = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    };
    let _b = runs.worker(&stack, Setup::new("w-b", "both"), slow);
    let a = runs.worker(&stack, Setup::new("w-a", "both"), slow);
    let id = one.submit(json!({"topic": "both", "payload": {"ms": 1_000}})).await;
    let path = format!("/jobs/{id}");
    let (read, waited) = tokio::join!(two.get(&path), two.ended(&id, SOON));
    assert_eq!((read.status.as_u16(), waited["state"].as_str()), (200, Some("succeeded")));
    let id = two.submit(json!({"topic": "both", "payload": {"ms": 60_000}})).await;
    one.reaches(&id, "running", SOON).await;
    assert_eq!(one.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
    assert_eq!(two.job(&id).await["state"], "cancelled");

    let shown = async || {
        let (first, second) = (workers(&one).await, workers(&two).await);
        (first == second).then_some(first)
    };
    let both = ["w-a".to_owned(), "w-b".to_owned()];
    until(SOON, "both workers", async || shown().await.filter(|names| *names == both)).await;
    // The writer of the snapshot dies, one worker leaves and another comes meanwhile.
    let leads = async |name: &str| stack.loops(name).await["snapshot"]["state"] == "leading";
    let writer = if leads("scheduler-1").await { "scheduler-1" } else { "scheduler-2" };
    stack.kill9(writer);
    let died = Instant::now();
    a.drain().await;
    let _c = runs.worker(&stack, Setup::new("w-c", "both"), slow);
    let now = ["w-b".to_owned(), "w-c".to_owned()];
    until(SOON, "both gateways to show who is there now", async || shown().await.filter(|names| *names == now)).await;
    assert!(died.elapsed() < Duration::from_secs(55), "converged after {:?}", died.elapsed());
}
