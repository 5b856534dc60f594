//! Every end is completed, whichever process dies between an end and its effects, and whenever.

use std::time::Duration;

use muster_testkit::until;
use muster_tests::{Options, Stack};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_cancel_that_a_look_crosses_is_finished_soon_though_its_gateway_dies() {
    let folder = tempfile::tempdir().unwrap();
    let died = folder.path().join("died");
    // Long enough for the reconciler to look at the job in between: it finds an active job, and sets the next look to
    // the job's time, an hour from now.
    let points = format!("cancel.before_apply=delay:8000;cancel.after_forward=kill:{}", died.display());
    let stack = Stack::with(Options::default().env("MUSTER_FAILPOINTS", points)).await;
    let (gateway, store) = (stack.gateway(1), stack.store().await);
    let id = gateway.submit(json!({"topic": "later", "delay_ms": 3_600_000})).await;
    gateway.reaches(&id, "scheduled", SOON).await;
    let body = Some(b"{}".to_vec());
    let path = format!("/api/v1/jobs/{id}/cancel");
    let headers = [("content-type", "application/json")];
    assert!(gateway.send(reqwest::Method::POST, &path, &headers, body).await.is_err(), "its gateway died");
    assert!(died.exists(), "nobody died: are failpoints built in?");
    until(SOON, "the end to be finished", async || (store.count_homes().await == Ok(0)).then_some(())).await;
    let seen = async || gateway.send(reqwest::Method::GET, &format!("/api/v1/jobs/{id}"), &[], None).await.ok();
    let job = until(SOON, "the gateway to be up again", async || seen().await.filter(|it| it.status == 200)).await;
    assert_eq!(job.body["state"], "cancelled");
}
