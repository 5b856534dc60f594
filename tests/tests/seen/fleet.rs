//! Workers and replicas as the cluster sees them: the same on every gateway, one leader of each leader loop, and how
//! soon a death or a stop is visible.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
    time::{Duration, Instant},
};

use muster_testkit::{bin, until};
use muster_tests::{Executions, Options, Probe, Setup, Stack, WorkerProcess};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

async fn items(gateway: &Probe, path: &str) -> Vec<Value> {
    let answer = gateway.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    answer.body["items"].as_array().expect("items").clone()
}

async fn workers(gateway: &Probe) -> Vec<String> {
    items(gateway, "/workers").await.iter().map(|w| w["id"].as_str().unwrap().to_owned()).collect()
}

/// The leaders of each leader loop, as the replicas report them; more than one name if they disagree. A loop with shards
/// has a leader for each shard: `shards.rs` tests it.
async fn leaders(gateway: &Probe) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in items(gateway, "/loops").await.iter().filter(|row| row["class"] == "leader" && row["shards"].is_null()) {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let leads = found.entry(text("loop")).or_default();
        if row["state"] == "leading" {
            leads.push(text("instance"));
        }
    }
    found
}

async fn lock(gateway: &Probe, key: &str) -> Value {
    items(gateway, "/locks").await.into_iter().find(|row| row["key"] == key).expect("the lock is listed")
}

fn muster(stack: &Stack, args: &[&str]) -> String {
    let said = Command::new(bin("muster"))
        .args(args)
        .env("MUSTER_URL", stack.process("gateway-2").http.unwrap())
        .env("MUSTER_API_KEY", stack.state().api_key)
        .output()
        .expect("muster runs");
    assert!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).expect("text")
}

fn redis(stack: &Stack, args: &[&str]) -> String {
    let said = Command::new("redis-cli").arg("-u").arg(stack.state().redis_url).args(args).output().expect("redis-cli");
    String::from_utf8(said.stdout).expect("text").trim().to_owned()
}

/// The answer of Redis to `TIME`, in microseconds: a fence is the time of its grant.
fn micros(time: &str) -> u64 {
    let parts: Vec<u64> = time.lines().map(|part| part.trim().parse().expect("a number")).collect();
    parts[0] * 1_000_000 + parts[1]
}

/// The same time as the API writes it.
fn moment(micros: u64) -> String {
    muster_domain::Time(micros).rfc3339()
}

#[tokio::test]
async fn every_gateway_shows_the_same_workers_and_sees_them_leave() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let hold = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(payload)
    };
    let last = runs.worker(&stack, Setup { slots: 7, ..Setup::new("w3", "mail") }, hold);
    let _first = runs.worker(&stack, Setup::new("w1", "mail"), hold);
    let _other = runs.worker(&stack, Setup { tenant: "acme".into(), ..Setup::new("w9", "mail") }, hold);
    let mut killed = WorkerProcess::start(&stack, &["--topic", "other", "--builtin", "echo", "--id", "w2"]);

    until(SOON, "three workers", async || (workers(&one).await == ["w1", "w2", "w3"]).then_some(())).await;
    // Between two ticks both read the same value; a tick in between may make them differ once.
    let same = until(SOON, "both to show the same", async || {
        let (a, b) = (one.get("/workers").await.body, two.get("/workers").await.body);
        (a == b).then_some(a)
    })
    .await;
    let seen = &same["items"][2];
    assert_eq!((&seen["id"], &seen["tenant"], &seen["slots"]), (&json!("w3"), &json!("default"), &json!(7)));
    assert_eq!((&seen["topics"], &seen["healthy"]), (&json!(["mail"]), &json!(true)));
    assert!(seen["last_seen"].is_string() && seen["version"].is_string() && same["as_of"].is_string(), "{same}");

    // A tenant does not see the workers of another tenant.
    let key = one.post("/keys", &json!({"tenant": "acme", "scopes": ["read"]})).await.body["key"].clone();
    for theirs in [two.with_key(key.as_str()), one.for_tenant("acme")] {
        // This worker may have come after the others.
        let shown = until(SOON, "another tenant's worker", async || {
            Some(workers(&theirs).await).filter(|shown| !shown.is_empty())
        });
        assert_eq!(shown.await, ["w9"]);
    }

    // The workers are counted once over all replicas.
    until(SOON, "the gauge", async || (stack.metric("scheduler", "muster_workers").await == 4.0).then_some(())).await;
    let table = muster(&stack, &["worker", "list"]);
    assert!(table.contains("w1") && table.contains("mail") && !table.contains("w9"), "{table}");
    let listed: Value = serde_json::from_str(&muster(&stack, &["worker", "list", "-o", "json"])).unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);

    // A worker that leaves in order is gone at once, a killed one after a time of silence.
    killed.kill9();
    let died = Instant::now();
    last.drain().await;
    let left = Instant::now();
    until(SOON, "the drained worker to be gone", async || {
        (!workers(&two).await.contains(&"w3".to_owned())).then_some(())
    })
    .await;
    assert!(left.elapsed() < Duration::from_secs(15), "it took {:?}", left.elapsed());
    assert!(workers(&one).await.contains(&"w2".to_owned()), "the silent one is still believed to live");
    until(SOON, "the killed worker to be gone", async || (workers(&one).await == ["w1"]).then_some(())).await;
    let took = died.elapsed();
    // Its last heartbeat came some seconds before it died, and the snapshot comes some seconds later.
    assert!((Duration::from_secs(20)..Duration::from_secs(50)).contains(&took), "it took {took:?}");
}

/// A time in a row.
fn at(row: &Value, name: &str) -> u64 {
    let text = row[name].as_str().unwrap_or_else(|| panic!("no {name}: {row}"));
    muster_domain::Time::parse_rfc3339(text).unwrap_or_else(|| panic!("no moment in {name}: {row}")).0
}

/// Checks the last tick, outcome, counts and next tick of a loop that ticks; a loop on standby has none of these.
async fn every_loop_tells_of_its_ticks(gateway: &Probe, stack: &Stack) {
    let rows = until(SOON, "every loop to have ticked, and to rest", async || {
        let rows = items(gateway, "/loops").await;
        let rests = |row: &Value| row["outcome"] == "ok" && row["next_tick_at"].is_string();
        // A replica that a stall kept from reporting is not in the list.
        let instances: BTreeSet<&str> = rows.iter().filter_map(|row| row["instance"].as_str()).collect();
        let all = instances.len() == 6 && rows.iter().all(|row| row["state"] == "standby" || rests(row));
        let led = |name: &str| rows.iter().any(|row| row["loop"] == name && row["state"] != "standby");
        (all && ["scrub", "reconciler", "retention"].into_iter().all(led)).then_some(rows)
    })
    .await;
    for row in &rows {
        if row["state"] == "standby" {
            assert!(row.get("next_tick_at").is_none(), "who does not lead plans nothing: {row}");
            continue;
        }
        let (last, said, next) = (at(row, "last_tick_at"), at(row, "said_at"), at(row, "next_tick_at"));
        assert!(last <= said && said <= next, "{row}");
        // Allow for a tenth, and for rounding.
        let (interval, ticks) = (row["interval_ms"].as_u64().unwrap() * 1_000, row["ticks"].as_u64());
        assert!(next - said <= interval + interval / 9, "{row}");
        assert!(row["counts"].is_object() && row["last_took_ms"].is_u64() && ticks > Some(0), "{row}");
        assert!(row.get("error").is_none(), "{row}");
    }
    let row = |rows: &[Value], name: &str| {
        rows.iter().find(|row| row["loop"] == name && row["state"] != "standby").cloned().expect("it is listed")
    };
    assert!(row(&rows, "scrub")["counts"]["scanned"].is_u64(), "{}", row(&rows, "scrub"));
    let watches: Vec<&Value> =
        rows.iter().filter(|row| row["loop"] == "config watch").map(|row| &row["interval_ms"]).collect();
    assert_eq!(watches, [&json!(30_000); 6], "how often each replica polls unless it is told otherwise");

    // The loop goes on, and the command line shows the same in columns.
    let before = row(&rows, "reconciler");
    until(SOON, "another tick", async || {
        let now = row(&items(gateway, "/loops").await, "reconciler");
        let later = |name: &str| now[name].is_string() && at(&now, name) > at(&before, name);
        (later("last_tick_at") && later("next_tick_at") && now["ticks"].as_u64() > before["ticks"].as_u64())
            .then_some(())
    })
    .await;
    // A loop that ticks once an hour, so that nothing changes between two reads.
    let seldom = row(&rows, "retention");
    let table = muster(stack, &["loops", "retention"]);
    let heading = table.lines().next().expect("a heading");
    let line = table.lines().find(|line| line.contains("leading")).expect("a leader");
    let cell = |name: &str, next: &str| {
        let begin = heading.find(name).unwrap_or_else(|| panic!("no {name} in {heading}"));
        let end = heading.find(next).expect("a heading").min(line.len());
        line[begin..end].trim().to_owned()
    };
    let shown = json!({"last_tick_at": cell("LAST TICK", "COUNTS"), "next_tick_at": cell("NEXT TICK", "INTERVAL")});
    for name in ["last_tick_at", "next_tick_at"] {
        // Replicas report ages, so a time differs a little from one report to the next.
        assert!(at(&shown, name).abs_diff(at(&seldom, name)) < 10_000_000, "{name}: {line}\n{seldom}");
    }
    assert_eq!(cell("OUTCOME", "LAST TICK"), "ok", "{table}");
    let counts = seldom["counts"].as_object().expect("counts");
    assert!(!counts.is_empty() && counts.contains_key("looked"), "{seldom}");
    for (what, n) in counts {
        assert!(cell("COUNTS", "HOLDER").contains(&format!("{what}={n}")), "{what}: {table}");
    }
}

#[tokio::test]
async fn one_replica_leads_each_loop_and_another_follows_it() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let replicas = until(SOON, "six replicas", async || {
        let all = items(&gateway, "/replicas").await;
        (all.len() == 6).then_some(all)
    })
    .await;
    let names: Vec<_> = replicas.iter().map(|r| (r["service"].as_str().unwrap(), r["instance"].clone())).collect();
    let services = ["muster-gateway", "muster-scheduler", "muster-workflow"].map(|name| [name; 2]);
    assert_eq!(names.iter().map(|(service, _)| *service).collect::<Vec<_>>(), services.concat());
    for replica in &replicas {
        let admin = replica["admin"].as_str().unwrap();
        let own = stack.process(replica["instance"].as_str().unwrap()).admin.unwrap();
        assert_eq!(own.rsplit(':').next(), admin.rsplit(':').next(), "{replica}");
    }

    let one_each = async || {
        let all = leaders(&gateway).await;
        (all.len() >= 3 && all.values().all(|who| who.len() == 1)).then_some(all)
    };
    let led = until(SOON, "one leader of each loop", one_each).await;
    assert!(["reconciler", "snapshot", "streams"].iter().all(|name| led.contains_key(*name)), "{led:?}");
    // A replica on standby knows the holder once it has asked for the lock. The holder comes from Redis and the state
    // from the replica, which reports a change within a second: shards change their owners when a replica joins.
    let rows = until(SOON, "everybody to know who leads", async || {
        let rows = items(&gateway, "/loops").await;
        let knows = |row: &Value| {
            let leads = row["state"] == "leading";
            row["holder"].is_string() && leads == (row["instance"] == row["holder"])
        };
        rows.iter().all(|row| row["class"] != "leader" || knows(row)).then_some(rows)
    })
    .await;
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/loops.md")).unwrap();
    let declared: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).map(|(name, _)| name).collect();
    let running: BTreeSet<&str> = rows.iter().filter_map(|row| row["loop"].as_str()).collect();
    let idle: Vec<&&str> = declared.difference(&running).collect();
    assert_eq!(idle, [&"audit relay", &"loop"], "every loop of the page runs, but for the heading and what is off");
    for row in &rows {
        let words = ["loop", "class", "why_safe", "duplicate_costs"].map(|name| row[name].as_str().unwrap_or("?"));
        let told = page.lines().any(|line| words.iter().all(|word| line.contains(&format!("| {word} |"))));
        assert!(told, "docs/reference/loops.md tells it: {row}");
        assert!(row["interval_ms"].is_u64() && row["said_at"].is_string(), "{row}");
        // Every row of a leader loop names the holder, whichever replica that is.
        let leader = row["class"] == "leader";
        assert_eq!((row["holder"].is_string(), row["fence"].is_u64()), (leader, leader), "{row}");
        assert!(row["since"].is_string() || !leader, "{row}");
        assert_eq!(row["state"] == "leading", row["instance"] == row["holder"], "{row}");
    }
    every_loop_tells_of_its_ticks(&gateway, &stack).await;
    let key = "muster:reconciler:default";
    let seen = lock(&gateway, key).await;
    let text = redis(&stack, &["GET", key]);
    assert_eq!(text, format!("{}:{}", seen["owner"].as_str().unwrap(), seen["fence"]));
    assert_eq!(seen["holder"].as_str(), Some(led["reconciler"][0].as_str()));
    assert!(seen["ttl_ms"].as_u64().is_some_and(|ttl| (1..=15_000).contains(&ttl)), "{seen}");
    // A fence is the time of its grant by the clock of Redis, and all replicas report the same.
    let since = moment(seen["fence"].as_u64().unwrap());
    assert_eq!(seen["since"], since.as_str());
    let held_by = |replica: &Value| {
        let held = replica["holds"].as_array().unwrap().iter().find(|held| held["lock"] == key).cloned();
        (held, replica["instance"] == seen["holder"])
    };
    let replicas = until(SOON, "every replica to tell what it holds", async || {
        let told = items(&gateway, "/replicas").await;
        let agrees = |replica: &Value| {
            let (held, holds) = held_by(replica);
            held.is_some() == holds
        };
        told.iter().all(agrees).then_some(told)
    });
    for replica in replicas.await {
        let (held, holds) = held_by(&replica);
        assert_eq!(held.is_some(), holds, "{replica}");
        let wanted = json!({"loop": "reconciler", "lock": key, "fence": seen["fence"], "since": since});
        assert!(held.is_none_or(|held| held == wanted), "{replica}");
    }
    for scheduler in ["scheduler-1", "scheduler-2"] {
        let row = until(SOON, "the admin port to know the leader", async || {
            stack.loops(scheduler).await.remove("reconciler").filter(|row| row["holder"].is_string())
        })
        .await;
        for name in ["holder", "fence", "since"] {
            assert_eq!(row[name], seen[name], "{name} at the admin port of {scheduler}: {row}");
        }
    }
    let leader = led["reconciler"][0].as_str();
    let (fence, standby) = (seen["fence"].to_string(), ["scheduler-1", "scheduler-2"].iter().find(|n| **n != leader));
    let (owner, why) = (seen["owner"].as_str().unwrap(), rows.iter().find(|row| row["loop"] == "reconciler").unwrap());
    let says = |name: &str| why[name].as_str().unwrap();
    for (command, words) in [
        ("replicas", vec!["reconciler", leader, &since, &fence, key]),
        ("loops", vec!["reconciler", standby.unwrap(), "leader", "standby", leader, &since, &fence, "5000"]),
        ("loops", vec!["reconciler", key, says("why_safe"), says("duplicate_costs")]),
        ("loops reconciler", vec!["reconciler", key, says("why_safe"), says("duplicate_costs")]),
        ("locks", vec![key, owner, &since, &fence]),
    ] {
        let args: Vec<&str> = command.split(' ').collect();
        let table = muster(&stack, &args);
        let told = table.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(told, "no line of muster {command} has {words:?}:\n{table}");
        let shown: Value = serde_json::from_str(&muster(&stack, &[&args[..], &["-o", "json"]].concat())).unwrap();
        assert!(shown["items"].is_array());
    }

    // Killed: there is no leader until the lock has expired. The successor is the other replica or, after a restart,
    // the same replica as a new process: then with another owner.
    let leader = led["reconciler"][0].clone();
    let death = micros(&redis(&stack, &["TIME"]));
    stack.kill9(&leader);
    let after = until(SOON, "a new leader", async || {
        let now = lock(&gateway, key).await;
        (now["held"] == true && now["owner"] != seen["owner"]).then_some(now)
    })
    .await;
    // Use the time at which Redis granted the lock, however late the test learned of it. Usually that is at once when
    // the lock has expired: `promises/leaders.rs`. A replica that only asks now and then is 6.5 s later at most.
    let granted = after["fence"].as_u64().unwrap().saturating_sub(death);
    assert!(granted < 28_000_000, "it took {granted} us");
    assert!(after["fence"].as_u64() > seen["fence"].as_u64(), "{after}");
    let holder = after["holder"].as_str().unwrap().to_owned();
    until(SOON, "/loops to tell", async || {
        let led = leaders(&gateway).await;
        led.get("reconciler").is_some_and(|who| *who == [holder.as_str()]).then_some(())
    })
    .await;

    // Stopped: the leader releases the lock, and the other replica leads at once.
    let led = until(SOON, "one leader of each loop", one_each).await;
    let leader = led["reconciler"][0].clone();
    let before = lock(&gateway, key).await;
    let stop = micros(&redis(&stack, &["TIME"]));
    let pid = stack.signal(&leader, Signal::SIGTERM);
    let after = until(SOON, "the other to lead", async || {
        let now = lock(&gateway, key).await;
        (now["held"] == true && now["owner"] != before["owner"]).then_some(now)
    })
    .await;
    let took = after["fence"].as_u64().unwrap().saturating_sub(stop);
    // Usually within a second: `promises/leaders.rs`. A replica that hears nothing of it asks every 6.5 s at most.
    // Without the release it would be fifteen.
    assert!(took < 12_000_000, "it took {took} us");
    stack.replaced(&leader, pid).await;
    until(SOON, "one leader of each loop", one_each).await;
}
