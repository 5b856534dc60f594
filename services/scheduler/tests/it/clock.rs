//! A Redis whose clock ran an hour ahead and was corrected.

use std::{collections::BTreeSet, time::Duration};

use muster_domain::{
    JobId, JobSpec, State,
    job::{Phase, When},
};
use muster_testkit::RedisServer;

use crate::{
    stack::{SOON, Stack, job},
    worker::Worker,
};

const S: Duration = Duration::from_secs(1);
/// How long jobs wait by their own wish: longer than it takes to correct the clock, even on a busy machine.
const WAIT: Duration = Duration::from_secs(15);

#[tokio::test]
async fn jobs_that_a_clock_an_hour_ahead_has_touched_end_soon_after_it_was_corrected() {
    let stack = Stack::over(RedisServer::start_off_by("+1h").await).await;
    stack.scrubbing("s1", "1s").await;
    let mut dead = Worker::on(&stack, "dead", "t").await;
    dead.lease_ms = 3_000;
    let waits = |wait: Duration| {
        let mut spec = job("t");
        spec.retry.backoff.initial = wait;
        spec
    };
    let started = async |spec: JobSpec| {
        let id = stack.submit(spec).await;
        let attempt = dead.start_next(SOON).await;
        assert_eq!(attempt.job, id);
        attempt
    };

    let failed = started(waits(WAIT)).await;
    dead.fail(&failed, true).await;
    let released = started(job("t")).await;
    dead.release_for(&released, WAIT).await;
    let delayed = stack.submit(JobSpec { run_at: Some(When::In(WAIT)), ..job("t") }).await;
    let far = stack.store().now() + 7_200 * S;
    let kept = stack.submit(JobSpec { run_at: Some(When::At(far)), ..job("t") }).await;
    for (id, state) in [
        (failed.job, State::Retrying),
        (released.job, State::Scheduled),
        (delayed, State::Scheduled),
        (kept, State::Scheduled),
    ] {
        stack.reaches(id, state, SOON).await;
    }
    let lost = started(job("t")).await;
    let offered = stack.submit(job("t")).await;
    stack.reaches(offered, State::Dispatched, SOON).await;
    stack.redis.correct_clock().await;

    let mut left: BTreeSet<JobId> = [failed.job, released.job, delayed, lost.job, offered].into();
    let worker = Worker::on(&stack, "well", "t").await;
    while !left.is_empty() {
        let attempt = worker.start_next(4 * SOON).await;
        assert!(left.remove(&attempt.job), "{} ran twice", attempt.job);
        worker.succeed(&attempt, "1").await;
        let ended = stack.ends(attempt.job, State::Succeeded, SOON).await;
        let expected = if [failed.job, lost.job].contains(&attempt.job) { 2 } else { 1 };
        assert_eq!(ended.head.attempt, expected);
    }
    let stands = stack.record(kept).await;
    assert_eq!(stands.head.phase, Phase::Scheduled { run_at: far }, "the moment that its client named");
}
