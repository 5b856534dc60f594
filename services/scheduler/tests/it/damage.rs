//! A job whose record is unreadable: every message about it is completed, and none is redelivered for ever.

use muster_bus::{ConsumerSpec, subjects};
use muster_domain::{JobId, StartId, Tenant};
use muster_store::QueueEntry;
use muster_testkit::until;
use muster_wire::{
    Body,
    v1::{Cancel, CancelGroup, Standing, start_answer::Verdict},
};

use crate::{
    stack::{SOON, Stack, job},
    worker::Worker,
};

async fn damage(stack: &Stack, id: JobId, field: &str) {
    stack.redis.cli(&["HSET", &format!("muster:job:{id}"), field, "noise"]).await;
}

/// Waits until no message is pending or unacked on the schedulers' subjects.
async fn all_is_over(stack: &Stack) {
    for subject in [subjects::submit(), subjects::result(), subjects::cancel()] {
        let spec = ConsumerSpec::scheduler(subject.clone());
        until(SOON, &format!("{subject} to be handled"), async || {
            let state = stack.bus().consumer_state(&spec).await.ok()?;
            (state.pending == 0 && state.unacked == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_worker_hears_that_an_offer_is_gone_and_an_attempt_unknown() {
    let stack = Stack::start().await;
    let mut worker = Worker::on(&stack, "w1", "t").await;
    let id = stack.submit(job("t")).await;
    let offered = worker.offered(SOON).await;
    damage(&stack, id, "s").await;
    let answer = worker.ask(&offered.offer, StartId::random()).await;
    assert_eq!((answer.verdict(), answer.reason.as_str()), (Verdict::Gone, "unreadable"));
    offered.delivery.ack().await;

    for (field, succeeds) in [("s", true), ("s", false), ("d", false)] {
        stack.submit(job("t")).await;
        let attempt = worker.start_next(SOON).await;
        damage(&stack, attempt.job, field).await;
        if field == "s" {
            assert_eq!(worker.extend(&attempt, 50.0).await, Standing::UnknownJob);
        }
        match succeeds {
            true => worker.succeed(&attempt, "1").await,
            false => worker.fail(&attempt, true).await,
        }
        let settled = worker.settled().await;
        assert_eq!((settled.fence, settled.standing()), (attempt.fence, Standing::UnknownJob), "{field}");
    }
    all_is_over(&stack).await;
}

#[tokio::test]
async fn its_submit_and_its_cancel_do_not_come_again_and_again() {
    let stack = Stack::without_scheduler().await;
    let ids = [stack.submit(job("t")).await, stack.submit(job("t")).await];
    damage(&stack, ids[0], "s").await;
    damage(&stack, ids[1], "d").await;
    let tenant = Tenant::default().to_string();
    let cancel =
        |id: &JobId| Cancel { job_id: id.as_bytes().to_vec().into(), tenant: tenant.clone(), ..Cancel::default() };
    let cancels = Body::Cancel(CancelGroup { items: ids.iter().map(cancel).collect() });
    stack.bus().publish(&subjects::cancel(), None, None, cancels).await.unwrap();
    let _scheduler = stack.scheduler("s1").await;
    all_is_over(&stack).await;
}

#[tokio::test]
async fn its_place_in_the_backlog_is_given_up() {
    let stack = Stack::without_scheduler().await;
    for field in ["s", "d"] {
        let id = stack.submit(job("t")).await;
        stack.store().enqueue(&[QueueEntry::of(&stack.record(id).await)]).await.unwrap();
        damage(&stack, id, field).await;
    }
    let _scheduler = stack.scheduler("s1").await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let sound = stack.submit(job("t")).await;
    // The job with an intact head was offered by its submit, and may come first.
    while worker.start_next(SOON).await.job != sound {}
    until(SOON, "the backlog to be empty", async || {
        let keys = stack.redis.cli(&["--scan", "--pattern", "muster:queue:*"]).await;
        keys.trim().is_empty().then_some(())
    })
    .await;
}
