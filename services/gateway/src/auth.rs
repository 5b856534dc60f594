//! Identifies callers by bootstrap keys from the settings and by stored keys.
//!
//! Knows: how a key is presented, checked and cached. Promises: secrets are compared in constant time and are never
//! kept, neither here nor in Redis; a deleted key stops working on every gateway as soon as the broadcast of its
//! deletion arrives, and within [`FRESH`] if that broadcast was lost. Leaves to others: the access that a route
//! requires (`access`), and hiding objects of other tenants (the routes).
//!
//! Stored secrets are 256 random bits, so one round of SHA-256 is the right hash. Argon2 and similar functions slow
//! down attacks with word lists; random secrets are in no word list, and every request would pay the cost.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::extract::FromRequestParts;
use http::{HeaderMap, header, request::Parts};
use muster_domain::{ProblemCode, Tenant, Time, Topic, topic::glob_matches};
use muster_store::{ApiKey, Store};
use muster_telemetry::Secret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{
    access::{Access, Scope, Scopes},
    problem::Problem,
};

/// How long the gateway trusts a cached key before it asks Redis again.
pub(crate) const FRESH: Duration = Duration::from_secs(3);
/// The most keys, and wrong guesses at keys, that the cache holds.
const MOST_REMEMBERED: usize = 10_000;
/// The header that names the tenant for which a key for all tenants acts.
pub(crate) const TENANT_HEADER: &str = "muster-tenant";

/// A key without its secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) name: String,
    /// `None` for a key for all tenants.
    pub(crate) tenant: Option<Tenant>,
    pub(crate) scopes: Scopes,
    /// Topic globs that the key covers; empty means every topic.
    pub(crate) topics: Vec<String>,
    pub(crate) expires_at: Option<Time>,
}

/// The key of a request and the tenant that the request acts for.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) tenant: Tenant,
    /// Whether the request named the tenant in a header.
    pub(crate) named: bool,
    pub(crate) key: Arc<Key>,
}

impl Caller {
    /// Whether the key has this scope.
    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.key.scopes.has(scope)
    }

    /// The tenant whose keys the caller manages. `None` means the keys of all tenants: a key for all tenants made a
    /// request that named no tenant.
    pub(crate) fn manages(&self) -> Option<&Tenant> {
        (self.named || self.key.tenant.is_some()).then_some(&self.tenant)
    }

    /// Refuses access that the key does not have, and names what is missing.
    pub(crate) fn may(&self, access: Access) -> Result<(), Problem> {
        match access {
            Access::Scope(scope) if !self.has(scope) => Err(missing(format!("scope `{scope}`"))),
            Access::Fleet if !self.has(Scope::Admin) => Err(missing(format!("scope `{}`", Scope::Admin))),
            Access::Fleet if self.key.tenant.is_some() => {
                Err(missing("all tenants: this is about the whole fleet, and the key is one tenant's"))
            }
            Access::Open | Access::Key | Access::Scope(_) | Access::Fleet => Ok(()),
        }
    }

    /// Whether the key's globs cover a topic.
    pub(crate) fn covers(&self, topic: &str) -> bool {
        let globs = &self.key.topics;
        globs.is_empty() || globs.iter().any(|glob| glob_matches(glob, topic))
    }

    /// Whether the key is for all topics.
    pub(crate) fn covers_all(&self) -> bool {
        self.key.topics.is_empty()
    }

    /// Refuses topics that the key's globs do not cover.
    pub(crate) fn may_touch(&self, topic: &Topic) -> Result<(), Problem> {
        match self.covers(topic.as_str()) {
            true => Ok(()),
            false => Err(missing(format!("topic `{topic}`"))),
        }
    }
}

fn missing(what: impl fmt::Display) -> Problem {
    Problem::new(ProblemCode::MissingScope, format!("this key lacks {what}"))
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// All bootstrap keys and stored keys.
pub(crate) struct Keys {
    bootstrap: Vec<([u8; 32], Arc<Key>)>,
    store: Store,
    remembered: Mutex<HashMap<String, Remembered>>,
    /// Counts calls of `forget`. An answer from Redis is not cached if this count changed since the question was
    /// sent.
    forgotten: AtomicU64,
}

/// What Redis said about a key id, and when. `key` is `None` if Redis has no such key.
#[derive(Clone)]
struct Remembered {
    since: Instant,
    key: Option<Known>,
}

/// A stored key with the hashes that a presented secret is compared with.
#[derive(Clone)]
struct Known {
    hash: [u8; 32],
    /// The hash of the previous secret, and the time until which that secret works.
    previous: Option<([u8; 32], Time)>,
    key: Arc<Key>,
}

impl Known {
    /// Whether this is the key's secret, or its previous secret before that one's end. Both are always compared, so
    /// that the duration reveals nothing.
    fn has_secret(&self, given: &[u8; 32], now: Time) -> bool {
        let present = bool::from(self.hash.ct_eq(given));
        let before = self.previous.is_some_and(|(hash, until)| bool::from(hash.ct_eq(given)) & !until.reached(now));
        present | before
    }
}

impl Keys {
    /// The bootstrap keys, and the keys in the store.
    pub(crate) fn new(bootstrap: &[Secret], store: Store) -> Keys {
        let everything = |n: usize| Key {
            id: if n == 0 { "bootstrap".to_owned() } else { format!("bootstrap-{}", n + 1) },
            name: "bootstrap key".to_owned(),
            tenant: None,
            scopes: Scopes::all(),
            topics: Vec::new(),
            expires_at: None,
        };
        let bootstrap =
            bootstrap.iter().enumerate().map(|(n, key)| (digest(key.expose()), Arc::new(everything(n)))).collect();
        Keys { bootstrap, store, remembered: Mutex::default(), forgotten: AtomicU64::new(0) }
    }

    /// Identifies the caller from the headers alone.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let presented = presented(headers)?;
        let key = match self.bootstrap_key(presented) {
            Some(key) => key,
            None => self.stored_key(presented).await?,
        };
        Ok(Caller { tenant: acting_for(&key, headers)?, named: headers.contains_key(TENANT_HEADER), key })
    }

    fn bootstrap_key(&self, presented: &str) -> Option<Arc<Key>> {
        let given = digest(presented);
        // Every key is compared, so that the duration reveals nothing.
        let mut found = None;
        for (known, key) in &self.bootstrap {
            if bool::from(known.ct_eq(&given)) {
                found = Some(key.clone());
            }
        }
        found
    }

    async fn stored_key(&self, presented: &str) -> Result<Arc<Key>, Problem> {
        let (id, secret) = split(presented).ok_or_else(unknown)?;
        let known = match self.recall(id) {
            Some(known) => known,
            None => {
                let (since, forgotten) = (Instant::now(), self.forgotten.load(Ordering::Acquire));
                let found = Box::pin(self.store.find_key(id)).await?.as_ref().map(known_key);
                self.remember(id, since, forgotten, found.clone());
                found
            }
        };
        let (known, now) = (known.ok_or_else(unknown)?, self.store.now());
        if !known.has_secret(&digest(secret), now) || known.key.expires_at.is_some_and(|at| at.reached(now)) {
            return Err(unknown());
        }
        Ok(known.key)
    }

    #[expect(clippy::option_option, reason = "not remembered, remembered as unknown, remembered")]
    fn recall(&self, id: &str) -> Option<Option<Known>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(id).filter(|entry| entry.since.elapsed() < FRESH).map(|entry| entry.key.clone())
    }

    /// Caches an answer of Redis to a question sent at `since`, unless `forget` was called after that.
    fn remember(&self, id: &str, since: Instant, forgotten: u64, key: Option<Known>) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if self.forgotten.load(Ordering::Acquire) != forgotten {
            return;
        }
        if remembered.len() >= MOST_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(id.to_owned(), Remembered { since, key });
    }

    /// Removes a changed or deleted key from the cache.
    pub(crate) fn forget(&self, id: &str) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        self.forgotten.fetch_add(1, Ordering::AcqRel);
        remembered.remove(id);
    }
}

/// A new secret: its text for the caller, its hash for the store.
pub(crate) struct Minted {
    pub(crate) id: String,
    pub(crate) text: Secret,
    pub(crate) hash: [u8; 32],
}

/// Mints a key with a new id.
pub(crate) fn mint() -> Minted {
    mint_for(hex::encode(&uuid::Uuid::new_v4().as_bytes()[..6]))
}

/// Mints a secret for a key with this id.
pub(crate) fn mint_for(id: String) -> Minted {
    // Version 4 ids come from the operating system's generator: 122 random bits each.
    let random = || uuid::Uuid::new_v4();
    let mut entropy = Sha256::new();
    for _ in 0..3 {
        entropy.update(random().as_bytes());
    }
    let secret = hex::encode(entropy.finalize());
    Minted { text: Secret::new(format!("mst_{id}_{secret}")), hash: digest(&secret), id }
}

fn known_key(stored: &ApiKey) -> Known {
    let key = Key {
        id: stored.id.clone(),
        name: stored.name.clone(),
        tenant: Some(stored.tenant.clone()),
        scopes: stored.scopes.iter().filter_map(|word| Scope::parse(word)).collect(),
        topics: stored.topics.clone(),
        expires_at: stored.expires_at,
    };
    Known { hash: stored.secret_hash, previous: stored.previous, key: Arc::new(key) }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Splits `mst_<id>_<secret>`. Ids are short and alphanumeric, so that a guess cannot put an odd string into a Redis
/// key.
fn split(presented: &str) -> Option<(&str, &str)> {
    let (id, secret) = presented.strip_prefix("mst_")?.split_once('_')?;
    let plain = !id.is_empty() && id.len() <= 32 && id.bytes().all(|b| b.is_ascii_alphanumeric());
    (plain && !secret.is_empty()).then_some((id, secret))
}

fn unknown() -> Problem {
    Problem::new(ProblemCode::Unauthorized, "this key is not known, has expired or was deleted")
}

fn presented(headers: &HeaderMap) -> Result<&str, Problem> {
    let none = || {
        Problem::new(ProblemCode::Unauthorized, "give a key, as `Authorization: Bearer <key>` or `X-API-Key: <key>`")
    };
    let given = match headers.get(header::AUTHORIZATION) {
        Some(value) => {
            let text = value.to_str().map_err(|_| none())?;
            let (scheme, key) = text.split_once(' ').ok_or_else(none)?;
            if !scheme.eq_ignore_ascii_case("bearer") {
                return Err(none());
            }
            key
        }
        None => headers.get("x-api-key").ok_or_else(none)?.to_str().map_err(|_| none())?,
    };
    Some(given.trim()).filter(|key| !key.is_empty()).ok_or_else(none)
}

fn acting_for(key: &Key, headers: &HeaderMap) -> Result<Tenant, Problem> {
    let asked = match headers.get(TENANT_HEADER) {
        None => return Ok(key.tenant.clone().unwrap_or_default()),
        Some(value) => value.to_str().unwrap_or_default(),
    };
    let tenant = Tenant::parse(asked)
        .map_err(|why| Problem::field(ProblemCode::InvalidRequest, "/header/Muster-Tenant", why.to_string()))?;
    match &key.tenant {
        Some(own) if *own != tenant => Err(missing("all tenants: it acts for its own only")),
        _ => Ok(tenant),
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Problem> {
        // The front door inserts the caller for every route that is not open.
        parts.extensions.get::<Caller>().cloned().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::access::Operation;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn keys_are_presented_in_two_ways() {
        assert_eq!(presented(&with("authorization", "Bearer abc")).unwrap(), "abc");
        assert_eq!(presented(&with("authorization", "bearer  abc ")).unwrap(), "abc");
        assert_eq!(presented(&with("x-api-key", "abc")).unwrap(), "abc");
        let refused = [
            HeaderMap::new(),
            with("authorization", "abc"),
            with("authorization", "Basic abc"),
            with("authorization", "Bearer "),
            with("x-api-key", ""),
        ];
        for headers in refused {
            assert_eq!(presented(&headers).unwrap_err().code, ProblemCode::Unauthorized, "{headers:?}");
        }
    }

    #[test]
    fn minted_keys_split_into_what_is_stored() {
        let minted = mint();
        let (id, secret) = split(minted.text.expose()).unwrap();
        assert_eq!(id, minted.id);
        assert_eq!(secret.len(), 64);
        assert_eq!(digest(secret), minted.hash);
        assert_ne!(mint().hash, minted.hash);
        for odd in ["mst_", "mst__x", "mst_a:b_x", "abc", "mst_id", &format!("mst_{}_x", "a".repeat(33))] {
            assert!(split(odd).is_none(), "{odd}");
        }
    }

    #[test]
    fn a_secret_that_was_replaced_works_until_its_time() {
        let key = Key {
            id: "k".into(),
            name: String::new(),
            tenant: None,
            scopes: Scopes::all(),
            topics: vec![],
            expires_at: None,
        };
        let known = Known { hash: digest("new"), previous: Some((digest("old"), Time(100))), key: Arc::new(key) };
        for (secret, now, works) in
            [("new", 1, true), ("new", 500, true), ("old", 99, true), ("old", 100, false), ("x", 1, false)]
        {
            assert_eq!(known.has_secret(&digest(secret), Time(now)), works, "{secret} at {now}");
        }
    }

    #[test]
    fn a_tenants_key_acts_for_no_other_tenant() {
        let key = |tenant: Option<&str>| Key {
            id: "k".into(),
            name: String::new(),
            tenant: tenant.map(|t| Tenant::parse(t).unwrap()),
            scopes: Scopes::all(),
            topics: vec![],
            expires_at: None,
        };
        let for_b = with(TENANT_HEADER, "b");
        assert_eq!(acting_for(&key(None), &for_b).unwrap().as_str(), "b");
        assert_eq!(acting_for(&key(None), &HeaderMap::new()).unwrap().as_str(), "default");
        assert_eq!(acting_for(&key(Some("b")), &for_b).unwrap().as_str(), "b");
        assert_eq!(acting_for(&key(Some("a")), &HeaderMap::new()).unwrap().as_str(), "a");
        assert_eq!(acting_for(&key(Some("a")), &for_b).unwrap_err().code, ProblemCode::MissingScope);
        assert_eq!(acting_for(&key(None), &with(TENANT_HEADER, "A b")).unwrap_err().status(), 422);
    }

    #[test]
    fn what_is_about_the_whole_fleet_is_for_keys_of_all_tenants() {
        let caller = |tenant: Option<&str>| {
            let tenant = tenant.map(|t| Tenant::parse(t).unwrap());
            let key = Key {
                id: "k".into(),
                name: String::new(),
                tenant: tenant.clone(),
                scopes: Scopes::all(),
                topics: vec![],
                expires_at: None,
            };
            Caller { tenant: tenant.unwrap_or_default(), named: false, key: Arc::new(key) }
        };
        assert!(caller(None).may(Access::Fleet).is_ok());
        let refused = caller(Some("acme")).may(Access::Fleet).unwrap_err();
        assert_eq!(refused.status(), 403);
        assert!(refused.detail.contains("all tenants"), "{}", refused.detail);
    }

    #[test]
    fn every_operation_asks_for_exactly_its_scope() {
        for operation in Operation::ALL {
            let access = operation.access();
            for scope in Scope::ALL {
                let key = Key {
                    id: "k".into(),
                    name: String::new(),
                    tenant: None,
                    scopes: [scope].into_iter().collect(),
                    topics: vec![],
                    expires_at: None,
                };
                let caller = Caller { tenant: Tenant::default(), named: false, key: Arc::new(key) };
                let fine = match access {
                    Access::Scope(asked) => asked == scope,
                    Access::Fleet => scope == Scope::Admin,
                    Access::Open | Access::Key => true,
                };
                let answer = caller.may(access);
                assert_eq!(answer.is_ok(), fine, "{operation:?} with {scope}");
                if let (Err(problem), Access::Scope(asked)) = (answer, access) {
                    assert_eq!(problem.status(), 403);
                    assert!(problem.detail.contains(asked.as_str()), "{}", problem.detail);
                }
            }
        }
    }
}
