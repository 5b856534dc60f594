//! `muster doctor` finds settings with which jobs could be lost, shows the remedy, and exits with 1; and a gateway
//! logs the findings when it starts.

use std::{process::Command, time::Duration};

use muster_testkit::{bin, until};
use muster_tests::{Options, Stack};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// The exit code, the faults (check and level), and the whole answer.
fn doctor(stack: &Stack) -> (i32, Vec<(String, String)>, Value) {
    let said = Command::new(bin("muster"))
        .args(["doctor", "-o", "json"])
        .env("MUSTER_URL", stack.process("gateway-1").http.expect("an address"))
        .env("MUSTER_API_KEY", stack.state().api_key)
        .output()
        .expect("muster runs");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let word = |item: &Value, name: &str| item[name].as_str().expect("a word").to_owned();
    let mut faults = Vec::new();
    for item in found["items"].as_array().expect("items") {
        assert_eq!(item["level"] == "ok", item["mend"].is_null(), "a fault comes with what mends it: {item}");
        // A test cannot promise how fast a store answers on a busy machine.
        if item["level"] != "ok" && item["check"] != "latency" {
            faults.push((word(item, "check"), word(item, "level")));
        }
    }
    faults.dedup();
    (said.status.code().unwrap_or(-1), faults, found)
}

fn of(faults: &[(&str, &str)]) -> Vec<(String, String)> {
    faults.iter().map(|(check, level)| ((*check).to_owned(), (*level).to_owned())).collect()
}

fn redis(stack: &Stack, args: &[&str]) {
    let url = stack.state().redis_url;
    let said = Command::new("redis-cli").arg("-u").arg(url).args(args).output().expect("redis-cli");
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "OK", "{args:?}");
}

#[tokio::test]
async fn what_could_lose_jobs_is_found_and_told_with_what_mends_it() {
    let stack = Stack::start().await;
    // One of everything is no error, but promises less than possible.
    let (code, faults, found) = doctor(&stack);
    assert_eq!((code, &found["level"]), (0, &Value::from("warn")), "{found:#}");
    assert_eq!(faults, of(&[("replicas", "warn"), ("copies", "warn")]), "{found:#}");
    let checks: Vec<&str> = found["items"].as_array().unwrap().iter().filter_map(|it| it["check"].as_str()).collect();
    let all = ["version", "role", "log", "eviction", "clock", "memory", "max_payload"];
    for check in all.into_iter().chain(["latency", "storage", "sync", "drift", "settings", "emptied"]) {
        assert!(checks.contains(&check), "{check} was not looked at: {checks:?}");
    }
    until(SOON, "the gateway to say so in its log", async || {
        let log = stack.log("gateway-1");
        (log.contains("it has no replica") && log.contains("\"doctor\"")).then_some(())
    })
    .await;

    redis(&stack, &["CONFIG", "SET", "appendonly", "no"]);
    redis(&stack, &["CONFIG", "SET", "maxmemory", "1gb"]);
    redis(&stack, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, faults, found) = doctor(&stack);
    assert_eq!((code, &found["level"]), (1, &Value::from("error")), "{found:#}");
    let wanted = [("log", "error"), ("eviction", "error"), ("replicas", "warn"), ("copies", "warn")];
    assert_eq!(faults, of(&wanted), "the worst first: {found:#}");
    // A gateway that starts on such a Redis logs it as an error.
    let old = stack.kill9("gateway-1");
    stack.replaced("gateway-1", old).await;
    until(SOON, "the next gateway to say so", async || {
        let log = stack.log("gateway-1");
        let said = |line: &&str| line.contains("Redis loses every job when it restarts") && line.contains("ERROR");
        log.lines().rfind(said).map(drop)
    })
    .await;
    redis(&stack, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis(&stack, &["CONFIG", "SET", "appendonly", "yes"]);

    // A gateway with another setting than the others.
    let differs = stack.store().await;
    let mut replicas = differs.replicas().await.expect("replicas");
    let mut odd = replicas.remove(0);
    odd.instance = "gateway-9".to_owned();
    for setting in &mut odd.settings {
        if setting["name"] == "nats_replicas" {
            setting["value"] = "3".into();
        }
    }
    differs.put_replica(&odd).await.expect("announced");
    let (_, faults, found) = doctor(&stack);
    assert!(faults.contains(&of(&[("settings", "warn")])[0]), "{found:#}");
    assert!(found.to_string().contains("3 on gateway-9"), "{found:#}");
    differs.drop_replica(&odd.service, &odd.instance).await.expect("taken back");

    // A store that is away is a finding; the check itself does not fail.
    let away = stack.take_down("nats-1");
    until(SOON, "the bus to be missed", async || {
        let (code, faults, _) = doctor(&stack);
        (code == 1 && faults == of(&[("answers", "error"), ("replicas", "warn")])).then_some(())
    })
    .await;
    away.comes_back().await;
    until(SOON, "the bus to be back", async || (doctor(&stack).0 == 0).then_some(())).await;
}

#[tokio::test]
async fn a_cluster_as_it_should_be_has_nothing_to_mend() {
    let stack = Stack::with(Options { cluster: true, ..Options::default() }).await;
    // The copies of a new stream need a moment to be in step.
    let found = until(SOON, "nothing to be left to mend", async || {
        let (code, faults, found) = doctor(&stack);
        (code == 0 && faults.is_empty() && found["level"] == "ok").then_some(found)
    })
    .await;
    let with = |check: &str| found["items"].as_array().unwrap().iter().filter(|it| it["check"] == check).count();
    assert_eq!((with("log"), with("coverage"), with("copies")), (3, 3, 3), "each primary and each stream: {found:#}");
}
