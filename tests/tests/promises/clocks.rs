//! The clock of one replica is five minutes ahead, that of the other five minutes behind: nothing happens sooner or
//! later because of that. A Redis node whose clock is a minute off becomes a primary: no live worker loses a job
//! because of that. Needs libfaketime.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant, UNIX_EPOCH},
};

use muster_domain::Time;
use muster_sdk::{Context, HandlerError, Worker};
use muster_testkit::{NatsServer, RedisCluster, RedisServer, bin, clock, free_port, until};
use muster_tests::{Executions, Probe, Program, Run};
use serde_json::{Value, json};

use crate::SOON;

/// Starts a gateway and a scheduler whose clocks differ from now by `offset`.
fn replica(name: &str, offset: &str, wait: &str, stores: [&str; 2], folder: &Path) -> (Probe, Vec<Program>) {
    let (http, admin, other) = (free_port(), free_port(), free_port());
    let (http, admin, other) =
        (format!("127.0.0.1:{http}"), format!("127.0.0.1:{admin}"), format!("127.0.0.1:{other}"));
    let lies = clock::off_by(offset);
    let mut around = vec![("REDIS_URL", stores[0]), ("NATS_URL", stores[1]), ("MUSTER_OUTAGE_WAIT", wait)];
    around.extend(lies.iter().map(|(name, value)| (*name, value.as_str())));
    let (gateway, scheduler) = (format!("gateway-{name}"), format!("scheduler-{name}"));
    let start = |program: &str, own: &[(&str, &str)]| {
        let env = [&around[..], own].concat();
        Program::start(bin(program), &[], &env, &folder.join(format!("{program}-{name}.log")))
    };
    let programs = vec![
        start("muster-scheduler", &[("MUSTER_INSTANCE_ID", &scheduler), ("MUSTER_ADMIN_ADDR", &other)]),
        start(
            "muster-gateway",
            &[
                ("MUSTER_INSTANCE_ID", &gateway),
                ("MUSTER_ADMIN_ADDR", &admin),
                ("MUSTER_HTTP_ADDR", &http),
                ("MUSTER_API_KEY", "a-long-key"),
                ("API_RATE_LIMIT_RPS", "0"),
            ],
        ),
    ];
    (Probe::new(format!("http://{http}"), "a-long-key".into()), programs)
}

async fn are_ready(gateways: [&Probe; 2]) {
    for gateway in gateways {
        until(SOON, "both replicas to be ready", async || {
            let answer = gateway.send(reqwest::Method::GET, "/readyz", &[], None).await.ok()?;
            (answer.body["status"] == "ready").then_some(())
        })
        .await;
    }
}

/// How far a program's own clock is off, in seconds: the last line of its log compared with the time when it was
/// written.
fn off_by(log: &Path) -> f64 {
    let (text, written) = (fs::read_to_string(log).expect("a log"), fs::metadata(log).expect("a log").modified());
    let written = written.expect("a moment").duration_since(UNIX_EPOCH).expect("after 1970");
    let stamp = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(fields) => Time::parse_rfc3339(fields["timestamp"].as_str()?),
        Err(_) => Time::parse_rfc3339(line.split_whitespace().next()?),
    };
    let said = text.lines().rev().find_map(stamp).unwrap_or_else(|| panic!("no moment in {text}"));
    said.0 as f64 / 1e6 - written.as_secs_f64()
}

fn seconds(job: &Value, from: &str, to: &str) -> f64 {
    let at = |name: &str| {
        let text = job[name].as_str().unwrap_or_else(|| panic!("no {name} in {job}"));
        Time::parse_rfc3339(text).expect("a time").0 as f64 / 1e6
    };
    at(to) - at(from)
}

#[tokio::test]
async fn replicas_whose_clocks_are_ten_minutes_apart_change_nothing() {
    let (redis, nats) = tokio::join!(RedisServer::start(), NatsServer::start());
    let (redis_url, nats_url) = (redis.url(), nats.url());
    let folder = tempfile::tempdir().unwrap();
    let (ahead, mut fast) = replica("ahead", "+5m", "2s", [&redis_url, &nats_url], folder.path());
    let (behind, mut slow) = replica("behind", "-5m", "2s", [&redis_url, &nats_url], folder.path());
    are_ready([&ahead, &behind]).await;
    for program in ["muster-gateway", "muster-scheduler"] {
        for (name, off) in [("ahead", 300.0), ("behind", -300.0)] {
            let seen = off_by(&folder.path().join(format!("{program}-{name}.log")));
            assert!((seen - off).abs() < 10.0, "the clock of {program} {name} is {seen} s off instead of {off}");
        }
    }

    let runs = Executions::default();
    let worker = |id: &str, lease: u64| {
        let (notes, name) = (runs.clone(), id.to_owned());
        let worker = Worker::builder(nats_url.clone()).id(id).concurrency(8).lease(Duration::from_secs(lease));
        let worker = worker.handle("time", move |ctx: Context, payload: Value| {
            let run = Run {
                job: ctx.job_id().to_string(),
                attempt: ctx.attempt(),
                fence: ctx.fence(),
                worker: name.clone(),
                at: Instant::now(),
            };
            notes.note(run);
            async move {
                tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
                match payload["fail"].as_bool() {
                    Some(true) => Err(HandlerError::retryable("again")),
                    _ => Ok(payload),
                }
            }
        });
        worker.build().expect("a worker")
    };
    let live = worker("live", 5);
    #[expect(clippy::disallowed_methods, reason = "a test's own worker")]
    let running = tokio::spawn(async move { live.run().await });

    let job = |payload: Value| json!({"topic": "time", "payload": payload, "retry": {"max_attempts": 1}});
    let mut jobs = Vec::new();
    for n in 0..20 {
        let gateway = if n % 2 == 0 { &ahead } else { &behind };
        jobs.push(gateway.submit(job(json!({}))).await);
    }
    // Twice as long as the lease: never taken from its worker.
    let long = [ahead.submit(job(json!({"ms": 15_000}))).await, behind.submit(job(json!({"ms": 15_000}))).await];
    // Delays and back-offs last as long as requested by Redis time; by the clocks of these replicas they would be
    // minutes off.
    let later = json!({"topic": "time", "delay_ms": 4_000});
    let delayed = [ahead.submit(later.clone()).await, behind.submit(later).await];
    let backoff = json!({"initial_ms": 2_000, "jitter": 0});
    let failing = json!({"topic": "time", "payload": {"fail": true}, "retry": {"max_attempts": 2, "backoff": backoff}});
    let failing = [ahead.submit(failing.clone()).await, behind.submit(failing).await];
    // Deadlines too: of a job that no worker runs, and of one that has an hour left.
    let expiring =
        [&ahead, &behind].map(|g| async { g.submit(json!({"topic": "nobody", "expire_in_ms": 3_000})).await });
    let expiring = futures_util::future::join_all(expiring).await;
    let waiting =
        [&ahead, &behind].map(|g| async { g.submit(json!({"topic": "nobody", "expire_in_ms": 240_000})).await });
    let waiting = futures_util::future::join_all(waiting).await;

    for (n, id) in jobs.iter().chain(&long).enumerate() {
        let gateway = if n % 2 == 0 { &behind } else { &ahead };
        let job = gateway.ended(id, SOON).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
        assert_eq!(runs.of(id).len(), 1);
    }
    for id in &delayed {
        let job = behind.ended(id, SOON).await;
        let waited = seconds(&job, "created_at", "started_at");
        assert!((4.0..30.0).contains(&waited), "{waited} s instead of 4: {job}");
    }
    for id in &failing {
        let job = ahead.ended(id, SOON).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("failed"), Some(2)));
        let at: Vec<_> = runs.of(id).iter().map(|run| run.at).collect();
        let waited = (at[1] - at[0]).as_secs_f64();
        assert!((2.0..30.0).contains(&waited), "{waited} s instead of 2");
    }
    for id in &expiring {
        let job = ahead.ended(id, SOON).await;
        assert_eq!(job["state"], "expired", "{job}");
        let lasted = seconds(&job, "created_at", "finished_at");
        assert!((3.0..30.0).contains(&lasted), "{lasted} s instead of 3");
    }
    for id in &waiting {
        assert_eq!(behind.job(id).await["done"], json!(false), "four minutes have not passed");
    }

    // A dead worker is detected after its lease, whichever clock the leader has: each replica leads once.
    for round in 0..2 {
        let doomed = worker(&format!("doomed-{round}"), 3);
        running_until_started(&ahead, &runs, doomed, &format!("doomed-{round}")).await;
        if round == 0 {
            // The other replica leads from here on, once the lock of the dead one has expired.
            let (dead, heir) =
                if leads(&redis, "ahead").await { (fast.remove(0), "behind") } else { (slow.remove(0), "ahead") };
            drop(dead);
            until(SOON, "the other to lead", async || leads(&redis, heir).await.then_some(())).await;
        }
    }
    running.abort();
}

async fn leads(redis: &RedisServer, name: &str) -> bool {
    redis.cli(&["GET", "muster:reconciler:default"]).await.starts_with(&format!("scheduler-{name}~"))
}

/// Runs a worker until it has begun a job that no other worker was free for, kills it, and checks that the job begins
/// again on another worker soon after the lease.
async fn running_until_started(gateway: &Probe, runs: &Executions, doomed: Worker, name: &str) {
    #[expect(clippy::disallowed_methods, reason = "a test's own worker")]
    let life = tokio::spawn(async move { doomed.run().await });
    let (mut ids, mut mine) = (Vec::new(), None);
    until(SOON, "the doomed worker to begin a job", async || {
        if ids.len() < 12 {
            let job = json!({"topic": "time", "payload": {"ms": 1_500}, "retry": {"max_attempts": 2}});
            ids.push(gateway.submit(job).await);
        }
        mine = runs.all().into_iter().find(|run| run.worker == name);
        mine.is_some().then_some(())
    })
    .await;
    life.abort();
    let (died, mine) = (Instant::now(), mine.expect("begun"));
    let again = until(SOON, "its job to begin elsewhere", async || {
        runs.of(&mine.job).into_iter().find(|run| run.worker != name)
    })
    .await;
    let took = again.at - died;
    // By either replica's own clock the death would be detected at once, or after minutes.
    assert!(took < Duration::from_secs(40), "begun again {took:?} after the death");
    for id in ids {
        assert_eq!(gateway.ended(&id, SOON).await["state"], "succeeded");
    }
}

#[tokio::test]
async fn a_failover_to_a_node_a_minute_ahead_rescues_no_live_workers_job() {
    failover_to_a_clock_that_is_off("+60s", 60).await;
}

#[tokio::test]
async fn a_failover_to_a_node_a_minute_behind_rescues_no_live_workers_job() {
    failover_to_a_clock_that_is_off("-60s", -60).await;
}

/// A value of `INFO replication`.
async fn replication(cluster: &RedisCluster, node: usize, name: &str) -> String {
    let info = cluster.cli(node, &["INFO", "replication"]).await;
    let line = info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
    line.unwrap_or_default()
}

async fn failover_to_a_clock_that_is_off(offset: &'static str, off: i64) {
    let (cluster, nats) = tokio::join!(RedisCluster::start_with_a_replica_at(offset), NatsServer::start());
    let (redis_url, nats_url, folder) = (cluster.url(), nats.url(), tempfile::tempdir().unwrap());
    // The clocks of these replicas are right, and they wait for a whole lease after a gap, as by default.
    let (one, _first) = replica("one", "+0s", "30s", [&redis_url, &nats_url], folder.path());
    let (two, _second) = replica("two", "+0s", "30s", [&redis_url, &nats_url], folder.path());
    are_ready([&one, &two]).await;
    let runs = Executions::default();
    let notes = runs.clone();
    let worker = Worker::builder(nats_url).id("live").concurrency(64).lease(Duration::from_secs(6));
    let worker = worker.handle("time", move |ctx: Context, payload: Value| {
        let (job, worker, at) = (ctx.job_id().to_string(), "live".to_owned(), Instant::now());
        notes.note(Run { job, attempt: ctx.attempt(), fence: ctx.fence(), worker, at });
        async move {
            tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
            Ok::<_, HandlerError>(payload)
        }
    });
    let worker = worker.build().expect("a worker");
    #[expect(clippy::disallowed_methods, reason = "a test's own worker")]
    let running = tokio::spawn(async move { worker.run().await });
    let job = |ms: u64| json!({"topic": "time", "payload": {"ms": ms}, "retry": {"max_attempts": 1}});
    let mut ids = Vec::new();
    for n in 0..48 {
        ids.push(if n % 2 == 0 { one.submit(job(20_000)).await } else { two.submit(job(20_000)).await });
    }
    runs.reach(ids.len(), SOON).await;

    let liar = cluster.nodes.len() - 1;
    let port = replication(&cluster, liar, "master_port").await;
    let primary = cluster.nodes.iter().position(|node| node.port().to_string() == port).expect("its primary");
    until(SOON, "the replica to have every start", async || {
        // Everything that was written before this question: extensions go on all the time.
        let there = replication(&cluster, primary, "master_repl_offset").await.parse::<u64>().ok()?;
        (replication(&cluster, liar, "slave_repl_offset").await.parse::<u64>().ok()? >= there).then_some(())
    })
    .await;
    cluster.kill9(primary);
    until(SOON, "the node whose clock is off to take over", async || {
        (replication(&cluster, liar, "role").await == "master").then_some(())
    })
    .await;
    let second = async |node: usize| -> i64 {
        let time = cluster.cli(node, &["TIME"]).await;
        time.lines().next().and_then(|text| text.trim().parse().ok()).expect("a time")
    };
    let honest = (0..liar).find(|node| *node != primary).expect("another");
    let seen = second(liar).await - second(honest).await;
    assert!((seen - off).abs() <= 10, "its clock is {seen} s off");
    let mut there = 0;
    for id in &ids {
        there += usize::from(cluster.primary_of(&format!("muster:job:{id}")).await == liar);
    }
    assert!(there > 0, "some of the jobs are on that node");
    assert_eq!(runs.all().len(), ids.len(), "all of them still run");

    // After the failover the node serves as any other.
    ids.extend(one.submit_many(40, &job(0)).await);
    for id in &ids {
        let job = two.ended(id, SOON).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
        assert_eq!(runs.of(id).len(), 1, "{id} ran once");
    }
    running.abort();
}
