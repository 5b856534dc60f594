//! A store that is down for a while: nothing is lost, and no job whose worker is alive runs twice.

use std::time::Duration;

use muster_domain::{JobId, JobSpec, State, job::When};
use muster_testkit::Proxy;

use crate::{
    stack::{SOON, Stack, job},
    worker::{Attempt, Worker},
};

const AWAY: Duration = Duration::from_secs(5);
/// Shorter than an outage, longer than it takes to start a few jobs on a busy machine.
const LEASE: Duration = Duration::from_secs(4);

async fn start(worker: &Worker, n: usize) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for _ in 0..n {
        attempts.push(worker.start_next(4 * SOON).await);
    }
    attempts
}

async fn all_succeeded_at_first(stack: &Stack, jobs: &[JobId]) {
    for id in jobs {
        let record = stack.ends(*id, State::Succeeded, Duration::from_secs(40)).await;
        assert_eq!(record.head.attempt, 1, "no second attempt because of the outage");
    }
}

#[tokio::test]
async fn results_that_come_while_redis_is_away_count_once_it_is_back() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let jobs = stack.submit_all(vec![job("t"); 20]).await;
    let attempts = start(&worker, 20).await;
    stack.redis.pause();
    for attempt in &attempts {
        worker.succeed(attempt, "1").await;
    }
    // Longer than a call's time limit, so that first and second deliveries fail.
    tokio::time::sleep(AWAY).await;
    stack.redis.resume();
    all_succeeded_at_first(&stack, &jobs).await;
}

#[tokio::test]
async fn a_lease_that_ran_out_during_an_outage_is_not_taken_from_a_live_worker() {
    let stack = Stack::without_scheduler().await;
    // The worker may stay silent for this long after the outage.
    stack.scheduler_with("s1", &[("--outage-wait", "30s")]).await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    worker.lease_ms = LEASE.as_millis() as u32;
    let jobs = stack.submit_all(vec![job("t"); 5]).await;
    let attempts = start(&worker, 5).await;
    stack.nats.pause();
    tokio::time::sleep(AWAY).await;
    stack.nats.resume();
    for attempt in &attempts {
        worker.succeed(attempt, "1").await;
    }
    all_succeeded_at_first(&stack, &jobs).await;
}

#[tokio::test]
async fn jobs_on_a_bus_that_restarts_go_on() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let jobs = stack.submit_all(vec![job("t"); 20]).await;
    let attempts = start(&worker, 10).await;
    stack.nats.restart().await;
    stack.bus().connected().await;
    for attempt in &attempts {
        worker.succeed(attempt, "1").await;
    }
    for attempt in start(&worker, 10).await {
        worker.succeed(&attempt, "1").await;
    }
    all_succeeded_at_first(&stack, &jobs).await;
}

#[tokio::test]
async fn a_bus_that_is_slow_to_every_scheduler_keeps_no_job_from_waking() {
    let stack = Stack::without_scheduler().await;
    let line = Proxy::start(stack.nats.port()).await;
    let url = format!("nats://127.0.0.1:{}", line.url_port());
    for name in ["s1", "s2"] {
        stack.scheduler_with(name, &[("--nats-url", &url)]).await;
    }
    let worker = Worker::on(&stack, "w1", "t").await;
    // Longer than anything that the schedulers send takes usually; no replica is better off than another.
    line.slow(Duration::from_millis(600));
    let delayed = stack.submit(JobSpec { run_at: Some(When::In(Duration::from_secs(1))), ..job("t") }).await;
    let first = worker.start_next(4 * SOON).await;
    assert_eq!((first.job, first.number), (delayed, 1));
    worker.fail(&first, true).await;
    let second = worker.start_next(4 * SOON).await;
    assert_eq!((second.job, second.number), (delayed, 2));
    worker.succeed(&second, "1").await;
    stack.ends(delayed, State::Succeeded, 4 * SOON).await;
}
