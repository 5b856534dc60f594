//! Publishing: one message per id, however often it is sent; an answer within the limit.

use std::{sync::Arc, time::Duration};

use muster_bus::{BusError, ConsumerSpec, subjects};
use muster_domain::{Time, TraceParent};
use muster_testkit::{NatsServer, Proxy, free_port, until};
use muster_wire::{Body, v1};
use tokio::time::Instant;

use crate::fixture::{SOON, bus, fetched, loose_bus, numbered, plain, stream_messages};

#[tokio::test]
async fn the_same_id_is_one_message_and_another_is_another() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    for id in ["a", "a", "b"] {
        bus.publish(&subjects::submit(), Some(id), None, numbered(1)).await.unwrap();
    }
    for _ in 0..2 {
        bus.publish(&subjects::submit(), None, None, numbered(1)).await.unwrap();
    }
    assert_eq!(stream_messages(&client, "MUSTER_SYS").await, 4);
}

#[tokio::test]
async fn an_envelope_carries_sender_trace_and_the_time_of_the_clock() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let consumer = bus.consumer(ConsumerSpec::scheduler(subjects::submit())).await.unwrap();
    let trace = TraceParent::fresh();
    bus.publish(&subjects::submit(), None, Some(trace), numbered(1)).await.unwrap();
    bus.set_clock(Arc::new(|| Time(77)));
    bus.publish(&subjects::submit(), None, None, numbered(2)).await.unwrap();
    let mut got = Vec::new();
    until(SOON, "both", async || {
        got.extend(fetched(&consumer, 2).await);
        (got.len() == 2).then_some(())
    })
    .await;
    assert_eq!((got[0].envelope.sender.as_str(), got[0].envelope.sent_at), ("test", 0));
    assert_eq!(TraceParent::parse(&got[0].envelope.traceparent), Some(trace));
    assert_eq!(got[1].envelope.sent_at, 77);
}

#[tokio::test]
async fn streams_that_do_not_exist_yet_are_made_by_the_first_publish() {
    let server = NatsServer::start().await;
    let (bus, client) = (loose_bus(&server.url()).await, plain(&server).await);
    bus.publish(&subjects::submit(), None, None, numbered(1)).await.unwrap();
    assert_eq!(stream_messages(&client, "MUSTER_SYS").await, 1);
}

#[tokio::test]
async fn a_publish_begun_while_nats_is_down_succeeds_when_it_is_back() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    server.kill9();
    let subject = subjects::submit();
    let (published, ()) = tokio::join!(bus.publish(&subject, Some("x"), None, numbered(1)), server.restart());
    published.unwrap();
    bus.publish(&subject, Some("x"), None, numbered(1)).await.unwrap();
    assert_eq!(stream_messages(&plain(&server).await, "MUSTER_SYS").await, 1);
}

#[tokio::test]
async fn an_ack_lost_with_its_connection_does_not_make_two_messages() {
    let server = NatsServer::start().await;
    bus(&server).await;
    let proxy = Proxy::start(server.port()).await;
    let bus = loose_bus(&format!("nats://127.0.0.1:{}", proxy.url_port())).await;
    bus.connected().await;
    let client = plain(&server).await;
    proxy.hold_answers();
    let subject = subjects::submit();
    let published = bus.publish(&subject, None, None, numbered(1));
    let fault = async {
        // The message is stored, and its ack is held back; then the connection breaks.
        until(SOON, "the message to be stored", async || {
            (stream_messages(&client, "MUSTER_SYS").await == 1).then_some(())
        })
        .await;
        proxy.cut().await;
        proxy.heal().await;
    };
    let (published, ()) = tokio::join!(published, fault);
    published.unwrap();
    assert_eq!(stream_messages(&client, "MUSTER_SYS").await, 1);
}

#[tokio::test]
async fn without_nats_a_publish_fails_within_its_limit() {
    let bus = loose_bus(&format!("nats://127.0.0.1:{}", free_port())).await;
    assert!(!bus.is_connected());
    let began = Instant::now();
    let limit = Duration::from_millis(250);
    let fault = bus.publish_within(&subjects::submit(), None, None, numbered(1), limit).await.unwrap_err();
    assert!(fault.is_transient(), "{fault:?}");
    assert!(began.elapsed() < limit + SOON, "{:?}", began.elapsed());
    assert!(matches!(bus.broadcast(&subjects::wake(), numbered(1)).await, Err(BusError::Away { .. })));
}

#[tokio::test]
async fn a_server_that_stopped_answering_is_an_error_within_the_limit_and_no_more_when_it_wakes() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    server.pause();
    let began = Instant::now();
    let limit = Duration::from_millis(600);
    let fault = bus.publish_within(&subjects::submit(), None, None, numbered(1), limit).await.unwrap_err();
    assert!(fault.is_transient(), "{fault:?}");
    assert!(began.elapsed() < limit + SOON, "{:?}", began.elapsed());
    server.resume();
    bus.publish(&subjects::submit(), None, None, numbered(2)).await.unwrap();
}

#[tokio::test]
async fn more_than_the_server_takes_is_refused_at_once() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let letter = v1::DeadLetter { original: vec![0; 2 << 20].into(), ..Default::default() };
    let fault = bus.publish(&subjects::dlq(), None, None, Body::DeadLetter(letter)).await.unwrap_err();
    assert!(matches!(fault, BusError::TooLarge { .. }), "{fault:?}");
    let letter = v1::DeadLetter { original: vec![0; bus.max_message()].into(), ..Default::default() };
    bus.publish(&subjects::dlq(), None, None, Body::DeadLetter(letter)).await.unwrap();
}
