//! Explanations of jobs on a real stack, in every state that a job can be brought into.

use std::time::Duration;

use futures_util::StreamExt;
use muster_sdk::HandlerError;
use muster_testkit::{bin, until};
use muster_tests::{Executions, Options, Probe, Setup, Stack, by_hand::HandWorker};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

async fn explained(gateway: &Probe, id: &str) -> Value {
    let answer = gateway.get(&format!("/jobs/{id}/explain")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.body["summary"], answer.body["sentences"][0]);
    answer.body
}

/// Waits until the job is in this state, and returns its explanation.
async fn once(gateway: &Probe, id: &str, state: &str) -> Value {
    until(SOON, &format!("{id} to be explained as {state}"), async || {
        Some(explained(gateway, id).await).filter(|said| said["state"] == state)
    })
    .await
}

#[track_caller]
fn says(explanation: &Value, text: &str) {
    let all = explanation["sentences"].as_array().expect("sentences");
    assert!(all.iter().any(|s| s.as_str().is_some_and(|s| s.contains(text))), "{text:?} is not in {explanation:#}");
}

#[tokio::test]
async fn a_job_is_explained_from_its_wait_to_its_end() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);

    // Scheduled: not before its time, with the times that end it.
    let wishes = json!({"topic": "t", "delay_ms": 3_600_000, "start_within_ms": 7_200_000, "expire_in_ms": 7_200_000});
    let later = gateway.submit(wishes).await;
    let said = once(&gateway, &later, "scheduled").await;
    says(&said, "It waits for its time and may start at");
    says(&said, "It expires if it has not started by");
    says(&said, "Its deadline is");
    says(&said, "0 of 5 attempts used, 5 left.");
    let job = gateway.job(&later).await;
    assert_eq!((&said["waits_for"], &said["may_start_at"]), (&json!("time"), &job["run_at"]));
    assert_eq!((&said["deadline"], &said["next_look"]["due"]), (&job["deadline"], &json!(false)));

    // Dispatched: no worker has come yet.
    let id = gateway.submit(json!({"topic": "told", "retry": {"max_attempts": 2}})).await;
    let said = once(&gateway, &id, "dispatched").await;
    says(&said, "It is offered to the workers of topic told of tenant default");
    assert_eq!(said["waits_for"], "worker");
    let said = until(SOON, "somebody to lead", async || {
        Some(explained(&gateway, &id).await).filter(|said| said["next_look"]["scheduler"].is_string())
    })
    .await;
    let look = &said["next_look"];
    assert_eq!((&look["by"], &look["scheduler"]), (&json!("reconciler"), &json!("scheduler-1")));
    let at = look["at"].as_str().expect("a moment");
    says(&said, &format!("the reconciler of scheduler scheduler-1 checks it at {at}"));

    // Running: the worker that holds it, and until when.
    let worker = HandWorker::on(&stack, "w1", "told").await;
    let attempt = worker.start_next().await;
    let said = once(&gateway, &id, "running").await;
    says(&said, "Worker w1 runs attempt 1 since");
    says(&said, "The worker's lease lasts until");
    assert_eq!((&said["holder"]["worker"], &said["holder"]["lease_ran_out"]), (&json!("w1"), &json!(false)));
    assert_eq!(said["holder"]["lease_until"], gateway.job(&id).await["lease_until"]);
    assert_eq!(said["attempts"], json!({"used": 1, "max": 2, "left": 1, "lost": 0, "given_back": 0}));

    // Given back, run again, succeeded.
    worker.release(&attempt).await;
    until(SOON, "the release", async || {
        Some(explained(&gateway, &id).await).filter(|said| said["attempts"]["given_back"] == 1)
    })
    .await;
    let again = worker.start_next().await;
    worker.succeed(&again, "true").await;
    let said = once(&gateway, &id, "succeeded").await;
    says(&said, "It succeeded in attempt 1 on worker w1");
    assert_eq!(
        (&said["done"], &said["waits_for"], &said["attempts"]["left"]),
        (&json!(true), &json!("nothing"), &json!(0))
    );
    assert!(said.get("holder").is_none());

    // Cancelled, with the reason.
    gateway.post(&format!("/jobs/{later}/cancel"), &json!({"reason": "changed our mind"})).await;
    let said = explained(&gateway, &later).await;
    says(&said, "It was cancelled (changed our mind) at");
    assert_eq!(said["refused_by"], json!({"event": "cancel", "reason": "changed our mind"}));

    // The command line shows the sentences, or the raw answer.
    let command = async |args: &[&str]| {
        let state = stack.folder().join("stack.json");
        let mut command = tokio::process::Command::new(bin("muster"));
        command.args(["job", "explain", &later, "--state-file"]).arg(state).args(args);
        let output = command.output().await.expect("muster runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = command(&[]).await;
    assert!(code == Some(0) && text.contains("is cancelled\n- It was cancelled (changed our mind) at"), "{text}");
    let (code, text) = command(&["-o", "json"]).await;
    let shown: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &shown["refused_by"]), (Some(0), &said["refused_by"]));
}

#[tokio::test]
async fn a_failed_attempt_and_a_failed_job_say_why() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "broken"), |_, payload| async move {
        let fault = HandlerError::retryable("the disk is full").code("no_space");
        Err(if payload["permanent"] == json!(true) {
            HandlerError::permanent("never").code("bad_input")
        } else {
            fault
        })
    });
    // The workers that could run it: none, or the one that has come.
    let (lonely, served) = (json!({"topic": "lonely"}), json!({"topic": "broken", "delay_ms": 3_600_000}));
    let (lonely, served) = (gateway.submit(lonely).await, gateway.submit(served).await);
    for (id, live, text) in [
        (&lonely, 0, "No live worker takes topic lonely of tenant default"),
        (&served, 1, "1 live worker takes this topic; 4 of its 4 slots are free"),
    ] {
        let said = until(SOON, "the workers to be known", async || {
            Some(explained(&gateway, id).await).filter(|said| said["workers"]["live"] == live)
        })
        .await;
        says(&said, text);
    }

    let backoff = json!({"initial_ms": 600_000, "max_ms": 600_000, "jitter": 0});
    let id =
        gateway.submit(json!({"topic": "broken", "payload": {}, "retry": {"max_attempts": 3, "backoff": backoff}}));
    let id = id.await;
    let said = once(&gateway, &id, "retrying").await;
    says(&said, "Attempt 1 did not succeed; attempt 2 may start at");
    says(&said, "Attempt 1 on worker w1 failed with no_space: the disk is full.");
    assert_eq!(said["next_retry_at"], gateway.job(&id).await["next_retry_at"]);
    assert_eq!(said["last_error"]["code"], "no_space");
    assert_eq!((&said["attempts"]["used"], &said["attempts"]["left"]), (&json!(1), &json!(2)));

    let id = gateway.submit(json!({"topic": "broken", "payload": {"permanent": true}})).await;
    let said = once(&gateway, &id, "failed").await;
    says(&said, "It failed in attempt 1 on worker w1 with bad_input: never, though attempts were left");
    let id = gateway.submit(json!({"topic": "nobody", "start_within_ms": 200})).await;
    says(&once(&gateway, &id, "expired").await, "It expired before it ever started with start_by_passed");
}

#[tokio::test]
async fn a_queued_job_knows_its_place_and_a_pending_one_that_nobody_decides() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let ids = gateway.submit_many(300, &json!({"topic": "crowd", "priority": "low"})).await;
    let said = once(&gateway, &ids[299], "queued").await;
    assert_eq!(said["waits_for"], "turn");
    // There is no worker, so the backlog stays unchanged once all jobs are decided.
    let (ahead, waiting) = until(SOON, "the backlog to stand still", async || {
        let said = explained(&gateway, &ids[299]).await;
        let (ahead, waiting) = (said["backlog"]["ahead"].as_u64()?, said["backlog"]["waiting"].as_u64()?);
        let undecided = gateway.get("/jobs?state=pending&topic=crowd").await;
        let page = gateway.get("/jobs?state=queued&topic=crowd&limit=500").await;
        let decided = undecided.body["items"].as_array()?.is_empty();
        (decided && page.body["items"].as_array()?.len() as u64 == waiting).then_some((ahead, waiting))
    })
    .await;
    assert!(waiting > 100 && ahead < waiting, "{ahead} of {waiting}");
    // An urgent job goes before all others, and their explanations show it.
    let urgent = gateway.submit(json!({"topic": "crowd", "priority": "critical"})).await;
    once(&gateway, &urgent, "queued").await;
    // The record is written a moment before the entry exists.
    let said = until(SOON, "its place", async || {
        Some(explained(&gateway, &urgent).await).filter(|said| said["backlog"].is_object())
    })
    .await;
    assert_eq!((&said["backlog"]["ahead"], &said["backlog"]["priority"]), (&json!(0), &json!("critical")));
    says(&said, "with priority critical: no job goes before it");
    let other = explained(&stack.gateway(2), &ids[299]).await;
    assert_eq!(other["backlog"]["ahead"], json!(ahead + 1), "any gateway says the same");

    for scheduler in ["scheduler-1", "scheduler-2"] {
        stack.signal(scheduler, Signal::SIGSTOP);
    }
    let id = gateway.submit(json!({"topic": "alone"})).await;
    let said = explained(&gateway, &id).await;
    assert_eq!((&said["state"], &said["waits_for"]), (&json!("pending"), &json!("decision")));
    says(&said, "It waits for a scheduler to decide about it");
    for scheduler in ["scheduler-1", "scheduler-2"] {
        stack.signal(scheduler, Signal::SIGCONT);
    }
    once(&gateway, &id, "dispatched").await;
}

#[tokio::test]
async fn an_end_that_no_worker_reported_says_who_brought_it_about() {
    let options = Options::default().env("MUSTER_OUTAGE_WAIT", "200ms").env("MUSTER_DECIDE_TOPICS", "asked");
    let stack = Stack::with(options).await;
    let gateway = stack.gateway(1);

    // The time limit, while a worker ran it.
    let slow = HandWorker::on(&stack, "slow", "long").await;
    let id = gateway.submit(json!({"topic": "long", "timeout_ms": 300, "retry": {"max_attempts": 1}})).await;
    slow.start_next().await;
    let said = once(&gateway, &id, "timed_out").await;
    says(&said, "It ran out of time in attempt 1 on worker slow with attempt_timeout");
    assert_eq!((&said["waits_for"], &said["attempts"]["left"]), (&json!("nothing"), &json!(0)));

    // Workers that never came back.
    let mut deadly = HandWorker::on(&stack, "deadly", "mute").await;
    deadly.lease_ms = 1_000;
    let backoff = json!({"initial_ms": 50, "jitter": 0});
    let mute = json!({"topic": "mute", "retry": {"max_attempts": 2, "backoff": backoff}});
    let id = gateway.submit(mute).await;
    deadly.start_next().await;
    deadly.start_next().await;
    let said = once(&gateway, &id, "quarantined").await;
    says(&said, "Every one of its 2 attempts lost its worker, so it is in quarantine with stale_timeout");
    assert_eq!(said["attempts"], json!({"used": 2, "max": 2, "left": 0, "lost": 2, "given_back": 0}));

    // A policy hook is asked. Until it answers, the job waits for the decision.
    let id = gateway.submit(json!({"topic": "asked"})).await;
    let said = once(&gateway, &id, "pending").await;
    assert_eq!((&said["waits_for"], &said["done"]), (&json!("decision"), &json!(false)));
    // The scheduler that asks holds the job's lock, which the API shows.
    let lock = until(SOON, "the job's lock", async || {
        let locks = gateway.get("/locks").await;
        locks.body["items"].as_array()?.iter().find(|lock| lock["job_id"] == id.as_str()).cloned()
    })
    .await;
    assert_eq!(lock["key"], format!("muster:scheduler:job:{id}"));
    assert_eq!((&lock["held"], &lock["holder"]), (&json!(true), &json!("scheduler-1")));
    assert!(lock["since"].as_str() >= said["since"].as_str() && lock["fence"].is_u64(), "{lock}");
    let bus = async_nats::connect(stack.state().nats_url).await.expect("a connection");
    let mut asked = bus.subscribe("sys.job.decide").await.expect("a subscription");
    bus.flush().await.expect("heard");
    let question = asked.next().await.expect("a question");
    let no = json!({"decision": "deny", "reason": "rule 7"}).to_string();
    bus.publish(question.reply.expect("who asks"), no.into()).await.expect("an answer");
    let said = once(&gateway, &id, "denied").await;
    says(&said, "It was denied (rule 7) at");
    assert_eq!(said["refused_by"], json!({"event": "deny", "reason": "rule 7"}));
}
