//! The window and the backlog behind it.

use std::time::Duration;

use muster_bus::subjects;
use muster_domain::{Event, JobId, Outcome, Priority, StartId, State, Tenant, Topic, WorkerId};
use muster_store::Step;
use muster_testkit::until;
use muster_wire::{
    Body,
    v1::{Heartbeat, start_answer::Verdict},
};

use crate::{
    stack::{SOON, Stack, job},
    worker::Worker,
};

/// The first window of a subject.
const WINDOW: usize = 32;

async fn submit_many(stack: &Stack, n: usize, priority: Priority) -> Vec<JobId> {
    let mut spec = job("t");
    spec.priority = priority;
    stack.submit_all(vec![spec; n]).await
}

/// Waits until all of them have been decided, and returns how many are queued.
async fn decided(stack: &Stack, jobs: &[JobId]) -> usize {
    until(SOON, "all jobs to be decided", async || {
        let mut queued = 0;
        for id in jobs {
            match stack.state(*id).await {
                State::Pending => return None,
                State::Queued => queued += 1,
                _ => {}
            }
        }
        Some(queued)
    })
    .await
}

/// Starts everything that is offered, one by one, until `n` jobs have started. Returns them in this order.
async fn started(worker: &Worker, n: usize) -> Vec<JobId> {
    let mut order = Vec::new();
    while order.len() < n {
        let offered = worker.offered(SOON).await;
        let answer = worker.ask(&offered.offer, StartId::random()).await;
        assert_eq!(answer.verdict(), Verdict::Go, "{}", answer.reason);
        offered.delivery.ack().await;
        order.push(offered.job());
    }
    order
}

#[tokio::test]
async fn beyond_the_window_jobs_wait_in_redis_and_leave_by_priority_then_age() {
    let stack = Stack::start().await;
    let normal = submit_many(&stack, WINDOW + 10, Priority::Normal).await;
    assert_eq!(decided(&stack, &normal).await, 10);
    let low = submit_many(&stack, 4, Priority::Low).await;
    let critical = submit_many(&stack, 3, Priority::Critical).await;
    let late = [low.clone(), critical.clone()].concat();
    assert_eq!(decided(&stack, &late).await, late.len(), "whoever waits goes first");
    let subject = subjects::offer(&Tenant::default(), Topic::parse("t").unwrap());
    assert_eq!(stack.bus().subject_count(&subject).await.unwrap(), WINDOW as u64, "the bus holds a window");

    let worker = Worker::on(&stack, "w1", "t").await;
    let order = started(&worker, normal.len() + late.len()).await;
    assert_eq!(order[..WINDOW], normal[..WINDOW], "what stood on the subject");
    assert_eq!(order[WINDOW..WINDOW + 3], critical);
    assert_eq!(order[WINDOW + 3..WINDOW + 13], normal[WINDOW..]);
    assert_eq!(order[WINDOW + 13..], low);
    let left = until(SOON, "the queues to be empty", async || {
        let lens = stack.store().queue_lens(&[(Tenant::default(), Topic::parse("t").unwrap().into())]).await.unwrap();
        (lens[0] == 0).then_some(lens[0])
    })
    .await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_backlog_that_a_stopped_scheduler_left_is_found_when_a_worker_speaks() {
    let stack = Stack::without_scheduler().await;
    let first = stack.scheduler("s1").await;
    let jobs = submit_many(&stack, WINDOW + 5, Priority::Normal).await;
    assert_eq!(decided(&stack, &jobs).await, 5);
    first.chassis.stop.request();
    // The offers are gone, only the backlog is left, and the new scheduler knows no topic.
    stack.nats.restart_empty().await;
    stack.bus().connected().await;
    stack.scheduler("s2").await;
    let beat = Heartbeat {
        worker: "w1".into(),
        tenant: "default".into(),
        topics: vec!["t".into()],
        slots: 10,
        consuming: true,
        ..Default::default()
    };
    let worker = Worker::on(&stack, "w1", "t").await;
    // The worker repeats its heartbeat, as real workers do: a scheduler that is ready receives heartbeats a moment
    // later.
    let subject = subjects::offer(&Tenant::default(), Topic::parse("t").unwrap());
    until(SOON, "the backlog to be found", async || {
        stack.bus().broadcast(&subjects::heartbeat(), Body::Heartbeat(beat.clone())).await.unwrap();
        matches!(stack.bus().subject_count(&subject).await, Ok(1..)).then_some(())
    })
    .await;
    let order = started(&worker, 5).await;
    assert_eq!(order, jobs[WINDOW..]);
}

#[tokio::test]
async fn an_entry_whose_job_was_dispatched_but_never_published_is_offered_by_the_next_claim() {
    let stack = Stack::start().await;
    let jobs = submit_many(&stack, WINDOW + 1, Priority::Normal).await;
    assert_eq!(decided(&stack, &jobs).await, 1);
    let last = jobs[WINDOW];
    // The state after a crash between the dispatch and its offer, with the claim expired.
    let step = Step::new(last, Event::Dispatch, 2);
    assert_eq!(stack.store().apply_one(step).await.unwrap().outcome, Outcome::Applied);
    let worker = Worker::on(&stack, "w1", "t").await;
    let order = started(&worker, WINDOW + 1).await;
    assert_eq!(order[WINDOW], last);
    until(SOON, "its entry to be removed", async || {
        let keys = stack.redis.cli(&["ZCARD", "muster:queue:default:t:normal"]).await;
        (keys == "0").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_queue_entry_that_was_lost_is_put_back_by_the_look() {
    let stack = Stack::start().await;
    let jobs = submit_many(&stack, WINDOW + 1, Priority::Normal).await;
    assert_eq!(decided(&stack, &jobs).await, 1);
    stack.redis.cli(&["DEL", "muster:queue:default:t:normal"]).await;
    stack.store().forward_homes(&[(jobs[WINDOW], Duration::ZERO)]).await.unwrap();
    stack.flow.hint_look(Duration::ZERO).await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let order = started(&worker, WINDOW + 1).await;
    assert_eq!(order[WINDOW], jobs[WINDOW]);
}

#[tokio::test]
async fn an_entry_whose_job_runs_already_brings_its_home_nearer_before_it_goes() {
    let stack = Stack::start().await;
    let jobs = submit_many(&stack, WINDOW + 1, Priority::Normal).await;
    assert_eq!(decided(&stack, &jobs).await, 1);
    let last = jobs[WINDOW];
    // The state after a crash between the offer and the forward, when the offer has been started.
    let lease = Duration::from_secs(60);
    let start = Step { lease, worker: Some(WorkerId::trusted("w0")), ..Step::new(last, Event::Start, 3) };
    for step in [Step::new(last, Event::Dispatch, 2), start] {
        assert_eq!(stack.store().apply_one(step).await.unwrap().outcome, Outcome::Applied);
    }
    let home = async || stack.store().home_of(last).await.unwrap().expect("a home").remaining(stack.store().now());
    // Where the check of a queued job leaves the home.
    stack.store().set_homes(&[last], Duration::from_secs(900)).await.unwrap();
    let worker = Worker::on(&stack, "w1", "t").await;
    started(&worker, WINDOW).await;
    until(SOON, "its entry to be removed", async || {
        let keys = stack.redis.cli(&["ZCARD", "muster:queue:default:t:normal"]).await;
        (keys == "0").then_some(())
    })
    .await;
    assert!(home().await <= lease, "looked at when its lease ends");
}
