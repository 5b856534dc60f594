//! Bodies as they arrive: declared as JSON, within their limit, within what this process can hold.
//!
//! Promises: a body over its limit is refused without being kept, and the client gets to read the
//! refusal; a client that stalls does not hold its place for ever; all bodies together stay below
//! [`MOST_HELD`], past which the answer is `overloaded`. Leaves to others: what the bytes say.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, extract::FromRequest};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt;
use muster_domain::ProblemCode;

use crate::{Gateway, problem::Problem};

/// A single submit, a cancel, a key: the largest payload and room for the rest.
pub(crate) const SINGLE: usize = 1024 * 1024;
/// A batch, or a worker's results.
pub(crate) const BATCH: usize = 16 * 1024 * 1024;
/// What all requests in flight may hold together.
const MOST_HELD: usize = 256 * 1024 * 1024;
/// How long a whole body may take to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);
/// How much of a body that is too large is read and thrown away, so that its sender reads the
/// answer instead of a broken connection.
const THROWN_AWAY: usize = 64 * 1024 * 1024;

/// How many bytes are held; shared by all requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicUsize>);

/// Bytes that one request holds, given back when it ends.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    fn hold(&self, bytes: usize) -> Result<Held, Problem> {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let held = Held { budget: self.clone(), bytes };
        if before.saturating_add(bytes) > MOST_HELD {
            return Err(Problem::new(ProblemCode::Overloaded, "too many large requests are in flight"));
        }
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body of at most `LIMIT` bytes.
#[derive(Debug)]
pub(crate) struct Posted<const LIMIT: usize> {
    pub(crate) bytes: Bytes,
    _held: Held,
}

impl<const LIMIT: usize> FromRequest<Gateway> for Posted<LIMIT> {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, gateway: &Gateway) -> Result<Posted<LIMIT>, Problem> {
        let (parts, body) = request.into_parts();
        let declared = declared_length(&parts.headers);
        check_type(&parts.headers, declared)?;
        let waits_for_a_nod = parts.headers.contains_key(header::EXPECT);
        if declared.is_some_and(|n| n > LIMIT) && waits_for_a_nod {
            return Err(too_large(LIMIT));
        }
        // Without a declared length the whole limit is set aside.
        let held = gateway.budget.hold(declared.unwrap_or(LIMIT).min(LIMIT))?;
        match tokio::time::timeout(ARRIVES_WITHIN, collect(body, LIMIT)).await {
            Ok(bytes) => Ok(Posted { bytes: bytes?, _held: held }),
            Err(_) => Err(Problem::new(ProblemCode::InvalidRequest, "the body did not arrive in time")),
        }
    }
}

fn too_large(limit: usize) -> Problem {
    Problem::new(ProblemCode::PayloadTooLarge, format!("the body is larger than {limit} bytes"))
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// JSON, or undeclared, which is taken as JSON. An empty body needs no type.
fn check_type(headers: &HeaderMap, length: Option<usize>) -> Result<(), Problem> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    if json || length == Some(0) {
        return Ok(());
    }
    Err(Problem::new(ProblemCode::UnsupportedMediaType, "send the body as `Content-Type: application/json`"))
}

async fn collect(mut body: Body, limit: usize) -> Result<Bytes, Problem> {
    let broken = |_| Problem::new(ProblemCode::InvalidRequest, "the body broke off");
    let mut whole = Bytes::new();
    let mut rest = BytesMut::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        seen += data.len();
        if seen > limit {
            (whole, rest) = (Bytes::new(), BytesMut::new());
            if seen > THROWN_AWAY {
                break;
            }
        } else if whole.is_empty() {
            // Most bodies come in one piece, which is kept as it is.
            whole = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&whole);
            }
            rest.extend_from_slice(&data);
        }
    }
    match seen > limit {
        true => Err(too_large(limit)),
        false if rest.is_empty() => Ok(whole),
        false => Ok(rest.freeze()),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::HeaderValue;

    use super::*;

    fn pieces(pieces: &'static [&'static str]) -> Body {
        Body::from_stream(stream::iter(
            pieces.iter().map(|p| Ok::<_, std::io::Error>(Bytes::from_static(p.as_bytes()))),
        ))
    }

    #[tokio::test]
    async fn pieces_become_one_body_within_its_limit() {
        assert_eq!(&collect(pieces(&["ab", "cd", "e"]), 5).await.unwrap()[..], b"abcde");
        assert_eq!(&collect(pieces(&[]), 5).await.unwrap()[..], b"");
        assert_eq!(&collect(pieces(&["", "ab"]), 5).await.unwrap()[..], b"ab");
        let refused = collect(pieces(&["abc", "def", "ghi"]), 5).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::PayloadTooLarge);
    }

    #[test]
    fn bodies_are_json_or_undeclared() {
        let judged = |kind: &'static str, length| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            check_type(&headers, length).is_ok()
        };
        assert!(judged("application/json", Some(5)));
        assert!(judged("Application/JSON; charset=utf-8", None));
        assert!(judged("application/vnd.api+json", Some(5)));
        assert!(judged("text/plain", Some(0)));
        assert!(!judged("text/plain", Some(5)));
        assert!(!judged("application/x-www-form-urlencoded", None));
        assert!(check_type(&HeaderMap::new(), Some(5)).is_ok());
    }

    #[test]
    fn what_all_requests_hold_is_bounded_and_given_back() {
        let budget = Budget::default();
        let held = budget.hold(MOST_HELD - 10).unwrap();
        assert_eq!(budget.hold(11).unwrap_err().code, ProblemCode::Overloaded);
        assert!(budget.hold(10).is_ok());
        drop(held);
        assert!(budget.hold(MOST_HELD).is_ok());
        assert_eq!(budget.0.load(Ordering::Relaxed), 0);
    }
}
