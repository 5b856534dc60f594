//! The answers of the gateway match its own OpenAPI document.

use reqwest::Method;
use serde_json::{Value, json};

use crate::gate::{Answer, Gate};

/// The schema that the document declares for this answer, as a separate schema; `None` if the answer is not JSON.
fn promised(document: &Value, method: &str, path: &str, status: u16) -> Option<Value> {
    let answers = &document["paths"][path][method]["responses"];
    let content = &answers[status.to_string()]["content"];
    let mut schema = content["application/json"]["schema"].as_object()?.clone();
    schema.insert("components".to_owned(), document["components"].clone());
    Some(schema.into())
}

fn keeps(document: &Value, method: &str, path: &str, answer: &Answer) {
    let schema = promised(document, method, path, answer.status.as_u16());
    let schema =
        schema.unwrap_or_else(|| panic!("{method} {path}: nothing is said of {}: {}", answer.status, answer.text));
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let faults: Vec<String> =
        schema.iter_errors(&answer.json).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    assert!(faults.is_empty(), "{method} {path}: {faults:#?}\n{}", answer.text);
}

#[tokio::test]
async fn answers_have_the_shape_that_the_document_says() {
    let gate = Gate::start(&[]).await;
    let document = gate.get("/openapi.json").await.json;
    let settings = json!({
        "concurrency": {"max": 2}, "rate": {"per_s": 1.5}, "retry": {"max_attempts": 3}, "retention": {"failed_ms": 7_200_000},
    });
    let headers = [("content-type", "application/json")];
    let told = gate.send(Method::PUT, "/api/v1/topics/mail", &headers, Some(settings.to_string().into())).await;
    keeps(&document, "put", "/api/v1/topics/{topic}", &told);
    let paused = gate.post("/api/v1/topics/mail/pause", &json!({"reason": "a test"})).await;
    keeps(&document, "post", "/api/v1/topics/{topic}/pause", &paused);
    let job = gate.post("/api/v1/jobs", &json!({"topic": "mail", "payload": [1], "labels": {"a": "b"}})).await;
    keeps(&document, "post", "/api/v1/jobs", &job);
    let batch = json!({"items": [{"topic": "mail", "idempotency_key": "one"}, {"topic": "No"}]});
    for _ in 0..2 {
        keeps(&document, "post", "/api/v1/jobs/batch", &gate.post("/api/v1/jobs/batch", &batch).await);
    }
    let key = gate.post("/api/v1/keys", &json!({"name": "k", "tenant": gate.tenant(), "scopes": ["read"]})).await;
    keeps(&document, "post", "/api/v1/keys", &key);

    let workflow =
        json!({"description": "one job", "steps": [{"id": "a", "job": {"topic": "mail"}}, {"id": "b", "set": 1}]});
    let body = Some(workflow.to_string().into_bytes());
    let stored = gate.send(Method::PUT, "/api/v1/workflows/order", &headers, body).await;
    keeps(&document, "put", "/api/v1/workflows/{name}", &stored);
    let start = json!({"input": {"a": 1}, "labels": {"b": "c"}});
    let run = gate.post("/api/v1/workflows/order/runs?wait_ms=1", &start).await;
    keeps(&document, "post", "/api/v1/workflows/{name}/runs", &run);
    let run = run.json["id"].as_str().unwrap();
    for (path, part) in [
        ("/api/v1/workflows/{name}", "order"),
        ("/api/v1/workflows/{name}/versions", "order"),
        ("/api/v1/runs/{id}", run),
    ] {
        keeps(&document, "get", path, &gate.get(&path.replace("{name}", part).replace("{id}", part)).await);
    }

    let id = job.json["id"].as_str().unwrap();
    for (method, path) in [
        ("get", "/api/v1/jobs/{id}"),
        ("get", "/api/v1/jobs/{id}/history"),
        ("get", "/api/v1/jobs/{id}/explain"),
        ("get", "/api/v1/topics/{topic}"),
        ("post", "/api/v1/jobs/{id}/cancel"),
        ("post", "/api/v1/jobs/{id}/retry"),
    ] {
        let named = path.replace("{id}", id).replace("{topic}", "mail");
        let answer = if method == "get" { gate.get(&named).await } else { gate.post(&named, &json!({})).await };
        keeps(&document, method, path, &answer);
    }
    // Every read without a name in its path. The lists have entries to show.
    let mut read = 0;
    for path in document["paths"].as_object().unwrap().keys().filter(|path| !path.contains('{')) {
        if promised(&document, "get", path, 200).is_some() {
            keeps(&document, "get", path, &gate.get(path).await);
            read += 1;
        }
    }
    assert!(read > 10, "{read}");
    for path in ["/api/v1/jobs", "/api/v1/topics", "/api/v1/keys", "/api/v1/audit", "/api/v1/workflows"] {
        assert_ne!(gate.get(path).await.json["items"], json!([]), "{path}");
    }
}
