//! More than the stack can do: what is accepted ends, what is refused is told when to come back, and
//! what runs keeps running.
//!
//! The flood is `muster bench overload`, which checks answers, memory and delivery itself; the same
//! for a minute by hand: `muster bench overload --own`.

use std::{
    process::{Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use muster_testkit::{bin, until};
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack};
use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    sync::Semaphore,
};

const LONG: Duration = Duration::from_secs(120);
/// How long the flood lasts.
const FLOOD: Duration = Duration::from_secs(20);

/// Starts a flood on this stack, with these arguments after `bench overload`.
fn flood(stack: &Stack, tenant: &str, args: &[&str]) -> Child {
    Command::new(bin("muster"))
        .arg("--state-file")
        .arg(stack.folder().join("stack.json"))
        .args(["--tenant", tenant, "--output", "json", "bench", "overload", "--patience", "120s", "--answer", "20s"])
        // As many as may wait to be taken by the gateways, slow as an unoptimised one is beside other tests.
        .args(["--connections", "6000"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a flood")
}

/// What the flood found; it must have found no fault.
fn borne(flood: &Output) -> Value {
    let (said, complaint) = (String::from_utf8_lossy(&flood.stdout), String::from_utf8_lossy(&flood.stderr));
    assert!(flood.status.success(), "{complaint}\n{said}");
    serde_json::from_str(&said).unwrap_or_else(|fault| panic!("{fault}: {said}"))
}

#[tokio::test]
async fn a_flood_at_three_times_the_peak_is_borne_and_nothing_that_runs_is_stolen() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let over = Arc::new(Semaphore::new(0));
    let mut setup = Setup::new("keeper", "long");
    setup.slots = 8;
    // Several extensions fall into the flood, and none of them may be late by much.
    setup.lease = Duration::from_secs(10);
    let until_over = over.clone();
    let _keeper = runs.worker(&stack, setup, move |_, _| {
        let over = until_over.clone();
        async move {
            let _ = over.acquire().await;
            Ok(json!("kept"))
        }
    });
    let long = gateway.submit_many(8, &json!({"topic": "long"})).await;
    runs.reach(8, LONG).await;

    let lasts = format!("{}s", FLOOD.as_secs());
    let told = borne(&flood(&stack, "default", &["--for", &lasts, "--times", "3"]).wait_with_output().await.unwrap());
    // Three times the peak are offered, as it was measured a moment ago. A request that finds every connection busy does
    // not arrive; of the others the gateways refuse what they cannot take in time. Meanwhile they go on accepting.
    let refused: f64 = told["refused"].as_object().expect("refusals").values().filter_map(Value::as_f64).sum();
    let accepted = told["accepted"].as_f64().expect("a number");
    let peak = told["peak"].as_f64().expect("a number") * FLOOD.as_secs_f64();
    eprintln!("{:.2} times the peak arrived: {told}", (accepted + refused) / peak);
    assert!(accepted > peak / 4.0, "the flood keeps the gateways from accepting: {told}");
    assert_eq!(told["refused_without_retry_after"], 0, "{told}");

    over.add_permits(8);
    for id in &long {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((&job["state"], &job["attempt"], &job["result"]), (&json!("succeeded"), &json!(1), &json!("kept")));
    }
    assert_eq!(runs.all().len(), 8, "nothing that ran was given to another worker");
}

/// Submits that nobody handles do not pile up for ever: past `MUSTER_MAX_SUBMIT_LAG` they are refused, by that
/// alone, and taken again once the schedulers have caught up.
#[tokio::test]
async fn when_schedulers_are_too_far_behind_submits_are_refused_until_they_have_caught_up() {
    let limit = Duration::from_secs(3);
    let stack = Stack::with(Options::two().env("MUSTER_MAX_SUBMIT_LAG", "3s")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let job = json!({"topic": "t", "payload": 1});
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "t");
    let old = one.submit(job.clone()).await;
    one.ended(&old, LONG).await;
    let schedulers = |signal| ["scheduler-1", "scheduler-2"].map(|name| stack.signal(name, signal));

    // However long nobody handles anything: what was never submitted is not late.
    schedulers(Signal::SIGSTOP);
    let stopped = Instant::now();
    until(LONG, "an idle while", async || (stopped.elapsed() > limit * 2).then_some(())).await;
    let submitted = Instant::now();
    // Both at once: neither is late when the other one is asked.
    let (a, b) = tokio::join!(one.submit(job.clone()), two.submit(job.clone()));
    let mut ids = vec![a, b];

    let overloaded = |answer: &Answer| {
        assert_eq!((answer.status.as_u16(), answer.field("code")), (503, &json!("overloaded")), "{}", answer.text);
        assert!(answer.header("retry-after").is_some_and(|wait| wait != "0"), "{:?}", answer.headers);
    };
    for gateway in [&one, &two] {
        let refusal = until(LONG, "a refusal", async || {
            let answer = gateway.post("/jobs", &job).await;
            let accepted = answer.status == 202;
            ids.extend(accepted.then(|| answer.id()));
            (!accepted).then_some(answer)
        })
        .await;
        overloaded(&refusal);
        assert!(submitted.elapsed() > limit, "{:?}", submitted.elapsed());
    }
    let body = || Some(job.to_string().into_bytes());
    let keyed = async || one.send(Method::POST, "/api/v1/jobs", &[("Idempotency-Key", "k")], body()).await.unwrap();
    overloaded(&keyed().await);
    overloaded(&one.post("/jobs/batch", &json!({"items": [job, job]})).await);
    overloaded(&one.post(&format!("/jobs/{old}/retry"), &json!({})).await);
    assert_eq!(one.job(&old).await["state"], "succeeded", "what is there can be read");
    assert_eq!(one.listed("topic=t").await.len(), ids.len() + 1, "what was refused is not stored");
    assert!(stack.metric("gateway", "muster_submit_lag_seconds").await > limit.as_secs_f64());

    // Without NATS nobody knows how far behind anybody is: submits are taken, as in any outage of it.
    stack.signal("nats-1", Signal::SIGSTOP);
    let taken = async |gateway: &Probe| {
        until(LONG, "submits to be taken", async || {
            let answer = gateway.post("/jobs", &job).await;
            (answer.status == 202).then_some(answer)
        })
        .await
    };
    let deferred = taken(&one).await;
    assert_eq!(deferred.header("muster-bus"), Some("deferred"));
    ids.push(deferred.id());
    stack.signal("nats-1", Signal::SIGCONT);

    schedulers(Signal::SIGCONT);
    for gateway in [&one, &two] {
        ids.push(taken(gateway).await.id());
    }
    let first = until(LONG, "the key to be taken", async || Some(keyed().await).filter(|it| it.status == 202)).await;
    assert_eq!(first.header("idempotency-replayed"), None, "nothing was stored under it before");
    ids.push(first.id());
    for id in &ids {
        assert_eq!(one.ended(id, LONG).await["state"], "succeeded");
        assert_eq!(runs.of(id).len(), 1, "{id} ran once");
    }
}
