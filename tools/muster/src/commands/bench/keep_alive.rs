//! One HTTP/1.1 connection, as lean as a load generator has to be: the request is prepared bytes, one is in flight at
//! a time, and of the answer only the status, length and `Retry-After` are read. A client that costs more than what
//! it measures measures itself.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The most headers of an answer.
const HEADERS: usize = 32;
/// The buffer space for one read.
const ROOM: usize = 4 * 1024;

/// A connection that stays open from request to request.
pub(super) struct KeepAlive {
    stream: TcpStream,
    received: Vec<u8>,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    /// From `Retry-After`, in whole seconds.
    pub(super) retry_after: Option<Duration>,
    pub(super) body: &'a [u8],
}

/// The parsed head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    retry_after: Option<u64>,
    /// The length of the head in bytes.
    head: usize,
    body: usize,
}

impl KeepAlive {
    /// Connects, without Nagle's delay.
    pub(super) async fn open(addr: SocketAddr) -> io::Result<KeepAlive> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(KeepAlive { stream, received: Vec::with_capacity(ROOM) })
    }

    /// Sends a request and waits for the complete answer.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.received.clear();
        let mut head = None;
        loop {
            if head.is_none() {
                head = read_head(&self.received)?;
            }
            if let Some(Head { status, retry_after, head, body }) = head
                && self.received.len() >= head + body
            {
                let body = &self.received[head..head + body];
                return Ok(Answer { status, retry_after: retry_after.map(Duration::from_secs), body });
            }
            self.received.reserve(ROOM);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the gateway closed the connection"));
            }
        }
    }
}

/// Parses the head, once it is complete.
fn read_head(received: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let said = response.parse(received).map_err(|fault| invalid(&fault.to_string()))?;
    let httparse::Status::Complete(head) = said else { return Ok(None) };
    let number = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()?.trim().parse::<u64>().ok()
    };
    let length = number("content-length").ok_or_else(|| invalid("the answer does not state its length"))?;
    let body = usize::try_from(length).map_err(|_| invalid("the answer is too long"))?;
    let status = response.code.unwrap_or_default();
    Ok(Some(Head { status, retry_after: number("retry-after"), head, body }))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_head_is_read_when_it_is_whole_and_only_then() {
        let text = b"HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\ncontent-length: 3\r\n\r\nabc";
        for cut in 0..text.len() - 3 {
            assert_eq!(read_head(&text[..cut]).unwrap(), None, "{cut}");
        }
        let head = Head { status: 429, retry_after: Some(2), head: text.len() - 3, body: 3 };
        assert_eq!(read_head(text).unwrap(), Some(head));
        assert!(read_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "no length");
        assert!(read_head(b"nonsense\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn answers_that_come_in_pieces_are_put_together_on_one_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4];
            for body in ["one", "twotwo"] {
                stream.read_exact(&mut request).await.unwrap();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                let (first, second) = answer.as_bytes().split_at(answer.len() - 2);
                stream.write_all(first).await.unwrap();
                tokio::task::yield_now().await;
                stream.write_all(second).await.unwrap();
            }
        };
        let client = async {
            let mut connection = KeepAlive::open(addr).await.unwrap();
            for body in ["one", "twotwo"] {
                let answer = connection.exchange(b"ping").await.unwrap();
                assert_eq!((answer.status, answer.body), (200, body.as_bytes()));
            }
            assert!(connection.exchange(b"ping").await.is_err(), "closed by the server");
        };
        tokio::join!(server, client);
    }
}
