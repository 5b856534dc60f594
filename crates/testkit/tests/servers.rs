//! The servers behave as the tests of other crates expect.

use std::time::Duration;

use muster_testkit::{NatsCluster, NatsServer, Proxy, RedisCluster, RedisServer, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn answers_soon(port: u16) {
    until(Duration::from_secs(20), "an answer", async || redis_answers(port).await.then_some(())).await;
}

async fn redis_answers(port: u16) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"PING\r\n").await.ok()?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).await.ok()?;
        (&reply == b"+PONG\r\n").then_some(())
    };
    matches!(tokio::time::timeout(Duration::from_millis(300), ask).await, Ok(Some(())))
}

#[tokio::test]
async fn redis_comes_back_with_its_data_after_a_stop() {
    let redis = RedisServer::start().await;
    assert_eq!(redis.cli(&["SET", "k", "v"]).await, "OK");
    redis.stop();
    assert!(!redis.running());
    assert!(!redis_answers(redis.port()).await);
    redis.restart().await;
    assert_eq!(redis.cli(&["GET", "k"]).await, "v");
    assert_eq!(redis.cli(&["CONFIG", "GET", "hash-max-listpack-value"]).await, "hash-max-listpack-value\n512");
    redis.flushall().await;
    assert_eq!(redis.cli(&["GET", "k"]).await, "");
}

#[tokio::test]
async fn a_paused_redis_keeps_silent_until_it_is_resumed() {
    let redis = RedisServer::start().await;
    redis.pause();
    assert!(!redis_answers(redis.port()).await);
    redis.resume();
    answers_soon(redis.port()).await;
    redis.kill9();
    assert!(TcpStream::connect(("127.0.0.1", redis.port())).await.is_err());
}

#[tokio::test]
async fn shared_servers_are_started_once() {
    let (a, b) = tokio::join!(muster_testkit::redis(), muster_testkit::redis());
    assert_eq!(a.pid(), b.pid());
    assert!(muster_testkit::nats().await.running());
}

#[tokio::test]
async fn a_cluster_fails_over_when_a_primary_is_killed() {
    let cluster = RedisCluster::start().await;
    let first = cluster.primary_of("some key").await;
    cluster.kill9(first);
    let second = until(Duration::from_secs(40), "a failover", async || {
        let now = cluster.primary_of("some key").await;
        (now != first).then_some(now)
    })
    .await;
    assert_ne!(first, second);
    cluster.wait_healthy().await;
    cluster.restart(first).await;
    cluster.wait_healthy().await;
}

#[tokio::test]
async fn nats_restarts_with_its_store_or_without() {
    let nats = NatsServer::start().await;
    assert!(nats.url().ends_with(&nats.port().to_string()));
    nats.kill9();
    nats.restart().await;
    nats.pause();
    nats.resume();
    nats.restart_empty().await;
    nats.stop();
    assert!(!nats.running());
}

#[tokio::test]
async fn three_nats_nodes_form_a_cluster() {
    let cluster = NatsCluster::start().await;
    cluster.kill9(0);
    cluster.restart(0).await;
    assert!(cluster.nodes.iter().all(NatsServer::running));
}

#[tokio::test]
async fn a_proxy_cuts_stalls_and_heals() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.port()).await;
    answers_soon(proxy.url_port()).await;

    let mut held = TcpStream::connect(("127.0.0.1", proxy.url_port())).await.unwrap();
    held.write_all(b"PING\r\n").await.unwrap();
    held.read_exact(&mut [0; 7]).await.unwrap();

    proxy.stall();
    assert!(TcpStream::connect(("127.0.0.1", proxy.url_port())).await.is_ok());
    assert!(!redis_answers(proxy.url_port()).await);
    proxy.heal().await;
    answers_soon(proxy.url_port()).await;

    proxy.cut().await;
    assert!(TcpStream::connect(("127.0.0.1", proxy.url_port())).await.is_err());
    assert!(matches!(held.read(&mut [0; 1]).await, Ok(0) | Err(_)));
    proxy.heal().await;
    answers_soon(proxy.url_port()).await;
}
