//! The router against real servers: every call ends in time, what can be repaired is, and a part
//! that is down harms nobody else.

#[path = "router/cluster.rs"]
mod cluster;

use std::time::{Duration, Instant};

use muster_store::{
    Kept, RedisSettings, Router, StoreError,
    router::{Command, ScriptSource},
};
use muster_testkit::{Proxy, RedisServer, until};
use redis::Value;

/// Adds to a counter, and tells the count.
static ADD: ScriptSource = ScriptSource::new("test/add", "return redis.call('INCRBY', KEYS[1], ARGV[1])");
/// Writes once; a repeat finds it done and writes nothing.
static ONCE: ScriptSource = ScriptSource::new(
    "test/once",
    "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end redis.call('SET', KEYS[1], 1) return 1",
);

const BUDGET: Duration = Duration::from_secs(1);
/// How much later than its budget a call may end on a machine that has much else to do.
const BUSY: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);

/// Patient, so that a busy machine causes no repeats: what is counted here would be counted twice.
fn settings(url: impl Into<String>) -> RedisSettings {
    RedisSettings { response_timeout: PATIENCE, budget: PATIENCE, ..RedisSettings::new(url) }
}

async fn router(url: impl Into<String>) -> Router {
    Router::connect(settings(url)).await.expect("the router can be made")
}

/// One whose calls end soon, for outages.
async fn hasty(url: impl Into<String>) -> Router {
    Router::connect(RedisSettings { budget: BUDGET, ..RedisSettings::new(url) }).await.expect("the router can be made")
}

fn add(key: &str, count: u64) -> Command {
    Command::script(&ADD, key.as_bytes()).arg(count)
}

fn get(key: &str) -> Command {
    let mut cmd = redis::cmd("GET");
    cmd.arg(key);
    Command::plain(cmd)
}

fn set(key: &str, value: &str) -> Command {
    let mut cmd = redis::cmd("SET");
    cmd.arg(key).arg(value);
    Command::plain(cmd)
}

fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

/// Asserts that a call fails as unavailable, and not later than its budget allows.
async fn is_away(router: &Router, key: &str) {
    let began = Instant::now();
    let outcome = router.call(get(key)).await;
    let took = began.elapsed();
    assert!(matches!(outcome, Err(StoreError::Unavailable { .. })), "{outcome:?}");
    assert!(took < BUDGET + BUSY, "took {took:?}");
}

async fn is_set(router: &Router, key: &str, value: &str) {
    until(PATIENCE, "it to be set", async || router.call(set(key, value)).await.ok()).await;
}

async fn is_back(router: &Router, key: &str) {
    until(PATIENCE, "an answer", async || router.call(get(key)).await.ok()).await;
}

#[tokio::test]
async fn a_value_set_is_the_value_got() {
    let router = router(muster_testkit::redis().await.url()).await;
    assert!(!router.is_cluster());
    assert_eq!(router.call(set("standalone:a", "1")).await, Ok(Value::Okay));
    assert_eq!(router.call(get("standalone:a")).await, Ok(text("1")));
    assert_eq!(router.call(get("standalone:none")).await, Ok(Value::Nil));
    let primaries = router.primaries().await.unwrap();
    assert_eq!(primaries.len(), 1);
    assert_eq!(router.call_node(&primaries[0], &redis::cmd("PING")).await, Ok(Value::SimpleString("PONG".into())));
    assert_eq!(router.connections().total(), 1);
}

#[tokio::test]
async fn one_bad_command_among_many_harms_none_of_them() {
    let router = router(muster_testkit::redis().await.url()).await;
    router.call(set("mixed:word", "hello")).await.unwrap();
    let mut commands: Vec<Command> = (0..100).map(|n| add(&format!("mixed:{n}"), n + 1)).collect();
    commands.insert(50, add("mixed:word", 1));
    let outcomes = router.many(commands).await;
    assert_eq!(outcomes.len(), 101);
    for (place, outcome) in outcomes.iter().enumerate() {
        match (place, outcome) {
            (50, Err(StoreError::Server { code, message })) => {
                assert_eq!(code, "ERR");
                assert!(message.contains("not an integer"), "{message}");
            }
            (place, Ok(Value::Int(count))) => {
                assert_eq!(*count, i64::try_from(if place < 50 { place + 1 } else { place }).unwrap());
            }
            (place, other) => panic!("{place}: {other:?}"),
        }
    }
    assert!(router.many(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again_once() {
    let redis = RedisServer::start().await;
    let router = router(redis.url()).await;
    for round in 1..=2_i64 {
        redis.cli(&["SCRIPT", "FLUSH"]).await;
        let outcomes = router.many((0..200).map(|n| add(&format!("k{n}"), 1)).collect()).await;
        assert!(outcomes.iter().all(|outcome| *outcome == Ok(Value::Int(round))), "{outcomes:?}");
    }
    // Of 200 calls that met an unknown script, one carried its text.
    let stats = redis.cli(&["INFO", "commandstats"]).await;
    assert!(stats.contains("cmdstat_eval:calls=2,"), "{stats}");
}

#[tokio::test]
async fn a_killed_server_is_unavailable_in_time_and_found_again() {
    let redis = RedisServer::start().await;
    let router = hasty(redis.url()).await;
    is_set(&router, "k", "v").await;
    redis.kill9();
    is_away(&router, "k").await;
    assert_eq!(router.connections().total(), 0);
    redis.restart().await;
    is_back(&router, "k").await;
    until(PATIENCE, "its value", async || router.call(get("k")).await.ok().filter(|value| *value == text("v"))).await;
}

#[tokio::test]
async fn a_restart_between_calls_is_not_noticed() {
    let redis = RedisServer::start().await;
    let router = router(redis.url()).await;
    for round in 1..=3 {
        assert_eq!(router.call(add("k", 1)).await, Ok(Value::Int(round)));
        redis.stop();
        redis.restart().await;
    }
}

#[tokio::test]
async fn a_silent_server_is_unavailable_in_time_and_found_again() {
    let redis = RedisServer::start().await;
    let router = hasty(redis.url()).await;
    is_set(&router, "k", "v").await;
    redis.pause();
    let calls = (0..50).map(|_| is_away(&router, "k"));
    futures_util::future::join_all(calls).await;
    redis.resume();
    is_back(&router, "k").await;
}

#[tokio::test]
async fn a_connection_that_went_silent_is_replaced() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let url = format!("redis://127.0.0.1:{}", proxy.url_port());
    let router = hasty(url).await;
    is_set(&router, "k", "v").await;
    proxy.stall();
    is_away(&router, "k").await;
    proxy.heal().await;
    is_back(&router, "k").await;
}

#[tokio::test]
async fn a_server_that_comes_late_is_found() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port()).await;
    proxy.cut().await;
    let router = hasty(format!("redis://127.0.0.1:{}", proxy.url_port())).await;
    is_away(&router, "k").await;
    proxy.heal().await;
    is_back(&router, "k").await;
}

#[tokio::test]
async fn passwords_are_needed_used_and_kept_secret() {
    let redis = RedisServer::start_with(&["--requirepass", "correct"]).await;
    let at = format!("127.0.0.1:{}", redis.port());
    for (url, code) in [(format!("redis://{at}"), "NOAUTH"), (format!("redis://:hunter2@{at}"), "WRONGPASS")] {
        let error = Router::connect(settings(&url)).await.unwrap_err();
        assert!(matches!(&error, StoreError::Server { code: got, .. } if got == code), "{error:?}");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
    let settings = settings(format!("redis://:correct@{at}/3"));
    assert!(!format!("{settings:?}").contains("correct"));
    let router = Router::connect(settings).await.unwrap();
    assert!(!format!("{router:?}").contains("correct"));
    assert_eq!(router.call(set("k", "v")).await, Ok(Value::Okay));
    assert_eq!(redis.cli(&["-a", "correct", "--no-auth-warning", "-n", "3", "GET", "k"]).await, "v");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let redis = muster_testkit::redis().await;
    for url in ["".to_owned(), "http://h".into(), format!("redis+cluster://127.0.0.1:{}", redis.port())] {
        let error = Router::connect(settings(&url)).await.unwrap_err();
        assert!(matches!(error, StoreError::Config(_)), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn without_replicas_a_durable_write_is_done_but_acknowledged_by_none() {
    let router = router(muster_testkit::redis().await.url()).await;
    let commands = vec![add("lonely:a", 1), set("lonely:b", "x")];
    let outcomes = router.durable(commands, Kept::ByReplicas(1), Duration::from_millis(50)).await;
    assert_eq!(outcomes, vec![Ok((Value::Int(1), 0)), Ok((Value::Okay, 0))]);
}

#[tokio::test]
async fn a_write_waits_for_the_disk_where_the_server_can_tell() {
    let server = muster_testkit::redis().await;
    let router = router(server.url()).await;
    let outcomes = router.durable(vec![add("disk:a", 1)], Kept::OnDisk, PATIENCE).await;
    let can_tell = !server.cli(&["COMMAND", "INFO", "WAITAOF"]).await.trim().is_empty();
    assert_eq!(outcomes, vec![Ok((Value::Int(1), usize::from(can_tell)))], "done, and kept as far as it can be told");
}

#[tokio::test]
async fn durable_writes_share_the_ceiling_of_connections() {
    let url = muster_testkit::redis().await.url();
    let router = Router::connect(RedisSettings { pool_size: 4, ..settings(url) }).await.unwrap();
    let writes = (0..40)
        .map(|n| router.durable(vec![add(&format!("ceiling:{n}"), 1)], Kept::ByReplicas(1), Duration::from_millis(20)));
    let most = std::cell::Cell::new(0);
    let watched = futures_util::future::join_all(writes.map(async |write| {
        let outcome = write.await;
        most.set(most.get().max(router.connections().total()));
        outcome
    }));
    let outcomes = watched.await;
    assert!(outcomes.iter().all(|outcome| outcome == &[Ok((Value::Int(1), 0))]), "{outcomes:?}");
    assert!((2..=4).contains(&most.get()), "{} connections", most.get());
    let after = router.connections();
    assert_eq!((after.shared, after.busy), (1, 0));
}

#[tokio::test]
async fn the_clock_goes_on_from_what_redis_said() {
    let router = router(muster_testkit::redis().await.url()).await;
    router.note_time(5_000_000);
    let now = router.now_estimate();
    assert!((5_000_000..60_000_000).contains(&now), "{now}");
}
