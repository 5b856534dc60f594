//! Dead letters and bulk operations: jobs that ended badly are found and counted, and a bulk operation does to each
//! job exactly what it should, also if the gateway that carries it out dies.

#[path = "dead_letters/offers.rs"]
mod offers;

use std::{collections::HashSet, process::Command, time::Duration};

use muster_bus::subjects;
use muster_sdk::HandlerError;
use muster_testkit::{bin, until};
use muster_tests::{Executions, Options, Probe, Setup, Stack, TestWorker, by_hand::bus_of};
use muster_wire::{Body, v1};
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// A worker that fails jobs for good with the error code in the payload, and succeeds if there is none.
fn failing(runs: &Executions, stack: &Stack, topic: &str) -> TestWorker {
    let mut setup = Setup::new(&format!("w-{topic}"), topic);
    setup.slots = 32;
    runs.worker(stack, setup, |_, payload: Value| async move {
        match payload["code"].as_str() {
            Some(code) => Err(HandlerError::permanent("broken").code(code)),
            None => Ok(payload),
        }
    })
}

/// Everything that a list shows, over all its pages.
async fn all(gateway: &Probe, path: &str) -> Vec<Value> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let separator = if path.contains('?') { '&' } else { '?' };
        let page = gateway.get(&format!("{path}{separator}limit=70&cursor={cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        found.extend(page.body["items"].as_array().expect("items").iter().cloned());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return found,
        }
    }
}

fn ids(items: &[Value]) -> HashSet<String> {
    items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
}

async fn asked(gateway: &Probe, body: Value) -> String {
    let answer = gateway.post("/jobs/bulk", &body).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    assert_eq!(answer.header("location"), Some(format!("/api/v1/operations/{}", answer.id()).as_str()));
    answer.id()
}

/// Waits until the operation has ended, and returns it.
async fn over(gateway: &Probe, id: &str) -> Value {
    let path = format!("/api/v1/operations/{id}");
    until(SOON, "the operation to end", async || {
        // Either gateway may carry out the operation, so the gateway that is asked may be the one that died.
        let operation = gateway.send(Method::GET, &path, &[], None).await.ok()?.body;
        (operation["done"] == json!(true)).then_some(operation)
    })
    .await
}

fn counts(matched: u64, done: u64, skipped: u64) -> Value {
    json!({"matched": matched, "done": done, "skipped": skipped, "failed": 0})
}

async fn dead(gateway: &Probe, n: usize) -> Vec<Value> {
    until(SOON, "the dead letters", async || Some(all(gateway, "/dlq").await).filter(|dead| dead.len() == n)).await
}

#[tokio::test]
async fn a_bulk_retry_makes_one_new_job_of_each_though_its_gateway_dies() {
    let folder = tempfile::tempdir().unwrap();
    let killed = folder.path().join("killed");
    let points = format!("bulk.after_act=kill:{}", killed.display());
    let stack = Stack::with(Options::two().env("MUSTER_FAILPOINTS", points)).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let (_a, _b) = (failing(&runs, &stack, "mail"), failing(&runs, &stack, "bills"));
    let job = |topic: &str, code: &str| json!({"topic": topic, "payload": {"code": code}, "labels": {"of": code}});
    let mut mails = one.submit_many(100, &job("mail", "smtp")).await;
    mails.extend(two.submit_many(50, &job("mail", "dns")).await);
    one.submit_many(50, &job("bills", "dns")).await;
    one.submit_many(10, &json!({"topic": "mail"})).await;

    let found = dead(&two, 200).await;
    assert_eq!(ids(&found).len(), 200, "each once");
    for item in &found {
        assert_eq!((&item["kind"], &item["state"]), (&json!("job"), &json!("failed")));
        assert_eq!(item["error"]["message"], "broken");
        assert_eq!(item["reason"], "failed for good on attempt 1 of 5");
    }
    let finished: Vec<&str> = found.iter().filter_map(|item| item["finished_at"].as_str()).collect();
    assert!(finished.windows(2).all(|pair| pair[0] >= pair[1]), "newest first");
    assert_eq!(all(&one, "/dlq?topic=mail&error_code=dns").await.len(), 50);
    let summary = two.get("/dlq/summary").await.body;
    assert_eq!((&summary["counted"], &summary["more"]), (&json!(200), &json!(false)));
    assert_eq!(summary["by_topic"], json!([{"topic": "mail", "count": 150}, {"topic": "bills", "count": 50}]));
    let codes = summary["by_error_code"].as_array().unwrap();
    assert_eq!(codes.len(), 2);
    assert!(codes.iter().all(|code| code["count"] == 100), "{summary}");
    assert_eq!(summary["by_state"], json!([{"state": "failed", "count": 200}]));
    let causes = summary["by_cause"].as_array().unwrap();
    assert_eq!(causes.len(), 2, "{summary}");
    for cause in causes {
        assert_eq!((&cause["kind"], &cause["state"], &cause["count"]), (&json!("job"), &json!("failed"), &json!(100)));
        let same = found.iter().filter(|item| item["error"]["code"] == cause["cause"]);
        let last = same.filter_map(|item| item["finished_at"].as_str()).max();
        assert_eq!(cause["last_seen"].as_str(), last, "{summary}");
    }

    // One job was retried by hand before: the bulk retry leaves it alone.
    let by_hand = one.post(&format!("/jobs/{}/retry", mails[0]), &json!({})).await;
    assert_eq!(by_hand.status, 202);
    one.ended(&by_hand.id(), SOON).await;
    dead(&one, 201).await;
    let filter = json!({"topic": "mail"});
    let dry = two.post("/jobs/bulk", &json!({"action": "retry", "filter": filter, "dry_run": true})).await;
    let wanted = json!({"dry_run": true, "action": "retry", "matched": 151, "skipped": 1, "more": false});
    assert_eq!((dry.status.as_u16(), &dry.body), (200, &wanted));
    assert!(!killed.exists(), "a dry run touches nothing");

    let before = runs.all().len();
    let id = asked(&one, json!({"action": "retry", "filter": filter})).await;
    until(SOON, "its gateway to die", async || killed.exists().then_some(())).await;
    let operation = over(&two, &id).await;
    assert_eq!((&operation["status"], &operation["counts"]), (&json!("done"), &counts(151, 150, 1)), "{operation}");
    assert!(operation["finished_at"].is_string() && operation["carried_by"].is_string());

    // There is exactly one new job for each, and each ran once and failed again.
    dead(&two, 201 + 150).await;
    let new: Vec<Value> =
        all(&two, "/jobs?topic=mail").await.into_iter().filter(|job| job["retry_of"].is_string()).collect();
    let of: HashSet<&str> = new.iter().filter_map(|job| job["retry_of"].as_str()).collect();
    assert_eq!((new.len(), of.len()), (151, 151), "one of each, the one by hand included");
    assert!(mails.iter().all(|id| of.contains(id.as_str())));
    assert_eq!(runs.all().len() - before, 150);
    assert!(runs.counts().values().all(|n| *n == 1));
    for id in &mails[..3] {
        assert!(two.job(id).await["retried_as"].is_string());
    }
    // The failed retries did not exist when the operation was requested: an operation never retries its own retries.
    let again = two.post("/jobs/bulk", &json!({"action": "retry", "filter": filter, "dry_run": true})).await;
    assert_eq!((again.field("matched"), again.field("skipped")), (&json!(301), &json!(151)));
}

#[tokio::test]
async fn bulk_cancels_and_deletes_stop_where_they_are_told() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let waiting = one.submit_many(60, &json!({"topic": "idle", "labels": {"batch": "a"}})).await;
    let later = one.submit_many(5, &json!({"topic": "idle", "delay_ms": 3_600_000})).await;

    // First a canary of three jobs.
    let filter = json!({"topic": "idle", "labels": {"batch": "a"}});
    let id = asked(&one, json!({"action": "cancel", "filter": filter, "canary": 3})).await;
    let canary = over(&two, &id).await;
    assert_eq!((&canary["status"], &canary["counts"]["done"]), (&json!("canary"), &json!(3)), "{canary}");
    // Then slowly, and ended half-way.
    let id = asked(&two, json!({"action": "cancel", "filter": filter, "rate_per_s": 4})).await;
    until(SOON, "some progress", async || {
        let done = one.get(&format!("/operations/{id}")).await.body["counts"]["done"].as_u64();
        done.filter(|n| *n >= 2)
    })
    .await;
    for _ in 0..2 {
        let ended = one.post(&format!("/operations/{id}/cancel"), &json!({})).await;
        assert_eq!((ended.status.as_u16(), ended.field("status")), (200, &json!("cancelled")), "{}", ended.text);
    }
    // Then the rest.
    let id = asked(&two, json!({"action": "cancel", "filter": filter, "rate_per_s": 5000})).await;
    let rest = over(&one, &id).await;
    assert_eq!(rest["status"], "done", "{rest}");
    assert!(rest["counts"]["done"].as_u64().unwrap() > 20, "the one before was ended half-way: {rest}");
    assert_eq!(one.post(&format!("/operations/{id}/cancel"), &json!({})).await.field("code"), "job_done");
    for id in &waiting {
        assert_eq!(two.job(id).await["state"], "cancelled");
    }
    for id in &later {
        assert_eq!(two.job(id).await["state"], "scheduled", "without the label");
    }

    let body = json!({"action": "delete", "filter": {"state": ["cancelled"], "topic": "idle"}, "rate_per_s": 5000});
    assert_eq!(over(&two, &asked(&one, body).await).await["counts"], counts(60, 60, 0));
    assert_eq!(ids(&all(&two, "/jobs").await), later.into_iter().collect());
    assert_eq!(all(&one, "/operations").await.len(), 4);

    // Invalid requests are refused, and the same request is the same operation.
    let wrong = one.post("/jobs/bulk", &json!({"action": "delete", "filter": {}})).await;
    assert_eq!((wrong.status.as_u16(), &wrong.body["errors"][0]["pointer"]), (422, &json!("/filter/state")));
    let body = json!({"action": "cancel", "filter": {"topic": "nothing"}}).to_string();
    let twice = async |gateway: &Probe, body: &str| {
        let (method, headers) = (reqwest::Method::POST, [("Idempotency-Key", "once")]);
        gateway.send(method, "/api/v1/jobs/bulk", &headers, Some(body.into())).await.unwrap()
    };
    let (first, second) = (twice(&one, &body).await, twice(&two, &body).await);
    assert_eq!((first.id(), second.header("idempotency-replayed")), (second.id(), Some("true")));
    assert_eq!(twice(&one, &body.replace("cancel", "retry")).await.field("code"), "idempotency_mismatch");
}

#[tokio::test]
async fn another_tenant_sees_and_touches_nothing() {
    let stack = Stack::with(Options::default()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = failing(&runs, &stack, "mail");
    gateway.submit_many(20, &json!({"topic": "mail", "payload": {"code": "smtp"}})).await;
    dead(&gateway, 20).await;
    let key = json!({"name": "t", "tenant": "acme", "scopes": ["read", "control"]});
    let key = gateway.for_tenant("acme").post("/keys", &key).await.field("key").as_str().unwrap().to_owned();
    let theirs = gateway.with_key(Some(&key));
    assert_eq!(all(&theirs, "/dlq").await.len(), 0);
    assert_eq!(theirs.get("/dlq/summary").await.field("counted"), &json!(0));
    let id = asked(&theirs, json!({"action": "delete", "filter": {"state": ["failed"]}})).await;
    assert_eq!(over(&theirs, &id).await["counts"], counts(0, 0, 0));
    assert_eq!(gateway.get(&format!("/operations/{id}")).await.status, 404, "nor the other way round");
    assert_eq!(all(&gateway, "/dlq").await.len(), 20);

    // The tenant of an undecodable message is unknown: a tenant's key does not see the message.
    let letter =
        v1::DeadLetter { subject: "sys.job.submit".into(), reason: "odd".into(), original: vec![1, 2, 3].into() };
    let bus = bus_of(&stack, "stranger").await;
    bus.publish(&subjects::dlq(), None, None, Body::DeadLetter(letter)).await.unwrap();
    let messages = until(SOON, "the message", async || {
        Some(all(&gateway, "/dlq?kind=message").await).filter(|found| !found.is_empty())
    })
    .await;
    assert_eq!(messages.len(), 1);
    assert_eq!((&messages[0]["kind"], &messages[0]["reason"]), (&json!("message"), &json!("odd")));
    assert_eq!((&messages[0]["subject"], &messages[0]["size"]), (&json!("sys.job.submit"), &json!(3)));
    let summary = gateway.get("/dlq/summary").await.body;
    assert_eq!(summary["messages"], 1);
    let causes = summary["by_cause"].as_array().unwrap();
    assert_eq!((causes.len(), &causes[0]["cause"], &causes[0]["count"]), (2, &json!("smtp"), &json!(20)), "{summary}");
    let wanted = json!({"kind": "message", "cause": "undecodable", "subject": "sys.job.submit", "reason": "odd",
        "count": 1, "last_seen": messages[0]["found_at"]});
    assert_eq!(causes[1], wanted);
    let seen_by_them = theirs.get("/dlq/summary").await.body;
    assert_eq!(seen_by_them["by_cause"], json!([]), "of no other tenant's, and of no message");
    assert_eq!(theirs.get("/dlq?kind=message").await.status, 403);
    assert!(theirs.get("/dlq/summary").await.body.get("messages").is_none());

    // The same from the command line.
    let muster = |args: &[&str]| {
        let state = stack.folder().join("stack.json");
        let said = Command::new(bin("muster")).arg("--state-file").arg(state).args(args).output().unwrap();
        assert!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    };
    let list: Value = serde_json::from_str(&muster(&["dlq", "list", "--topic", "mail", "-o", "json"])).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 20);
    assert_eq!(muster(&["dlq", "list", "--limit", "5"]).lines().filter(|line| line.contains("smtp")).count(), 5);
    assert!(muster(&["dlq", "list", "--messages"]).contains("sys.job.submit"));
    let summary = muster(&["dlq", "summary"]);
    assert!(summary.contains("smtp") && summary.contains("20 jobs"), "{summary}");
    assert_eq!(muster(&["dlq", "retry", "--topic", "mail", "--dry-run"]), "20 match; nothing was changed\n");
    let retried = muster(&["dlq", "retry", "--error-code", "smtp", "--canary", "2", "--wait", "-o", "json"]);
    let retried: Value = serde_json::from_str(&retried).unwrap();
    assert_eq!((&retried["status"], &retried["counts"]["done"]), (&json!("canary"), &json!(2)));
    let id = retried["id"].as_str().unwrap();
    assert!(muster(&["operation", "get", id]).contains("canary"));
    assert!(muster(&["operation", "list"]).contains(id));

    // An operator deletes a message and a job by the ids in the list; a tenant's key may not delete a message.
    let message = messages[0]["id"].as_str().unwrap();
    let path = format!("/api/v1/dlq/messages/{message}");
    let delete = async |who: &Probe| who.send(Method::DELETE, &path, &[], None).await.unwrap().status.as_u16();
    assert_eq!(delete(&theirs).await, 403);
    assert_eq!(all(&gateway, "/dlq?kind=message").await.len(), 1);
    assert_eq!(muster(&["dlq", "delete", message]), format!("{message} is gone\n"));
    assert!(all(&gateway, "/dlq?kind=message").await.is_empty());
    assert_eq!(gateway.get("/dlq/summary").await.field("messages"), &json!(0));
    assert_eq!(delete(&gateway).await, 404);
    let told = gateway.get("/audit?action=message_delete").await.body;
    assert_eq!(told["items"].as_array().map(Vec::len), Some(1), "{told}");
    // The two retried jobs fail again.
    let before = dead(&gateway, 22).await;
    let job = before[0]["id"].as_str().unwrap();
    assert_eq!(muster(&["dlq", "delete", job]), format!("{job} is gone\n"));
    assert_eq!(ids(&all(&gateway, "/dlq").await), ids(&before[1..]));

    let gone = muster(&["job", "bulk", "delete", "--state", "failed", "--wait", "--rate", "5000", "-o", "json"]);
    let gone: Value = serde_json::from_str(&gone).unwrap();
    assert_eq!(gone["status"], "done", "{gone}");
}
