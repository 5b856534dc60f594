//! One call to a gateway, repeated where that is safe: on the next gateway if one cannot be reached, later if all are
//! busy. A repetition is the same request with the same idempotency key.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use reqwest::{Method, StatusCode, Url, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::error::{ClientError, Problem};

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// The longest `Retry-After` of a gateway that is honoured.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Whether a request may be sent again when its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Repeating is harmless.
    Always,
    /// Only if the request cannot have had an effect.
    Unsent,
}

/// A call to a gateway.
#[derive(Clone, Debug)]
pub(super) struct Call {
    method: Method,
    path: Vec<String>,
    query: Vec<(String, String)>,
    body: Option<Bytes>,
    /// The media type of the body.
    media: &'static str,
    idempotency_key: Option<String>,
    /// The version that must still be current.
    if_match: Option<u32>,
    /// The wait that was requested from the gateway.
    wait: Duration,
    repeat: Repeat,
}

impl Call {
    pub(super) fn new<P: Into<String>>(method: Method, path: impl IntoIterator<Item = P>) -> Call {
        Call {
            method,
            path: path.into_iter().map(Into::into).collect(),
            query: Vec::new(),
            body: None,
            media: "application/json",
            idempotency_key: None,
            if_match: None,
            wait: Duration::ZERO,
            repeat: Repeat::Always,
        }
    }

    pub(super) fn query(mut self, key: impl Into<String>, value: impl Into<String>) -> Call {
        self.query.push((key.into(), value.into()));
        self
    }

    pub(super) fn body(mut self, body: &impl Serialize) -> Result<Call, ClientError> {
        let json = serde_json::to_vec(body).map_err(|e| ClientError::Invalid(e.to_string()))?;
        self.body = Some(json.into());
        Ok(self)
    }

    /// Sends text of this media type.
    pub(super) fn text(mut self, text: Bytes, media: &'static str) -> Call {
        (self.body, self.media) = (Some(text), media);
        self
    }

    /// Makes the call fail unless this version is still current.
    pub(super) fn if_match(mut self, version: u32) -> Call {
        self.if_match = Some(version);
        self
    }

    pub(super) fn idempotency_key(mut self, key: Option<String>) -> Call {
        self.idempotency_key = key;
        self
    }

    /// Asks the gateway to wait for the end of the job or run.
    pub(super) fn wait(mut self, wait: Duration) -> Call {
        self.wait = wait;
        self.query("wait_ms", wait.as_millis().to_string())
    }

    pub(super) fn repeat(mut self, repeat: Repeat) -> Call {
        self.repeat = repeat;
        self
    }
}

/// The answer of a successful call.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) body: Bytes,
    pub(super) replayed: bool,
    pub(super) bus_deferred: bool,
}

impl Answer {
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|e| ClientError::Unexpected(e.to_string()))
    }

    pub(super) fn text(&self) -> Result<String, ClientError> {
        String::from_utf8(self.body.to_vec()).map_err(|e| ClientError::Unexpected(e.to_string()))
    }
}

/// The connection to the gateways.
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) http: reqwest::Client,
    pub(super) gateways: Vec<Url>,
    pub(super) api_key: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) timeout: Duration,
    pub(super) retry_for: Duration,
    /// The gateway that answered last.
    pub(super) current: AtomicUsize,
}

/// A try that failed.
struct Failed {
    error: ClientError,
    /// Whether another try is allowed.
    again: bool,
    /// Whether the next gateway may do better than this one.
    elsewhere: bool,
    after: Option<Duration>,
}

impl Transport {
    /// Asks until there is a final answer, or `retry_for` has passed.
    pub(super) async fn call(&self, call: &Call) -> Result<Answer, ClientError> {
        let deadline = Instant::now() + self.retry_for;
        let (mut tries, mut wait) = (0usize, FIRST_WAIT);
        loop {
            let nth = self.current.load(Ordering::Relaxed);
            let failed = match self.once(&self.gateways[nth % self.gateways.len()], call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            tries += 1;
            if failed.elsewhere {
                // Move on only if no other caller has done so already; otherwise two callers would skip a gateway.
                let _ = self.current.compare_exchange(nth, nth.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
            }
            if !failed.again {
                return Err(failed.error);
            }
            if failed.elsewhere && !tries.is_multiple_of(self.gateways.len()) {
                continue;
            }
            let pause = failed.after.unwrap_or(wait).min(LONGEST_RETRY_AFTER).mul_f64(1.0 + fastrand::f64() / 4.0);
            if Instant::now() + pause > deadline {
                return Err(failed.error);
            }
            tracing::debug!(error = %failed.error, ?pause, "trying again");
            tokio::time::sleep(pause).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    async fn once(&self, gateway: &Url, call: &Call) -> Result<Answer, Failed> {
        let mut url = gateway.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(&call.path);
        }
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        let mut request = self.http.request(call.method.clone(), url).timeout(self.timeout + call.wait);
        if let Some(key) = &self.api_key {
            request = request.bearer_auth(key);
        }
        if let Some(tenant) = &self.tenant {
            request = request.header("Muster-Tenant", tenant);
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(version) = call.if_match {
            request = request.header(header::IF_MATCH, format!("\"{version}\""));
        }
        if let Some(body) = &call.body {
            request = request.header(header::CONTENT_TYPE, call.media).body(body.clone());
        }
        let lost = |error: reqwest::Error| {
            let unsent = error.is_connect() || error.is_builder();
            let again = (call.repeat == Repeat::Always || unsent) && !error.is_builder();
            Failed { again, elsewhere: true, after: None, error: ClientError::Unreachable(innermost(&error)) }
        };
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let replayed = header("Idempotency-Replayed") == Some("true");
        let bus_deferred = header("Muster-Bus") == Some("deferred");
        let after = header("Retry-After").and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let body = response.bytes().await.map_err(lost)?;
        if status.is_success() {
            return Ok(Answer { body, replayed, bus_deferred });
        }
        Err(refused(status, after, &body, call.repeat))
    }
}

fn refused(status: StatusCode, after: Option<Duration>, body: &[u8], repeat: Repeat) -> Failed {
    let problem = Box::new(Problem::read(status.as_u16(), after, body));
    // 429 and 503 come from the gateway itself and mean that nothing was done; a proxy in between may answer 502 and
    // 504.
    let again = match status.as_u16() {
        429 | 503 => problem.retryable != Some(false),
        502 | 504 => repeat == Repeat::Always && problem.retryable != Some(false),
        _ => false,
    };
    let elsewhere = matches!(status.as_u16(), 502..=504);
    Failed { error: ClientError::Refused(problem), again, elsewhere, after }
}

/// The innermost cause says what happened; the outer layers only say that something did.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match error.url().and_then(Url::host_str) {
        Some(host) => format!("{host}:{}: {cause}", error.url().and_then(Url::port_or_known_default).unwrap_or(0)),
        None => cause.to_string(),
    }
}
