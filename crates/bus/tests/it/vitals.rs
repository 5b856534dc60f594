//! The state of the server and the streams, as shown to operators.

use muster_bus::{ConsumerSpec, Drift, Stream, subjects};
use muster_testkit::{NatsServer, until};
use serde_json::{Value, json};

use crate::{
    credentials::Guarded,
    fixture::{SOON, bus, js, names, numbered, plain},
};

#[tokio::test]
async fn a_stream_is_told_with_what_it_holds() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    for n in 0..3 {
        bus.publish(&subjects::submit(), None, None, numbered(n)).await.unwrap();
    }
    bus.consumer(ConsumerSpec::scheduler(subjects::submit())).await.unwrap();
    let vitals = bus.vitals().await.unwrap();
    assert!(!vitals.clustered && !vitals.version.is_empty() && vitals.latency.as_nanos() > 0, "{vitals:?}");
    let of = |stream: Stream| {
        let found = vitals.streams.iter().find(|(it, _)| *it == stream);
        found.and_then(|(_, told)| told.as_ref().ok()).copied().unwrap()
    };
    let sys = of(Stream::Sys);
    assert_eq!((sys.messages, sys.last_seq, sys.consumers), (3, 3, 1));
    assert_eq!((sys.copies, sys.in_step, sys.lagging(), sys.max_bytes), (1, 1, 0, None));
    assert!(sys.bytes > 0);
    assert_eq!((of(Stream::Events).max_bytes, of(Stream::Jobs).messages), (Some(1 << 30), 0));
    assert_eq!((vitals.storage.used, vitals.storage.limit), (sys.bytes, None), "an account without a limit");
}

#[tokio::test]
async fn an_account_tells_its_limit_of_storage() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nats.conf");
    let store = folder.path().join("jetstream");
    let config = format!(
        "jetstream {{ store_dir: {store:?}, max_file_store: 1GB }}\n\
         accounts {{ MUSTER {{ users: [{{user: me, password: pass}}], jetstream {{ max_file: 64MB }} }} }}\n"
    );
    std::fs::write(&file, config).unwrap();
    let server = Guarded::start(&["-c", file.to_str().unwrap()]);
    let bus = server.lets_in("me:pass@").await;
    let storage = until(SOON, "JetStream to answer", async || bus.storage().await.ok()).await;
    assert_eq!((storage.used, storage.limit), (0, Some(64 << 20)));
}

#[tokio::test]
async fn what_was_changed_by_hand_is_named_by_its_field() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let (tenant, topic) = names("mail");
    let [submits, offers] = [ConsumerSpec::scheduler(subjects::submit()), ConsumerSpec::offers(&tenant, &topic)];
    for spec in [&submits, &offers] {
        bus.consumer(spec.clone()).await.unwrap();
    }
    assert_eq!(bus.drift().await.unwrap(), []);

    // Consumers that Muster did not create are ignored.
    let own = json!({"stream_name": "MUSTER_EVENTS", "config": {"durable_name": "own", "ack_policy": "none"}});
    js(&client, "CONSUMER.DURABLE.CREATE.MUSTER_EVENTS.own", own).await;
    assert_eq!(bus.drift().await.unwrap(), []);

    let mut stream = js(&client, "STREAM.INFO.MUSTER_SYS", Value::Null).await["config"].clone();
    stream["max_age"] = json!(300_000_000_000_u64);
    let updated = js(&client, "STREAM.UPDATE.MUSTER_SYS", stream).await;
    assert!(updated["error"].is_null(), "{updated}");
    for spec in [&submits, &offers] {
        let (stream, name) = (spec.stream.name(), &spec.name);
        let mut config = js(&client, &format!("CONSUMER.INFO.{stream}.{name}"), Value::Null).await["config"].clone();
        config["max_ack_pending"] = json!(7);
        let body = json!({"stream_name": stream, "config": config});
        js(&client, &format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"), body).await;
    }
    let drift = |what: String, field: &str, want: &str, got: &str| Drift {
        what,
        field: field.into(),
        want: want.into(),
        got: got.into(),
    };
    let wanted = [
        drift("stream MUSTER_SYS".into(), "max_age", "600000000000", "300000000000"),
        drift(format!("consumer {}", submits.name), "max_ack_pending", "4096", "7"),
        drift(format!("consumer {}", offers.name), "max_ack_pending", "20000", "7"),
    ];
    assert_eq!(bus.drift().await.unwrap(), wanted);
    // Fields that can be changed in place are corrected.
    bus.ensure_streams().await.unwrap();
    assert_eq!(bus.drift().await.unwrap(), wanted[1..]);
}
