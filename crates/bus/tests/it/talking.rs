//! Plain subscriptions and requests.

use std::time::Duration;

use muster_bus::{BusError, Subscription, subjects};
use muster_domain::WorkerId;
use muster_testkit::{NatsServer, until};
use tokio::{task::JoinSet, time::Instant};

use crate::fixture::{SOON, bus, loose_bus, number, numbered, plain};

const LIMIT: Duration = SOON;

/// Answers every request with its number plus `mark`, until it hears that all were sent; returns how many. Messages of
/// one connection arrive on another in order, so no request comes after that.
async fn answer(mut questions: Subscription, mut all_asked: Subscription, mark: u64) -> usize {
    let mut answered = 0;
    loop {
        let question = tokio::select! {
            biased;
            question = questions.next() => question.unwrap(),
            _ = all_asked.next() => return answered,
        };
        assert!(question.wants_answer());
        question.respond(numbered(number(&question.body) + mark)).await.unwrap();
        answered += 1;
    }
}

#[tokio::test]
async fn a_request_reaches_exactly_one_of_a_queue_group() {
    let server = NatsServer::start().await;
    let asking = bus(&server).await;
    let mut group = JoinSet::new();
    for mark in [1_000, 2_000, 3_000] {
        let replica = loose_bus(&server.url()).await;
        let questions = replica.subscribe(&subjects::start(), Some(subjects::SCHEDULERS)).await.unwrap();
        let all_asked = replica.subscribe(&subjects::wake(), None).await.unwrap();
        replica.flush(LIMIT).await;
        group.spawn(answer(questions, all_asked, mark));
    }
    until(SOON, "somebody who answers", async || asking.request(&subjects::start(), numbered(0), LIMIT).await.ok())
        .await;
    for n in 1..60 {
        let heard = number(&asking.request(&subjects::start(), numbered(n), LIMIT).await.unwrap());
        assert_eq!(heard % 1_000, n, "its own answer");
    }
    asking.broadcast(&subjects::wake(), numbered(60)).await.unwrap();
    assert_eq!(group.join_all().await.into_iter().sum::<usize>(), 60, "each question was answered once");
}

#[tokio::test]
async fn a_question_that_nobody_hears_is_answered_at_once() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let began = Instant::now();
    let fault = bus.request(&subjects::extend(), numbered(1), 3 * SOON).await.unwrap_err();
    assert!(matches!(fault, BusError::NoResponders { .. }), "{fault:?}");
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn a_question_that_nobody_answers_ends_within_its_limit() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let _silent = bus.subscribe(&subjects::extend(), None).await.unwrap();
    let began = Instant::now();
    let fault = bus.request(&subjects::extend(), numbered(1), Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(fault, BusError::Timeout { .. }), "{fault:?}");
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn a_broadcast_reaches_everybody_and_a_worker_hears_only_its_own_notices() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let (one, two) = (WorkerId::parse("one").unwrap(), WorkerId::parse("two").unwrap());
    let mut all = [
        bus.subscribe(&subjects::heartbeat(), None).await.unwrap(),
        bus.subscribe(&subjects::heartbeat(), None).await.unwrap(),
    ];
    let mut own = bus.subscribe(&subjects::worker_ctl(&one), None).await.unwrap();
    bus.broadcast(&subjects::heartbeat(), numbered(1)).await.unwrap();
    bus.broadcast(&subjects::worker_ctl(&two), numbered(2)).await.unwrap();
    bus.broadcast(&subjects::worker_ctl(&one), numbered(3)).await.unwrap();
    for listener in &mut all {
        assert_eq!(heard(listener).await, 1);
    }
    assert_eq!(heard(&mut own).await, 3);
}

#[tokio::test]
async fn what_cannot_be_read_is_skipped() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let mut listener = bus.subscribe(&subjects::wake(), None).await.unwrap();
    bus.flush(LIMIT).await;
    // A round trip, so that the server knows the subscription before the other client publishes.
    bus.ensure_streams().await.unwrap();
    client.publish("sys.loop.wake", "nonsense".into()).await.unwrap();
    client.flush().await.unwrap();
    bus.broadcast(&subjects::wake(), numbered(4)).await.unwrap();
    assert_eq!(heard(&mut listener).await, 4);
}

#[tokio::test]
async fn subscriptions_survive_a_restart() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let mut listener = bus.subscribe(&subjects::config_changed(), None).await.unwrap();
    server.restart().await;
    // A message sent on a breaking connection is lost: send again, until it is received.
    let telling = async {
        loop {
            let _ = bus.broadcast(&subjects::config_changed(), numbered(8)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let heard = tokio::select! { heard = heard(&mut listener) => heard, () = telling => unreachable!("it goes on") };
    assert_eq!(heard, 8);
}

async fn heard(listener: &mut Subscription) -> u64 {
    let next = tokio::time::timeout(SOON, listener.next()).await.expect("something is heard");
    number(&next.expect("the connection stands").body)
}
