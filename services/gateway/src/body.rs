//! Reads request bodies: declared as JSON, within their size limit, and within the memory budget of this process.
//!
//! Promises: a body over its limit is refused at once, by its declared length or as soon as it grows past the limit
//! (the listener deals with the rest of the bytes, `muster_chassis::listen`); a client that stalls does not hold its
//! share of the budget for ever; all bodies together stay within the budget, and beyond that the answer is
//! `overloaded`. Leaves to others: the meaning of the bytes.

use std::time::Duration;

use axum::{body::Body, extract::FromRequest};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt;
use muster_domain::ProblemCode;

use crate::{budget::Held, problem::Problem, state::Gateway};

/// The limit for a single submit, a cancel or a key: the largest payload, and room for the other fields.
pub(crate) const SINGLE: usize = 1024 * 1024;
/// The limit for a batch, or for a worker's results.
pub(crate) const BATCH: usize = 16 * 1024 * 1024;
/// How long a whole body may take to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);

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
        check_encoding(&parts.headers)?;
        if declared.is_some_and(|n| n > LIMIT) {
            return Err(too_large(LIMIT));
        }
        // Without a declared length, the request reserves the whole limit.
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

/// Accepts JSON. An undeclared type is taken as JSON, and an empty body needs no type.
fn check_type(headers: &HeaderMap, length: Option<usize>) -> Result<(), Problem> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    if json || length == Some(0) {
        return Ok(());
    }
    Err(Problem::new(ProblemCode::UnsupportedMediaType, "send the body as `Content-Type: application/json`"))
}

/// Accepts only bodies without a content encoding: the gateway decompresses nothing.
fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let plain = |given: &http::HeaderValue| given.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).iter().all(plain) {
        return Ok(());
    }
    Err(Problem::new(ProblemCode::UnsupportedMediaType, "send the body as it is, without `Content-Encoding`"))
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
            return Err(too_large(limit));
        }
        if whole.is_empty() {
            // Most bodies arrive in one piece, which is kept without a copy.
            whole = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&whole);
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { whole } else { rest.freeze() })
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
    fn bodies_are_not_packed() {
        let judged = |encodings: &[&'static str]| {
            let named = |value: &&'static str| (header::CONTENT_ENCODING, HeaderValue::from_static(value));
            check_encoding(&encodings.iter().map(named).collect()).is_ok()
        };
        assert!(judged(&[]) && judged(&["identity"]) && judged(&[" Identity "]));
        for packed in [&["gzip"][..], &["identity", "br"], &["identity, gzip"], &[""]] {
            assert!(!judged(packed), "{packed:?}");
        }
    }
}
