//! The bus holds a window and Redis holds the backlog: order, priorities, and workers that come late.

#[path = "backlog/hot.rs"]
mod hot;
#[path = "backlog/kept.rs"]
mod kept;
#[path = "backlog/left.rs"]
mod left;
#[path = "backlog/rest.rs"]
mod rest;

use std::time::{Duration, Instant};

use muster_bus::subjects;
use muster_domain::{Tenant, Topic};
use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack, by_hand::bus_of};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(240);
/// The number of offers in the window of a subject at first.
const WINDOW: usize = 32;

#[tokio::test]
async fn a_critical_job_submitted_last_passes_the_backlog() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let ids = gateway.submit_many(1500, &json!({"topic": "crowd", "payload": {"ms": 20}, "priority": "low"})).await;
    until(LONG, "a backlog", async || (gateway.job(&ids[1400]).await["state"] == "queued").then_some(())).await;

    let mut setup = Setup::new("w1", "crowd");
    setup.slots = 2;
    let _worker = runs.worker(&stack, setup, |_, payload| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(json!(null))
    });
    runs.reach(100, LONG).await;
    let before = runs.all().len();
    let critical = gateway.submit(json!({"topic": "crowd", "payload": {"ms": 0}, "priority": "critical"})).await;
    gateway.ended(&critical, LONG).await;
    let order = runs.all();
    let place = order.iter().position(|r| r.job == critical).unwrap();
    // Some jobs start while it is on its way; on a busy machine that takes longer, so more of them start.
    assert!(place - before < 500, "passed by {} of the 1,400 that waited before it", place - before);

    for id in &ids {
        assert_eq!(gateway.ended(id, LONG).await["state"], "succeeded");
    }
    assert!(runs.counts().values().all(|n| *n == 1), "each started exactly once");
}

#[tokio::test]
async fn a_worker_that_comes_late_finds_its_backlog_at_once() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let ids = gateway.submit_many(200, &json!({"topic": "late"})).await;
    until(LONG, "a backlog", async || (gateway.job(&ids[199]).await["state"] == "queued").then_some(())).await;
    // A minute without workers: the offers on the bus have been looked at meanwhile.
    let alone = Instant::now();
    until(LONG, "a minute to pass", async || (alone.elapsed() > Duration::from_secs(60)).then_some(())).await;
    let came = Instant::now();
    let mut setup = Setup::new("w1", "late");
    setup.slots = 16;
    let _worker = runs.worker(&stack, setup, |_, p| async move { Ok(p) });
    runs.reach(200, LONG).await;
    let first = runs.all()[0].at - came;
    // Sooner than any look at a job that waits: by then a busy machine has started them too.
    assert!(first < Duration::from_secs(15), "the first began after {first:?}: not at once");
    assert!(came.elapsed() < Duration::from_secs(28), "took {:?}", came.elapsed());
    for id in &ids {
        assert_eq!(gateway.ended(id, LONG).await["state"], "succeeded");
    }
}

#[tokio::test]
async fn a_backlog_survives_the_restart_of_every_scheduler() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let ids = gateway.submit_many(300, &json!({"topic": "patient"})).await;
    until(LONG, "a backlog", async || (gateway.job(&ids[299]).await["state"] == "queued").then_some(())).await;
    let old = stack.kill9("scheduler-1");
    stack.replaced("scheduler-1", old).await;
    let _worker = runs.echo(&stack, "w1", "patient");
    for id in &ids {
        assert_eq!(gateway.ended(id, LONG).await["state"], "succeeded");
    }
    assert!(runs.counts().values().all(|n| *n == 1), "each started exactly once");
}

/// The number of waiting jobs: enough to show any cost that grows with them. `MUSTER_TEST_MASS` sets another number:
/// a million takes four minutes.
#[expect(clippy::disallowed_methods, reason = "a test's own setting")]
fn mass() -> usize {
    std::env::var("MUSTER_TEST_MASS").map_or(100_000, |text| text.parse().expect("a number"))
}

/// Submits `n` jobs. Items that were refused for now are sent again, as any client does.
async fn pour(gateway: &Probe, mut n: usize, job: &Value) {
    while n > 0 {
        let answer = gateway.post("/jobs/batch", &json!({"items": vec![job; n.min(500)]})).await;
        assert!([200, 503].contains(&answer.status.as_u16()), "{}", answer.text);
        let items = answer.body["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(items.iter().all(|item| [202, 503].map(Value::from).contains(&item["status"])), "{}", answer.text);
        n -= items.iter().filter(|item| item["job"].is_object()).count();
    }
}

#[tokio::test]
async fn behind_a_hundred_thousand_jobs_a_critical_one_and_another_tenants_start_at_once() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let job = |ms: u64, priority: &str| json!({"topic": "mass", "payload": {"ms": ms}, "priority": priority});
    let (long, short) = (job(1_500, "normal"), job(20, "low"));
    let (mass, began) = (mass(), Instant::now());
    tokio::join!(pour(&one, mass / 2, &long), pour(&two, mass / 2, &short));
    eprintln!("{mass} jobs submitted in {:?}", began.elapsed());
    let store = stack.store().await;
    let lane = (Tenant::default(), Topic::parse("mass").unwrap().into());
    until(LONG.max(LONG * (mass / 100_000) as u32), "the mass to wait", async || {
        let waiting: u64 = store.queue_lens(std::slice::from_ref(&lane)).await.ok()?.into_iter().sum();
        (waiting as usize > mass - 1_000).then_some(())
    })
    .await;
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(json!(null))
    };
    let slots = 8;
    let _worker = runs.worker(&stack, Setup { slots, ..Setup::new("w1", "mass") }, work);
    runs.reach(3 * slots, LONG).await;

    // The jobs take long, so only those whose offers are on the bus already start before it.
    let bus = bus_of(&stack, "looker").await;
    let subject = subjects::offer(&lane.0, &lane.1);
    let begun = runs.all().len();
    let critical = one.submit(job(0, "critical")).await;
    let standing = bus.subject_count(&subject).await.unwrap() as usize;
    one.ended(&critical, LONG).await;
    let place = runs.all().iter().position(|run| run.job == critical).unwrap();
    // Or whose offers are on their way there: a scheduler that fell behind fills its window at once. Also those that
    // start while it is submitted.
    let ahead = standing.max(WINDOW) + 4 * slots;
    assert!(place <= begun + ahead, "{} started before it, {standing} stood there", place - begun);
    assert!(standing <= 64, "the bus holds a window, not the mass: {standing}");
    eprintln!("{} started before the critical one, {standing} stood there", place - begun);

    // The first job of another tenant does not wait for the other jobs at all.
    let acme = two.for_tenant("acme");
    let tenant = Setup { tenant: "acme".into(), ..Setup::new("w2", "mass") };
    let _theirs = runs.worker(&stack, tenant, work);
    let asked = Instant::now();
    let first = acme.submit(job(0, "low")).await;
    acme.ended(&first, LONG).await;
    let waited = runs.of(&first)[0].at - asked;
    // Running all the jobs would take hours.
    assert!(waited < Duration::from_secs(20), "another tenant's first job waited {waited:?}");
    eprintln!("another tenant's first job began after {waited:?}");
    assert!(runs.counts().len() < mass / 10, "the mass still waits");
}
