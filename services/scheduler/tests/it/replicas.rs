//! Two schedulers: one leads, either may go.

use std::time::{Duration, Instant};

use muster_domain::State;
use muster_testkit::until;

use crate::{
    stack::{SOON, Stack, job},
    worker::Worker,
};

async fn leader(stack: &Stack) -> Option<String> {
    let value = stack.redis.cli(&["GET", "muster:reconciler:default"]).await;
    value.split_once('~').map(|(name, _)| name.to_owned())
}

#[tokio::test]
async fn a_graceful_stop_hands_leadership_over_within_a_second() {
    let stack = Stack::without_scheduler().await;
    let first = stack.scheduler("s1").await;
    let led = until(SOON, "a leader", async || leader(&stack).await).await;
    assert_eq!(led, "s1");
    let _second = stack.scheduler("s2").await;
    assert_eq!(leader(&stack).await.as_deref(), Some("s1"), "one leads, the other stands by");

    first.chassis.stop.request();
    until(SOON, "the lock to be given up", async || (leader(&stack).await.as_deref() != Some("s1")).then_some(()))
        .await;
    let freed = Instant::now();
    until(SOON, "the successor", async || (leader(&stack).await.as_deref() == Some("s2")).then_some(())).await;
    assert!(freed.elapsed() < Duration::from_secs(1), "took {:?}", freed.elapsed());
}

#[tokio::test]
async fn jobs_go_on_when_one_of_two_schedulers_stops() {
    let stack = Stack::without_scheduler().await;
    let first = stack.scheduler("s1").await;
    let _second = stack.scheduler("s2").await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let mut jobs = Vec::new();
    for n in 0..30 {
        jobs.push(stack.submit(job("t")).await);
        if n == 10 {
            first.chassis.stop.request();
        }
        let attempt = worker.start_next(SOON).await;
        assert_eq!(attempt.number, 1);
        worker.succeed(&attempt, "1").await;
    }
    for id in jobs {
        let record = stack.ends(id, State::Succeeded, SOON).await;
        assert_eq!(record.head.attempt, 1, "no attempt was lost to the stop");
    }
}
