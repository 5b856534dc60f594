//! Bad neighbours: a client that does not read, a worker that pulls and never starts, a tenant that floods. None of
//! them delays the others.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use muster_bus::ConsumerSpec;
use muster_domain::{Tenant, Topic};
use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Stack, by_hand::bus_of};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

const LONG: Duration = Duration::from_secs(120);
/// The longest time for one job of a neighbour, from submit to end: a stall would be ten seconds and more.
const AT_ONCE: Duration = Duration::from_secs(9);

/// Submits job after job for a while; each is accepted, run and answered at once. Returns their number.
async fn served(gateway: &Probe, topic: &str, lasts: Duration) -> usize {
    let (began, mut jobs) = (Instant::now(), 0);
    while began.elapsed() < lasts {
        let asked = Instant::now();
        let answer = gateway.post("/jobs?wait_ms=20000", &json!({"topic": topic})).await;
        assert_eq!((answer.status.as_u16(), answer.field("state")), (200, &json!("succeeded")), "{}", answer.text);
        assert!(asked.elapsed() < AT_ONCE, "job {jobs} took {:?}", asked.elapsed());
        jobs += 1;
    }
    jobs
}

/// The memory of the largest gateway, in bytes.
fn memory(stack: &Stack) -> u64 {
    let gateways = stack.state().processes.into_iter().filter(|process| process.service == "gateway");
    let kib = gateways.map(|process| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("a gateway");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number")
    });
    kib.max().expect("gateways") << 10
}

#[tokio::test]
async fn clients_that_never_read_their_answers_cost_others_nothing() {
    let stack = Stack::with(Options::two().env("API_RATE_LIMIT_RPS", "0")).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "plain");
    // A page of this is some 100 kB.
    gateway.submit_many(200, &json!({"topic": "plain", "payload": "x".repeat(300)})).await;
    runs.reach(200, LONG).await;

    let door = stack.process("gateway-1").http.unwrap();
    let addr = door.trim_start_matches("http://").to_owned();
    let request = format!(
        "GET /api/v1/jobs?limit=200&include=payload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        stack.state().api_key
    );
    let mut deaf = Vec::new();
    for _ in 0..50 {
        let mut connection = TcpStream::connect(&addr).await.unwrap();
        // More answers than the buffers between the two can hold.
        connection.write_all(request.repeat(100).as_bytes()).await.unwrap();
        deaf.push(connection);
    }
    // The first answers fill those buffers; then every connection is stuck.
    let answered = async || stack.metric("gateway", "muster_http_request_duration_seconds_count").await;
    let mut before = answered().await;
    until(LONG, "every connection to be stuck", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = answered().await;
        let stuck = now == before;
        before = now;
        stuck.then_some(())
    })
    .await;
    assert!(before < 5_000.0, "{before} answers were written to nobody");
    served(&gateway, "plain", Duration::from_secs(4)).await;
    let held = memory(&stack);
    assert!(held < 256 << 20, "a gateway holds {} MiB for those who do not read", held >> 20);
    drop(deaf);
}

#[tokio::test]
async fn a_worker_that_pulls_and_never_starts_delays_only_what_it_holds() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let bus = bus_of(&stack, "greedy").await;
    let spec = ConsumerSpec::offers(&Tenant::default(), Topic::parse("both").unwrap());
    let consumer = bus.consumer(spec).await.unwrap();
    let held = gateway.submit_many(40, &json!({"topic": "both", "retry": {"max_attempts": 1}})).await;
    // All messages on the stream are pulled, and none of them acked.
    let mut pulled = Vec::new();
    until(LONG, "offers to be pulled", async || {
        pulled.extend(consumer.fetch(64, Duration::from_millis(500)).await.unwrap_or_default());
        (pulled.len() >= 8).then_some(())
    })
    .await;

    let _worker = runs.echo(&stack, "w1", "both");
    let _other = runs.echo(&stack, "w2", "other");
    served(&gateway, "other", Duration::from_secs(4)).await;
    // The pulled jobs are given to a worker that starts them, as the first attempt.
    for id in &held {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
        assert_eq!(runs.of(id).len(), 1, "{id} ran once");
    }
    // Later jobs are not delayed for ever either.
    served(&gateway, "both", Duration::from_secs(2)).await;
}

#[tokio::test]
async fn a_tenant_that_floods_is_refused_and_another_is_served_at_once() {
    let stack = Stack::with(Options::two().env("API_RATE_LIMIT_RPS", "100").env("API_RATE_LIMIT_BURST", "100")).await;
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "plain");
    let (over, accepted, refused) = (Cell::new(false), Cell::new(0), Cell::new(0));
    let flood = (0..128).map(async |n: usize| {
        let gateway = stack.gateway(1 + n % 2).for_tenant("noisy");
        while !over.get() {
            let answer = gateway.post("/jobs", &json!({"topic": "nobody"})).await;
            match answer.status.as_u16() {
                202 => accepted.set(accepted.get() + 1),
                429 | 503 if answer.header("retry-after").is_some() => refused.set(refused.get() + 1),
                _ => panic!("{} {}", answer.status, answer.text),
            }
        }
    });
    let other = async {
        until(LONG, "refusals", async || (refused.get() > 500).then_some(())).await;
        let jobs = served(&stack.gateway(2), "plain", Duration::from_secs(8)).await;
        over.set(true);
        jobs
    };
    let (jobs, _) = tokio::join!(other, join_all(flood));
    let (accepted, refused) = (accepted.get(), refused.get());
    assert!(refused > accepted, "it was no flood: {accepted} accepted, {refused} refused, {jobs} of the other's");
}
