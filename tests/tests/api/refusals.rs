//! Invalid requests: every refusal is a problem that names the field, and nothing is stored.

use muster_tests::{Answer, Options, Probe, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::listed;

/// Checks for a refusal as in RFC 9457, with everything that the contract adds.
fn assert_problem(answer: &Answer, what: &str) {
    let status = answer.status.as_u16();
    assert!((400..500).contains(&status), "{what}: {status} {}", answer.text);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
    for field in ["type", "title", "detail", "instance", "code", "request_id", "trace_id"] {
        assert!(answer.field(field).as_str().is_some_and(|t| !t.is_empty()), "{what}: no {field} in {}", answer.text);
    }
    assert_eq!(answer.field("status"), &json!(status), "{what}");
    assert_eq!(answer.field("retryable"), &json!(false), "{what}");
    assert_eq!(answer.header("x-request-id"), answer.field("request_id").as_str(), "{what}");
}

/// The same, with this status and code and, unless empty, a pointer to the field.
fn assert_refused(answer: &Answer, status: u16, code: &str, pointer: &str, what: &str) {
    let what = &what[..what.len().min(120)];
    assert_problem(answer, what);
    assert_eq!(
        (answer.status.as_u16(), answer.field("code").as_str()),
        (status, Some(code)),
        "{what}: {}",
        answer.text
    );
    let pointers: Vec<&str> =
        answer.body["errors"].as_array().into_iter().flatten().filter_map(|e| e["pointer"].as_str()).collect();
    assert!(pointer.is_empty() || pointers.contains(&pointer), "{what}: {pointer} is not in {pointers:?}");
    let said = answer.body["errors"]
        .as_array()
        .into_iter()
        .flatten()
        .all(|e| e["detail"].as_str().is_some_and(|d| !d.is_empty()));
    assert!(said, "{what}: {}", answer.text);
}

async fn nothing_is_stored(stack: &Stack, gateways: &[&Probe]) {
    assert_eq!(listed(gateways, "").await, Vec::<Value>::new());
    assert_eq!(stack.store().await.count_homes().await.unwrap(), 0);
}

async fn post(gateway: &Probe, body: impl Into<Vec<u8>>) -> Answer {
    gateway.send(Method::POST, "/api/v1/jobs", &[], Some(body.into())).await.expect("an answer")
}

#[tokio::test]
async fn wrong_fields_are_refused_by_name_and_nothing_is_stored() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let invalid = "invalid_request";
    let fields: &[(&str, &str, &str)] = &[
        (r#"{}"#, invalid, "/topic"),
        (r#"{"topic":null}"#, invalid, "/topic"),
        (r#"{"topic":5}"#, invalid, "/topic"),
        (r#"{"topic":["a"]}"#, invalid, "/topic"),
        (r#"{"topic":"t","topics":"u"}"#, "unknown_field", "/topics"),
        (r#"{"topic":"t","topic":"u"}"#, "unknown_field", "/topic"),
        (r#"{"topic":"t","a/b~c":1}"#, "unknown_field", "/a~1b~0c"),
        (r#"{"topic":"t","idempotency_key":"k"}"#, "unknown_field", "/idempotency_key"),
        (r#"{"topic":"t","priority":"urgent"}"#, invalid, "/priority"),
        (r#"{"topic":"t","priority":1}"#, invalid, "/priority"),
        (r#"{"topic":"t","labels":[]}"#, invalid, "/labels"),
        (r#"{"topic":"t","labels":{"a":1}}"#, invalid, "/labels/a"),
        (r#"{"topic":"t","labels":{"a/b":{}}}"#, invalid, "/labels/a~1b"),
        (r#"{"topic":"t","labels":{"":"x"}}"#, invalid, "/labels/"),
        (r#"{"topic":"t","labels":{"a":"x\u0000y"}}"#, invalid, "/labels/a"),
        (r#"{"topic":"t","labels":{"a":"1","a":"2"}}"#, invalid, "/labels/a"),
        (r#"{"topic":"t","delay_ms":"1"}"#, invalid, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":-1}"#, invalid, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":1.5}"#, invalid, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":1e999}"#, invalid, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":99999999999999999999999999}"#, invalid, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":18446744073709551615}"#, invalid, "/delay_ms"),
        (r#"{"topic":"t","run_at":"tomorrow"}"#, invalid, "/run_at"),
        (r#"{"topic":"t","run_at":1763272800}"#, invalid, "/run_at"),
        (r#"{"topic":"t","run_at":"2026-02-30T00:00:00Z"}"#, invalid, "/run_at"),
        (r#"{"topic":"t","run_at":"2030-01-01T00:00:00Z","delay_ms":5}"#, invalid, "/delay_ms"),
        (r#"{"topic":"t","start_within_ms":0}"#, invalid, "/start_within_ms"),
        (r#"{"topic":"t","expire_in_ms":0}"#, invalid, "/expire_in_ms"),
        (r#"{"topic":"t","deadline":true}"#, invalid, "/deadline"),
        (r#"{"topic":"t","timeout_ms":0}"#, invalid, "/timeout_ms"),
        (r#"{"topic":"t","timeout_ms":4294967296}"#, invalid, "/timeout_ms"),
        (r#"{"topic":"t","retry":3}"#, invalid, "/retry"),
        (r#"{"topic":"t","retry":{"max_attempts":0}}"#, invalid, "/retry/max_attempts"),
        (r#"{"topic":"t","retry":{"max_attempts":100000}}"#, invalid, "/retry/max_attempts"),
        (r#"{"topic":"t","retry":{"attempts":3}}"#, "unknown_field", "/retry/attempts"),
        (r#"{"topic":"t","retry":{"backoff":{"factor":-1}}}"#, invalid, "/retry/backoff/factor"),
        (r#"{"topic":"t","retry":{"backoff":{"factor":1e308}}}"#, invalid, "/retry/backoff/factor"),
        (r#"{"topic":"t","retry":{"backoff":{"jitter":"0.1"}}}"#, invalid, "/retry/backoff/jitter"),
        (r#"{"topic":"t","retry":{"backoff":{"x":1}}}"#, "unknown_field", "/retry/backoff/x"),
        (r#"{"topic":"t","on_lost_lease":"ignore"}"#, invalid, "/on_lost_lease"),
        (r#"{"topic":"t","traceparent":"00-0-0-0"}"#, invalid, "/traceparent"),
        (r#"{"topic":"t","requires":{"gpu":1}}"#, "invalid_request", "/requires/gpu"),
        (r#"{"topic":"t","requires":{"a b":"1"}}"#, "invalid_request", "/requires/a b"),
        (r#"{"topic":"t","requires":["gpu"]}"#, "invalid_request", "/requires"),
        (r#"{"topic":"t","concurrency_key":"a b"}"#, "invalid_request", "/concurrency_key"),
        (r#"{"topic":"t","concurrency_key":7}"#, "invalid_request", "/concurrency_key"),
        (r#"{"topic":"t","unique":{"key":"k"}}"#, "unsupported_field", "/unique"),
        (r#"{"topic":"t","callback":{"url":"http://127.0.0.1"}}"#, "unsupported_field", "/callback"),
    ];
    for (body, code, pointer) in fields {
        assert_refused(&post(&one, *body).await, 422, code, pointer, body);
    }
    let bad =
        ["", "A", "a..b", ".a", "a.", "a b", "a*", "a.>", "ä", "-a", "_a", "a/b", "a\u{0}b", "$SYS", &"x".repeat(129)];
    for topic in bad {
        let body = json!({"topic": topic}).to_string();
        assert_refused(&post(&two, body.as_str()).await, 422, invalid, "/topic", &body);
    }
    // All faults of a body are named at once.
    let all = post(&one, r#"{"topic":"A","priority":1,"delay_ms":-1,"x":0,"unique":{}}"#).await;
    let pointers: Vec<&str> =
        all.body["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, ["/topic", "/priority", "/delay_ms", "/unique", "/x"]);
    nothing_is_stored(&stack, &[&one, &two]).await;
}

#[tokio::test]
async fn what_is_no_json_or_too_much_is_refused_and_nothing_is_stored() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let long = "x".repeat(10 * 1024 * 1024);
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    let not_json: &[&[u8]] = &[
        b"",
        b" ",
        b"{",
        b"{\"topic\":\"t\"",
        b"{\"topic\":\"t\"}}",
        b"{\"topic\":\"t\"} {}",
        b"{'topic':'t'}",
        b"{\"topic\":\"t\",}",
        b"{\"topic\":\"t\",\"payload\":NaN}",
        b"{\"topic\":\"t\",\"payload\":01}",
        b"{\"topic\":\"t\",\"payload\":\"\x00\"}",
        b"{\"topic\":\"t\"}\x00",
        b"\x00",
        b"{\"topic\":\"t\",\"payload\":\"\xff\xfe\"}",
        b"\xef\xbb\xbf{\"topic\":\"t\"}",
        b"topic=t",
    ];
    for body in not_json {
        let what = String::from_utf8_lossy(body).into_owned();
        assert_refused(&post(&one, *body).await, 400, "invalid_json", "", &what);
    }
    for body in ["[]", "null", "\"t\"", "5", "[{\"topic\":\"t\"}]"] {
        assert_refused(&post(&two, body).await, 422, "invalid_request", "", body);
    }
    let labels: serde_json::Map<String, Value> = (0..10_000).map(|n| (format!("l{n}"), json!("v"))).collect();
    let large: &[(String, u16, &str, &str)] = &[
        (format!(r#"{{"topic":"t","payload":"{long}"}}"#), 413, "payload_too_large", ""),
        (format!(r#"{{"topic":"t","payload":"{}"}}"#, &long[..512 * 1024 - 1]), 413, "payload_too_large", "/payload"),
        (json!({"topic": "t", "labels": labels}).to_string(), 422, "invalid_request", "/labels"),
        (json!({"topic": "t", "labels": {"a": &long[..1000]}}).to_string(), 422, "invalid_request", "/labels/a"),
        (json!({"topic": &long[..500_000]}).to_string(), 422, "invalid_request", "/topic"),
        (format!(r#"{{"topic":"t","payload":{}}}"#, deep("[", "]")), 422, "invalid_request", "/payload"),
        (
            format!(r#"{{"topic":"t","payload":{}1{}}}"#, "{\"a\":".repeat(10_000), "}".repeat(10_000)),
            422,
            "invalid_request",
            "/payload",
        ),
        (format!(r#"{{"topic":{}}}"#, deep("[", "]")), 422, "invalid_request", "/topic"),
        (
            format!(r#"{{"topic":"t","labels":{}1{}}}"#, "{\"a\":".repeat(10_000), "}".repeat(10_000)),
            422,
            "invalid_request",
            "/labels/a",
        ),
        (format!(r#"{{"topic":"t","x":{}}}"#, deep("[", "]")), 422, "unknown_field", "/x"),
    ];
    for (body, status, code, pointer) in large {
        assert_refused(&post(&one, body.as_str()).await, *status, code, pointer, body);
    }
    assert_problem(&post(&two, deep("[", "]")).await, "a deep list");
    assert_problem(&post(&two, "[".repeat(900_000)).await, "brackets that never close");
    let keyed = [("Idempotency-Key", "k")];
    let body = format!(r#"{{"topic":"t","payload":{}}}"#, deep("[", "]")).into_bytes();
    let answer = two.send(Method::POST, "/api/v1/jobs", &keyed, Some(body)).await.unwrap();
    assert_refused(&answer, 422, "invalid_request", "/payload", "a deep payload under a key");
    nothing_is_stored(&stack, &[&one, &two]).await;

    // The gateways still work.
    assert!(
        one.job(&one.submit(json!({"topic": "t", "payload": &long[..512 * 1024 - 2]})).await).await["payload"]
            .is_string()
    );
}

#[tokio::test]
async fn wrong_headers_parameters_paths_and_other_bodies_are_refused() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let good = json!({"topic": "t"}).to_string().into_bytes();
    let with = async |name: &str, value: &str| {
        gateway.send(Method::POST, "/api/v1/jobs", &[(name, value)], Some(good.clone())).await.unwrap()
    };
    for key in ["", "\"", "\"open", &"k".repeat(257), "tab\tbed"] {
        assert_refused(&with("Idempotency-Key", key).await, 422, "invalid_request", "/header/Idempotency-Key", key);
    }
    for tenant in ["A", "a.b", "", &"t".repeat(65)] {
        assert_refused(&with("Muster-Tenant", tenant).await, 422, "invalid_request", "/header/Muster-Tenant", tenant);
    }
    assert_refused(&with("Content-Type", "text/plain").await, 415, "unsupported_media_type", "", "plain text");
    let named = with("X-Request-Id", "mine-1").await;
    assert_eq!((named.status.as_u16(), named.header("x-request-id")), (202, Some("mine-1")), "echoed");
    let id = named.id();
    assert_eq!(gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);

    for (query, code, pointer) in [
        ("limit=0", "invalid_request", "/query/limit"),
        ("limit=501", "invalid_request", "/query/limit"),
        ("limit=1e1", "invalid_request", "/query/limit"),
        ("cursor=nonsense", "invalid_request", "/query/cursor"),
        ("cursor=b.1.2.3", "invalid_request", "/query/cursor"),
        ("state=finished", "invalid_request", "/query/state"),
        ("topic=A", "invalid_request", "/query/topic"),
        ("include=all", "invalid_request", "/query/include"),
        ("created_after=yesterday", "invalid_request", "/query/created_after"),
        ("run_id=1", "invalid_request", "/query/run_id"),
        ("stat=failed", "unknown_field", "/query/stat"),
    ] {
        assert_refused(&gateway.get(&format!("/jobs?{query}")).await, 422, code, pointer, query);
    }
    for query in ["wait_ms=x", "wait_ms=30001", "wait_ms=-1"] {
        let answer = gateway.get(&format!("/jobs/{id}?{query}")).await;
        assert_refused(&answer, 422, "invalid_request", "/query/wait_ms", query);
    }
    for path in ["/jobs/x", "/jobs/0198c0de-0000-7000-8000-000000000000", "/nothing", "/jobs/%00", "/jobs/..%2f..%2f"] {
        assert_refused(&gateway.get(path).await, 404, "not_found", "", path);
    }
    for (method, path) in [(Method::PUT, "/api/v1/jobs"), (Method::DELETE, "/api/v1/whoami"), (Method::POST, "/livez")]
    {
        let answer = gateway.send(method, path, &[], None).await.unwrap();
        assert_refused(&answer, 405, "method_not_allowed", "", path);
    }
    for (path, body, code, pointer) in [
        ("/jobs/batch", json!({}), "invalid_request", "/items"),
        ("/jobs/batch", json!({"items": 1}), "invalid_request", "/items"),
        ("/jobs/batch", json!({"items": [], "dry_run": true}), "unknown_field", "/dry_run"),
        (&format!("/jobs/{id}/cancel"), json!({"reason": 1}), "invalid_request", "/reason"),
        (&format!("/jobs/{id}/cancel"), json!({"why": "x"}), "unknown_field", "/why"),
        (&format!("/jobs/{id}/retry"), json!({"topic": "A"}), "invalid_request", "/topic"),
        (&format!("/jobs/{id}/retry"), json!({"labels": {}}), "unknown_field", "/labels"),
        ("/keys", json!({"scopes": ["root"]}), "invalid_request", "/scopes/0"),
        ("/keys", json!({"scopes": ["read"], "tenant": "A"}), "invalid_request", "/tenant"),
        ("/keys", json!({"scopes": ["read"], "name": "a\u{0}b"}), "invalid_request", "/name"),
    ] {
        assert_refused(&gateway.post(path, &body).await, 422, code, pointer, &format!("{path} {body}"));
    }
    assert_eq!(listed(&[&gateway], "").await.len(), 1, "only the one that was right");
}
