//! Two schedulers: one leads, and either may stop.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use muster_bus::subjects;
use muster_domain::{StartId, State};
use muster_testkit::until;
use muster_wire::{
    Body,
    v1::{SubmitGroup, start_answer::Verdict},
};

use crate::{
    path::submit_of,
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
    // Without the handover the lock would last up to fifteen seconds; a busy machine takes longer than one.
    assert!(freed.elapsed() < Duration::from_secs(5), "took {:?}", freed.elapsed());
}

#[tokio::test]
async fn a_replica_that_listens_everywhere_announces_where_others_reach_it() {
    let stack = Stack::without_scheduler().await;
    let _everywhere = stack.scheduler_with("s1", &[("--admin-addr", "0.0.0.0:9099")]).await;
    let settings = [("--admin-addr", "[::]:9099"), ("--advertise-addr", "replica-2.example")];
    let _told = stack.scheduler_with("s2", &settings).await;
    let _one = stack.scheduler_with("s3", &[("--admin-addr", "127.0.0.1:9098")]).await;
    // Redis and NATS of this test are on the loopback address.
    let wanted = [("s1", "127.0.0.1:9099"), ("s2", "replica-2.example:9099"), ("s3", "127.0.0.1:9098")];
    until(SOON, "each to announce its address", async || {
        let replicas = stack.store().replicas().await.unwrap();
        let told: Vec<_> = replicas.iter().map(|it| (it.instance.as_str(), it.admin.as_str())).collect();
        (told == wanted).then_some(())
    })
    .await;
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

#[tokio::test]
async fn one_submit_delivered_many_times_is_one_offer_and_of_many_starts_one_wins() {
    let stack = Stack::without_scheduler().await;
    let id = stack.submit(job("t")).await;
    let submit = submit_of(&stack, id).await;
    for _ in 0..32 {
        let body = Body::Submit(SubmitGroup { items: vec![submit.clone(); 2] });
        stack.bus().publish(&subjects::submit(), None, None, body).await.unwrap();
    }
    let _schedulers = tokio::join!(stack.scheduler("s1"), stack.scheduler("s2"));
    let worker = Worker::on(&stack, "w0", "t").await;
    let offer = worker.offered(SOON).await.offer;
    assert_eq!(offer.version, 2, "decided once");

    let names: Vec<String> = (1..=64).map(|n| format!("w{n}")).collect();
    let workers = join_all(names.iter().map(|name| Worker::on(&stack, name, "t"))).await;
    let answers = join_all(workers.iter().map(|worker| worker.ask(&offer, StartId::random()))).await;
    let won: Vec<usize> = (0..64).filter(|n| answers[*n].verdict() == Verdict::Go).collect();
    assert_eq!(won.len(), 1);
    let refused = answers.iter().filter(|a| a.verdict() == Verdict::Gone && a.reason == "running").count();
    assert_eq!(refused, 63, "everybody else hears why");
    let head = stack.record(id).await.head;
    assert_eq!((head.attempt, head.lease().unwrap().worker.clone()), (1, workers[won[0]].id.clone()));
}
