//! Jobs with requirements have lines of their own, but still count as jobs of their topic: against its bound, in its
//! numbers and in its gauges.

use std::process::Command;

use muster_domain::{Tenant, Time, Topic};
use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{SOON, gpu};

async fn tell(gateway: &Probe, topic: &str, body: Value) {
    let path = format!("/api/v1/topics/{topic}");
    let answer = gateway.send(Method::PUT, &path, &[], Some(body.to_string().into_bytes())).await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// Waits until this gateway reports these numbers of the topic: queued and offered together, and runnable.
async fn shows(gateway: &Probe, topic: &str, backlog: u64, runnable: u64) -> Value {
    until(SOON, &format!("backlog {backlog} and runnable {runnable}"), async || {
        let shown = gateway.get(&format!("/topics/{topic}")).await.body;
        let counted = shown["counts"]["queued"].as_u64()? + shown["counts"]["dispatched"].as_u64()?;
        let said = (&shown["backlog"], &shown["runnable"], counted);
        (said == (&json!(backlog), &json!(runnable), backlog)).then_some(shown)
    })
    .await
}

/// The sum of a fleet gauge of the topic over both schedulers.
async fn gauge_becomes(stack: &Stack, gauge: &str, topic: &str, holds: impl Fn(f64) -> bool) {
    let what = format!("{gauge} of {topic}");
    let (admins, mine) = (["scheduler-1", "scheduler-2"], format!("topic=\"{topic}\""));
    until(SOON, &what, async || {
        let mut sum = 0.0;
        for name in admins {
            let admin = stack.process(name).admin?;
            let scrape = reqwest::get(format!("{admin}/metrics")).await.ok()?.text().await.ok()?;
            let of_topic: String =
                scrape.lines().filter(|line| line.contains(&mine)).map(|l| format!("{l}\n")).collect();
            sum += muster_tests::metric_sum(&of_topic, gauge);
        }
        holds(sum).then_some(())
    })
    .await;
}

#[tokio::test]
async fn jobs_that_require_something_fill_their_topics_backlog() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    tell(&one, "render", json!({"max_backlog": 3})).await;
    until(SOON, "the news", async || (two.get("/topics").await.text.contains("max_backlog")).then_some(())).await;
    let job = |zone: usize| json!({"topic": "render", "requires": {"gpu": "a100", "zone": format!("z{zone}")}});
    let items: Vec<Value> = (0..11).map(|n| job(n % 4)).collect();
    let answer = one.post("/jobs/batch", &json!({ "items": items })).await.body;
    let outcomes = answer["items"].as_array().expect("items");
    let accepted = outcomes.iter().filter(|outcome| outcome["job"]["id"].is_string()).count();
    assert_eq!(accepted, 3, "{answer:#}");
    // Each gateway counts what the other has admitted, whatever the new job requires.
    shows(&two, "render", 3, 3).await;
    for gateway in [&one, &two] {
        for newcomer in [job(0), job(9), json!({"topic": "render"})] {
            let full = gateway.post("/jobs", &newcomer).await;
            assert_eq!(full.status, 429, "{}", full.text);
            assert_eq!(full.field("code"), "backlog_full", "{}", full.text);
        }
    }
    shows(&one, "render", 3, 3).await;
}

#[tokio::test]
async fn what_waits_for_some_workers_only_is_shown_and_told_by_the_gauges() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    // More than a window holds: some are offered, the others wait in the backlogs of their lines.
    let picky = json!({"topic": "render", "payload": 1, "requires": {"gpu": "a100"}});
    let other = json!({"topic": "render", "payload": 1, "requires": {"gpu": "h100"}});
    one.submit_many(200, &picky).await;
    two.submit_many(3, &other).await;
    one.submit_many(2, &json!({"topic": "render", "payload": 1})).await;
    for gateway in [&one, &two] {
        let shown = shows(gateway, "render", 205, 205).await;
        assert!(shown["counts"]["queued"].as_u64() > Some(0), "{shown:#}");
        assert!(shown["oldest_age_ms"].as_u64().is_some(), "{shown:#}");
    }
    for gauge in ["muster_queue_depth", "muster_queue_runnable", "muster_jobs_current"] {
        gauge_becomes(&stack, gauge, "render", |sum| sum == 205.0).await;
    }
    gauge_becomes(&stack, "muster_queue_oldest_age_seconds", "render", |age| age > 0.0).await;

    // A worker runs some of the jobs. Jobs that no live worker fits do not call for more workers of the same kind.
    let runs = Executions::default();
    let _gpu = runs.worker(&stack, Setup { slots: 4, ..gpu("gpu1") }, |_, payload| async { Ok(payload) });
    runs.reach(202, SOON).await;
    for gateway in [&one, &two] {
        shows(gateway, "render", 3, 0).await;
    }
    gauge_becomes(&stack, "muster_queue_depth", "render", |sum| sum == 3.0).await;
    gauge_becomes(&stack, "muster_queue_runnable", "render", |sum| sum == 0.0).await;

    // The name of a line that has not been used for long is removed if the line is empty, and stays otherwise.
    let store = stack.store().await;
    for requires in ["{\"gpu\":\"gone\"}", "{\"gpu\":\"h100\"}"] {
        let add = ["ZADD", "muster:lines:default:render", "1", requires];
        let added = Command::new("redis-cli").arg("-u").arg(stack.state().redis_url).args(add).output().unwrap();
        assert!(added.status.success(), "{added:?}");
    }
    let topics = [(Tenant::default(), Topic::parse("render").unwrap())];
    until(SOON, "the old name to be dropped, and the other to be noted anew", async || {
        let lines = store.lines_of(&topics).await.ok()?.pop()?;
        let noted = |gpu: &str| lines.iter().find(|l| l.requires.get("gpu").is_some_and(|g| g == gpu)).map(|l| l.noted);
        (noted("gone").is_none() && noted("h100")? > Some(Time(1))).then_some(())
    })
    .await;
    shows(&one, "render", 3, 0).await;

    let fits = Setup { provides: vec![("gpu".into(), "h100".into())], ..Setup::new("gpu2", "render") };
    let _late = runs.worker(&stack, fits, |_, payload| async { Ok(payload) });
    runs.reach(205, SOON).await;
    for gateway in [&one, &two] {
        let shown = shows(gateway, "render", 0, 0).await;
        assert!(shown["oldest_age_ms"].is_null(), "{shown:#}");
    }
    for gauge in ["muster_queue_depth", "muster_queue_runnable", "muster_queue_oldest_age_seconds"] {
        gauge_becomes(&stack, gauge, "render", |sum| sum == 0.0).await;
    }
}
