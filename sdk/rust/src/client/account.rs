//! What is not about jobs: who we are, how the gateway is, and keys.

use muster_domain::Time;
use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::{
    Client,
    error::ClientError,
    transport::{Call, Repeat},
};

/// How a gateway is.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Status {
    /// `ok`, or what is wrong.
    pub status: String,
    /// Its release.
    pub version: String,
    /// Which replica answered.
    pub instance: String,
}

/// Whom the gateway takes us for.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Identity {
    /// The key's id.
    pub key_id: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// The tenant it acts for.
    pub tenant: Option<String>,
    /// Whether it could act for any other.
    pub all_tenants: bool,
    /// What it may do.
    pub scopes: Vec<String>,
    /// On which topics; all if empty.
    pub topics: Vec<String>,
    /// Until when it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// A key to be made.
#[derive(Clone, Debug, Default, Serialize)]
#[must_use]
pub struct NewKey {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    scopes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    topics: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

impl NewKey {
    /// A key that may do nothing yet.
    pub fn new(name: impl Into<String>) -> NewKey {
        NewKey { name: name.into(), ..NewKey::default() }
    }

    /// For this tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// It may do this: `submit`, `read`, `payloads`, `control`, `worker`, `approve`, `policy`, `admin`.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// Only on topics like this; `*` stands for anything.
    pub fn topic(mut self, glob: impl Into<String>) -> Self {
        self.topics.push(glob.into());
        self
    }

    /// Until this moment.
    pub fn expires_at(mut self, moment: Time) -> Self {
        self.expires_at = Some(moment.rfc3339());
        self
    }
}

/// A key as the gateway shows it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ApiKey {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its tenant; none if it is for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it may do.
    pub scopes: Vec<String>,
    /// On which topics; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Until when it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The secret itself, `mst_<id>_<secret>`: only in the answer that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Deserialize)]
struct Keys {
    items: Vec<ApiKey>,
}

impl Client {
    /// How the gateway is. Needs no key.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.transport.call(&Call::new(Method::GET, ["status"])).await?.json()
    }

    /// Whom the gateway takes us for.
    pub async fn whoami(&self) -> Result<Identity, ClientError> {
        self.transport.call(&Call::new(Method::GET, ["whoami"])).await?.json()
    }

    /// Makes a key. Its secret is in this answer and nowhere else. Not repeated when the answer is lost.
    pub async fn create_key(&self, key: &NewKey) -> Result<ApiKey, ClientError> {
        let call = Call::new(Method::POST, ["keys"]).body(key)?.repeat(Repeat::Unsent);
        self.transport.call(&call).await?.json()
    }

    /// All keys that ours may see.
    pub async fn keys(&self) -> Result<Vec<ApiKey>, ClientError> {
        let keys: Keys = self.transport.call(&Call::new(Method::GET, ["keys"])).await?.json()?;
        Ok(keys.items)
    }

    /// Deletes a key. Deleting one that is gone is fine.
    pub async fn delete_key(&self, id: &str) -> Result<(), ClientError> {
        match self.transport.call(&Call::new(Method::DELETE, ["keys", id])).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
