//! Calls to the HTTP API of the gateways. Knows the addresses, the key, and how to turn a problem into a message for
//! a person. Leaves to the commands what they ask and show. Bodies are sent as text, so that a payload arrives and
//! comes back exactly as written.
//!
//! If a gateway refuses the connection, the call goes to the next one: nothing was sent, so this is always safe. Any
//! other failure is repeated only if the call allows it.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    outcome::{Code, Failure},
    target::Door,
};

/// How long a call may be repeated in all.
const PERSEVERANCE: Duration = Duration::from_secs(30);
/// How long one call may take beyond the time that the server was asked to wait.
const ANSWER: Duration = Duration::from_secs(20);
/// How long an endless answer may take to begin.
const BEGIN: Duration = Duration::from_secs(10);

/// The objects that can be asked for by name and missing: each has a `list` command.
pub(crate) const NOUNS: [&str; 7] = ["job", "key", "operation", "run", "topic", "worker", "workflow"];

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Option<String>,
    /// The media type of the body.
    media: &'static str,
    idempotency_key: Option<String>,
    /// The version that must still be current.
    seen: Option<u64>,
    waits: Duration,
    repeatable: bool,
    /// Whether the answer goes on for as long as it is read.
    endless: bool,
    /// The id of the event after which the answer continues.
    after: Option<String>,
}

impl Call {
    /// A call that reads something.
    pub(crate) fn get(path: impl Into<String>) -> Call {
        Call::new(Method::GET, path, None, true)
    }

    /// A call that changes something. It is repeated only if [`Call::repeatable`] says so.
    pub(crate) fn post(path: impl Into<String>, body: impl Into<String>) -> Call {
        Call::new(Method::POST, path, Some(body.into()), false)
    }

    /// A call that replaces something.
    pub(crate) fn put(path: impl Into<String>, body: impl Into<String>) -> Call {
        Call::new(Method::PUT, path, Some(body.into()), false)
    }

    /// A call that removes something.
    pub(crate) fn delete(path: impl Into<String>) -> Call {
        Call::new(Method::DELETE, path, None, false)
    }

    fn new(method: Method, path: impl Into<String>, body: Option<String>, repeatable: bool) -> Call {
        let (path, query) = (path.into(), Vec::new());
        let (waits, endless) = (Duration::ZERO, false);
        let (idempotency_key, seen, after) = (None, None, None);
        let media = "application/json";
        Call { method, path, query, body, media, idempotency_key, seen, waits, repeatable, endless, after }
    }

    /// A call with an endless answer, which begins after the event with this id if there is one.
    pub(crate) fn follow(path: impl Into<String>, after: Option<&str>) -> Call {
        Call { endless: true, after: after.map(str::to_owned), ..Call::get(path) }
    }

    /// Says that the body is of this media type, not JSON.
    pub(crate) fn media(mut self, media: &'static str) -> Call {
        self.media = media;
        self
    }

    /// Makes the call fail unless this version is still current.
    pub(crate) fn if_match(mut self, version: u64) -> Call {
        self.seen = Some(version);
        self
    }

    /// Adds a query parameter.
    pub(crate) fn query(mut self, name: impl Into<String>, value: impl Into<String>) -> Call {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Says that the server is asked to wait this long before it answers.
    pub(crate) fn waits(mut self, wait: Duration) -> Call {
        self.waits = wait;
        self
    }

    /// Says that repeating the call is harmless.
    pub(crate) fn repeatable(mut self) -> Call {
        self.repeatable = true;
        self
    }

    /// Says that a repeat has no further effect, because of this key.
    pub(crate) fn idempotency_key(mut self, key: impl Into<String>) -> Call {
        self.idempotency_key = Some(key.into());
        self.repeatable()
    }
}

/// A name as one part of a path: everything but letters, digits and `-._~[]` is escaped.
pub(crate) fn part(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~[]".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The kind of object that a path leads to.
fn noun_of(path: &str) -> &'static str {
    let first = path.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
    NOUNS.into_iter().find(|noun| first.strip_suffix('s').unwrap_or(first) == *noun).unwrap_or("job")
}

/// The answer of the server, as text and parsed.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) value: Value,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// No gateway could be reached, or none answered in time.
    #[error("no answer from {url}: {why}")]
    Unreachable { url: String, why: String },
    /// A gateway said no.
    #[error("{}", .0.words())]
    Refused(Box<Problem>),
}

/// A refusal, as the gateway sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) code: String,
    /// The kind of object that was asked for.
    noun: &'static str,
    detail: String,
    errors: Vec<String>,
}

impl Problem {
    fn read(path: &str, status: u16, text: &str) -> Problem {
        let body: Value = serde_json::from_str(text).unwrap_or_default();
        let word = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let (title, detail) = (word("title"), word("detail"));
        let field = |e: &Value| {
            format!("{}: {}", e["pointer"].as_str().unwrap_or("/"), e["detail"].as_str().unwrap_or_default())
        };
        Problem {
            status,
            code: word("code"),
            noun: noun_of(path),
            detail: [detail, title].into_iter().find(|t| !t.is_empty()).unwrap_or_else(|| text.trim().to_owned()),
            errors: body["errors"].as_array().map(|all| all.iter().map(field).collect()).unwrap_or_default(),
        }
    }

    /// The message for a person.
    pub(crate) fn words(&self) -> String {
        let code = if self.code.is_empty() { String::new() } else { format!(", {}", self.code) };
        let mut words = format!("{} ({}{code})", self.detail, self.status);
        // If the detail is the only error, it is not repeated.
        for error in self.errors.iter().filter(|error| **error != self.detail) {
            words += &format!("\n  {error}");
        }
        words
    }

    /// What the user can do about it, if known.
    fn hint(&self) -> Option<String> {
        Some(match (self.status, self.code.as_str()) {
            (401, _) => "give a valid key with --api-key or MUSTER_API_KEY".to_owned(),
            (403, _) => "use a key that has this scope; `muster key create --scope …` creates one".to_owned(),
            (429, _) => "send fewer requests, or raise API_RATE_LIMIT_RPS on the gateways".to_owned(),
            (503, "overloaded") => "this gateway is overloaded; docs/errors/overloaded.md explains why".to_owned(),
            (503, _) => "a store does not answer; `muster status` and the gateway's /readyz show which one".to_owned(),
            (_, "") => return None,
            (404, _) => format!("`muster {} list` shows what exists; use --tenant for another tenant", self.noun),
            (_, code) => format!("docs/errors/{code}.md explains the error and what to do"),
        })
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let words = error.to_string();
        match error {
            CallError::Unreachable { .. } => Failure::new(words)
                .hint("does the stack run? `muster dev` starts one; use --url or MUSTER_URL for another one"),
            CallError::Refused(problem) => {
                let code = if problem.status == 404 { Code::NotFound } else { Code::Error };
                let failure = Failure::new(words).with_code(code);
                problem.hint().into_iter().fold(failure, Failure::hint)
            }
        }
    }
}

/// The API for one caller.
pub(crate) struct Api {
    http: reqwest::Client,
    door: Door,
    current: AtomicUsize,
}

impl Api {
    /// Creates a caller; it connects with its first call.
    pub(crate) fn new(door: Door) -> anyhow::Result<Api> {
        // This fails if it is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .pool_idle_timeout(Duration::from_secs(20))
            .tcp_nodelay(true)
            .build()?;
        Ok(Api { http, door, current: AtomicUsize::new(0) })
    }

    /// A caller for each gateway alone, to spread load or to ask every one.
    pub(crate) fn each(&self) -> Vec<Api> {
        let alone = |url: &String| Api {
            http: self.http.clone(),
            door: Door { urls: vec![url.clone()], ..self.door.clone() },
            current: AtomicUsize::new(0),
        };
        self.door.urls.iter().map(alone).collect()
    }

    /// The address of the current gateway.
    pub(crate) fn url(&self) -> &str {
        &self.door.urls[self.current.load(Ordering::Relaxed) % self.door.urls.len()]
    }

    /// Makes the call, repeated and at other gateways as far as it allows.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer, CallError> {
        self.persist(call, async || {
            let response = self.once(call).await?;
            let text = response.text().await.map_err(|e| self.unreachable(call, &e))?;
            let value = serde_json::from_str(&text).unwrap_or_default();
            Ok(Answer { text, value })
        })
        .await
    }

    /// Makes the call, and returns the answer to be read as a stream.
    pub(crate) async fn open(&self, call: &Call) -> Result<reqwest::Response, CallError> {
        self.persist(call, async || {
            let begun = timeout(BEGIN, self.once(call)).await;
            begun.unwrap_or_else(|_| Err(self.no_answer(call.repeatable, format!("nothing within {BEGIN:?}"))))
        })
        .await
    }

    /// Sends further calls to the next gateway.
    pub(crate) fn turn_away(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    async fn persist<T>(&self, call: &Call, once: impl AsyncFn() -> Result<T, Tried>) -> Result<T, CallError> {
        let limit = Instant::now() + PERSEVERANCE + call.waits;
        let mut refusals = 0;
        loop {
            let (error, wait) = match once().await {
                Ok(answer) => return Ok(answer),
                Err(tried) => tried,
            };
            let Some(wait) = wait.filter(|&wait| Instant::now() + wait < limit) else {
                return Err(error);
            };
            if matches!(error, CallError::Unreachable { .. }) {
                refusals += 1;
                // If no gateway can be reached at all, an operator wants to know soon.
                if refusals > 2 * self.door.urls.len() + 3 {
                    return Err(error);
                }
                self.turn_away();
            }
            // A gateway without room for one more endless call has none in a second either; another gateway may have.
            if matches!(&error, CallError::Refused(problem) if call.endless && problem.status == 503) {
                self.turn_away();
            }
            sleep(wait).await;
        }
    }

    fn unreachable(&self, call: &Call, error: &reqwest::Error) -> Tried {
        self.no_answer(call.repeatable || error.is_connect(), root_cause(error))
    }

    fn no_answer(&self, again: bool, why: String) -> Tried {
        let wait = again.then_some(Duration::from_millis(200));
        (CallError::Unreachable { url: self.url().to_owned(), why }, wait)
    }

    /// Makes one try, up to the head of an answer that is not a refusal.
    async fn once(&self, call: &Call) -> Result<reqwest::Response, Tried> {
        let url = self.url();
        let mut request = self
            .http
            .request(call.method.clone(), format!("{url}/api/v1{}", call.path))
            .bearer_auth(&self.door.api_key)
            .query(&call.query);
        if !call.endless {
            request = request.timeout(ANSWER + call.waits);
        }
        if let Some(after) = &call.after {
            request = request.header("Last-Event-ID", after);
        }
        if let Some(tenant) = &self.door.tenant {
            request = request.header("Muster-Tenant", tenant);
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(version) = call.seen {
            request = request.header("If-Match", format!("\"{version}\""));
        }
        if let Some(body) = &call.body {
            request = request.header("Content-Type", call.media).body(body.clone());
        }
        let response = request.send().await.map_err(|e| self.unreachable(call, &e))?;
        let (status, pause) = (response.status(), retry_after(&response));
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|e| self.unreachable(call, &e))?;
        let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let wait = (call.repeatable && busy).then_some(pause);
        Err((CallError::Refused(Box::new(Problem::read(&call.path, status.as_u16(), &text))), wait))
    }
}

/// Why a try failed, and how long to wait before the next one, if another is allowed.
type Tried = (CallError, Option<Duration>);

fn retry_after(response: &reqwest::Response) -> Duration {
    let seconds = response.headers().get("retry-after").and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1)).max(Duration::from_millis(100))
}

/// The innermost cause: "connection refused" says more than "error sending request".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_tells_each_wrong_field() {
        let text = r#"{"title":"Invalid request","status":422,"detail":"2 fields are wrong","code":"invalid_request",
            "errors":[{"pointer":"/topic","detail":"is empty"},{"pointer":"/priority","detail":"unknown"}]}"#;
        let problem = Problem::read("/jobs", 422, text);
        let words = "2 fields are wrong (422, invalid_request)\n  /topic: is empty\n  /priority: unknown";
        assert_eq!(problem.words(), words);
    }

    #[test]
    fn an_answer_that_is_no_problem_document_is_quoted() {
        assert_eq!(Problem::read("/jobs", 502, "bad gateway\n").words(), "bad gateway (502)");
    }

    #[test]
    fn a_name_stays_one_part_of_a_path() {
        assert_eq!(part("reserve[3]"), "reserve[3]");
        assert_eq!(part("a/b?c#d e%é"), "a%2Fb%3Fc%23d%20e%25%C3%A9");
    }

    #[test]
    fn one_wrong_field_is_told_once() {
        let text = r#"{"status":422,"detail":"/topic: is missing","code":"invalid_request",
            "errors":[{"pointer":"/topic","detail":"is missing"}]}"#;
        assert_eq!(Problem::read("/jobs", 422, text).words(), "/topic: is missing (422, invalid_request)");
    }

    #[test]
    fn a_refusal_says_what_to_do_next() {
        let hint = |path: &str, status, code: &str| {
            Problem::read(path, status, &format!(r#"{{"detail":"no","code":"{code}"}}"#)).hint().unwrap_or_default()
        };
        assert!(hint("/jobs/1/cancel", 404, "not_found").starts_with("`muster job list`"));
        assert!(hint("/keys/1", 404, "not_found").starts_with("`muster key list`"));
        assert!(hint("/workers/w/drain", 404, "not_found").starts_with("`muster worker list`"));
        assert!(hint("/workflows/w/runs", 404, "not_found").starts_with("`muster workflow list`"));
        assert!(hint("/jobs/1", 404, "not_found").contains("--tenant"));
        assert!(hint("/jobs", 422, "unknown_field").starts_with("docs/errors/unknown_field.md"));
        assert!(hint("/jobs/1", 409, "job_done").starts_with("docs/errors/job_done.md"));
        assert_eq!(hint("/jobs/1", 404, ""), "", "whoever answered that is no gateway");
    }
}
