//! Streams and consumers: created by the first process, as the contract requires, and checked.

use std::time::Duration;

use async_nats::Client;
use futures_util::future::join_all;
use muster_bus::{Bus, BusError, ConsumerSpec, subjects};
use muster_testkit::{NatsServer, until};
use serde_json::{Value, json};

use crate::fixture::{
    SOON, bus, fetched, js, loose_bus, names, number, numbered, offers_of, plain, stream_messages, take,
};

#[tokio::test]
async fn any_number_of_replicas_may_make_the_streams_at_once() {
    let server = NatsServer::start().await;
    let url = server.url();
    let (a, b, c) = tokio::join!(loose_bus(&url), loose_bus(&url), loose_bus(&url));
    tokio::join!(a.connected(), b.connected(), c.connected());
    let made = tokio::join!(a.ensure_streams(), b.ensure_streams(), c.ensure_streams());
    assert_eq!(made, (Ok(()), Ok(()), Ok(())));

    let client = plain(&server).await;
    let config =
        async |stream: &str| js(&client, &format!("STREAM.INFO.{stream}"), Value::Null).await["config"].clone();
    let second = 1_000_000_000_u64;
    let sys = config("MUSTER_SYS").await;
    let listed = ["job.submit", "job.result", "job.cancel", "job.done.*", "run.op", "job.dlq", "audit.export"];
    assert_eq!(sys["subjects"], json!(listed.map(|part| format!("sys.{part}"))));
    assert_eq!((&sys["retention"], &sys["max_age"]), (&json!("limits"), &json!(600 * second)));
    let jobs = config("MUSTER_JOBS").await;
    assert_eq!(jobs["subjects"], json!(["job.>", "worker.*.jobs"]));
    assert_eq!((&jobs["retention"], &jobs["max_age"]), (&json!("workqueue"), &json!(0)));
    let events = config("MUSTER_EVENTS").await;
    assert_eq!(events["subjects"], json!(["sys.job.event", "sys.workflow.event"]));
    assert_eq!((&events["max_age"], &events["max_bytes"]), (&json!(3600 * second), &json!(1 << 30)));
    for stream in [sys, jobs, events] {
        assert_eq!(stream["storage"], "file");
    }
}

#[tokio::test]
async fn replicas_that_make_streams_and_consumers_at_once_all_get_messages() {
    for _ in 0..30 {
        let server = NatsServer::start().await;
        let url = server.url();
        let buses = join_all((0..6).map(|_| loose_bus(&url))).await;
        join_all(buses.iter().map(muster_bus::Bus::connected)).await;
        let consumers = join_all(buses.iter().map(async |bus| {
            bus.ensure_streams().await.unwrap();
            let [submits, results] = [subjects::submit(), subjects::result()].map(ConsumerSpec::scheduler);
            tokio::try_join!(bus.consumer(submits), bus.consumer(results)).unwrap()
        }))
        .await;
        for (subject, consumer) in [(subjects::submit(), &consumers[0].0), (subjects::result(), &consumers[5].1)] {
            buses[1].publish(&subject, None, None, numbered(7)).await.unwrap();
            assert_eq!(take(consumer, 1).await, [7]);
        }
        assert_eq!(stream_messages(&plain(&server).await, "MUSTER_SYS").await, 2, "nothing but what was published");
    }
}

#[tokio::test]
async fn heartbeats_are_never_stored_and_events_are() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    for subject in [subjects::heartbeat(), subjects::progress(), subjects::wake(), subjects::event()] {
        bus.broadcast(&subject, numbered(1)).await.unwrap();
    }
    // The publish follows on the same connection, so they have arrived when it is acked.
    bus.publish(&subjects::submit(), None, None, numbered(2)).await.unwrap();
    assert_eq!(stream_messages(&client, "MUSTER_SYS").await, 1);
    assert_eq!(stream_messages(&client, "MUSTER_JOBS").await, 0);
    assert_eq!(stream_messages(&client, "MUSTER_EVENTS").await, 1);
}

#[tokio::test]
async fn an_altered_stream_is_set_right() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let mut config = js(&client, "STREAM.INFO.MUSTER_SYS", Value::Null).await["config"].clone();
    config["max_age"] = json!(5_000_000_000_u64);
    config["duplicate_window"] = json!(5_000_000_000_u64);
    let updated = js(&client, "STREAM.UPDATE.MUSTER_SYS", config).await;
    assert_eq!(updated["config"]["max_age"], 5_000_000_000_u64);

    bus.ensure_streams().await.unwrap();
    let config = js(&client, "STREAM.INFO.MUSTER_SYS", Value::Null).await["config"].clone();
    assert_eq!(config["max_age"], 600_000_000_000_u64);
}

#[tokio::test]
async fn a_stream_that_cannot_be_set_right_is_an_error_that_names_the_field() {
    let server = NatsServer::start().await;
    let client = plain(&server).await;
    let wrong = json!({"name": "MUSTER_JOBS", "subjects": ["job.>", "worker.*.jobs"], "retention": "limits",
        "storage": "file", "num_replicas": 1});
    assert!(js(&client, "STREAM.CREATE.MUSTER_JOBS", wrong).await["error"].is_null());

    let bus = loose_bus(&server.url()).await;
    bus.connected().await;
    match bus.ensure_streams().await {
        Err(BusError::Mismatch { what, field, .. }) => {
            assert!(what.contains("MUSTER_JOBS"), "{what}");
            assert_eq!(field, "retention");
        }
        other => panic!("{other:?}"),
    }
    assert!(js(&client, "STREAM.INFO.MUSTER_EVENTS", Value::Null).await["error"].is_null(), "the others are made");
}

#[tokio::test]
async fn more_copies_than_the_server_can_keep_is_an_error() {
    let server = NatsServer::start().await;
    let mut settings = muster_bus::BusSettings::new(server.url(), "test");
    settings.replicas = 3;
    let bus = muster_bus::Bus::connect(settings).await.unwrap();
    bus.connected().await;
    let fault = bus.ensure_streams().await.unwrap_err();
    assert!(fault.to_string().contains("replicas"), "{fault}");
}

#[tokio::test]
async fn consumers_have_the_numbers_of_the_contract() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let (tenant, topic) = names("mail.send");
    let offers = ConsumerSpec::offers(&tenant, &topic);
    bus.consumer(offers.clone()).await.unwrap();
    bus.consumer(ConsumerSpec::scheduler(subjects::result())).await.unwrap();

    let config = async |stream: &str, name: &str| {
        js(&client, &format!("CONSUMER.INFO.{stream}.{name}"), Value::Null).await["config"].clone()
    };
    let found = config("MUSTER_JOBS", &offers.name).await;
    assert_eq!(found["filter_subject"], "job.acme.mail.send");
    assert_eq!(found["ack_policy"], "explicit");
    assert_eq!(found["ack_wait"], 2_000_000_000_u64);
    assert_eq!(found["max_deliver"], -1);
    assert_eq!((&found["max_ack_pending"], &found["max_waiting"]), (&json!(20_000), &json!(8_192)));
    assert_eq!(found["inactive_threshold"], 3_600_000_000_000_u64, "gone an hour after its last worker");
    let found = config("MUSTER_SYS", "dur_muster-scheduler__sys_job_result").await;
    assert_eq!((&found["ack_wait"], &found["max_deliver"]), (&json!(2_000_000_000_u64), &json!(-1)));
    assert_eq!(found["inactive_threshold"], Value::Null, "never");
}

#[tokio::test]
async fn a_consumer_that_nobody_pulls_from_goes_and_whoever_comes_next_has_what_stands_there() {
    let server = NatsServer::start().await;
    idle_ones_go(&bus(&server).await, &plain(&server).await).await;
}

/// Runs on one server, and on three.
pub(crate) async fn idle_ones_go(bus: &Bus, client: &Client) {
    let spec = |topic: &str| {
        let (tenant, topic) = names(topic);
        ConsumerSpec { idle_for: Some(Duration::from_secs(5)), ..ConsumerSpec::offers(&tenant, &topic) }
    };
    let there = async |spec: &ConsumerSpec| {
        let info = js(client, &format!("CONSUMER.INFO.MUSTER_JOBS.{}", spec.name), Value::Null).await;
        info["error"]["err_code"] != 10_014
    };
    // A consumer from an older version without an idle limit is altered and removed as well.
    let (left, kept, old) = (spec("left"), spec("kept"), spec("old"));
    bus.consumer(ConsumerSpec { idle_for: None, ..old.clone() }).await.unwrap();
    bus.consumer(old.clone()).await.unwrap();
    let (leaving, staying) = (bus.consumer(left.clone()).await.unwrap(), bus.consumer(kept.clone()).await.unwrap());
    bus.publish(&left.filter, None, None, numbered(1)).await.unwrap();
    assert_eq!(take(&leaving, 1).await, [1]);
    bus.publish(&left.filter, None, None, numbered(2)).await.unwrap();
    until(6 * SOON, "the idle ones to go", async || {
        // A consumer that waits for work is not idle, though nothing comes.
        assert!(fetched(&staying, 1).await.is_empty());
        (!there(&left).await && !there(&old).await).then_some(())
    })
    .await;
    assert!(there(&kept).await);

    // Whether the consumer is reopened or new, and whether the message was sent before or after.
    assert_eq!(take(&leaving, 1).await, [2]);
    let next = bus.consumer(old.clone()).await.unwrap();
    bus.publish(&old.filter, None, None, numbered(3)).await.unwrap();
    assert_eq!(take(&next, 1).await, [3]);
}

#[tokio::test]
async fn a_consumer_that_belongs_to_another_subject_is_not_taken_over() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let spec = ConsumerSpec::scheduler(subjects::result());
    bus.consumer(spec.clone()).await.unwrap();
    let thief = ConsumerSpec { filter: subjects::cancel(), ..spec };
    match bus.consumer(thief).await.map(|_| ()) {
        Err(BusError::Mismatch { field, .. }) => assert_eq!(field, "filter_subject"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn topics_that_differ_by_a_dot_do_not_share_a_consumer() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let open = async |topic: &str| {
        let (tenant, topic) = names(topic);
        bus.consumer(ConsumerSpec::offers(&tenant, &topic)).await.unwrap()
    };
    let (dotted, flat) = (open("a.b").await, open("a_b").await);
    bus.publish(&offers_of("a.b"), None, None, numbered(1)).await.unwrap();
    bus.publish(&offers_of("a_b"), None, None, numbered(2)).await.unwrap();
    for (consumer, wanted) in [(dotted, 1), (flat, 2)] {
        let got: Vec<u64> = consumer.fetch(10, SOON).await.unwrap().iter().map(|d| number(&d.body)).collect();
        assert_eq!(got, [wanted]);
    }
}
