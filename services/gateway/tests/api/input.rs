//! Scenario 43: whatever is sent, the answer is a 4xx with the field, and nothing is stored.

use std::collections::BTreeMap;

use muster_testkit::{RedisServer, nats};
use reqwest::Method;
use serde_json::json;

use crate::gate::Gate;

/// Every key with its whole value, except for what a gateway writes by itself over time: its entry among the
/// replicas, the lock and the notes of its loops, and the format of the data.
async fn everything(redis: &RedisServer) -> BTreeMap<String, String> {
    let by_itself = ["muster:replicas", "muster:dlq:cleanup", "muster:meta:version"];
    let mut all = BTreeMap::new();
    for key in redis.cli(&["KEYS", "*"]).await.lines().map(str::trim).filter(|key| !key.is_empty()) {
        if !by_itself.contains(&key) && !key.starts_with("muster:replica:") {
            all.insert(key.to_owned(), redis.cli(&["DUMP", key]).await);
        }
    }
    all
}

#[tokio::test]
async fn malformed_input_is_refused_at_its_field_and_nothing_is_stored() {
    let redis = RedisServer::start().await;
    let gate = Gate::over(&redis.url(), &nats().await.url(), &[]).await;
    let before = everything(&redis).await;
    let deep = format!(r#"{{"topic":"t","payload":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let labels: Vec<String> = (0..10_000).map(|i| format!(r#""l{i}":"v""#)).collect();
    let labels = format!(r#"{{"topic":"t","labels":{{{}}}}}"#, labels.join(","));
    let payload = format!(r#"{{"topic":"t","payload":"{}"}}"#, "x".repeat(600 * 1024));
    let rows: Vec<(Vec<u8>, u16, &str, &[&str])> = vec![
        (b"{".to_vec(), 400, "invalid_json", &[]),
        (b"".to_vec(), 400, "invalid_json", &[]),
        (b"\xff\xfe{}".to_vec(), 400, "invalid_json", &[]),
        (b"{\"topic\":\"a\0b\"}".to_vec(), 400, "invalid_json", &[]),
        (br#"{"topic":"t"} trailing"#.to_vec(), 400, "invalid_json", &[]),
        (b"[]".to_vec(), 422, "invalid_request", &[""]),
        (b"{}".to_vec(), 422, "invalid_request", &["/topic"]),
        (br#"{"topic":"A..b"}"#.to_vec(), 422, "invalid_request", &["/topic"]),
        (br#"{"topic":"a\u0000"}"#.to_vec(), 422, "invalid_request", &["/topic"]),
        (br#"{"topic":7,"priority":true}"#.to_vec(), 422, "invalid_request", &["/topic", "/priority"]),
        (br#"{"topic":"t","typo":1}"#.to_vec(), 422, "unknown_field", &["/typo"]),
        (br#"{"topic":"t","unique":{"key":"k"}}"#.to_vec(), 422, "unsupported_field", &["/unique"]),
        (br#"{"topic":"t","timeout_ms":1e400}"#.to_vec(), 422, "invalid_request", &["/timeout_ms"]),
        (br#"{"topic":"t","delay_ms":-5}"#.to_vec(), 422, "invalid_request", &["/delay_ms"]),
        (br#"{"topic":"t","retry":{"max_attempts":0}}"#.to_vec(), 422, "invalid_request", &["/retry/max_attempts"]),
        (deep.into_bytes(), 422, "invalid_request", &["/payload"]),
        (labels.into_bytes(), 422, "invalid_request", &["/labels"]),
        (payload.into_bytes(), 413, "payload_too_large", &["/payload"]),
        (vec![b'x'; 10 * 1024 * 1024], 413, "payload_too_large", &[]),
    ];
    for (body, status, code, pointers) in rows {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let json = [("content-type", "application/json"), ("x-request-id", "req-1")];
        let answer = gate.send(Method::POST, "/api/v1/jobs", &json, Some(body)).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (status, code), "{shown}: {}", answer.text);
        assert_eq!(answer.pointers(), pointers, "{shown}");
        assert_eq!(answer.json["request_id"], "req-1");
        assert_eq!(answer.headers["x-request-id"], "req-1");
        assert_eq!(answer.json["trace_id"].as_str().map(str::len), Some(32));
        assert_eq!(answer.json["instance"], "/api/v1/jobs");
    }
    let plain = [("content-type", "text/plain")];
    let answer = gate.send(Method::POST, "/api/v1/jobs", &plain, Some(br#"{"topic":"t"}"#.to_vec())).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (415, "unsupported_media_type"));
    let answer = gate.send(Method::POST, "/api/v1/jobs", &[], Some(br#"{"topic": 1}"#.to_vec())).await;
    assert_eq!((answer.status.as_u16(), answer.pointers()), (422, vec!["/topic"]), "untyped, so taken as JSON");
    let odd_key = [("content-type", "application/json"), ("idempotency-key", "\"open")];
    let answer = gate.send(Method::POST, "/api/v1/jobs", &odd_key, Some(br#"{"topic":"t"}"#.to_vec())).await;
    assert_eq!((answer.status.as_u16(), answer.pointers()), (422, vec!["/header/Idempotency-Key"]));
    let answer = gate.post("/api/v1/jobs?wait_ms=30001&x=1", &json!({"topic": "t"})).await;
    assert_eq!(answer.pointers(), ["/query/wait_ms", "/query/x"]);
    for path in ["/api/v1/jobs/batch", "/api/v1/worker/lease", "/api/v1/worker/complete", "/api/v1/keys"] {
        let answer = gate.post(path, &json!({"nonsense": 1})).await;
        assert_eq!(answer.status, 422, "{path}: {}", answer.text);
        assert!(answer.pointers().contains(&"/nonsense"), "{path}");
    }
    assert_eq!(everything(&redis).await, before, "nothing is stored");
}

#[tokio::test]
async fn a_batch_answers_item_by_item() {
    let gate = Gate::start(&[]).await;
    let body = json!({"items": [
        {"topic": "a", "payload": 1},
        {"topic": "B"},
        {"topic": "c", "idempotency_key": "k"},
        {"topic": "c", "idempotency_key": "k"},
        {"topic": "d", "idempotency_key": "k"},
    ]});
    let answer = gate.post("/api/v1/jobs/batch", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let items = answer.json["items"].as_array().unwrap();
    let statuses: Vec<u64> = items.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [202, 422, 202, 202, 422]);
    assert_eq!(items[1]["error"]["errors"][0]["pointer"], "/items/1/topic");
    assert_eq!(items[2]["job"]["id"], items[3]["job"]["id"]);
    assert_eq!(items[3]["replayed"], true);
    assert_eq!(items[4]["error"]["code"], "idempotency_mismatch");
    assert_eq!(gate.count_jobs().await, 2);
    let again = gate.post_keyed("/api/v1/jobs", "k", &json!({"topic": "c"})).await;
    assert_eq!(again.json["id"], items[2]["job"]["id"], "an item's key is the same as a header's");
}

#[tokio::test]
async fn a_repeated_batch_makes_no_new_jobs() {
    let gate = Gate::start(&[]).await;
    let items: Vec<_> = (0..700).map(|n| json!({"topic": "t", "payload": n})).collect();
    let body = json!({"items": items});
    let first = gate.post_keyed("/api/v1/jobs/batch", "batch-1", &body).await;
    let second = gate.post_keyed("/api/v1/jobs/batch", "batch-1", &body).await;
    let ids = |answer: &crate::gate::Answer| -> Vec<String> {
        let items = answer.json["items"].as_array().unwrap();
        items.iter().map(|item| item["job"]["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&first).len(), 700);
    assert_eq!(ids(&first), ids(&second));
    let one = gate.get(&format!("/api/v1/jobs/{}", ids(&first)[123])).await;
    assert_eq!(one.json["payload"], 123, "answers are in order");
}
