//! Everything is restarted under load, one after the other, and nobody outside notices.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use muster_sdk::{Client, JobRequest};
use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{SOON, one_end};

#[tokio::test]
async fn a_rolling_restart_under_load_costs_no_attempt_and_fails_no_request() {
    let stack = Stack::with(Options::two()).await;
    let gateways = [1, 2].map(|n| stack.process(&format!("gateway-{n}")).http.unwrap());
    let client = Client::new(gateways, stack.state().api_key).unwrap();
    let runs = Executions::default();
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(payload)
    };
    let worker = |id: &str| {
        let setup = Setup { slots: 16, lease: Duration::from_secs(8), ..Setup::new(id, "rolling") };
        runs.worker(&stack, setup, work)
    };
    let (mut first, mut second) = (worker("w1"), worker("w2"));

    // Four clients submit and read until everything was restarted: short jobs, and some that outlast
    // the stop of any service.
    let enough = Arc::new(AtomicBool::new(false));
    let submitting = (0..4).map(|who| {
        let (client, enough) = (client.clone(), enough.clone());
        async move {
            let mut ids = Vec::new();
            while !enough.load(Ordering::Relaxed) {
                let ms = if ids.len() % 25 == 7 { 6_000 } else { 5 };
                let request = JobRequest::new("rolling").payload(&serde_json::json!({ "ms": ms })).max_attempts(1);
                let job = client.submit(request).await.unwrap_or_else(|e| panic!("client {who} saw: {e}")).job;
                if ids.len() % 10 == 0 {
                    client.get(job.id).await.unwrap_or_else(|e| panic!("client {who} saw: {e}"));
                }
                ids.push(job.id.to_string());
            }
            ids
        }
    });
    let restarting = async {
        for name in ["scheduler-1", "gateway-1", "scheduler-2", "gateway-2"] {
            let begun = runs.all().len();
            until(SOON, "load", async || (runs.all().len() > begun + 40).then_some(())).await;
            let pid = stack.signal(name, Signal::SIGTERM);
            stack.replaced(name, pid).await;
            until(SOON, "it to be ready again", async || stack.ready(name).await.then_some(())).await;
        }
        let begun = runs.all().len();
        until(SOON, "load", async || (runs.all().len() > begun + 40).then_some(())).await;
        // Workers as well: what they cannot end within their drain they give back.
        std::mem::replace(&mut first, worker("w3")).drain().await;
        std::mem::replace(&mut second, worker("w4")).drain().await;
        enough.store(true, Ordering::Relaxed);
    };
    let (ids, ()) = tokio::join!(futures_util::future::join_all(submitting), restarting);
    let ids: Vec<String> = ids.concat();
    assert!(ids.len() > 200, "{} jobs are no load", ids.len());

    // Each ends at its first attempt; only what a worker gave back was begun again.
    let gateway = stack.gateway(2);
    for id in &ids {
        let job = one_end(&gateway, id).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
    }
    assert!(runs.all().iter().all(|run| run.attempt == 1), "no restart costs an attempt");
    let counts = runs.counts();
    let again = ids.iter().filter(|id| counts.get(*id) != Some(&1)).count();
    assert!(again <= 32, "{again} given back by two workers of 16 slots");
}
