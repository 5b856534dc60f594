//! Starts gateways and sends requests to them.

use std::collections::BTreeMap;

use muster_chassis::{Chassis, settings::load};
use muster_testkit::{nats, redis};
use reqwest::{Method, StatusCode, header::HeaderMap};
use serde_json::Value;

pub(crate) const KEY: &str = "bootstrap-key-of-the-tests";

/// A gateway in this process.
pub(crate) struct Gate {
    url: String,
    client: reqwest::Client,
    key: Option<String>,
    tenant: String,
    pub(crate) chassis: Chassis,
}

/// The answer of a gateway.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Answer {
    /// The code of a problem.
    pub(crate) fn code(&self) -> &str {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        self.json["code"].as_str().expect("a problem has a code")
    }

    /// The pointers of a problem.
    pub(crate) fn pointers(&self) -> Vec<&str> {
        let errors = self.json["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        errors.iter().map(|error| error["pointer"].as_str().expect("an error has a pointer")).collect()
    }
}

/// A tenant that no other test uses.
pub(crate) fn fresh_tenant() -> String {
    format!("t{}", uuid::Uuid::new_v4().simple())
}

impl Gate {
    /// Starts a gateway over the servers that all tests share, for a tenant of its own.
    pub(crate) async fn start(settings: &[(&str, &str)]) -> Gate {
        let (redis, nats) = (redis().await.url(), nats().await.url());
        Gate::over(&redis, &nats, settings).await
    }

    /// Starts a gateway over these servers.
    pub(crate) async fn over(redis: &str, nats: &str, settings: &[(&str, &str)]) -> Gate {
        Gate::try_over(redis, nats, settings).await.expect("the gateway starts")
    }

    /// The same, but returns the error if the gateway refuses to start.
    pub(crate) async fn try_over(redis: &str, nats: &str, settings: &[(&str, &str)]) -> anyhow::Result<Gate> {
        // This fails if another test has installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut env: BTreeMap<String, String> = [
            ("REDIS_URL", redis),
            ("NATS_URL", nats),
            ("MUSTER_HTTP_ADDR", "127.0.0.1:0"),
            ("MUSTER_API_KEY", KEY),
            ("API_RATE_LIMIT_RPS", "0"),
            // There is no scheduler, so submits are never handled.
            ("MUSTER_MAX_SUBMIT_LAG", "0"),
            ("MUSTER_INSTANCE_ID", "gateway-of-the-tests"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        env.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let values = load(muster_gateway::SERVICE, muster_gateway::SETTINGS, &[], &env).expect("good settings").values;
        let chassis = Chassis::new(muster_gateway::SERVICE, values);
        let addr = muster_gateway::start(&chassis).await?;
        // The first step of `run_until_stopped`.
        chassis.loops.freeze();
        Ok(Gate {
            url: format!("http://{addr}"),
            client: reqwest::Client::new(),
            key: Some(KEY.to_owned()),
            tenant: fresh_tenant(),
            chassis,
        })
    }

    /// The same gateway, called with another key.
    pub(crate) fn with_key(&self, key: Option<&str>) -> Gate {
        Gate { key: key.map(str::to_owned), tenant: String::new(), ..self.again() }
    }

    /// The same gateway, called for another tenant.
    pub(crate) fn for_tenant(&self, tenant: &str) -> Gate {
        Gate { tenant: tenant.to_owned(), ..self.again() }
    }

    /// The address on which the gateway listens.
    pub(crate) fn addr(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.tenant
    }

    fn again(&self) -> Gate {
        Gate {
            url: self.url.clone(),
            client: self.client.clone(),
            key: self.key.clone(),
            tenant: self.tenant.clone(),
            chassis: self.chassis.clone(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], Some(body.to_string().into())).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], None).await
    }

    /// A submit with an idempotency key.
    pub(crate) async fn post_keyed(&self, path: &str, key: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        self.send(Method::POST, path, &headers, Some(body.to_string().into())).await
    }

    fn request(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if !self.tenant.is_empty() {
            request = request.header("muster-tenant", &self.tenant);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request
    }

    /// Sends a GET whose answer is read as a stream.
    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> reqwest::Response {
        self.request(Method::GET, path, headers).send().await.expect("an answer")
    }

    /// Sends any request.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Answer {
        let mut request = self.request(method, path, headers);
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.expect("the gateway answers");
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.expect("a whole answer");
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status, headers, text, json }
    }

    /// Creates a stored key and returns its text.
    pub(crate) async fn make_key(&self, scopes: &[&str], topics: &[&str]) -> String {
        let body = serde_json::json!({"name": "test", "tenant": self.tenant, "scopes": scopes, "topics": topics});
        let made = self.post("/api/v1/keys", &body).await;
        assert_eq!(made.status, 201, "{}", made.text);
        made.json["key"].as_str().expect("the secret").to_owned()
    }

    /// How many jobs the tenant has.
    pub(crate) async fn count_jobs(&self) -> usize {
        let page = self.get("/api/v1/jobs?limit=500").await;
        assert_eq!(page.status, 200, "{}", page.text);
        page.json["items"].as_array().expect("items").len()
    }
}
