//! The path of a job: from HTTP submit to its one end, on one replica of everything and on two.

#[path = "path/traces.rs"]
mod traces;

use std::time::Duration;

use muster_tests::{Executions, Options, Setup, Stack};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_job_goes_from_submit_to_succeeded_and_its_story_says_how() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "demo.echo");

    let body =
        r#"{"topic":"demo.echo","payload":{"big":12345678901234567890123,"text":"ü\u0000"},"labels":{"team":"a"}}"#;
    let accepted =
        gateway.send(reqwest::Method::POST, "/api/v1/jobs?wait_ms=20000", &[], Some(body.into())).await.unwrap();
    assert_eq!(accepted.status, 200, "{}", accepted.text);
    assert!(accepted.header("location").is_some_and(|l| l.ends_with(&accepted.id())));
    assert_eq!(accepted.field("state"), "succeeded");
    assert_eq!(accepted.field("attempt"), 1);

    let raw = gateway.get(&format!("/jobs/{}", accepted.id())).await;
    assert!(raw.text.contains("12345678901234567890123"), "payload and result come back exactly: {}", raw.text);
    assert_eq!(raw.field("worker"), "w1");
    assert_eq!(raw.field("done"), true);
    assert_eq!(raw.body["labels"]["team"], "a");
    for moment in ["created_at", "started_at", "finished_at"] {
        assert!(raw.body[moment].as_str().is_some_and(|t| t.ends_with('Z')), "{moment}");
    }

    let history = gateway.history(&accepted.id()).await;
    let states: Vec<&str> =
        history["transitions"].as_array().unwrap().iter().map(|t| t["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["pending", "dispatched", "running", "succeeded"]);
    assert_eq!(runs.all().len(), 1);

    // Nothing is left behind: an ended job has no home.
    let store = stack.store().await;
    muster_testkit::until(SOON, "the home to be removed", async || {
        (store.count_homes().await.unwrap() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn jobs_over_two_gateways_and_two_schedulers_each_start_once() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let mut setup = Setup::new("w1", "bulk");
    setup.slots = 64;
    let _first = runs.worker(&stack, setup.clone(), |_, p| async move { Ok(p) });
    setup.id = "w2".into();
    let _second = runs.worker(&stack, setup, |_, p| async move { Ok(p) });

    let job = json!({"topic": "bulk", "payload": {"n": 1}});
    let (a, b) = tokio::join!(one.submit_many(1000, &job), two.submit_many(1000, &job));
    let ids = [a, b].concat();
    for id in &ids {
        assert_eq!(one.ended(id, Duration::from_secs(60)).await["state"], "succeeded");
    }
    let counts = runs.counts();
    assert_eq!(counts.len(), 2000);
    assert!(counts.values().all(|n| *n == 1), "each started exactly once");
    // The job is read on the other gateway, and the end counted once over all replicas.
    assert_eq!(two.job(&ids[0]).await["state"], "succeeded");
    let counted = async || (stack.metric("scheduler", "muster_jobs_total").await == 2000.0).then_some(());
    // An end is counted when its effects are done, which is after it can be read.
    muster_testkit::until(SOON, "2000 ends to be counted", counted).await;
}

#[tokio::test]
async fn a_job_longer_than_its_lease_keeps_its_one_attempt() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let mut setup = Setup::new("w1", "long");
    setup.lease = Duration::from_secs(4);
    let _worker = runs.worker(&stack, setup, |_, _| async {
        tokio::time::sleep(Duration::from_secs(13)).await;
        Ok(json!("done"))
    });
    let id = gateway.submit(json!({"topic": "long"})).await;
    let job = gateway.ended(&id, Duration::from_secs(60)).await;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)));
    assert_eq!(runs.all().len(), 1);
}

#[tokio::test]
async fn progress_and_trace_context_travel_with_the_job() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "traced"), |ctx, _| async move {
        ctx.progress(40.0, "half-way", None);
        let trace = ctx.traceparent().map(|t| t.to_string());
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(json!({ "trace": trace }))
    });
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let body = Some(json!({"topic": "traced"}).to_string().into_bytes());
    let answer = gateway.send(reqwest::Method::POST, "/api/v1/jobs", &[("traceparent", parent)], body).await.unwrap();
    let id = answer.id();
    muster_testkit::until(SOON, "progress to be shown", async || {
        (gateway.job(&id).await["progress"]["percent"].as_f64() == Some(40.0)).then_some(())
    })
    .await;
    let job = gateway.ended(&id, SOON).await;
    let trace = job["result"]["trace"].as_str().unwrap();
    assert!(trace.contains("4bf92f3577b34da6a3ce929d0e0e4736"), "the same trace: {trace}");
}
