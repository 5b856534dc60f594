//! Jobs that only some workers may run: which workers get them, and what the others see.

#[path = "requires/counted.rs"]
mod counted;

use std::time::Duration;

use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack, WorkerProcess};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

fn gpu(worker: &str) -> Setup {
    Setup {
        provides: vec![("gpu".into(), "a100".into()), ("zone".into(), "eu".into())],
        ..Setup::new(worker, "render")
    }
}

async fn lease(gateway: &Probe, worker: &str, request: &str, provides: Value, wait_ms: u64) -> Vec<Value> {
    let body = json!({
        "worker_id": worker, "request_id": request, "topics": ["render"], "provides": provides, "max": 10,
        "wait_ms": wait_ms,
    });
    let answer = gateway.post("/worker/lease", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.body["items"].as_array().expect("items").clone()
}

#[tokio::test]
async fn only_workers_that_provide_what_a_job_requires_run_it() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _plain = runs.worker(&stack, Setup::new("plain", "render"), |_, payload| async { Ok(payload) });
    let _one = runs.worker(&stack, gpu("gpu1"), |_, payload| async { Ok(payload) });
    let _two = runs.worker(&stack, gpu("gpu2"), |_, payload| async { Ok(payload) });
    let picky = json!({"topic": "render", "payload": 1, "requires": {"gpu": "a100", "zone": "eu"}});
    let named = json!({"topic": "render", "payload": 1, "requires": {"worker": "gpu2"}});
    let easy = json!({"topic": "render", "payload": 1});
    // More than the window holds at first, so that some wait in a backlog of their own.
    let (picky, named, easy) = tokio::join!(
        gateway.submit_many(200, &picky),
        gateway.submit_many(20, &named),
        gateway.submit_many(200, &easy)
    );
    runs.reach(420, SOON).await;
    let by = |jobs: &[String]| -> Vec<String> {
        let mut by: Vec<String> = jobs.iter().flat_map(|id| runs.of(id)).map(|run| run.worker).collect();
        by.sort();
        by.dedup();
        by
    };
    assert_eq!(by(&named), ["gpu2"]);
    let picked = by(&picky);
    assert!(picked.iter().all(|worker| worker.starts_with("gpu")) && !picked.is_empty(), "{picked:?}");
    assert!(by(&easy).contains(&"plain".to_owned()), "the others are not kept from the rest");
    for id in picky.iter().chain(&named).chain(&easy) {
        let job = gateway.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    assert_eq!(gateway.job(&named[0]).await["requires"], json!({"worker": "gpu2"}));
    assert!(runs.counts().values().all(|n| *n == 1));
}

#[tokio::test]
async fn a_job_that_no_live_worker_can_run_says_so_and_runs_when_one_comes() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _plain = runs.worker(&stack, Setup::new("plain", "render"), |_, payload| async { Ok(payload) });
    let id = gateway.submit(json!({"topic": "render", "requires": {"gpu": "a100"}})).await;
    let said = until(SOON, "the explanation", async || {
        let said = gateway.get(&format!("/jobs/{id}/explain")).await.body;
        (said["workers"]["lacking"] == 1).then_some(said)
    })
    .await;
    assert!(said["sentences"].to_string().contains("No live worker provides what it requires (gpu=a100)"), "{said:#}");
    assert_eq!(said["workers"]["live"], 0);
    // Every scheduler forgets its state; the offer is still on the stream, and the look at it finds the line again.
    for name in ["scheduler-1", "scheduler-2"] {
        let old = stack.kill9(name);
        stack.replaced(name, old).await;
    }
    assert!(runs.of(&id).is_empty());
    let _gpu = runs.worker(&stack, gpu("late"), |_, payload| async { Ok(payload) });
    // The time for a dead leader's lock, and for a look that may have been postponed just before.
    let job = gateway.ended(&id, Duration::from_secs(120)).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert_eq!(runs.of(&id)[0].worker, "late");
}

#[tokio::test]
async fn http_workers_are_offered_what_they_provide_for() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let id = one.submit(json!({"topic": "render", "requires": {"gpu": "a100"}})).await;
    assert!(lease(&one, "plain", "p1", json!({}), 2_000).await.is_empty());
    assert!(lease(&two, "other", "o1", json!({"gpu": "h100"}), 2_000).await.is_empty());
    let held = lease(&two, "fits", "f1", json!({"gpu": "a100", "zone": "eu"}), 30_000).await;
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0]["job_id"], json!(id));
    let done = json!({"worker_id": "fits", "items": [{"job_id": id, "fence": held[0]["fence"], "result": 1}]});
    assert_eq!(one.post("/worker/complete", &done).await.body["items"][0]["status"], "ok");
    // A job that comes while the call is open reaches it at once; a worker that only polls gets its job too.
    let (waiting, id) = tokio::join!(lease(&two, "fits", "f2", json!({"gpu": "a100"}), 30_000), async {
        until(SOON, "the worker to be seen", async || {
            let workers = one.get("/workers").await.body;
            workers["items"].as_array()?.iter().any(|w| w["id"] == "fits").then_some(())
        })
        .await;
        one.submit(json!({"topic": "render", "requires": {"gpu": "a100"}})).await
    });
    assert_eq!(waiting[0]["job_id"], json!(id));
    let id = one.submit(json!({"topic": "render", "requires": {"worker": "fits"}})).await;
    let mut polls = 0;
    let polled = until(SOON, "a poll to bring it", async || {
        polls += 1;
        lease(&two, "fits", &format!("poll{polls}"), json!({}), 0).await.pop()
    })
    .await;
    assert_eq!(polled["job_id"], json!(id));
}

#[tokio::test]
async fn a_shell_worker_says_what_it_provides_over_nats_and_http() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let common = ["--topic", "render", "--builtin", "echo", "--provides", "gpu=a100"];
    let _nats = WorkerProcess::start(&stack, &[&common[..], &["--id", "n1"]].concat());
    let _http = WorkerProcess::start(&stack, &[&common[..], &["--id", "h1", "--http"]].concat());
    for worker in ["n1", "h1"] {
        let id = gateway.submit(json!({"topic": "render", "requires": {"gpu": "a100", "worker": worker}})).await;
        let job = gateway.ended(&id, SOON).await;
        assert_eq!((&job["state"], &job["worker"]), (&json!("succeeded"), &json!(worker)), "{job}");
    }
}
