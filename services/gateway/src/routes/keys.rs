//! API keys: create, list without secrets, rotate the secret, delete.

use std::time::Duration;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use muster_domain::{Act, ProblemCode, Tenant};
use muster_store::ApiKey;

use super::{Named, Submitter, json};
use crate::{
    access::Scope,
    auth::{Caller, mint, mint_for},
    body::{Posted, SINGLE},
    json::{Faults, Object},
    limits::{MOST_GLOB, MOST_GLOBS, MOST_KEY_NAME, MOST_STARS, OVERLAP_MS},
    problem::Problem,
    query::Params,
    schema,
    state::Gateway,
    view::{self, Json},
};

/// How long the old secret keeps working by default.
const USUAL_OVERLAP_MS: u64 = 3_600_000;

/// Create a key. Only this answer contains its secret, so `Idempotency-Key` is refused here.
#[utoipa::path(
    post, path = "/api/v1/keys", tag = "keys",
    request_body = schema::KeyRequest,
    responses(
        (status = 201, description = "The key, with its secret", body = schema::NewKey),
        (status = "4XX", description = "Refused", body = schema::Problem),
    )
)]
pub(super) async fn create(
    State(gateway): State<Gateway>,
    Submitter { caller, key: repeat, .. }: Submitter,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    if repeat.is_some() {
        let why = "a secret is shown once, so this request cannot be repeated by key";
        return Err(Problem::field(ProblemCode::UnsupportedField, "/header/Idempotency-Key", why));
    }
    let asked = read(&body.bytes, &caller)?;
    // Redis's clock decides when a key expires, so the creation time comes from it too.
    let created_at = gateway.flow.store.ping().await?;
    let minted = mint();
    let key = ApiKey { id: minted.id.clone(), secret_hash: minted.hash, created_at, ..asked };
    gateway.tell(about(gateway.act(&caller, "key_create"), &key)).await?;
    gateway.flow.store.put_key(&key).await?;
    changed(&gateway, &key).await;
    tracing::info!(event = "key_made", key = key.id, tenant = %key.tenant, by = caller.key.id, "a key was made");
    let body = view::document(|json| {
        write(json, &key);
        json.text("key", minted.text.expose());
    });
    Ok(json(StatusCode::CREATED, body))
}

/// List keys without their secrets.
/// These are the keys of the tenant, or of all tenants if a key for all tenants sends no `Muster-Tenant`.
#[utoipa::path(
    get, path = "/api/v1/keys", tag = "keys",
    responses((status = 200, description = "The keys", body = schema::KeyList))
)]
pub(super) async fn list(State(gateway): State<Gateway>, caller: Caller, params: Params) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let keys = gateway.flow.store.list_keys(caller.manages()).await?;
    let body = view::document(|json| {
        json.list("items", |json| keys.iter().for_each(|key| json.object(None, |json| write(json, key))));
    });
    Ok(json(StatusCode::OK, body))
}

/// Delete a key.
/// It stops working at once on this gateway, and within a second on every other gateway, or within three seconds if the
/// broadcast of the deletion was lost. A key for all tenants finds any key by its id, unless it sends `Muster-Tenant`.
#[utoipa::path(
    delete, path = "/api/v1/keys/{id}", tag = "keys",
    params(("id" = String, Path, description = "The key's id: the middle part of `mst_<id>_<secret>`")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "No such key, or not yours", body = schema::Problem),
    )
)]
pub(super) async fn delete(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(id): Named,
    params: Params,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let key = find(&gateway, &caller, &id).await?;
    let store = &gateway.flow.store;
    gateway.tell(about(gateway.act(&caller, "key_delete"), &key)).await?;
    store.delete_key(&key.id).await?;
    changed(&gateway, &key).await;
    tracing::info!(event = "key_deleted", key = key.id, tenant = %key.tenant, by = caller.key.id, "a key was deleted");
    Ok(json(StatusCode::NO_CONTENT, Bytes::new()))
}

/// Give a key a new secret.
/// The old secret keeps working for `overlap_ms`, an hour unless given, so that its users have time to change; 0 ends
/// it at once, as a delete does. A key for all tenants finds any key by its id, unless it sends `Muster-Tenant`.
#[utoipa::path(
    post, path = "/api/v1/keys/{id}/rotate", tag = "keys",
    params(("id" = String, Path, description = "The key's id: the middle part of `mst_<id>_<secret>`")),
    request_body = schema::RotateRequest,
    responses(
        (status = 200, description = "The key, with its new secret", body = schema::NewKey),
        (status = 404, description = "No such key, or not yours", body = schema::Problem),
        (status = "4XX", description = "Refused", body = schema::Problem),
    )
)]
pub(super) async fn rotate(
    State(gateway): State<Gateway>,
    caller: Caller,
    Named(id): Named,
    params: Params,
    body: Posted<SINGLE>,
) -> Result<Response, Problem> {
    params.finish(Faults::default())?;
    let overlap = read_overlap(&body.bytes)?;
    let read = find(&gateway, &caller, &id).await?;
    // A client with the new secret can do everything that the key allows, so the caller must be allowed to do it too.
    within(&caller, &read.scopes, &read.topics)?;
    let now = gateway.flow.store.ping().await?;
    let minted = mint_for(read.id.clone());
    let until = now + Duration::from_millis(overlap);
    let key = ApiKey { secret_hash: minted.hash, previous: Some((read.secret_hash, until)), ..read.clone() };
    gateway.tell(about(gateway.act(&caller, "key_rotate"), &key).with("overlap_ms", overlap)).await?;
    if !gateway.flow.store.swap_key(&read, &key).await? {
        return Err(Problem::new(ProblemCode::NotFound, "the key was deleted, or rotated by somebody else, meanwhile"));
    }
    changed(&gateway, &key).await;
    tracing::info!(event = "key_rotated", key = key.id, tenant = %key.tenant, by = caller.key.id, "a key has a new secret");
    let body = view::document(|json| {
        write(json, &key);
        json.moment("previous_until", Some(until));
        json.text("key", minted.text.expose());
    });
    Ok(json(StatusCode::OK, body))
}

/// Makes every gateway drop the key from its cache, this one first.
async fn changed(gateway: &Gateway, key: &ApiKey) {
    gateway.keys.forget(&key.id);
    gateway.flow.tell_key_change(&key.id).await;
}

/// The key with this id, if the caller manages it.
async fn find(gateway: &Gateway, caller: &Caller, id: &str) -> Result<ApiKey, Problem> {
    let none = || Problem::new(ProblemCode::NotFound, "there is no such key");
    if id.is_empty() || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(none());
    }
    let key = gateway.flow.store.find_key(id).await?;
    key.filter(|key| caller.manages().is_none_or(|tenant| key.tenant == *tenant)).ok_or_else(none)
}

/// Refuses a key that allows more than the caller's own key. The bootstrap key has all scopes and topics.
fn within(caller: &Caller, scopes: &[String], topics: &[String]) -> Result<(), Problem> {
    // A name that is no longer a scope grants nothing.
    let lacks = |word: &&String| Scope::parse(word).is_some_and(|scope| !caller.has(scope));
    let lacking: Vec<&str> = scopes.iter().filter(lacks).map(String::as_str).collect();
    if !lacking.is_empty() {
        let why = format!("this key lacks the scopes it would give: `{}`", lacking.join("`, `"));
        return Err(Problem::new(ProblemCode::MissingScope, why));
    }
    let own = &caller.key.topics;
    if own.is_empty() || (!topics.is_empty() && topics.iter().all(|glob| own.contains(glob))) {
        return Ok(());
    }
    Err(Problem::new(ProblemCode::MissingScope, "this key lacks those topics: it makes keys for its own only"))
}

/// Adds what the audit log says about a key: never its secret or the secret's hash.
fn about(act: Act, key: &ApiKey) -> Act {
    let act =
        act.target(format!("key/{}", key.id)).with("name", key.name.as_str()).with("scopes", key.scopes.join(","));
    let act = if key.topics.is_empty() { act } else { act.with("topics", key.topics.join(",")) };
    Act { tenant: key.tenant.to_string(), ..act }
}

/// Reads how long the old secret keeps working. The body may be empty.
pub(super) fn read_overlap(body: &Bytes) -> Result<u64, Problem> {
    if body.is_empty() {
        return Ok(USUAL_OVERLAP_MS);
    }
    let mut faults = Faults::default();
    let mut o = Object::from_body(body)?;
    let overlap = o.integer("overlap_ms", &mut faults, OVERLAP_MS).unwrap_or(USUAL_OVERLAP_MS);
    o.finish(&mut faults);
    faults.into_result()?;
    Ok(overlap)
}

/// Reads the requested key. The caller fills in the id, hash and time.
pub(super) fn read(body: &Bytes, caller: &Caller) -> Result<ApiKey, Problem> {
    let mut faults = Faults::default();
    let f = &mut faults;
    let mut o = Object::from_body(body)?;
    let name = o.name("name", f, |given| {
        let odd = given.len() > MOST_KEY_NAME || given.chars().any(char::is_control);
        if odd {
            Err(format!("has at most {MOST_KEY_NAME} bytes and no control characters"))
        } else {
            Ok(given.to_owned())
        }
    });
    let tenant = o.name("tenant", f, Tenant::parse).unwrap_or_else(|| caller.tenant.clone());
    o.require("scopes", f);
    let scopes = o.names("scopes", f, |word| Scope::parse(word).ok_or("is not a scope"));
    if scopes.as_ref().is_some_and(Vec::is_empty) {
        f.invalid("", "scopes", "names at least one scope");
    }
    let topics = o.names("topics", f, read_glob).unwrap_or_default();
    if topics.len() > MOST_GLOBS {
        f.invalid("", "topics", format_args!("has at most {MOST_GLOBS} globs"));
    }
    let expires_at = o.moment("expires_at", f);
    o.finish(f);
    faults.into_result()?;
    if caller.key.tenant.as_ref().is_some_and(|own| *own != tenant) {
        return Err(Problem::new(
            ProblemCode::MissingScope,
            "this key lacks all tenants: it makes keys for its own only",
        ));
    }
    let mut scopes: Vec<String> = scopes.unwrap_or_default().iter().map(ToString::to_string).collect();
    scopes.sort();
    scopes.dedup();
    within(caller, &scopes, &topics)?;
    Ok(ApiKey {
        id: String::new(),
        name: name.unwrap_or_default(),
        tenant,
        scopes,
        topics,
        secret_hash: [0; 32],
        created_at: muster_domain::Time::NONE,
        expires_at,
        previous: None,
    })
}

fn read_glob(given: &str) -> Result<String, &'static str> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-' | b'*');
    let stars = given.bytes().filter(|b| *b == b'*').count();
    if given.is_empty() || given.len() > MOST_GLOB || stars > MOST_STARS || !given.bytes().all(plain) {
        return Err("is a topic, with at most three `*` for any characters");
    }
    Ok(given.to_owned())
}

fn write(json: &mut Json, key: &ApiKey) {
    json.text("id", &key.id);
    json.text("name", &key.name);
    json.text("tenant", key.tenant.as_str());
    json.list("scopes", |json| key.scopes.iter().for_each(|scope| json.item(scope)));
    json.list("topics", |json| key.topics.iter().for_each(|topic| json.item(topic)));
    json.moment("created_at", key.created_at.some());
    json.moment("expires_at", key.expires_at);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{access::Scopes, auth::Key};

    fn caller(tenant: Option<&str>, topics: &[&str]) -> Caller {
        caller_with(Scopes::all(), tenant, topics)
    }

    fn caller_with(scopes: Scopes, tenant: Option<&str>, topics: &[&str]) -> Caller {
        let tenant = tenant.map(|t| Tenant::parse(t).unwrap());
        let key = Key {
            id: "k".into(),
            name: String::new(),
            tenant: tenant.clone(),
            scopes,
            topics: topics.iter().map(|t| (*t).to_owned()).collect(),
            expires_at: None,
        };
        Caller { tenant: tenant.unwrap_or_default(), named: false, key: Arc::new(key) }
    }

    fn asked(body: &'static str, caller: &Caller) -> Result<ApiKey, Problem> {
        read(&Bytes::from_static(body.as_bytes()), caller)
    }

    #[test]
    fn a_key_is_for_one_tenant_with_known_scopes() {
        let all = caller(None, &[]);
        let key = asked(r#"{"name":"ci","tenant":"acme","scopes":["read","submit","read"],"topics":["mail.*"]}"#, &all);
        let key = key.unwrap();
        assert_eq!((key.tenant.as_str(), key.scopes.len(), key.topics[0].as_str()), ("acme", 2, "mail.*"));
        assert_eq!(asked(r#"{"scopes":["read"]}"#, &all).unwrap().tenant.as_str(), "default");
        for (body, pointer) in [
            (r#"{}"#, "/scopes"),
            (r#"{"scopes":[]}"#, "/scopes"),
            (r#"{"scopes":["root"]}"#, "/scopes/0"),
            (r#"{"scopes":"read"}"#, "/scopes"),
            (r#"{"scopes":["read"],"tenant":"A"}"#, "/tenant"),
            (r#"{"scopes":["read"],"topics":["a*b*c*d*"]}"#, "/topics/0"),
            (r#"{"scopes":["read"],"expires_at":"soon"}"#, "/expires_at"),
            (r#"{"scopes":["read"],"secret":"x"}"#, "/secret"),
        ] {
            assert_eq!(asked(body, &all).unwrap_err().errors[0].pointer, pointer, "{body}");
        }
    }

    #[test]
    fn nobody_makes_a_key_that_reaches_further_than_their_own() {
        let acme = caller(Some("acme"), &["mail.*"]);
        assert_eq!(asked(r#"{"scopes":["read"],"tenant":"other"}"#, &acme).unwrap_err().status(), 403);
        assert_eq!(asked(r#"{"scopes":["read"]}"#, &acme).unwrap_err().status(), 403);
        assert_eq!(asked(r#"{"scopes":["read"],"topics":["pay"]}"#, &acme).unwrap_err().status(), 403);
        assert!(asked(r#"{"scopes":["read"],"topics":["mail.*"]}"#, &acme).is_ok());
    }

    #[test]
    fn nobody_makes_a_key_that_may_do_more_than_their_own() {
        let few = caller_with([Scope::Admin, Scope::Read].into_iter().collect(), Some("acme"), &[]);
        assert!(asked(r#"{"scopes":["read","admin"]}"#, &few).is_ok());
        let refused = asked(r#"{"scopes":["read","submit","worker"]}"#, &few).unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.code), (403, ProblemCode::MissingScope));
        assert!(refused.detail.contains("`submit`, `worker`"), "{}", refused.detail);
    }
}
