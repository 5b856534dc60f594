//! Recovery when a submit, an offer or a worker is lost.

use std::time::Duration;

use muster_bus::subjects;
use muster_domain::{JobErrorCode, State};
use muster_testkit::until;
use muster_wire::v1::Standing;

use crate::{
    stack::{SOON, Stack, job, new_job},
    worker::Worker,
};

const S: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_silent_workers_job_runs_elsewhere_and_its_late_result_is_stale() {
    let stack = Stack::start().await;
    let mut dead = Worker::on(&stack, "dead", "t").await;
    dead.lease_ms = 1_000;
    let id = stack.submit(job("t")).await;
    let first = dead.start_next(SOON).await;
    let mut alive = Worker::on(&stack, "alive", "t").await;
    let second = alive.start_next(SOON).await;
    assert_eq!((second.job, second.number), (id, 2));
    assert!(second.fence > first.fence);
    assert_eq!(dead.cancelled().await.standing(), Standing::Lost, "it is told to stop");

    dead.succeed(&first, "\"old\"").await;
    assert_eq!(dead.settled().await.standing(), Standing::Lost);
    assert_eq!(dead.extend(&first, 50.0).await, Standing::Lost);
    assert_eq!(stack.state(id).await, State::Running);
    alive.succeed(&second, "\"new\"").await;
    assert_eq!(alive.settled().await.standing(), Standing::Ok);
    let record = stack.ends(id, State::Succeeded, SOON).await;
    assert_eq!(record.result.unwrap().json, "\"new\"");
}

#[tokio::test]
async fn a_job_that_loses_its_worker_every_time_is_quarantined() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    worker.lease_ms = 1_000;
    let mut spec = job("t");
    spec.retry.max_attempts = 2;
    let id = stack.submit(spec).await;
    for number in 1..=2 {
        assert_eq!(worker.start_next(SOON).await.number, number);
    }
    let record = stack.ends(id, State::Quarantined, SOON).await;
    assert_eq!(record.error.unwrap().code, JobErrorCode::StaleTimeout.as_str());
    assert!(stack.is_dead_letter(id).await);
}

#[tokio::test]
async fn a_job_longer_than_its_lease_keeps_its_healthy_worker() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    // Long enough that even a busy machine extends the lease in time.
    worker.lease_ms = 3_000;
    let id = stack.submit(job("t")).await;
    let attempt = worker.start_next(SOON).await;
    let mut progress = stack.bus().subscribe(&subjects::progress(), None).await.unwrap();
    let end = tokio::time::Instant::now() + S * 7;
    while tokio::time::Instant::now() < end {
        assert_eq!(worker.extend(&attempt, 40.0).await, Standing::Ok);
        assert!(worker.try_offered(Duration::from_millis(200)).await.is_none(), "nobody else gets it");
    }
    let told = tokio::time::timeout(SOON, progress.next()).await.expect("progress is passed on").unwrap();
    assert!(matches!(told.body, muster_wire::Body::Progress(_)));
    assert_eq!(stack.record(id).await.progress.unwrap().percent, Some(40.0));
    worker.succeed(&attempt, "1").await;
    let record = stack.ends(id, State::Succeeded, SOON).await;
    assert_eq!(record.head.attempt, 1);
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_cut_short_and_retried() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    let mut spec = job("t");
    spec.timeout_ms = 500;
    spec.retry.max_attempts = 2;
    spec.retry.backoff.initial = Duration::from_millis(100);
    let id = stack.submit(spec).await;
    let first = worker.start_next(SOON).await;
    let notice = worker.cancelled().await;
    assert_eq!((notice.fence, notice.standing()), (first.fence, Standing::TimedOut));
    assert_eq!(worker.start_next(SOON).await.number, 2);
    let record = stack.ends(id, State::TimedOut, SOON).await;
    assert_eq!(record.error.unwrap().code, JobErrorCode::AttemptTimeout.as_str());
}

#[tokio::test]
async fn a_submit_that_was_never_published_is_published_by_the_look() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let new = new_job(job("t"));
    let id = new.id;
    // The state after a crash between record and publish.
    stack.store().set_homes(&[id], S * 30).await.unwrap();
    for submitted in stack.store().submit(&[new]).await {
        submitted.unwrap();
    }
    let attempt = worker.start_next(S * 50).await;
    assert_eq!((attempt.job, attempt.number), (id, 1));
}

#[tokio::test]
async fn an_offer_that_was_lost_is_made_again() {
    let stack = Stack::start().await;
    let id = stack.submit(job("t")).await;
    stack.reaches(id, State::Dispatched, SOON).await;
    stack.nats.restart_empty().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let attempt = worker.start_next(S * 60).await;
    assert_eq!((attempt.job, attempt.number), (id, 1), "an offer that nobody started costs no attempt");
}

#[tokio::test]
async fn an_entry_without_a_record_vanishes_and_nothing_else_does() {
    let stack = Stack::start().await;
    let ghost = new_job(job("t")).id;
    let id = stack.submit(job("t")).await;
    stack.store().set_homes(&[ghost], Duration::ZERO).await.unwrap();
    until(SOON, "the orphan to be dropped", async || {
        stack.store().home_of(ghost).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(stack.store().home_of(id).await.unwrap().is_some(), "who is alive keeps its home");
}

#[tokio::test]
async fn an_end_whose_effects_were_not_done_is_finished_by_the_look() {
    let stack = Stack::start().await;
    let id = stack.submit(job("t")).await;
    stack.reaches(id, State::Dispatched, SOON).await;
    // The state after a crash between the end and its effects.
    let step = muster_store::Step::new(id, muster_domain::Event::Reject, 2);
    assert_eq!(stack.store().apply_one(step).await.unwrap().outcome, muster_domain::Outcome::Applied);
    stack.store().forward_homes(&[(id, Duration::ZERO)]).await.unwrap();
    stack.ends(id, State::Failed, SOON).await;
    assert!(stack.is_dead_letter(id).await);
}
