//! The disk of the Redis log is full: submits get 503, and when there is room again everything continues and nothing
//! is lost. A limit on the size of the files that redis-server may write stands for the disk, which needs no root:
//! the server is started with SIGXFSZ ignored, so a write past the limit fails as on a full disk.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use muster_testkit::until;
use muster_tests::{Executions, Options, Stack};
use serde_json::json;

use super::{LONG, one_end, redis};

/// Room for a few dozen jobs.
const ROOM: u64 = 48 * 1024;

/// Creates a folder with a `redis-server` that survives a write past its limit, in front of the search path.
#[expect(clippy::disallowed_methods, reason = "a test's own search path")]
fn patient_redis(folder: &Path) -> String {
    let (program, path) = (folder.join("redis-server"), env::var("PATH").unwrap_or_default());
    let script = format!("#!/bin/sh\ntrap '' XFSZ\nPATH='{path}:/usr/sbin:/sbin'\nexec redis-server \"$@\"\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{path}", folder.display())
}

/// The log file that Redis appends to.
fn log(stack: &Stack) -> PathBuf {
    let folder = stack.folder().join("data/single/redis-1/appendonlydir");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().expect("a log")
}

/// Limits the size of the files of Redis; `unlimited` gives room again.
fn limit_files(stack: &Stack, bytes: &str) {
    let (pid, limit) = (stack.process("redis-1").pid.to_string(), format!("--fsize={bytes}:"));
    let done = Command::new("prlimit").args(["--pid", &pid, &limit]).status().expect("prlimit of util-linux runs");
    assert!(done.success(), "prlimit {limit}");
}

#[tokio::test]
async fn a_full_disk_of_the_log_is_answered_with_503_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let stack = Stack::with(Options::default().env("PATH", patient_redis(folder.path()))).await;
    let gateway = stack.gateway(1);
    let ran = Executions::default();
    let _worker = ran.echo(&stack, "w1", "disk");
    let job = json!({"topic": "disk", "payload": "x".repeat(600)});
    let mut accepted = gateway.submit_many(20, &job).await;
    for id in &accepted {
        one_end(&gateway, id).await;
    }

    limit_files(&stack, &(fs::metadata(log(&stack)).unwrap().len() + ROOM).to_string());
    let mut refused = None;
    for _ in 0..500 {
        let answer = gateway.post("/jobs", &job).await;
        if answer.status != 202 {
            refused = Some(answer);
            break;
        }
        accepted.push(answer.id());
    }
    let refused = refused.expect("a full disk refuses submits");
    assert_eq!(
        (refused.status.as_u16(), refused.field("code")),
        (503, &json!("store_unavailable")),
        "{}",
        refused.body
    );
    assert!(refused.header("retry-after").is_some(), "{}", refused.body);
    assert!(redis(&stack, &["INFO", "persistence"]).contains("aof_last_write_status:err"), "the disk is full");
    let again = gateway.post("/jobs", &job).await;
    assert_eq!(again.status, 503, "it is full until there is room: {}", again.body);

    limit_files(&stack, "unlimited");
    let id = until(LONG, "a submit to be accepted", async || {
        let answer = gateway.post("/jobs", &job).await;
        (answer.status == 202).then(|| answer.id())
    })
    .await;
    accepted.push(id);
    for id in &accepted {
        assert_eq!(one_end(&gateway, id).await["state"], "succeeded", "{id}");
    }

    // The log contains what was accepted while it could not be written.
    let old = stack.kill9("redis-1");
    stack.replaced("redis-1", old).await;
    for id in &accepted {
        let known = until(LONG, "Redis to have read its log", async || {
            let answer = gateway.get(&format!("/jobs/{id}")).await;
            (answer.status != 503).then_some(answer)
        })
        .await;
        assert_eq!((known.status.as_u16(), known.field("state")), (200, &json!("succeeded")), "{id}: {}", known.body);
    }
    let twice: Vec<_> = ran.counts().into_iter().filter(|(_, n)| *n > 1).collect();
    assert!(twice.is_empty(), "ran again: {twice:?}");
}
