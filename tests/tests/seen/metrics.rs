//! Metrics as an operator's Prometheus gets them: clean text on every replica, distinguished by `pod`, and correct
//! sums over replicas.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    process::{Child, Command, Stdio},
    time::Duration,
};

use muster_sdk::HandlerError;
use muster_testkit::{free_port, until};
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack, metric_sum};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);
const JOBS: usize = 120;

/// Runs jobs with every kind of end, over both gateways. Returns how many ended.
async fn some_jobs(stack: &Stack, runs: &Executions) -> usize {
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let _worker = runs.worker(stack, Setup::new("w1", "counted"), |ctx, payload| async move {
        match payload["end"].as_str() {
            Some("bad") => Err(HandlerError::permanent("bad")),
            Some("flaky") if ctx.attempt() == 1 => Err(HandlerError::retryable("once more")),
            _ => Ok(payload),
        }
    });
    let job = |end: &str| json!({"topic": "counted", "payload": {"end": end}, "retry": {"backoff": {"initial_ms": 1}}});
    let (good, bad, flaky) = (job("good"), job("bad"), job("flaky"));
    let (a, b, c) = tokio::join!(one.submit_many(JOBS, &good), two.submit_many(10, &bad), two.submit_many(10, &flaky));
    let later = one.submit(json!({"topic": "counted", "delay_ms": 3_600_000})).await;
    assert_eq!(two.post(&format!("/jobs/{later}/cancel"), &json!({})).await.status, 200);
    for id in [a, b, c].concat() {
        one.ended(&id, SOON).await;
    }
    JOBS + 10 + 10 + 1
}

/// Sends a GET to any HTTP server; `None` if it does not answer.
async fn fetch(base: &str, path: &str) -> Option<Answer> {
    let anybody = Probe::new(base.to_owned(), String::new()).with_key(None);
    anybody.send(Method::GET, path, &[], None).await.ok()
}

/// The scrape of every replica that has an admin port.
async fn scrapes(stack: &Stack) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for process in stack.state().processes {
        if let Some(admin) = process.admin {
            let scrape = fetch(&admin, "/metrics").await.expect("an answer");
            assert!(scrape.header("content-type").is_some_and(|t| t.starts_with("text/plain")), "{scrape:?}");
            all.insert(process.name, scrape.text);
        }
    }
    all
}

fn promtool_objects(scrape: &str) -> String {
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed");
    tool.stdin.take().expect("a pipe").write_all(scrape.as_bytes()).expect("it reads");
    let output = tool.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success() || !said.is_empty());
    said
}

/// Names of the series in a scrape, histograms by their own name.
fn names(scrape: &str) -> BTreeSet<&str> {
    scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

/// Series that every replica of a service has: of all services, of gateways, schedulers and the workflow service.
const EVERYWHERE: [&str; 3] = ["muster_build_info", "muster_redis_command_seconds", "muster_redis_connections"];
const GATEWAY: [&str; 2] = ["muster_http_request_duration_seconds", "muster_rate_limit_hits_total"];
const SCHEDULER: [&str; 5] = [
    "muster_dispatch_latency_seconds",
    "muster_replayed_total",
    "muster_loop_ticks_total",
    "muster_leader",
    "muster_bus_consumer_pending",
];
const WORKFLOW: [&str; 3] = ["muster_loop_ticks_total", "muster_leader", "muster_run_shards"];

/// The series that replicas do not have yet.
fn lacking(scrapes: &BTreeMap<String, String>) -> Vec<String> {
    let mut lacking = Vec::new();
    for (name, scrape) in scrapes {
        let own: &[&str] = match name.split('-').next() {
            Some("gateway") => &GATEWAY,
            Some("scheduler") => &SCHEDULER,
            _ => &WORKFLOW,
        };
        let shown = names(scrape);
        let missing = EVERYWHERE.iter().chain(own).filter(|metric| !shown.contains(*metric));
        lacking.extend(missing.map(|metric| format!("{name} lacks {metric}")));
    }
    lacking
}

/// How many replicas lead each loop, as they tell it.
fn leaders(scrapes: &str) -> BTreeMap<String, f64> {
    let mut leaders: BTreeMap<String, f64> = BTreeMap::new();
    for line in scrapes.lines().filter(|line| line.starts_with("muster_leader{")) {
        let name = line.split("loop=\"").nth(1).unwrap().split('"').next().unwrap();
        *leaders.entry(name.to_owned()).or_default() += line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    }
    leaders
}

/// Whether each loop has one leader; both replicas of the workflow service lead, each for its own shards of runs.
fn all_led(leaders: &BTreeMap<String, f64>) -> bool {
    let wanted = |name: &str| if name == "run reconciler" { 2.0 } else { 1.0 };
    let known = ["reconciler", "run reconciler"].iter().all(|name| leaders.contains_key(*name));
    known && leaders.iter().all(|(name, n)| *n == wanted(name))
}

#[tokio::test]
async fn every_replica_shows_clean_metrics_under_its_own_name() {
    let stack = Stack::with(Options::two()).await;
    let runs = Executions::default();
    let ended = some_jobs(&stack, &runs).await;
    // An end is counted when its effects are done, which is after it can be read. Loops are led, and gauges of them told,
    // soon after a replica is ready.
    let mut last = String::new();
    let all = until(SOON, "every end to be counted, every loop to be led, and every series to be there", async || {
        let all = scrapes(&stack).await;
        let joined: String = all.values().cloned().collect();
        let counted = metric_sum(&joined, "muster_jobs_total") >= ended as f64;
        let (leaders, lacking) = (leaders(&joined), lacking(&all));
        let now = format!("{leaders:?}, {lacking:?}");
        if now != last {
            eprintln!("{now}");
            last = now;
        }
        (counted && all_led(&leaders) && lacking.is_empty()).then_some(all)
    })
    .await;
    assert_eq!(
        all.keys().map(String::as_str).collect::<Vec<_>>(),
        ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2", "workflow-1", "workflow-2"]
    );
    for (name, scrape) in &all {
        assert_eq!(promtool_objects(scrape), "", "{name}");
        let pod = format!("pod=\"{name}\"");
        for line in scrape.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            assert!(line.contains(&pod), "{name}: {line}");
            assert!(line.starts_with("muster_"), "{name}: {line}");
        }
        for id in runs.all() {
            assert!(!scrape.contains(&id.job), "{name}: an id in a label");
        }
    }

    // Series that only the replica that did the work has.
    let somewhere =
        ["muster_jobs_total", "muster_job_attempts_total", "muster_job_wait_seconds", "muster_job_duration_seconds"];
    let joined: String = all.values().cloned().collect();
    for metric in somewhere {
        assert!(names(&joined).contains(metric), "nobody shows {metric}");
    }

    // Ends, attempts and starts are counted once over all replicas.
    assert_eq!(metric_sum(&joined, "muster_jobs_total"), ended as f64);
    let of = |state: &str| -> f64 {
        let label = format!("state=\"{state}\"");
        let lines = joined.lines().filter(|line| line.starts_with("muster_jobs_total{") && line.contains(&label));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    assert_eq!((of("succeeded"), of("failed"), of("cancelled")), (JOBS as f64 + 10.0, 10.0, 1.0));
    assert_eq!(
        metric_sum(&joined, "muster_job_attempts_total"),
        (JOBS + 10 + 20) as f64,
        "two for each that was flaky"
    );
    assert_eq!(metric_sum(&joined, "muster_job_wait_seconds_count"), runs.all().len() as f64);
    assert_eq!(metric_sum(&joined, "muster_job_duration_seconds_count"), (ended - 1) as f64, "all that ever started");
    assert_eq!(
        metric_sum(&joined, "muster_dispatch_latency_seconds_count"),
        (JOBS + 10 + 10) as f64,
        "every job's first dispatch, at once or from the backlog"
    );
    for metric in ["muster_task_panics_total", "muster_lease_lost_total"] {
        assert_eq!(metric_sum(&joined, metric), 0.0, "{metric}");
    }
    // On a busy machine a few calls run out of time.
    let calls = metric_sum(&joined, "muster_redis_command_seconds_count");
    let faults = metric_sum(&joined, "muster_store_faults_total");
    assert!(faults * 20.0 < calls.max(200.0), "{faults} of {calls} calls to Redis failed");
}

/// A Prometheus that runs for this test.
struct Prometheus {
    child: Child,
    url: String,
    _folder: TempDir,
}

impl Prometheus {
    fn start(stack: &Stack) -> Prometheus {
        let folder = tempfile::tempdir().expect("a folder");
        let admins = stack.state().processes.into_iter().filter_map(|p| p.admin);
        let targets: Vec<String> = admins.map(|url| url.trim_start_matches("http://").to_owned()).collect();
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "muster", "honor_labels": true, "static_configs": [{"targets": targets}]}],
        });
        let file = folder.path().join("prometheus.yml");
        // JSON is valid YAML.
        fs::write(&file, config.to_string()).expect("a file");
        let port = free_port();
        let log = fs::File::create(folder.path().join("log")).expect("a log file");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("prometheus is installed");
        Prometheus { child, url: format!("http://127.0.0.1:{port}"), _folder: folder }
    }

    /// The current result of a query: labels and values. `None` while Prometheus is not up yet.
    async fn query(&self, query: &str) -> Option<Vec<(Value, f64)>> {
        let plain = |b: u8| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") };
        let query: String = query.bytes().map(plain).collect();
        let answer = fetch(&self.url, &format!("/api/v1/query?query={query}")).await?;
        let rows = answer.body["data"]["result"].as_array()?;
        rows.iter().map(|row| Some((row["metric"].clone(), row["value"][1].as_str()?.parse().ok()?))).collect()
    }

    async fn becomes(&self, query: &str, expected: f64) {
        let mut last = None;
        until(SOON, &format!("{query} to be {expected}"), async || {
            last = self.query(query).await;
            last.as_deref().is_some_and(|rows| rows.len() == 1 && rows[0].1 == expected).then_some(())
        })
        .await;
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_real_prometheus_sees_every_replica_and_sums_are_right() {
    let stack = Stack::with(Options::two()).await;
    let prometheus = Prometheus::start(&stack);
    let runs = Executions::default();
    let _idle = [runs.echo(&stack, "idle-1", "idle"), runs.echo(&stack, "idle-2", "idle")];
    let ended = some_jobs(&stack, &runs).await;
    prometheus.becomes("sum(up)", 6.0).await;
    prometheus.becomes("sum(muster_jobs_total)", ended as f64).await;
    prometheus.becomes("sum(muster_jobs_total{topic=\"counted\",state=\"succeeded\"})", JOBS as f64 + 10.0).await;
    prometheus.becomes("count(count by (pod) (muster_build_info))", 6.0).await;
    prometheus.becomes("sum(muster_build_info)", 6.0).await;
    prometheus.becomes("sum(muster_leader{loop=\"reconciler\"})", 1.0).await;
    // Both replicas of the workflow service lead, each for its own shards of runs.
    prometheus.becomes("sum(muster_leader{loop=\"run reconciler\"})", 2.0).await;
    prometheus.becomes("sum(muster_run_shards)", 16.0).await;
    // Only the leader of the snapshot reports numbers of the whole fleet.
    prometheus.becomes("sum(muster_workers{topic=\"idle\"})", 2.0).await;
    let rows = prometheus.query("sum by (pod) (muster_http_request_duration_seconds_count)").await.unwrap();
    let pods: BTreeSet<&str> = rows.iter().map(|(labels, _)| labels["pod"].as_str().unwrap()).collect();
    assert_eq!(pods, BTreeSet::from(["gateway-1", "gateway-2"]), "a pod is its own, not the scrape's");
    let quantile = "histogram_quantile(0.99, sum by (le) (muster_job_duration_seconds_bucket))";
    let rows = prometheus.query(quantile).await.unwrap();
    assert!(rows.len() == 1 && rows[0].1.is_finite() && rows[0].1 > 0.0, "buckets add up over replicas: {rows:?}");
}

/// What Redis answers to a command by hand.
fn redis(stack: &Stack, command: &[&str]) -> String {
    let output = Command::new("redis-cli").arg("-u").arg(stack.state().redis_url).args(command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test]
async fn one_replica_tells_of_the_fleet_and_the_next_one_when_it_is_gone() {
    // The interval of the scrub leaves time to see what the last one found.
    let stack = Stack::with(Options::two().env("MUSTER_LOOP_SCRUB_INTERVAL", "10s")).await;
    let (gateway, prometheus, runs) = (stack.gateway(1), Prometheus::start(&stack), Executions::default());
    let _worker = runs.worker(&stack, Setup::new("w1", "long"), |ctx, payload: Value| async move {
        ctx.cancelled().await;
        Ok(payload)
    });
    // No worker takes these: some are offered, the others wait in the backlog.
    for tenant in ["one", "two"] {
        gateway.for_tenant(tenant).submit_many(60, &json!({"topic": "held"})).await;
    }
    let later = gateway.submit_many(3, &json!({"topic": "later", "delay_ms": 3_600_000})).await;
    let running = gateway.submit(json!({"topic": "long"})).await;
    gateway.reaches(&running, "running", SOON).await;
    let told = async || {
        for (query, expected) in [
            ("sum(muster_queue_depth{topic=\"held\"})", 120.0),
            ("sum(muster_queue_runnable{topic=\"held\"})", 120.0),
            ("sum(muster_jobs_current{topic=\"held\"})", 120.0),
            ("sum(muster_jobs_current{topic=\"later\",state=\"scheduled\"})", 3.0),
            ("sum(muster_jobs_current{topic=\"long\",state=\"running\"})", 1.0),
            ("sum(muster_queue_depth{topic=\"long\"})", 0.0),
            ("sum(muster_workers{topic=\"long\"})", 1.0),
            ("sum(muster_overdue_jobs)", 0.0),
            ("sum(muster_overdue_runs)", 0.0),
            ("sum(muster_consistency_gap)", 0.0),
            ("count(muster_queue_depth{topic=\"held\"} > 0)", 1.0),
            ("count(muster_oldest_running_age_seconds{topic=\"long\"} > 1)", 1.0),
            ("count(muster_queue_oldest_age_seconds{topic=\"held\"} > 1)", 1.0),
            ("count(muster_census_age_seconds > 0)", 1.0),
        ] {
            prometheus.becomes(query, expected).await;
        }
    };
    told().await;
    // A job that no scheduler would ever look at again is a gap, until the scrub has put its home back.
    let (store, lost) = (stack.store().await, later[0].parse::<muster_domain::JobId>().unwrap());
    store.drop_homes(&[lost]).await.unwrap();
    prometheus.becomes("sum(muster_consistency_gap)", 1.0).await;
    assert!(store.home_of(lost).await.unwrap().is_some(), "it is looked after again");
    prometheus.becomes("sum(muster_consistency_gap)", 0.0).await;
    // So is a job whose home is due years after the job itself, until the scrub has brought its home nearer.
    let late = later[1].parse::<muster_domain::JobId>().unwrap();
    let due = store.home_of(late).await.unwrap().expect("a home");
    let years = due + Duration::from_secs(10 * 365 * 86_400);
    let home = format!("muster:due:job:{:x}", late.shard());
    let scored = ["ZADD", &home, "XX", "CH", &years.0.to_string(), &later[1]];
    assert_eq!(redis(&stack, &scored), "1", "the home is there");
    prometheus.becomes("sum(muster_consistency_gap)", 1.0).await;
    // The first home is due 30 s after the submit, the one that the scrub sets when the job's own time comes.
    until(SOON, "the scrub to bring the home nearer", async || {
        store.home_of(late).await.unwrap().filter(|now| *now <= due + Duration::from_secs(3_600))
    })
    .await;
    prometheus.becomes("sum(muster_consistency_gap)", 0.0).await;
    // The leader loses its lock, and later dies: whichever replica leads then, exactly one reports, and it reports
    // the same.
    let leader = async || {
        let locks = gateway.get("/locks").await;
        let all = locks.body["items"].as_array().cloned().unwrap_or_default();
        let held = all.into_iter().find(|lock| lock["key"] == "muster:scheduler:snapshot:writer")?;
        held["holder"].as_str().map(str::to_owned)
    };
    let first = until(SOON, "a leader", leader).await;
    let other = if first == "scheduler-1" { "scheduler-2" } else { "scheduler-1" };
    // Somebody else holds the lock until nobody reports any more, however long that takes.
    assert_eq!(redis(&stack, &["SET", "muster:scheduler:snapshot:writer", "nobody:1", "PX", "600000"]), "OK");
    prometheus.becomes("sum(muster_queue_depth{topic=\"held\"})", 0.0).await;
    assert_eq!(redis(&stack, &["DEL", "muster:scheduler:snapshot:writer"]), "1");
    told().await;
    let second = until(SOON, "a leader again", leader).await;
    let old = stack.kill9(&second);
    stack.replaced(&second, old).await;
    told().await;
    assert!([first.as_str(), other].contains(&until(SOON, "a leader at last", leader).await.as_str()));

    // Jobs that a pause holds back do not call for a worker.
    assert_eq!(gateway.for_tenant("two").post("/topics/held/pause", &json!({})).await.status, 200);
    prometheus.becomes("sum(muster_queue_runnable{topic=\"held\"})", 60.0).await;
    let told = gateway.get("/audit?action=topic_pause").await;
    assert_eq!(told.body["items"][0]["target"], "topic/held", "{}", told.text);

    // Ended jobs are no longer reported.
    let cancelled = gateway
        .for_tenant("one")
        .post("/jobs/bulk", &json!({"action": "cancel", "filter": {"topic": "held"}, "rate_per_s": 1000}))
        .await;
    assert_eq!(cancelled.status, 202, "{}", cancelled.text);
    prometheus.becomes("sum(muster_queue_depth{topic=\"held\"})", 60.0).await;
}
