//! `muster worker run`: a custom command per job, or a builtin, over NATS and over HTTP.

use std::{collections::BTreeSet, fs, path::Path};

use muster_testkit::until;
use muster_tests::{Executions, Setup, Stack, WorkerProcess};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::SOON;

/// What a worker's command does, by its payload.
const SCRIPT: &str = r#"
read -r what
case "$what" in
    '"json"') echo '{"a": 1.50}' ;;
    '"text"') echo hello; echo world ;;
    '"env"') echo "$MUSTER_JOB_ID $MUSTER_ATTEMPT $MUSTER_FENCE" ;;
    '"bad"') echo "bad input" >&2; exit 65 ;;
    '"flaky"') [ "$MUSTER_ATTEMPT" = 1 ] && { echo busy >&2; exit 3; }; echo '"second time"' ;;
    '"killed"') kill -9 $$ ;;
    *) trap 'echo told >> "$0.told"; exit 1' TERM; echo here >> "$0.here"; while :; do sleep 0.05; done ;;
esac
"#;

async fn a_command_runs_each_job(speak: &[&str]) {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("work.sh");
    fs::write(&script, SCRIPT).unwrap();
    let command = format!("exec sh {}", script.display());
    let args =
        [&["--topic", "x", "--exec", &command, "--id", "w1", "--drain", "200ms", "--concurrency", "4"], speak].concat();
    let mut worker = WorkerProcess::start(&stack, &args);
    let job = async |what: &str, attempts: u32| {
        let retry = json!({"max_attempts": attempts, "backoff": {"initial_ms": 10}});
        let id = gateway.submit(json!({"topic": "x", "payload": what, "retry": retry})).await;
        (id.clone(), gateway.ended(&id, SOON).await)
    };
    let (_, json_job) = job("json", 1).await;
    assert_eq!(
        (json_job["state"].as_str(), &json_job["result"]),
        (Some("succeeded"), &json!({"a": serde_json::from_str::<Value>("1.50").unwrap()}))
    );
    assert_eq!(job("text", 1).await.1["result"], "hello\nworld");
    let (id, env) = job("env", 1).await;
    let told = env["result"].as_str().unwrap();
    assert!(told.starts_with(&format!("{id} 1 ")) && told.rsplit(' ').next().unwrap().parse::<u64>().is_ok(), "{told}");
    let (_, bad) = job("bad", 5).await;
    assert_eq!((bad["state"].as_str(), bad["attempt"].as_u64()), (Some("failed"), Some(1)));
    assert_eq!(
        (bad["error"]["message"].as_str(), bad["error"]["retryable"].as_bool()),
        (Some("bad input"), Some(false))
    );
    let (_, flaky) = job("flaky", 5).await;
    assert_eq!((flaky["result"].as_str(), flaky["attempt"].as_u64()), (Some("second time"), Some(2)));
    let (_, killed) = job("killed", 2).await;
    assert_eq!((killed["state"].as_str(), killed["attempt"].as_u64()), (Some("failed"), Some(2)));
    assert!(killed["error"]["message"].as_str().is_some_and(|m| m.contains("signal")), "{killed}");

    // A job is cancelled while it runs: the command gets SIGTERM.
    let lines =
        |kind: &str| fs::read_to_string(format!("{}.{kind}", script.display())).unwrap_or_default().lines().count();
    let id = gateway.submit(json!({"topic": "x", "payload": "long"})).await;
    until(SOON, "the command to run", async || (lines("here") == 1).then_some(())).await;
    assert_eq!(gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
    until(SOON, "the command to be told", async || (lines("told") == 1).then_some(())).await;
    assert_eq!(gateway.job(&id).await["state"], "cancelled");

    // The worker is asked to drain while a job runs: its command ends, and the job goes back with its attempt.
    let id = gateway.submit(json!({"topic": "x", "payload": "long", "retry": {"max_attempts": 1}})).await;
    until(SOON, "the command to run", async || (lines("here") == 2).then_some(())).await;
    worker.signal(Signal::SIGTERM);
    assert!(worker.exited(SOON).await.success(), "{}", worker.log());
    assert_eq!(lines("told"), 2);
    let job = until(SOON, "the job to be given back", async || {
        let job = gateway.job(&id).await;
        (job["state"] != "running").then_some(job)
    })
    .await;
    assert_eq!((job["attempt"].as_u64(), job["done"].as_bool()), (Some(0), Some(false)), "{job}");
}

/// A command that ignores SIGTERM is dead before its job runs elsewhere.
async fn a_stubborn_command_does_not_outlive_its_attempt(speak: &[&str]) {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let command = format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.05; done", pid_file.display());
    let args = [&["--topic", "x", "--exec", &command, "--id", "w1", "--drain", "200ms"], speak].concat();
    let mut worker = WorkerProcess::start(&stack, &args);
    let id = gateway.submit(json!({"topic": "x", "retry": {"max_attempts": 1}})).await;
    let pid =
        until(SOON, "the command to run", async || fs::read_to_string(&pid_file).ok()?.trim().parse::<i32>().ok())
            .await;
    worker.signal(Signal::SIGTERM);
    let runs = Executions::default();
    let _other = runs.worker(&stack, Setup::new("w2", "x"), move |_, _| async move {
        Ok(json!(kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)))
    });
    let job = gateway.ended(&id, SOON).await;
    assert_eq!((&job["state"], &job["worker"]), (&json!("succeeded"), &json!("w2")));
    assert_eq!(job["result"], true, "the command of the first attempt was gone when the second began");
    assert!(worker.exited(SOON).await.success(), "{}", worker.log());
}

#[tokio::test]
async fn a_stubborn_command_does_not_outlive_its_attempt_over_nats() {
    a_stubborn_command_does_not_outlive_its_attempt(&[]).await;
}

#[tokio::test]
async fn a_stubborn_command_does_not_outlive_its_attempt_over_http() {
    a_stubborn_command_does_not_outlive_its_attempt(&["--http"]).await;
}

#[tokio::test]
async fn a_command_runs_each_job_over_nats() {
    a_command_runs_each_job(&[]).await;
}

#[tokio::test]
async fn a_command_runs_each_job_over_http() {
    a_command_runs_each_job(&["--http"]).await;
}

async fn builtins_run_jobs(speak: &[&str]) {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let start = |topic: &str, builtin: &str, more: &[&str]| {
        WorkerProcess::start(&stack, &[&["--topic", topic, "--builtin", builtin], more, speak].concat())
    };
    let _echo = start("echo", "echo", &[]);
    let _sleep = start("sleep", "sleep", &[]);
    let _fail = start("fail", "fail", &[]);
    let counting = |id: &'static str| start("count", "count", &["--id", id, "--count-file", count_path(&count)]);
    let _counters = [counting("c1"), counting("c2")];
    // The shortest form: without a count file, the worker counts in memory.
    let _plain = start("plain", "count", &[]);

    let ids = gateway.submit_many(40, &json!({"topic": "count"})).await;
    let echo = gateway.submit(json!({"topic": "echo", "payload": [1, {"a": null}]})).await;
    let none = gateway.submit(json!({"topic": "echo"})).await;
    let sleep = gateway.submit(json!({"topic": "sleep", "payload": {"ms": 50}})).await;
    let fail =
        gateway.submit(json!({"topic": "fail", "payload": {"code": "c", "message": "m", "retryable": false}})).await;
    assert_eq!(gateway.ended(&echo, SOON).await["result"], json!([1, {"a": null}]));
    assert_eq!(gateway.ended(&none, SOON).await["result"], Value::Null);
    assert_eq!(gateway.ended(&sleep, SOON).await["result"], json!({"slept_ms": 50}));
    let failed = gateway.ended(&fail, SOON).await;
    assert_eq!((failed["error"]["code"].as_str(), failed["error"]["message"].as_str()), (Some("c"), Some("m")));
    for id in &ids {
        assert_eq!(gateway.ended(id, SOON).await["state"], "succeeded");
    }
    for n in 1..=3 {
        let id = gateway.submit(json!({"topic": "plain"})).await;
        assert_eq!(gateway.ended(&id, SOON).await["result"], json!(n));
    }
    let lines = fs::read_to_string(&count).unwrap();
    let jobs: Vec<&str> = lines.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(jobs.len(), 40, "each once");
    assert_eq!(jobs.into_iter().collect::<BTreeSet<_>>(), ids.iter().map(String::as_str).collect());
}

fn count_path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[tokio::test]
async fn builtins_run_jobs_over_nats() {
    builtins_run_jobs(&[]).await;
}

#[tokio::test]
async fn builtins_run_jobs_over_http() {
    builtins_run_jobs(&["--http"]).await;
}
