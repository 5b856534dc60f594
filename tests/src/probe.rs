//! A client that shows everything: the raw status, headers and JSON of one gateway. The SDK's client hides retries
//! and errors, which these tests check.

use std::{sync::OnceLock, time::Duration};

use muster_testkit::until;
use reqwest::{Method, StatusCode, header::HeaderMap};
use serde_json::{Value, json};

/// How long a store may stand still on a busy machine, and a request be sent again because of it.
const STANDS_STILL: Duration = Duration::from_secs(60);
/// Calls that may be repeated without a key: a second one changes nothing.
const REPEATABLE: [&str; 3] = ["/cancel", "/pause", "/resume"];

/// The HTTP client that all tests share.
pub(crate) fn http() -> &'static reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder().timeout(Duration::from_secs(60)).pool_max_idle_per_host(0).build().expect("a client")
    })
}

/// The answer of a gateway.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The HTTP headers.
    pub headers: HeaderMap,
    /// The JSON body; null if the body is not JSON.
    pub body: Value,
    /// The body as text.
    pub text: String,
}

impl Answer {
    /// A field of the job or problem in the body.
    pub fn field(&self, name: &str) -> &Value {
        &self.body[name]
    }

    /// The id of the job.
    pub fn id(&self) -> String {
        self.body["id"].as_str().unwrap_or_else(|| panic!("no id in {}", self.text)).to_owned()
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// One gateway, called with one key.
#[derive(Clone, Debug)]
pub struct Probe {
    pub(crate) base: String,
    key: Option<String>,
    tenant: Option<String>,
}

impl Probe {
    /// Creates a client of the gateway at this address.
    pub fn new(base: String, key: String) -> Probe {
        Probe { base, key: Some(key), tenant: None }
    }

    /// The same gateway with another key, or none.
    pub fn with_key(&self, key: Option<&str>) -> Probe {
        Probe { key: key.map(str::to_owned), ..self.clone() }
    }

    /// The same gateway, acting for a tenant.
    pub fn for_tenant(&self, tenant: &str) -> Probe {
        Probe { tenant: Some(tenant.to_owned()), ..self.clone() }
    }

    /// Sends any request; `path` starts at the root. `Err` if there was no answer at all.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer, reqwest::Error> {
        let mut request = self.signed(http().request(method, format!("{}{path}", self.base)));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body);
        }
        let answer = request.send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let text = answer.text().await?;
        Ok(Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::Null), text })
    }

    /// Adds the key and the tenant to a request.
    pub(crate) fn signed(&self, mut request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(tenant) = &self.tenant {
            request = request.header("Muster-Tenant", tenant);
        }
        request
    }

    /// GET below `/api/v1`; again, as any client does, while a store does not answer.
    pub async fn get(&self, path: &str) -> Answer {
        let ask = async || self.send(Method::GET, &format!("/api/v1{path}"), &[], None).await.expect("an answer");
        until(STANDS_STILL, &format!("a store to answer {path}"), async || Some(ask().await).filter(is_told)).await
    }

    /// POST below `/api/v1`; again while a store does not answer, if that is harmless.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let (path, body) = (format!("/api/v1{path}"), body.to_string().into_bytes());
        let ask = async || self.send(Method::POST, &path, &[], Some(body.clone())).await.expect("an answer");
        if !REPEATABLE.iter().any(|call| path.ends_with(call)) {
            return ask().await;
        }
        until(STANDS_STILL, &format!("a store to answer {path}"), async || Some(ask().await).filter(is_told)).await
    }

    /// Submits a job that must be accepted, and returns its id.
    pub async fn submit(&self, body: Value) -> String {
        let answer = self.post("/jobs", &body).await;
        assert!(answer.status.is_success(), "{} {}", answer.status, answer.text);
        answer.id()
    }

    /// Submits `n` equal jobs in batches, and returns their ids.
    pub async fn submit_many(&self, n: usize, job: &Value) -> Vec<String> {
        let mut ids = Vec::with_capacity(n);
        while ids.len() < n {
            let items: Vec<&Value> = (ids.len()..n.min(ids.len() + 500)).map(|_| job).collect();
            let answer = self.post("/jobs/batch", &json!({ "items": items })).await;
            assert!(answer.status.is_success(), "{} {}", answer.status, answer.text);
            for item in answer.body["items"].as_array().expect("items") {
                let id = item["job"]["id"].as_str();
                ids.push(id.unwrap_or_else(|| panic!("not accepted: {item}")).to_owned());
            }
        }
        ids
    }

    /// The current job.
    pub async fn job(&self, id: &str) -> Value {
        self.get(&format!("/jobs/{id}")).await.body
    }

    /// Waits until the job is in this state, and returns it.
    pub async fn reaches(&self, id: &str, state: &str, within: Duration) -> Value {
        until(within, &format!("{id} to be {state}"), async || {
            let job = self.job(id).await;
            let now = job["state"].as_str().unwrap_or_default().to_owned();
            assert!(now == state || job["done"] != json!(true), "{id} ended {now} instead of {state}: {job}");
            (now == state).then_some(job)
        })
        .await
    }

    /// Waits until the job has ended in any state, and returns it.
    pub async fn ended(&self, id: &str, within: Duration) -> Value {
        until(within, &format!("{id} to end"), async || {
            let job = self.get(&format!("/jobs/{id}?wait_ms=5000")).await.body;
            (job["done"] == json!(true)).then_some(job)
        })
        .await
    }

    /// The ids of all jobs that a query selects, page by page.
    pub async fn listed(&self, query: &str) -> Vec<String> {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/jobs?limit=500&{query}{cursor}")).await;
            assert_eq!(page.status, 200, "{}", page.text);
            ids.extend(page.body["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return ids,
            }
        }
    }

    /// The job's transitions.
    pub async fn history(&self, id: &str) -> Value {
        self.get(&format!("/jobs/{id}/history")).await.body
    }
}

/// Whether the answer says more than that a store did not answer.
fn is_told(answer: &Answer) -> bool {
    answer.body["code"] != "store_unavailable"
}

/// The sum of all series of a metric in a scrape.
pub fn metric_sum(scrape: &str, name: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        (rest.starts_with('{') || rest.starts_with(' ')).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    };
    scrape.lines().filter_map(value).sum()
}
