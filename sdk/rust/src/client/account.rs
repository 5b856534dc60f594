//! Calls that are not about jobs: identity, gateway status, and API keys.

use muster_domain::Time;
use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::{
    Client,
    error::ClientError,
    transport::{Call, Repeat},
};

/// The status of a gateway.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Status {
    /// `ok`, or what is wrong.
    pub status: String,
    /// The gateway's release.
    pub version: String,
    /// The replica that answered.
    pub instance: String,
}

/// The identity that the gateway sees for this client's key.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Identity {
    /// The id of the API key.
    pub key_id: Option<String>,
    /// The name of the API key.
    pub name: Option<String>,
    /// The tenant that the key acts for.
    pub tenant: Option<String>,
    /// Whether the key could act for any other tenant.
    pub all_tenants: bool,
    /// The scopes of the key.
    pub scopes: Vec<String>,
    /// The topics that the key is limited to; all if empty.
    pub topics: Vec<String>,
    /// When the key expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// An API key to be created.
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
    /// A key without scopes.
    pub fn new(name: impl Into<String>) -> NewKey {
        NewKey { name: name.into(), ..NewKey::default() }
    }

    /// Sets the key's tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Adds a scope: `submit`, `read`, `payloads`, `control`, `worker`, `approve`, `policy`, `admin`.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// Limits the key to topics that match this pattern; `*` matches anything.
    pub fn topic(mut self, glob: impl Into<String>) -> Self {
        self.topics.push(glob.into());
        self
    }

    /// Sets when the key expires.
    pub fn expires_at(mut self, moment: Time) -> Self {
        self.expires_at = Some(moment.rfc3339());
        self
    }
}

/// An API key as the gateway shows it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ApiKey {
    /// The key's id.
    pub id: String,
    /// The key's name.
    pub name: String,
    /// The key's tenant; none if the key is for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The scopes of the key.
    pub scopes: Vec<String>,
    /// The topics that the key is limited to; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// When the key was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// When the key expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The secret itself, `mst_<id>_<secret>`: only in the answer to its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Deserialize)]
struct Keys {
    items: Vec<ApiKey>,
}

impl Client {
    /// The status of the gateway. Needs no key.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.transport.call(&Call::new(Method::GET, ["status"])).await?.json()
    }

    /// The identity that the gateway sees for this client's key.
    pub async fn whoami(&self) -> Result<Identity, ClientError> {
        self.transport.call(&Call::new(Method::GET, ["whoami"])).await?.json()
    }

    /// Creates a key. Its secret is in this answer and nowhere else. Not repeated if the answer is lost.
    pub async fn create_key(&self, key: &NewKey) -> Result<ApiKey, ClientError> {
        let call = Call::new(Method::POST, ["keys"]).body(key)?.repeat(Repeat::Unsent);
        self.transport.call(&call).await?.json()
    }

    /// All keys that this client's key may see.
    pub async fn keys(&self) -> Result<Vec<ApiKey>, ClientError> {
        let keys: Keys = self.transport.call(&Call::new(Method::GET, ["keys"])).await?.json()?;
        Ok(keys.items)
    }

    /// Deletes a key. Deleting a key that is gone is fine.
    pub async fn delete_key(&self, id: &str) -> Result<(), ClientError> {
        match self.transport.call(&Call::new(Method::DELETE, ["keys", id])).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
