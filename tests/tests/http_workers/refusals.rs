//! Invalid calls of workers: every wrong field is named.

use muster_tests::Stack;
use reqwest::Method;
use serde_json::{Value, json};

use crate::NOBODY;

#[tokio::test]
async fn what_workers_get_wrong_is_refused_by_name() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let good = json!({"worker_id": "w", "request_id": "r", "topics": ["t"]});
    let changed = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    let item = |item: Value| json!({"worker_id": "w", "items": [item]});
    let attempt = json!({"job_id": NOBODY, "fence": 1});
    let cases = [
        ("/worker/lease", json!({}), "/request_id"),
        ("/worker/lease", changed("worker_id", json!("a b")), "/worker_id"),
        ("/worker/lease", changed("worker_id", json!("h~default~w")), "/worker_id"),
        ("/worker/lease", changed("worker_id", json!("x".repeat(65))), "/worker_id"),
        ("/worker/lease", changed("request_id", json!("")), "/request_id"),
        ("/worker/lease", changed("request_id", json!("a\u{0}b")), "/request_id"),
        ("/worker/lease", changed("topics", json!([])), "/topics"),
        ("/worker/lease", changed("topics", json!(["a", "B"])), "/topics/1"),
        ("/worker/lease", changed("topics", json!("t")), "/topics"),
        ("/worker/lease", changed("max", json!(0)), "/max"),
        ("/worker/lease", changed("max", json!(101)), "/max"),
        ("/worker/lease", changed("wait_ms", json!(30_001)), "/wait_ms"),
        ("/worker/lease", changed("lease_ms", json!(4_999)), "/lease_ms"),
        ("/worker/lease", changed("lease_ms", json!(900_001)), "/lease_ms"),
        ("/worker/lease", changed("provides", json!(["gpu"])), "/provides"),
        ("/worker/lease", changed("topic", json!("t")), "/topic"),
        ("/worker/extend", json!({"items": [attempt]}), "/worker_id"),
        ("/worker/extend", item(json!({"job_id": "x", "fence": 1})), "/items/0/job_id"),
        ("/worker/extend", item(json!({"job_id": NOBODY, "fence": -1})), "/items/0/fence"),
        ("/worker/extend", item(json!({"job_id": NOBODY, "fence": 1_u64 << 60})), "/items/0/fence"),
        (
            "/worker/extend",
            item(json!({"job_id": NOBODY, "fence": 1, "progress": {"percent": 101}})),
            "/items/0/progress/percent",
        ),
        ("/worker/complete", json!({"items": []}), "/items"),
        ("/worker/complete", json!({"items": {}}), "/items"),
        ("/worker/complete", item(json!({"job_id": NOBODY})), "/items/0/fence"),
        ("/worker/complete", item(json!({"job_id": NOBODY, "fence": 1, "results": 1})), "/items/0/results"),
        ("/worker/fail", item(attempt.clone()), "/items/0/error"),
        ("/worker/fail", item(json!({"job_id": NOBODY, "fence": 1, "error": "boom"})), "/items/0/error"),
        (
            "/worker/fail",
            item(json!({"job_id": NOBODY, "fence": 1, "error": {"retryable": "no"}})),
            "/items/0/error/retryable",
        ),
        ("/worker/fail", item(json!({"job_id": NOBODY, "fence": 1, "error": {"code": ""}})), "/items/0/error/code"),
        ("/worker/release", item(json!({"job_id": NOBODY, "fence": 1, "delay_ms": -5})), "/items/0/delay_ms"),
    ];
    for (path, body, pointer) in cases {
        let answer = gateway.post(path, &body).await;
        assert_eq!(answer.status, 422, "{path} {body}: {}", answer.text);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        let pointers: Vec<&str> =
            answer.body["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
        assert!(pointers.contains(&pointer), "{path} {body}: {pointer} is not in {pointers:?}");
    }
    for path in ["lease", "extend", "complete", "fail", "release"] {
        let path = format!("/api/v1/worker/{path}");
        let answer = gateway.send(Method::POST, &path, &[], Some(b"{".to_vec())).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.field("code")), (400, &json!("invalid_json")), "{path}");
    }
}
