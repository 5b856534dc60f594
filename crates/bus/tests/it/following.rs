//! The stream of events: followed as it grows, and read between two positions.

use muster_bus::{Bus, Followed, Follower, Items, Mark, subjects};
use muster_testkit::{NatsServer, until};
use muster_wire::{
    Body,
    v1::{EventGroup, JobEvent, RunEvent, RunEventGroup},
};
use serde_json::Value;

use crate::fixture::{SOON, bus, js, loose_bus, plain, stream_messages};

/// Publishes events with numbers that can be read back; tries again until NATS takes them.
async fn tell(bus: &Bus, versions: &[u32]) {
    let items = versions.iter().map(|version| JobEvent { version: *version, ..Default::default() }).collect();
    let body = Body::Event(EventGroup { items });
    until(SOON, "the bus", async || bus.broadcast(&subjects::event(), body.clone()).await.ok()).await;
}

/// The same for events of runs.
async fn tell_of_runs(bus: &Bus, versions: &[u32]) {
    let items = versions.iter().map(|version| RunEvent { version: *version, ..Default::default() }).collect();
    let body = Body::RunEvent(RunEventGroup { items });
    until(SOON, "the bus", async || bus.broadcast(&subjects::workflow_event(), body.clone()).await.ok()).await;
}

fn versions(items: &Items) -> Vec<u32> {
    match items {
        Items::Jobs(items) => items.iter().map(|event| event.version).collect(),
        Items::Runs(items) => items.iter().map(|event| event.version).collect(),
    }
}

/// The position where the follower continues.
async fn from(follower: &mut Follower) -> Mark {
    match tokio::time::timeout(SOON, follower.next()).await.expect("in time") {
        Followed::From(mark) => mark,
        Followed::Events(events) => panic!("{events:?}"),
    }
}

/// The next message: its position and its content.
async fn told(follower: &mut Follower) -> (Mark, Vec<u32>) {
    loop {
        match tokio::time::timeout(SOON, follower.next()).await.expect("in time") {
            Followed::From(_) => {}
            Followed::Events(events) => return (events.mark, versions(&events.items)),
        }
    }
}

#[tokio::test]
async fn a_follower_begins_with_what_comes_and_everybody_gives_it_the_same_place() {
    let server = NatsServer::start().await;
    let (one, other) = (bus(&server).await, loose_bus(&server.url()).await);
    tell(&one, &[1]).await;
    until(SOON, "it to be kept", async || (one.events_span().await.ok()?.last == 1).then_some(())).await;
    let (mut first, mut second) = (one.follow_events(), other.follow_events());
    let began = from(&mut first).await;
    assert_eq!((began.seq, from(&mut second).await), (1, began));
    tell(&one, &[2, 3]).await;
    let place = Mark { seq: 2, ..began };
    assert_eq!(told(&mut first).await, (place, vec![2, 3]));
    assert_eq!(told(&mut second).await, (place, vec![2, 3]));

    // Reading from the stream gives the same.
    let (span, read) = other.events_between(1, 9).await.unwrap();
    assert_eq!((span.epoch, span.first, span.last), (began.epoch, 1, 2));
    let read: Vec<_> = read.iter().map(|events| (events.mark.seq, versions(&events.items))).collect();
    assert_eq!(read, [(1, vec![1]), (2, vec![2, 3])]);

    // A closed follower leaves no consumer behind.
    first.close().await;
    second.close().await;
    let client = plain(&server).await;
    until(SOON, "the consumers to go", async || {
        let info = js(&client, "STREAM.INFO.MUSTER_EVENTS", Value::Null).await;
        (info["state"]["consumer_count"] == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn events_of_jobs_and_of_runs_come_in_one_order() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let mut follower = bus.follow_events();
    let began = from(&mut follower).await;
    tell(&bus, &[1]).await;
    tell_of_runs(&bus, &[2, 3]).await;
    tell(&bus, &[4]).await;
    tell_of_runs(&bus, &[5]).await;
    let mut heard = Vec::new();
    for seq in 1..5 {
        let (mark, versions) = told(&mut follower).await;
        assert_eq!(mark, Mark { seq, ..began });
        heard.push(versions);
    }
    assert_eq!(heard, [vec![1], vec![2, 3], vec![4], vec![5]]);
    let (_, read) = bus.events_between(1, 9).await.unwrap();
    assert_eq!(read.iter().map(|events| versions(&events.items)).collect::<Vec<_>>(), heard);
    assert!(matches!((&read[0].items, &read[1].items), (Items::Jobs(_), Items::Runs(_))));
}

#[tokio::test]
async fn a_check_of_the_stream_is_no_event_for_who_listens() {
    let server = NatsServer::start().await;
    let (one, other) = (bus(&server).await, loose_bus(&server.url()).await);
    let mut listener = other.subscribe_now(&subjects::all_events()).await.unwrap();
    // A follower checks the stream on a subject that watchers hear.
    from(&mut one.follow_events()).await;
    tell_of_runs(&one, &[7]).await;
    let heard = tokio::time::timeout(SOON, listener.next()).await.expect("in time").expect("a message");
    assert!(matches!(heard.body, Body::RunEvent(group) if group.items[0].version == 7));
}

#[tokio::test]
async fn nothing_is_missed_or_told_twice_when_nats_is_killed() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let mut follower = bus.follow_events();
    let began = from(&mut follower).await;
    for round in 0..3 {
        let (mut heard, base) = (Vec::new(), round * 200);
        for n in 0..100 {
            tell(&bus, &[base + n]).await;
        }
        let client = plain(&server).await;
        let kept = u64::from(base + 100);
        until(SOON, "all to be kept", async || (stream_messages(&client, "MUSTER_EVENTS").await == kept).then_some(()))
            .await;
        // Half of the messages are received before the kill, the rest and the new ones after it.
        while heard.len() < 50 {
            heard.push(told(&mut follower).await.1[0]);
        }
        server.kill9();
        server.restart().await;
        until(SOON, "NATS to answer", async || bus.events_span().await.ok()).await;
        for n in 100..200 {
            tell(&bus, &[base + n]).await;
        }
        while heard.len() < 200 {
            heard.push(told(&mut follower).await.1[0]);
        }
        assert_eq!(heard, (base..base + 200).collect::<Vec<_>>());
    }
    // A deleted consumer is created again at its position.
    let client = plain(&server).await;
    let names = js(&client, "CONSUMER.NAMES.MUSTER_EVENTS", Value::Null).await;
    for name in names["consumers"].as_array().expect("names") {
        js(&client, &format!("CONSUMER.DELETE.MUSTER_EVENTS.{}", name.as_str().expect("a name")), Value::Null).await;
    }
    assert_eq!(from(&mut follower).await, Mark { seq: 600, ..began });
}

#[tokio::test]
async fn a_stream_that_is_made_anew_is_another_one() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let mut follower = bus.follow_events();
    let began = from(&mut follower).await;
    tell(&bus, &[1]).await;
    assert_eq!(told(&mut follower).await.1, [1]);
    js(&client, "STREAM.DELETE.MUSTER_EVENTS", Value::Null).await;
    let anew = from(&mut follower).await;
    assert!(anew.epoch > began.epoch && anew.seq == 0, "{began:?} {anew:?}");
    tell(&bus, &[2]).await;
    assert_eq!(told(&mut follower).await, (Mark { seq: 1, ..anew }, vec![2]));

    // All messages of a purged stream are gone, but nothing that came after the purge.
    js(&client, "STREAM.PURGE.MUSTER_EVENTS", Value::Null).await;
    let span = bus.events_span().await.unwrap();
    assert_eq!((span.first, span.last), (2, 1));
    assert!(span.goes_on_from(1) && !span.goes_on_from(0));
    tell(&bus, &[3]).await;
    assert_eq!(told(&mut follower).await, (Mark { seq: 2, ..anew }, vec![3]));
}
