//! Asks processes whether they are ready. Every question has a short limit and is repeated until the whole start has
//! taken too long; then the last answer is reported.

use std::{future::Future, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::outcome::Failure;

/// The longest time for one question.
const ANSWER: Duration = Duration::from_secs(2);
/// The longest time that a part of the stack may take to start.
const START: Duration = Duration::from_secs(60);

/// Repeats a question until it succeeds. `name` names the process in the error.
pub(crate) async fn until_ready<F>(name: &str, mut ask: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let limit = Instant::now() + START;
    loop {
        let said = match timeout(ANSWER, ask()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "no answer".to_owned(),
        };
        if Instant::now() >= limit {
            let failure = Failure::new(format!("{name} was not ready within {START:?}: {said}"));
            return Err(failure.hint("its log is in the logs folder of the stack").into());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Sends one GET, and returns the body if the answer is 200. Uses HTTP/1.0, whose answers never come in chunks.
pub(crate) async fn http_get(addr: &str, path: &str) -> anyhow::Result<String> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n");
    let answer = exchange(addr, request.as_bytes(), |_| false).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status == "200" {
        return Ok(body.to_owned());
    }
    anyhow::bail!("{path} says {status} {}", body.trim())
}

/// Sends one Redis command without arguments that need quoting. Returns its reply as text, an error as an error.
pub(crate) async fn redis_ask(addr: &str, command: &str) -> anyhow::Result<String> {
    let answer = exchange(addr, format!("{command}\r\n").as_bytes(), redis_complete).await?;
    match answer.strip_prefix('-') {
        Some(error) => anyhow::bail!("{}", error.trim()),
        None => Ok(answer),
    }
}

/// Whether a simple or bulk reply is complete.
fn redis_complete(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n") else {
        return false;
    };
    match head.strip_prefix('$') {
        Some(length) => length.parse::<usize>().map_or(true, |length| body.len() >= length),
        None => true,
    }
}

async fn exchange(addr: &str, request: &[u8], complete: impl Fn(&str) -> bool) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    while stream.read_buf(&mut answer).await? > 0 {
        if complete(&String::from_utf8_lossy(&answer)) {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bulk_reply_is_complete_with_its_last_byte() {
        assert!(!redis_complete("$5\r\nab"));
        assert!(redis_complete("$5\r\nabcde\r\n"));
        assert!(redis_complete("+PONG\r\n"));
        assert!(!redis_complete("+PON"));
    }
}
