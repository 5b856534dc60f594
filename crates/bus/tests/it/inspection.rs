//! Inspecting the bus: empty only if the server says so, unknown otherwise.

use std::{sync::Arc, time::Duration};

use async_nats::HeaderMap;
use muster_bus::{ConsumerSpec, subjects};
use muster_domain::{Leads, Line, Tenant, Time, Topic, job::Known};
use muster_testkit::{NatsServer, until};
use muster_wire::Body;
use serde_json::Value;

use crate::fixture::{SOON, bus, gathered, js, names, numbered, offer_group, offers_of, plain};

/// A lease that is held as long as the test runs.
struct Leader;

impl Leads for Leader {
    fn is_held(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn the_oldest_offer_of_a_subject_tells_its_time() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let (subject, other) = (offers_of("t"), offers_of("t.more"));
    assert_eq!(bus.oldest(&subject).await, Known::Empty);
    bus.publish(&other, None, None, offer_group(&[5])).await.unwrap();
    assert_eq!(bus.oldest(&subject).await, Known::Empty, "another subject does not count");
    bus.publish(&subject, None, None, offer_group(&[30, 20, 40])).await.unwrap();
    bus.publish(&subject, None, None, offer_group(&[10])).await.unwrap();
    assert_eq!(bus.oldest(&subject).await, Known::Oldest(Time(20)), "the oldest offer of the oldest message");
    assert_eq!(bus.subject_count(&subject).await, Ok(2));
    assert_eq!(bus.subject_count(&offers_of("none")).await, Ok(0));

    let (tenant, topic) = names("t");
    let consumer = bus.consumer(ConsumerSpec::offers(&tenant, &topic)).await.unwrap();
    consumer.fetch(1, SOON).await.unwrap()[0].ack().await;
    until(SOON, "the next oldest", async || (bus.oldest(&subject).await == Known::Oldest(Time(10))).then_some(()))
        .await;
    consumer.fetch(1, SOON).await.unwrap()[0].ack().await;
    until(SOON, "an empty subject", async || (bus.oldest(&subject).await == Known::Empty).then_some(())).await;
    assert_eq!(bus.oldest(&other).await, Known::Oldest(Time(5)));
}

#[tokio::test]
async fn lines_are_counted_each_for_itself_however_many() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    for topic in ["render.video", "render"] {
        let ((tenant, topic), beside) = (names(topic), offers_of(&format!("{topic}x")));
        let other = subjects::offer(&Tenant::parse("other").unwrap(), &topic);
        for subject in [&beside, &other, &subjects::offer(&tenant, Topic::parse(&format!("{topic}.x")).unwrap())] {
            bus.publish(subject, None, None, offer_group(&[1])).await.unwrap();
        }
        let requires = |n: usize| [("worker".to_owned(), format!("w{n}"))].into();
        let pools = (0..20).map(|n| Line::of(&topic, &requires(n)));
        let lines: Vec<Line> = std::iter::once(Line::from(&topic)).chain(pools).collect();
        for (n, line) in lines.iter().enumerate() {
            for at in 0..n % 3 {
                bus.publish(&subjects::offer(&tenant, line), None, None, offer_group(&[at as u64])).await.unwrap();
            }
        }
        let lines: Vec<&Line> = lines.iter().collect();
        for some in [&lines[..1], &lines[..4], &lines[2..]] {
            let expected: Vec<u64> =
                some.iter().map(|line| (lines.iter().position(|l| l == line).unwrap() % 3) as u64).collect();
            assert_eq!(bus.line_counts(&tenant, &topic, some).await, Ok(expected), "{} lines", some.len());
        }
    }
}

/// The server keeps a stream in files of some megabytes each, and removes a file when all its messages were acked.
#[tokio::test]
async fn what_stands_is_counted_though_the_first_of_a_subjects_messages_are_gone_with_their_file() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let ((tenant, topic), subject) = (names("t"), offers_of("t"));
    let consumer = bus.consumer(ConsumerSpec::offers(&tenant, &topic)).await.unwrap();
    let large = |at: u64| {
        let Body::Offer(mut group) = offer_group(&[at]) else { unreachable!("it is an offer") };
        group.items[0].payload = vec![b'x'; 512 * 1024].into();
        Body::Offer(group)
    };
    let (all, acked) = (60, 40);
    for at in 1..=all {
        bus.publish(&subject, None, None, large(at)).await.unwrap();
    }
    for _ in 0..acked {
        consumer.fetch(1, SOON).await.unwrap()[0].ack().await;
    }
    until(SOON, "what is left", async || (bus.subject_count(&subject).await == Ok(all - acked)).then_some(())).await;
    let line = Line::from(&topic);
    assert_eq!(bus.line_counts(&tenant, &topic, &[&line]).await, Ok(vec![all - acked]));
    assert_eq!(bus.oldest(&subject).await, Known::Oldest(Time(acked + 1)));

    // A new consumer gets all of them, after the server has removed an unused one.
    let client = plain(&server).await;
    js(&client, &format!("CONSUMER.DELETE.MUSTER_JOBS.{}", consumer.spec().name), Value::Null).await;
    let consumer = bus.consumer(ConsumerSpec::offers(&tenant, &topic)).await.unwrap();
    assert_eq!(gathered(&consumer, (all - acked) as usize).await.len() as u64, all - acked);
}

/// A killed server may come back with a message that its consumer has acked. The test creates that state by restoring
/// the message blocks of an earlier moment.
#[tokio::test]
async fn acked_offers_that_a_server_brought_back_are_swept_and_no_others() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let ((tenant, topic), subject) = (names("t"), offers_of("t"));
    for at in [10, 20, 30] {
        bus.publish(&subject, None, None, offer_group(&[at])).await.unwrap();
    }
    let spec = ConsumerSpec::offers(&tenant, &topic);
    let consumer = bus.consumer(spec.clone()).await.unwrap();
    let taken = gathered(&consumer, 3).await;
    server.stop();
    let blocks = server.store().join("jetstream/$G/streams/MUSTER_JOBS/msgs");
    let before: Vec<_> = files(&blocks).into_iter().map(|file| (std::fs::read(&file).unwrap(), file)).collect();
    server.restart().await;
    bus.connected().await;
    // The server writes acks to disk a moment later; if it stopped before that, it would redeliver the messages. It may
    // write between two acks, so ack one at a time.
    let state = server.store().join("jetstream/$G/streams/MUSTER_JOBS/obs").join(&spec.name).join("o.dat");
    for (delivery, left) in taken.iter().zip([2, 1]) {
        let unacked = std::fs::read(&state).unwrap_or_default();
        delivery.ack().await;
        until(SOON, "the acked one to leave", async || (bus.subject_count(&subject).await == Ok(left)).then_some(()))
            .await;
        let written = async || std::fs::read(&state).ok().filter(|now| *now != unacked && !now.is_empty());
        until(SOON, "the ack to be written down", written).await;
    }
    server.stop();
    files(&blocks).into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
    before.iter().for_each(|(bytes, file)| std::fs::write(file, bytes).unwrap());
    server.restart().await;
    bus.connected().await;

    until(SOON, "all three again", async || (bus.subject_count(&subject).await == Ok(3)).then_some(())).await;
    assert_eq!(bus.oldest(&subject).await, Known::Oldest(Time(10)), "the lost-offer rule is misled");
    assert_eq!(bus.sweep_acked_offers(&Leader).await, Ok(2));
    assert_eq!(bus.oldest(&subject).await, Known::Oldest(Time(30)));
    assert_eq!(bus.sweep_acked_offers(&Leader).await, Ok(0), "what was never acked stays");
    // The message was delivered before the restart, and is redelivered because it was not acked in time.
    let again = until(3 * SOON, "the last one", async || consumer.fetch(1, SOON).await.ok()?.pop()).await;
    again.ack().await;
    until(SOON, "an empty subject", async || (bus.oldest(&subject).await == Known::Empty).then_some(())).await;
}

#[tokio::test]
async fn an_offer_that_a_purge_made_the_server_forget_is_swept() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let ((tenant, topic), subject) = (names("t"), offers_of("t"));
    for at in [10, 20] {
        bus.publish(&subject, None, None, offer_group(&[at])).await.unwrap();
    }
    let spec = ConsumerSpec::offers(&tenant, &topic);
    let consumer = bus.consumer(spec.clone()).await.unwrap();
    let _taken = gathered(&consumer, 2).await;
    assert_eq!(bus.sweep_acked_offers(&Leader).await, Ok(0), "delivered and not acked yet");
    js(&client, "STREAM.PURGE.MUSTER_JOBS", serde_json::json!({ "filter": subject.as_str(), "seq": 2 })).await;
    // A later server keeps the unacked deliveries; then there is nothing to sweep, and the message is redelivered.
    let forgotten = bus.consumer_state(&spec).await.unwrap().unacked == 0;
    bus.publish(&subject, None, None, offer_group(&[30])).await.unwrap();
    assert_eq!(bus.sweep_acked_offers(&Leader).await, Ok(0), "while something is out nothing is concluded");
    let fresh = until(SOON, "the fresh one", async || {
        consumer
            .fetch(1, SOON)
            .await
            .ok()?
            .into_iter()
            .find(|d| matches!(&d.body, Body::Offer(g) if g.items[0].dispatched_at == 30))
    });
    fresh.await.ack().await;
    if forgotten {
        until(SOON, "the forgotten one to go", async || (bus.sweep_acked_offers(&Leader).await == Ok(1)).then_some(()))
            .await;
        assert_eq!(bus.oldest(&subject).await, Known::Empty);
    }
}

fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).expect("the stream's blocks").map(|entry| entry.expect("a file").path()).collect()
}

#[tokio::test]
async fn nothing_is_concluded_while_nats_is_away() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    server.kill9();
    assert_eq!(bus.oldest(&offers_of("t")).await, Known::Unknown);
    assert_eq!(bus.oldest_unhandled_submit().await, Known::Unknown);
    assert!(bus.results_mark().await.is_err());
    assert!(bus.subject_count(&offers_of("t")).await.is_err());
}

#[tokio::test]
async fn a_server_that_hangs_is_noticed_though_the_connection_stands() {
    let server = NatsServer::start().await;
    let (bus, limit) = (bus(&server).await, Duration::from_millis(500));
    assert_eq!(bus.ping(SOON).await, Ok(()));
    server.pause();
    let began = std::time::Instant::now();
    assert!(bus.ping(limit).await.is_err_and(|fault| fault.is_transient()));
    assert!(began.elapsed() < limit + SOON, "{:?}", began.elapsed());
    server.resume();
    until(SOON, "an answer", async || bus.ping(limit).await.ok()).await;
}

#[tokio::test]
async fn a_stream_that_is_gone_is_made_again_and_then_truly_empty() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    bus.publish(&offers_of("t"), None, None, offer_group(&[20])).await.unwrap();
    bus.publish(&subjects::submit(), None, None, numbered(1)).await.unwrap();
    for stream in ["MUSTER_JOBS", "MUSTER_SYS"] {
        assert_eq!(js(&client, &format!("STREAM.DELETE.{stream}"), Value::Null).await["success"], true);
    }
    assert_eq!(bus.oldest(&offers_of("t")).await, Known::Empty);
    assert_eq!(bus.oldest_unhandled_submit().await, Known::Empty);
    assert!(js(&client, "STREAM.INFO.MUSTER_JOBS", Value::Null).await["error"].is_null());
}

#[tokio::test]
async fn an_unreadable_message_at_the_head_does_not_hide_the_offers_behind_it() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let subject = offers_of("t");
    let sent = async_nats::jetstream::new(client);
    let sent = sent.publish_with_headers(subject.to_string(), HeaderMap::new(), "nonsense".into()).await;
    sent.unwrap().await.unwrap();
    assert_eq!(bus.oldest(&subject).await, Known::Unknown);
    bus.publish(&subject, None, None, offer_group(&[20])).await.unwrap();
    assert_eq!(bus.oldest(&subject).await, Known::Oldest(Time(20)));
}

#[tokio::test]
async fn the_oldest_unhandled_submit_is_the_one_after_the_ack_floor() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    assert_eq!(bus.oldest_unhandled_submit().await, Known::Empty);
    let consumer = bus.consumer(ConsumerSpec::scheduler(subjects::submit())).await.unwrap();
    for at in [10, 20, 30] {
        bus.set_clock(Arc::new(move || Time(at)));
        bus.publish(&subjects::submit(), None, None, numbered(at)).await.unwrap();
        bus.publish(&subjects::cancel(), None, None, numbered(at)).await.unwrap();
    }
    assert_eq!(bus.oldest_unhandled_submit().await, Known::Oldest(Time(10)));
    let mut got = Vec::new();
    until(SOON, "all three", async || {
        got.extend(consumer.fetch(3, Duration::from_millis(500)).await.unwrap());
        (got.len() == 3).then_some(())
    })
    .await;
    assert_eq!(bus.oldest_unhandled_submit().await, Known::Oldest(Time(10)), "delivered is not handled");
    got[0].ack().await;
    let oldest = async |wanted| (bus.oldest_unhandled_submit().await == wanted).then_some(());
    until(SOON, "the second", async || oldest(Known::Oldest(Time(20))).await).await;
    // Acked out of order: the floor waits for the oldest message.
    got[2].ack().await;
    until(SOON, "one unacked", async || {
        (bus.consumer_state(consumer.spec()).await.unwrap().unacked == 1).then_some(())
    })
    .await;
    assert_eq!(bus.oldest_unhandled_submit().await, Known::Oldest(Time(20)));
    got[1].ack().await;
    until(SOON, "all handled", async || oldest(Known::Empty).await).await;
}

#[tokio::test]
async fn the_mark_of_results_is_the_last_result_and_how_far_they_were_handled() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let empty = bus.results_mark().await.unwrap();
    assert_eq!((empty.last_result_seq, empty.ack_floor, empty.idle), (0, 0, true));

    bus.publish(&subjects::submit(), None, None, numbered(1)).await.unwrap();
    bus.publish(&subjects::result(), None, None, numbered(2)).await.unwrap();
    bus.publish(&subjects::submit(), None, None, numbered(3)).await.unwrap();
    let before = bus.results_mark().await.unwrap();
    assert_eq!((before.last_result_seq, before.idle), (2, false));
    assert!(before.ack_floor < 2);
    assert_eq!(before.stream_created, empty.stream_created);

    let consumer = bus.consumer(ConsumerSpec::scheduler(subjects::result())).await.unwrap();
    consumer.fetch(1, SOON).await.unwrap()[0].ack().await;
    until(SOON, "a floor that has reached the result", async || {
        let mark = bus.results_mark().await.unwrap();
        (mark.ack_floor >= before.last_result_seq && mark.idle).then_some(())
    })
    .await;

    server.restart_empty().await;
    bus.connected().await;
    let anew = until(SOON, "a mark", async || bus.results_mark().await.ok()).await;
    assert_ne!(anew.stream_created, empty.stream_created, "another stream: the old target is void");
}
