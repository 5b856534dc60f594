//! Fetching: at once, no more than asked, again after a nak, and never a message that cannot be read.

use std::{collections::BTreeSet, time::Duration};

use async_nats::HeaderMap;
use muster_bus::{ConsumerSpec, subjects};
use muster_testkit::{NatsServer, until};
use muster_wire::{Body, Envelope, FORMAT, encode};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::fixture::{
    SOON, bus, fetched, gathered, is_waited_for, js, names, number, numbered, offers_of, plain, stream_messages, take,
};

const LONG: Duration = Duration::from_secs(8);
/// Long enough for a busy machine, but less than an empty fetch waits, and less than the ack wait of a delivered
/// message.
const AT_ONCE: Duration = Duration::from_secs(5);

fn offers(topic: &str) -> ConsumerSpec {
    let (tenant, topic) = names(topic);
    ConsumerSpec::offers(&tenant, &topic)
}

#[tokio::test]
async fn a_fetch_returns_as_soon_as_a_message_comes() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    for spec in [offers("t"), ConsumerSpec::scheduler(subjects::submit())] {
        let (subject, consumer) = (spec.filter.clone(), bus.consumer(spec.clone()).await.unwrap());
        for n in 0..3 {
            let later = async {
                is_waited_for(&client, &spec).await;
                bus.publish(&subject, None, None, numbered(n)).await.unwrap();
                Instant::now()
            };
            let (got, sent) = tokio::join!(consumer.fetch(10, LONG), later);
            let got = got.unwrap();
            assert!(sent.elapsed() < AT_ONCE, "{:?} on {subject}", sent.elapsed());
            assert_eq!((got.len(), number(&got[0].body)), (1, n));
            assert_eq!((got[0].subject.as_str(), got[0].delivered), (subject.as_str(), 1));
            got[0].ack().await;
        }
    }
}

#[tokio::test]
async fn an_empty_fetch_ends_when_its_time_is_up() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    for spec in [offers("t"), ConsumerSpec::scheduler(subjects::submit())] {
        let consumer = bus.consumer(spec).await.unwrap();
        for wait in [10, 300, 3_200].map(Duration::from_millis) {
            let began = Instant::now();
            assert!(consumer.fetch(5, wait).await.unwrap().is_empty());
            let took = began.elapsed();
            assert!(took + Duration::from_millis(5) >= wait && took < wait + AT_ONCE, "{took:?}");
        }
    }
}

#[tokio::test]
async fn a_worker_takes_only_what_it_has_room_for() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let spec = offers("t");
    let (mine, other) = (bus.consumer(spec.clone()).await.unwrap(), bus.consumer(spec.clone()).await.unwrap());
    for n in 0..10 {
        bus.publish(&spec.filter, None, None, numbered(n)).await.unwrap();
    }
    let _got = gathered(&mine, 4).await;
    let info = js(&client, &format!("CONSUMER.INFO.MUSTER_JOBS.{}", spec.name), Value::Null).await;
    assert_eq!((info["num_ack_pending"].as_u64(), info["num_pending"].as_u64()), (Some(4), Some(6)));
    // The other consumer gets the rest at once.
    let (rest, mut total) = (Instant::now(), 0);
    while total < 6 {
        total += other.fetch(100, LONG).await.unwrap().len();
    }
    assert_eq!(total, 6);
    assert!(rest.elapsed() < AT_ONCE, "{:?}", rest.elapsed());

    // The same after a wait: no open request is left behind that would take one more message.
    let late = async {
        is_waited_for(&client, &spec).await;
        for n in 10..15 {
            bus.publish(&spec.filter, None, None, numbered(n)).await.unwrap();
        }
    };
    let (got, ()) = tokio::join!(mine.fetch(3, LONG), late);
    let mut total = got.unwrap().len();
    assert!((1..=3).contains(&total), "{total}");
    let rest = Instant::now();
    while total < 5 {
        total += other.fetch(100, LONG).await.unwrap().len();
    }
    assert_eq!(total, 5);
    assert!(rest.elapsed() < AT_ONCE, "{:?}", rest.elapsed());
}

#[tokio::test]
async fn a_started_offer_leaves_the_stream_and_one_given_back_comes_again_after_its_delay() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let spec = offers("t");
    let consumer = bus.consumer(spec.clone()).await.unwrap();
    bus.publish(&spec.filter, None, None, numbered(1)).await.unwrap();
    let first = consumer.fetch(1, LONG).await.unwrap().remove(0);
    let given_back = Instant::now();
    first.nak(Duration::from_millis(600)).await;
    let again = consumer.fetch(1, LONG).await.unwrap().remove(0);
    let took = given_back.elapsed();
    assert!(took > Duration::from_millis(500) && took < AT_ONCE, "{took:?}");
    assert_eq!((again.delivered, again.sequence), (2, first.sequence));
    again.nak(Duration::ZERO).await;
    let given_back = Instant::now();
    let again = consumer.fetch(1, LONG).await.unwrap().remove(0);
    assert!(given_back.elapsed() < AT_ONCE, "{:?}", given_back.elapsed());
    again.in_progress().await;
    assert_eq!(stream_messages(&client, "MUSTER_JOBS").await, 1);
    again.ack().await;
    until(SOON, "an empty stream", async || (stream_messages(&client, "MUSTER_JOBS").await == 0).then_some(())).await;
}

#[tokio::test]
async fn many_messages_through_two_replicas_come_once_each() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let spec = ConsumerSpec::scheduler(subjects::submit());
    let (a, b) = (bus.consumer(spec.clone()).await.unwrap(), bus.consumer(spec.clone()).await.unwrap());
    let sending = async {
        for chunk in (0..2_000_u64).collect::<Vec<_>>().chunks(200) {
            let subject = subjects::submit();
            let sent = chunk.iter().map(|n| bus.publish(&subject, None, None, numbered(*n)));
            assert!(futures_util::future::join_all(sent).await.iter().all(Result::is_ok));
        }
    };
    let receiving = async {
        let (mut numbers, mut shares) = (Vec::new(), [0, 0]);
        until(Duration::from_secs(30), "all of them", async || {
            let got = tokio::join!(fetched(&a, 50), fetched(&b, 50));
            for (share, got) in [got.0, got.1].into_iter().enumerate() {
                shares[share] += got.len();
                for delivery in got {
                    delivery.ack().await;
                    numbers.push(number(&delivery.body));
                }
            }
            (numbers.len() >= 2_000).then_some(())
        })
        .await;
        (numbers, shares)
    };
    let ((), (numbers, shares)) = tokio::join!(sending, receiving);
    assert_eq!(numbers.len(), 2_000);
    assert_eq!(numbers.into_iter().collect::<BTreeSet<_>>().len(), 2_000);
    assert!(shares.iter().all(|n| *n > 100), "both take part: {shares:?}");
}

#[tokio::test]
async fn a_fetch_that_is_dropped_loses_nothing() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    for spec in [offers("t"), ConsumerSpec::scheduler(subjects::submit())] {
        let (subject, consumer) = (spec.filter.clone(), bus.consumer(spec).await.unwrap());
        assert!(timeout(Duration::from_millis(100), consumer.fetch(5, LONG)).await.is_err());
        bus.publish(&subject, None, None, numbered(1)).await.unwrap();
        let began = Instant::now();
        let got = consumer.fetch(5, LONG).await.unwrap();
        assert_eq!((got.len(), got[0].delivered), (1, 1));
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_replica_that_stops_gives_back_what_it_had_not_begun() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let spec = ConsumerSpec::scheduler(subjects::submit());
    let (leaving, staying) = (bus.consumer(spec.clone()).await.unwrap(), bus.consumer(spec).await.unwrap());
    for n in 0..20 {
        bus.publish(&subjects::submit(), None, None, numbered(n)).await.unwrap();
    }
    let first = leaving.fetch(1, LONG).await.unwrap().remove(0);
    first.ack().await;
    leaving.close().await;
    let closed = Instant::now();
    // About once in a thousand tries nats-server 2.9 reacts to a nak by sending another message twice, and sends the
    // right one after its ack wait.
    let (mut numbers, mut soon) = (BTreeSet::new(), 0);
    until(LONG + 2 * SOON, "all that was given back", async || {
        for delivery in fetched(&staying, 19).await {
            delivery.ack().await;
            numbers.insert(number(&delivery.body));
        }
        if closed.elapsed() < AT_ONCE {
            soon = numbers.len();
        }
        (numbers.len() == 19).then_some(())
    })
    .await;
    assert!(soon >= 18, "{soon} of 19 came at once");
    assert_eq!(numbers, (1..20).collect());
}

#[tokio::test]
async fn a_message_that_cannot_be_read_becomes_a_dead_letter_and_its_neighbours_are_handled() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let newer = Envelope { format: FORMAT + 1, ..Default::default() };
    for (subject, spec) in
        [(subjects::submit(), ConsumerSpec::scheduler(subjects::submit())), (offers_of("t"), offers("t"))]
    {
        let consumer = bus.consumer(spec).await.unwrap();
        bus.publish(&subject, None, None, numbered(1)).await.unwrap();
        let plain_js = async_nats::jetstream::new(client.clone());
        for bytes in [b"\xff\xff not ours".as_slice(), &encode(&newer)] {
            let sent =
                plain_js.publish_with_headers(subject.to_string(), HeaderMap::new(), bytes.to_vec().into()).await;
            sent.unwrap().await.unwrap();
        }
        bus.publish(&subject, None, None, numbered(2)).await.unwrap();
        assert_eq!(take(&consumer, 2).await, [1, 2]);

        let letters = bus.consumer(ConsumerSpec::gateway(subjects::dlq())).await.unwrap();
        let mut found = Vec::new();
        until(SOON, "both dead letters", async || {
            for delivery in fetched(&letters, 10).await {
                delivery.ack().await;
                let Body::DeadLetter(letter) = delivery.body else { panic!("not a dead letter") };
                found.push(letter);
            }
            (found.len() >= 2).then_some(())
        })
        .await;
        found.sort_by_key(|letter| letter.reason.contains("newer"));
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|letter| letter.subject == subject.as_str()));
        assert_eq!(found[0].original.as_ref(), b"\xff\xff not ours");
        assert!(found[0].reason.contains("not a message of ours"), "{}", found[0].reason);
        assert_eq!(found[1].original, encode(&newer));
        assert!(found[1].reason.contains("newer"), "{}", found[1].reason);
        until(SOON, "nothing unacked", async || {
            let state = bus.consumer_state(consumer.spec()).await.unwrap();
            (state.pending == 0 && state.unacked == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_body_that_does_not_belong_can_be_rejected_by_whoever_reads_it() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let consumer = bus.consumer(ConsumerSpec::scheduler(subjects::result())).await.unwrap();
    bus.publish(&subjects::result(), None, None, numbered(1)).await.unwrap();
    let delivery = consumer.fetch(1, LONG).await.unwrap().remove(0);
    delivery.receipt.reject("a wake among results").await;
    let letters = bus.consumer(ConsumerSpec::gateway(subjects::dlq())).await.unwrap();
    let letter = letters.fetch(1, LONG).await.unwrap().remove(0);
    let Body::DeadLetter(letter) = letter.body else { panic!("not a dead letter") };
    assert_eq!((letter.subject.as_str(), letter.reason.as_str()), ("sys.job.result", "a wake among results"));
    let (_, original) = muster_wire::decode(letter.original).unwrap();
    assert_eq!(original, numbered(1));
}

#[tokio::test]
async fn what_a_consumer_does_not_carry_is_left_to_the_one_that_does() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let specs = [subjects::submit(), subjects::result()].map(ConsumerSpec::scheduler);
    let [submits, results] = specs.clone();
    let submits = bus.consumer(submits).await.unwrap();
    let consumer = bus.consumer(results.clone()).await.unwrap();
    // Change the consumer's filter on the server while a request is open.
    let info = format!("CONSUMER.INFO.MUSTER_SYS.{}", results.name);
    let verb = format!("CONSUMER.DURABLE.CREATE.MUSTER_SYS.{}", results.name);
    let misled = async {
        is_waited_for(&client, &results).await;
        let mut config = js(&client, &info, Value::Null).await["config"].take();
        config["filter_subject"] = subjects::submit().as_str().into();
        let answer = js(&client, &verb, serde_json::json!({"stream_name": "MUSTER_SYS", "config": config})).await;
        assert_eq!(answer["config"]["filter_subject"], subjects::submit().as_str(), "{answer}");
        bus.publish(&subjects::submit(), None, None, numbered(7)).await.unwrap();
        until(SOON, "it to be delivered and done with", async || {
            let info = js(&client, &info, Value::Null).await;
            let (delivered, floor) = (&info["delivered"]["stream_seq"], &info["ack_floor"]["stream_seq"]);
            (*delivered == 1 && *floor == 1).then_some(())
        })
        .await;
    };
    let (got, ()) = tokio::join!(consumer.fetch(10, LONG), misled);
    assert!(got.unwrap().is_empty(), "nobody is handed what is not for it");
    let own = submits.fetch(10, LONG).await.unwrap();
    assert_eq!((own.len(), number(&own[0].body)), (1, 7), "whose it is has it");
    assert_eq!(stream_messages(&client, "MUSTER_SYS").await, 1, "no dead letter was made of it");
}
