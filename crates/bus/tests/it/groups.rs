//! Group commit: few messages for many items, and every caller gets the result of its own item.

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, join_all};
use muster_bus::{Bus, BusError, ConsumerSpec, GroupPublisher, GroupSettings, subjects};
use muster_testkit::{NatsServer, until};
use muster_wire::{Body, encoded_len, v1};
use tokio::{sync::Notify, time::Instant};

use crate::fixture::{SOON, Tasks, bus, fetched, plain, stream_messages};

fn wrap(items: Vec<v1::Submit>) -> Body {
    Body::Submit(v1::SubmitGroup { items })
}

fn publisher(bus: &Bus, tasks: &Tasks, settings: GroupSettings) -> GroupPublisher<v1::Submit> {
    let spawn = |task| tasks.spawn(task);
    GroupPublisher::with(bus.clone(), subjects::submit(), &spawn, wrap, encoded_len, settings)
}

fn item(n: u32, payload: usize) -> v1::Submit {
    v1::Submit { version: n, payload: vec![b'x'; payload].into(), ..Default::default() }
}

/// The versions of all items on the stream, and the number of messages.
async fn carried(bus: &Bus, n: usize) -> (Vec<u32>, usize) {
    let consumer = bus.consumer(ConsumerSpec::scheduler(subjects::submit())).await.unwrap();
    let (mut versions, mut messages) = (Vec::new(), 0);
    until(SOON, "every item", async || {
        for delivery in fetched(&consumer, 100).await {
            delivery.ack().await;
            let Body::Submit(group) = delivery.body else { panic!("not a group") };
            versions.extend(group.items.iter().map(|item| item.version));
            messages += 1;
        }
        (versions.len() >= n).then_some(())
    })
    .await;
    (versions, messages)
}

#[tokio::test]
async fn what_arrives_during_a_publish_goes_out_together_in_the_next() {
    let server = NatsServer::start().await;
    let (bus, tasks) = (bus(&server).await, Tasks::default());
    let publisher = publisher(&bus, &tasks, GroupSettings::bound(1_000));
    let outcomes = join_all((0..500).map(|n| publisher.publish(item(n, 100)))).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let (mut versions, messages) = carried(&bus, 500).await;
    versions.sort_unstable();
    assert_eq!(versions, (0..500).collect::<Vec<_>>(), "each item once");
    assert!(messages <= 10, "500 items in {messages} messages");
}

#[tokio::test]
async fn a_lone_item_is_not_kept_waiting() {
    let server = NatsServer::start().await;
    let (bus, tasks) = (bus(&server).await, Tasks::default());
    let publisher = publisher(&bus, &tasks, GroupSettings::bound(10));
    publisher.publish(item(0, 10)).await.unwrap();
    let began = Instant::now();
    publisher.publish(item(1, 10)).await.unwrap();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_group_is_split_below_the_limit_and_one_that_is_too_large_fails_alone() {
    let server = NatsServer::start().await;
    let (bus, tasks) = (bus(&server).await, Tasks::default());
    let publisher = publisher(&bus, &tasks, GroupSettings { in_flight: 4, ..GroupSettings::bound(100) });
    let mut items: Vec<_> = (0..12).map(|n| item(n, 300_000)).collect();
    items.insert(5, item(99, 2 << 20));
    let outcomes = publisher.publish_all(items).await;
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            5 => assert!(matches!(outcome, Err(BusError::TooLarge { .. })), "{outcome:?}"),
            _ => assert_eq!(*outcome, Ok(()), "item {at}"),
        }
    }
    let (mut versions, messages) = carried(&bus, 12).await;
    versions.sort_unstable();
    assert_eq!(versions, (0..12).collect::<Vec<_>>());
    assert!((4..=6).contains(&messages), "three fit a message: {messages} messages");
}

#[tokio::test]
async fn while_nats_is_away_everybody_hears_within_the_limit_and_afterwards_all_is_well() {
    let server = NatsServer::start().await;
    let (bus, tasks) = (bus(&server).await, Tasks::default());
    let limit = Duration::from_millis(400);
    let publisher = publisher(&bus, &tasks, GroupSettings { limit, ..GroupSettings::bound(8) });
    server.kill9();
    let began = Instant::now();
    // Far more items than may wait: callers without room get their answer in time as well.
    let outcomes = join_all((0..2_000).map(|n| publisher.publish(item(n, 10)))).await;
    assert!(outcomes.iter().all(|o| o.as_ref().is_err_and(BusError::is_transient)), "{:?}", outcomes[0]);
    assert!(began.elapsed() < limit + SOON, "{:?}", began.elapsed());

    server.restart().await;
    until(SOON, "a publish that succeeds", async || publisher.publish(item(7, 10)).await.ok()).await;
}

#[tokio::test]
async fn an_item_whose_caller_has_left_is_still_sent() {
    let server = NatsServer::start().await;
    let (bus, client, tasks) = (bus(&server).await, plain(&server).await, Tasks::default());
    let publisher = publisher(&bus, &tasks, GroupSettings::bound(8));
    server.pause();
    let gave_up = tokio::time::timeout(Duration::from_millis(50), publisher.publish(item(1, 10))).await;
    assert!(gave_up.is_err());
    server.resume();
    until(SOON, "the message", async || (stream_messages(&client, "MUSTER_SYS").await == 1).then_some(())).await;
}

#[tokio::test]
async fn all_that_waits_is_sent_when_the_last_handle_goes() {
    let server = NatsServer::start().await;
    let (bus, tasks) = (bus(&server).await, Tasks::default());
    let publisher = publisher(&bus, &tasks, GroupSettings { max_items: 1, ..GroupSettings::bound(100) });
    let waiting = publisher.clone();
    let (outcomes, ()) =
        tokio::join!(async move { waiting.publish_all((0..20).map(|n| item(n, 10)).collect()).await }, async move {
            drop(publisher)
        });
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(carried(&bus, 20).await.1, 20, "one item a message, as set");
}

#[tokio::test]
async fn a_closed_publisher_sends_what_waits_and_its_task_ends() {
    let server = NatsServer::start().await;
    let (bus, tasks, ended) = (bus(&server).await, Tasks::default(), Arc::new(Notify::new()));
    let spawn = |task: BoxFuture<'static, ()>| {
        let ended = ended.clone();
        tasks.spawn(Box::pin(async move {
            task.await;
            ended.notify_one();
        }));
    };
    let settings = GroupSettings { max_items: 1, ..GroupSettings::bound(100) };
    let publisher = GroupPublisher::with(bus.clone(), subjects::submit(), &spawn, wrap, encoded_len, settings);
    let (outcomes, ()) = tokio::join!(publisher.publish_all((0..20).map(|n| item(n, 10)).collect()), async {
        publisher.close();
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    tokio::time::timeout(SOON, ended.notified()).await.expect("its task ends, though a handle is left");
    assert_eq!(publisher.publish(item(21, 10)).await, Err(BusError::Stopped));
    assert_eq!(carried(&bus, 20).await.0.len(), 20);
}

#[tokio::test]
async fn a_panic_costs_the_group_in_hand_and_nobody_after_it() {
    fn picky(items: Vec<v1::Submit>) -> Body {
        assert!(items.iter().all(|item| item.version != 13), "on purpose");
        wrap(items)
    }
    let server = NatsServer::start().await;
    let (bus, tasks) = (bus(&server).await, Tasks::default());
    let spawn = |task| tasks.spawn(task);
    let settings = GroupSettings::bound(10);
    let publisher = GroupPublisher::with(bus.clone(), subjects::submit(), &spawn, picky, encoded_len, settings);
    let unlucky = publisher.publish(item(13, 10)).await;
    assert!(matches!(&unlucky, Err(fault) if fault.is_transient()), "told at once, and worth another try: {unlucky:?}");
    assert_eq!(publisher.publish(item(1, 10)).await, Ok(()));
    assert_eq!(carried(&bus, 1).await.0, [1]);
}
