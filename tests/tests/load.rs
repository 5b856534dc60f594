//! Many small jobs through two replicas of everything, as `muster bench submit` sends them. The same with 200,000
//! jobs: `muster bench submit --own`.

use std::{process::Stdio, time::Duration};

use muster_testkit::bin;
use muster_tests::{Options, Stack};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

const LONG: Duration = Duration::from_secs(600);
const JOBS: u64 = 20_000;

/// How often a bench is started that a busy machine voids: a submit that is not answered within two seconds may have been
/// stored or not, so it is unknown what was accepted.
const TRIES: usize = 3;

/// Runs a bench, again if it was voided, and returns what it found.
async fn bench(stack: &Stack, args: &[&str]) -> Value {
    let mut voided = Vec::new();
    while voided.len() < TRIES {
        match benched(stack, args).await {
            Ok(told) => return told,
            Err(why) => voided.push(why),
        }
    }
    panic!("voided each time: {voided:#?}");
}

/// The figures, or why the bench was voided.
async fn benched(stack: &Stack, args: &[&str]) -> Result<Value, String> {
    let bench = Command::new(bin("muster"))
        .arg("--state-file")
        .arg(stack.folder().join("stack.json"))
        .args(["--output", "json", "bench", "submit", "--jobs", &JOBS.to_string()])
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let bench = timeout(LONG, bench).await.expect("in time").expect("a bench");
    let (said, complaint) = (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    if complaint.contains("not every job was accepted (503)") {
        return Err(complaint.into_owned());
    }
    assert!(bench.status.success(), "{complaint}\n{said}");
    Ok(serde_json::from_str(&said).unwrap_or_else(|fault| panic!("{fault}: {said}")))
}

#[tokio::test]
async fn twenty_thousand_jobs_succeed_each_started_once_and_every_process_is_charged() {
    let stack = Stack::with(Options::two()).await;
    // Few connections, so that few submits wait for two seconds on a busy machine.
    let one_by_one = bench(&stack, &["--connections", "32"]).await;
    let in_bulk = bench(&stack, &["--batch", "100", "--connections", "4"]).await;
    for told in [one_by_one, in_bulk] {
        assert_eq!(told["exact"], true, "each executed once, each succeeded: {told:#}");
        let figures = &told["figures"];
        assert!(figures["rate"].as_f64() > Some(0.0), "{figures:#}");
        for name in ["gateway-1", "gateway-2", "scheduler-1", "scheduler-2", "worker-1", "redis-1", "nats-1", "bench"] {
            let cpu = figures[format!("process.{name}.cpu")].as_f64();
            assert!(cpu.is_some_and(|micros| micros > 0.0), "{name} paid for its part: {figures:#}");
        }
    }
}
