//! Offers that cannot be read, or make no sense on their subject: their jobs are rejected through `start`, a message
//! that names no job becomes a dead letter, and valid offers beside them are delivered.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use async_nats::HeaderMap;
use futures_util::StreamExt;
use muster_bus::{Bus, ConsumerSpec, subjects};
use muster_testkit::{NatsServer, until};
use muster_wire::{
    Body, Envelope, FORMAT, encode,
    v1::{DeadLetter, Offer, OfferGroup, StartAnswer, StartAsk, StartReply, start_answer::Verdict},
};
use serde_json::Value;

use crate::fixture::{SOON, Tasks, bus, fetched, js, names, numbered, offer, offers_of, plain};

fn offers() -> ConsumerSpec {
    let (tenant, topic) = names("t");
    ConsumerSpec::offers(&tenant, &topic)
}

/// Answers every start request with this verdict, and records the requests.
async fn answering(bus: &Bus, tasks: &Tasks, verdict: Verdict) -> Arc<Mutex<Vec<StartAsk>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut asks = bus.subscribe(&subjects::start(), Some(subjects::SCHEDULERS)).await.unwrap();
    let heard = asked.clone();
    tasks.spawn(Box::pin(async move {
        while let Some(ask) = asks.next().await {
            let Body::Start(request) = &ask.body else { continue };
            heard.lock().unwrap().extend(request.items.clone());
            let answer = |item: &StartAsk| StartAnswer {
                job_id: item.job_id.clone(),
                verdict: verdict.into(),
                ..StartAnswer::default()
            };
            let items = request.items.iter().map(answer).collect();
            ask.respond(Body::Started(StartReply { items })).await.unwrap();
        }
    }));
    bus.flush(SOON).await;
    asked
}

/// The next `n` dead letters.
async fn letters(bus: &Bus, n: usize) -> Vec<DeadLetter> {
    let consumer = bus.consumer(ConsumerSpec::gateway(subjects::dlq())).await.unwrap();
    let mut found = Vec::new();
    until(SOON, "the dead letters", async || {
        for delivery in fetched(&consumer, 10).await {
            delivery.ack().await;
            let Body::DeadLetter(letter) = delivery.body else { panic!("not a dead letter") };
            found.push(letter);
        }
        (found.len() >= n).then_some(())
    })
    .await;
    found
}

async fn all_answered_for(bus: &Bus) {
    until(2 * SOON, "nothing unacked", async || {
        let state = bus.consumer_state(&offers()).await.unwrap();
        (state.pending == 0 && state.unacked == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn offers_that_make_no_sense_are_taken_out_of_their_group_and_their_jobs_rejected() {
    let (server, tasks) = (NatsServer::start().await, Tasks::default());
    let bus = bus(&server).await;
    let asked = answering(&bus, &tasks, Verdict::Gone).await;
    let consumer = bus.consumer(offers()).await.unwrap();
    let (good, nameless) = (offer(1), Offer { job_id: b"short".to_vec().into(), ..offer(1) });
    let astray = Offer { topic: "elsewhere".into(), version: 9, ..offer(1) };
    let items = vec![astray.clone(), good.clone(), nameless.clone()];
    bus.publish(&offers_of("t"), None, None, Body::Offer(OfferGroup { items: items.clone() })).await.unwrap();

    let delivery = consumer.fetch(10, SOON).await.unwrap().remove(0);
    assert_eq!(delivery.body, Body::Offer(OfferGroup { items: vec![good] }));
    delivery.ack().await;
    let [ask] = &asked.lock().unwrap().clone()[..] else { panic!("one is rejected") };
    assert_eq!((&ask.job_id, ask.version, ask.undecodable), (&astray.job_id, 9, true));
    assert_eq!((ask.tenant.as_str(), ask.topic.as_str(), ask.pool.as_str()), ("acme", "t", ""), "where it stood");
    let letter = letters(&bus, 1).await.remove(0);
    assert_eq!(letter.reason, "offer 3 of 3: field job_id: 5 bytes instead of 16");
    assert_eq!(muster_wire::decode(letter.original).unwrap().1, Body::Offer(OfferGroup { items }), "as it came");

    // No valid offer in it: no caller gets the message.
    bus.publish(&offers_of("t"), None, None, Body::Offer(OfferGroup { items: vec![astray] })).await.unwrap();
    bus.publish(&offers_of("t"), None, None, Body::Offer(OfferGroup { items: vec![offer(2)] })).await.unwrap();
    let delivery = until(SOON, "the next good one", async || fetched(&consumer, 10).await.pop()).await;
    assert!(matches!(&delivery.body, Body::Offer(group) if group.items[0].dispatched_at == 2));
    delivery.ack().await;
    until(SOON, "the other to be rejected", async || (asked.lock().unwrap().len() == 2).then_some(())).await;
    all_answered_for(&bus).await;
}

#[tokio::test]
async fn a_message_that_nobody_can_read_has_the_jobs_rejected_that_its_header_names() {
    let (server, tasks) = (NatsServer::start().await, Tasks::default());
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let (subject, consumer) = (offers_of("t"), bus.consumer(offers()).await.unwrap());

    // Published offers name their jobs in the header.
    let group = Body::Offer(OfferGroup { items: vec![offer(1), offer(2)] });
    let mut heard = client.subscribe(subject.to_string()).await.unwrap();
    // The server answers in order: from here on it knows the subscription.
    js(&client, "INFO", Value::Null).await;
    bus.publish(&subject, None, None, group).await.unwrap();
    let headers = heard.next().await.unwrap().headers.unwrap();
    let named = headers.get("Muster-Jobs").expect("the header").clone();
    assert_eq!(named.as_str().split(',').count(), 2);
    consumer.fetch(1, SOON).await.unwrap().pop().expect("the good one").ack().await;

    // The same jobs in a message of a later release, in a broken one, and in one that is not an offer.
    let newer = encode(&Envelope { format: FORMAT + 1, ..Default::default() });
    let plain_js = async_nats::jetstream::new(client.clone());
    let mut with_jobs = HeaderMap::new();
    with_jobs.insert("Muster-Jobs", named.as_str());
    let stray = encode(&muster_wire::seal("x", None, muster_domain::Time(1), numbered(7)));
    for bytes in [newer.clone(), b"\xff\xff not ours".to_vec().into(), stray] {
        let sent = plain_js.publish_with_headers(subject.to_string(), with_jobs.clone(), bytes).await;
        sent.unwrap().await.unwrap();
    }
    // Until a scheduler confirms that its jobs have ended, each message is redelivered.
    let reject = async || {
        for delivery in fetched(&consumer, 10).await {
            delivery.receipt.reject("not an offer").await;
        }
    };
    reject().await;
    until(SOON, "the good one to leave", async || (bus.subject_count(&subject).await == Ok(3)).then_some(())).await;
    let asked = answering(&bus, &tasks, Verdict::Gone).await;
    until(2 * SOON, "all to be rejected", async || {
        reject().await;
        (asked.lock().unwrap().len() >= 6).then_some(())
    })
    .await;
    all_answered_for(&bus).await;
    let asked = asked.lock().unwrap().clone();
    assert!(asked.iter().all(|ask| ask.undecodable && ask.topic == "t" && ask.tenant == "acme"), "{asked:?}");
    let jobs: BTreeSet<String> = asked.iter().map(|a| format!("{}:{}", hex::encode(&a.job_id), a.version)).collect();
    assert_eq!(jobs, named.as_str().split(',').map(str::to_owned).collect());
    let mut reasons: Vec<String> = letters(&bus, 3).await.into_iter().map(|letter| letter.reason).collect();
    reasons.sort_unstable();
    assert!(reasons[0].contains("newer") && reasons[1].contains("not a message of ours"), "{reasons:?}");
    assert_eq!(reasons[2], "not an offer");
}

#[tokio::test]
async fn a_scheduler_that_cannot_reject_now_is_asked_again() {
    let (server, busy) = (NatsServer::start().await, Tasks::default());
    let bus = bus(&server).await;
    let (consumer, astray) = (bus.consumer(offers()).await.unwrap(), Offer { topic: "elsewhere".into(), ..offer(1) });
    let items = vec![astray, offer(2)];
    let asked = answering(&bus, &busy, Verdict::Retry).await;
    bus.publish(&offers_of("t"), None, None, Body::Offer(OfferGroup { items })).await.unwrap();
    until(SOON, "it to be asked", async || {
        assert!(fetched(&consumer, 10).await.is_empty(), "its neighbour waits with it");
        (!asked.lock().unwrap().is_empty()).then_some(())
    })
    .await;
    drop(busy);
    let tasks = Tasks::default();
    answering(&bus, &tasks, Verdict::Gone).await;
    let delivery = until(2 * SOON, "its neighbour", async || fetched(&consumer, 10).await.pop()).await;
    assert!(delivery.delivered >= 2, "not before it was asked again");
    delivery.ack().await;
    all_answered_for(&bus).await;
}
