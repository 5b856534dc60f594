//! What an operator finds in a gateway's log: every request that failed through no fault of its client, and how the
//! process ended. Also: connections without a key, and few descriptors.

use std::time::{Duration, Instant};

use muster_testkit::{bin, free_port, until};
use muster_tests::{Probe, Program, Stack, State};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
use reqwest::Method;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const SOON: Duration = Duration::from_secs(60);
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
    // Nobody waits for a limit, as the log shows; a busy machine may take some seconds all the same.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
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

/// One more gateway on the stores of a stack, started with this limit of descriptors, soft and hard.
struct Limited {
    program: Program,
    address: String,
    admin: String,
    gateway: Probe,
    _folder: tempfile::TempDir,
}

impl Limited {
    async fn start(stack: &Stack, descriptors: &str) -> Limited {
        let port = async || tokio::task::spawn_blocking(free_port).await.expect("a port");
        let (address, admin) = (format!("127.0.0.1:{}", port().await), format!("127.0.0.1:{}", port().await));
        let (state, folder) = (stack.state(), tempfile::tempdir().expect("a folder"));
        let env = [
            ("REDIS_URL", state.redis_url.as_str()),
            ("NATS_URL", &state.nats_url),
            ("MUSTER_API_KEY", &state.api_key),
            ("MUSTER_HTTP_ADDR", &address),
            ("MUSTER_ADMIN_ADDR", &admin),
            ("MUSTER_INSTANCE_ID", "limited"),
        ];
        let program = bin("muster-gateway").display().to_string();
        let args = [&format!("--nofile={descriptors}"), program.as_str()];
        let program = Program::start("prlimit", &args, &env, &folder.path().join("log"));
        let gateway = Probe::new(format!("http://{address}"), state.api_key);
        until(SOON, "the gateway to be ready", async || {
            let answer = gateway.send(Method::GET, "/readyz", &[], None).await.ok()?;
            answer.status.is_success().then_some(())
        })
        .await;
        Limited { program, address, admin, gateway, _folder: folder }
    }
}

#[tokio::test]
async fn idle_connections_without_a_key_take_no_descriptor_that_a_client_needs() {
    // Half of them at the admin port.
    const STRANGERS: usize = 2_200;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(4_096).min(hard), hard).unwrap();
    let stack = Stack::start().await;
    let limited = Limited::start(&stack, "1024:1024").await;
    let mut strangers = Vec::with_capacity(STRANGERS);
    let mut slowest = Duration::ZERO;
    for n in 1..=STRANGERS {
        let to = if n % 2 == 0 { &limited.admin } else { &limited.address };
        strangers.push(TcpStream::connect(to).await.unwrap());
        if n % 100 == 0 {
            // Each on a connection of its own.
            let client = reqwest::Client::new().get(format!("http://{}/api/v1/jobs", limited.address));
            let began = Instant::now();
            let answer = client.bearer_auth(stack.state().api_key).send().await.unwrap();
            assert_eq!(answer.status(), 200, "after {n}");
            slowest = slowest.max(began.elapsed());
        }
    }
    // Without the rule a client waits for a minute and more.
    assert!(slowest < Duration::from_secs(15), "{slowest:?}");
    assert_eq!(limited.gateway.get("/whoami").await.status, 200, "and on one that it has");
}

#[tokio::test]
async fn a_gateway_raises_its_soft_limit_of_descriptors() {
    let stack = Stack::start().await;
    let limited = Limited::start(&stack, "256:3000").await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", limited.program.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let numbers: Vec<&str> = line.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert_eq!(numbers, ["3000", "3000"], "{line}");
}
