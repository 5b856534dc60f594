//! Scenario 42: what each key may do, and which objects each tenant sees.

use std::time::{Duration, Instant};

use muster_testkit::{NatsServer, RedisServer, nats};
use reqwest::Method;
use serde_json::json;

use crate::gate::{Gate, fresh_tenant};

/// Every route that requires a scope: method, path, body, scope.
const ROUTES: &[(&str, &str, Option<&str>, &str)] = &[
    ("POST", "/api/v1/jobs", Some(r#"{"topic":"t"}"#), "submit"),
    ("POST", "/api/v1/jobs/batch", Some(r#"{"items":[]}"#), "submit"),
    ("GET", "/api/v1/jobs", None, "read"),
    ("GET", "/api/v1/jobs/{id}", None, "read"),
    ("GET", "/api/v1/jobs/{id}/explain", None, "read"),
    ("GET", "/api/v1/jobs/{id}/history", None, "read"),
    ("POST", "/api/v1/jobs/{id}/cancel", Some("{}"), "control"),
    ("POST", "/api/v1/jobs/{id}/retry", Some("{}"), "control"),
    ("DELETE", "/api/v1/jobs/{id}", None, "control"),
    ("GET", "/api/v1/keys", None, "admin"),
    ("POST", "/api/v1/keys", Some("{}"), "admin"),
    ("DELETE", "/api/v1/keys/none", None, "admin"),
    ("POST", "/api/v1/keys/none/rotate", Some("{}"), "admin"),
    ("GET", "/api/v1/audit", None, "admin"),
    ("POST", "/api/v1/worker/lease", Some(r#"{"request_id":"r","worker_id":"w","topics":["t"]}"#), "worker"),
    ("POST", "/api/v1/worker/extend", Some("{}"), "worker"),
    ("POST", "/api/v1/worker/complete", Some("{}"), "worker"),
    ("POST", "/api/v1/worker/fail", Some("{}"), "worker"),
    ("POST", "/api/v1/worker/release", Some("{}"), "worker"),
];
const NOBODY: &str = "0198c0de-0000-7000-8000-000000000000";

async fn call(gate: &Gate, method: &str, path: &str, body: Option<&str>) -> crate::gate::Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let headers: &[(&str, &str)] = if body.is_some() { &[("content-type", "application/json")] } else { &[] };
    gate.send(method, &path.replace("{id}", NOBODY), headers, body.map(|text| text.as_bytes().to_vec())).await
}

#[tokio::test]
async fn only_the_named_routes_are_open() {
    let gate = Gate::start(&[]).await;
    let stranger = gate.with_key(None);
    for path in ["/", "/livez", "/readyz", "/openapi.json", "/docs", "/api/v1/status"] {
        assert_eq!(stranger.get(path).await.status, 200, "{path}");
    }
    // Everything that the two pages load is served here, and nothing from other sources runs or applies.
    for page in ["/", "/docs"] {
        let shown = stranger.get(page).await;
        let policy = shown.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert!(!shown.text.contains("<style") && !shown.text.contains("<script>") && !shown.text.contains("style="));
        let loaded: Vec<&str> = shown.text.split('"').filter(|part| part.starts_with("/assets/")).collect();
        assert_eq!(loaded.len(), 2, "{page}: {loaded:?}");
        for file in loaded {
            let answer = stranger.get(file).await;
            assert_eq!(
                (answer.status.as_u16(), answer.headers["x-content-type-options"].as_bytes()),
                (200, &b"nosniff"[..])
            );
            let kind = if file.ends_with(".css") { "text/css" } else { "text/javascript" };
            assert!(answer.headers["content-type"].to_str().unwrap().starts_with(kind), "{file}");
        }
    }
    assert_eq!(stranger.get("/assets/none.js").await.code(), "not_found");
    let closed = ["/api/v1/whoami", "/api/v1/nothing", "/nothing", "/metrics", "/api/v1", "/docs/x"];
    let all = ROUTES.iter().map(|(method, path, body, _)| (*method, *path, *body));
    for (method, path, body) in all.chain(closed.map(|path| ("GET", path, None))) {
        let answer = call(&stranger, method, path, body).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (401, "unauthorized"), "{method} {path}");
    }
    for wrong in ["wrong-key-altogether", "mst_abc_def", "mst__"] {
        assert_eq!(gate.with_key(Some(wrong)).get("/api/v1/whoami").await.code(), "unauthorized");
    }
    assert_eq!(gate.get("/api/v1/nothing").await.code(), "not_found");
    assert_eq!(call(&gate, "PUT", "/api/v1/jobs", Some("{}")).await.code(), "method_not_allowed");
    assert_eq!(call(&stranger, "POST", "/livez", Some("{}")).await.code(), "unauthorized");
    let status = stranger.get("/api/v1/status").await;
    let mut names: Vec<&String> = status.json.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, ["instance", "status", "version"]);
}

#[tokio::test]
async fn every_scope_opens_exactly_its_routes() {
    let gate = Gate::start(&[]).await;
    for scope in ["submit", "read", "payloads", "control", "worker", "approve", "policy", "admin"] {
        let key = gate.make_key(&[scope], &[]).await;
        let holder = gate.with_key(Some(&key));
        for (method, path, body, needed) in ROUTES {
            let answer = call(&holder, method, path, *body).await;
            if *needed == scope {
                assert!(![401, 403].contains(&answer.status.as_u16()), "{scope}: {method} {path}: {}", answer.text);
                assert!(answer.status.as_u16() < 500, "{scope}: {method} {path}: {}", answer.text);
            } else {
                assert_eq!((answer.status.as_u16(), answer.code()), (403, "missing_scope"), "{scope}: {method} {path}");
                assert!(answer.json["detail"].as_str().unwrap().contains(needed));
            }
        }
        assert_eq!(holder.get("/api/v1/whoami").await.json["scopes"], json!([scope]));
    }
}

#[tokio::test]
async fn one_tenant_never_meets_another() {
    let gate = Gate::start(&[]).await;
    let everything = ["submit", "read", "payloads", "control", "worker", "admin"];
    let a = gate.with_key(Some(&gate.make_key(&everything, &[]).await));
    let neighbour = gate.for_tenant(&fresh_tenant());
    let b = neighbour.with_key(Some(&neighbour.make_key(&everything, &[]).await));
    let made = a.post("/api/v1/jobs", &json!({"topic": "shared.topic", "payload": "secret"})).await;
    assert_eq!(made.json["tenant"], gate.tenant());
    let id = made.json["id"].as_str().unwrap();
    for (method, path, body, _) in ROUTES.iter().filter(|(_, path, _, _)| path.contains("{id}")) {
        let answer = call(&b, method, &path.replace("{id}", id), *body).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (404, "not_found"), "{method} {path}");
    }
    assert_eq!(b.count_jobs().await, 0);
    assert_eq!(a.count_jobs().await, 1);
    let leased = b
        .post("/api/v1/worker/lease", &json!({"request_id": "r1", "worker_id": "w", "topics": ["shared.topic"]}))
        .await;
    assert_eq!(leased.json, json!({"items": [], "drain": false}));
    for (call, more) in [("extend", json!(null)), ("complete", json!(1)), ("release", json!(null))] {
        let mut body = json!({"worker_id": "w", "items": [{"job_id": id, "fence": 1}]});
        if call == "complete" {
            body["items"][0]["result"] = more;
        }
        let answer = b.post(&format!("/api/v1/worker/{call}"), &body).await;
        assert_eq!(answer.json["items"], json!([{"job_id": id, "status": "invalid", "reason": "unknown"}]), "{call}");
    }
    let keys = a.get("/api/v1/keys").await;
    assert_eq!(keys.json["items"].as_array().unwrap().len(), 1, "its own");
    let key_of_a = keys.json["items"][0]["id"].as_str().unwrap();
    assert!(!keys.text.contains("secret") && !keys.text.contains("hash"), "{}", keys.text);
    assert_eq!(b.delete(&format!("/api/v1/keys/{key_of_a}")).await.code(), "not_found");
    let elsewhere = b.for_tenant(gate.tenant()).get("/api/v1/jobs").await;
    assert_eq!((elsewhere.status.as_u16(), elsewhere.code()), (403, "missing_scope"));
    let smuggled = b.post("/api/v1/keys", &json!({"tenant": gate.tenant(), "scopes": ["read"]})).await;
    assert_eq!(smuggled.status, 403);
    assert_eq!(a.get(&format!("/api/v1/jobs/{id}")).await.json["state"], "pending", "nothing happened to it");
}

#[tokio::test]
async fn payloads_are_shown_with_their_scope_only() {
    let gate = Gate::start(&[]).await;
    let made = gate.post("/api/v1/jobs", &json!({"topic": "t", "payload": "secret"})).await;
    let reader = gate.with_key(Some(&gate.make_key(&["read"], &[]).await));
    let path = format!("/api/v1/jobs/{}", made.json["id"].as_str().unwrap());
    assert!(!reader.get(&path).await.text.contains("secret"));
    assert!(!reader.get("/api/v1/jobs").await.text.contains("secret"));
    for asked in [format!("{path}?include=payload"), "/api/v1/jobs?include=payload".to_owned()] {
        let refused = reader.get(&asked).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "missing_scope"), "{asked}");
        assert!(refused.json["detail"].as_str().unwrap().contains("payloads"));
        assert!(gate.get(&asked).await.text.contains("secret"));
    }
}

/// How long a gateway without news of a change trusts a key after it read it.
const WITHOUT_NEWS: Duration = Duration::from_secs(3);
/// Longer than any gateway takes, however busy the machine is.
const SOON: Duration = Duration::from_secs(60);
/// How many changes are tried until one is known within a second.
const CHANGES: usize = 5;

/// Waits until the gateway refuses the key. Returns how long after the change it still began to serve a request: each
/// request is judged by its beginning, so it does not matter how slow the machine is.
async fn until_refused(gate: &Gate) -> Duration {
    let (changed, mut served) = (Instant::now(), Duration::ZERO);
    muster_testkit::until(SOON, "the key to be forgotten", async || {
        let begins = changed.elapsed();
        if gate.get("/api/v1/whoami").await.status == 401 {
            return Some(());
        }
        served = begins;
        None
    })
    .await;
    served
}

/// Tries several changes until one is known within a second. A gateway without the news of it takes nearly
/// [`WITHOUT_NEWS`] each time; with the news, a busy machine may make some late, but not all.
async fn within_a_second(mut change: impl AsyncFnMut() -> Duration) {
    let mut took = Vec::new();
    while took.len() < CHANGES {
        took.push(change().await);
        if took.last() <= Some(&Duration::from_secs(1)) {
            return;
        }
    }
    panic!("none was known within a second: {took:?}");
}

fn id_of(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

/// Makes the old secret of a key invalid at once. Returns the new secret.
async fn rotate(gate: &Gate, key: &str) -> String {
    let rotated = gate.post(&format!("/api/v1/keys/{}/rotate", id_of(key)), &json!({"overlap_ms": 0})).await;
    rotated.json["key"].as_str().expect(&rotated.text).to_owned()
}

#[tokio::test]
async fn a_rotated_key_is_known_everywhere_within_a_second() {
    let (one, other) = (Gate::start(&[]).await, Gate::start(&[]).await);
    within_a_second(async || {
        let first = one.make_key(&["read"], &[]).await;
        let there = other.with_key(Some(&first));
        assert_eq!(there.get("/api/v1/whoami").await.status, 200);
        let second = rotate(&one, &first).await;
        let took = until_refused(&there).await;
        let second = other.with_key(Some(&second));
        assert_eq!(second.get("/api/v1/whoami").await.status, 200, "and the new secret works there");
        took
    })
    .await;
}

/// Two gateways, and a key that the second has read. Without NATS no gateway gets the news of a change.
async fn without_news() -> (Gate, Gate, String) {
    let nats = NatsServer::start().await;
    let redis = muster_testkit::redis().await.url();
    let (one, other) = (Gate::over(&redis, &nats.url(), &[]).await, Gate::over(&redis, &nats.url(), &[]).await);
    let key = one.make_key(&["read"], &[]).await;
    let there = other.with_key(Some(&key));
    nats.stop();
    assert_eq!(there.get("/api/v1/whoami").await.status, 200);
    (one, there, key)
}

#[tokio::test]
async fn a_deleted_key_of_which_no_news_came_works_for_three_seconds_at_most() {
    let (one, there, key) = without_news().await;
    assert_eq!(one.delete(&format!("/api/v1/keys/{}", id_of(&key))).await.status, 204);
    let served = until_refused(&there).await;
    assert!(served <= WITHOUT_NEWS, "a request was served {served:?} after the change");
}

#[tokio::test]
async fn a_rotated_key_of_which_no_news_came_works_for_three_seconds_at_most() {
    let (one, there, first) = without_news().await;
    let second = rotate(&one, &first).await;
    let served = until_refused(&there).await;
    assert!(served <= WITHOUT_NEWS, "a request was served {served:?} after the change");
    assert_eq!(there.with_key(Some(&second)).get("/api/v1/whoami").await.status, 200, "the new secret works there");
}

#[tokio::test]
async fn a_key_gives_no_more_than_it_has() {
    let gate = Gate::start(&[]).await;
    let few = gate.with_key(Some(&gate.make_key(&["admin", "read"], &[]).await));
    let refused = few.post("/api/v1/keys", &json!({"scopes": ["read", "submit", "worker"]})).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (403, "missing_scope"));
    assert!(refused.json["detail"].as_str().unwrap().contains("`submit`, `worker`"), "{}", refused.text);
    assert_eq!(few.post("/api/v1/keys", &json!({"scopes": ["read"]})).await.status, 201);
    // The secret of a key with more scopes would give the caller these scopes.
    let more = gate.make_key(&["submit"], &[]).await;
    let rotate = format!("/api/v1/keys/{}/rotate", more.split('_').nth(1).unwrap());
    assert_eq!(few.post(&rotate, &json!({})).await.code(), "missing_scope");
    assert_eq!(gate.post(&rotate, &json!({})).await.status, 200, "the bootstrap key may");
}

#[tokio::test]
async fn a_deleted_key_stops_working_everywhere_within_a_second() {
    let (one, other) = (Gate::start(&[]).await, Gate::start(&[]).await);
    within_a_second(async || {
        let key = one.make_key(&["read"], &["mail.*"]).await;
        let (here, there) = (one.with_key(Some(&key)), other.with_key(Some(&key)));
        assert_eq!(there.get("/api/v1/whoami").await.json["topics"], json!(["mail.*"]));
        assert_eq!(one.delete(&format!("/api/v1/keys/{}", id_of(&key))).await.status, 204);
        assert_eq!(here.get("/api/v1/whoami").await.status, 401, "at once where it was deleted");
        until_refused(&there).await
    })
    .await;
    let past = json!({"scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"});
    let expired = one.post("/api/v1/keys", &past).await;
    assert_eq!(one.with_key(expired.json["key"].as_str()).get("/api/v1/whoami").await.status, 401);
}

#[tokio::test]
async fn a_rotated_key_works_with_both_secrets_for_a_while() {
    let gate = Gate::start(&[]).await;
    let made =
        call(&gate, "POST", "/api/v1/keys", Some(r#"{"name":"ci","scopes":["read"],"topics":["mail.*"]}"#)).await;
    let (id, first) = (made.json["id"].as_str().unwrap().to_owned(), made.json["key"].as_str().unwrap().to_owned());
    let path = format!("/api/v1/keys/{id}/rotate");
    let works = async |secret: &str| gate.with_key(Some(secret)).get("/api/v1/whoami").await.status == 200;
    let rotate = async |body: &str| {
        let answer = call(&gate, "POST", &path, Some(body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json["key"].as_str().unwrap().to_owned()
    };
    let second = rotate("{}").await;
    assert!(second.starts_with(&format!("mst_{id}_")) && second != first, "the same key, another secret");
    assert!(works(&first).await && works(&second).await);
    let third = rotate(r#"{"overlap_ms":0}"#).await;
    assert!(!works(&first).await && !works(&second).await && works(&third).await);
    let who = gate.with_key(Some(&third)).get("/api/v1/whoami").await;
    assert_eq!(
        (&who.json["key_id"], &who.json["topics"][0]),
        (&json!(id), &json!("mail.*")),
        "nothing else has changed"
    );

    for (body, pointer) in [(r#"{"overlap_ms":-1}"#, "/overlap_ms"), (r#"{"overlap":1}"#, "/overlap")] {
        assert_eq!(call(&gate, "POST", &path, Some(body)).await.pointers(), [pointer]);
    }
    assert!(works(&third).await, "bad input changes nothing");
    assert_eq!(call(&gate, "POST", "/api/v1/keys/0123456789ab/rotate", Some("{}")).await.code(), "not_found");
    // A client with the secret can do what the key allows, so a key that is bound to other topics must not rotate it.
    let bound = r#"{"name":"b","scopes":["admin"],"topics":["pay.*"]}"#;
    let bound = call(&gate, "POST", "/api/v1/keys", Some(bound)).await.json["key"].as_str().unwrap().to_owned();
    assert_eq!(call(&gate.with_key(Some(&bound)), "POST", &path, Some("{}")).await.code(), "missing_scope");
    // A deleted key stays deleted.
    assert_eq!(call(&gate, "DELETE", &format!("/api/v1/keys/{id}"), None).await.status, 204);
    assert_eq!(call(&gate, "POST", &path, Some("{}")).await.code(), "not_found");
}

#[tokio::test]
async fn a_key_for_all_tenants_manages_every_tenants_keys_unless_it_names_one() {
    let gate = Gate::start(&[]).await;
    let (acme, other) = (fresh_tenant(), fresh_tenant());
    let operator = gate.for_tenant("");
    let make = async |tenant: &str| {
        let made = operator.post("/api/v1/keys", &json!({"tenant": tenant, "scopes": ["admin"]})).await;
        assert_eq!((made.status.as_u16(), &made.json["tenant"]), (201, &json!(tenant)), "{}", made.text);
        (made.json["id"].as_str().unwrap().to_owned(), made.json["key"].as_str().unwrap().to_owned())
    };
    let (id_of_acme, key_of_acme) = make(&acme).await;
    let (id_of_other, key_of_other) = make(&other).await;
    let listed = async |gate: &Gate| {
        let keys = gate.get("/api/v1/keys").await;
        let items = keys.json["items"].as_array().unwrap_or_else(|| panic!("{}", keys.text)).clone();
        items.iter().map(|key| key["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = listed(&operator).await;
    assert!(all.contains(&id_of_acme) && all.contains(&id_of_other), "{all:?}");
    assert_eq!(
        listed(&gate.for_tenant(&acme)).await,
        std::slice::from_ref(&id_of_acme),
        "whoever names a tenant means it"
    );
    assert_eq!(listed(&gate.for_tenant("default")).await.iter().filter(|id| all.contains(id)).count(), 0);
    let (own, stranger) = (gate.with_key(Some(&key_of_acme)), gate.with_key(Some(&key_of_other)));
    assert_eq!(listed(&own).await, std::slice::from_ref(&id_of_acme));

    let (path, rotate) = (format!("/api/v1/keys/{id_of_acme}"), format!("/api/v1/keys/{id_of_acme}/rotate"));
    for blind in [&stranger, &gate.for_tenant(&other), &gate.for_tenant("default")] {
        assert_eq!(blind.post(&rotate, &json!({})).await.code(), "not_found");
        assert_eq!(blind.delete(&path).await.code(), "not_found");
    }
    let rotated = operator.post(&rotate, &json!({"overlap_ms": 0})).await;
    assert_eq!((rotated.status.as_u16(), &rotated.json["tenant"]), (200, &json!(acme)), "{}", rotated.text);
    assert_eq!(operator.delete(&path).await.status, 204);
    assert_eq!(operator.delete(&path).await.code(), "not_found", "it is gone");
    let told = gate.for_tenant(&acme).get("/api/v1/audit").await;
    assert!(told.text.contains("key_delete"), "its own tenant's log has it: {}", told.text);
}

/// Without a bootstrap key, a gateway starts only if there is a stored key: otherwise no client could authenticate.
#[tokio::test]
async fn a_gateway_that_nobody_could_call_does_not_start() {
    let (redis, nats) = (RedisServer::start().await, nats().await.url());
    let keyless = async || Gate::try_over(&redis.url(), &nats, &[("MUSTER_API_KEY", "")]).await;
    let refused = |started: anyhow::Result<Gate>| format!("{:#}", started.err().expect("nobody could get in"));
    let why = refused(keyless().await);
    assert!(why.contains("MUSTER_API_KEY is not set and no key is stored"), "{why}");

    let key = Gate::over(&redis.url(), &nats, &[]).await.make_key(&["read"], &[]).await;
    let gate = keyless().await.expect("somebody has a key");
    assert_eq!(gate.with_key(Some(&key)).get("/api/v1/jobs").await.status, 200);
    assert_eq!(gate.get("/api/v1/jobs").await.code(), "unauthorized", "there is no other");

    redis.stop();
    let why = refused(keyless().await);
    assert!(why.contains("whether there are stored keys cannot be found out"), "{why}");
}
