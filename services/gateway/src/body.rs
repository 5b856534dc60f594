//! Reads request bodies: declared as JSON (definitions of workflows also as YAML), within their size limit, and within
//! the memory budget of this process.
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
use muster_engine::definition::{Format, MOST_BYTES};

use crate::{budget::Held, problem::Problem, state::Gateway};

/// The limit for a single submit, a cancel or a key: the largest payload, and room for the other fields.
pub(crate) const SINGLE: usize = 1024 * 1024;
/// The limit for a batch, or for a worker's results.
pub(crate) const BATCH: usize = 16 * 1024 * 1024;
/// The limit for a definition of a workflow.
pub(crate) const DEFINITION: usize = MOST_BYTES;
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
        check_type(request.headers(), declared_length(request.headers()))?;
        receive(request, gateway).await
    }
}

/// A definition of a workflow, in the format that its type declares.
#[derive(Debug)]
pub(crate) struct PostedDefinition {
    pub(crate) format: Format,
    pub(crate) posted: Posted<DEFINITION>,
}

impl FromRequest<Gateway> for PostedDefinition {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, gateway: &Gateway) -> Result<PostedDefinition, Problem> {
        let format = definition_format(request.headers())?;
        Ok(PostedDefinition { format, posted: receive(request, gateway).await? })
    }
}

/// Receives a body whose declared type was accepted.
async fn receive<const LIMIT: usize>(request: Request<Body>, gateway: &Gateway) -> Result<Posted<LIMIT>, Problem> {
    let (parts, body) = request.into_parts();
    let declared = declared_length(&parts.headers);
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

fn too_large(limit: usize) -> Problem {
    Problem::new(ProblemCode::PayloadTooLarge, format!("the body is larger than {limit} bytes"))
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Accepts JSON. An undeclared type is taken as JSON, and an empty body needs no type.
fn check_type(headers: &HeaderMap, length: Option<usize>) -> Result<(), Problem> {
    if length == Some(0) || declared_type(headers).is_none_or(|kind| is_json(&kind)) {
        return Ok(());
    }
    Err(Problem::new(ProblemCode::UnsupportedMediaType, "send the body as `Content-Type: application/json`"))
}

/// Accepts JSON and YAML. Of an undeclared type, the text itself says which it is.
fn definition_format(headers: &HeaderMap) -> Result<Format, Problem> {
    let Some(kind) = declared_type(headers) else { return Ok(Format::Guess) };
    if is_json(&kind) {
        return Ok(Format::Json);
    }
    if matches!(kind.as_str(), "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml") {
        return Ok(Format::Yaml);
    }
    let why = "send the definition as `Content-Type: application/yaml` or `application/json`";
    Err(Problem::new(ProblemCode::UnsupportedMediaType, why))
}

fn is_json(kind: &str) -> bool {
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// The declared type without its parameters, in lower case.
fn declared_type(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::CONTENT_TYPE)?.to_str().unwrap_or_default();
    Some(given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
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
    fn definitions_are_json_or_yaml_and_an_undeclared_type_is_guessed() {
        let judged = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            definition_format(&headers).ok()
        };
        assert_eq!(judged("application/json; charset=utf-8"), Some(Format::Json));
        assert_eq!(judged("Application/YAML"), Some(Format::Yaml));
        assert_eq!(judged("text/yaml"), Some(Format::Yaml));
        assert_eq!(judged("text/plain"), None);
        assert_eq!(definition_format(&HeaderMap::new()).ok(), Some(Format::Guess));
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
