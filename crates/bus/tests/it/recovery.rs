//! Consumers and publishers recover by themselves from restarts, wipes and deletions.

use std::{collections::BTreeSet, time::Duration};

use muster_bus::{Bus, Consumer, ConsumerSpec, subjects};
use muster_testkit::{NatsServer, Proxy, until};
use serde_json::Value;
use tokio::time::Instant;

use crate::fixture::{
    SOON, bus, fetched, is_waited_for, js, loose_bus, names, number, numbered, offers_of, plain, stream_messages, take,
};

/// Far longer than the faults here, so that recovery happens inside one fetch.
const FETCH: Duration = Duration::from_secs(30);

/// Both kinds of consumer: with a standing request, and exact.
async fn consumers(bus: &Bus) -> [Consumer; 2] {
    let (tenant, topic) = names("t");
    let specs = [ConsumerSpec::scheduler(subjects::submit()), ConsumerSpec::offers(&tenant, &topic)];
    [bus.consumer(specs[0].clone()).await.unwrap(), bus.consumer(specs[1].clone()).await.unwrap()]
}

/// A fetch is open while `fault` happens; messages published afterwards arrive through it, or through the next fetches.
async fn survives(bus: &Bus, fault: impl Future<Output = ()>) {
    let [standing, exact] = consumers(bus).await;
    for (n, consumer) in [&standing, &exact].into_iter().enumerate() {
        bus.publish(&consumer.spec().filter, None, None, numbered(n as u64)).await.unwrap();
        assert_eq!(take(consumer, 1).await, [n as u64]);
    }
    let waiting = async {
        let got = tokio::join!(wait_for(&standing, 100), wait_for(&exact, 101));
        (got.0, got.1)
    };
    let publishing = async {
        fault.await;
        for (n, consumer) in [(100, &standing), (101, &exact)] {
            bus.publish(&consumer.spec().filter, None, None, numbered(n)).await.unwrap();
        }
        Instant::now()
    };
    let (got, published) = tokio::join!(waiting, publishing);
    for got in [got.0, got.1] {
        let took = got.saturating_duration_since(published);
        assert!(took < FETCH / 2, "a consumer stood still for {took:?}");
    }
}

/// When the message with that number arrived.
async fn wait_for(consumer: &Consumer, wanted: u64) -> Instant {
    until(3 * FETCH, "a message after the fault", async || {
        let got = consumer.fetch(10, FETCH).await.unwrap_or_default();
        for delivery in &got {
            delivery.ack().await;
        }
        got.iter().any(|d| number(&d.body) == wanted).then(Instant::now)
    })
    .await
}

#[tokio::test]
async fn a_restart_of_nats_is_survived() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    survives(&bus, async {
        server.kill9();
        server.restart().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_came_back_empty_is_survived() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    survives(&bus, server.restart_empty()).await;
}

#[tokio::test]
async fn deleted_consumers_are_made_again() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let [standing, exact] = consumers(&bus).await;
    survives(&bus, async {
        // Both consumers have open requests when it happens.
        for consumer in [&standing, &exact] {
            is_waited_for(&client, consumer.spec()).await;
        }
        for (stream, consumer) in [("MUSTER_SYS", &standing), ("MUSTER_JOBS", &exact)] {
            let gone = js(&client, &format!("CONSUMER.DELETE.{stream}.{}", consumer.spec().name), Value::Null).await;
            assert_eq!(gone["success"], true, "{gone}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_consumer_deleted_between_two_fetches_is_made_again_however_short_they_are() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    for (n, consumer) in consumers(&bus).await.iter().enumerate() {
        let spec = consumer.spec();
        bus.publish(&spec.filter, None, None, numbered(1)).await.unwrap();
        assert_eq!(take(consumer, 1).await, [1]);
        // The ack is on its way; once it has arrived, the offer has left its stream.
        let handled = async || (n == 0 || stream_messages(&client, "MUSTER_JOBS").await == 0).then_some(());
        until(SOON, "the ack to be heard", handled).await;
        let name = format!("CONSUMER.DELETE.{}.{}", spec.stream.name(), spec.name);
        assert_eq!(js(&client, &name, Value::Null).await["success"], true);
        bus.publish(&spec.filter, None, None, numbered(2)).await.unwrap();
        // The scheduler's stream keeps messages after their ack, so the new consumer delivers the first one once more.
        let wanted: &[u64] = if n == 0 { &[1, 2] } else { &[2] };
        assert_eq!(take(consumer, wanted.len()).await, wanted);
    }
}

#[tokio::test]
async fn deleted_streams_are_made_again() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let [standing, exact] = consumers(&bus).await;
    survives(&bus, async {
        for consumer in [&standing, &exact] {
            is_waited_for(&client, consumer.spec()).await;
        }
        for stream in ["MUSTER_SYS", "MUSTER_JOBS", "MUSTER_EVENTS"] {
            let gone = js(&client, &format!("STREAM.DELETE.{stream}"), Value::Null).await;
            assert_eq!(gone["success"], true, "{gone}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_hangs_and_then_breaks_is_survived() {
    let server = NatsServer::start().await;
    bus(&server).await;
    let proxy = Proxy::start(server.port()).await;
    let bus = loose_bus(&format!("nats://127.0.0.1:{}", proxy.url_port())).await;
    bus.connected().await;
    survives(&bus, async {
        proxy.stall();
        // Longer than the allowed time without heartbeats on a standing request.
        tokio::time::sleep(Duration::from_secs(4)).await;
        proxy.cut().await;
        proxy.heal().await;
    })
    .await;
}

#[tokio::test]
async fn a_consumer_opened_while_nats_is_away_begins_when_it_is_there() {
    let server = NatsServer::start().await;
    server.kill9();
    let bus = loose_bus(&server.url()).await;
    let consumer = bus.consumer(ConsumerSpec::scheduler(subjects::submit())).await.unwrap();
    let began = Instant::now();
    assert!(consumer.fetch(1, Duration::from_millis(300)).await.is_err());
    assert!(began.elapsed() < SOON);
    server.restart().await;
    bus.publish(&subjects::submit(), None, None, numbered(5)).await.unwrap();
    assert_eq!(take(&consumer, 1).await, [5]);
}

#[tokio::test]
async fn what_was_acked_by_the_stream_survives_a_kill_in_the_middle_of_a_flood() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let [consumer, _] = consumers(&bus).await;
    let mut acked = BTreeSet::new();
    let flood = async {
        for n in 0..40_u64 {
            let subject = subjects::submit();
            let many = (0..25).map(|m| bus.publish(&subject, None, None, numbered(n * 25 + m)));
            for (m, sent) in futures_util::future::join_all(many).await.into_iter().enumerate() {
                if sent.is_ok() {
                    acked.insert(n * 25 + m as u64);
                }
            }
        }
    };
    let client = plain(&server).await;
    let kill = async {
        until(SOON, "part of the flood", async || (stream_messages(&client, "MUSTER_SYS").await >= 100).then_some(()))
            .await;
        server.kill9();
        server.restart().await;
    };
    tokio::join!(flood, kill);
    assert_eq!(acked.len(), 1_000, "publishes ride out a restart");
    let mut came = BTreeSet::new();
    until(Duration::from_secs(40), "every acked message", async || {
        for delivery in fetched(&consumer, 100).await {
            delivery.ack().await;
            came.insert(number(&delivery.body));
        }
        acked.is_subset(&came).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_state_of_the_connection_can_be_watched() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let mut state = bus.watch_state();
    state.wait_for(|up| *up).await.unwrap();
    server.kill9();
    tokio::time::timeout(SOON, state.wait_for(|up| !*up)).await.unwrap().unwrap();
    assert!(!bus.is_connected());
    server.restart().await;
    tokio::time::timeout(SOON, state.wait_for(|up| *up)).await.unwrap().unwrap();
    assert!(bus.is_connected());
}

/// nats-server 2.9 sometimes does this to a stream that is created at the moment when a stream of the same name is
/// deleted.
#[tokio::test]
async fn a_stream_that_lost_its_files_gets_new_ones() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let ((tenant, topic), subject) = (names("t"), offers_of("t"));
    let consumer = bus.consumer(ConsumerSpec::offers(&tenant, &topic)).await.unwrap();
    let folder = server.store().join("jetstream/$G/streams/MUSTER_JOBS");
    // Publishing continues into a file that can no longer be opened. The server may be writing there at this moment.
    until(SOON, "the files to be gone", async || {
        let _ = std::fs::remove_dir_all(&folder);
        (!folder.exists()).then_some(())
    })
    .await;
    bus.publish(&subject, None, None, numbered(1)).await.unwrap();
    assert_eq!(fetched(&consumer, 8).await.len(), 0, "it is acknowledged and cannot be delivered");
    bus.ensure_streams().await.unwrap();
    bus.publish(&subject, None, None, numbered(2)).await.unwrap();
    assert_eq!(take(&consumer, 1).await, [2]);
    // A stream with readable messages is left alone.
    bus.publish(&subject, None, None, numbered(3)).await.unwrap();
    bus.ensure_streams().await.unwrap();
    assert_eq!(take(&consumer, 1).await, [3]);
}

#[tokio::test]
async fn who_left_a_group_as_the_connection_broke_is_sent_nothing_afterwards() {
    let server = NatsServer::start().await;
    let (leaving, staying) = (loose_bus(&server.url()).await, loose_bus(&server.url()).await);
    let mut kept = staying.subscribe(&subjects::start(), Some(subjects::SCHEDULERS)).await.unwrap();
    let answering = async {
        while let Some(asked) = kept.next().await {
            let _ = asked.respond(numbered(number(&asked.body))).await;
        }
    };
    let asked = async |n| staying.request(&subjects::start(), numbered(n), Duration::from_secs(1)).await.ok();
    // The drain hits the broken connection in most rounds, not in all.
    let asking = async {
        for _ in 0..4 {
            let mut left = leaving.subscribe(&subjects::start(), Some(subjects::SCHEDULERS)).await.unwrap();
            leaving.flush(SOON).await;
            left.drain().await;
            server.restart().await;
            while left.next().await.is_some() {}
            // Its last reconnect may still be in progress; once it is done, no request goes unanswered.
            until(SOON, "twenty answers in a row", async || {
                for n in 0..20 {
                    assert_eq!(number(&asked(n).await?), n);
                }
                Some(())
            })
            .await;
        }
    };
    tokio::select! { () = asking => {}, () = answering => panic!("the subscription ended") }
}
