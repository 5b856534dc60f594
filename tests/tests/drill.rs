//! `muster drill` as users see it: a short chaos with a verdict of all zeros, one drill by name, and its messages.

use std::process::Stdio;

use muster_testkit::bin;
use serde_json::{Value, json};
use tokio::process::Command;

/// Runs a drill. Returns its exit code, its output, and its progress messages.
async fn drill(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(bin("muster"))
        .arg("drill")
        .args(args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("muster can be started");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn read(out: &str, err: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}\n{err}"))
}

/// A bit more than a minute: it takes that long for every kind of fault to occur.
#[tokio::test]
async fn a_short_chaos_keeps_every_promise() {
    let args = ["chaos", "--minutes", "1.2", "--seed", "42", "--replicas", "2", "--jobs-per-s", "20", "-o", "json"];
    let (code, out, err) = drill(&args).await;
    let verdict = read(&out, &err);
    assert_eq!((code, &verdict["verdict"]), (Some(0), &json!("pass")), "{verdict:#}\n{err}");
    assert!(verdict["accepted"].as_u64() > Some(500), "{verdict:#}");
    assert_eq!(verdict["accepted"], verdict["ended"]);
    for kind in ["lost", "ended_twice", "writes_under_an_old_fence", "illegal_transitions", "starts_above_max"] {
        assert_eq!(verdict[kind], 0, "{kind}");
    }
    for kind in ["effects_missing", "effects_doubled", "consistency_gap", "runs_without_a_start", "audit_log_breaks"] {
        assert_eq!(verdict[kind], 0, "{kind}");
    }
    for kind in ["acts_of_loops_untold", "acts_told_and_not_done", "idempotency_keys_split", "unreadable_messages"] {
        assert_eq!(verdict[kind], 0, "{kind}");
    }
    let ends = verdict["ends"].as_object().expect("ends");
    for end in ["succeeded", "failed", "timed_out", "cancelled", "expired", "quarantined"] {
        assert!(ends.contains_key(end), "the load had no job that ended {end}: {ends:?}");
    }
    let of_processes = ["kill", "leave", "pause", "cut", "stall", "slow"];
    let of_stores = ["drop_streams", "wipe_nats", "kill_nats", "restart_redis"];
    for kind in of_processes.into_iter().chain(of_stores) {
        assert!(verdict["faults"][kind].as_u64() > Some(0), "no {kind}: {}\n{err}", verdict["faults"]);
    }
    both_kinds_of_workers_ran_jobs(&verdict);
}

fn both_kinds_of_workers_ran_jobs(verdict: &Value) {
    let shares = verdict["executed_by"].as_object().expect("who ran how many");
    for kind in ["worker-", "http-worker-"] {
        let ran: u64 = shares.iter().filter(|(name, _)| name.starts_with(kind)).filter_map(|(_, n)| n.as_u64()).sum();
        assert!(ran > 20, "{kind}: {shares:?}");
    }
}

/// Half a minute: the failover comes first, every other kind of fault follows at once, and the rest of the time is
/// for finding what the faults left undone.
#[tokio::test]
async fn a_short_chaos_on_a_cluster_has_every_kind_of_fault_and_keeps_every_promise() {
    let args = [
        "chaos",
        "--cluster",
        "--minutes",
        "0.4",
        "--seed",
        "7",
        "--replicas",
        "2",
        "--jobs-per-s",
        "15",
        "-o",
        "json",
    ];
    let (code, out, err) = drill(&args).await;
    let verdict = read(&out, &err);
    assert_eq!((code, &verdict["verdict"]), (Some(0), &json!("pass")), "{verdict:#}\n{err}");
    assert!(verdict["accepted"].as_u64() > Some(200), "{verdict:#}");
    assert_eq!(verdict["accepted"], verdict["ended"], "{verdict:#}");
    assert_eq!(verdict["audit_log_breaks"], 0);
    // A fault counts only if it was carried out; a fault of Redis only if a replica has taken over.
    let of_processes = ["kill", "leave", "pause", "cut", "stall", "slow"];
    let of_stores = ["drop_streams", "wipe_nats", "kill_nats", "hand_over", "kill_primary"];
    for kind in of_processes.into_iter().chain(of_stores) {
        assert!(verdict["faults"][kind].as_u64() > Some(0), "no {kind}: {}\n{err}", verdict["faults"]);
    }
    let (forgiven, most) = (verdict["forgiven_jobs"].as_u64(), verdict["forgivable_jobs"].as_u64());
    assert!(forgiven <= most && most >= Some(15), "a second of the load for each killed primary: {verdict:#}");
    both_kinds_of_workers_ran_jobs(&verdict);
}

/// How much later than allowed a recovery may be on a busy machine, in milliseconds. Less than a leader's lock lives
/// that was not given up.
const BUSY: u64 = 8_000;

/// Runs one drill. It must break no promise, measure these recoveries, and print what it does. Limits on the recovery
/// times need a machine without other load.
async fn passes(args: &[&str], measured: &[&str], tells: &str) {
    let (code, out, err) = drill(&[args, &["-o", "json"]].concat()).await;
    let played = read(&out, &err);
    assert_eq!((&played["broken"], &played["charges"]), (&json!([]), &json!([])), "{played:#}\n{err}");
    let measures = played["recovery"].as_array().expect("measures");
    for what in measured {
        assert!(measures.iter().any(|m| m["what"] == *what), "{what}: {measures:?}");
    }
    let mut in_time = true;
    for measure in measures {
        let (took, may) = (measure["took_ms"].as_u64().expect("a time"), measure["may_ms"].as_u64().expect("a time"));
        assert!(took <= may + BUSY, "{measure}\n{err}");
        in_time &= took <= may;
    }
    let (wanted, word) = if in_time { (0, "pass") } else { (1, "fail") };
    assert_eq!((code, &played["verdict"]), (Some(wanted), &json!(word)), "{played:#}\n{err}");
    assert!(err.contains(tells), "it tells what it does: {err}");
}

#[tokio::test]
async fn the_drill_of_a_killed_gateway_passes_and_tells_how_long_recovery_took() {
    passes(&["gateway"], &["gateway killed → its clients served"], "kill -9 gateway-1").await;
}

#[tokio::test]
async fn the_drill_of_a_killed_and_a_stopped_leader_passes() {
    passes(&["leader"], &["leader killed → next tick", "leader stopped → next tick"], "leads the reconciler").await;
}

#[tokio::test]
async fn the_drill_of_a_killed_worker_passes() {
    passes(&["worker"], &["worker killed → last of its jobs on another"], "of them on worker-1; kill -9").await;
}

#[tokio::test]
async fn the_drill_of_a_killed_and_a_stopped_owner_of_a_run_passes() {
    let measured = ["owner killed → its order went on and ended", "owner stopped → its order went on and ended"];
    passes(&["workflow"], &measured, "owns its shard").await;
}

#[tokio::test]
async fn the_drill_of_a_nats_that_loses_everything_twice_passes() {
    let measured = [
        "streams deleted → new jobs run",
        "NATS restarted empty → new jobs run",
        "NATS restarted empty → every job ended",
    ];
    passes(&["nats"], &measured, "killing NATS and removing its store").await;
}

#[tokio::test]
async fn the_drill_of_a_redis_that_restarts_passes() {
    passes(&["redis"], &["Redis away → new jobs run"], "stopping Redis for 7 s").await;
}

#[tokio::test]
async fn the_drill_of_a_redis_primary_that_is_killed_passes() {
    passes(&["redis", "--cluster"], &["Redis away → new jobs run"], "its replica has taken over").await;
}

#[tokio::test]
async fn the_drill_of_clocks_that_are_wrong_passes() {
    let measured = ["a delay of 3 s", "two back-offs of 2 s", "8 s on a lease of 5 s", "a deadline after 5 s"];
    passes(&["clock"], &measured, "gateway-1 are five minutes ahead").await;
}

#[tokio::test]
async fn the_drill_of_a_rolling_restart_passes() {
    let pairs = ["scheduler", "workflow", "gateway", "worker"].map(|kind| [1, 2].map(|n| format!("{kind}-{n}")));
    let everything = pairs.into_iter().flatten().chain(["http-worker-1".to_owned()]);
    let measured: Vec<String> = everything.map(|process| format!("{process} restarted")).collect();
    let measured: Vec<&str> = measured.iter().map(String::as_str).collect();
    passes(&["rolling"], &measured, "each at its first attempt").await;
}

/// One fault of eight: `sick` and `sick_leader` have all of them.
#[tokio::test]
async fn the_drill_of_a_sick_scheduler_passes() {
    let measured = ["frozen: slowest job", "frozen: p99 after 5 s", "frozen: p99 once it is over"];
    passes(&["sick", "--fault", "frozen"], &measured, "scheduler-2: frozen").await;
}

#[tokio::test]
async fn drills_are_listed_and_a_plan_follows_from_its_seed() {
    let (code, out, err) = drill(&["-o", "json"]).await;
    assert_eq!(code, Some(0));
    let listed = read(&out, &err);
    let names: Vec<&str> = listed.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["leader", "worker", "gateway", "workflow", "nats", "redis", "clock", "rolling", "sick"]);

    let plan = ["chaos", "--minutes", "5", "--plan", "--seed"];
    let (code, one, _) = drill(&[&plan[..], &["1"]].concat()).await;
    assert_eq!(code, Some(0));
    assert!(one.lines().count() > 30, "{one}");
    assert_eq!(drill(&[&plan[..], &["1"]].concat()).await.1, one);
    assert_ne!(drill(&[&plan[..], &["2"]].concat()).await.1, one);

    let (code, _, err) = drill(&["chaos", "--minutes", "0"]).await;
    assert_eq!(code, Some(2), "{err}");
    for unusable in [&["no-such-drill"][..], &["leader", "--fault", "frozen"], &["sick", "--fault", "no-such-fault"]] {
        let (code, _, err) = drill(unusable).await;
        assert_eq!(code, Some(2), "{err}");
    }
    let (code, _, err) = drill(&["sick", "--cluster", "--fault", "nats-slow"]).await;
    assert_eq!(code, Some(2), "{err}");
}
