//! Ports, drains, readiness over HTTP.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, extract::ConnectInfo, routing::get};
use muster_chassis::{Chassis, Health, Tasks, admin, listen, settings};
use muster_telemetry::Exporter;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(5);

async fn serve(tasks: &Tasks, app: Router) -> listen::Serving {
    let listener = listen::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    listen::serve(tasks, "test port", listener, app).unwrap()
}

/// Sends one request on a kept connection and reads its answer.
async fn ask(stream: &mut TcpStream, path: &str) -> (u16, String) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = String::new();
    loop {
        let mut chunk = [0; 4096];
        let n = timeout(SOON, stream.read(&mut chunk)).await.unwrap().unwrap();
        assert!(n > 0, "closed after: {text}");
        text.push_str(std::str::from_utf8(&chunk[..n]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
        if body.len() >= length.expect("an answer of known length") {
            return (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned());
        }
    }
}

async fn get_json(addr: SocketAddr, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let (status, body) = ask(&mut stream, path).await;
    (status, serde_json::from_str(&body).unwrap())
}

#[tokio::test]
async fn a_connection_serves_many_requests_and_the_peer_is_known() {
    let tasks = Tasks::new();
    let app =
        Router::new().route("/", get(|ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() }));
    let port = serve(&tasks, app).await;
    let mut stream = TcpStream::connect(port.local_addr()).await.unwrap();
    let us = stream.local_addr().unwrap().to_string();
    for _ in 0..3 {
        assert_eq!(ask(&mut stream, "/").await, (200, us.clone()));
    }
    assert!(port.drain(SOON).await);
}

#[tokio::test]
async fn a_drain_closes_idle_connections_at_once_and_answers_what_is_in_flight() {
    let tasks = Tasks::new();
    let (go, gate) = oneshot::channel::<()>();
    let gate = std::sync::Arc::new(tokio::sync::Mutex::new(Some(gate)));
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let slow = get(move || async move {
        begun.send(()).unwrap();
        gate.lock().await.take().unwrap().await.unwrap();
        "done"
    });
    let port = serve(&tasks, Router::new().route("/slow", slow).route("/", get(|| async { "hi" }))).await;
    let addr = port.local_addr();
    let mut idle = TcpStream::connect(addr).await.unwrap();
    assert_eq!(ask(&mut idle, "/").await.0, 200);
    let busy = tasks.spawn("client", async move { ask(&mut TcpStream::connect(addr).await.unwrap(), "/slow").await });
    has_begun.recv().await.unwrap();

    let drained = tasks.spawn("drain", async move { port.drain(SOON).await });
    assert_eq!(timeout(SOON, idle.read(&mut [0; 16])).await.unwrap().unwrap(), 0, "the idle connection is closed");
    assert!(TcpStream::connect(addr).await.is_err(), "nobody new is taken");
    assert!(!drained.is_finished(), "the request in flight holds the drain");
    go.send(()).unwrap();
    assert_eq!(busy.await.unwrap(), Some((200, "done".to_owned())));
    assert_eq!(timeout(SOON, drained).await.unwrap().unwrap(), Some(true));
}

#[tokio::test]
async fn a_request_that_never_ends_is_cut_off_at_the_limit() {
    let tasks = Tasks::new();
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let stuck = get(move || async move {
        begun.send(()).unwrap();
        std::future::pending::<&str>().await
    });
    let port = serve(&tasks, Router::new().route("/", stuck)).await;
    let mut stream = TcpStream::connect(port.local_addr()).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    has_begun.recv().await.unwrap();
    assert!(!port.drain(Duration::from_millis(50)).await, "late, and says so");
    assert_eq!(timeout(SOON, stream.read(&mut [0; 16])).await.unwrap().unwrap_or(0), 0);
}

#[tokio::test]
async fn a_taken_port_is_told_with_its_address() {
    let first = listen::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = first.local_addr().unwrap();
    let fault = listen::bind(addr).await.unwrap_err();
    assert!(fault.to_string().contains(&addr.to_string()), "{fault}");
}

#[tokio::test]
async fn readiness_says_which_part_is_not_ready() {
    let (tasks, health) = (Tasks::new(), Health::new());
    let (redis, nats) = (health.part("redis"), health.part("nats"));
    let port = serve(&tasks, health.routes()).await;
    let addr = port.local_addr();
    let (status, body) = get_json(addr, "/readyz").await;
    assert_eq!((status, &body["status"]), (503, &"unready".into()));
    assert_eq!(body["parts"]["redis"]["detail"], "starting");

    redis.ready();
    nats.ready();
    assert_eq!(get_json(addr, "/readyz").await.1["status"], "ready");
    nats.not_ready("no answer for 3 s");
    let (status, body) = get_json(addr, "/readyz").await;
    assert_eq!(status, 503);
    assert_eq!(body["parts"]["redis"]["ready"], true);
    assert_eq!(body["parts"]["nats"]["ready"], false);
    assert_eq!(body["parts"]["nats"]["detail"], "no answer for 3 s");
    assert_eq!(get_json(addr, "/livez").await.0, 200, "alive all the same");
}

#[tokio::test]
async fn a_front_door_stays_open_degraded_when_a_store_is_away() {
    let health = Health::new();
    health.stay_up_degraded();
    let (listener, redis) = (health.required("http"), health.part("redis"));
    assert_eq!(health.show().0, 503, "not before it listens");
    listener.ready();
    let (status, body) = health.show();
    assert_eq!((status.as_u16(), &body["status"]), (200, &"degraded".into()));
    redis.ready();
    assert_eq!(health.show().1["status"], "ready");
}

#[tokio::test]
async fn the_admin_port_shows_metrics_health_and_loops_through_the_stop() {
    let env = [("HOSTNAME".to_owned(), "host".to_owned())].into();
    let values = settings::load("muster-test", &[], &[], &env).unwrap().values;
    let chassis = Chassis::new("muster-test", values);
    let exporter = Exporter::install("test", "0");
    let tasks = Tasks::new();
    let port = serve(&tasks, admin::routes(&exporter, &chassis.health, &chassis.loops)).await;
    let addr = port.local_addr();
    let (status, metrics) = ask(&mut TcpStream::connect(addr).await.unwrap(), "/metrics").await;
    assert!(status == 200 && metrics.contains("muster_build_info{pod=\"test\""), "{metrics}");
    assert_eq!(get_json(addr, "/readyz").await.0, 503, "not before it runs");
    assert_eq!(get_json(addr, "/loops").await, (200, Value::Array(vec![])));

    let (seen, scrape) = oneshot::channel();
    chassis.stop.stage("last scrape", async move { drop(seen.send(get_json(addr, "/readyz").await)) });
    let running = tasks.spawn("body", {
        let chassis = chassis.clone();
        async move { chassis.run_until_stopped().await }
    });
    timeout(SOON, async {
        while get_json(addr, "/readyz").await.0 != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    chassis.stop.request();
    assert_eq!(timeout(SOON, running).await.unwrap().unwrap(), Some(vec![]));
    let (status, body) = scrape.await.unwrap();
    assert_eq!((status, &body["parts"]["process"]["detail"]), (503, &"stopping".into()));
}
