//! Tests of HTTP at the level of bytes: contradictory heads, unread bodies, many requests on one connection.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::gate::{Gate, KEY};

const LIMIT: Duration = Duration::from_secs(20);

/// One answer.
#[derive(Debug)]
struct Reply {
    status: u16,
    closes: bool,
    body: Value,
}

/// One connection.
struct Wire {
    writer: OwnedWriteHalf,
    answers: Answers,
}

/// The receiving side of a connection.
struct Answers {
    reader: OwnedReadHalf,
    read: Vec<u8>,
}

impl Wire {
    async fn to(gate: &Gate) -> Wire {
        let (reader, writer) = TcpStream::connect(gate.addr()).await.unwrap().into_split();
        Wire { writer, answers: Answers { reader, read: Vec::new() } }
    }

    async fn say(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Option<Reply> {
        self.answers.hear().await
    }
}

impl Answers {
    /// The next answer; `None` if the connection was closed before it.
    async fn hear(&mut self) -> Option<Reply> {
        loop {
            if let Some((reply, length)) = parse(&self.read) {
                self.read.drain(..length);
                // `100 Continue` is not an answer.
                if reply.status >= 200 {
                    return Some(reply);
                }
                continue;
            }
            let read = timeout(LIMIT, self.reader.read_buf(&mut self.read)).await.expect("an answer or an end in time");
            // A reset counts as an end too.
            if read.unwrap_or(0) == 0 {
                assert!(self.read.is_empty(), "cut off within an answer: {:?}", String::from_utf8_lossy(&self.read));
                return None;
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    let length = header("content-length").map_or(0, |n| n.parse().unwrap());
    let body = bytes.get(end..end + length)?;
    let body = serde_json::from_slice(body).unwrap_or(Value::Null);
    Some((Reply { status, closes: header("connection") == Some("close"), body }, end + length))
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{headers}\r\n{body}")
}

fn sized(path: &str, headers: &str, body: &str) -> String {
    post(path, &format!("{headers}content-length: {}\r\n", body.len()), body)
}

const JOB: &str = r#"{"topic":"t"}"#;
const CHUNKED: &str = "d\r\n{\"topic\":\"t\"}\r\n0\r\n\r\n";

#[tokio::test]
async fn a_body_with_two_lengths_is_refused_and_the_connection_ends() {
    let gate = Gate::start(&[]).await;
    let both = "content-length: 13\r\ntransfer-encoding: chunked\r\n";
    let turned = "Transfer-Encoding: chunked\r\nContent-Length: 13\r\n";
    let twice = "content-length: 13\r\ncontent-length: 13\r\n";
    for (headers, body) in [(both, CHUNKED), (turned, CHUNKED), (twice, JOB)] {
        let mut wire = Wire::to(&gate).await;
        // Send a valid request first, so that the bad head is not the first one on the connection.
        wire.say(&(sized("/api/v1/jobs", "", JOB) + &post("/api/v1/jobs", headers, body))).await;
        assert_eq!(wire.hear().await.unwrap().status, 202);
        let refused = wire.hear().await.expect("an answer");
        assert_eq!((refused.status, &refused.body["code"]), (400, &"malformed_request".into()), "{headers}");
        assert!(refused.closes, "{headers}");
        assert!(wire.hear().await.is_none(), "{headers}: the connection ends");
    }
    // The HTTP parser itself refuses lengths that differ.
    let mut wire = Wire::to(&gate).await;
    wire.say(&post("/api/v1/jobs", "content-length: 13\r\ncontent-length: 14\r\n", JOB)).await;
    let refused = wire.hear().await.unwrap();
    assert_eq!((refused.status, refused.closes), (400, true));
    // A single length is accepted in either form.
    let mut wire = Wire::to(&gate).await;
    let chunked = post("/api/v1/jobs", "transfer-encoding: chunked\r\n", CHUNKED);
    wire.say(&(chunked.clone() + &sized("/api/v1/jobs", "", JOB) + &chunked)).await;
    for _ in 0..3 {
        let taken = wire.hear().await.unwrap();
        assert_eq!((taken.status, taken.closes), (202, false), "{}", taken.body);
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_by_its_own_words_is_refused_at_once() {
    let gate = Gate::start(&[]).await;
    for length in ["1048577", "99999999999", "9223372036854775807"] {
        let (mut wire, began) = (Wire::to(&gate).await, Instant::now());
        wire.say(&post("/api/v1/jobs", &format!("content-length: {length}\r\n"), "{")).await;
        let refused = wire.hear().await.unwrap();
        assert_eq!((refused.status, &refused.body["code"]), (413, &"payload_too_large".into()), "{length}");
        assert!(refused.closes && began.elapsed() < Duration::from_secs(12), "{length}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_sender_of_a_large_body_reads_why_it_is_refused() {
    let gate = Gate::start(&[]).await;
    let body = "x".repeat(8 * 1024 * 1024);
    let mut wire = Wire::to(&gate).await;
    wire.say(&sized("/api/v1/jobs", "", &body)).await;
    let refused = wire.hear().await.expect("an answer, though the body was not wanted");
    assert_eq!((refused.status, refused.closes), (413, true));
    assert!(wire.hear().await.is_none());
}

#[tokio::test]
async fn a_packed_body_is_refused() {
    let gate = Gate::start(&[]).await;
    let mut wire = Wire::to(&gate).await;
    wire.say(&sized("/api/v1/jobs", "content-encoding: gzip\r\n", JOB)).await;
    let refused = wire.hear().await.unwrap();
    assert_eq!((refused.status, &refused.body["code"]), (415, &"unsupported_media_type".into()));
    wire.say(&sized("/api/v1/jobs", "content-encoding: identity\r\n", JOB)).await;
    assert_eq!(wire.hear().await.unwrap().status, 202, "the same connection is of use");
}

/// A random request, with a body that the route reads or one that it does not.
fn any_request(random: &mut fastrand::Rng) -> String {
    let (small, large) = ("x".repeat(random.usize(0..2_000)), random.usize(60_000..400_000));
    let no_key = |path: &str, body: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    match random.u8(0..22) {
        0 => "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
        1 => format!("GET /api/v1/jobs?limit=1 HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\n\r\n"),
        2 => no_key("/api/v1/jobs", &small),
        3 => no_key("/api/v1/jobs", &"x".repeat(large)),
        4 => no_key("/nowhere", &small),
        5 => sized("/nowhere", "", &small),
        6 => sized("/nowhere", "", &"x".repeat(large)),
        7 => sized("/livez", "", &small),
        8 => sized("/api/v1/jobs", "content-type: text/plain\r\n", &small),
        9 => sized("/api/v1/jobs", "content-encoding: gzip\r\n", &"x".repeat(large)),
        10 => sized("/api/v1/jobs", "", &small),
        11 => sized("/api/v1/jobs", "", &"x".repeat(1_048_577 + large)),
        12..=14 => sized("/api/v1/jobs", "", JOB),
        15 => post("/api/v1/jobs", "transfer-encoding: chunked\r\n", CHUNKED),
        16 => post("/nowhere", "transfer-encoding: chunked\r\n", CHUNKED),
        17 => sized("/api/v1/jobs", "expect: 100-continue\r\n", JOB),
        18 => sized("/nowhere", "expect: 100-continue\r\n", &small),
        19 => post("/api/v1/jobs", "content-length: 3\r\ntransfer-encoding: chunked\r\n", CHUNKED),
        20 => "\r\nDELETE /api/v1/jobs/1 HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
        _ => format!("{} /\u{1} HTTP/1.1\r\n\r\n", random.alphabetic()),
    }
}

/// Sends random requests on one connection. Returns how many were sent and how many were answered: all of them, or up
/// to an answer that closes the connection.
async fn converse(gate: &Gate, seed: u64) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut requests: Vec<String> = (0..random.usize(1..30)).map(|_| any_request(&mut random)).collect();
    requests.push("GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned());
    let pipelined = random.bool();
    let Wire { mut writer, mut answers } = Wire::to(gate).await;
    let (next, mut may_send) = tokio::sync::mpsc::unbounded_channel::<()>();
    let count = requests.len();
    let send = async move {
        for request in requests {
            // A write fails once the gateway has closed the connection.
            if writer.write_all(request.as_bytes()).await.is_err() {
                break;
            }
            if !pipelined && may_send.recv().await.is_none() {
                break;
            }
        }
        writer
    };
    let hear = async move {
        let (mut answered, mut last_closes) = (0, false);
        while let Some(reply) = answers.hear().await {
            assert!(!last_closes, "an answer after the last one, seed {seed}");
            assert!(reply.status < 500, "seed {seed}: {reply:?}");
            (answered, last_closes) = (answered + 1, reply.closes);
            let _ = next.send(());
        }
        drop(next);
        assert!(answered <= count, "seed {seed}");
        assert!(last_closes, "seed {seed}: {answered} of {count} answered, and the last did not say that it was");
        answered
    };
    let (_, answered) = tokio::join!(send, hear);
    (count, answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_answered_or_the_last_answer_says_that_the_connection_ends() {
    let gate = Gate::start(&[]).await;
    let begin = fastrand::u64(..);
    let (mut sent, mut answered, mut connections) = (0, 0, 0);
    for round in 0..60 {
        let seeds = (0..16).map(|n| begin.wrapping_add(round * 16 + n));
        for (asked, heard) in join_all(seeds.map(|seed| converse(&gate, seed))).await {
            (sent, answered, connections) = (sent + asked, answered + heard, connections + 1);
        }
    }
    assert!(sent > 5_000 && answered > 1_000, "{answered} of {sent} on {connections} connections");
}
