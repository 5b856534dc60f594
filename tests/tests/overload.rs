//! More than the stack can do: what is accepted ends, what is refused is told when to come back, and
//! what runs keeps running.
//!
//! The flood is `muster bench overload`, which checks answers, memory and delivery itself; the same
//! for a minute by hand: `muster bench overload --own`.

use std::{
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use muster_testkit::bin;
use muster_tests::{Executions, Options, Setup, Stack};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    sync::Semaphore,
};

const LONG: Duration = Duration::from_secs(120);

/// Starts a flood on this stack, with these arguments after `bench overload`.
fn flood(stack: &Stack, tenant: &str, args: &[&str]) -> Child {
    Command::new(bin("muster"))
        .arg("--state-file")
        .arg(stack.folder().join("stack.json"))
        .args([
            "--tenant",
            tenant,
            "--output",
            "json",
            "bench",
            "overload",
            "--patience",
            "120s",
            "--answer",
            "20s",
            "--connections",
            "1000",
        ])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a flood")
}

/// What the flood found; it must have found no fault.
fn borne(flood: &Output) -> Value {
    let (said, complaint) = (String::from_utf8_lossy(&flood.stdout), String::from_utf8_lossy(&flood.stderr));
    assert!(flood.status.success(), "{complaint}\n{said}");
    serde_json::from_str(&said).unwrap_or_else(|fault| panic!("{fault}: {said}"))
}

#[tokio::test]
async fn a_flood_at_three_times_the_peak_is_borne_and_nothing_that_runs_is_stolen() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let over = Arc::new(Semaphore::new(0));
    let mut setup = Setup::new("keeper", "long");
    setup.slots = 8;
    // Several extensions fall into the flood, and none of them may be late by much.
    setup.lease = Duration::from_secs(6);
    let until_over = over.clone();
    let _keeper = runs.worker(&stack, setup, move |_, _| {
        let over = until_over.clone();
        async move {
            let _ = over.acquire().await;
            Ok(json!("kept"))
        }
    });
    let long = gateway.submit_many(8, &json!({"topic": "long"})).await;
    runs.reach(8, LONG).await;

    let told = borne(&flood(&stack, "default", &["--for", "20s", "--times", "3"]).wait_with_output().await.unwrap());
    assert!(told["accepted"].as_u64() > Some(1_000), "{told}");
    assert_eq!(told["refused_without_retry_after"], 0, "{told}");

    over.add_permits(8);
    for id in &long {
        let job = gateway.ended(id, LONG).await;
        assert_eq!((&job["state"], &job["attempt"], &job["result"]), (&json!("succeeded"), &json!(1), &json!("kept")));
    }
    assert_eq!(runs.all().len(), 8, "nothing that ran was given to another worker");
}
