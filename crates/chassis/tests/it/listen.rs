//! Ports, drains, readiness over HTTP.

use std::{
    io::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, routing::get};
use muster_chassis::{Chassis, Health, Tasks, admin, listen, settings};
use muster_telemetry::Exporter;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    time::timeout,
};

const SOON: Duration = Duration::from_secs(20);

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
    let app = Router::new()
        .route("/", get(|Extension(client): Extension<listen::Client>| async move { client.peer().to_string() }));
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
async fn a_drain_answers_the_first_request_of_connections_that_were_made_before_it() {
    let tasks = Tasks::new();
    let port = serve(&tasks, Router::new().route("/", get(|| async { "hi" }))).await;
    let addr = port.local_addr();
    let mut taken = TcpStream::connect(addr).await.unwrap();
    // A second connection is answered, so the first one is no longer in the queue of the system.
    assert_eq!(ask(&mut TcpStream::connect(addr).await.unwrap(), "/").await.0, 200);
    // The system has accepted this connection; the port has had no turn to take it.
    let waits = std::net::TcpStream::connect(addr).unwrap();

    let drained = tasks.spawn("drain", async move { port.drain(SOON).await });
    until_refused(addr).await;
    waits.set_nonblocking(true).unwrap();
    let mut waits = TcpStream::from_std(waits).unwrap();
    assert_eq!(ask(&mut taken, "/").await, (200, "hi".to_owned()));
    assert_eq!(ask(&mut waits, "/").await, (200, "hi".to_owned()));
    assert_eq!(timeout(SOON, drained).await.unwrap().unwrap(), Some(true));
}

/// Returns when the port is closed.
async fn until_refused(addr: SocketAddr) {
    while TcpStream::connect(addr).await.is_ok() {
        tokio::task::yield_now().await;
    }
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

/// Connections that never send a request, or send one as an unknown client, leave room for known clients.
#[tokio::test]
async fn idle_strangers_are_cut_off_before_they_fill_the_port() {
    let tasks = Tasks::new();
    let known = get(|Extension(client): Extension<listen::Client>| async move {
        client.is_known();
        "known"
    });
    let app = Router::new().route("/known", known).route("/", get(|| async { "hi" }));
    let listener = listen::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = listen::serve_strangers(&tasks, "test port", listener, app, 8).unwrap();
    let mut friend = TcpStream::connect(port.local_addr()).await.unwrap();
    assert_eq!(ask(&mut friend, "/known").await.1, "known");
    let mut strangers = Vec::new();
    for n in 0..40 {
        let mut stranger = TcpStream::connect(port.local_addr()).await.unwrap();
        if n % 2 == 0 {
            assert_eq!(ask(&mut stranger, "/").await.1, "hi");
        }
        strangers.push(stranger);
    }
    // The oldest connections are cut off; of the newest eight, none.
    let late = strangers.split_off(32);
    for mut stranger in strangers {
        assert_eq!(timeout(SOON, stranger.read(&mut [0; 16])).await.unwrap().unwrap(), 0, "cut off");
    }
    for mut stranger in late {
        assert_eq!(ask(&mut stranger, "/").await.1, "hi");
    }
    assert_eq!(ask(&mut friend, "/known").await.1, "known", "who is known stays, however long it idles");
    assert!(port.drain(SOON).await);
}

/// Every connection has a request at the same moment. A task that only yields must be polled again after few of them.
#[tokio::test]
async fn a_flood_of_requests_does_not_hold_up_the_rest_of_the_process() {
    // Each takes two descriptors here, and a system may allow a process few.
    const CLIENTS: usize = 160;
    let (tasks, answered) = (Tasks::new(), Arc::new(AtomicUsize::new(0)));
    let count = answered.clone();
    let app = Router::new().route(
        "/",
        get(move || {
            count.fetch_add(1, Ordering::Relaxed);
            async { "hi" }
        }),
    );
    let port = serve(&tasks, app).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = TcpStream::connect(port.local_addr()).await.unwrap();
        assert_eq!(ask(&mut client, "/").await.1, "hi");
        clients.push(client.into_std().unwrap());
    }
    // Without a yield: the server sees none of these before all are there.
    for client in &mut clients {
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    }
    let (mut last, mut most) = (CLIENTS, 0);
    while last < 2 * CLIENTS {
        tokio::task::yield_now().await;
        let now = answered.load(Ordering::Relaxed);
        most = most.max(now - last);
        last = now;
    }
    assert!(most < CLIENTS / 2, "{most} requests were answered in one turn");
    drop(clients);
    assert!(port.drain(SOON).await);
}
