//! A store that is away for a while: what clients, readiness and running jobs see of it.

use std::{
    fs,
    time::{Duration, Instant},
};

use muster_bus::{ConsumerSpec, subjects};
use muster_testkit::until;
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack, TestWorker, by_hand::bus_of};
use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(120);
const LEASE: Duration = Duration::from_secs(3);

/// Sleeps as long as the payload says, under a lease much shorter than the outages here.
fn sleeper(runs: &Executions, stack: &Stack) -> TestWorker {
    let mut setup = Setup::new("w1", "away");
    setup.slots = 32;
    setup.lease = LEASE;
    runs.worker(stack, setup, |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    })
}

fn job(ms: u64) -> Value {
    json!({"topic": "away", "payload": {"ms": ms}, "retry": {"max_attempts": 1}})
}

async fn timed(gateway: &Probe, method: Method, path: &str, body: Option<Value>) -> (Answer, Duration) {
    let began = Instant::now();
    let body = body.map(|body| body.to_string().into_bytes());
    let answer = gateway.send(method, path, &[], body).await.expect("an answer");
    (answer, began.elapsed())
}

async fn readiness(stack: &Stack, name: &str) -> (u16, String) {
    let admin = Probe::new(stack.process(name).admin.unwrap(), String::new());
    let answer = admin.send(Method::GET, "/readyz", &[], None).await.expect("an answer");
    (answer.status.as_u16(), answer.body["status"].as_str().unwrap_or_default().to_owned())
}

async fn says(stack: &Stack, name: &str, code: u16, status: &str) {
    until(SOON, &format!("{name} to say {status}"), async || {
        (readiness(stack, name).await == (code, status.to_owned())).then_some(())
    })
    .await;
}

/// Everything ended well at its first attempt: nobody was rescued from a worker that lives.
async fn all_ran_once(gateway: &Probe, runs: &Executions, ids: &[String]) {
    for id in ids {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
        assert_eq!(runs.of(id).len(), 1, "{id} ran once");
    }
}

/// Submits for as long as asked; each must be accepted within a second. Their ids.
async fn submit_while(gateway: &Probe, span: Duration) -> Vec<String> {
    let (began, mut ids) = (Instant::now(), Vec::new());
    while began.elapsed() < span {
        let (answer, took) = timed(gateway, Method::POST, "/api/v1/jobs", Some(job(0))).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        assert_eq!(answer.header("muster-bus"), Some("deferred"), "the answer says that only Redis holds it");
        assert!(took < Duration::from_secs(1), "took {took:?}");
        ids.push(answer.id());
    }
    ids
}

#[tokio::test]
async fn submits_are_accepted_while_nats_hangs_and_run_afterwards() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    let mut ids = gateway.submit_many(10, &job(13_000)).await;
    runs.reach(10, SOON).await;

    stack.signal("nats-1", Signal::SIGSTOP);
    ids.extend(submit_while(&gateway, Duration::from_secs(10)).await);
    says(&stack, "scheduler-1", 503, "unready").await;
    says(&stack, "gateway-1", 200, "degraded").await;
    stack.signal("nats-1", Signal::SIGCONT);

    all_ran_once(&gateway, &runs, &ids).await;
    for name in ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2"] {
        says(&stack, name, 200, "ready").await;
    }
    let after = gateway.submit(job(0)).await;
    all_ran_once(&gateway, &runs, &[after]).await;
}

#[tokio::test]
async fn submits_are_accepted_while_nats_is_down_and_run_afterwards() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(2);
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    let mut ids = gateway.submit_many(10, &job(10_000)).await;
    runs.reach(10, SOON).await;

    // Without its configuration the server that died cannot be started again.
    let config = stack.folder().join("data/single/nats-1/nats.conf");
    let kept = stack.folder().join("nats.conf");
    fs::rename(&config, &kept).unwrap();
    let died = stack.kill9("nats-1");
    ids.extend(submit_while(&gateway, Duration::from_secs(6)).await);
    says(&stack, "scheduler-2", 503, "unready").await;
    says(&stack, "gateway-2", 200, "degraded").await;
    fs::rename(&kept, &config).unwrap();
    stack.replaced("nats-1", died).await;

    all_ran_once(&gateway, &runs, &ids).await;
    for name in ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2"] {
        says(&stack, name, 200, "ready").await;
    }
}

#[tokio::test]
async fn a_redis_that_hangs_is_answered_with_503_and_steals_no_job() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    let mut ids = one.submit_many(10, &job(20_000)).await;
    runs.reach(10, SOON).await;
    // These end while Redis is away: their results wait.
    let ending = one.submit_many(5, &job(3_000)).await;
    runs.reach(15, SOON).await;

    stack.signal("redis-1", Signal::SIGSTOP);
    let began = Instant::now();
    let path = format!("/api/v1/jobs/{}", ids[0]);
    let asks = [
        (Method::POST, "/api/v1/jobs".to_owned(), Some(job(0))),
        (Method::POST, "/api/v1/jobs/batch".to_owned(), Some(json!({"items": [job(0), job(0)]}))),
        (Method::GET, path.clone(), None),
        (Method::GET, format!("{path}?wait_ms=20000"), None),
        (Method::GET, format!("{path}/history"), None),
        (Method::POST, format!("{path}/cancel"), Some(json!({}))),
        (Method::POST, format!("{path}/retry"), Some(json!({}))),
        (Method::GET, "/api/v1/jobs".to_owned(), None),
        (Method::GET, "/api/v1/keys".to_owned(), None),
    ];
    let mut rounds = 0;
    while rounds < 1 || began.elapsed() < Duration::from_secs(12) {
        for gateway in [&one, &two] {
            let all = asks.iter().map(|(method, path, body)| async move {
                (path, timed(gateway, method.clone(), path, body.clone()).await)
            });
            for (path, (answer, took)) in futures_util::future::join_all(all).await {
                let refused = match path.ends_with("/batch") && answer.status == 200 {
                    // Answered item by item.
                    true => answer.body["items"][0]["error"].clone(),
                    false => answer.body.clone(),
                };
                assert_eq!(
                    (&refused["status"], &refused["code"]),
                    (&json!(503), &json!("store_unavailable")),
                    "{path}"
                );
                assert!(answer.header("retry-after").is_some(), "{path} says when to come back");
                assert!(took < Duration::from_millis(2_500), "{path} took {took:?}");
            }
        }
        rounds += 1;
    }
    for n in 1..=2 {
        says(&stack, &format!("gateway-{n}"), 200, "degraded").await;
        says(&stack, &format!("scheduler-{n}"), 503, "unready").await;
    }
    stack.signal("redis-1", Signal::SIGCONT);

    for name in ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2"] {
        says(&stack, name, 200, "ready").await;
    }
    ids.extend(ending);
    ids.push(two.submit(job(0)).await);
    // A cancel that was refused may have come through all the same: it was asked for.
    let cancelled = ids.remove(0);
    let end = one.ended(&cancelled, LONG).await;
    assert!(["succeeded", "cancelled"].contains(&end["state"].as_str().unwrap()), "{end}");
    all_ran_once(&one, &runs, &ids).await;
    assert!(runs.counts().values().all(|n| *n == 1), "nothing ran twice");
}

#[tokio::test]
async fn results_count_though_schedulers_hang_and_the_stream_that_took_them_is_wiped() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    let bus = bus_of(&stack, "looker").await;
    let mut ids = gateway.submit_many(5, &job(15_000)).await;
    ids.extend(gateway.submit_many(5, &job(1_500)).await);
    runs.reach(10, SOON).await;

    let paused = Instant::now();
    for name in ["scheduler-1", "scheduler-2"] {
        stack.signal(name, Signal::SIGSTOP);
    }
    let results = ConsumerSpec::scheduler(subjects::result());
    until(SOON, "results that nobody handles", async || {
        let state = bus.consumer_state(&results).await.ok()?;
        (state.pending + state.unacked > 0 && paused.elapsed() > Duration::from_secs(2)).then_some(())
    })
    .await;
    let died = stack.kill9("nats-1");
    fs::rename(stack.folder().join("data/single/nats-1/jetstream"), stack.folder().join("what-nats-held")).unwrap();
    stack.replaced("nats-1", died).await;
    until(SOON, "every lease to be over", async || (paused.elapsed() > LEASE * 3).then_some(())).await;
    for name in ["scheduler-1", "scheduler-2"] {
        stack.signal(name, Signal::SIGCONT);
    }
    all_ran_once(&gateway, &runs, &ids).await;
}
