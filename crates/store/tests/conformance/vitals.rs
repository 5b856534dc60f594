//! What is counted for operators. Each test has a Redis of its own, because these count all there is.

use std::time::Duration;

use muster_domain::{JobId, Tenant, Time};
use muster_store::{ApiKey, DeadMessage, LastBackup, RedisSettings, Replica, Store};
use muster_testkit::RedisServer;

use crate::bench::{new_job, spec};

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

async fn fresh() -> (RedisServer, Store) {
    let server = RedisServer::start().await;
    let store = Store::connect(RedisSettings::new(server.url())).await.unwrap();
    store.ping().await.unwrap();
    (server, store)
}

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

#[tokio::test]
async fn keys_that_run_out_soon_are_counted_and_those_that_did_are_not() {
    let (_server, store) = fresh().await;
    let now = store.now();
    let key = |id: &str, expires_at: Option<Time>| ApiKey {
        id: id.into(),
        name: id.into(),
        tenant: tenant("acme"),
        scopes: vec!["read".into()],
        topics: Vec::new(),
        secret_hash: [7; 32],
        created_at: now,
        expires_at,
        previous: None,
    };
    assert_eq!(store.count_keys_expiring(WEEK).await.unwrap(), 0, "without any key");
    for (id, expires_at) in [
        ("never", None),
        ("gone", Some(now.before(HOUR))),
        ("soon", Some(now + HOUR)),
        ("just", Some(now + (WEEK - HOUR))),
        ("later", Some(now + (WEEK + HOUR))),
    ] {
        store.put_key(&key(id, expires_at)).await.unwrap();
    }
    assert_eq!(store.count_keys_expiring(WEEK).await.unwrap(), 2);
    store.delete_key("soon").await.unwrap();
    assert_eq!(store.count_keys_expiring(WEEK).await.unwrap(), 1);
}

#[tokio::test]
async fn dead_letters_of_all_tenants_are_counted_with_unreadable_messages() {
    let (_server, store) = fresh().await;
    assert_eq!(store.count_all_dead_letters().await.unwrap(), 0);
    for name in ["acme", "other"] {
        // A tenant is known by its first job.
        let mut jobs = [new_job(spec(&tenant(name)))];
        store.prepare(&mut jobs, HOUR).await.remove(0).unwrap();
        let dead: Vec<_> = (0..3).map(|n| (tenant(name), JobId::mint(n), store.now())).collect();
        store.add_dead_letters(&dead).await.unwrap();
    }
    let message = DeadMessage {
        id: "1-1".into(),
        subject: "sys.job.submit".into(),
        reason: "no envelope".into(),
        original: "x".into(),
        at: store.now(),
    };
    store.add_dead_message(&message).await.unwrap();
    assert_eq!(store.count_all_dead_letters().await.unwrap(), 7);
}

#[tokio::test]
async fn the_last_backup_is_read_as_it_was_noted() {
    let (server, store) = fresh().await;
    assert_eq!(store.last_backup().await.unwrap(), None);
    server.cli(&["HSET", "muster:meta:backup", "at_ms", "1700000000123", "files", "3", "bytes", "4096"]).await;
    let noted = LastBackup { at: Time(1_700_000_000_123_000), files: 3, bytes: 4096 };
    assert_eq!(store.last_backup().await.unwrap(), Some(noted));
    server.cli(&["HSET", "muster:meta:backup", "files", "many"]).await;
    assert_eq!(store.last_backup().await.unwrap(), Some(LastBackup { files: 0, ..noted }));
}

#[tokio::test]
async fn replicas_are_counted_by_service() {
    let (_server, store) = fresh().await;
    let replica = |service: &str, instance: &str| Replica {
        service: service.into(),
        instance: instance.into(),
        version: "1".into(),
        admin: "127.0.0.1:1".into(),
        started_at: store.now(),
        seen_at: store.now(),
        loops: Vec::new(),
        deciding: Vec::new(),
        settings: Vec::new(),
    };
    for (service, instance) in [("muster-gateway", "g1"), ("muster-gateway", "g2"), ("muster-scheduler", "s1")] {
        store.put_replica(&replica(service, instance)).await.unwrap();
    }
    let counts: Vec<(String, usize)> = store.replica_counts().await.unwrap().into_iter().collect();
    assert_eq!(counts, [("muster-gateway".to_owned(), 2), ("muster-scheduler".to_owned(), 1)]);
    assert_eq!(store.count_replicas("muster-gateway").await.unwrap(), 2);
    assert_eq!(store.count_replicas("muster-gate").await.unwrap(), 0);
}
