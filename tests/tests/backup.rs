//! Backup and restore of whole stacks: lost jobs come back and end, and events that an old backup does not contain
//! change nothing. `backup/files.rs` covers files, refusals and servers without a stack; `backup/disk.rs` a full
//! disk.

#[path = "backup/disk.rs"]
mod disk;
#[path = "backup/files.rs"]
mod files;
#[path = "backup/shard.rs"]
mod shard;

use std::{fs, path::Path, process::Command, time::Duration};

use muster_testkit::{bin, until};
use muster_tests::{Executions, Options, Probe, Setup, ShutOut, Stack, by_hand::HandWorker};
use muster_wire::v1::Standing;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(150);

/// The output of `muster backup`, and whether it succeeded.
struct Said {
    ok: bool,
    text: String,
}

/// Runs `muster backup` with these arguments.
async fn backup(args: &[&str]) -> Said {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let run = move || {
        let said = Command::new(bin("muster")).arg("backup").args(args).env_remove("REDIS_URL").output();
        let said = said.expect("muster runs");
        let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        Said { ok: said.status.success(), text }
    };
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Shuts down all services: while they run, their Redis is never empty.
async fn without_services(stack: &Stack) -> Vec<ShutOut<'_>> {
    let mut away = Vec::new();
    for process in stack.state().processes.into_iter().filter(|process| process.admin.is_some()) {
        away.push(stack.shut_out(&process.name, Signal::SIGTERM).await);
    }
    away
}

async fn come_back(away: Vec<ShutOut<'_>>) {
    for service in away {
        service.comes_back().await;
    }
}

/// Waits for the end of a job, and checks in its history that it ended exactly once.
async fn one_end(gateway: &Probe, id: &str) -> Value {
    let job = gateway.ended(id, LONG).await;
    let story = gateway.history(id).await;
    let ends = ["succeeded", "failed", "timed_out", "cancelled", "denied", "expired", "quarantined"];
    let states: Vec<&str> =
        story["transitions"].as_array().unwrap().iter().filter_map(|t| t["state"].as_str()).collect();
    let ended = states.iter().filter(|state| ends.contains(state)).count();
    assert_eq!((ended, ends.contains(states.last().unwrap())), (1, true), "{id}: {states:?}");
    job
}

#[tokio::test]
async fn all_is_deleted_and_restored_with_an_empty_nats_and_every_job_ends() {
    let stack = Stack::with(Options::default().env("MUSTER_OUTAGE_WAIT", "1s")).await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("monday");

    // Jobs that have ended, run, are offered, are in the backlog, or are not yet due.
    let before = Executions::default();
    let done = {
        let _worker = before.echo(&stack, "w1", "done");
        let done = gateway.submit_many(20, &json!({"topic": "done", "payload": {"n": 1}})).await;
        for id in &done {
            assert_eq!(gateway.ended(id, LONG).await["state"], "succeeded");
        }
        done
    };
    let mut alive = gateway.submit_many(3, &json!({"topic": "held", "payload": 3})).await;
    let mut holder = HandWorker::on(&stack, "holder", "held").await;
    holder.lease_ms = 5_000;
    for _ in 0..3 {
        holder.start_next().await;
    }
    alive.extend(gateway.submit_many(300, &json!({"topic": "work", "payload": 1})).await);
    alive.extend(gateway.submit_many(5, &json!({"topic": "work", "delay_ms": 8_000, "payload": 2})).await);

    let state = stack.folder().join("stack.json");
    let made = backup(&["create", text(&dir), "--state-file", text(&state), "-o", "json"]).await;
    assert!(made.ok, "{}", made.text);
    let manifest: Value = serde_json::from_slice(&fs::read(dir.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["counts"]["kinds"]["job"], json!(done.len() + alive.len()), "every record is counted");
    assert_eq!(manifest["counts"]["alive"], json!(alive.len()), "every home is counted");
    assert_eq!(manifest["data_format"], "2");
    let mark = redis(&stack, &["HGETALL", "muster:meta:backup"]);
    assert!(mark.contains(&manifest["at_ms"].to_string()) && mark.contains("files"), "{mark}");

    // The disks of both stores are lost.
    let away = without_services(&stack).await;
    let (redis, nats) = (stack.take_down("redis-1"), stack.take_down("nats-1"));
    for lost in ["redis-1/appendonlydir", "nats-1/jetstream"] {
        fs::remove_dir_all(stack.folder().join("data/single").join(lost)).unwrap();
    }
    redis.comes_back().await;
    nats.comes_back().await;
    let url = stack.state().redis_url;
    let restored = until(LONG, "Redis to answer", async || {
        let said = backup(&["restore", text(&dir), "--to", &url]).await;
        (!said.text.contains("Could not connect")).then_some(said)
    })
    .await;
    assert!(restored.ok, "{}", restored.text);
    assert!(restored.text.contains(&format!("{} jobs had not ended", alive.len())), "{}", restored.text);
    come_back(away).await;

    let after = Executions::default();
    let mut setup = Setup::new("w2", "work");
    setup.slots = 64;
    let _worker = after.worker(&stack, setup, |_, payload| async move { Ok(payload) });
    let _holder = after.echo(&stack, "w3", "held");
    for id in &alive {
        let job = one_end(&gateway, id).await;
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    for id in &done {
        let job = gateway.get(&format!("/jobs/{id}?include=result")).await.body;
        assert_eq!((&job["state"], &job["result"]), (&json!("succeeded"), &json!({"n": 1})), "{job}");
    }
    let counts = after.counts();
    assert!(done.iter().all(|id| !counts.contains_key(id)), "what had ended does not run again");
    assert!(alive.iter().all(|id| counts.get(id) == Some(&1)), "each of the others ran once more");
    let store = stack.store().await;
    until(LONG, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
}

/// The answer of redis-cli to a command.
fn redis(stack: &Stack, args: &[&str]) -> String {
    let said = Command::new("redis-cli").arg("-u").arg(stack.state().redis_url).args(args).output().expect("redis-cli");
    String::from_utf8(said.stdout).expect("text").trim().to_owned()
}

#[tokio::test]
async fn an_old_backup_under_a_running_nats_refuses_later_fences_and_nothing_ends_twice() {
    let stack = Stack::with(Options::default().env("MUSTER_OUTAGE_WAIT", "1s")).await;
    let gateway = stack.gateway(1);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("old");

    let topic = |name: &str| json!({"topic": name, "payload": 1});
    let (lost, ended) = (gateway.submit(topic("lost")).await, gateway.submit(topic("ended")).await);
    for id in [&lost, &ended] {
        gateway.reaches(id, "dispatched", LONG).await;
    }
    let url = stack.state().redis_url;
    let made = backup(&["create", text(&dir), "--from", &url]).await;
    assert!(made.ok, "{}", made.text);

    // After the backup: one job is started, one ends, one is new. The backup contains none of this.
    let mut worker = HandWorker::on(&stack, "holder", "lost").await;
    let held = worker.start_next().await;
    let first = Executions::default();
    {
        let _worker = first.echo(&stack, "w1", "ended");
        assert_eq!(gateway.ended(&ended, LONG).await["state"], "succeeded");
    }
    let new = gateway.submit(topic("new")).await;

    let away = without_services(&stack).await;
    let refused = backup(&["restore", text(&dir), "--to", &url]).await;
    assert!(!refused.ok && refused.text.contains("the target is not empty"), "{}", refused.text);
    assert_eq!(redis(&stack, &["FLUSHALL"]), "OK");
    let restored = backup(&["restore", text(&dir), "--to", &url]).await;
    assert!(restored.ok, "{}", restored.text);
    come_back(away).await;

    // The worker still holds what it started, and reports it.
    let extended = worker.extend(&held, 50.0).await;
    assert_eq!(extended.standing(), Standing::Lost, "{extended:?}");
    worker.succeed(&held, "\"late\"").await;
    let told = worker.settled().await;
    assert_eq!(told.fence, held.fence);
    assert_eq!(told.standing(), Standing::Lost, "{told:?}");

    let second = Executions::default();
    let _lost = second.echo(&stack, "w2", "lost");
    let _ended = second.echo(&stack, "w3", "ended");
    let _new = second.echo(&stack, "w4", "new");
    for id in [&lost, &ended, &new] {
        let job = one_end(&gateway, id).await;
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    let job = gateway.get(&format!("/jobs/{lost}?include=result")).await.body;
    assert_eq!(job["result"], json!(1), "not the late one: {job}");
    let again = second.of(&lost);
    assert_eq!(again.len(), 1);
    assert!(again[0].fence > held.fence, "a fence is never given twice: {again:?} after {}", held.fence);
    assert!(second.of(&ended)[0].fence > first.of(&ended)[0].fence);
}
