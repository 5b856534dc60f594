//! What an operator finds in a gateway's log: every request that failed through no fault of its client, and how the
//! process ended.

use std::time::{Duration, Instant};

use muster_testkit::until;
use muster_tests::{Stack, State};
use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const SOON: Duration = Duration::from_secs(30);
const NOBODY: &str = "/api/v1/jobs/0198c0de-0000-7000-8000-000000000000";

/// Waits for a log line with this event and this text.
async fn line(stack: &Stack, event: &str, text: &str) -> Value {
    until(SOON, &format!("{event} in the log"), async || {
        let log = stack.log("gateway-1");
        let line = log.lines().find(|line| line.contains(text) && line.contains(event))?;
        serde_json::from_str(line).ok()
    })
    .await
}

fn redis_of(state: &State) -> String {
    let redis = state.processes.iter().find(|process| process.service == "redis");
    redis.expect("the stack has a Redis of its own").name.clone()
}

#[tokio::test]
async fn a_failed_request_is_found_by_its_id_and_a_stop_is_quick_and_clean() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let fine = gateway.send(Method::GET, NOBODY, &[("X-Request-Id", "a-fault-of-the-client")], None).await.unwrap();
    assert_eq!(fine.status, 404);
    let redis = redis_of(&stack.state());
    stack.signal(&redis, Signal::SIGSTOP);
    let failed = gateway.send(Method::GET, NOBODY, &[("X-Request-Id", "find-me-17")], None).await.unwrap();
    stack.signal(&redis, Signal::SIGCONT);
    assert_eq!((failed.status.as_u16(), failed.field("request_id").as_str()), (503, Some("find-me-17")));
    let said = line(&stack, "request_failed", "find-me-17").await;
    let text = said.to_string();
    for part in ["\"WARN\"", "store_unavailable", "/api/v1/jobs/{id}"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!stack.log("gateway-1").contains("a-fault-of-the-client"), "those would be too many");

    // The open pages show what is ready, and the first page names a topic that has a worker.
    let stranger = gateway.with_key(None);
    let ready = until(SOON, "readiness", async || {
        let ready = stranger.send(Method::GET, "/readyz", &[], None).await.ok()?;
        (ready.field("status") == "ready").then_some(ready)
    })
    .await;
    assert!(ready.body["parts"].as_object().unwrap().values().all(|part| part.as_object().unwrap().len() == 1));
    let page = stranger.send(Method::GET, "/", &[], None).await.unwrap().text;
    assert!(page.contains(r#""topic": "demo""#) && !page.contains("ashboard"), "{page}");

    let began = Instant::now();
    let old = stack.signal("gateway-1", Signal::SIGTERM);
    line(&stack, "\"event\":\"stopped\"", "muster-gateway").await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    stack.replaced("gateway-1", old).await;
    let log = stack.log("gateway-1");
    assert!(!log.contains("task_late") && !log.contains("stop_stage_late"), "{log}");
}

/// A client that never sends the body it announced delays the shutdown. In the end the gateway cuts it off, and the
/// log names it.
#[tokio::test]
async fn a_request_that_outlasts_the_stop_is_cut_off_and_named() {
    let stack = Stack::start().await;
    let state = stack.state();
    let address = stack.process("gateway-1").http.unwrap().replace("http://", "");
    let mut held = TcpStream::connect(&address).await.unwrap();
    let key = &state.api_key;
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: 15\r\nexpect: 100-continue\r\n\r\n"
    );
    held.write_all(head.as_bytes()).await.unwrap();
    let mut said = [0; 64];
    let n = held.read(&mut said).await.unwrap();
    assert!(said[..n].starts_with(b"HTTP/1.1 100 Continue"), "it is being answered: {:?}", said[..n].utf8_chunks());

    let began = Instant::now();
    stack.signal("gateway-1", Signal::SIGTERM);
    let late = line(&stack, "task_late", "http").await;
    assert!(late.to_string().contains("\"WARN\""), "{late}");
    line(&stack, "\"event\":\"stopped\"", "muster-gateway").await;
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert_eq!(held.read(&mut said).await.unwrap_or(0), 0, "its connection is closed");
}
