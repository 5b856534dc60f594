//! The shards of runs as the cluster shows them: shared evenly by the replicas of the workflow service, each owned by
//! exactly one, and taken over when a replica leaves.

use std::{collections::BTreeMap, process::Command, time::Duration};

use muster_testkit::{bin, until};
use muster_tests::{Options, Probe, Stack};
use nix::sys::signal::Signal;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const LOOP: &str = "run reconciler";
const LOCK: &str = "muster:workflow-engine:reconciler:";

async fn items(gateway: &Probe, path: &str) -> Vec<Value> {
    gateway.get(path).await.body["items"].as_array().cloned().unwrap_or_default()
}

/// The number of shards of each replica, as `/loops` shows it. `None` unless each of the 16 shards is shown once.
async fn shared(gateway: &Probe) -> Option<BTreeMap<String, usize>> {
    let rows = items(gateway, "/loops").await.into_iter().filter(|row| row["loop"] == LOOP);
    let (mut replicas, mut all) = (BTreeMap::new(), Vec::new());
    for row in rows {
        let own: Vec<u64> = row["shards"].as_array()?.iter().filter_map(Value::as_u64).collect();
        // Whoever owns shards leads them, and names itself as the holder.
        let leads = !own.is_empty();
        if (row["state"] == "leading", row["holder"] == row["instance"]) != (leads, leads) {
            return None;
        }
        replicas.insert(row["instance"].as_str()?.to_owned(), own.len());
        all.extend(own);
    }
    all.sort_unstable();
    (all == (0..16).collect::<Vec<u64>>()).then_some(replicas)
}

async fn becomes(gateway: &Probe, wanted: &[(&str, usize)]) {
    let wanted: BTreeMap<String, usize> = wanted.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    until(SOON, &format!("the shards to be shared as {wanted:?}"), async || {
        (shared(gateway).await? == wanted).then_some(())
    })
    .await;
}

fn muster(stack: &Stack, command: &str) -> String {
    let state = stack.folder().join("stack.json");
    let said = Command::new(bin("muster")).arg("--state-file").arg(state).args(command.split('+')).output();
    let said = said.expect("muster runs");
    assert!(said.status.success(), "{command}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).expect("text")
}

#[tokio::test]
async fn replicas_share_the_shards_of_runs_and_everybody_shows_the_same_owners() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    for gateway in [&one, &two] {
        becomes(gateway, &[("workflow-1", 8), ("workflow-2", 8)]).await;
    }
    until(SOON, "both replicas to tell how many shards they own", async || {
        (stack.metric("workflow", "muster_run_shards").await == 16.0).then_some(())
    })
    .await;
    let locks = items(&two, "/locks").await;
    let owned: Vec<&Value> =
        locks.iter().filter(|it| it["key"].as_str().is_some_and(|key| key.starts_with(LOCK))).collect();
    assert_eq!(owned.len(), 16, "a lock for each shard: {locks:?}");
    assert!(owned.iter().all(|lock| lock["held"] == true && lock["fence"].is_u64()), "{owned:?}");

    let table = muster(&stack, &format!("loops+{LOOP}"));
    let rows: Vec<&str> = table.lines().filter(|line| line.contains(" leading ")).collect();
    let shards: Vec<&str> = rows.iter().filter_map(|row| row.split_whitespace().last()).collect();
    let mut names: Vec<&str> = shards.iter().flat_map(|list| list.split(',')).collect();
    names.sort_unstable();
    assert_eq!(names.join(""), "0123456789abcdef", "each shard in one row: {table}");
    let status = muster(&stack, "status");
    let replicas = muster(&stack, "replicas");
    for name in ["workflow-1", "workflow-2"] {
        assert!(status.contains(name) && replicas.contains(name), "{status}\n{replicas}");
    }

    // A replica that leaves in order gives up its shards; the other one owns all of them until it is back.
    let away = stack.shut_out("workflow-1", Signal::SIGTERM).await;
    until(SOON, "the other replica to own all shards", async || {
        let rows = items(&one, "/loops").await;
        let row = rows.iter().find(|row| row["loop"] == LOOP && row["instance"] == "workflow-2")?;
        (row["shards"].as_array()?.len() == 16).then_some(())
    })
    .await;
    away.comes_back().await;
    becomes(&one, &[("workflow-1", 8), ("workflow-2", 8)]).await;
}
