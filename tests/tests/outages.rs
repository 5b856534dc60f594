//! A store that is away for a while: what clients, readiness and running jobs see of it.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, Ordering},
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
const MINUTE: Duration = Duration::from_secs(60);
/// No answer takes longer, however busy the machine is.
const LATEST: Duration = Duration::from_secs(15);
const LEASE: Duration = Duration::from_secs(5);
/// A leader's lease.
const LEADING: Duration = Duration::from_secs(15);
const REPLICAS: [&str; 6] = ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2", "workflow-1", "workflow-2"];

/// A worker that sleeps as long as the payload says, with a lease much shorter than the outages here.
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

/// Everything succeeded at its first attempt: no job was taken from a live worker.
async fn all_ran_once(gateway: &Probe, runs: &Executions, ids: &[String]) {
    for id in ids {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    let counts = runs.counts();
    for id in ids {
        assert_eq!(counts.get(id), Some(&1), "{id} ran once");
    }
}

/// The number of attempts that were ended because their worker was silent.
async fn rescued(stack: &Stack) -> f64 {
    let mut lost = 0.0;
    for process in stack.state().processes.into_iter().filter(|p| p.service == "scheduler") {
        let admin = Probe::new(process.admin.unwrap(), String::new());
        let scrape = admin.send(Method::GET, "/metrics", &[], None).await.expect("an answer").text;
        let lines = scrape.lines().filter(|line| line.starts_with("muster_job_attempts_total{"));
        let ours = lines.filter(|line| line.contains("outcome=\"lost\""));
        lost += ours.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>();
    }
    lost
}

/// On a busy machine a few answers are late, but never most of them.
fn most_within(limit: Duration, took: &[Duration]) {
    let longest = took.iter().max().expect("some answers");
    assert!(*longest < LATEST, "an answer took {longest:?}");
    let late = took.iter().filter(|took| **took > limit).count();
    assert!(late * 2 < took.len(), "{late} of {} answers took longer than {limit:?}", took.len());
}

/// Submits for this long, some ten jobs a second. Each must be accepted, usually within a second. Returns their ids.
async fn submit_while(gateway: &Probe, span: Duration) -> Vec<String> {
    let (began, mut ids, mut all) = (Instant::now(), Vec::new(), Vec::new());
    while began.elapsed() < span {
        let (answer, took) = timed(gateway, Method::POST, "/api/v1/jobs", Some(job(0))).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
        assert_eq!(answer.header("muster-bus"), Some("deferred"), "the answer says that only Redis holds it");
        all.push(took);
        ids.push(answer.id());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    most_within(Duration::from_secs(1), &all);
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
    for name in REPLICAS {
        says(&stack, name, 200, "ready").await;
    }
    let after = gateway.submit(job(0)).await;
    all_ran_once(&gateway, &runs, &[after]).await;
}

#[tokio::test]
async fn submits_are_accepted_while_nats_is_down_for_a_minute_and_run_afterwards() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(2);
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    // Some jobs end while NATS is away, some run through all of it: twenty leases long.
    let mut ids = gateway.submit_many(10, &job(10_000)).await;
    ids.extend(gateway.submit_many(5, &job(70_000)).await);
    runs.reach(15, SOON).await;

    let nats = stack.take_down("nats-1");
    ids.extend(submit_while(&gateway, MINUTE).await);
    for n in 1..=2 {
        says(&stack, &format!("scheduler-{n}"), 503, "unready").await;
        says(&stack, &format!("gateway-{n}"), 200, "degraded").await;
    }
    assert_eq!(runs.all().len(), 15, "nothing can be started without NATS");
    nats.comes_back().await;

    // The job that was accepted last would be looked at in half a minute; its gateway need not wait for that.
    gateway.ended(ids.last().expect("some were accepted"), Duration::from_secs(25)).await;
    all_ran_once(&gateway, &runs, &ids).await;
    for name in REPLICAS {
        says(&stack, name, 200, "ready").await;
    }
    assert_eq!(rescued(&stack).await, 0.0, "nobody was taken from a worker that lives");
}

#[tokio::test]
async fn a_redis_that_refuses_for_a_minute_stops_leaders_and_starts_and_all_resume() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    // Of 32 slots, 12 are taken for longer than the outage, and 6 jobs end while it lasts. The others are short jobs
    // that wait for a slot of the worker, so that offers remain on the bus.
    let mut ids = one.submit_many(12, &job(70_000)).await;
    ids.extend(two.submit_many(6, &job(8_000)).await);
    ids.extend(one.submit_many(100, &job(4_000)).await);
    ids.extend(one.submit_many(10, &json!({"topic": "away", "delay_ms": 20_000, "retry": {"max_attempts": 1}})).await);
    runs.reach(32, SOON).await;
    let leaders = async || {
        let (of_schedulers, of_gateways) =
            (stack.metric("scheduler", "muster_leader").await, stack.metric("gateway", "muster_leader").await);
        of_schedulers + of_gateways
    };
    let led = until(SOON, "leaders", async || Some(leaders().await).filter(|n| *n >= 5.0)).await;

    let redis = stack.take_down("redis-1");
    let began = Instant::now();
    // A call that was answered just before may still begin its handler.
    until(SOON, "calls under way to end", async || (began.elapsed() > Duration::from_secs(5)).then_some(())).await;
    let begun = runs.all().len();
    until(SOON, "every leader to stop", async || (leaders().await == 0.0).then_some(())).await;
    let trusted = Duration::from_millis(13_500);
    assert!(began.elapsed() < trusted + Duration::from_secs(6), "the last one led for {:?}", began.elapsed());
    for n in 1..=2 {
        says(&stack, &format!("scheduler-{n}"), 503, "unready").await;
        says(&stack, &format!("gateway-{n}"), 200, "degraded").await;
    }
    let mut all = Vec::new();
    while began.elapsed() < MINUTE {
        for gateway in [&one, &two] {
            let (answer, took) = timed(gateway, Method::POST, "/api/v1/jobs", Some(job(0))).await;
            assert_eq!((answer.status.as_u16(), answer.field("code")), (503, &json!("store_unavailable")));
            assert!(answer.header("retry-after").is_some(), "{}", answer.text);
            all.push(took);
        }
        assert_eq!(runs.all().len(), begun, "nobody starts anything without Redis");
        assert_eq!(leaders().await, 0.0, "nobody leads without Redis");
    }
    most_within(Duration::from_secs(2), &all);
    redis.comes_back().await;

    // Without any intervention: readiness, leaders, and every job at its first attempt.
    for name in REPLICAS {
        says(&stack, name, 200, "ready").await;
    }
    until(SOON, "as many leaders as before", async || (leaders().await >= led).then_some(())).await;
    ids.push(two.submit(job(0)).await);
    all_ran_once(&one, &runs, &ids).await;
    assert_eq!(runs.counts().len(), runs.all().len(), "nothing ran twice");
    assert_eq!(rescued(&stack).await, 0.0, "nobody was taken from a worker that lives");
}

#[tokio::test]
async fn a_redis_that_hangs_is_answered_with_503_and_steals_no_job() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    let mut ids = one.submit_many(10, &job(20_000)).await;
    runs.reach(10, SOON).await;
    // These jobs end while Redis is away: their results wait.
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
    let (mut rounds, mut times) = (0, BTreeMap::<String, Vec<Duration>>::new());
    while rounds < 3 || began.elapsed() < Duration::from_secs(12) {
        for gateway in [&one, &two] {
            let all = asks.iter().map(|(method, path, body)| async move {
                (format!("{method} {path}"), timed(gateway, method.clone(), path, body.clone()).await)
            });
            for (path, (answer, took)) in futures_util::future::join_all(all).await {
                let refused = match path.ends_with("/batch") && answer.status == 200 {
                    // A batch is answered item by item.
                    true => answer.body["items"][0]["error"].clone(),
                    false => answer.body.clone(),
                };
                assert_eq!(
                    (&refused["status"], &refused["code"]),
                    (&json!(503), &json!("store_unavailable")),
                    "{path}"
                );
                assert!(answer.header("retry-after").is_some(), "{path} says when to come back");
                times.entry(path).or_default().push(took);
            }
        }
        rounds += 1;
    }
    for (path, took) in times {
        assert!(took.iter().any(|took| *took < Duration::from_secs(2)), "{path} took {took:?}");
        assert!(took.iter().all(|took| *took < LATEST), "{path} took {took:?}");
    }
    for n in 1..=2 {
        says(&stack, &format!("gateway-{n}"), 200, "degraded").await;
        says(&stack, &format!("scheduler-{n}"), 503, "unready").await;
    }
    stack.signal("redis-1", Signal::SIGCONT);

    for name in REPLICAS {
        says(&stack, name, 200, "ready").await;
    }
    ids.extend(ending);
    ids.push(two.submit(job(0)).await);
    // A refused cancel may have been applied all the same: the client asked for it.
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
    // These end while no scheduler runs: long enough that none of them ends before the schedulers are stopped.
    ids.extend(gateway.submit_many(5, &job(5_000)).await);
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
    let nats = stack.take_down("nats-1");
    fs::rename(stack.folder().join("data/single/nats-1/jetstream"), stack.folder().join("what-nats-held")).unwrap();
    nats.comes_back().await;
    until(SOON, "every lease to be over", async || (paused.elapsed() > LEASE * 3).then_some(())).await;
    for name in ["scheduler-1", "scheduler-2"] {
        stack.signal(name, Signal::SIGCONT);
    }
    all_ran_once(&gateway, &runs, &ids).await;
}

#[tokio::test]
async fn results_count_though_every_scheduler_was_down_for_longer_than_the_lease() {
    let options = Options { restart_within: Some("1s"), ..Options::two() };
    let stack = Stack::with(options).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = sleeper(&runs, &stack);
    let bus = bus_of(&stack, "looker").await;
    // Some of the running jobs end while no scheduler can take their results, some run through all of it.
    let mut ids = gateway.submit_many(5, &job(30_000)).await;
    ids.extend(gateway.submit_many(5, &job(6_000)).await);
    runs.reach(10, SOON).await;

    let restarted = AtomicBool::new(false);
    let load = async {
        let (mut ids, mut pace) = (Vec::new(), tokio::time::interval(Duration::from_millis(25)));
        while !restarted.load(Ordering::Relaxed) {
            pace.tick().await;
            ids.push(stack.gateway(1 + ids.len() % 2).submit(job(20)).await);
        }
        ids
    };
    let restart = async {
        let (killed, stopped) = tokio::join!(
            stack.shut_out("scheduler-1", Signal::SIGKILL),
            stack.shut_out("scheduler-2", Signal::SIGTERM)
        );
        let (down, results) = (Instant::now(), ConsumerSpec::scheduler(subjects::result()));
        // The schedulers that come back lead at once, and find that every lease ended long ago.
        until(SOON, "results that nobody handles, and every lease to be over", async || {
            let state = bus.consumer_state(&results).await.ok()?;
            (state.pending + state.unacked > 0 && down.elapsed() > LEADING).then_some(())
        })
        .await;
        killed.comes_back().await;
        let begun = runs.all().len();
        runs.reach(begun + 20, SOON).await;
        stopped.comes_back().await;
        restarted.store(true, Ordering::Relaxed);
    };
    let (submitted, ()) = tokio::join!(load, restart);
    assert!(submitted.len() > 50, "{} jobs are no load", submitted.len());
    ids.extend(submitted);
    all_ran_once(&gateway, &runs, &ids).await;
    assert_eq!(rescued(&stack).await, 0.0, "nobody was taken from a worker that lives");
}
