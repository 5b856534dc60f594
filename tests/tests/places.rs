//! `concurrency.max` on a topic: never more jobs at once than the limit, and as many as the limit, whichever process
//! is killed and however the limit changes. Two of each service.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use muster_domain::{Tenant, Topic, slot::Limit};
use muster_testkit::until;
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack, TestWorker, WorkerProcess};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const SOON: Duration = Duration::from_secs(60);

/// How many handlers of each kind run, and the most that ever ran at once.
#[derive(Clone, Default)]
struct Crowd(Arc<Mutex<HashMap<String, (usize, usize)>>>);

impl Crowd {
    fn enter(&self, kind: &str) -> Inside {
        let mut crowd = self.0.lock().unwrap();
        let (now, most) = crowd.entry(kind.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Inside { crowd: self.clone(), kind: kind.to_owned() }
    }

    fn of(&self, kind: &str) -> (usize, usize) {
        self.0.lock().unwrap().get(kind).copied().unwrap_or_default()
    }

    /// Resets the maximum.
    fn forget(&self, kind: &str) {
        if let Some((_, most)) = self.0.lock().unwrap().get_mut(kind) {
            *most = 0;
        }
    }

    async fn reaches(&self, kind: &str, n: usize) {
        until(SOON, &format!("{n} to run"), async || (self.of(kind).0 == n).then_some(())).await;
    }
}

struct Inside {
    crowd: Crowd,
    kind: String,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some((now, _)) = self.crowd.0.lock().unwrap().get_mut(&self.kind) {
            *now -= 1;
        }
    }
}

async fn tell(gateway: &Probe, topic: &str, body: Value) -> Answer {
    let path = format!("/api/v1/topics/{topic}");
    let answer = gateway.send(Method::PUT, &path, &[], Some(body.to_string().into_bytes())).await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer
}

/// A worker whose handlers are counted under their topic, and under the key in their payload.
fn worker(stack: &Stack, runs: &Executions, crowd: &Crowd, setup: Setup, takes: Duration) -> TestWorker {
    let (crowd, topic) = (crowd.clone(), setup.topic.clone());
    runs.worker(stack, setup, move |_, payload| {
        let (crowd, topic) = (crowd.clone(), topic.clone());
        async move {
            let _inside = (crowd.enter(&topic), payload["key"].as_str().map(|key| crowd.enter(key)));
            tokio::time::sleep(takes).await;
            Ok(payload)
        }
    })
}

async fn places_are_free(stack: &Stack, topic: &str) {
    let (store, limit) = (stack.store().await, Limit::Topic(Topic::parse(topic).unwrap()));
    until(SOON, "the places to be free", async || {
        let (_, held, waiting) = store.read_slots(&Tenant::default(), &limit).await.ok()?;
        (held + waiting == 0).then_some(())
    })
    .await;
}

/// Two of each service, which poll the settings of topics every second.
fn curious() -> Options {
    Options::two().env("MUSTER_LOOP_CONFIG_INTERVAL", "1s")
}

#[tokio::test]
async fn no_more_jobs_of_a_topic_run_at_once_than_it_was_told_and_as_many_as_that_do() {
    let stack = Stack::with(curious()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    assert_eq!(tell(&one, "t", json!({"concurrency": {"max": 3}})).await.body["concurrency"], json!({"max": 3}));
    stack.settings_are_known().await;
    // Long enough that the jobs that may run at once overlap, also on a busy machine.
    let (runs, crowd, takes) = (Executions::default(), Crowd::default(), Duration::from_millis(200));
    let mut ids = one.submit_many(20, &json!({"topic": "t", "payload": {}})).await;
    ids.extend(two.submit_many(20, &json!({"topic": "t", "payload": {}})).await);
    // Without a worker, as many jobs are offered as may run, and hold the places; explanations of the others name the
    // holders.
    let first = until(SOON, "the places to be taken", async || {
        let explained = two.get(&format!("/jobs/{}/explain", ids[39])).await;
        let decided = explained.body["state"] != "pending";
        (decided && explained.body["topic_limit"]["held"] == 3).then_some(explained)
    })
    .await;
    assert_eq!((&first.body["state"], &first.body["waits_for"]), (&json!("queued"), &json!("limit")), "{}", first.text);
    assert_eq!(first.body["topic_limit"]["max"], 3);
    let holders = first.body["topic_limit"]["held_by"].as_array().unwrap().clone();
    assert_eq!(holders.len(), 3, "{}", first.text);
    assert!(first.text.contains("no more than 3 jobs of topic t may run at once"), "{}", first.text);
    for holder in &holders {
        assert_eq!(one.job(holder.as_str().unwrap()).await["state"], "dispatched");
    }
    until(SOON, "every job to be decided", async || {
        let shown = one.get("/topics/t").await.body;
        ((&shown["backlog"], &shown["runnable"]) == (&json!(40), &json!(3))).then_some(())
    })
    .await;

    let begun = Instant::now();
    let setup = |name: &str| Setup { slots: 16, ..Setup::new(name, "t") };
    let workers = ["w1", "w2"].map(|name| worker(&stack, &runs, &crowd, setup(name), takes));
    for id in &ids {
        let job = one.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    // A place is passed on at once: 40 jobs of 200 ms, 3 at a time, take three seconds, and not a claim of 5 s each.
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_eq!(crowd.of("t"), (0, 3));
    places_are_free(&stack, "t").await;

    // Another tenant's topic of the same name has no settings.
    let other = one.for_tenant("acme");
    let free = Setup { tenant: "acme".into(), ..setup("w3") };
    crowd.forget("t");
    let all = Arc::new(tokio::sync::Barrier::new(6));
    let _unbound = runs.worker(&stack, free, move |_, payload| {
        let all = all.clone();
        async move {
            all.wait().await;
            Ok(payload)
        }
    });
    for id in other.submit_many(6, &json!({"topic": "t", "payload": {}})).await {
        assert_eq!(other.ended(&id, SOON).await["state"], "succeeded", "six at once");
    }
    drop(workers);
}

#[tokio::test]
async fn never_more_than_that_though_workers_and_schedulers_are_killed() {
    let stack = Stack::with(curious().env("MUSTER_OUTAGE_WAIT", "200ms")).await;
    let gateway = stack.gateway(1);
    tell(&gateway, "t", json!({"concurrency": {"max": 3}})).await;
    stack.settings_are_known().await;
    let folder = tempfile::tempdir().unwrap();
    let (lock, many) = (folder.path().join("lock"), folder.path().join("many"));
    // A command that finds three others running records that. A killed command leaves nothing behind: the kernel
    // releases its locks with the process.
    let command = format!(
        "for n in 1 2 3; do exec 9>{lock}$n; if flock -n 9; then sleep 0.2; echo 1; exit 0; fi; done; \
         echo four >> {many}; exit 1",
        lock = lock.display(),
        many = many.display()
    );
    let start = |id: &str| {
        let args = ["--topic", "t", "--lease", "6s", "--concurrency", "4", "--id", id, "--exec", &command];
        WorkerProcess::start(&stack, &args)
    };
    let (mut one, _two) = (start("w1"), start("w2"));
    let retry = json!({"max_attempts": 10, "backoff": {"initial_ms": 50, "max_ms": 200}});
    let ids = gateway.submit_many(60, &json!({"topic": "t", "payload": 1, "retry": retry})).await;
    for round in 0..4 {
        until(SOON, &format!("some to be done in round {round}"), async || {
            let mut ended = 0;
            for id in &ids {
                ended += usize::from(gateway.job(id).await["done"] == true);
            }
            (ended > round * 10).then_some(())
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
    assert!(!many.exists(), "four ran at once: {}", std::fs::read_to_string(&many).unwrap_or_default());
    places_are_free(&stack, "t").await;
}

#[tokio::test]
async fn a_topic_that_is_told_otherwise_obeys_at_once() {
    let stack = Stack::with(curious()).await;
    let gateway = stack.gateway(1);
    let max = async |n: u32| {
        tell(&gateway, "t", json!({"concurrency": {"max": n}})).await;
    };
    max(1).await;
    stack.settings_are_known().await;
    let (runs, crowd, end) = (Executions::default(), Crowd::default(), Arc::new(Semaphore::new(0)));
    let (inside, ending) = (crowd.clone(), end.clone());
    let setup = Setup { slots: 32, ..Setup::new("w1", "t") };
    let _worker = runs.worker(&stack, setup, move |_, payload| {
        let (crowd, end) = (inside.clone(), ending.clone());
        async move {
            let _inside = crowd.enter("t");
            end.acquire().await.unwrap().forget();
            Ok(payload)
        }
    });
    let ids = gateway.submit_many(20, &json!({"topic": "t", "payload": 1})).await;
    crowd.reaches("t", 1).await;
    max(4).await;
    crowd.reaches("t", 4).await;
    assert_eq!(crowd.of("t").1, 4);
    max(2).await;
    stack.settings_are_known().await;
    crowd.forget("t");
    end.add_permits(3);
    // One job still runs, and one more starts: not three more.
    crowd.reaches("t", 2).await;
    end.add_permits(5);
    until(SOON, "eight to be done", async || {
        let store = stack.store().await;
        let limit = Limit::Topic(Topic::parse("t").unwrap());
        let held = store.read_slots(&Tenant::default(), &limit).await.ok()?.1;
        (runs.all().len() == 10 && crowd.of("t").0 == 2 && held == 2).then_some(())
    })
    .await;
    assert_eq!(crowd.of("t").1, 2);
    tell(&gateway, "t", json!({})).await;
    crowd.reaches("t", 12).await;
    end.add_permits(100);
    for id in &ids {
        assert_eq!(gateway.ended(id, SOON).await["attempt"], 1);
    }

    // Jobs that were offered before the limit was set are taken back when a worker asks for them.
    let late = gateway.submit_many(20, &json!({"topic": "late", "payload": {}})).await;
    for id in &late {
        gateway.reaches(id, "dispatched", SOON).await;
    }
    tell(&gateway, "late", json!({"concurrency": {"max": 2}})).await;
    stack.settings_are_known().await;
    let setup = Setup { slots: 16, ..Setup::new("w2", "late") };
    let _worker = worker(&stack, &runs, &crowd, setup, Duration::from_millis(200));
    for id in &late {
        let job = gateway.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    assert_eq!(crowd.of("late"), (0, 2));
}

#[tokio::test]
async fn a_job_under_both_limits_needs_both_and_all_lines_of_a_topic_share_its_places() {
    let stack = Stack::with(curious()).await;
    let gateway = stack.gateway(1);
    tell(&gateway, "t", json!({"concurrency": {"max": 3, "per_key": 2}})).await;
    stack.settings_are_known().await;
    let (runs, crowd, takes) = (Executions::default(), Crowd::default(), Duration::from_millis(150));
    let setup = |name: &str| Setup { slots: 16, ..Setup::new(name, "t") };
    let able = Setup { provides: vec![("gpu".into(), "a100".into())], ..setup("able") };
    let _workers = [setup("plain"), able].map(|setup| worker(&stack, &runs, &crowd, setup, takes));
    let mut ids = Vec::new();
    for key in ["a", "b"] {
        let job = json!({"topic": "t", "payload": {"key": key}, "concurrency_key": key});
        ids.extend(gateway.submit_many(20, &job).await);
    }
    ids.extend(gateway.submit_many(10, &json!({"topic": "t", "payload": {}})).await);
    ids.extend(gateway.submit_many(10, &json!({"topic": "t", "payload": {}, "requires": {"gpu": "a100"}})).await);
    for id in &ids {
        let job = gateway.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    assert_eq!((crowd.of("t"), crowd.of("a").0, crowd.of("b").0), ((0, 3), 0, 0));
    assert!(crowd.of("a").1 <= 2 && crowd.of("b").1 <= 2, "{:?} {:?}", crowd.of("a"), crowd.of("b"));
    assert!(crowd.of("a").1 == 2 || crowd.of("b").1 == 2);
    places_are_free(&stack, "t").await;
    // One key alone gets two of the three places.
    crowd.forget("t");
    let job = json!({"topic": "t", "payload": {"key": "a"}, "concurrency_key": "a"});
    for id in gateway.submit_many(12, &job).await {
        gateway.ended(&id, SOON).await;
    }
    assert_eq!((crowd.of("t").1, crowd.of("a").1), (2, 2));
}
