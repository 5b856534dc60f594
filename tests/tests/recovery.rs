//! Deaths between any two writes: of the gateway, of schedulers, of NATS with all it held, of
//! workers. Nothing accepted is lost, nothing ends twice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join_all, stream};
use muster_domain::{Tenant, Topic};
use muster_sdk::HandlerError;
use muster_testkit::until;
use muster_tests::{Answer, Executions, Failpoints, Options, Probe, Setup, Stack, TestWorker, WorkerProcess};
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(150);

/// Submits under an idempotency key; none if no answer came.
async fn submit_as(gateway: &Probe, key: Option<&str>, job: &Value) -> Option<Answer> {
    let headers: Vec<(&str, &str)> = key.iter().map(|key| ("Idempotency-Key", *key)).collect();
    let body = Some(job.to_string().into_bytes());
    gateway.send(Method::POST, "/api/v1/jobs", &headers, body).await.ok()
}

async fn is_up(gateway: &Probe) {
    until(SOON, "the gateway to answer", async || {
        let answer = gateway.send(Method::GET, "/readyz", &[], None).await.ok()?;
        (answer.status == 200 && !answer.text.contains("degraded")).then_some(())
    })
    .await;
}

async fn nothing_is_left(stack: &Stack, within: Duration) {
    let store = stack.store().await;
    until(within, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
}

/// How a job ended: exactly once, by its own story.
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

/// Every id of a list, page by page.
async fn listed(gateway: &Probe, query: &str) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = gateway.get(&format!("/jobs?limit=500&{query}{cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        ids.extend(page.body["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

#[tokio::test]
async fn a_gateway_that_dies_in_a_submit_leaves_nothing_half_done() {
    let points = ["submit.after_home", "submit.after_record", "submit.before_answer"];
    let killers = Failpoints::killers(&[points[0], points[1], points[2], "cancel.after_apply"]);
    let options = Options::default().env("MUSTER_FAILPOINTS", killers.setting()).env("MUSTER_OUTAGE_WAIT", "1s");
    let stack = Stack::with(options).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let ran: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let notes = ran.clone();
    let _worker = runs.worker(&stack, Setup::new("w1", "fragile"), move |_, payload: Value| {
        let who = payload["who"].as_str().unwrap().to_owned();
        *notes.lock().unwrap().entry(who).or_default() += 1;
        async move { Ok(payload) }
    });
    let job = |who: &str| json!({"topic": "fragile", "payload": {"who": who}, "retry": {"max_attempts": 1}});

    let (mut keyed, mut unkeyed) = (Vec::<(&str, String)>::new(), Vec::<(&str, String)>::new());
    for point in points {
        killers.arm(point);
        let names: Vec<String> = (0..9).map(|n| format!("{point}-{n}")).collect();
        let posts = names.iter().enumerate().map(|(n, who)| {
            let (key, job, gateway) = ((n < 6).then_some(who.as_str()), job(who), &gateway);
            async move { submit_as(gateway, key, &job).await }
        });
        let answers = join_all(posts).await;
        killers.has_acted(point).await;
        assert!(answers.iter().any(Option::is_none), "{point}: whose gateway dies gets no answer");
        for (n, (who, answer)) in names.into_iter().zip(answers).enumerate() {
            match answer {
                Some(answer) => assert_eq!(answer.status, 202, "{who}: {}", answer.text),
                None if n < 6 => keyed.push((point, who)),
                None => unkeyed.push((point, who)),
            }
        }
        is_up(&gateway).await;
    }

    // The clients repeat: each job is there once and runs once, whatever the first try had written.
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for (point, who) in &keyed {
        let answer = submit_as(&gateway, Some(who), &job(who)).await.unwrap();
        assert_eq!(answer.status, 202, "{who}: {}", answer.text);
        *found.entry(point).or_default() += usize::from(answer.header("idempotency-replayed") == Some("true"));
        let ended = one_end(&gateway, &answer.id(), SOON).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("succeeded"), &json!(1)), "{who}");
        assert_eq!(runs.of(&answer.id()).len(), 1, "{who} ran once");
        let again = submit_as(&gateway, Some(who), &job(who)).await.unwrap();
        assert_eq!((again.id(), again.field("state")), (answer.id(), &json!("succeeded")));
    }
    assert_eq!(found[points[0]], 0, "without a record the repeat makes it");
    assert!(found[points[1]] > 0 && found[points[2]] > 0, "the repeat finds the record: {found:?}");

    // A cancel that breaks off is finished by its repeat.
    let waiting = gateway.submit(json!({"topic": "fragile", "delay_ms": 600_000})).await;
    killers.arm("cancel.after_apply");
    let path = format!("/api/v1/jobs/{waiting}/cancel");
    let cut_off = gateway.send(Method::POST, &path, &[], Some(b"{}".to_vec())).await;
    assert!(cut_off.is_err(), "{cut_off:?}");
    killers.has_acted("cancel.after_apply").await;
    is_up(&gateway).await;
    assert_eq!(gateway.send(Method::POST, &path, &[], Some(b"{}".to_vec())).await.unwrap().status, 200);
    assert_eq!(one_end(&gateway, &waiting, SOON).await["state"], "cancelled");

    // Nobody repeats the others: each has vanished whole or runs once, and no home is left behind.
    nothing_is_left(&stack, SOON).await;
    for (point, who) in &unkeyed {
        let times = ran.lock().unwrap().get(who).copied().unwrap_or(0);
        assert!(times <= usize::from(*point != points[0]), "{who} ran {times} times");
    }
    assert!(ran.lock().unwrap().values().all(|n| *n == 1), "{ran:?}");
    for run in runs.all() {
        assert_eq!(one_end(&gateway, &run.job, SOON).await["state"], "succeeded");
    }
    let (mut shown, mut wanted) = (listed(&gateway, "topic=fragile").await, vec![waiting]);
    wanted.extend(runs.all().into_iter().map(|run| run.job));
    shown.sort();
    wanted.sort();
    assert_eq!(shown, wanted, "each is listed, once, and nothing else is");
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
        if let Some(first) = first {
            assert_eq!((first.status.as_u16(), first.id()), (202, again.id()));
        }
        let ended = one_end(&two, &again.id(), SOON).await;
        assert_eq!((&ended["state"], &ended["attempt"]), (&json!("succeeded"), &json!(1)));
    }
    assert_eq!(runs.counts().len(), 400);
    assert!(runs.counts().values().all(|n| *n == 1), "each ran once");
    nothing_is_left(&stack, SOON).await;
}

/// Where a scheduler dies, and whether the jobs must not all fit the window to bring it there.
const SCHEDULER_POINTS: [(&str, bool); 15] = [
    ("dispatch.after_apply", false),
    ("dispatch.after_offer", false),
    ("hold.after_apply", true),
    ("release.after_claim", true),
    ("release.after_apply", true),
    ("release.after_offer", true),
    ("release.after_forward", true),
    ("start.after_apply", false),
    ("start.before_answer", false),
    ("settle.after_apply", false),
    ("settle.after_finish", false),
    ("wake.after_apply", false),
    ("look.before_rescore", false),
    ("finish.after_dead_letters", false),
    ("finish.before_home", false),
];

/// Succeeds, fails for good, or fails each time, as the payload says.
fn obedient(runs: &Executions, stack: &Stack, topic: &str) -> TestWorker {
    let mut setup = Setup::new(&format!("w-{topic}"), topic);
    setup.slots = 16;
    runs.worker(stack, setup, |_, payload: Value| async move {
        match payload["do"].as_str() {
            Some("fail") => Err(HandlerError::retryable("not yet")),
            Some("refuse") => Err(HandlerError::permanent("never")),
            _ => Ok(payload),
        }
    })
}

#[tokio::test]
async fn a_scheduler_may_die_between_any_two_writes() {
    let killers = Failpoints::killers(&SCHEDULER_POINTS.map(|(point, _)| point));
    let stack = Stack::with(Options::two().env("MUSTER_FAILPOINTS", killers.setting())).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let schedulers = || {
        let all = stack.state().processes.into_iter().filter(|p| p.service == "scheduler");
        all.map(|p| p.pid).collect::<HashSet<i32>>()
    };
    let (mut workers, mut jobs) = (Vec::new(), Vec::new());
    for (point, crowded) in SCHEDULER_POINTS {
        let topic = point.replace(['.', '_'], "-");
        workers.push(obedient(&runs, &stack, &topic));
        let before = schedulers();
        killers.arm(point);
        // A scheduler's death costs no attempt: what may run once only succeeds all the same.
        let once = |what: &str| json!({"topic": topic, "payload": {"do": what}, "retry": {"max_attempts": 1}});
        let backoff = json!({"initial_ms": 50, "jitter": 0});
        let twice =
            json!({"topic": topic, "payload": {"do": "fail"}, "retry": {"max_attempts": 2, "backoff": backoff}});
        let kinds = [
            (if crowded { 200 } else { 8 }, once("succeed"), "succeeded", 1),
            (3, twice, "failed", 2),
            (2, once("refuse"), "failed", 1),
        ];
        for (n, job, state, attempts) in kinds {
            let ids = gateway.submit_many(n, &job).await;
            jobs.extend(ids.into_iter().map(|id| (point, id, state, attempts)));
        }
        killers.has_acted(point).await;
        until(SOON, "the dead scheduler's successor", async || {
            let now = schedulers();
            (now.len() == 2 && now != before).then_some(())
        })
        .await;
    }

    for (point, id, state, attempts) in &jobs {
        let job = one_end(&gateway, id, LONG).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some(*state), Some(*attempts)), "{point}: {job}");
    }
    let counts = runs.counts();
    for (point, id, _, attempts) in &jobs {
        assert_eq!(counts[id] as u64, *attempts, "{point}: {id} ran once per attempt");
    }
    let fences: HashSet<u64> = runs.all().iter().map(|run| run.fence).collect();
    assert_eq!(fences.len(), runs.all().len(), "each run under a fence of its own");
    nothing_is_left(&stack, SOON).await;
    let mut dead = listed(&gateway, "state=failed,quarantined,timed_out,expired").await;
    let mut failed: Vec<String> = jobs.iter().filter(|j| j.2 == "failed").map(|j| j.1.clone()).collect();
    dead.sort();
    failed.sort();
    assert_eq!(dead, failed, "each that failed is a dead letter, once");
    let store = stack.store().await;
    let topic = |point: &str| (Tenant::default(), Topic::parse(&point.replace(['.', '_'], "-")).unwrap().into());
    let topics: Vec<_> = SCHEDULER_POINTS.iter().map(|(point, _)| topic(point)).collect();
    until(SOON, "the backlog to be empty", async || {
        store.queue_lens(&topics).await.ok()?.iter().all(|n| *n == 0).then_some(())
    })
    .await;
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

    // Running, offered, queued, not yet due, and just being submitted when the bus dies. None may
    // run twice: a wiped bus costs no attempt.
    let job = |ms: u64| json!({"topic": "wiped", "payload": {"ms": ms}, "retry": {"max_attempts": 1}});
    let mut ids = one.submit_many(20, &job(4_000)).await;
    runs.reach(20, SOON).await;
    ids.extend(two.submit_many(600, &job(30)).await);
    ids.extend(one.submit_many(10, &json!({"topic": "wiped", "delay_ms": 3_000})).await);
    ids.extend(one.submit_many(20, &json!({"topic": "nobody-yet", "retry": {"max_attempts": 1}})).await);
    runs.reach(150, SOON).await;
    let store = stack.folder().join("data/single/nats-1/jetstream");
    assert!(store.is_dir());
    let died = stack.kill9("nats-1");
    fs::rename(&store, stack.folder().join("what-nats-held")).unwrap();
    let begun = runs.all().len();
    assert!(begun < 600, "killed under load, not after it: {begun}");
    for n in 0..20 {
        ids.push(if n % 2 == 0 { &one } else { &two }.submit(job(10)).await);
    }
    stack.replaced("nats-1", died).await;
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
    let lease = Duration::from_secs(3);
    let stack = Stack::with(Options::two().env("MUSTER_OUTAGE_WAIT", "3s")).await;
    let gateway = stack.gateway(1);
    let args = ["--topic", "nap", "--builtin", "sleep", "--concurrency", "50", "--lease", "3s", "--id", "doomed"];
    let mut doomed = WorkerProcess::start(&stack, &args);
    let ids = gateway.submit_many(50, &json!({"topic": "nap", "payload": {"ms": 600_000}})).await;
    until(SOON, "50 running jobs", async || {
        (listed(&gateway, "state=running&worker=doomed").await.len() == 50).then_some(())
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
    // One tick of the reconciler, and some room for a busy machine.
    assert!(last < lease + Duration::from_secs(5 + 5), "the last one began {last:?} after the death");
    assert!(runs.counts().values().all(|n| *n == 1) && runs.counts().len() == 50);
}

#[tokio::test]
async fn a_job_that_kills_its_worker_each_time_is_quarantined() {
    let stack = Stack::with(Options::default().env("MUSTER_OUTAGE_WAIT", "1s")).await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let tally = folder.path().join("tally");
    // The shell's parent is the worker.
    let command = format!("echo $MUSTER_JOB_ID >> {}; kill -9 $PPID", tally.display());
    let args = ["--topic", "deadly", "--lease", "1s", "--exec", command.as_str()];
    let id = gateway.submit(json!({"topic": "deadly", "retry": {"max_attempts": 3}})).await;
    let mut worker = WorkerProcess::start(&stack, &args);
    let mut starts = 1;
    let mut ends = async |id: &str| {
        until(SOON, "the job to end", async || {
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

    // A retry by hand is a new job with a count of its own.
    let retry = gateway.post(&format!("/jobs/{id}/retry"), &json!({})).await;
    assert_eq!((retry.status.as_u16(), retry.field("attempt")), (202, &json!(0)), "{}", retry.text);
    let again = ends(&retry.id()).await;
    assert_eq!((&again["state"], &again["attempt"]), (&json!("quarantined"), &json!(3)));
    let lines = fs::read_to_string(&tally).unwrap();
    let runs = |id: &str| lines.lines().filter(|line| *line == id).count();
    assert_eq!((runs(&id), runs(&retry.id())), (3, 3), "not looped");
    assert!(starts >= 6);
}
