//! Data that was lost or damaged outside Muster is restored from the records: streams deleted under load, homes,
//! queues and listings removed or duplicated by hand.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use muster_domain::{JobId, ids::SHARDS};
use muster_testkit::until;
use muster_tests::{Executions, Failpoints, Options, Setup, Stack, by_hand::HandWorker};
use serde_json::{Value, json};

use crate::{LONG, SOON, all_ran_once, one_end, redis};

#[tokio::test]
async fn streams_deleted_under_load_lose_no_job_and_repeat_none() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    };
    let setup = |id: &str| Setup { slots: 16, lease: Duration::from_secs(6), ..Setup::new(id, "swept") };
    let _workers = [runs.worker(&stack, setup("w1"), work), runs.worker(&stack, setup("w2"), work)];
    let job = |ms: u64| json!({"topic": "swept", "payload": {"ms": ms}, "retry": {"max_attempts": 1}});
    let nats = async_nats::connect(stack.state().nats_url).await.unwrap();
    let js = async_nats::jetstream::new(nats);

    let mut ids = one.submit_many(8, &job(8_000)).await;
    ids.extend(two.submit_many(10, &json!({"topic": "swept", "delay_ms": 3_000, "retry": {"max_attempts": 1}})).await);
    let (short, shorter) = (job(20), job(0));
    let (enough, mut later) = (AtomicBool::new(false), Vec::new());
    let submitting = async {
        while !enough.load(Ordering::Relaxed) {
            let (a, b) = tokio::join!(one.submit_many(20, &short), two.submit_many(20, &shorter));
            later.extend([a, b].concat());
        }
    };
    let deleting = async {
        for round in 1..=3 {
            runs.reach(round * 60, SOON).await;
            for name in ["MUSTER_JOBS", "MUSTER_SYS"] {
                js.delete_stream(name).await.unwrap();
            }
            for name in ["MUSTER_JOBS", "MUSTER_SYS"] {
                until(SOON, "the stream to be there again", async || js.get_stream(name).await.ok()).await;
            }
        }
        enough.store(true, Ordering::Relaxed);
    };
    tokio::join!(submitting, deleting);
    ids.extend(later);
    all_ran_once(&one, &runs, &ids).await;
    assert_eq!(runs.all().len(), ids.len(), "nothing else ran");
    let store = stack.store().await;
    until(SOON, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
}

/// Leaves two jobs of a listing, each twice, at the places of others.
const DOUBLED: &str = "local ids = redis.call('LRANGE', KEYS[1], 0, 3)
    redis.call('DEL', KEYS[1])
    return redis.call('RPUSH', KEYS[1], ids[3], ids[3], ids[4], ids[4])";

#[tokio::test]
async fn homes_queues_and_listings_spoilt_by_hand_are_repaired() {
    let options = Options::two().env("MUSTER_LOOP_SCRUB_INTERVAL", "1s").env("MUSTER_OUTAGE_WAIT", "1s");
    let stack = Stack::with(options).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let once = json!({"topic": "spoilt", "retry": {"max_attempts": 1}});
    let mut ids = gateway.submit_many(400, &once).await;
    let later = json!({"topic": "spoilt", "delay_ms": 12_000, "retry": {"max_attempts": 1}});
    ids.extend(gateway.submit_many(60, &later).await);
    until(LONG, "a backlog", async || (gateway.job(&ids[399]).await["state"] == "queued").then_some(())).await;

    // Whole shards of homes, the queue, the listing.
    let keys = |pattern: &str| -> Vec<String> {
        redis(&stack, &["--scan", "--pattern", pattern]).lines().map(|key| key.trim().to_owned()).collect()
    };
    let (homes, queues) = (keys("muster:due:job:*"), keys("muster:queue:*spoilt*"));
    let lists: Vec<String> =
        keys("muster:idx:default:*").into_iter().filter(|key| key.ends_with(char::is_numeric)).collect();
    assert!(!homes.is_empty() && !queues.is_empty() && !lists.is_empty(), "{homes:?} {queues:?} {lists:?}");
    for (n, home) in homes.iter().enumerate() {
        let spoil = if n % 2 == 0 { vec!["DEL", home] } else { vec!["ZREMRANGEBYRANK", home, "0", "3"] };
        redis(&stack, &spoil);
    }
    // The rest of the listing is duplicated, at the places of other jobs.
    assert_eq!(redis(&stack, &["EVAL", DOUBLED, "1", &lists[0]]), "4");
    let queues: Vec<&String> = queues.iter().filter(|queue| redis(&stack, &["TYPE", queue]) == "zset").collect();
    for queue in &queues {
        redis(&stack, &["ZREMRANGEBYRANK", queue, "0", "199"]);
    }
    // Entries of an old version and of a job that does not exist, before all others; a home of a job that does not
    // exist, and a home in the wrong shard.
    let (store, ghost) = (stack.store().await, JobId::mint(5));
    let member = redis(&stack, &["ZRANGE", queues[0], "-1", "-1"]);
    let (queued, version) = member.split_once(':').expect("a job and its version");
    let old = format!("{queued}:{}", version.parse::<u32>().expect("a version") - 1);
    redis(&stack, &["ZADD", queues[0], "1", &old, "2", &format!("{ghost}:2")]);
    store.set_homes(&[ghost], Duration::ZERO).await.unwrap();
    let twice: JobId = ids[0].parse().unwrap();
    let other = format!("muster:due:job:{:x}", (twice.shard() + 1) % SHARDS);
    redis(&stack, &["ZADD", &other, "1", &ids[0]]);
    until(LONG, "every job to be listed again", async || {
        let shown = gateway.listed("topic=spoilt").await;
        let all: BTreeSet<&String> = shown.iter().collect();
        (all.len() == ids.len() && shown.len() == ids.len()).then_some(())
    })
    .await;
    let _worker = runs.worker(&stack, Setup { slots: 32, ..Setup::new("w1", "spoilt") }, |_, p| async move { Ok(p) });
    all_ran_once(&gateway, &runs, &ids).await;
    assert_eq!(runs.all().len(), ids.len(), "nothing else ran");
    until(SOON, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
    until(SOON, "every entry to be gone", async || {
        queues.iter().all(|queue| redis(&stack, &["ZCARD", queue]) == "0").then_some(())
    })
    .await;
    for gateway in [&gateway, &stack.gateway(2)] {
        let (shown, wanted) = (gateway.listed("topic=spoilt").await, ids.iter().collect::<BTreeSet<_>>());
        assert_eq!((shown.len(), shown.iter().collect::<BTreeSet<_>>()), (ids.len(), wanted), "each is listed once");
    }
    let told = gateway.get("/audit?action=job_put_back&limit=100").await.body;
    let told = told["items"].as_array().unwrap();
    assert!(!told.is_empty(), "who was put back is told");
    for entry in told {
        assert_eq!(entry["actor"], "system", "{entry}");
        assert!(entry["job_id"].as_str().is_some_and(|id| ids.iter().any(|ours| ours == id)), "{entry}");
    }
}

#[tokio::test]
async fn a_reader_that_was_paused_does_not_put_off_a_nearer_look() {
    let points = Failpoints::default();
    let options = Options::default().env("MUSTER_FAILPOINTS", points.setting()).env("MUSTER_OUTAGE_WAIT", "1s");
    let stack = Stack::with(options).await;
    let gateway = stack.gateway(1);
    let id = gateway.submit(json!({"topic": "slow-reader", "retry": {"max_attempts": 2}})).await;
    gateway.reaches(&id, "dispatched", SOON).await;
    // The look at an offer after 30 s; its reader stops just before it re-scores.
    points.arm("look.before_rescore", "delay:4000");
    points.has_acted("look.before_rescore").await;
    let mut worker = HandWorker::on(&stack, "w1", "slow-reader").await;
    worker.lease_ms = 1_000;
    let attempt = worker.start_next().await;
    let started = Instant::now();
    assert_eq!(attempt.number, 1);
    // The worker is silent from now on. If the reader's old plan were applied, the next look would be 30 s away.
    gateway.reaches(&id, "dispatched", SOON).await;
    assert!(started.elapsed() < Duration::from_secs(25), "rescued after {:?}", started.elapsed());
    let again = worker.start_next().await;
    assert_eq!(again.number, 2);
    worker.succeed(&again, "1").await;
    assert_eq!(one_end(&gateway, &id).await["state"], "succeeded");
}
