//! Leaders: one replica per loop, another soon after it stops or dies, none without Redis; and the cost of a paused
//! leader, a lost lock, a panic or an overrun.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, Instant},
};

use muster_testkit::until;
use muster_tests::{Executions, Failpoints, Options, Setup, Stack};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{SOON, redis};

/// The time to live of every leader's lock.
const TTL: Duration = Duration::from_secs(15);
/// How often a leader is stopped at most, until a successor is in time.
const STOPS: usize = 5;
/// The same for deaths, each of which takes as long as the lock lives.
const DEATHS: usize = 3;
const LOCKS: [&str; 6] = [
    "muster:reconciler:default",
    "muster:scheduler:streams",
    "muster:scheduler:scrub",
    "muster:scheduler:reread",
    "muster:scheduler:snapshot:writer",
    "muster:dlq:cleanup",
];

fn ms(row: &Value, name: &str) -> Option<Duration> {
    row[name].as_u64().map(Duration::from_millis)
}

/// The loops that this replica leads.
async fn led_by(stack: &Stack, name: &str) -> BTreeSet<String> {
    let rows = stack.loops(name).await;
    rows.into_iter().filter(|(_, row)| row["state"] == "leading").map(|(name, _)| name).collect()
}

/// Waits until exactly one of the two replicas of a service leads each leader loop. Returns the loops of each
/// replica.
async fn all_led(stack: &Stack, service: &str) -> BTreeMap<String, BTreeSet<String>> {
    let names = [format!("{service}-1"), format!("{service}-2")];
    until(SOON, "one leader of each loop", async || {
        let mut led = BTreeMap::new();
        let mut leaders: BTreeMap<String, usize> = BTreeMap::new();
        for name in &names {
            for (row_name, row) in stack.loops(name).await.iter().filter(|(_, row)| row["class"] == "leader") {
                *leaders.entry(row_name.clone()).or_default() += usize::from(row["state"] == "leading");
            }
            led.insert(name.clone(), led_by(stack, name).await);
        }
        (!leaders.is_empty() && leaders.values().all(|n| *n == 1)).then_some(led)
    })
    .await
}

/// How long after `since` this replica had taken each of these loops and begun a tick of it.
async fn taken_over(stack: &Stack, heir: &str, loops: &BTreeSet<String>, since: Instant) -> Duration {
    let mut longest = Duration::ZERO;
    for name in loops {
        let took = until(SOON, &format!("{heir} to tick {name}"), async || {
            let row = stack.loops(heir).await.remove(name)?;
            let now = since.elapsed();
            let (held, ticked) = (ms(&row, "held_for_ms")?, ms(&row["last"], "ago_ms")?);
            // A tick since it leads; its age shows when it began, however late the test asks.
            (row["state"] == "leading" && ticked <= held).then(|| now.saturating_sub(ticked))
        })
        .await;
        longest = longest.max(took);
    }
    longest
}

/// The replica of this service that leads most loops, these loops, and the other replica.
async fn leader_and_heir(stack: &Stack, service: &str) -> (String, BTreeSet<String>, String) {
    let led = all_led(stack, service).await;
    let (leader, loops) = led.into_iter().max_by_key(|(_, loops)| loops.len()).expect("two replicas");
    let heir = format!("{service}-{}", if leader.ends_with('1') { 2 } else { 1 });
    (leader, loops, heir)
}

/// Kills the replica that leads most loops of a service. Returns how long after its death all of them were led again.
async fn led_after_a_death(stack: &Stack, service: &str) -> Duration {
    let (leader, loops, heir) = leader_and_heir(stack, service).await;
    let (died, pid) = (Instant::now(), stack.kill9(&leader));
    // The first replica that asks after the lock has expired: the other one, or the same one after its restart.
    stack.replaced(&leader, pid).await;
    let mut open = loops.clone();
    let mut last = Duration::ZERO;
    until(SOON, "new leaders", async || {
        for name in [&leader, &heir] {
            let rows = stack.loops(name).await;
            let now = died.elapsed();
            open.retain(|one| {
                let Some(held) = rows.get(one).and_then(|row| ms(row, "held_for_ms")) else { return true };
                last = last.max(now.saturating_sub(held));
                false
            });
        }
        open.is_empty().then_some(())
    })
    .await;
    last
}

#[tokio::test]
async fn every_loop_ticks_elsewhere_within_a_second_of_a_stop_and_within_the_ttl_of_a_kill() {
    let stack = Stack::with(Options::two()).await;
    for service in ["scheduler", "gateway"] {
        let (_, _, heir) = leader_and_heir(&stack, service).await;
        for (name, row) in stack.loops(&heir).await.iter().filter(|(_, row)| row["class"] == "leader") {
            assert!(row["state"] == "leading" || row["ticks"] == 0, "{heir} ticks {name} without leading: {row}");
        }
        // A busy machine may be late now and then. A replica that is not notified asks within six seconds: if all
        // loops are taken within one second, that is no accident.
        let mut took: Vec<Duration> = Vec::new();
        while took.len() < STOPS && took.iter().all(|took| *took >= Duration::from_secs(1)) {
            let (leader, loops, heir) = leader_and_heir(&stack, service).await;
            let (stopped, pid) = (Instant::now(), stack.signal(&leader, Signal::SIGTERM));
            took.push(taken_over(&stack, &heir, &loops, stopped).await);
            stack.replaced(&leader, pid).await;
            until(SOON, "its successor", async || stack.ready(&leader).await.then_some(())).await;
        }
        let best = took.iter().min().expect("a stop");
        assert!(*best < Duration::from_secs(1), "the loops of {service} were taken over after {took:?}");

        // Redis expires keys to the millisecond; the rest is one call. A replica that asks at its usual interval is
        // up to six seconds later; one on a busy machine now and then, too.
        let mut took: Vec<Duration> = Vec::new();
        while took.len() < DEATHS && took.iter().all(|took| *took >= TTL + Duration::from_secs(3)) {
            took.push(led_after_a_death(&stack, service).await);
        }
        let best = took.iter().min().expect("a death");
        assert!(*best < TTL + Duration::from_secs(3), "the loops of {service} were led again after {took:?}");
        all_led(&stack, service).await;
    }
}

#[tokio::test]
async fn a_leader_paused_in_its_tick_wakes_up_and_changes_nothing() {
    let points = Failpoints::default();
    let stack = Stack::with(Options::two().env("MUSTER_FAILPOINTS", points.setting())).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "later");
    let (leader, heir) = {
        let led = all_led(&stack, "scheduler").await;
        let leads = |name: &str| led[name].contains("reconciler");
        if leads("scheduler-1") { ("scheduler-1", "scheduler-2") } else { ("scheduler-2", "scheduler-1") }
    };
    let fence = |value: String| value.rsplit(':').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
    let before = fence(redis(&stack, &["GET", LOCKS[0]]));
    // The scheduler that first looks at due jobs stays between reading and acting: longer than it takes to stop it
    // there, and shorter than it stays stopped.
    points.arm("look.after_read", "delay:10000");
    // Enough time for their submits to be read before they are due.
    let job = json!({"topic": "later", "delay_ms": 5_000, "retry": {"max_attempts": 1}});
    let ids = gateway.submit_many(20, &job).await;
    points.has_acted("look.after_read").await;
    stack.signal(leader, Signal::SIGSTOP);
    let paused = Instant::now();
    for id in &ids {
        assert_eq!(gateway.ended(id, SOON).await["state"], "succeeded");
    }
    until(SOON, "the heir to say that it leads", async || {
        led_by(&stack, heir).await.contains("reconciler").then_some(())
    })
    .await;
    until(SOON, "twice the TTL to pass", async || (paused.elapsed() >= 2 * TTL).then_some(())).await;
    stack.signal(leader, Signal::SIGCONT);

    // The old leader stops at its next check, and is on standby.
    let row = until(SOON, "the old leader to notice", async || {
        let row = stack.loops(leader).await.remove("reconciler")?;
        (row["state"] == "standby" && row["running_for_ms"].is_null()).then_some(row)
    })
    .await;
    // The message comes from the first one to notice: the loop that was cut off, or the write that checked its lease.
    let lost = |said: &str| said.contains("lease is lost") || said.contains("is not held");
    assert!(row["last"]["error"].as_str().is_some_and(lost), "{row}");
    assert_eq!(row["last"]["counts"], json!({}), "it acted on nothing");
    assert!(fence(redis(&stack, &["GET", LOCKS[0]])) > before, "somebody else leads, under a higher fence");
    for id in &ids {
        let story = gateway.history(id).await;
        let states: Vec<_> = story["transitions"].as_array().unwrap().iter().map(|t| t["state"].clone()).collect();
        assert_eq!(states.iter().filter(|state| **state == "pending").count(), 2, "woken once: {states:?}");
        assert_eq!(runs.of(id).len(), 1, "ran once");
    }
    let after = gateway.submit(job).await;
    assert_eq!(gateway.ended(&after, SOON).await["attempt"], 1);
}

#[tokio::test]
async fn a_lost_renewal_changes_nothing_and_a_lock_deleted_by_hand_ends_at_the_next() {
    let stack = Stack::with(Options::two()).await;
    all_led(&stack, "scheduler").await;
    all_led(&stack, "gateway").await;
    let values = || LOCKS.map(|lock| redis(&stack, &["GET", lock]));
    let before = values();
    assert!(before.iter().all(|value| value.contains('~')), "{before:?}");

    // Locks are renewed every five seconds, and trusted for thirteen and a half. Delete the locks just before the
    // first one is renewed: its loss is certain, and the others have seconds left, whenever they were renewed.
    until(SOON, "a renewal to be near", async || {
        let left: u64 = redis(&stack, &["PTTL", LOCKS[0]]).parse().ok()?;
        (10_000..12_000).contains(&left).then_some(())
    })
    .await;
    stack.signal("redis-1", Signal::SIGSTOP);
    let silent = Instant::now();
    until(SOON, "a renewal to be lost", async || (silent.elapsed() > Duration::from_millis(5_500)).then_some(())).await;
    stack.signal("redis-1", Signal::SIGCONT);
    for name in ["scheduler-1", "scheduler-2"] {
        until(SOON, "all to be ready", async || stack.ready(name).await.then_some(())).await;
    }
    assert_eq!(values(), before, "no change of owner");
    let lost = async || stack.metric("scheduler", "muster_lease_lost_total").await;
    assert_eq!(lost().await, 0.0);

    // One renewal, not three: within a third of the time to live plus, on a busy machine, the time of a call.
    let owner = before[0].split('~').next().unwrap().to_owned();
    redis(&stack, &["DEL", LOCKS[0]]);
    let deleted = Instant::now();
    until(SOON, "the old owner to stop", async || (lost().await == 1.0).then_some(())).await;
    let took = deleted.elapsed();
    assert!(took < TTL * 2 / 3, "{owner} stopped after {took:?}");
    let next = until(SOON, "the next owner", async || {
        let now = redis(&stack, &["GET", LOCKS[0]]);
        now.contains('~').then_some(now)
    })
    .await;
    assert_ne!(next, before[0], "under a new fence");
    all_led(&stack, "scheduler").await;
    assert_eq!(lost().await, 1.0, "once");
}

#[tokio::test]
async fn a_tick_that_panics_or_overruns_is_recorded_and_its_neighbours_live_on() {
    let points = Failpoints::default();
    let options = Options::default().env("MUSTER_FAILPOINTS", points.setting());
    let stack = Stack::with(options.env("MUSTER_LOOP_SCRUB_INTERVAL", "1s")).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "on");
    let ticks = async |name: &str, outcome: &str| {
        let admin = stack.process("scheduler-1").admin.unwrap();
        let admin = muster_tests::Probe::new(admin, String::new());
        let scrape = admin.send(reqwest::Method::GET, "/metrics", &[], None).await.expect("an answer").text;
        let label = (format!("loop=\"{name}\""), format!("outcome=\"{outcome}\""));
        let lines = scrape.lines().filter(|l| l.starts_with("muster_loop_ticks_total{"));
        let ours = lines.filter(|l| l.contains(&label.0) && l.contains(&label.1));
        ours.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
    };
    // Longer than the budget of a tick, and shorter than twice that: then it would be cut off.
    points.arm("scrub.begin", "delay:15000");
    points.has_acted("scrub.begin").await;
    points.arm("reconciler.begin", "panic");
    // A job for a moment later wakes the reconciler, which panics on it, and handles it at its next tick.
    let later = gateway.submit(json!({"topic": "on", "delay_ms": 500, "retry": {"max_attempts": 1}})).await;
    points.has_acted("reconciler.begin").await;
    assert_eq!(gateway.ended(&later, SOON).await["state"], "succeeded");
    assert_eq!(ticks("scrub", "overrun").await, 0.0, "the neighbour still hangs, and has held nobody up");
    until(SOON, "the panic to be told", async || (ticks("reconciler", "panic").await == 1.0).then_some(())).await;
    assert_eq!(stack.metric("scheduler", "muster_task_panics_total").await, 1.0);
    assert!(stack.log("scheduler-1").contains("asked to, at reconciler.begin"));

    until(SOON, "the overrun to be told", async || (ticks("scrub", "overrun").await == 1.0).then_some(())).await;
    let done = ticks("scrub", "ok").await;
    until(SOON, "the scrub to go on", async || (ticks("scrub", "ok").await > done).then_some(())).await;
    assert!(ticks("reconciler", "ok").await > 0.0);
    assert_eq!(ticks("reconciler", "panic").await, 1.0);
}

#[tokio::test]
async fn a_stop_under_load_is_in_order_in_time_and_leaves_no_lock() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(2);
    let runs = Executions::default();
    let setup = Setup { slots: 16, ..Setup::new("w1", "load") };
    let _worker = runs.worker(&stack, setup, |_, payload| async move { Ok(payload) });
    let job = json!({"topic": "load", "retry": {"max_attempts": 1}});
    all_led(&stack, "scheduler").await;
    for (name, sequence) in [
        ("scheduler-1", vec!["consumers", "in flight", "leases"]),
        ("scheduler-2", vec!["consumers", "in flight", "leases"]),
        ("gateway-1", vec!["bus taps", "http", "stores"]),
    ] {
        let ids = gateway.submit_many(1_000, &job).await;
        let begun = runs.all().len();
        until(SOON, "the load to run", async || (runs.all().len() > begun + 50).then_some(())).await;
        let held = LOCKS.map(|lock| redis(&stack, &["GET", lock]));
        let said = stack.log(name).len();
        let (stopped, pid) = (Instant::now(), stack.signal(name, Signal::SIGTERM));
        until(SOON, "its end", async || stack.log(name)[said..].contains("\"event\":\"stopped\"").then_some(())).await;
        assert!(stopped.elapsed() < Duration::from_secs(25), "{name} took {:?}", stopped.elapsed());
        // No lock belongs to this replica any more.
        for (lock, before) in LOCKS.iter().zip(&held).filter(|(_, value)| value.starts_with(&format!("{name}~"))) {
            assert_ne!(&redis(&stack, &["GET", lock]), before, "{lock}");
        }
        let log = stack.log(name)[said..].to_owned();
        let stages: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("stop_stage"))
            .filter_map(|line| sequence.iter().find(|stage| line.contains(&format!("\"{stage}\""))).copied())
            .collect();
        assert_eq!(stages, sequence, "{name}: {log}");
        assert!(!log.contains("_late"), "{name}: nobody was late: {log}");
        stack.replaced(name, pid).await;
        for id in &ids {
            let job = gateway.ended(id, SOON).await;
            assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
        }
    }
    assert!(runs.counts().values().all(|n| *n == 1), "each ran once");
}

#[test]
fn timings_that_cannot_work_are_refused_with_every_fault() {
    for (program, bad) in [
        ("muster-scheduler", vec![("MUSTER_LOOP_RECONCILER_INTERVAL", "0s"), ("MUSTER_OUTAGE_WAIT", "soon")]),
        ("muster-gateway", vec![("MUSTER_LOOP_BULK_INTERVAL", "0s"), ("MUSTER_RETENTION_FAILED", "-1s")]),
    ] {
        let said = Command::new(muster_testkit::bin(program))
            .arg("--check-config")
            .env_clear()
            .envs(bad.iter().copied())
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        assert!(!said.status.success(), "{program}: {text}");
        for (name, _) in bad {
            assert!(text.contains(name), "{program} does not name {name}: {text}");
        }
    }
}
