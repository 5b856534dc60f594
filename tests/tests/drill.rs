//! `muster drill` as its users have it: a short chaos whose verdict is all zeros, one drill by name,
//! and the words around them.

use std::process::Stdio;

use muster_testkit::bin;
use serde_json::{Value, json};
use tokio::process::Command;

/// Runs a drill; its exit code, what it printed, and what it told on the way.
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

fn read(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// A bit more than a minute, because it takes that long for every kind of fault to have its turn.
#[tokio::test]
async fn a_short_chaos_keeps_every_promise() {
    let args = ["chaos", "--minutes", "1.2", "--seed", "42", "--replicas", "2", "--jobs-per-s", "20", "-o", "json"];
    let (code, out, err) = drill(&args).await;
    let verdict = read(&out);
    assert_eq!((code, &verdict["verdict"]), (Some(0), &json!("pass")), "{verdict:#}\n{err}");
    assert!(verdict["accepted"].as_u64() > Some(500), "{verdict:#}");
    assert_eq!(verdict["accepted"], verdict["ended"]);
    for kind in ["lost", "ended_twice", "writes_under_an_old_fence", "illegal_transitions", "starts_above_max"] {
        assert_eq!(verdict[kind], 0, "{kind}");
    }
    for kind in ["effects_missing", "effects_doubled", "consistency_gap", "runs_without_a_start"] {
        assert_eq!(verdict[kind], 0, "{kind}");
    }
    let ends = verdict["ends"].as_object().expect("ends");
    for end in ["succeeded", "failed", "cancelled"] {
        assert!(ends.contains_key(end), "the load had no job that ended {end}: {ends:?}");
    }
    for kind in ["kill", "pause", "wipe_nats", "restart_redis"] {
        assert!(verdict["faults"][kind].as_u64() > Some(0), "no {kind}: {}", verdict["faults"]);
    }
}

#[tokio::test]
async fn the_drill_of_a_killed_gateway_passes_and_tells_how_long_recovery_took() {
    let (code, out, err) = drill(&["gateway", "-o", "json"]).await;
    let played = read(&out);
    assert_eq!((code, &played["verdict"]), (Some(0), &json!("pass")), "{played:#}\n{err}");
    let measures = played["recovery"].as_array().expect("measures");
    assert!(measures.iter().any(|m| m["what"] == "gateway killed → its clients served"), "{measures:?}");
    assert!(err.contains("kill -9 gateway-1"), "it tells what it does: {err}");
}

#[tokio::test]
async fn drills_are_listed_and_a_plan_follows_from_its_seed() {
    let (code, out, _) = drill(&["-o", "json"]).await;
    assert_eq!(code, Some(0));
    let listed = read(&out);
    let names: Vec<&str> = listed.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["leader", "worker", "gateway", "nats", "redis", "clock", "rolling"]);

    let plan = ["chaos", "--minutes", "5", "--plan", "--seed"];
    let (code, one, _) = drill(&[&plan[..], &["1"]].concat()).await;
    assert_eq!(code, Some(0));
    assert!(one.lines().count() > 30, "{one}");
    assert_eq!(drill(&[&plan[..], &["1"]].concat()).await.1, one);
    assert_ne!(drill(&[&plan[..], &["2"]].concat()).await.1, one);

    let (code, _, err) = drill(&["chaos", "--minutes", "0"]).await;
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = drill(&["no-such-drill"]).await;
    assert_eq!(code, Some(2), "{err}");
}
