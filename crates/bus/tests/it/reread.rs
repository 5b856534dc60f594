//! Reading again what a stream has kept, with a reader of its own.

use muster_bus::{Bus, ConsumerSpec, RereadFrom, Subject, subjects};
use muster_testkit::{NatsServer, until};
use serde_json::Value;

use crate::fixture::{SOON, bus, js, number, numbered, plain, take};

async fn read(bus: &Bus, from: RereadFrom, until: u64) -> Vec<(u64, u64)> {
    let mut reader = bus.reread(&subjects::submit(), from, until).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let messages = reader.next(4).await.unwrap();
        assert!(messages.len() <= 4);
        if messages.is_empty() {
            break;
        }
        seen.extend(messages.iter().map(|(sequence, body)| (*sequence, number(body))));
    }
    reader.close().await;
    seen
}

#[tokio::test]
async fn what_was_handled_is_read_again_in_order_and_disturbs_nobody() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    assert_eq!(read(&bus, RereadFrom::Start, 0).await, [], "nothing stands there");
    let publish = async |subject: Subject, n| bus.publish(&subject, None, None, numbered(n)).await.unwrap();
    for n in 0..10 {
        publish(subjects::submit(), n).await;
        publish(subjects::result(), 100 + n).await;
    }
    let between = bus.sys_end().await.unwrap();
    assert_eq!(between.sequence, 20);
    // The shared consumer handles a part of the messages.
    let spec = ConsumerSpec::scheduler(subjects::submit());
    let consumer = bus.consumer(spec.clone()).await.unwrap();
    assert_eq!(take(&consumer, 10).await.len(), 10);
    // The shared consumer is closed, so that only the readers cause movement.
    consumer.close().await;
    until(SOON, "the acks to be heard", async || (bus.consumer_state(&spec).await.unwrap().unacked == 0).then_some(()))
        .await;
    // Wait for the ack, because another connection publishes next.
    let noise = async_nats::jetstream::new(client.clone());
    noise.publish("sys.job.submit", "noise".into()).await.unwrap().await.unwrap();
    for n in 10..13 {
        publish(subjects::submit(), n).await;
    }
    let before = bus.consumer_state(&spec).await.unwrap();
    let end = bus.sys_end().await.unwrap();
    assert_eq!(end.sequence, 24);
    assert!(end.at >= between.at && between.at.0 > 0);

    let all = read(&bus, RereadFrom::Start, end.sequence).await;
    assert_eq!(all.iter().map(|(_, n)| *n).collect::<Vec<_>>(), (0..13).collect::<Vec<_>>(), "noise is passed over");
    assert_eq!(all[..3], [(1, 0), (3, 1), (5, 2)]);
    // A reader stops at its end, and continues at a given sequence.
    assert_eq!(read(&bus, RereadFrom::Start, 5).await, [(1, 0), (3, 1), (5, 2)]);
    assert_eq!(read(&bus, RereadFrom::Sequence(18), end.sequence).await, [(19, 9), (22, 10), (23, 11), (24, 12)]);
    assert_eq!(read(&bus, RereadFrom::Sequence(25), end.sequence).await, []);
    // A start by the server's clock.
    assert_eq!(read(&bus, RereadFrom::Time(between.at.before(std::time::Duration::from_secs(60))), 24).await, all);
    let later = end.at + std::time::Duration::from_secs(60);
    assert_eq!(read(&bus, RereadFrom::Time(later), end.sequence).await, []);

    assert_eq!(bus.consumer_state(&spec).await.unwrap(), before, "what is shared has not moved");
    let consumers = js(&client, "CONSUMER.NAMES.MUSTER_SYS", Value::Null).await;
    assert_eq!(consumers["consumers"], serde_json::json!([spec.name]), "readers leave nothing behind");
}
