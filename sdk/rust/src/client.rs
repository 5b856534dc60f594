//! A client of the gateways' HTTP API.
//!
//! The client knows where the gateways are, and what to do when one does not answer. A repeated call has its effect
//! once, because every submit carries an idempotency key, given or generated. The client honours `Retry-After`. No call
//! waits longer than allowed. Apart from requests about jobs, it does nothing with them.

mod account;
mod error;
mod fields;
mod handle;
mod history;
mod job;
mod pages;
mod request;
mod run;
mod run_request;
mod run_views;
mod runs;
mod transport;
mod workflow;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use muster_domain::JobId;
use reqwest::{Method, Url};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

pub use account::{ApiKey, Identity, NewKey, Status};
pub use error::{ClientError, FieldError, Problem, RunFailure};
pub use handle::{RunHandle, WorkflowHandle};
pub use history::{AttemptRecord, History, HistoryEntry};
pub use job::{Job, JobFailure, JobProgress};
pub use pages::{JobFilter, Pages};
pub use request::{JobRequest, RetryRequest};
pub use run::{Compensation, ItemCounts, Run, RunStep};
pub use run_request::{CancelOptions, RerunRequest, RunFilter, StartOptions};
pub use run_views::{RerunPlan, RunExplanation, RunItem, RunItems, RunTimeline, RunWait, TimelineEntry};
pub use runs::StartedRun;
use transport::{Answer, Call, Repeat, Transport};
pub use workflow::{GraphFormat, Workflow, WorkflowSource, WorkflowSummary, WorkflowVersion};

/// The longest wait that a gateway allows in one call.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Builds a [`Client`].
#[must_use]
pub struct ClientBuilder {
    urls: Vec<String>,
    api_key: Option<String>,
    tenant: Option<String>,
    timeout: Duration,
    connect_timeout: Duration,
    retry_for: Duration,
}

impl ClientBuilder {
    /// Adds a gateway.
    pub fn gateway(mut self, url: impl Into<String>) -> Self {
        self.urls.push(url.into());
        self
    }

    /// Sets the API key.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Sets the tenant to act for, with a key that is valid for all tenants.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Sets how long one try may take, not counting a requested wait; 10 s by default.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how long connecting may take; 2 s by default.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how long to keep trying while gateways are down or busy; 30 s by default, zero for never.
    pub fn retry_for(mut self, span: Duration) -> Self {
        self.retry_for = span;
        self
    }

    /// Returns the client, or what is wrong with its configuration.
    pub fn build(self) -> Result<Client, ClientError> {
        let mut gateways = Vec::new();
        for text in self.urls.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|text| !text.is_empty()) {
            let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            let mut url =
                url.ok_or_else(|| ClientError::Invalid(format!("{text:?} is not a URL like http://host:8081")))?;
            if let Ok(mut path) = url.path_segments_mut() {
                path.pop_if_empty().extend(["api", "v1"]);
            }
            gateways.push(url);
        }
        if gateways.is_empty() {
            return Err(ClientError::Invalid("no gateway was given".to_owned()));
        }
        // If another part of the process has installed a provider already, the client uses that one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .user_agent(concat!("muster-sdk/", env!("CARGO_PKG_VERSION")));
        if gateways.iter().all(|url| url.scheme() == "http") {
            // Without TLS there is nothing to verify, so a machine without certificates is fine.
            http = http.tls_certs_only([]);
        }
        let local = |url: &Url| matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
        if gateways.iter().all(local) {
            http = http.no_proxy();
        }
        let transport = Transport {
            http: http.build().map_err(|e| ClientError::Invalid(e.to_string()))?,
            gateways,
            api_key: self.api_key,
            tenant: self.tenant,
            timeout: self.timeout,
            retry_for: self.retry_for,
            current: AtomicUsize::new(0),
        };
        Ok(Client { transport: Arc::new(transport) })
    }
}

/// Submits jobs and reads their state. Cheap to clone; clones share connections.
///
/// ```no_run
/// use std::time::Duration;
/// use muster_sdk::{Client, JobRequest};
///
/// # async fn example() -> Result<(), muster_sdk::ClientError> {
/// let client = Client::new(["http://127.0.0.1:8081", "http://127.0.0.1:8083"], "mst_key")?;
/// let job = client.submit(JobRequest::new("mail.send").payload(&"ada@example.org")).await?.job;
/// let job = client.wait(job.id, Duration::from_secs(60)).await?;
/// println!("{}: {:?}", job.state, job.result);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
}

/// A submit that was accepted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Submitted {
    /// The job at the time of the gateway's answer.
    pub job: Job,
    /// The job existed already: this key had been used with the same request.
    pub replayed: bool,
    /// Only Redis holds the job so far; it is offered as soon as NATS is back.
    pub bus_deferred: bool,
}

impl Submitted {
    fn read(answer: &Answer) -> Result<Submitted, ClientError> {
        Ok(Submitted { job: answer.json()?, replayed: answer.replayed, bus_deferred: answer.bus_deferred })
    }
}

#[derive(Serialize)]
struct Batch<'a> {
    items: &'a [JobRequest],
}

#[derive(Deserialize)]
struct BatchAnswer {
    items: Vec<job::BatchItem>,
}

#[derive(Serialize)]
struct Cancel<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl Client {
    /// A client of these gateways, with all defaults.
    pub fn new<U: Into<String>>(
        gateways: impl IntoIterator<Item = U>,
        api_key: impl Into<String>,
    ) -> Result<Client, ClientError> {
        gateways.into_iter().fold(Client::builder(), ClientBuilder::gateway).api_key(api_key).build()
    }

    /// A builder for a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            urls: Vec::new(),
            api_key: None,
            tenant: None,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            retry_for: Duration::from_secs(30),
        }
    }

    /// Submits a job. Once this returns `Ok`, the job will reach exactly one end.
    pub async fn submit(&self, request: JobRequest) -> Result<Submitted, ClientError> {
        self.submit_call(request, Duration::ZERO).await
    }

    /// Submits a job and waits up to `wait` (at most 30 s) for its end. Check `job.done`.
    pub async fn submit_wait(&self, request: JobRequest, wait: Duration) -> Result<Submitted, ClientError> {
        self.submit_call(request, wait).await
    }

    async fn submit_call(&self, request: JobRequest, wait: Duration) -> Result<Submitted, ClientError> {
        let mut request = request.ready()?;
        let key = request.idempotency_key.take();
        let mut call = Call::new(Method::POST, ["jobs"]).body(&request)?.idempotency_key(key);
        if !wait.is_zero() {
            call = call.wait(wait.min(LONGEST_WAIT));
        }
        Submitted::read(&self.transport.call(&call).await?)
    }

    /// Submits up to 1,000 jobs at once. Each has its own answer, in order; an error of the whole call means that
    /// nothing was accepted, or that the outcome is unknown.
    pub async fn batch(
        &self,
        requests: impl IntoIterator<Item = JobRequest>,
    ) -> Result<Vec<Result<Job, ClientError>>, ClientError> {
        let items = requests.into_iter().map(JobRequest::ready).collect::<Result<Vec<_>, _>>()?;
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let call = Call::new(Method::POST, ["jobs", "batch"]).body(&Batch { items: &items })?;
        let answer: BatchAnswer = self.transport.call(&call).await?.json()?;
        if answer.items.len() != items.len() {
            let what = format!("{} answers to {} jobs", answer.items.len(), items.len());
            return Err(ClientError::Unexpected(what));
        }
        Ok(answer.items.into_iter().map(job::BatchItem::outcome).collect())
    }

    /// The current state of a job, with payload and result.
    pub async fn get(&self, id: JobId) -> Result<Job, ClientError> {
        self.transport.call(&Call::new(Method::GET, ["jobs".to_owned(), id.to_string()])).await?.json()
    }

    /// A job as soon as it has ended, or its state after `wait` (at most 30 s).
    pub async fn get_wait(&self, id: JobId, wait: Duration) -> Result<Job, ClientError> {
        let call = Call::new(Method::GET, ["jobs".to_owned(), id.to_string()]).wait(wait.min(LONGEST_WAIT));
        self.transport.call(&call).await?.json()
    }

    /// Waits until a job has ended. [`ClientError::NotDone`] when `limit` has passed.
    pub async fn wait(&self, id: JobId, limit: Duration) -> Result<Job, ClientError> {
        self.until_done(limit, |left| self.get_wait(id, left), |job| job.done).await
    }

    /// Asks until the answer is `done`, or `limit` has passed.
    async fn until_done<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        limit: Duration,
        ask: impl Fn(Duration) -> F,
        done: impl Fn(&T) -> bool,
    ) -> Result<T, ClientError> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let asked = Instant::now();
            // While gateways are down, keep trying for the allowed time, and no longer.
            let asking = tokio::time::timeout(left + self.transport.timeout, ask(left));
            match asking.await {
                Ok(Ok(answer)) if done(&answer) => return Ok(answer),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(_)) | Err(_) => {}
            }
            if Instant::now() >= deadline {
                return Err(ClientError::NotDone(limit));
            }
            // A gateway that shuts down answers at once; do not ask it as fast as it answers.
            if asked.elapsed() < Duration::from_millis(100) {
                tokio::time::sleep(Duration::from_millis(100).min(left)).await;
            }
        }
    }

    /// Cancels a job. Repeating is fine; for a job that ended in another way the gateway answers `job_done`.
    pub async fn cancel(&self, id: JobId, reason: Option<&str>) -> Result<Job, ClientError> {
        let path = ["jobs".to_owned(), id.to_string(), "cancel".to_owned()];
        self.transport.call(&Call::new(Method::POST, path).body(&Cancel { reason })?).await?.json()
    }

    /// Runs an ended job again, as a new job that names the old one in `retry_of`. Repeating gives the same new job.
    pub async fn retry(&self, id: JobId, changes: &RetryRequest) -> Result<Submitted, ClientError> {
        let path = ["jobs".to_owned(), id.to_string(), "retry".to_owned()];
        Submitted::read(&self.transport.call(&Call::new(Method::POST, path).body(changes)?).await?)
    }

    /// Deletes an ended job. Deleting a job that is gone is fine.
    pub async fn delete(&self, id: JobId) -> Result<(), ClientError> {
        match self.transport.call(&Call::new(Method::DELETE, ["jobs".to_owned(), id.to_string()])).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Lists jobs, newest first, page by page.
    pub fn list(&self, filter: JobFilter) -> Pages {
        Pages::new(self.clone(), filter.call())
    }

    /// The history of a job: every transition, every attempt.
    pub async fn history(&self, id: JobId) -> Result<History, ClientError> {
        let path = ["jobs".to_owned(), id.to_string(), "history".to_owned()];
        self.transport.call(&Call::new(Method::GET, path)).await?.json()
    }

    /// Sends a `GET` to any path below `/api/v1` and returns the JSON of the answer.
    pub async fn get_json(&self, path: &str, query: &[(&str, &str)]) -> Result<Box<RawValue>, ClientError> {
        let call =
            query.iter().fold(Call::new(Method::GET, parts(path)), |call, (key, value)| call.query(*key, *value));
        self.transport.call(&call).await?.json()
    }

    /// Sends a `POST` to any path below `/api/v1` and returns the JSON of the answer. Not repeated if the answer is
    /// lost.
    pub async fn post_json(&self, path: &str, body: &impl Serialize) -> Result<Box<RawValue>, ClientError> {
        let call = Call::new(Method::POST, parts(path)).body(body)?.repeat(Repeat::Unsent);
        self.transport.call(&call).await?.json()
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateways: Vec<_> = self.transport.gateways.iter().map(Url::as_str).collect();
        f.debug_struct("Client").field("gateways", &gateways).finish_non_exhaustive()
    }
}
