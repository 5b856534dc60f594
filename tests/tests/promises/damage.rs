//! A damaged record in Redis affects only its own job.

use std::{process::Command, time::Duration};

use muster_domain::JobId;
use muster_testkit::{bin, until};
use muster_tests::{Executions, Options, Probe, Setup, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{LONG, SOON, all_ran_once, redis};

const EVERYBODY: [&str; 6] = ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2", "workflow-1", "workflow-2"];

/// The ids that a list shows, and those that it cannot read.
async fn listed(gateway: &Probe) -> (Vec<String>, Vec<String>) {
    let page = gateway.get("/jobs?limit=500").await;
    assert_eq!(page.status, 200, "{}", page.text);
    let items = page.body["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
    let unreadable = page.body["unreadable"].as_array().cloned().unwrap_or_default();
    let mut unreadable: Vec<String> = unreadable.iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    unreadable.sort();
    (items.collect(), unreadable)
}

async fn all_are_ready(stack: &Stack) {
    for name in EVERYBODY {
        until(SOON, &format!("{name} to be ready"), async || stack.ready(name).await.then_some(())).await;
    }
}

fn delete(stack: &Stack, id: &str) -> (bool, String) {
    let state = stack.folder().join("stack.json");
    let said = Command::new(bin("muster")).arg("--state-file").arg(state).args(["job", "delete", id]).output().unwrap();
    (said.status.success(), String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned())
}

#[tokio::test]
async fn three_damaged_records_of_fifty_harm_nobody_and_an_operator_removes_them() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let mut sound = one.submit_many(50, &json!({"topic": "work"})).await;
    // All jobs are decided: offered, or in the backlog.
    until(SOON, "every job to be decided", async || {
        let page = two.get("/jobs?state=pending&limit=1").await;
        (page.body["items"] == json!([])).then_some(())
    })
    .await;
    let mut damaged: Vec<String> = [40, 20, 3].map(|n| sound.remove(n)).into();
    let key = |id: &str| format!("muster:job:{id}");
    redis(&stack, &["HSET", &key(&damaged[0]), "s", "noise"]);
    redis(&stack, &["HSET", &key(&damaged[1]), "d", "noise"]);
    redis(&stack, &["DEL", &key(&damaged[2])]);
    redis(&stack, &["SET", &key(&damaged[2]), "noise"]);
    damaged.sort();

    // Make them due: a scheduler looks at them, and postpones the next look.
    let store = stack.store().await;
    let ids: Vec<JobId> = damaged.iter().map(|id| id.parse().unwrap()).collect();
    store.forward_homes(&ids.iter().map(|id| (*id, Duration::ZERO)).collect::<Vec<_>>()).await.unwrap();
    for id in &ids {
        until(SOON, "it to be put off", async || {
            let home = store.home_of(*id).await.unwrap().expect("a home");
            (home.remaining(store.ping().await.unwrap()) > Duration::from_secs(50)).then_some(())
        })
        .await;
    }
    assert!(stack.metric("scheduler", "muster_unreadable_records_total").await >= 3.0);

    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "work"), |_, payload: Value| async move { Ok(payload) });
    all_ran_once(&one, &runs, &sound).await;

    for gateway in [&one, &two] {
        let (shown, unreadable) = listed(gateway).await;
        assert_eq!((shown.len(), &unreadable), (47, &damaged), "each once");
        assert!(shown.iter().all(|id| sound.contains(id)));
    }
    // A bulk operation skips them.
    let asked = two.post("/jobs/bulk", &json!({"action": "delete", "filter": {"state": ["succeeded"]}})).await;
    assert_eq!(asked.status, 202, "{}", asked.text);
    let operation = until(LONG, "the operation to end", async || {
        let operation = one.get(&format!("/operations/{}", asked.id())).await.body;
        (operation["done"] == json!(true)).then_some(operation)
    })
    .await;
    assert_eq!(operation["counts"], json!({"matched": 47, "done": 47, "skipped": 0, "failed": 0}));
    all_are_ready(&stack).await;

    // A key of one tenant may not delete such a job, and does not learn about it: it may belong to another tenant.
    let key = json!({"name": "theirs", "tenant": "default", "scopes": ["control", "read", "admin"]});
    let made = one.post("/keys", &key).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let theirs = one.with_key(made.body["key"].as_str());
    for id in &damaged {
        for answer in [one.get(&format!("/jobs/{id}")).await, two.get(&format!("/jobs/{id}/explain")).await] {
            assert_eq!((answer.status.as_u16(), answer.field("code")), (500, &json!("job_unreadable")));
        }
        let path = format!("/api/v1/jobs/{id}");
        for (method, path) in [
            (Method::DELETE, path.clone()),
            (Method::GET, path.clone()),
            (Method::GET, format!("{path}/history")),
            (Method::GET, format!("{path}/explain")),
            (Method::POST, format!("{path}/cancel")),
        ] {
            let body = (method == Method::POST).then(|| b"{}".to_vec());
            let refused = theirs.send(method.clone(), &path, &[], body).await.unwrap();
            let told = (refused.status.as_u16(), refused.field("code"));
            assert_eq!(told, (404, &json!("not_found")), "{method} {path}: {}", refused.text);
        }
        let (done, said) = delete(&stack, id);
        assert!(done, "{said}");
        assert_eq!(two.get(&format!("/jobs/{id}")).await.status, 404);
        assert!(!delete(&stack, id).0, "it is gone");
        let told = one.get(&format!("/audit?job_id={id}&action=job_delete")).await;
        assert_eq!(told.body["items"].as_array().map(Vec::len), Some(1), "{}", told.text);
        assert_eq!(told.body["items"][0]["detail"]["unreadable"], true, "{}", told.text);
    }
    assert_eq!(listed(&one).await, (vec![], vec![]));
    assert_eq!(store.count_homes().await.unwrap(), 0, "nobody is looked for any more");
    all_are_ready(&stack).await;
    let log = stack.log("scheduler-1") + &stack.log("scheduler-2");
    assert!(log.contains("record_unreadable"), "it is told");
    assert_eq!(stack.metric("scheduler", "muster_task_panics_total").await, 0.0);
}
