//! Crashes under load: of a gateway, of NATS with all its data, of workers. No accepted job is lost, none ends twice.
//! `failpoints.rs` has crashes between any two writes.

use std::{
    fs,
    sync::Mutex,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use muster_testkit::until;
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack, WorkerProcess};
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(150);

/// Submits with an idempotency key; `None` if there was no answer.
async fn submit_as(gateway: &Probe, key: Option<&str>, job: &Value) -> Option<Answer> {
    let headers: Vec<(&str, &str)> = key.iter().map(|key| ("Idempotency-Key", *key)).collect();
    let body = Some(job.to_string().into_bytes());
    gateway.send(Method::POST, "/api/v1/jobs", &headers, body).await.ok()
}

async fn nothing_is_left(stack: &Stack, within: Duration) {
    let store = stack.store().await;
    until(within, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
}

/// Waits for the end of a job, and checks in its history that it ended exactly once.
async fn one_end(gateway: &Probe, id: &str, within: Duration) -> Value {
    let job = gateway.ended(id, within).await;
    let story = gateway.history(id).await;
    let ends = ["succeeded", "failed", "timed_out", "cancelled", "denied", "expired", "quarantined"];
    let states: Vec<&str> =
        story["transitions"].as_array().unwrap().iter().map(|t| t["state"].as_str().unwrap()).collect();
    let ended = states.iter().filter(|state| ends.contains(state)).count();
    assert_eq!((ended, ends.contains(states.last().unwrap())), (1, true), "{id}: {states:?}");
    job
}

#[tokio::test]
async fn what_a_gateway_answered_before_it_died_runs_once() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let mut setup = Setup::new("w1", "load");
    setup.slots = 32;
    let _worker = runs.worker(&stack, setup, |_, payload| async move { Ok(payload) });
    let job = json!({"topic": "load", "retry": {"max_attempts": 1}});
    let keys: Vec<String> = (0..400).map(|n| format!("load-{n}")).collect();
    let answered = Mutex::new(0);
    let answers: Vec<(&String, Option<Answer>)> = stream::iter(&keys)
        .map(|key| {
            let (one, job, answered, stack) = (&one, &job, &answered, &stack);
            async move {
                let answer = submit_as(one, Some(key), job).await;
                let n = {
                    let mut n = answered.lock().unwrap();
                    *n += usize::from(answer.is_some());
                    *n
                };
                if n == 100 && answer.is_some() {
                    stack.kill9("gateway-1");
                }
                (key, answer)
            }
        })
        .buffer_unordered(16)
        .collect()
        .await;
    let unanswered = answers.iter().filter(|(_, answer)| answer.is_none()).count();
    assert!(unanswered > 0, "killed under load");
    for (key, first) in answers {
        // Through the other gateway: the same key is the same job.
        let again = submit_as(&two, Some(key), &job).await.unwrap();
        assert_eq!(again.status, 202, "{}", again.text);
        // The gateway's successor may have refused it while it started.
        if let Some(first) = first.filter(|first| first.status != 503) {
            assert_eq!((first.status.as_u16(), first.id()), (202, again.id()));
        }
        let ended = one_end(&two, &again.id(), SOON).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("succeeded"), &json!(1)));
    }
    assert_eq!(runs.counts().len(), 400);
    assert!(runs.counts().values().all(|n| *n == 1), "each ran once");
    nothing_is_left(&stack, SOON).await;
}

#[tokio::test]
async fn a_nats_that_comes_back_empty_loses_no_job_and_repeats_none() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let mut setup = Setup::new("w1", "wiped");
    setup.slots = 24;
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    };
    let _first = runs.worker(&stack, setup.clone(), work);
    setup.id = "w2".into();
    let _second = runs.worker(&stack, setup, work);

    // Jobs that run, are offered, queued, not yet due, or just being submitted when the bus dies. None may run twice:
    // a wiped bus costs no attempt.
    let job = |ms: u64| json!({"topic": "wiped", "payload": {"ms": ms}, "retry": {"max_attempts": 1}});
    let mut ids = one.submit_many(20, &job(4_000)).await;
    runs.reach(20, SOON).await;
    ids.extend(two.submit_many(600, &job(150)).await);
    ids.extend(one.submit_many(10, &json!({"topic": "wiped", "delay_ms": 3_000})).await);
    ids.extend(one.submit_many(20, &json!({"topic": "nobody-yet", "retry": {"max_attempts": 1}})).await);
    runs.reach(150, SOON).await;
    let store = stack.folder().join("data/single/nats-1/jetstream");
    assert!(store.is_dir());
    let nats = stack.take_down("nats-1");
    fs::rename(&store, stack.folder().join("what-nats-held")).unwrap();
    let begun = runs.all().len();
    assert!(begun < 600, "killed under load, not after it: {begun}");
    for n in 0..20 {
        ids.push(if n % 2 == 0 { &one } else { &two }.submit(job(10)).await);
    }
    nats.comes_back().await;
    let _late = runs.echo(&stack, "w3", "nobody-yet");

    for id in &ids {
        let ended = one_end(&one, id, LONG).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("succeeded"), &json!(1)), "{ended}");
    }
    let counts = runs.counts();
    assert_eq!(counts.len(), ids.len());
    assert!(counts.values().all(|n| *n == 1), "none ran twice");
    nothing_is_left(&stack, SOON).await;
}

#[tokio::test]
async fn the_jobs_of_a_killed_worker_run_elsewhere() {
    let lease = Duration::from_secs(6);
    let stack = Stack::with(Options::two().env("MUSTER_OUTAGE_WAIT", "3s")).await;
    let gateway = stack.gateway(1);
    let args = ["--topic", "nap", "--builtin", "sleep", "--concurrency", "50", "--lease", "6s", "--id", "doomed"];
    let mut doomed = WorkerProcess::start(&stack, &args);
    let ids = gateway.submit_many(50, &json!({"topic": "nap", "payload": {"ms": 600_000}})).await;
    until(SOON, "50 running jobs", async || {
        (gateway.listed("state=running&worker=doomed").await.len() == 50).then_some(())
    })
    .await;
    let runs = Executions::default();
    let mut setup = Setup::new("survivor", "nap");
    setup.slots = 50;
    let _survivor = runs.worker(&stack, setup, |_, _| async { Ok(json!("elsewhere")) });
    doomed.kill9();
    let died = Instant::now();
    for id in &ids {
        let job = one_end(&gateway, id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(2)));
        assert_eq!((&job["worker"], &job["result"]), (&json!("survivor"), &json!("elsewhere")));
    }
    let last = runs.all().iter().map(|run| run.at).max().unwrap() - died;
    // One tick of the reconciler, and some time for a busy machine.
    assert!(last < lease + Duration::from_secs(5 + 20), "the last one began {last:?} after the death");
    assert!(runs.counts().values().all(|n| *n == 1) && runs.counts().len() == 50);
}

#[tokio::test]
async fn a_job_that_kills_its_worker_each_time_is_quarantined() {
    let stack = Stack::with(Options::two().env("MUSTER_OUTAGE_WAIT", "1s")).await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let tally = folder.path().join("tally");
    // The shell's parent is the worker.
    let command = format!("echo $MUSTER_JOB_ID >> {}; kill -9 $PPID", tally.display());
    let args = ["--topic", "deadly", "--lease", "3s", "--exec", command.as_str()];
    let id = gateway.submit(json!({"topic": "deadly", "retry": {"max_attempts": 3}})).await;
    let mut worker = WorkerProcess::start(&stack, &args);
    let mut starts = 1;
    let mut ends = async |id: &str| {
        until(LONG, "the job to end", async || {
            if !worker.is_alive() {
                worker = WorkerProcess::start(&stack, &args);
                starts += 1;
            }
            let job = gateway.job(id).await;
            (job["done"] == json!(true)).then_some(job)
        })
        .await
    };
    let job = ends(&id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("quarantined"), &json!(3)), "{job}");
    assert_eq!(job["error"]["code"], "stale_timeout");

    // A retry by hand is a new job with attempts of its own.
    let retry = gateway.post(&format!("/jobs/{id}/retry"), &json!({})).await;
    assert_eq!((retry.status.as_u16(), retry.field("attempt")), (202, &json!(0)), "{}", retry.text);
    let again = ends(&retry.id()).await;
    assert_eq!((&again["state"], &again["attempt"]), (&json!("quarantined"), &json!(3)));
    let lines = fs::read_to_string(&tally).unwrap();
    let runs = |id: &str| lines.lines().filter(|line| *line == id).count();
    assert_eq!((runs(&id), runs(&retry.id())), (3, 3), "not looped");
    assert!(starts >= 6);
}
