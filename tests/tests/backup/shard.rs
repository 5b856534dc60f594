//! One shard of a cluster is lost with its replica, and restored alone.

use std::process::Command;

use muster_testkit::until;
use muster_tests::{Executions, Options, Setup, Stack};
use serde_json::json;

use crate::{LONG, backup, come_back, one_end, text, without_services};

fn cli(port: &str, args: &[&str]) -> String {
    let said = Command::new("redis-cli").args(["-p", port]).args(args).output().expect("redis-cli");
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

#[tokio::test]
async fn one_shard_of_a_cluster_is_restored_alone_and_every_job_ends() {
    let options = Options { cluster: true, ..Options::default() };
    let stack = Stack::with(options.env("MUSTER_OUTAGE_WAIT", "1s")).await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cluster");
    let ids = gateway.submit_many(120, &json!({"topic": "work", "payload": 1})).await;
    // Without a worker some jobs are offered, and the others wait in the backlog.
    for id in &ids {
        until(LONG, "the job to be decided", async || {
            let state = gateway.get(&format!("/jobs/{id}")).await.body["state"].clone();
            (state == "dispatched" || state == "queued").then_some(())
        })
        .await;
    }
    let url = stack.state().redis_url;
    let made = backup(&["create", text(&dir), "--from", &url]).await;
    assert!(made.ok, "{}", made.text);

    let away = without_services(&stack).await;
    let ports: Vec<String> = url.split(',').map(|url| url.rsplit(':').next().unwrap().to_owned()).collect();
    let is_primary = |port: &&String| cli(port, &["INFO", "replication"]).contains("role:master");
    let primaries: Vec<&String> = ports.iter().filter(is_primary).collect();
    assert_eq!(primaries.len(), 3);
    let held: Vec<String> = primaries.iter().map(|port| cli(port, &["DBSIZE"])).collect();
    assert_eq!(cli(primaries[1], &["FLUSHALL"]), "OK");

    let refused = backup(&["restore", text(&dir), "--to", &url]).await;
    assert!(!refused.ok && refused.text.contains("the target is not empty"), "{}", refused.text);
    let restored = backup(&["restore", text(&dir), "--to", &url, "--only-missing-shard"]).await;
    assert!(restored.ok, "{}", restored.text);
    assert!(restored.text.contains("not changed: "), "{}", restored.text);
    for n in [0, 2] {
        assert_eq!(cli(primaries[n], &["DBSIZE"]), held[n], "the others were not touched");
    }
    let again = backup(&["restore", text(&dir), "--to", &url, "--only-missing-shard"]).await;
    assert!(!again.ok && again.text.contains("no primary of the target is empty"), "{}", again.text);
    come_back(away).await;

    let runs = Executions::default();
    let mut setup = Setup::new("w1", "work");
    setup.slots = 32;
    let _worker = runs.worker(&stack, setup, |_, payload| async move { Ok(payload) });
    for id in &ids {
        let job = one_end(&gateway, id).await;
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    assert!(runs.counts().values().all(|n| *n == 1) && runs.counts().len() == ids.len(), "each ran once");
}
