//! A bus on the test's own server, messages to send over it, and a plain client to inspect and alter the server
//! independently of the bus.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_nats::Client;
use futures_util::future::BoxFuture;
use muster_bus::{Bus, BusSettings, Consumer, ConsumerSpec, Delivery, Subject, subjects};
use muster_domain::{JobId, Tenant, Topic};
use muster_testkit::{NatsServer, until};
use muster_wire::{Body, v1};
use serde_json::Value;
use tokio::task::JoinSet;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A connected bus with its streams.
pub(crate) async fn bus(server: &NatsServer) -> Bus {
    let bus = loose_bus(&server.url()).await;
    bus.connected().await;
    bus.ensure_streams().await.expect("streams are made");
    bus
}

/// A bus that may or may not reach its server.
pub(crate) async fn loose_bus(url: &str) -> Bus {
    let settings = BusSettings { request_timeout: Duration::from_secs(5), ..BusSettings::new(url, "test") };
    Bus::connect(settings).await.expect("the address can be read")
}

/// A client without any Muster code.
pub(crate) async fn plain(server: &NatsServer) -> Client {
    async_nats::connect(server.url()).await.expect("the server answers")
}

/// One call of JetStream's interface, by hand.
pub(crate) async fn js(client: &Client, verb: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = client.request(format!("$JS.API.{verb}"), body.into()).await.expect("JetStream answers");
    serde_json::from_slice(&answer.payload).expect("it answers in JSON")
}

pub(crate) async fn stream_messages(client: &Client, stream: &str) -> u64 {
    js(client, &format!("STREAM.INFO.{stream}"), Value::Null).await["state"]["messages"].as_u64().expect("a count")
}

/// Waits until a pull request on this consumer is open.
pub(crate) async fn is_waited_for(client: &Client, spec: &ConsumerSpec) {
    let verb = format!("CONSUMER.INFO.{}.{}", spec.stream.name(), spec.name);
    until(SOON, "a standing request", async || {
        js(client, &verb, Value::Null).await["num_waiting"].as_u64().filter(|waiting| *waiting > 0)
    })
    .await;
}

pub(crate) fn offers_of(topic: &str) -> Subject {
    let (tenant, topic) = names(topic);
    subjects::offer(&tenant, &topic)
}

pub(crate) fn names(topic: &str) -> (Tenant, Topic) {
    (Tenant::parse("acme").expect("a good tenant"), Topic::parse(topic).expect("a good topic"))
}

/// A message with a number that can be read back.
pub(crate) fn numbered(n: u64) -> Body {
    Body::Wake(v1::Wake { r#loop: "test".into(), in_us: n })
}

pub(crate) fn number(body: &Body) -> u64 {
    match body {
        Body::Wake(wake) => wake.in_us,
        other => panic!("not a numbered message: {other:?}"),
    }
}

pub(crate) fn offer(dispatched_at: u64) -> v1::Offer {
    let (job_id, (tenant, topic)) = (JobId::mint(0).as_bytes().to_vec().into(), names("t"));
    let (tenant, topic) = (tenant.to_string(), topic.to_string());
    v1::Offer { job_id, version: 1, dispatched_at, tenant, topic, ..Default::default() }
}

pub(crate) fn offer_group(dispatched_at: &[u64]) -> Body {
    Body::Offer(v1::OfferGroup { items: dispatched_at.iter().map(|at| offer(*at)).collect() })
}

/// Fetches until `n` messages have come, acking each; their numbers in order of arrival.
pub(crate) async fn take(consumer: &Consumer, n: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    until(SOON, "all messages", async || {
        for delivery in fetched(consumer, 64).await {
            delivery.ack().await;
            numbers.push(number(&delivery.body));
        }
        (numbers.len() >= n).then_some(())
    })
    .await;
    numbers
}

/// Collects this many messages. One fetch is not enough: it waits only a moment for the rest of its batch.
pub(crate) async fn gathered(consumer: &Consumer, n: usize) -> Vec<Delivery> {
    let mut got = Vec::new();
    until(SOON, "as many as there are", async || {
        got.extend(fetched(consumer, n - got.len()).await);
        (got.len() == n).then_some(())
    })
    .await;
    got
}

/// One fetch, while the bus may be away.
pub(crate) async fn fetched(consumer: &Consumer, max: usize) -> Vec<Delivery> {
    consumer.fetch(max, Duration::from_millis(500)).await.unwrap_or_default()
}

/// Tasks that end with the test.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    pub(crate) fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
    }
}
