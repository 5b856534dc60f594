//! Permissions: without a key, with one scope, with the key of another tenant.

use std::collections::BTreeSet;

use muster_testkit::until;
use muster_tests::{Answer, Options, Probe, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{LATER_MS, SOON, ids, listed, post_keyed};

const NOBODY: &str = "0198c0de-0000-7000-8000-000000000000";
/// The routes that the contract names as open, and what its two pages load.
const OPEN: [&str; 7] = ["/livez", "/readyz", "/", "/openapi.json", "/docs", "/assets/{file}", "/api/v1/status"];
/// Every other route and the scope that it requires; `None` means any key.
const ROUTES: &[(&str, &str, Option<&str>)] = &[
    ("post", "/api/v1/jobs", Some("submit")),
    ("post", "/api/v1/jobs/batch", Some("submit")),
    ("get", "/api/v1/jobs", Some("read")),
    ("get", "/api/v1/jobs/{id}", Some("read")),
    ("get", "/api/v1/jobs/{id}/history", Some("read")),
    ("get", "/api/v1/jobs/{id}/explain", Some("read")),
    ("post", "/api/v1/jobs/{id}/cancel", Some("control")),
    ("post", "/api/v1/jobs/{id}/retry", Some("control")),
    ("delete", "/api/v1/jobs/{id}", Some("control")),
    ("get", "/api/v1/events", Some("read")),
    ("post", "/api/v1/workflows/validate", Some("read")),
    ("get", "/api/v1/schemas/workflow", Some("read")),
    ("get", "/api/v1/workflows", Some("read")),
    ("get", "/api/v1/workflows/{name}", Some("read")),
    ("put", "/api/v1/workflows/{name}", Some("admin")),
    ("delete", "/api/v1/workflows/{name}", Some("admin")),
    ("get", "/api/v1/workflows/{name}/versions", Some("read")),
    ("get", "/api/v1/workflows/{name}/versions/{version}", Some("read")),
    ("get", "/api/v1/workflows/{name}/graph", Some("read")),
    ("post", "/api/v1/workflows/{name}/runs", Some("submit")),
    ("get", "/api/v1/runs/{id}", Some("read")),
    ("get", "/api/v1/runs", Some("read")),
    ("post", "/api/v1/runs/bulk", Some("control")),
    ("post", "/api/v1/runs/{id}/cancel", Some("control")),
    ("post", "/api/v1/runs/{id}/pause", Some("control")),
    ("post", "/api/v1/runs/{id}/resume", Some("control")),
    ("post", "/api/v1/runs/{id}/compensate", Some("control")),
    ("post", "/api/v1/runs/{id}/signals/{name}", Some("submit")),
    ("post", "/api/v1/runs/{id}/steps/{step}/complete", Some("control")),
    ("post", "/api/v1/runs/{id}/steps/{step}/skip", Some("control")),
    ("post", "/api/v1/runs/{id}/rerun", Some("control")),
    ("get", "/api/v1/runs/{id}/timeline", Some("read")),
    ("get", "/api/v1/runs/{id}/explain", Some("read")),
    ("get", "/api/v1/runs/{id}/graph", Some("read")),
    ("get", "/api/v1/runs/{id}/steps/{step}/items", Some("read")),
    ("get", "/api/v1/workers", Some("read")),
    ("get", "/api/v1/replicas", Some("admin")),
    ("get", "/api/v1/loops", Some("admin")),
    ("get", "/api/v1/locks", Some("admin")),
    ("get", "/api/v1/doctor", Some("admin")),
    ("post", "/api/v1/workers/{id}/drain", Some("control")),
    ("get", "/api/v1/audit", Some("admin")),
    ("get", "/api/v1/audit/verify", Some("admin")),
    ("post", "/api/v1/jobs/bulk", Some("control")),
    ("get", "/api/v1/operations", Some("read")),
    ("get", "/api/v1/operations/{id}", Some("read")),
    ("post", "/api/v1/operations/{id}/cancel", Some("control")),
    ("get", "/api/v1/dlq", Some("read")),
    ("get", "/api/v1/dlq/summary", Some("read")),
    ("delete", "/api/v1/dlq/messages/{id}", Some("admin")),
    ("post", "/api/v1/keys", Some("admin")),
    ("get", "/api/v1/keys", Some("admin")),
    ("delete", "/api/v1/keys/{id}", Some("admin")),
    ("post", "/api/v1/keys/{id}/rotate", Some("admin")),
    ("post", "/api/v1/worker/lease", Some("worker")),
    ("post", "/api/v1/worker/extend", Some("worker")),
    ("post", "/api/v1/worker/complete", Some("worker")),
    ("post", "/api/v1/worker/fail", Some("worker")),
    ("post", "/api/v1/worker/release", Some("worker")),
    ("get", "/api/v1/whoami", None),
    ("get", "/api/v1/topics", Some("read")),
    ("get", "/api/v1/topics/{topic}", Some("read")),
    ("put", "/api/v1/topics/{topic}", Some("admin")),
    ("post", "/api/v1/topics/{topic}/pause", Some("control")),
    ("post", "/api/v1/topics/{topic}/resume", Some("control")),
    ("get", "/api/v1/config", Some("admin")),
    ("put", "/api/v1/config", Some("admin")),
    ("get", "/api/v1/config/effective", Some("admin")),
];
/// Routes that a key of one tenant may not use, whatever its scopes.
const FOR_ALL_TENANTS: [&str; 8] = [
    "/api/v1/dlq/messages/{id}",
    "/api/v1/config",
    "/api/v1/config/effective",
    "/api/v1/replicas",
    "/api/v1/loops",
    "/api/v1/locks",
    "/api/v1/doctor",
    "/api/v1/audit/verify",
];
const SCOPES: [&str; 8] = ["submit", "read", "payloads", "control", "worker", "approve", "policy", "admin"];

async fn call(gateway: &Probe, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Answer {
    let method: Method = method.to_uppercase().parse().unwrap();
    let path = path.replace("{id}", NOBODY).replace("{topic}", "t").replace("{file}", "docs.css");
    let path = path.replace("{name}", "order").replace("{version}", "1").replace("{step}", "a");
    // The stream of events has no end, unless the request is refused.
    let path = if path.ends_with("/events") { format!("{path}?job_id=nobody") } else { path };
    gateway.send(method, &path, headers, body.map(|b| b.to_string().into_bytes())).await.expect("an answer")
}

async fn new_key(gateway: &Probe, body: Value) -> (String, String) {
    let made = gateway.post("/keys", &body).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
    assert!(text("key").starts_with(&format!("mst_{}_", text("id"))), "the secret is shown once");
    (text("id"), text("key"))
}

#[tokio::test]
async fn without_a_key_only_what_the_contract_names_is_open() {
    let stack = Stack::with(Options::two()).await;
    let one = stack.gateway(1);
    let stranger = one.with_key(None);
    let document = stranger.send(Method::GET, "/openapi.json", &[], None).await.unwrap();
    assert_eq!((document.status.as_u16(), document.field("openapi")), (200, &json!("3.1.0")));
    for (path, methods) in document.body["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let open = method == "get" && OPEN.contains(&path.as_str());
            for (who, headers) in [
                (stranger.clone(), vec![]),
                (one.with_key(Some("mst_0000_ffff")), vec![]),
                (one.with_key(Some("x")), vec![]),
                (stranger.clone(), vec![("X-API-Key", "nonsense")]),
                (stranger.clone(), vec![("Authorization", "Basic eDp5")]),
            ] {
                let answer = call(&who, method, path, &headers, None).await;
                if open {
                    assert_eq!(answer.status, 200, "{method} {path}");
                } else {
                    assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text);
                    assert_eq!(answer.field("code"), "unauthorized");
                    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
                    assert!(answer.header("www-authenticate").is_some());
                }
            }
        }
    }
    for (method, path) in [("get", "/api/v1/nothing"), ("put", "/api/v1/jobs"), ("get", "/metrics"), ("get", "/loops")]
    {
        assert_eq!(call(&stranger, method, path, &[], None).await.status, 401, "{method} {path}");
    }

    // The same key in the other header, and the content of the open pages.
    let key = stack.state().api_key;
    assert_eq!(call(&stranger, "get", "/api/v1/whoami", &[("X-API-Key", &key)], None).await.status, 200);
    for n in [1, 2] {
        let status = call(&stack.gateway(n).with_key(None), "get", "/api/v1/status", &[], None).await;
        let mut names: Vec<&String> = status.body.as_object().unwrap().keys().collect();
        names.sort();
        assert_eq!(names, ["instance", "status", "version"], "and nothing else");
        assert_eq!((status.field("status"), status.field("instance")), (&json!("ok"), &json!(format!("gateway-{n}"))));
    }
    for path in ["/", "/docs"] {
        let page = call(&stranger, "get", path, &[], None).await;
        assert!(page.header("content-type").is_some_and(|t| t.starts_with("text/html")));
        for outside in ["src=\"http", "src='http", "href=\"http", "src=\"//", "@import", "import("] {
            assert!(!page.text.contains(outside), "{path} loads from elsewhere: {outside}");
        }
    }
}

#[tokio::test]
async fn each_scope_opens_exactly_its_endpoints() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    // Every route of the document is in the matrix, and nothing else.
    let document = gateway.send(Method::GET, "/openapi.json", &[], None).await.unwrap().body;
    let named = document["paths"].as_object().unwrap().iter();
    let named: BTreeSet<(&str, &str)> = named
        .flat_map(|(path, ways)| ways.as_object().unwrap().keys().map(|way| (way.as_str(), path.as_str())))
        .collect();
    let here = ROUTES.iter().map(|(way, path, _)| (*way, *path)).chain(OPEN.map(|path| ("get", path)));
    assert_eq!(named, here.collect());
    for scope in SCOPES {
        let (id, key) = new_key(&gateway, json!({"name": scope, "tenant": "acme", "scopes": [scope]})).await;
        let holder = gateway.with_key(Some(&key));
        let me = holder.get("/whoami").await;
        assert_eq!((me.field("tenant"), me.field("scopes")), (&json!("acme"), &json!([scope])));
        assert_eq!((me.field("key_id"), me.field("all_tenants")), (&json!(id), &json!(false)));
        for &(method, path, needs) in ROUTES {
            let body = (method == "post").then(|| match path {
                "/api/v1/jobs" => json!({"topic": "t", "delay_ms": LATER_MS}),
                "/api/v1/worker/lease" => json!({"request_id": "r", "worker_id": "w", "topics": ["t"]}),
                _ => json!({}),
            });
            let answer = call(&holder, method, path, &[], body.as_ref()).await;
            let allowed = needs.is_none_or(|needed| needed == scope);
            if allowed && FOR_ALL_TENANTS.contains(&path) {
                assert_eq!(answer.status, 403, "{scope}: {method} {path}: {}", answer.text);
                assert!(answer.text.contains("lacks all tenants"), "{}", answer.text);
            } else if allowed {
                assert!(![401, 403].contains(&answer.status.as_u16()), "{scope}: {method} {path}: {}", answer.text);
                assert!(answer.status.as_u16() < 500, "{scope}: {method} {path}: {}", answer.text);
            } else {
                let needed = needs.unwrap_or_default();
                assert_eq!(answer.status, 403, "{scope}: {method} {path}: {}", answer.text);
                assert_eq!(answer.field("code"), "missing_scope");
                assert!(answer.field("detail").as_str().unwrap().contains(&format!("`{needed}`")), "{}", answer.text);
            }
        }
    }

    // Payload and result require a scope of their own in addition to `read`.
    let acme = gateway.for_tenant("acme");
    let id = acme.submit(json!({"topic": "t", "payload": "a secret", "delay_ms": LATER_MS})).await;
    let (_, key) = new_key(&gateway, json!({"tenant": "acme", "scopes": ["read"]})).await;
    let reader = gateway.with_key(Some(&key));
    let (_, key) = new_key(&gateway, json!({"tenant": "acme", "scopes": ["read", "payloads"]})).await;
    let insider = gateway.with_key(Some(&key));
    assert_eq!(insider.job(&id).await["payload"], "a secret");
    assert!(insider.get("/jobs?include=payload").await.text.contains("a secret"));
    for path in [format!("/jobs/{id}"), format!("/jobs/{id}?wait_ms=10"), "/jobs".into(), format!("/jobs/{id}/history")]
    {
        let answer = reader.get(&path).await;
        assert!(answer.status == 200 && !answer.text.contains("a secret"), "{path}: {}", answer.text);
    }
    for path in [format!("/jobs/{id}?include=payload"), "/jobs?include=result".into()] {
        let answer = reader.get(&path).await;
        assert_eq!((answer.status.as_u16(), answer.field("code")), (403, &json!("missing_scope")));
        assert!(answer.text.contains("`payloads`"), "{}", answer.text);
    }
}

#[tokio::test]
async fn keys_are_bound_to_topics_and_end_when_deleted_or_expired() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let scopes = json!(["submit", "read", "control", "worker", "admin"]);
    let (_, key) = new_key(&one, json!({"scopes": scopes, "topics": ["mail.*"]})).await;
    let mailer = two.with_key(Some(&key));
    let mail = mailer.submit(json!({"topic": "mail.send", "delay_ms": LATER_MS})).await;
    let refused = mailer.post("/jobs", &json!({"topic": "pay", "delay_ms": LATER_MS})).await;
    assert_eq!((refused.status.as_u16(), refused.field("code")), (403, &json!("missing_scope")));
    let pay = one.submit(json!({"topic": "pay", "delay_ms": LATER_MS})).await;
    assert_eq!(mailer.get(&format!("/jobs/{pay}")).await.status, 404);
    assert_eq!(mailer.post(&format!("/jobs/{pay}/cancel"), &json!({})).await.status, 404);
    assert_eq!(ids(&listed(&[&mailer], "").await), [mail]);
    let lease = json!({"request_id": "r", "worker_id": "w", "topics": ["mail.send", "pay"]});
    assert_eq!(mailer.post("/worker/lease", &lease).await.status, 403);
    let wider = mailer.post("/keys", &json!({"scopes": ["read"], "topics": ["*"]})).await;
    assert_eq!(wider.status, 403, "nobody gives what they do not have");

    let (id, key) = new_key(&one, json!({"name": "short-lived", "scopes": ["read"]})).await;
    let (first, second) = (one.with_key(Some(&key)), two.with_key(Some(&key)));
    assert_eq!((first.get("/jobs").await.status.as_u16(), second.get("/jobs").await.status.as_u16()), (200, 200));
    let list = two.get("/keys").await;
    assert!(list.text.contains("short-lived") && !list.text.contains(&key), "listed without its secret");
    assert!(!list.text.contains(key.rsplit('_').next().unwrap()));
    assert_eq!(call(&two, "delete", &format!("/api/v1/keys/{id}"), &[], None).await.status, 204);
    assert_eq!(call(&two, "delete", &format!("/api/v1/keys/{id}"), &[], None).await.status, 404);
    until(SOON, "both gateways to refuse it", async || {
        let (a, b) = (first.get("/jobs").await.status, second.get("/jobs").await.status);
        (a == 401 && b == 401).then_some(())
    })
    .await;
    let (_, key) = new_key(&one, json!({"scopes": ["read"], "expires_at": "2026-01-01T00:00:00Z"})).await;
    assert_eq!(two.with_key(Some(&key)).get("/jobs").await.status, 401, "it has ended already");
}

#[tokio::test]
async fn a_tenant_never_sees_or_touches_what_is_anothers() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let (a_id, a_key) = new_key(&one, json!({"tenant": "acme", "scopes": SCOPES})).await;
    let (b_id, b_key) = new_key(&two, json!({"tenant": "globex", "scopes": SCOPES})).await;
    let (a, b) = (one.with_key(Some(&a_key)), two.with_key(Some(&b_key)));

    // B's jobs: one scheduled, one ended, one running on an HTTP worker, one waiting on the same topic.
    let ahead = b.submit(json!({"topic": "shared", "delay_ms": LATER_MS, "labels": {"x": "y"}})).await;
    let ended = b.submit(json!({"topic": "other", "delay_ms": LATER_MS})).await;
    assert_eq!(b.post(&format!("/jobs/{ended}/cancel"), &json!({})).await.status, 200);
    let running = b.submit(json!({"topic": "shared", "payload": "b's"})).await;
    let lease = json!({"request_id": "r1", "worker_id": "w1", "topics": ["shared"], "wait_ms": 20_000});
    let held = b.post("/worker/lease", &lease).await.body["items"][0].clone();
    assert_eq!(held["job_id"], json!(running));
    let waiting = b.submit(json!({"topic": "shared"})).await;

    for id in [&ahead, &ended, &running, &waiting] {
        for gateway in [&a, &two.with_key(Some(&a_key))] {
            for (method, rest, body) in [
                ("get", "", None),
                ("get", "?wait_ms=50", None),
                ("get", "/history", None),
                ("get", "/explain", None),
                ("post", "/cancel", Some(json!({"reason": "mine now"}))),
                ("post", "/retry", Some(json!({}))),
                ("delete", "", None),
            ] {
                let answer = call(gateway, method, &format!("/api/v1/jobs/{id}{rest}"), &[], body.as_ref()).await;
                assert_eq!(
                    (answer.status.as_u16(), answer.field("code")),
                    (404, &json!("not_found")),
                    "{method} {rest}"
                );
                let absent = format!("/api/v1/jobs/{NOBODY}{rest}");
                let absent = call(gateway, method, &absent, &[], body.as_ref()).await;
                let said = answer.field("detail").as_str().unwrap().replace(id.as_str(), NOBODY);
                assert_eq!(absent.field("detail"), &json!(said), "as if it were not there");
            }
        }
    }
    for query in ["", "topic=shared", "label.x=y", "state=cancelled", "state=running&worker=w1"] {
        assert_eq!(ids(&listed(&[&a, &two.with_key(Some(&a_key))], query).await), Vec::<String>::new(), "{query}");
    }

    // B's jobs are not visible among dead letters and workers, and not touched by a bulk operation.
    for path in ["/dlq", "/workers", "/operations"] {
        assert_eq!(a.get(path).await.body["items"], json!([]), "{path}");
    }
    assert_eq!(a.get("/dlq/summary").await.field("counted"), 0);
    for (action, filter) in [
        ("cancel", json!({"topic": "shared"})),
        ("retry", json!({"topic": "other", "state": ["cancelled"]})),
        ("delete", json!({"topic": "other", "state": ["cancelled"]})),
    ] {
        let bulk = json!({"action": action, "filter": filter, "dry_run": true});
        let outlook = a.post("/jobs/bulk", &bulk).await;
        assert_eq!((outlook.status.as_u16(), outlook.field("matched")), (200, &json!(0)), "{}", outlook.text);
    }

    // A worker on the same topic, with the same names and the right fence, cannot reach them.
    for request in ["r1", "r2"] {
        let lease = json!({"request_id": request, "worker_id": "w1", "topics": ["shared"], "max": 10, "wait_ms": 1000});
        assert_eq!(a.post("/worker/lease", &lease).await.body["items"], json!([]));
    }
    let attempt = json!({"job_id": running, "fence": held["fence"]});
    let with = |name: &str, value: Value| {
        let mut item = attempt.clone();
        item[name] = value;
        json!({"worker_id": "w1", "items": [item]})
    };
    for (path, body) in [
        ("/worker/extend", with("progress", json!({"percent": 99}))),
        ("/worker/complete", with("result", json!("a's"))),
        ("/worker/fail", with("error", json!({"retryable": false}))),
        ("/worker/release", json!({"items": [attempt]})),
    ] {
        let answer = a.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let stands = &answer.body["items"][0];
        assert_eq!((&stands["status"], &stands["reason"]), (&json!("invalid"), &json!("unknown")), "{path}");
    }
    let job = b.job(&running).await;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("running"), Some(1)));
    assert_eq!((job.get("progress"), job.get("result")), (None, None));
    let done = b.post("/worker/complete", &with("result", json!("b's own"))).await;
    assert_eq!(done.body["items"][0]["status"], "ok");

    // Names that A chooses cannot reach them either.
    let body = r#"{"topic":"shared","delay_ms":3600000}"#;
    let theirs = post_keyed(&b, "/jobs", "k", body).await.id();
    let mine = post_keyed(&a, "/jobs", "k", body).await;
    assert_ne!(mine.id(), theirs);
    assert_eq!(ids(&listed(&[&a], "").await), [mine.id()]);
    for (method, path) in [("get", "/api/v1/jobs"), ("post", "/api/v1/jobs")] {
        let answer = call(&a, method, path, &[("Muster-Tenant", "globex")], Some(&json!({"topic": "t"}))).await;
        assert_eq!(answer.status, 403, "{}", answer.text);
    }
    let keys = a.get("/keys").await;
    assert!(keys.text.contains(&a_id) && !keys.text.contains(&b_id));
    assert_eq!(call(&a, "delete", &format!("/api/v1/keys/{b_id}"), &[], None).await.status, 404);
    assert_eq!(a.post("/keys", &json!({"tenant": "globex", "scopes": ["read"]})).await.status, 403);
    assert_eq!(b.job(&waiting).await["attempt"], 0);
    // A key for all tenants acts for one tenant at a time.
    assert_eq!(one.get(&format!("/jobs/{waiting}")).await.status, 404);
    assert_eq!(one.for_tenant("globex").get(&format!("/jobs/{waiting}")).await.status, 200);
}
