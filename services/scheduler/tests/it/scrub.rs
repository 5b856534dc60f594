//! Indexes that lose entries, or all of them, under running schedulers.

use std::{collections::BTreeMap, time::Duration};

use muster_domain::{JobId, State, Tenant, job::When};
use muster_store::{Fields, ListFilter, NewJob};
use muster_testkit::until;

use crate::{
    stack::{SOON, Stack, job, new_job},
    worker::Worker,
};

const S: Duration = Duration::from_secs(1);

/// Submits jobs of one home shard.
async fn submit_in(stack: &Stack, shard: u8, run_at: Option<When>, n: usize) -> Vec<JobId> {
    let mut spec = job("t");
    spec.run_at = run_at;
    let jobs = (0..n).map(|_| NewJob { id: JobId::mint(shard), ..new_job(spec.clone()) }).collect();
    stack.submit_new(jobs).await
}

async fn delete(stack: &Stack, pattern: &str) -> usize {
    let keys = stack.redis.cli(&["KEYS", pattern]).await;
    for key in keys.lines() {
        assert_eq!(stack.redis.cli(&["DEL", key]).await, "1");
    }
    keys.lines().count()
}

#[tokio::test]
async fn a_lost_shard_of_homes_is_put_back_and_its_jobs_run() {
    let stack = Stack::without_scheduler().await;
    stack.scrubbing("s1", "1s").await;
    let lost = submit_in(&stack, 3, Some(When::In(6 * S)), 20).await;
    // Not due before the test ends, so nothing else changes their homes.
    let kept = submit_in(&stack, 4, Some(When::In(3600 * S)), 5).await;
    for id in lost.iter().chain(&kept) {
        stack.reaches(*id, State::Scheduled, SOON).await;
    }
    let stands = stack.store().home_of(kept[0]).await.unwrap();
    assert_eq!(stack.redis.cli(&["DEL", "muster:due:job:3"]).await, "1");
    until(SOON, "the homes to be put back", async || {
        for id in &lost {
            stack.store().home_of(*id).await.unwrap()?;
        }
        Some(())
    })
    .await;
    assert_eq!(stack.store().home_of(kept[0]).await.unwrap(), stands, "who has a home keeps it");

    // Only their homes can wake these jobs.
    let worker = Worker::on(&stack, "w1", "t").await;
    let mut starts = BTreeMap::new();
    for _ in &lost {
        let attempt = worker.start_next(SOON).await;
        *starts.entry(attempt.job).or_insert(0) += 1;
        worker.succeed(&attempt, "1").await;
    }
    for id in &lost {
        assert_eq!(starts[id], 1);
        assert_eq!(stack.ends(*id, State::Succeeded, SOON).await.head.attempt, 1);
    }
}

#[tokio::test]
async fn homes_due_in_the_far_future_are_brought_nearer_and_their_jobs_run() {
    let stack = Stack::without_scheduler().await;
    stack.scrubbing("s1", "1s").await;
    // Everything up to the change of the homes must be done before these jobs are due, even on a busy machine.
    let late = submit_in(&stack, 3, Some(When::In(20 * S)), 20).await;
    let kept = submit_in(&stack, 3, Some(When::In(3600 * S)), 5).await;
    for id in late.iter().chain(&kept) {
        stack.reaches(*id, State::Scheduled, SOON).await;
    }
    // A job is visible as scheduled before its home is forwarded.
    until(SOON, "the homes to be in their places", async || {
        for id in &late {
            let due = stack.store().home_of(*id).await.unwrap()?;
            (due.remaining(stack.store().now()) < 25 * S).then_some(())?;
        }
        Some(())
    })
    .await;
    let stands = stack.store().home_of(kept[0]).await.unwrap();
    let year_2036 = "2082758400000000";
    for id in &late {
        let id = id.to_string();
        assert_eq!(stack.redis.cli(&["ZADD", "muster:due:job:3", "XX", "CH", year_2036, &id]).await, "1");
    }
    let worker = Worker::on(&stack, "w1", "t").await;
    for _ in &late {
        let attempt = worker.start_next(2 * SOON).await;
        assert!(late.contains(&attempt.job));
        worker.succeed(&attempt, "1").await;
    }
    for id in &late {
        assert_eq!(stack.ends(*id, State::Succeeded, SOON).await.head.attempt, 1);
    }
    assert_eq!(stack.store().home_of(kept[0]).await.unwrap(), stands, "a home that is due in time stays");
}

#[tokio::test]
async fn all_indexes_lost_at_once_lose_no_job_and_run_none_twice() {
    let stack = Stack::without_scheduler().await;
    stack.scrubbing("s1", "1s").await;
    stack.scrubbing("s2", "1s").await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    worker.lease_ms = 3_000;
    let first = stack.submit(job("t")).await;
    let running = worker.start_next(SOON).await;
    assert_eq!(running.job, first);
    // More than the window takes: some are offered, some wait.
    let jobs = stack.submit_all(vec![job("t"); 60]).await;
    until(SOON, "all to be decided", async || {
        let mut queued = 0;
        for id in &jobs {
            match stack.state(*id).await {
                State::Pending => return None,
                State::Queued => queued += 1,
                _ => {}
            }
        }
        (queued >= 20).then_some(())
    })
    .await;
    assert!(delete(&stack, "muster:due:job:*").await > 10);
    assert_eq!(delete(&stack, "muster:queue:*").await, 1);
    assert!(delete(&stack, "muster:idx:*").await >= 3);

    // The first worker sends nothing, so only the home can rescue its job.
    let mut starts: BTreeMap<JobId, u32> = BTreeMap::new();
    let alive = Worker::on(&stack, "w2", "t").await;
    for _ in 0..61 {
        let attempt = alive.start_next(SOON).await;
        let before = starts.insert(attempt.job, attempt.number);
        assert_eq!(before, None, "nobody runs twice");
        alive.succeed(&attempt, "1").await;
    }
    for id in &jobs {
        assert_eq!(starts[id], 1);
        stack.ends(*id, State::Succeeded, SOON).await;
    }
    assert_eq!(starts[&first], 2, "rescued");
    stack.ends(first, State::Succeeded, SOON).await;
    until(SOON, "the listing to be whole", async || {
        let filter = ListFilter::default();
        let page = stack.store().list(&Tenant::default(), None, 100, &filter, Fields::NONE).await.unwrap();
        (page.items.len() == 61).then_some(())
    })
    .await;
}
