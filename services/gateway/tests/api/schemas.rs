//! Tests of a topic's schema: a payload that does not fit is refused with every wrong place, on every gateway, and
//! nothing is stored.

use std::time::{Duration, Instant};

use muster_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};

use crate::gate::{Answer, Gate};

async fn tell(gate: &Gate, topic: &str, settings: &Value) -> Answer {
    let headers = [("content-type", "application/json")];
    gate.send(Method::PUT, &format!("/api/v1/topics/{topic}"), &headers, Some(settings.to_string().into())).await
}

fn mail() -> Value {
    json!({
        "type": "object",
        "required": ["to"],
        "properties": {"to": {"type": "string"}, "copies": {"type": "array", "items": {"type": "integer"}}},
        "additionalProperties": false,
    })
}

fn sorted(mut pointers: Vec<&str>) -> Vec<&str> {
    pointers.sort_unstable();
    pointers
}

#[tokio::test]
async fn a_payload_that_does_not_fit_is_refused_at_each_wrong_place_and_nothing_is_stored() {
    let gate = Gate::start(&[]).await;
    let told = tell(&gate, "mail", &json!({"schema": mail()})).await;
    assert_eq!((told.status.as_u16(), &told.json["schema"]), (200, &mail()), "{}", told.text);
    assert_eq!(gate.get("/api/v1/topics/mail").await.json["schema"], mail());

    let submit = async |payload: Value| gate.post("/api/v1/jobs", &json!({"topic": "mail", "payload": payload})).await;
    let refused = submit(json!({"to": 7, "copies": [1, "secret", 2, null]})).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (422, "invalid_request"), "{}", refused.text);
    assert_eq!(sorted(refused.pointers()), ["/payload/copies/1", "/payload/copies/3", "/payload/to"]);
    assert!(!refused.text.contains("secret"), "{}", refused.text);
    assert_eq!(submit(json!({"to": "a", "more": 1})).await.pointers(), ["/payload"]);
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "mail"})).await.pointers(), ["/payload"], "none is null");
    assert_eq!(gate.count_jobs().await, 0);
    assert_eq!(submit(json!({"to": "a", "copies": [1]})).await.status, 202);
    let other = gate.post("/api/v1/jobs", &json!({"topic": "other", "payload": 7})).await;
    assert_eq!(other.status, 202, "topics that were told nothing take anything");

    // Each item is checked by itself: those that fit are accepted.
    let item = |payload: Value| json!({"topic": "mail", "payload": payload});
    let items = json!({"items": [item(json!({"to": "a"})), item(json!({"to": 1})), item(json!({"to": "b"}))]});
    let batch = gate.post("/api/v1/jobs/batch", &items).await;
    let statuses: Vec<_> = batch.json["items"].as_array().unwrap().iter().map(|item| item["status"].clone()).collect();
    assert_eq!(statuses, [202, 422, 202], "{}", batch.text);
    assert_eq!(batch.json["items"][1]["error"]["errors"][0]["pointer"], "/items/1/payload/to");
    assert_eq!(gate.count_jobs().await, 4);

    // A retry with another payload or topic is checked. A retry without them uses what was accepted before.
    let id = other.json["id"].as_str().unwrap();
    assert_eq!(gate.post(&format!("/api/v1/jobs/{id}/cancel"), &json!({})).await.status, 200);
    let retry = async |overrides: Value| gate.post(&format!("/api/v1/jobs/{id}/retry"), &overrides).await;
    assert_eq!(retry(json!({"topic": "mail"})).await.pointers(), ["/payload"]);
    assert_eq!(retry(json!({"topic": "mail", "payload": {"to": []}})).await.pointers(), ["/payload/to"]);
    assert_eq!(gate.count_jobs().await, 4);
    assert_eq!(retry(json!({"topic": "mail", "payload": {"to": "c"}})).await.status, 202);
}

#[tokio::test]
async fn a_schema_that_cannot_be_used_is_refused_and_the_old_one_stays() {
    let gate = Gate::start(&[]).await;
    assert_eq!(tell(&gate, "t", &json!({"schema": {"type": "integer"}})).await.status, 200);
    for (schema, pointer) in [
        (json!({"properties": {"a": {"type": "integr"}}}), "/schema/properties/a/type"),
        (json!({"$ref": "http://127.0.0.1:1/s.json"}), "/schema/$ref"),
        (json!({"properties": {"kids": {"items": {"$ref": "#"}}}}), "/schema/properties/kids/items/$ref"),
        (json!(7), "/schema"),
        (json!({"title": "x".repeat(70_000)}), "/schema"),
    ] {
        let refused = tell(&gate, "t", &json!({"schema": schema})).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (422, "invalid_request"), "{}", refused.text);
        assert_eq!(refused.pointers()[0], pointer, "{}", refused.text);
    }
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "t", "payload": "x"})).await.status, 422);
}

#[tokio::test]
async fn another_schema_counts_at_once_on_every_gateway_and_accepted_jobs_stay() {
    let one = Gate::start(&[("MUSTER_LOOP_CONFIG_INTERVAL", "1h")]).await;
    let two = Gate::start(&[("MUSTER_LOOP_CONFIG_INTERVAL", "1h")]).await.for_tenant(one.tenant());
    let job = json!({"topic": "t", "payload": 5});
    assert_eq!(tell(&one, "t", &json!({"schema": {"type": "integer"}})).await.status, 200);
    let first = one.post_keyed("/api/v1/jobs", "k", &job).await;
    assert_eq!(first.status, 202, "{}", first.text);
    assert_eq!(tell(&one, "t", &json!({"schema": {"type": "string"}})).await.status, 200);
    for gate in [&one, &two] {
        until(Duration::from_secs(30), "the news", async || {
            (gate.post("/api/v1/jobs", &job).await.status == 422).then_some(())
        })
        .await;
        let again = gate.post_keyed("/api/v1/jobs", "k", &job).await;
        assert_eq!((again.status.as_u16(), &again.json["id"]), (202, &first.json["id"]), "a repeat: {}", again.text);
        let items = json!({"items": [{"topic": "t", "payload": 5, "idempotency_key": "k"}]});
        let batch = gate.post("/api/v1/jobs/batch", &items).await;
        assert_eq!(batch.json["items"][0]["status"], 202, "{}", batch.text);
    }
    assert_eq!(tell(&two, "t", &json!({})).await.status, 200);
    until(Duration::from_secs(30), "the news", async || {
        (one.post("/api/v1/jobs", &job).await.status == 202).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_costly_judgement_holds_nobody_up() {
    let gate = Gate::start(&[]).await;
    let many: Vec<Value> = (0..60).map(|n| json!({"not": {"const": n}})).collect();
    assert_eq!(tell(&gate, "large", &json!({"schema": {"items": {"allOf": many}}})).await.status, 200);
    let payload: Vec<i32> = (0..60_000).map(|n| -n - 1).collect();
    let large = json!({"topic": "large", "payload": payload});
    let (judged, quick) = tokio::join!(gate.post("/api/v1/jobs", &large), async {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            assert_eq!(gate.get("/livez").await.status, 200);
        }
        begun.elapsed()
    });
    // The payload is checked in time, or refused because the check takes too long. It never hangs, and other requests
    // go on.
    assert!(matches!(judged.status.as_u16(), 202 | 503), "{}", judged.text);
    assert!(quick < Duration::from_secs(10), "{quick:?}");
    let many: Vec<Value> = (0..2_000).map(|n| json!({"not": {"const": n}})).collect();
    assert_eq!(tell(&gate, "larger", &json!({"schema": {"items": {"allOf": many}}})).await.status, 200);
    let refused = gate.post("/api/v1/jobs", &json!({"topic": "larger", "payload": payload})).await;
    assert_eq!((refused.status.as_u16(), refused.pointers()), (422, vec!["/payload"]), "{}", refused.text);
    assert_eq!(gate.post("/api/v1/jobs", &json!({"topic": "larger", "payload": [-1]})).await.status, 202);
}
