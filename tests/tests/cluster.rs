//! The same on a real six-node Redis Cluster and three NATS nodes, and through the death of a primary.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use muster_domain::JobId;
use muster_sdk::HandlerError;
use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack, by_hand::HandWorker};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(120);

#[tokio::test]
async fn on_clusters_jobs_run_fail_are_cancelled_and_outlive_a_primary() {
    let stack = Stack::with(Options { cluster: true, ..Options::two() }).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let mut setup = Setup::new("w1", "smoke");
    setup.slots = 32;
    let _worker = runs.worker(&stack, setup, |_, payload| async move {
        if payload["fail"] == json!(true) { Err(HandlerError::permanent("asked to")) } else { Ok(payload) }
    });

    // Submits are idempotent over both gateways.
    let body = Some(json!({"topic": "smoke", "payload": 1}).to_string().into_bytes());
    let key = [("Idempotency-Key", "same")];
    let post = |gateway: muster_tests::Probe| {
        let body = body.clone();
        async move { gateway.send(reqwest::Method::POST, "/api/v1/jobs", &key, body).await.unwrap() }
    };
    let (a, b) = tokio::join!(post(one.clone()), post(two.clone()));
    assert_eq!(a.id(), b.id());
    assert_eq!(one.ended(&a.id(), LONG).await["state"], "succeeded");
    assert_eq!(runs.of(&a.id()).len(), 1);

    let failing = one.submit(json!({"topic": "smoke", "payload": {"fail": true}})).await;
    assert_eq!(two.ended(&failing, LONG).await["state"], "failed");
    let later = one.submit(json!({"topic": "smoke", "delay_ms": 60000})).await;
    assert_eq!(two.post(&format!("/jobs/{later}/cancel"), &json!({})).await.status, 200);
    let delayed = one.submit(json!({"topic": "smoke", "delay_ms": 1000})).await;
    assert_eq!(two.ended(&delayed, LONG).await["state"], "succeeded");

    // A primary dies under load. Answered jobs end; the client repeats submits that were not answered.
    let ids = one.submit_many(500, &json!({"topic": "smoke", "payload": 2})).await;
    stack.kill9("redis-1");
    for id in &ids {
        assert_eq!(two.ended(id, LONG).await["state"], "succeeded");
    }
    // The new primary may be asked for a moment before it serves.
    let after = until(LONG, "submits to be accepted again", async || {
        let items = vec![json!({"topic": "smoke", "payload": 3}); 200];
        let answer = two.post("/jobs/batch", &json!({ "items": items })).await;
        let ids = answer.body["items"].as_array()?.iter().map(|item| Some(item["job"]["id"].as_str()?.to_owned()));
        ids.collect::<Option<Vec<String>>>()
    })
    .await;
    for id in &after {
        assert_eq!(one.ended(id, LONG).await["state"], "succeeded");
    }
    let listed = one.get("/jobs?state=failed").await;
    assert_eq!(listed.body["items"].as_array().map(Vec::len), Some(1));
}

fn redis_cli(args: &[&str]) -> String {
    let said = Command::new("redis-cli").args(args).output().expect("redis-cli");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// What one node reports about all nodes: (id, port, flags, id of its primary, number of slot ranges).
fn nodes(port: &str) -> Vec<(String, String, String, String, usize)> {
    let said = redis_cli(&["-p", port, "CLUSTER", "NODES"]);
    said.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let port = words.get(1)?.split(['@', ',']).next()?.rsplit(':').next()?;
            let text = |n: usize| words.get(n).map(|w| (*w).to_owned());
            Some((text(0)?, port.to_owned(), text(2)?, text(3)?, words.len().saturating_sub(8)))
        })
        .collect()
}

/// The port of the primary that has the default tenant's listing of the current ten minutes.
fn listing_port(port: &str) -> String {
    let seconds: u64 = redis_cli(&["-p", port, "TIME"]).lines().next().unwrap().parse().unwrap();
    let said = redis_cli(&["-p", port, "LLEN", &format!("muster:idx:default:{}", seconds / 600)]);
    match said.contains("MOVED") {
        true => said.trim().rsplit(':').next().unwrap().to_owned(),
        false => port.to_owned(),
    }
}

fn ports(stack: &Stack) -> Vec<String> {
    stack.state().redis_url.split(',').map(|url| url.rsplit(':').next().unwrap().to_owned()).collect()
}

/// The processes of the shard whose primary has this port: the primary and its replica.
fn shard_of(stack: &Stack, serving: &str) -> Vec<String> {
    let (all, ports) = (nodes(&ports(stack)[0]), ports(stack));
    let primary = all.iter().find(|n| n.1 == serving).expect("a primary");
    let shard: Vec<&String> = all.iter().filter(|n| n.0 == primary.0 || n.3 == primary.0).map(|n| &n.1).collect();
    assert_eq!(shard.len(), 2, "{all:?}");
    let of_it = ports.iter().enumerate().filter(|(_, port)| shard.contains(port));
    of_it.map(|(n, _)| format!("redis-{}", n + 1)).collect()
}

/// Submits through both gateways until `enough` is set; every request must be accepted.
async fn submit_until(one: &Probe, two: &Probe, job: &Value, enough: &AtomicBool) -> Vec<String> {
    let mut ids = Vec::new();
    while !enough.load(Ordering::Relaxed) {
        let (a, b) = tokio::join!(one.submit_many(5, job), two.submit_many(5, job));
        ids.extend([a, b].concat());
    }
    ids
}

async fn all_ran_once(gateway: &Probe, runs: &Executions, ids: &[String]) {
    for id in ids {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
    }
    let counts = runs.counts();
    assert!(ids.iter().all(|id| counts.get(id) == Some(&1)), "each ran once");
}

#[tokio::test]
async fn slots_and_stream_leaders_that_change_hands_under_load_lose_nothing() {
    let stack = Stack::with(Options { cluster: true, ..Options::two() }).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    };
    let setup = Setup { slots: 32, lease: Duration::from_secs(5), ..Setup::new("w1", "moving") };
    let _worker = runs.worker(&stack, setup, work);
    let job = json!({"topic": "moving", "retry": {"max_attempts": 1}});

    // A live reshard: slots move from each primary to the next while jobs flow.
    let port = ports(&stack).remove(0);
    let enough = AtomicBool::new(false);
    let resharding = async {
        let seed = format!("127.0.0.1:{port}");
        let primaries: Vec<String> =
            nodes(&port).into_iter().filter(|n| n.2.contains("master") && n.4 > 0).map(|n| n.0).collect();
        assert_eq!(primaries.len(), 3);
        runs.reach(50, LONG).await;
        let mut moved = 0;
        for n in 0..3 {
            // The tool moves nothing before all nodes know about the last move.
            until(LONG, "the nodes to agree", async || {
                let seed = seed.clone();
                let checked = tokio::task::spawn_blocking(move || redis_cli(&["--cluster", "check", &seed]));
                (!checked.await.unwrap().contains("[ERR]")).then_some(())
            })
            .await;
            let (from, to, seed) = (primaries[n].clone(), primaries[(n + 1) % 3].clone(), seed.clone());
            let moving = tokio::task::spawn_blocking(move || {
                let ends = ["--cluster-from", &from, "--cluster-to", &to, "--cluster-slots", "700", "--cluster-yes"];
                redis_cli(&[&["--cluster", "reshard", &seed][..], &ends].concat())
            });
            let said = moving.await.unwrap();
            assert!(!said.contains("[ERR]"), "{said}");
            // The slots that moved last may move on, so their final place shows nothing.
            moved += said.lines().filter(|line| line.starts_with("Moving slot")).count();
        }
        enough.store(true, Ordering::Relaxed);
        moved
    };
    let (ids, moved) = tokio::join!(submit_until(&one, &two, &job, &enough), resharding);
    assert_eq!(moved, 3 * 700, "slots that went from one node to another");
    all_ran_once(&one, &runs, &ids).await;

    // The leader of each stream dies, with work on it.
    let nats = async_nats::connect(stack.state().nats_url.split(',').collect::<Vec<_>>()).await.unwrap();
    let js = async_nats::jetstream::new(nats);
    let leader = async |name: &str| {
        until(LONG, "a leader of the stream", async || {
            let mut stream = js.get_stream(name).await.ok()?;
            stream.info().await.ok()?.cluster.as_ref()?.leader.clone()
        })
        .await
    };
    let enough = AtomicBool::new(false);
    let killing = async {
        for stream in ["MUSTER_JOBS", "MUSTER_SYS"] {
            let begun = runs.all().len();
            runs.reach(begun + 50, LONG).await;
            let name = leader(stream).await;
            let pid = stack.kill9(&name);
            stack.replaced(&name, pid).await;
            let begun = runs.all().len();
            runs.reach(begun + 50, LONG).await;
        }
        enough.store(true, Ordering::Relaxed);
    };
    let long =
        one.submit_many(5, &json!({"topic": "moving", "payload": {"ms": 8_000}, "retry": {"max_attempts": 1}})).await;
    let (ids, ()) = tokio::join!(submit_until(&one, &two, &job, &enough), killing);
    all_ran_once(&two, &runs, &[ids, long].concat()).await;
}

#[tokio::test]
async fn a_shard_that_is_away_for_a_minute_costs_no_live_worker_its_job() {
    let stack = Stack::with(Options { cluster: true, ..Options::two() }).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let setup = Setup { slots: 64, lease: Duration::from_secs(6), ..Setup::new("w1", "shards") };
    let _worker = runs.worker(&stack, setup, |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    });
    // Sixty jobs spread over all shards: half of them end while one shard is away, half outlast it.
    let job = |ms: u64| json!({"topic": "shards", "payload": {"ms": ms}, "retry": {"max_attempts": 1}});
    let mut ids = Vec::new();
    for n in 0..60 {
        ids.push(if n % 2 == 0 { one.submit(job(20_000)).await } else { two.submit(job(75_000)).await });
    }
    runs.reach(60, LONG).await;

    // The primary and the replica with the tenant's listing hang together, so no node takes over.
    let names = shard_of(&stack, &listing_port(&ports(&stack)[0]));
    for name in &names {
        stack.signal(name, Signal::SIGSTOP);
    }
    let began = Instant::now();
    let (mut served, mut asked, mut late) = (0, 0, 0);
    while began.elapsed() < Duration::from_secs(60) {
        // The other shards go on: submits that can be accepted are accepted, the others are refused in time.
        let since = Instant::now();
        let answer = one.post("/jobs", &job(0)).await;
        assert!([202, 503].contains(&answer.status.as_u16()), "{}", answer.text);
        // On a busy machine one answer may be late, but never many.
        assert!(since.elapsed() < Duration::from_secs(15), "took {:?}", since.elapsed());
        late += usize::from(since.elapsed() > Duration::from_millis(2_500));
        asked += 1;
        if answer.status == 202 {
            served += 1;
            ids.push(answer.id());
        }
    }
    // Homes and records go to nodes that answer; now and then a submit checks whether the shard is back.
    eprintln!("with a shard away {served} of {asked} submits were accepted");
    assert!(late * 10 <= asked, "{late} of {asked} answers were late");
    assert!(served * 2 > asked, "healthy shards never stall: {served} of {asked} were accepted");
    for name in &names {
        stack.signal(name, Signal::SIGCONT);
    }
    all_ran_once(&two, &runs, &ids).await;
    let mut shown = two.listed("topic=shards").await;
    shown.retain(|id| ids.contains(id));
    shown.sort();
    ids.sort();
    assert_eq!(shown, ids, "each is listed once");
}

#[tokio::test]
async fn a_shard_that_is_away_delays_the_rescue_of_nobody_who_is_not_on_it() {
    let stack = Stack::with(Options { cluster: true, ..Options::two() }).await;
    let (gateway, store) = (stack.gateway(1), stack.store().await);
    let mut doomed = HandWorker::on(&stack, "doomed", "doomed").await;
    doomed.lease_ms = 15_000;
    let mut ids = Vec::new();
    for _ in 0..30 {
        // Submit one by one: a batch shares a shard of homes.
        ids.push(gateway.submit(json!({"topic": "doomed", "retry": {"max_attempts": 2}})).await);
    }
    for _ in &ids {
        doomed.start_next().await;
    }
    let runs = Executions::default();
    let _well = runs.echo(&stack, "well", "doomed");

    // Choose a shard that has jobs, but neither the lock of the reconciler nor the audit log: without a leader no
    // scheduler looks at jobs, and no job is rescued without an audit entry.
    let job = |id: &String| id.parse::<JobId>().expect("an id");
    let node = |id: &String| store.node_of(job(id)).expect("a node").port().to_string();
    let owner = |key: &str| store.router().owner(key.as_bytes()).expect("a node").port().to_string();
    let needed = ["muster:reconciler:default", "muster:audit"].map(owner);
    let away = ids.iter().map(node).find(|port| !needed.contains(port)).expect("jobs of every shard");
    let names = shard_of(&stack, &away);
    for name in &names {
        stack.signal(name, Signal::SIGSTOP);
    }
    let stopped = Instant::now();
    // Jobs with neither record nor home on that shard.
    let mut others = Vec::new();
    for id in ids.iter().filter(|id| node(id) != away) {
        others.extend(store.home_of(job(id)).await.is_ok().then_some(id.clone()));
    }
    assert!(others.len() >= 5 && others.len() < ids.len(), "{} of 30", others.len());
    // However long it takes on a busy machine, the shard is away until all of these jobs have ended.
    for id in &others {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(2)), "{job}");
    }
    eprintln!("{} jobs on other shards were rescued after {:?}", others.len(), stopped.elapsed());
    for name in &names {
        stack.signal(name, Signal::SIGCONT);
    }
    for id in &ids {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(2)), "{job}");
    }
    assert!(ids.iter().all(|id| runs.of(id).len() == 1), "each once more");
}

#[tokio::test]
async fn a_primary_that_dies_with_writes_that_no_replica_had_loses_no_job_and_no_cancel() {
    let stack = Stack::with(Options { cluster: true, ..Options::two() }).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let setup = Setup { slots: 32, ..Setup::new("w1", "unreplicated") };
    let _worker = runs.worker(&stack, setup, |_, payload| async move { Ok(payload) });
    let job = json!({"topic": "unreplicated", "retry": {"max_attempts": 1}});
    let early = one.submit_many(50, &job).await;
    all_ran_once(&one, &runs, &early).await;

    // The replica hangs and its link is cut: nothing that follows reaches it.
    let ports = ports(&stack);
    let primary = listing_port(&ports[0]);
    let name = |port: &String| format!("redis-{}", 1 + ports.iter().position(|p| p == port).expect("a node"));
    let replica = shard_of(&stack, &primary).into_iter().find(|node| *node != name(&primary)).expect("its replica");
    stack.signal(&replica, Signal::SIGSTOP);
    assert_ne!(redis_cli(&["-p", &primary, "CLIENT", "KILL", "TYPE", "replica"]).trim(), "0", "a link is cut");
    let mut ids = Vec::new();
    for _ in 0..20 {
        let (a, b) = tokio::join!(one.submit_many(10, &job), two.submit_many(10, &job));
        ids.extend([a, b].concat());
    }
    let mut cancelled = Vec::new();
    for _ in 0..40 {
        let id = one.submit(json!({"topic": "unreplicated", "delay_ms": 3_600_000})).await;
        assert_eq!(two.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
        cancelled.push(id);
    }
    let away = stack.take_down(&name(&primary));
    stack.signal(&replica, Signal::SIGCONT);

    let ended = async |id: &String, state: &str| {
        let what = format!("{id} to be {state}");
        until(LONG, &what, async || (two.get(&format!("/jobs/{id}")).await.body["state"] == state).then_some(())).await;
        // A scheduler restores a forgotten job from its submit.
        let history = one.history(id).await;
        let lines = history["transitions"].as_array().expect("lines");
        usize::from(lines.iter().any(|line| line["note"].as_str().is_some_and(|note| note.contains("forgotten"))))
    };
    let mut forgotten = [0, 0];
    for id in &ids {
        forgotten[0] += ended(id, "succeeded").await;
    }
    for id in &cancelled {
        forgotten[1] += ended(id, "cancelled").await;
    }
    eprintln!("of {} jobs {} were forgotten, of {} cancelled ones {}", ids.len(), forgotten[0], 40, forgotten[1]);
    assert!(forgotten[0] > 20 && forgotten[1] > 0, "writes were lost: {forgotten:?}");
    let counts = runs.counts();
    assert!(ids.iter().all(|id| (1..=2).contains(&counts[id])), "once more at most, where the start was lost");
    assert!(cancelled.iter().all(|id| !counts.contains_key(id)), "what was cancelled never runs");
    away.comes_back().await;
}
