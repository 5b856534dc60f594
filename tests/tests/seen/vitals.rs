//! The state of the stores and replicas, as the leader of the snapshot reports it to Prometheus: one replica reports,
//! and each value is right.

use std::{process::Command, time::Duration};

use muster_testkit::until;
use muster_tests::{Options, Probe, Stack};
use reqwest::Method;
use serde_json::json;

/// Some values are measured once a minute.
const SOON: Duration = Duration::from_secs(150);

fn redis(stack: &Stack, args: &[&str]) {
    let said = Command::new("redis-cli").arg("-u").arg(stack.state().redis_url).args(args).output().expect("redis-cli");
    assert!(said.status.success() && !said.stdout.starts_with(b"ERR"), "{args:?}: {said:?}");
}

/// The values of a series on all schedulers, without those that are 0 or NaN.
async fn told(stack: &Stack, series: &str) -> Vec<f64> {
    let mut values = Vec::new();
    for process in stack.state().processes.into_iter().filter(|process| process.service == "scheduler") {
        let Some(admin) = process.admin else { continue };
        let anybody = Probe::new(admin, String::new()).with_key(None);
        let Ok(scrape) = anybody.send(Method::GET, "/metrics", &[], None).await else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let fits = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(labels.trim_end_matches('}'));
        let found = scrape.text.lines().filter(fits).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.extend(found.filter(|value| *value != 0.0 && !value.is_nan()));
    }
    values
}

/// Waits until exactly one scheduler reports this value; for 0, until none reports another value.
async fn becomes(stack: &Stack, series: &str, value: f64) {
    let wanted = if value == 0.0 { Vec::new() } else { vec![value] };
    let mut last = Vec::new();
    until(SOON, &format!("{series} to be {value}"), async || {
        last = told(stack, series).await;
        (last == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_replica_tells_how_the_stores_and_replicas_are() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    becomes(&stack, "muster_replicas{service=\"muster-gateway\"}", 2.0).await;
    becomes(&stack, "muster_replicas{service=\"muster-scheduler\"}", 2.0).await;
    becomes(&stack, "muster_redis_aof_enabled", 1.0).await;
    becomes(&stack, "muster_redis_evicts", 0.0).await;
    becomes(&stack, "muster_nats_stream_limit_bytes{stream=\"MUSTER_EVENTS\"}", f64::from(1 << 30)).await;
    // No worker takes it, so its offer stays on the stream.
    gateway.submit(json!({"topic": "held"})).await;
    becomes(&stack, "muster_nats_stream_messages{stream=\"MUSTER_JOBS\"}", 1.0).await;
    let used = async || (told(&stack, "muster_nats_storage_used_bytes").await.len() == 1).then_some(());
    until(SOON, "storage to be told once", used).await;

    // A job that ends badly is a dead letter; a key that expires soon is reported; a backup was made.
    let late = gateway.submit(json!({"topic": "held", "start_within_ms": 1})).await;
    gateway.ended(&late, SOON).await;
    becomes(&stack, "muster_dead_letters_current", 1.0).await;
    redis(&stack, &["HSET", "muster:meta:backup", "at_ms", "1700000000000", "files", "1", "bytes", "1"]);
    becomes(&stack, "muster_backup_last_success_timestamp_seconds", 1_700_000_000.0).await;
    let expires_at = (stack.store().await.now() + Duration::from_secs(3 * 24 * 3600)).rfc3339();
    let key = json!({"name": "short", "tenant": "acme", "scopes": ["read"], "expires_at": expires_at});
    assert_eq!(gateway.post("/keys", &key).await.status, 201);
    redis(&stack, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    redis(&stack, &["CONFIG", "SET", "appendonly", "no"]);
    redis(&stack, &["XADD", "muster:audit", "*", "body", "by hand"]);
    becomes(&stack, "muster_api_keys_expiring{within=\"7d\"}", 1.0).await;
    becomes(&stack, "muster_redis_evicts", 1.0).await;
    becomes(&stack, "muster_redis_aof_enabled", 0.0).await;
    becomes(&stack, "muster_audit_chain_broken", 1.0).await;

    // A leader that lost its lock reports nothing, and the next one reports the same. Somebody else holds the lock until
    // nobody reports any more, however long that takes.
    redis(&stack, &["SET", "muster:scheduler:snapshot:writer", "nobody:1", "PX", "600000"]);
    becomes(&stack, "muster_replicas{service=\"muster-gateway\"}", 0.0).await;
    redis(&stack, &["DEL", "muster:scheduler:snapshot:writer"]);
    becomes(&stack, "muster_backup_last_success_timestamp_seconds", 1_700_000_000.0).await;
    becomes(&stack, "muster_replicas{service=\"muster-gateway\"}", 2.0).await;
}

#[tokio::test]
async fn a_redis_that_was_emptied_under_the_streams_is_noticed() {
    let stack = Stack::with(Options::default()).await;
    let gateway = stack.gateway(1);
    // A scheduler creates a job again whose record is gone when its submit comes, so all submits must have come before.
    for id in gateway.submit_many(3, &json!({"topic": "held"})).await {
        gateway.reaches(&id, "dispatched", SOON).await;
    }
    redis(&stack, &["FLUSHALL"]);
    until(SOON, "a scheduler to say so in its log", async || {
        stack.log("scheduler-1").contains("redis_emptied").then_some(())
    })
    .await;
    let found = stack.gateway(1).get("/doctor").await;
    let items = found.body["items"].as_array().cloned().unwrap_or_default();
    let emptied = items.iter().find(|item| item["check"] == "emptied").expect("it was looked at");
    assert_eq!(emptied["level"], "error", "{emptied}");
}
