//! What the heads of a connection's requests say about the length of their bodies.
//!
//! hyper drops a `Content-Length` that comes with a `Transfer-Encoding`, and merges equal ones, before the service sees
//! the request. Two servers that read such a head differently disagree about where the next request begins (request
//! smuggling). This module reads the same bytes as hyper and knows where each head begins in them; it takes the length
//! of a body from hyper. It copies heads only, never a body that comes after its head. The routes refuse such requests,
//! by [`super::Client::length_is_ambiguous`].

use http::{HeaderMap, header};
use memchr::memchr_iter;

/// The requests of one connection, followed byte by byte.
#[derive(Default)]
pub(super) struct Heads {
    /// The bytes from the beginning of the next head.
    recent: Vec<u8>,
    body: Body,
}

/// The rest of the current body.
#[derive(Default)]
enum Body {
    #[default]
    Over,
    Sized(u64),
    Chunked(Chunks),
    /// The place of the next head is unknown.
    Lost,
}

/// The number of header lines of one head that give the length of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths {
    sized: usize,
    coded: usize,
}

impl Lengths {
    /// Whether two servers could read different lengths.
    pub(super) fn are_ambiguous(self) -> bool {
        self.sized + self.coded > 1
    }
}

impl Heads {
    /// Takes bytes that hyper has read.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let rest = match &mut self.body {
            Body::Over => bytes,
            Body::Lost => return,
            Body::Sized(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= n as u64;
                if *left == 0 {
                    self.body = Body::Over;
                }
                &bytes[n..]
            }
            Body::Chunked(chunks) => match chunks.read(bytes) {
                Some(rest) => {
                    self.body = Body::Over;
                    rest
                }
                None => return,
            },
        };
        self.recent.extend_from_slice(rest);
    }

    /// hyper has parsed the next head, with these headers.
    pub(super) fn begin(&mut self, headers: &HeaderMap) -> Lengths {
        let Some((lengths, end)) = scan(&self.recent) else {
            // hyper and this reader disagree: from now on, any request with a transfer coding counts as ambiguous.
            *self = Heads { recent: Vec::new(), body: Body::Lost };
            return Lengths { sized: 0, coded: 2 * usize::from(headers.contains_key(header::TRANSFER_ENCODING)) };
        };
        let mut recent = std::mem::take(&mut self.recent);
        let sized = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse().ok());
        self.body = match sized {
            _ if headers.contains_key(header::TRANSFER_ENCODING) => Body::Chunked(Chunks::default()),
            Some(0) | None => Body::Over,
            Some(n) => Body::Sized(n),
        };
        self.read(&recent[end..]);
        if self.recent.is_empty() {
            recent.clear();
            self.recent = recent;
        }
        lengths
    }
}

/// Reads the head at the beginning of `bytes`: its lengths, and where it ends.
fn scan(bytes: &[u8]) -> Option<(Lengths, usize)> {
    // Empty lines before a request are skipped.
    let begin = bytes.iter().position(|b| !matches!(b, b'\r' | b'\n'))?;
    let (mut lengths, mut line) = (Lengths::default(), begin);
    for newline in memchr_iter(b'\n', &bytes[begin..]).map(|n| n + begin) {
        match &bytes[line..newline] {
            b"" | b"\r" => return Some((lengths, newline + 1)),
            text if names(text, b"content-length") => lengths.sized += 1,
            text if names(text, b"transfer-encoding") => lengths.coded += 1,
            _ => {}
        }
        line = newline + 1;
    }
    None
}

fn names(line: &[u8], name: &[u8]) -> bool {
    line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name)
}

/// A chunked body: sizes, data, and trailers up to an empty line.
#[derive(Default)]
struct Chunks {
    at: Chunk,
    size: u64,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Chunk {
    #[default]
    Size,
    Extension,
    Data,
    DataEnd,
    /// In the trailers; whether the line is empty so far.
    Trailer {
        empty: bool,
    },
}

impl Chunks {
    /// Returns the bytes after the body, once the body has ended.
    fn read<'a>(&mut self, mut bytes: &'a [u8]) -> Option<&'a [u8]> {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = rest;
            match (self.at, byte) {
                (Chunk::Data, _) => {
                    // This byte is the first of the remaining ones.
                    let n = usize::try_from(self.size - 1).unwrap_or(usize::MAX).min(rest.len());
                    self.size -= 1 + n as u64;
                    bytes = &rest[n..];
                    if self.size == 0 {
                        self.at = Chunk::DataEnd;
                    }
                }
                (Chunk::DataEnd, b'\n') => self.at = Chunk::Size,
                (Chunk::Size | Chunk::Extension, b'\n') if self.size == 0 => self.at = Chunk::Trailer { empty: true },
                (Chunk::Size | Chunk::Extension, b'\n') => self.at = Chunk::Data,
                (Chunk::Size, _) => match char::from(byte).to_digit(16) {
                    // hyper refuses a size that does not fit.
                    Some(digit) => self.size = self.size.saturating_mul(16).saturating_add(digit.into()),
                    None => self.at = Chunk::Extension,
                },
                (Chunk::Trailer { empty: true }, b'\n') => return Some(bytes),
                (Chunk::Trailer { .. }, b'\n') => self.at = Chunk::Trailer { empty: true },
                (Chunk::Trailer { .. }, b'\r') | (Chunk::Extension | Chunk::DataEnd, _) => {}
                (Chunk::Trailer { .. }, _) => self.at = Chunk::Trailer { empty: false },
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    /// Whether each head was ambiguous, for requests with these headers as hyper shows them, read in pieces of this
    /// size.
    fn followed(stream: &str, shown: &[HeaderMap], piece: usize) -> Vec<bool> {
        let (mut heads, mut found) = (Heads::default(), Vec::new());
        let mut bytes = stream.as_bytes();
        for headers in shown {
            while scan(&heads.recent).is_none() {
                let (now, later) = bytes.split_at(piece.min(bytes.len()));
                assert!(!now.is_empty(), "a head that never ends: {:?}", String::from_utf8_lossy(&heads.recent));
                heads.read(now);
                bytes = later;
            }
            found.push(heads.begin(headers).are_ambiguous());
        }
        found
    }

    #[test]
    fn heads_are_told_from_bodies_wherever_the_reads_break() {
        let stream = "POST /a HTTP/1.1\r\nContent-Length: 20\r\n\r\ncontent-length: 1\r\n\r\
            \r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n\
            POST /c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;x=\"y\"\r\na\r\n\r\n\r\n0010\r\ncontent-length:1\r\n0\r\nTrailer: x\r\n\r\n\
            POST /d HTTP/1.1\r\nCONTENT-LENGTH: 3\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n\
            POST /e HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n\
            POST /f HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc\
            POST /g HTTP/1.1\ncontent-length: 1\n\nxGET /h HTTP/1.1\r\nx-content-length: 1\r\ntransfer-encodings: 2\r\n\r\n";
        let (chunked, sized) = ([("transfer-encoding", "chunked")], |n| [("content-length", n)]);
        let shown = [
            headers(&sized("20")),
            headers(&[]),
            headers(&chunked),
            headers(&chunked),
            headers(&chunked),
            headers(&sized("3")),
            headers(&sized("1")),
            headers(&[]),
        ];
        let expected = [false, false, false, true, true, true, false, false];
        for piece in [1, 2, 3, 7, 64, 100_000] {
            assert_eq!(followed(stream, &shown, piece), expected, "read {piece} bytes at a time");
        }
    }

    #[test]
    fn where_the_heads_are_lost_every_coded_body_counts_as_ambiguous() {
        let mut heads = Heads::default();
        assert!(!heads.begin(&headers(&[])).are_ambiguous());
        heads.read(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n");
        assert!(heads.begin(&headers(&[("transfer-encoding", "chunked")])).are_ambiguous());
    }
}
