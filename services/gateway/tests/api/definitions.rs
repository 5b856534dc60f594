//! Tests of stored definitions: versions, conditions, who may see them, lists, graphs, deletion.

use reqwest::Method;
use serde_json::{Value, json};

use crate::gate::{Answer, Gate, fresh_tenant};

/// A definition with one job.
pub(crate) fn of_topic(topic: &str) -> Value {
    json!({"steps": [{"id": "a", "job": {"topic": topic}}]})
}

pub(crate) async fn put(gate: &Gate, name: &str, definition: &Value) -> Answer {
    put_if(gate, name, definition, None).await
}

async fn put_if(gate: &Gate, name: &str, definition: &Value, seen: Option<&str>) -> Answer {
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(seen.map(|seen| ("if-match", seen)));
    gate.send(Method::PUT, &format!("/api/v1/workflows/{name}"), &headers, Some(definition.to_string().into())).await
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers[name].to_str().unwrap()
}

fn names(page: &Answer) -> Vec<&str> {
    page.json["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn versions_count_from_one_and_what_means_the_same_makes_none() {
    let gate = Gate::start(&[]).await;
    let path = "/api/v1/workflows/order";
    assert_eq!(gate.get(path).await.code(), "not_found");
    let first = put(&gate, "order", &of_topic("a")).await;
    assert_eq!((first.status.as_u16(), &first.json["version"]), (201, &json!(1)), "{}", first.text);
    assert_eq!((header(&first, "etag"), header(&first, "location")), ("\"1\"", path));
    assert_eq!((&first.json["name"], &first.json["definition"]), (&json!("order"), &of_topic("a")));

    let yaml = "# the same, in other words\nsteps:\n  - job: {topic: a}\n    run_if: success\n    id: a\n";
    let headers = [("content-type", "application/yaml")];
    let same = gate.send(Method::PUT, path, &headers, Some(yaml.into())).await;
    assert_eq!((same.status.as_u16(), &same.json), (200, &first.json), "{}", same.text);
    let second = put(&gate, "order", &of_topic("b")).await;
    assert_eq!((second.status.as_u16(), &second.json["version"]), (200, &json!(2)), "{}", second.text);
    let latest = gate.get(path).await;
    assert_eq!((&latest.json, header(&latest, "etag")), (&second.json, "\"2\""));

    let versions = gate.get(&format!("{path}/versions")).await;
    let numbers: Vec<_> = versions.json["items"].as_array().unwrap().iter().map(|item| &item["version"]).collect();
    assert_eq!(numbers, [2, 1], "{}", versions.text);
    assert_eq!(versions.json["items"][1]["created_at"], first.json["created_at"]);
    assert_eq!(gate.get(&format!("{path}/versions/1")).await.json, first.json);
    for none in ["versions/3", "versions/0", "versions/x", "versions/-1"] {
        assert_eq!(gate.get(&format!("{path}/{none}")).await.code(), "not_found", "{none}");
    }
    assert_eq!(gate.get("/api/v1/workflows/nobody/versions").await.code(), "not_found");
    assert_eq!(put(&gate, "Not%20A%20Name", &of_topic("a")).await.code(), "not_found");
}

#[tokio::test]
async fn a_write_that_saw_another_version_changes_nothing() {
    let gate = Gate::start(&[]).await;
    let conflict = async |definition: &Value, seen: &str| {
        let answer = put_if(&gate, "order", definition, Some(seen)).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (412, "precondition_failed"), "{seen}: {}", answer.text);
    };
    conflict(&of_topic("a"), "*").await;
    conflict(&of_topic("a"), "\"1\"").await;
    assert_eq!(gate.get("/api/v1/workflows/order").await.status, 404);
    assert_eq!(put_if(&gate, "order", &of_topic("a"), Some("\"0\"")).await.status, 201);
    conflict(&of_topic("b"), "\"0\"").await;
    assert_eq!(put_if(&gate, "order", &of_topic("b"), Some("\"1\"")).await.json["version"], 2);
    conflict(&of_topic("c"), "\"1\"").await;
    let delete = async |seen: &str| {
        gate.send(Method::DELETE, "/api/v1/workflows/order", &[("if-match", seen)], None).await.status.as_u16()
    };
    assert_eq!(delete("\"1\"").await, 412);
    assert_eq!(gate.get("/api/v1/workflows/order").await.json["definition"], of_topic("b"));
    assert_eq!(delete("\"2\"").await, 204);
    conflict(&of_topic("c"), "\"2\"").await;
}

#[tokio::test]
async fn a_definition_with_a_fault_is_refused_and_not_stored() {
    let gate = Gate::start(&[]).await;
    let unknown = put(&gate, "order", &json!({"steps": [{"id": "a", "set": 1, "neds": []}]})).await;
    assert_eq!((unknown.status.as_u16(), unknown.code()), (422, "unknown_field"), "{}", unknown.text);
    let itself = put(&gate, "order", &json!({"steps": [{"id": "a", "workflow": {"name": "order"}}]})).await;
    assert_eq!((itself.status.as_u16(), itself.code()), (422, "invalid_request"), "{}", itself.text);
    let votes = json!({"steps": [{"id": "a", "steps": [{"id": "ok", "approval": {"title": "may it?"}}]}]});
    let unserved = put(&gate, "order", &votes).await;
    assert_eq!((unserved.status.as_u16(), unserved.code()), (422, "unsupported_field"), "{}", unserved.text);
    assert_eq!(unserved.pointers(), ["/steps/0/steps/0/approval"]);
    assert_eq!(gate.post("/api/v1/workflows/validate", &votes).await.status, 200, "it is a definition");
    let lookaround = json!({"input": {"pattern": "(?=x)"}, "steps": [{"id": "a", "set": 1}]});
    let costly = put(&gate, "order", &lookaround).await;
    assert!(costly.status == 422 && costly.pointers()[0].starts_with("/input"), "{}", costly.text);
    // As JSON, each quote is two bytes.
    let yaml = format!("steps: [{{id: a, set: 'x{}'}}]", "\"".repeat(150_000));
    let headers = [("content-type", "application/yaml")];
    let grown = gate.send(Method::PUT, "/api/v1/workflows/order", &headers, Some(yaml.into())).await;
    assert_eq!((grown.status.as_u16(), grown.code()), (413, "payload_too_large"), "{}", grown.text);
    assert_eq!(gate.get("/api/v1/workflows/order").await.status, 404);
    assert_eq!(gate.get("/api/v1/workflows").await.json["items"], json!([]));
}

#[tokio::test]
async fn workflows_are_listed_by_name_page_by_page() {
    let gate = Gate::start(&[]).await;
    assert_eq!(gate.get("/api/v1/workflows").await.json, json!({"items": []}));
    for name in ["ship", "a.b", "order", "zoo", "pack"] {
        let mut definition = of_topic("t");
        definition["description"] = json!(format!("about {name}"));
        assert_eq!(put(&gate, name, &definition).await.status, 201);
    }
    let again = put(&gate, "order", &of_topic("t")).await;
    let all = gate.get("/api/v1/workflows").await;
    assert_eq!(names(&all), ["a.b", "order", "pack", "ship", "zoo"]);
    let order = json!({"name": "order", "version": 2, "updated_at": again.json["created_at"], "steps": 1});
    assert_eq!(all.json["items"][1], order);
    assert_eq!(all.json["items"][3]["description"], "about ship");

    let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = gate.get(&format!("/api/v1/workflows?limit=2&cursor={cursor}")).await;
        seen.extend(names(&page).into_iter().map(str::to_owned));
        pages += 1;
        match page.json["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!((seen.join(" ").as_str(), pages), ("a.b order pack ship zoo", 3));
    assert_eq!(gate.get("/api/v1/workflows?cursor=b.1.2").await.pointers(), ["/query/cursor"]);
    assert_eq!(gate.get("/api/v1/workflows?limit=0&x=1").await.pointers(), ["/query/limit", "/query/x"]);
}

#[tokio::test]
async fn a_definition_that_cannot_be_read_hides_no_other() {
    let gate = Gate::start(&[]).await;
    for name in ["a", "b", "c"] {
        put(&gate, name, &of_topic("t")).await;
    }
    let key = format!("muster:wf:def:{}:b", gate.tenant());
    let newer = r#"{"steps":[{"id":"a","beam":{"to":"orbit"}}]}"#;
    muster_testkit::redis().await.cli(&["HSET", &key, "2", newer, "t2", "7", "n", "2", "h", "other"]).await;
    let listed = gate.get("/api/v1/workflows").await;
    assert_eq!((names(&listed), &listed.json["unreadable"]), (vec!["a", "c"], &json!(["b"])), "{}", listed.text);
    let narrow = gate.with_key(Some(&gate.make_key(&["read", "admin"], &["t"]).await));
    let listed = narrow.get("/api/v1/workflows").await;
    assert!(names(&listed) == ["a", "c"] && listed.json.get("unreadable").is_none(), "{}", listed.text);
    for (method, path) in [("GET", ""), ("GET", "/graph"), ("GET", "/versions/2")] {
        let read = gate.send(method.parse().unwrap(), &format!("/api/v1/workflows/b{path}"), &[], None).await;
        assert_eq!((read.status.as_u16(), read.code()), (500, "internal"), "{}", read.text);
    }
    let start = gate.post("/api/v1/workflows/b/runs", &json!({})).await;
    assert_eq!((start.status.as_u16(), start.code()), (500, "internal"), "{}", start.text);
    assert_eq!(put(&gate, "b", &of_topic("t")).await.json["version"], 3, "it can be replaced");
    assert_eq!(gate.get("/api/v1/workflows").await.json["items"][1]["version"], 3);
}

#[tokio::test]
async fn a_workflow_of_others_is_like_none() {
    let gate = Gate::start(&[]).await;
    put(&gate, "order", &of_topic("pay")).await;
    put(&gate, "letter", &of_topic("mail.send")).await;
    let elsewhere = gate.for_tenant(&fresh_tenant());
    let narrow = gate.with_key(Some(&gate.make_key(&["read", "admin"], &["mail.*"]).await));
    for other in [&elsewhere, &narrow] {
        for path in ["", "/versions", "/versions/1", "/graph"] {
            let answer = other.get(&format!("/api/v1/workflows/order{path}")).await;
            assert_eq!(answer.code(), "not_found", "{path}");
        }
        assert_eq!(other.delete("/api/v1/workflows/order").await.code(), "not_found");
    }
    assert_eq!(names(&elsewhere.get("/api/v1/workflows").await), [""; 0]);
    assert_eq!(names(&narrow.get("/api/v1/workflows").await), ["letter"]);

    // A key for some topics stores definitions with these topics only, and replaces none with others.
    let beyond = put(&narrow, "letter", &of_topic("pay")).await;
    assert_eq!((beyond.status.as_u16(), beyond.code()), (403, "missing_scope"), "{}", beyond.text);
    assert_eq!(put(&narrow, "order", &of_topic("mail.send")).await.status, 403);
    let undo = json!({"steps": [{"id": "a", "job": {"topic": "mail.send"}, "compensate": {"job": {"topic": "pay"}}}]});
    assert_eq!(put(&narrow, "letter", &undo).await.status, 403, "the topics of compensations count");
    assert_eq!(put(&narrow, "letter", &of_topic("mail.other")).await.json["version"], 2);
    assert_eq!(gate.get("/api/v1/workflows/order").await.json["version"], 1);
}

#[tokio::test]
async fn a_deleted_workflow_keeps_its_versions_and_counts_on() {
    let gate = Gate::start(&[]).await;
    let path = "/api/v1/workflows/order";
    let first = put(&gate, "order", &of_topic("a")).await;
    assert_eq!(gate.delete(path).await.status, 204);
    assert_eq!(gate.get(path).await.code(), "not_found");
    assert_eq!(gate.delete(path).await.code(), "not_found");
    assert_eq!(gate.get("/api/v1/workflows").await.json["items"], json!([]));
    assert_eq!(gate.get(&format!("{path}/graph")).await.code(), "not_found");
    assert_eq!(gate.get(&format!("{path}/versions/1")).await.json, first.json);
    assert_eq!(gate.get(&format!("{path}/versions")).await.json["items"][0]["version"], 1);
    let again = put(&gate, "order", &of_topic("a")).await;
    assert_eq!((again.status.as_u16(), &again.json["version"]), (201, &json!(2)), "{}", again.text);
}

#[tokio::test]
async fn a_graph_is_drawn_in_both_formats() {
    let gate = Gate::start(&[]).await;
    put(&gate, "order", &of_topic("pay.card")).await;
    put(&gate, "order", &of_topic("pay.bank")).await;
    let svg = gate.get("/api/v1/workflows/order/graph").await;
    assert_eq!((svg.status.as_u16(), header(&svg, "content-type")), (200, "image/svg+xml"));
    assert!(svg.text.starts_with("<svg") && svg.text.contains("pay.bank"), "{}", svg.text);
    let mermaid = gate.get("/api/v1/workflows/order/graph?format=mermaid&version=1").await;
    assert_eq!(mermaid.headers["content-type"], "text/vnd.mermaid");
    assert!(mermaid.text.starts_with("flowchart") && mermaid.text.contains("pay.card"), "{}", mermaid.text);
    assert_eq!(gate.get("/api/v1/workflows/order/graph?format=png").await.pointers(), ["/query/format"]);
}
