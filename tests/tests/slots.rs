//! Concurrency keys: never more jobs at once than allowed, whichever process is killed, and which job is next.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use muster_domain::{Tenant, slot::Limit};
use muster_sdk::HandlerError;
use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack, WorkerProcess};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const SOON: Duration = Duration::from_secs(60);

/// How many handlers of each key run, and the most that ever ran at once.
#[derive(Clone, Default)]
struct Crowd(Arc<Mutex<HashMap<String, (usize, usize)>>>);

impl Crowd {
    fn enter(&self, key: &str) -> Inside {
        let mut crowd = self.0.lock().unwrap();
        let (now, most) = crowd.entry(key.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Inside { crowd: self.clone(), key: key.to_owned() }
    }

    fn most(&self) -> HashMap<String, usize> {
        self.0.lock().unwrap().iter().map(|(key, (_, most))| (key.clone(), *most)).collect()
    }
}

struct Inside {
    crowd: Crowd,
    key: String,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some((now, _)) = self.crowd.0.lock().unwrap().get_mut(&self.key) {
            *now -= 1;
        }
    }
}

fn key(payload: &Value) -> String {
    payload["key"].as_str().expect("a key").to_owned()
}

#[tokio::test]
async fn jobs_with_the_same_key_run_one_at_a_time_and_at_once_one_after_the_other() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let (runs, crowd) = (Executions::default(), Crowd::default());
    let workers: Vec<_> = ["w1", "w2"]
        .into_iter()
        .map(|name| {
            let crowd = crowd.clone();
            runs.worker(&stack, Setup { slots: 16, ..Setup::new(name, "t") }, move |_, payload| {
                let crowd = crowd.clone();
                async move {
                    let inside = crowd.enter(&key(&payload));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    drop(inside);
                    Ok(payload)
                }
            })
        })
        .collect();
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        let job = json!({"topic": "t", "payload": {"key": name}, "concurrency_key": name});
        ids.extend(gateway.submit_many(40, &job).await);
    }
    // Slots are passed on at once: 120 jobs of 20 ms in three lines take seconds, not claims of 5 s each.
    runs.reach(120, SOON).await;
    for id in &ids {
        let job = gateway.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    assert_eq!(crowd.most(), HashMap::from([("a".into(), 1), ("b".into(), 1), ("c".into(), 1)]));
    drop(workers);
    let store = stack.store().await;
    for name in ["a", "b", "c"] {
        until(SOON, "the slots to be free", async || {
            let (_, held, waiting) = store.read_slots(&Tenant::default(), &Limit::Key(name.into())).await.ok()?;
            (held + waiting == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn never_two_at_once_though_workers_and_schedulers_are_killed() {
    let stack = Stack::with(Options::two().env("MUSTER_OUTAGE_WAIT", "200ms")).await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let (lock, twice) = (folder.path().join("lock"), folder.path().join("twice"));
    // A command that finds another one running records that. A killed command leaves nothing behind: the kernel
    // releases its lock with the process.
    let command = format!(
        "exec 9>{lock}; flock -n 9 || {{ echo two >> {twice}; exit 1; }}; sleep 0.2; echo 1",
        lock = lock.display(),
        twice = twice.display()
    );
    let args = |id: &'static str| ["--topic", "t", "--lease", "6s", "--id", id, "--exec"].map(str::to_owned);
    let start = |id: &'static str| {
        let mut all = args(id).to_vec();
        all.push(command.clone());
        WorkerProcess::start(&stack, &all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (mut one, _two) = (start("w1"), start("w2"));
    let retry = json!({"max_attempts": 10, "backoff": {"initial_ms": 50, "max_ms": 200}});
    let job = json!({"topic": "t", "payload": 1, "concurrency_key": "only-one", "retry": retry});
    let ids = gateway.submit_many(40, &job).await;
    for round in 0..4 {
        let done = format!("some to be done in round {round}");
        until(SOON, &done, async || {
            let mut ended = 0;
            for id in &ids {
                ended += usize::from(gateway.job(id).await["done"] == true);
            }
            (ended > round * 6).then_some(())
        })
        .await;
        match round % 2 {
            0 => {
                one.kill9();
                one = start("w1");
            }
            _ => {
                let old = stack.kill9("scheduler-1");
                stack.replaced("scheduler-1", old).await;
            }
        }
    }
    for id in &ids {
        assert_eq!(gateway.ended(id, Duration::from_secs(120)).await["state"], "succeeded");
    }
    assert!(!twice.exists(), "two ran at once: {}", std::fs::read_to_string(&twice).unwrap_or_default());
}

#[tokio::test]
async fn a_cancelled_job_keeps_its_slot_until_its_worker_has_stopped() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let (runs, stop) = (Executions::default(), Arc::new(Semaphore::new(0)));
    let stopping = stop.clone();
    let setup = Setup { lease: Duration::from_secs(60), grace: Duration::from_secs(60), ..Setup::new("w1", "t") };
    let _worker = runs.worker(&stack, setup, move |ctx, payload| {
        let stop = stopping.clone();
        async move {
            if payload == 1 {
                ctx.cancelled().await;
                // The handler got the cancel, and is not done yet.
                stop.acquire().await.unwrap().forget();
                return Err(HandlerError::retryable("stopped"));
            }
            Ok(payload)
        }
    });
    let job = |n: u32| json!({"topic": "t", "payload": n, "concurrency_key": "k"});
    let first = gateway.submit(job(1)).await;
    runs.reach(1, SOON).await;
    let second = gateway.submit(job(2)).await;
    let said = until(SOON, "the explanation", async || {
        let said = gateway.get(&format!("/jobs/{second}/explain")).await.body;
        (said["concurrency"]["held"] == 1 && said["concurrency"]["waiting"] == 1).then_some(said)
    })
    .await;
    assert_eq!(said["concurrency"]["held_by"], json!([first]));
    assert!(said["sentences"].to_string().contains("concurrency key k may run"), "{said:#}");

    assert_eq!(gateway.post(&format!("/jobs/{first}/cancel"), &json!({})).await.status, 200);
    // Longer than a claim and a look: no scheduler takes the slot of a worker that may still run the job.
    let store = stack.store().await;
    let (tenant, begun) = (Tenant::default(), std::time::Instant::now());
    until(SOON, "eight seconds", async || {
        let (holders, ..) = store.read_slots(&tenant, &Limit::Key("k".into())).await.unwrap();
        assert_eq!(holders[0].slot.job.to_string(), first);
        assert_eq!(runs.of(&second).len(), 0);
        (begun.elapsed() > Duration::from_secs(8)).then_some(())
    })
    .await;
    stop.add_permits(1);
    // Long before the lease would have ended.
    let job = gateway.ended(&second, Duration::from_secs(30)).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(gateway.job(&first).await["state"], "cancelled");
}
