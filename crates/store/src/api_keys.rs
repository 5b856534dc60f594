//! API keys: what a caller may do, found by the key's id. Only hashes of secrets are stored.

use std::time::Duration;

use muster_domain::{Tenant, Time};
use serde::{Deserialize, Serialize};

use crate::{Store, StoreError, keys, router::Command, script::list, scripts};

/// A stored key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The public part of `mst_<id>_<secret>`.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// The tenant that the key belongs to.
    pub tenant: Tenant,
    /// The scopes of the key.
    pub scopes: Vec<String>,
    /// Patterns of the topics that the key may use; empty = all.
    pub topics: Vec<String>,
    /// SHA-256 of the secret part.
    pub secret_hash: [u8; 32],
    /// When the key was created.
    pub created_at: Time,
    /// When the key expires.
    pub expires_at: Option<Time>,
    /// The SHA-256 of the previous secret, and until when that secret still works.
    pub previous: Option<([u8; 32], Time)>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    name: String,
    tenant: String,
    scopes: Vec<String>,
    topics: Vec<String>,
    secret_hash: String,
    created_at: u64,
    expires_at: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    previous_hash: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    previous_until: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn hash_of(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash).ok()?;
    Some(hash)
}

fn text_of(key: &ApiKey) -> Result<Vec<u8>, StoreError> {
    let stored = Stored {
        name: key.name.clone(),
        tenant: key.tenant.to_string(),
        scopes: key.scopes.clone(),
        topics: key.topics.clone(),
        secret_hash: hex::encode(key.secret_hash),
        created_at: key.created_at.0,
        expires_at: key.expires_at.map_or(0, |t| t.0),
        previous_hash: key.previous.map(|(hash, _)| hex::encode(hash)).unwrap_or_default(),
        previous_until: key.previous.map_or(0, |(_, until)| until.0),
    };
    serde_json::to_vec(&stored).map_err(|e| StoreError::Decode(e.to_string()))
}

fn read(id: &str, raw: &[u8]) -> Result<ApiKey, StoreError> {
    let wrong = || StoreError::Decode("an API key".into());
    let stored: Stored = serde_json::from_slice(raw).map_err(|_| wrong())?;
    Ok(ApiKey {
        id: id.to_owned(),
        name: stored.name,
        tenant: Tenant::parse(&stored.tenant).map_err(|_| wrong())?,
        scopes: stored.scopes,
        topics: stored.topics,
        secret_hash: hash_of(&stored.secret_hash).ok_or_else(wrong)?,
        created_at: Time(stored.created_at),
        expires_at: Time(stored.expires_at).some(),
        previous: hash_of(&stored.previous_hash).zip(Time(stored.previous_until).some()),
    })
}

impl Store {
    /// Stores a key, then adds it to the list: a key that is not listed still works. Repeating is harmless. After an
    /// error the key may be stored and not listed.
    pub async fn put_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        let text = text_of(key)?;
        let place = keys::api_key(&key.id);
        let mut set = redis::cmd("SET");
        set.arg(place.as_bytes()).arg(text);
        self.router().call(Command::plain(set)).await?;
        let index = keys::api_keys();
        let mut add = redis::cmd("SADD");
        add.arg(index.as_bytes()).arg(&key.id);
        self.router().call(Command::plain(add)).await.map(|_| ())
    }

    /// Replaces a key in one step if it is still as it was read; false if it was changed or deleted in the meantime. A
    /// repetition of the same call, whose first answer was lost, returns true as well.
    pub async fn swap_key(&self, read: &ApiKey, key: &ApiKey) -> Result<bool, StoreError> {
        let call = scripts::api_key::Swap { key: keys::api_key(&read.id), read: text_of(read)?, text: text_of(key)? };
        if self.run(call).await?.swapped == 1 {
            return Ok(true);
        }
        Ok(self.find_key(&key.id).await?.as_ref() == Some(key))
    }

    /// Finds a key by its id.
    pub async fn find_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError> {
        let place = keys::api_key(id);
        let mut cmd = redis::cmd("GET");
        cmd.arg(place.as_bytes());
        match self.router().call(Command::plain(cmd)).await? {
            redis::Value::Nil => Ok(None),
            value => read(id, &crate::script::bytes(value)?).map(Some),
        }
    }

    /// All keys, or those of one tenant, by id.
    pub async fn list_keys(&self, tenant: Option<&Tenant>) -> Result<Vec<ApiKey>, StoreError> {
        let index = keys::api_keys();
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(index.as_bytes());
        let mut ids = list(self.router().call(Command::plain(cmd)).await?)?;
        ids.sort();
        let mut found = Vec::new();
        for id in ids.iter().filter_map(|id| std::str::from_utf8(id).ok()) {
            found.extend(self.find_key(id).await?.filter(|key| tenant.is_none_or(|t| *t == key.tenant)));
        }
        Ok(found)
    }

    /// How many keys that still work expire within this time. One read for the list of keys, and one pipeline.
    pub async fn count_keys_expiring(&self, within: Duration) -> Result<u64, StoreError> {
        let index = keys::api_keys();
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(index.as_bytes());
        let ids = list(self.router().call(Command::plain(cmd)).await?)?;
        let get = |id: &Vec<u8>| {
            let mut get = redis::cmd("GET");
            get.arg(keys::api_key(&String::from_utf8_lossy(id)).as_bytes());
            Command::plain(get)
        };
        let (now, mut expiring) = (self.now(), 0);
        for reply in self.router().many(ids.iter().map(get).collect()).await {
            let value = reply?;
            if value == redis::Value::Nil {
                continue;
            }
            let until = read("", &crate::script::bytes(value)?)?.expires_at;
            expiring += u64::from(until.is_some_and(|until| until > now && until <= now + within));
        }
        Ok(expiring)
    }

    /// Removes a key, then its entry in the list; false if there was none. Repeating is harmless, and completes a call
    /// that failed half-way.
    pub async fn delete_key(&self, id: &str) -> Result<bool, StoreError> {
        let place = keys::api_key(id);
        let mut del = redis::cmd("DEL");
        del.arg(place.as_bytes());
        let gone = crate::script::number::<u64>(&self.router().call(Command::plain(del)).await?)?;
        let index = keys::api_keys();
        let mut rem = redis::cmd("SREM");
        rem.arg(index.as_bytes()).arg(id);
        self.router().call(Command::plain(rem)).await?;
        Ok(gone > 0)
    }
}
