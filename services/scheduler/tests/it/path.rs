//! The normal way of a job, and the messages that may be repeated on it.

use std::time::Duration;

use muster_bus::subjects;
use muster_domain::{Backoff, JobErrorCode, RetryPolicy, StartId, State, job::When};
use muster_flow::{Cancelled, submit_item};
use muster_testkit::until;
use muster_wire::{
    Body,
    v1::{Standing, StartAsk, Submit, SubmitGroup, start_answer::Verdict},
};

use crate::{
    stack::{SOON, Stack, job},
    worker::Worker,
};

const S: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_job_goes_from_submit_to_its_end() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "mail").await;
    let id = stack.submit(job("mail")).await;
    let attempt = worker.start_next(SOON).await;
    assert_eq!((attempt.job, attempt.number), (id, 1));
    assert_eq!(stack.state(id).await, State::Running);

    worker.succeed(&attempt, "{\"sum\":12345678901234567890}").await;
    let settled = worker.settled().await;
    assert_eq!((settled.fence, settled.standing()), (attempt.fence, Standing::Ok));
    let record = stack.ends(id, State::Succeeded, SOON).await;
    assert_eq!(record.result.unwrap().json, "{\"sum\":12345678901234567890}");
    let story: Vec<State> = record.history.iter().map(|line| line.to).collect();
    assert_eq!(story, [State::Pending, State::Dispatched, State::Running, State::Succeeded]);
}

#[tokio::test]
async fn only_the_ask_that_won_hears_go_again() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let id = stack.submit(job("t")).await;
    let offered = worker.offered(SOON).await;
    let (mine, other) = (StartId::random(), StartId::random());
    let first = worker.ask(&offered.offer, mine).await;
    let again = worker.ask(&offered.offer, mine).await;
    assert_eq!((first.verdict(), again.verdict()), (Verdict::Go, Verdict::Go));
    assert_eq!((first.fence, first.attempt), (again.fence, again.attempt), "still one attempt");
    let late = worker.ask(&offered.offer, other).await;
    assert_eq!((late.verdict(), late.reason.as_str()), (Verdict::Gone, "running"));
    assert_eq!(stack.record(id).await.head.attempt, 1);
}

#[tokio::test]
async fn a_submit_and_a_result_that_come_again_change_nothing() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    let id = stack.submit(job("t")).await;
    let pending = submit_of(&stack, id).await;
    let attempt = worker.start_next(SOON).await;
    worker.succeed(&attempt, "1").await;
    worker.settled().await;
    let ended = stack.ends(id, State::Succeeded, SOON).await;

    publish_submit(&stack, Submit { version: 1, ..pending }).await;
    worker.succeed(&attempt, "2").await;
    assert_eq!(worker.settled().await.standing(), Standing::Ok, "a repeat is told the same");
    worker.fail(&attempt, true).await;
    worker.settled().await;
    assert_eq!(stack.record(id).await, ended, "the end stands as it was written");
    assert!(worker.try_offered(Duration::from_millis(300)).await.is_none(), "nothing is offered again");
}

#[tokio::test]
async fn failures_are_retried_with_their_backoff_and_then_the_job_fails() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let backoff = Backoff { initial: Duration::from_millis(400), factor: 2.0, max: S * 10, jitter: 0.0 };
    let mut spec = job("t");
    spec.retry = RetryPolicy { max_attempts: 3, backoff };
    let id = stack.submit(spec).await;
    let mut failed_at = None;
    for number in 1..=3 {
        let attempt = worker.start_next(SOON).await;
        assert_eq!(attempt.number, number);
        if let Some(before) = failed_at {
            let started = stack.record(id).await.head.started_at.unwrap();
            let waited = started.since(before);
            let planned = Duration::from_millis(400 << (number - 2));
            // With some tolerance: the longest back-off would be ten seconds.
            assert!(waited >= planned && waited < planned + S * 6, "attempt {number} came after {waited:?}");
        }
        worker.fail(&attempt, true).await;
        let next = if number < 3 { State::Retrying } else { State::Failed };
        // A short wait may be over before it is seen; the history says when it began.
        failed_at = Some(
            until(SOON, "the failure to be settled", async || {
                let history = stack.record(id).await.history;
                history.iter().find(|l| l.to == next && u32::from(l.attempt) == number).map(|l| l.at)
            })
            .await,
        );
    }
    let record = stack.ends(id, State::Failed, SOON).await;
    assert_eq!(record.error.unwrap().code, "boom");
    assert!(stack.is_dead_letter(id).await);
}

#[tokio::test]
async fn an_error_that_is_not_retryable_ends_the_job_at_once() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let id = stack.submit(job("t")).await;
    let attempt = worker.start_next(SOON).await;
    worker.fail(&attempt, false).await;
    let record = stack.ends(id, State::Failed, SOON).await;
    assert_eq!(record.head.attempt, 1);
}

#[tokio::test]
async fn an_attempt_that_is_given_back_does_not_count() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    let mut spec = job("t");
    spec.retry.max_attempts = 1;
    let id = stack.submit(spec).await;
    let first = worker.start_next(SOON).await;
    worker.release(&first).await;
    assert_eq!(worker.settled().await.standing(), Standing::Ok);
    let second = worker.start_next(SOON).await;
    assert_eq!((second.job, second.number), (id, 1));
    assert!(second.fence > first.fence);
    worker.succeed(&second, "1").await;
    stack.ends(id, State::Succeeded, SOON).await;
}

#[tokio::test]
async fn a_job_with_a_time_ahead_waits_for_it() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let mut spec = job("t");
    spec.run_at = Some(When::In(S * 3));
    let id = stack.submit(spec).await;
    worker.start_next(2 * SOON).await;
    let record = stack.record(id).await;
    assert!(record.history.iter().any(|line| line.to == State::Scheduled), "{:?}", record.history);
    let waited = record.head.started_at.unwrap().since(record.head.created_at);
    assert!(waited >= S * 3 && waited < S * 13, "started after {waited:?}");
}

#[tokio::test]
async fn a_job_that_nobody_starts_expires_at_its_deadline() {
    let stack = Stack::start().await;
    let mut spec = job("nobody");
    // Enough time to be offered.
    spec.deadline = Some(When::In(S * 6));
    let id = stack.submit(spec).await;
    let record = stack.ends(id, State::Expired, SOON).await;
    assert_eq!(record.error.unwrap().code, JobErrorCode::DeadlineExceeded.as_str());
    assert!(stack.is_dead_letter(id).await);
    let worker = Worker::on(&stack, "w1", "nobody").await;
    let offered = worker.offered(SOON).await;
    let answer = worker.ask(&offered.offer, StartId::random()).await;
    assert_eq!((answer.verdict(), answer.reason.as_str()), (Verdict::Gone, "expired"));
}

#[tokio::test]
async fn a_cancel_reaches_the_worker_and_the_late_result_changes_nothing() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    let spec = job("t");
    let tenant = spec.tenant.clone();
    let id = stack.submit(spec).await;
    let attempt = worker.start_next(SOON).await;
    let cancelled = stack.flow.cancel(&tenant, id, "changed my mind").await.unwrap();
    assert!(matches!(cancelled, Cancelled::Now(_)));
    let notice = worker.cancelled().await;
    assert_eq!((notice.fence, notice.standing()), (attempt.fence, Standing::Cancelled));
    worker.succeed(&attempt, "1").await;
    assert_eq!(worker.settled().await.standing(), Standing::Cancelled);
    let record = stack.ends(id, State::Cancelled, SOON).await;
    assert!(record.result.is_none());
}

#[tokio::test]
async fn an_offer_that_its_worker_cannot_read_ends_the_job() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let id = stack.submit(job("t")).await;
    let offered = worker.offered(SOON).await;
    let ask = StartAsk {
        job_id: offered.offer.job_id.clone(),
        version: offered.offer.version,
        undecodable: true,
        tenant: "default".into(),
        topic: "t".into(),
        ..Default::default()
    };
    assert_eq!(worker.ask_raw(ask).await.verdict(), Verdict::Gone);
    let record = stack.ends(id, State::Failed, SOON).await;
    assert_eq!(record.error.unwrap().code, JobErrorCode::Undecodable.as_str());
}

#[tokio::test]
async fn one_bad_item_of_a_group_harms_none_of_its_neighbours() {
    let stack = Stack::without_scheduler().await;
    let good = stack.submit(job("t")).await;
    let mut bad = submit_of(&stack, good).await;
    bad.job_id = vec![1, 2, 3].into();
    let other = stack.submit(job("t")).await;
    let neighbour = submit_of(&stack, other).await;
    let body = Body::Submit(SubmitGroup { items: vec![bad, neighbour] });
    stack.bus().publish(&subjects::submit(), None, None, body).await.unwrap();
    let mut letters = stack.bus().subscribe(&subjects::dlq(), None).await.unwrap();
    stack.scheduler("s1").await;
    for id in [good, other] {
        stack.reaches(id, State::Dispatched, SOON).await;
    }
    let letter = tokio::time::timeout(SOON, letters.next()).await.expect("a dead letter").unwrap();
    let Body::DeadLetter(letter) = letter.body else { panic!("not a dead letter") };
    assert_eq!(letter.subject, "sys.job.submit");
    assert!(letter.reason.contains("job_id"), "{}", letter.reason);
}

#[tokio::test]
async fn a_start_for_which_there_is_no_record_is_unknown() {
    let stack = Stack::start().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let id = stack.submit(job("t")).await;
    let offered = worker.offered(SOON).await;
    stack.redis.cli(&["DEL", &format!("muster:job:{id}")]).await;
    let answer = worker.ask(&offered.offer, StartId::random()).await;
    assert_eq!(answer.verdict(), Verdict::Unknown);
}

pub(crate) async fn submit_of(stack: &Stack, id: muster_domain::JobId) -> Submit {
    let record = stack.record(id).await;
    submit_item(id, &record.head, (&record.spec).into(), record.payload.unwrap_or_default(), record.body_hash)
}

async fn publish_submit(stack: &Stack, submit: Submit) {
    let body = Body::Submit(SubmitGroup { items: vec![submit] });
    stack.bus().publish(&subjects::submit(), None, None, body).await.unwrap();
}

#[tokio::test]
async fn a_time_out_that_its_worker_reports_first_is_in_the_audit_log_all_the_same() {
    let stack = Stack::without_scheduler().await;
    // A foreign leader holds the reconciler's lock, so no check runs.
    stack.redis.cli(&["SET", "muster:reconciler:default", "nobody~1:1", "PX", "600000"]).await;
    stack.scheduler("s1").await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    let mut spec = job("t");
    (spec.timeout_ms, spec.retry.max_attempts) = (50, 1);
    let id = stack.submit(spec).await;
    let attempt = worker.start_next(SOON).await;
    let end = stack.record(id).await.head.since + Duration::from_millis(50);
    until(SOON, "its time to be up", async || end.reached(stack.store().now()).then_some(())).await;
    worker.fail_with(&attempt, JobErrorCode::AttemptTimeout.as_str(), true).await;
    assert_eq!(worker.settled().await.standing(), Standing::Ok);
    let record = stack.ends(id, State::TimedOut, SOON).await;
    let told = stack.redis.cli(&["XRANGE", "muster:audit", "-", "+"]).await;
    assert_eq!(told.matches(&format!("id\njob:{id}:{}\n", record.head.version)).count(), 1, "{told}");
}
