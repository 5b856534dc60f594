//! Tests of the check of a workflow's definition: YAML and JSON, every fault with its place, bounded in size.

use std::{cell::Cell, time::Instant};

use bytes::Bytes;
use reqwest::Method;
use serde_json::json;

use crate::gate::{Answer, Gate};

const PATH: &str = "/api/v1/workflows/validate";

async fn check(gate: &Gate, kind: &str, text: impl Into<Bytes>) -> Answer {
    gate.send(Method::POST, PATH, &[("content-type", kind)], Some(text.into().to_vec())).await
}

#[tokio::test]
async fn a_definition_is_checked_as_yaml_and_as_json_and_every_fault_is_named() {
    let gate = Gate::start(&[]).await;
    let yaml = "steps:\n  - id: a\n    job: {topic: mail.send}\n  - id: b\n    needs: [a]\n    set: \"${{ steps.a.result.n }}\"\n";
    let fine = check(&gate, "application/yaml", yaml).await;
    assert_eq!((fine.status.as_u16(), &fine.json["steps"]), (200, &json!(2)), "{}", fine.text);
    let again = check(&gate, "application/json", fine.json["definition"].to_string()).await;
    assert_eq!(again.json["definition"], fine.json["definition"], "the form of a definition is a definition");

    let faulty = yaml.replace("needs", "neds").replace("steps.a", "steps.x");
    let refused = check(&gate, "text/yaml; charset=utf-8", faulty).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (422, "unknown_field"), "{}", refused.text);
    assert!(
        refused.pointers().contains(&"/steps/1/neds") && refused.text.contains("line 5, column 5"),
        "{}",
        refused.text
    );
    let itself = json!({"steps": [{"id": "a", "workflow": {"name": "ship"}}]}).to_string();
    assert_eq!(check(&gate, "application/json", itself.clone()).await.status, 200);
    let headers = [("content-type", "application/json")];
    let named = gate.send(Method::POST, &format!("{PATH}?name=ship"), &headers, Some(itself.into())).await;
    assert_eq!(named.status, 422, "{}", named.text);

    assert_eq!(check(&gate, "text/plain", yaml).await.code(), "unsupported_media_type");
    assert_eq!(check(&gate, "application/json", yaml).await.status, 422, "YAML that is declared as JSON");
    assert_eq!(check(&gate, "application/yaml", " ".repeat(300 * 1024)).await.status, 413);
    let schema = gate.get("/api/v1/schemas/workflow").await;
    assert_eq!(schema.json["$schema"], "https://json-schema.org/draft/2020-12/schema", "{}", schema.text);
}

#[tokio::test]
async fn definitions_that_are_expensive_to_check_delay_no_submit() {
    let gate = Gate::start(&[]).await;
    // The longest expressions that may be, in as many steps as fit.
    let long = format!("1{}", "+1".repeat(2_000));
    let steps: Vec<_> =
        (0..50).map(|n| json!({"id": format!("s{n}"), "when": format!("{long} > 0"), "set": 1})).collect();
    let text = json!({"steps": steps}).to_string();
    // On a busy machine, the first submit may take longer than four checks.
    let submits = Cell::new(0);
    let checks = async {
        for n in 0..100 {
            if n >= 4 && submits.get() > 0 {
                break;
            }
            let answer = check(&gate, "application/json", text.clone()).await;
            assert!([200, 422].contains(&answer.status.as_u16()), "{}", answer.text);
        }
    };
    let mut late = 0;
    tokio::select! {
        () = checks => {}
        () = async {
            loop {
                let began = Instant::now();
                let answer = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
                assert!([202, 503].contains(&answer.status.as_u16()), "{}", answer.text);
                submits.set(submits.get() + 1);
                late += u32::from(answer.status == 503 || began.elapsed().as_secs() >= 2);
            }
        } => {}
    }
    let submits = submits.get();
    assert!(submits > 0, "no submit was answered while definitions were checked");
    // On a machine that stands still for seconds one or two are late; if a check delayed them, most would be.
    assert!(late <= 2 || late * 10 <= submits, "{late} of {submits} submits were late");
}
