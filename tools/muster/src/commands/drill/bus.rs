//! Deletes JetStream streams, whatever their names, in NATS' own plain text: the one thing a drill
//! asks of NATS, so it needs no client for it.

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpStream,
    time::timeout,
};

/// Longest that one question may take.
const ANSWER: Duration = Duration::from_secs(10);

/// Deletes every stream; their names. Fails if there is none.
pub(super) async fn drop_streams(addr: &str) -> anyhow::Result<Vec<String>> {
    let mut line = Talk::open(addr).await?;
    let answer = line.ask("$JS.API.STREAM.NAMES").await?;
    let names = answer["streams"].as_array().cloned().unwrap_or_default();
    let names: Vec<String> = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    anyhow::ensure!(!names.is_empty(), "there is no stream: {answer}");
    for name in &names {
        let answer = line.ask(&format!("$JS.API.STREAM.DELETE.{name}")).await?;
        anyhow::ensure!(answer["success"] == true, "{name} was not deleted: {answer}");
    }
    Ok(names)
}

/// A conversation, one question at a time.
struct Talk(BufStream<TcpStream>);

impl Talk {
    async fn open(addr: &str) -> anyhow::Result<Talk> {
        let mut talk = Talk(BufStream::new(TcpStream::connect(addr).await?));
        let hello = b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB drill.answer 1\r\n";
        talk.0.write_all(hello).await?;
        Ok(talk)
    }

    async fn ask(&mut self, subject: &str) -> anyhow::Result<Value> {
        self.0.write_all(format!("PUB {subject} drill.answer 0\r\n\r\n").as_bytes()).await?;
        self.0.flush().await?;
        timeout(ANSWER, self.answer()).await.with_context(|| format!("no answer to {subject}"))?
    }

    async fn answer(&mut self) -> anyhow::Result<Value> {
        loop {
            let mut head = String::new();
            anyhow::ensure!(self.0.read_line(&mut head).await? > 0, "NATS hung up");
            let words: Vec<&str> = head.split_whitespace().collect();
            match words.first().copied() {
                Some("MSG") => {
                    let size: usize = words.last().unwrap_or(&"").parse().context("a message without a size")?;
                    let mut body = vec![0; size + 2];
                    self.0.read_exact(&mut body).await?;
                    return Ok(serde_json::from_slice(&body[..size])?);
                }
                Some("PING") => {
                    self.0.write_all(b"PONG\r\n").await?;
                    self.0.flush().await?;
                }
                Some("-ERR") => anyhow::bail!("NATS says {}", head.trim()),
                _ => (),
            }
        }
    }
}
