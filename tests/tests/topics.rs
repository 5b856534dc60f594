//! Settings of topics at run time: a change reaches every replica, also when its notification is lost, and takes
//! effect: pauses (a file of their own), rates, bounds, defaults. Two of each service.

#[path = "topics/pauses.rs"]
mod pauses;

use std::time::{Duration, Instant};

use muster_domain::{Tenant, Time, Topic, topic::Paused};
use muster_store::{SeenVersion, TopicChange};
use muster_testkit::until;
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack};
use reqwest::Method;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);

async fn put(gateway: &Probe, path: &str, body: &Value, seen: Option<&str>) -> Answer {
    let seen: Vec<(&str, &str)> = seen.map(|tag| ("If-Match", tag)).into_iter().collect();
    let body = Some(body.to_string().into_bytes());
    gateway.send(Method::PUT, &format!("/api/v1{path}"), &seen, body).await.expect("an answer")
}

async fn tell(gateway: &Probe, topic: &str, body: Value) -> Answer {
    let answer = put(gateway, &format!("/topics/{topic}"), &body, None).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer
}

/// The topic as this gateway has it in memory, without asking Redis.
async fn remembered(gateway: &Probe, topic: &str) -> Option<Value> {
    let answer = gateway.get("/topics").await;
    answer.body["items"].as_array().expect("items").iter().find(|item| item["topic"] == topic).cloned()
}

/// Submits to a paused topic without workers, until `many` jobs in a row were held: by then every scheduler knows
/// about the pause. Earlier jobs are cancelled.
async fn held(gateways: [&Probe; 2], topic: &str, many: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let began = Instant::now();
    while ids.len() < many {
        assert!(began.elapsed() < LONG, "{topic} is not held");
        let gateway = gateways[ids.len() % 2];
        let id = gateway.submit(json!({"topic": topic})).await;
        let state = until(LONG, "it to be decided", async || {
            let state = gateway.job(&id).await["state"].as_str()?.to_owned();
            (state != "pending").then_some(state)
        })
        .await;
        ids.push(id);
        if state != "queued" {
            for id in ids.drain(..) {
                assert_eq!(gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
            }
        }
    }
    ids
}

async fn all_in(gateway: &Probe, ids: &[String], state: &str) {
    for id in ids {
        gateway.reaches(id, state, LONG).await;
    }
}

#[tokio::test]
async fn a_change_reaches_every_replica_at_once() {
    // No replica polls while this test runs: what arrives was sent as a notification.
    let stack = Stack::with(Options::two().env("MUSTER_LOOP_CONFIG_INTERVAL", "1h")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let first = tell(&one, "mail.send", json!({"max_backlog": 7, "rate": {"per_s": 0.5}})).await;
    assert_eq!(first.body["rate"], json!({"per_s": 0.5, "burst": 1}));
    assert_eq!(first.header("etag").unwrap(), format!("\"{}\"", first.body["version"]));
    let there = until(LONG, "the news", async || remembered(&two, "mail.send").await).await;
    assert_eq!((&there["max_backlog"], &there["version"]), (&json!(7), &first.body["version"]));

    // Another tenant's topic of the same name has no settings.
    let other = two.for_tenant("acme").get("/topics/mail.send").await;
    assert_eq!((&other.body["declared"], &other.body["version"]), (&json!(false), &json!(0)));

    // Both schedulers obey: whichever gateway accepts a job and whichever scheduler decides, it is held.
    let paused = two.post("/topics/held/pause", &json!({"reason": "the printer burns"})).await;
    assert_eq!(paused.body["pause"]["reason"], "the printer burns", "{}", paused.text);
    let mut ids = held([&one, &two], "held", 30).await;
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "held");
    for n in 0..10 {
        ids.push([&one, &two][n % 2].submit(json!({"topic": "held"})).await);
    }
    all_in(&one, &ids, "queued").await;
    // The snapshot shows workers, every five seconds.
    let shown = until(LONG, "the worker to be shown", async || {
        Some(one.get("/topics/held").await).filter(|shown| shown.body["workers"] == 1)
    })
    .await;
    assert_eq!((&shown.body["paused"], &shown.body["counts"]["queued"]), (&json!(true), &json!(40)), "{}", shown.text);
    assert_eq!((&shown.body["backlog"], &shown.body["runnable"]), (&json!(40), &json!(0)));
    assert!(shown.body["oldest_age_ms"].as_u64().is_some(), "{}", shown.text);
    assert_eq!(runs.all().len(), 0);
    let explained = two.get(&format!("/jobs/{}/explain", ids[3])).await;
    assert_eq!(explained.body["waits_for"], "resume", "{}", explained.text);
    assert!(explained.text.contains("(the printer burns)"), "{}", explained.text);
    let resumed = Instant::now();
    assert_eq!(one.post("/topics/held/resume", &json!({})).await.body["paused"], false);
    all_in(&two, &ids, "succeeded").await;
    assert!(resumed.elapsed() < Duration::from_secs(40), "released at once, not by a poll: {:?}", resumed.elapsed());
    assert!(runs.counts().values().all(|n| *n == 1));
}

#[tokio::test]
async fn a_change_whose_news_was_lost_is_found_by_the_poll() {
    let stack = Stack::with(Options::two().env("MUSTER_LOOP_CONFIG_INTERVAL", "2s")).await;
    let (one, two, store) = (stack.gateway(1), stack.gateway(2), stack.store().await);
    let (tenant, topic) = (Tenant::default(), Topic::parse("held").unwrap());
    // As if the gateway had died after the write and before it notified the others.
    let change = async |change: TopicChange| {
        store.put_topic(&tenant, &topic, SeenVersion::Any, &change).await.expect("a write");
        Instant::now()
    };
    let written = change(TopicChange::Pause(Paused { since: Time(1).0, by: "k".into(), reason: String::new() })).await;
    for gateway in [&one, &two] {
        until(LONG, "the poll", async || remembered(gateway, "held").await.filter(|t| t["paused"] == true)).await;
    }
    assert!(written.elapsed() < Duration::from_secs(20), "{:?}", written.elapsed());
    let loops = one.get("/loops").await;
    let watching = loops.body["items"].as_array().unwrap().iter().filter(|row| row["loop"] == "config watch");
    let watching: Vec<_> = watching.map(|row| (row["service"].as_str().unwrap(), row["class"].clone())).collect();
    assert_eq!(watching.len(), 6, "on every replica of every service: {}", loops.text);
    assert!(watching.iter().all(|(_, class)| class == "idempotent"));

    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "held");
    // A scheduler that has not polled yet may still let a job through; after two polls none does.
    stack.settings_are_known().await;
    let ids = one.submit_many(20, &json!({"topic": "held"})).await;
    all_in(&two, &ids, "queued").await;
    assert_eq!(runs.all().len(), 0);
    change(TopicChange::Resume).await;
    all_in(&two, &ids, "succeeded").await;
    // A restarted scheduler knows the settings before it handles a job.
    change(TopicChange::Pause(Paused { since: 1, by: "k".into(), reason: String::new() })).await;
    for name in ["scheduler-1", "scheduler-2"] {
        let old = stack.kill9(name);
        stack.replaced(name, old).await;
    }
    let late = one.submit_many(20, &json!({"topic": "held"})).await;
    all_in(&two, &late, "queued").await;
    assert_eq!(runs.all().len(), 20, "none of the late ones");
}

#[tokio::test]
async fn a_full_backlog_refuses_and_a_rate_is_kept() {
    let stack = Stack::with(Options::two().env("MUSTER_LOOP_CONFIG_INTERVAL", "1s")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    tell(&one, "narrow", json!({"max_backlog": 50})).await;
    until(LONG, "the news", async || remembered(&two, "narrow").await).await;
    let items: Vec<Value> = (0..200).map(|n| json!({"topic": "narrow", "idempotency_key": format!("k{n}")})).collect();
    let answer = one.post("/jobs/batch", &json!({ "items": items })).await;
    let outcomes = answer.body["items"].as_array().unwrap();
    let accepted: Vec<String> = outcomes.iter().filter_map(|o| Some(o["job"]["id"].as_str()?.to_owned())).collect();
    assert_eq!(accepted.len(), 50);
    let refused = &outcomes[199];
    assert_eq!((&refused["status"], &refused["error"]["code"]), (&json!(429), &json!("backlog_full")), "{refused}");
    for gateway in [&one, &two] {
        let full = until(LONG, "to be refused", async || {
            let answer = gateway.post("/jobs", &json!({"topic": "narrow"})).await;
            (answer.status == 429).then_some(answer)
        })
        .await;
        assert_eq!(full.field("code"), "backlog_full");
        assert!(full.header("retry-after").is_some() && full.field("retryable") == true);
        assert_eq!(gateway.post("/jobs", &json!({"topic": "wide"})).await.status, 202, "other topics go on");
        // An accepted job stays accepted: its repeat does not count as a new job.
        let body = json!({"topic": "narrow"}).to_string().into_bytes();
        let repeat =
            gateway.send(Method::POST, "/api/v1/jobs", &[("Idempotency-Key", "k0")], Some(body)).await.unwrap();
        assert_eq!((repeat.status.as_u16(), repeat.id()), (202, accepted[0].clone()), "{}", repeat.text);
        assert_eq!(repeat.header("idempotency-replayed"), Some("true"));
        let again = gateway.post("/jobs/batch", &json!({"items": [items[1], items[199]]})).await.body;
        let (known, newcomer) = (&again["items"][0], &again["items"][1]);
        assert_eq!((&known["status"], &known["replayed"]), (&json!(202), &json!(true)), "{again}");
        assert_eq!(newcomer["error"]["code"], "backlog_full", "{again}");
    }
    until(LONG, "the age of what is only offered", async || {
        let wide = one.get("/topics/wide").await.body;
        (wide["counts"]["queued"] == 0 && wide["oldest_age_ms"].is_u64()).then_some(())
    })
    .await;
    // A retry counts as a new job, until it is stored.
    let old = one.submit(json!({"topic": "wide", "delay_ms": 3_600_000})).await;
    assert_eq!(one.post(&format!("/jobs/{old}/cancel"), &json!({})).await.status, 200);
    let retried = one.post(&format!("/jobs/{old}/retry"), &json!({"topic": "narrow"})).await;
    assert_eq!((retried.status.as_u16(), retried.field("code")), (429, &json!("backlog_full")), "{}", retried.text);
    let runs = Executions::default();
    let _drain = runs.echo(&stack, "w1", "narrow");
    all_in(&one, &accepted, "succeeded").await;
    until(LONG, "to be let in again", async || {
        (two.post("/jobs", &json!({"topic": "narrow"})).await.status == 202).then_some(())
    })
    .await;

    // A rate, checked on the clock of Redis: when each job was released to the workers, which may start some later.
    tell(&one, "slow", json!({"rate": {"per_s": 20, "burst": 5}})).await;
    stack.settings_are_known().await;
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup { slots: 32, ..Setup::new("w2", "slow") }, |_, p| async move { Ok(p) });
    let ids = two.submit_many(100, &json!({"topic": "slow"})).await;
    one.reaches(&ids[99], "queued", LONG).await;
    let explained = one.get(&format!("/jobs/{}/explain", ids[99])).await;
    assert_eq!(explained.body["waits_for"], "rate", "{}", explained.text);
    assert!(!explained.text.contains("as many jobs as they soon start"), "{}", explained.text);
    all_in(&one, &ids, "succeeded").await;
    let mut released = Vec::new();
    for id in &ids {
        let story = one.history(id).await;
        let lines = story["transitions"].as_array().unwrap();
        let last = lines.iter().rfind(|line| line["event"] == "dispatch").unwrap_or_else(|| panic!("{story}"));
        released.push(Time::parse_rfc3339(last["at"].as_str().unwrap()).unwrap());
    }
    released.sort_unstable();
    let took = released[99].since(released[0]).as_secs_f64();
    // 100 less the burst, at 20 a second.
    assert!(took > (100.0 - 5.0) / 20.0 - 0.5, "100 jobs were released within {took} s");
    assert!(took < 30.0, "100 jobs took {took} s: the rate is not used");
    for (n, first) in released.iter().enumerate() {
        let within = released[n..].iter().filter(|at| at.since(*first) < Duration::from_secs(1)).count();
        assert!(within <= 20 + 5 + 5, "{within} were released within a second");
    }
}

#[tokio::test]
async fn of_two_writers_one_wins_and_bad_input_changes_nothing() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let mut tag = "\"0\"".to_owned();
    for round in 1..=20 {
        let (mine, yours) = (json!({"max_backlog": round}), json!({"max_backlog": round + 1000}));
        let (a, b) = tokio::join!(
            put(&one, "/topics/raced", &mine, Some(&tag)),
            put(&two, "/topics/raced", &yours, Some(&tag)),
        );
        let mut statuses = [a.status.as_u16(), b.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412], "round {round}: {} {}", a.text, b.text);
        let (won, lost) = if a.status == 200 { (a, b) } else { (b, a) };
        assert_eq!(lost.field("code"), "precondition_failed");
        tag = won.header("etag").unwrap().to_owned();
        let read = two.get("/topics/raced").await;
        assert_eq!((read.header("etag"), &read.body["max_backlog"]), (Some(tag.as_str()), &won.body["max_backlog"]));
    }
    let stood = one.get("/topics/raced").await.body;
    for (body, pointer) in [
        (json!({"max_backlog": 0}), "/max_backlog"),
        (json!({"rate": {"per_s": -1}}), "/rate/per_s"),
        (json!({"concurrency": {"max": "3"}}), "/concurrency/max"),
        (json!({"colour": "red"}), "/colour"),
        (json!({"shared": 1}), "/shared"),
        (json!([]), ""),
    ] {
        let answer = put(&one, "/topics/raced", &body, None).await;
        assert_eq!((answer.status.as_u16(), &answer.body["errors"][0]["pointer"]), (422, &json!(pointer)), "{body}");
    }
    let answer = put(&one, "/topics/raced", &json!({}), Some("0")).await;
    assert_eq!((answer.status.as_u16(), &answer.body["errors"][0]["pointer"]), (422, &json!("/header/If-Match")));
    for tag in ["\"x\"", "\"1\", \"2\"", &format!("W/{tag}")] {
        let answer = put(&one, "/topics/raced", &json!({}), Some(tag)).await;
        assert_eq!((answer.status.as_u16(), answer.field("code")), (412, &json!("precondition_failed")), "{tag}");
    }
    assert_eq!(put(&one, "/topics/new", &json!({}), Some("*")).await.status, 412, "nobody has told it anything");
    assert_eq!(one.get("/topics/raced").await.body["version"], stood["version"], "nothing was written");
    let any = put(&one, "/topics/raced", &json!({"max_backlog": 7}), Some("*")).await;
    assert_eq!((any.status.as_u16(), &any.body["max_backlog"]), (200, &json!(7)));
    let one_of = format!("\"1\", {}", any.header("etag").unwrap());
    assert_eq!(put(&two, "/topics/raced", &json!({}), Some(&one_of)).await.status, 200);
    for name in ["Mail", "a..b", "a%20b", "-a", &"x".repeat(129)] {
        assert_eq!(one.get(&format!("/topics/{name}")).await.status, 404, "{name}");
        assert_eq!(put(&one, &format!("/topics/{name}"), &json!({}), None).await.status, 404, "{name}");
    }
    let reader = one.post("/keys", &json!({"scopes": ["read"], "topics": ["mail.*"]})).await;
    let reader = one.with_key(reader.body["key"].as_str());
    assert_eq!(reader.get("/topics/mail.send").await.status, 200);
    assert_eq!(reader.get("/topics/raced").await.status, 403, "not among its topics");
    assert_eq!(remembered(&reader, "raced").await, None);
    assert_eq!(put(&reader, "/topics/mail.send", &json!({}), None).await.status, 403);
    assert_eq!(reader.post("/topics/mail.send/pause", &json!({})).await.status, 403);
    let gone = one.with_key(None).get("/topics").await;
    assert_eq!(gone.status, 401);
}

#[tokio::test]
async fn what_a_submit_does_not_say_the_topic_does() {
    let options = Options::two().env("MUSTER_TOPICS", "declared").env("MUSTER_LOOP_CONFIG_INTERVAL", "1s");
    let stack = Stack::with(options).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let refused = one.post("/jobs", &json!({"topic": "mail"})).await;
    assert_eq!((refused.status.as_u16(), &refused.body["errors"][0]["pointer"]), (422, &json!("/topic")));
    let retry = json!({"max_attempts": 2, "backoff": {"initial_ms": 1, "jitter": 0}});
    tell(&one, "mail", json!({"retry": retry, "timeout_ms": 300})).await;
    until(LONG, "the news", async || remembered(&two, "mail").await).await;
    let plain = two.submit(json!({"topic": "mail"})).await;
    let own = two.submit(json!({"topic": "mail", "retry": {"max_attempts": 1}, "timeout_ms": 600_000})).await;
    assert_eq!(one.job(&plain).await["max_attempts"], 2);
    assert_eq!(one.job(&own).await["max_attempts"], 1);
    let runs = Executions::default();
    let stuck = |ctx: muster_sdk::Context, p: Value| async move {
        if ctx.max_attempts() == 2 {
            std::future::pending::<()>().await;
        }
        Ok(p)
    };
    let _worker = runs.worker(&stack, Setup::new("w1", "mail"), stuck);
    let ended = one.ended(&plain, LONG).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("timed_out"), &json!(2)), "{ended}");
    assert_eq!(one.ended(&own, LONG).await["state"], "succeeded");
    // The lease of a worker that asks for none, and of an extension that asks for none.
    tell(&one, "leased", json!({"lease_ms": 60_000})).await;
    stack.settings_are_known().await;
    let held = one.submit(json!({"topic": "leased"})).await;
    let ask = json!({"request_id": "r1", "worker_id": "w2", "topics": ["leased"], "wait_ms": 20_000});
    let item = two.post("/worker/lease", &ask).await.body["items"][0].clone();
    assert!(item["job_id"] == held.as_str() && item["lease_ms"].as_u64() > Some(30_000), "{item}");
    let keep = json!({"worker_id": "w2", "items": [{"job_id": held, "fence": item["fence"]}]});
    let kept = one.post("/worker/extend", &keep).await;
    assert!(kept.body["items"][0]["lease_ms"].as_u64() > Some(30_000), "{}", kept.text);
    let elsewhere = one.for_tenant("acme").post("/jobs", &json!({"topic": "mail"})).await;
    assert_eq!(elsewhere.status, 422, "declared for one tenant only");
    let batch = one.post("/jobs/batch", &json!({"items": [{"topic": "mail"}, {"topic": "nope"}]})).await;
    assert_eq!((&batch.body["items"][0]["status"], &batch.body["items"][1]["status"]), (&json!(202), &json!(422)));
}

async fn effective(gateway: &Probe, name: &str) -> (String, String) {
    let answer = gateway.get("/config/effective").await;
    let items = answer.body["items"].as_array().expect("items").clone();
    let row = items.into_iter().find(|row| row["name"] == name).expect("the setting");
    (row["value"].as_str().unwrap().to_owned(), row["source"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn the_clusters_settings_change_without_a_restart_and_say_where_they_come_from() {
    // No replica polls while this test runs: what arrives was sent as a notification.
    let stack = Stack::with(Options::two().env("MUSTER_LOOP_CONFIG_INTERVAL", "1h")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let before = effective(&two, "rate_limit_rps").await;
    assert_ne!(before.1, "run time");
    assert_eq!(effective(&two, "retention_failed").await, ("30d".to_owned(), "default".to_owned()));
    assert_eq!(effective(&two, "api_key").await.0, "***");
    let told = until(LONG, "every replica's settings", async || {
        let told = two.get("/config/effective").await.body;
        // The other gateway, and two of each other service.
        (told["others"].as_array()?.len() == 5).then_some(told)
    })
    .await;
    for scheduler in ["scheduler-1", "scheduler-2"] {
        let others = told["others"].as_array().expect("others").iter();
        let one = others.clone().find(|it| it["instance"] == scheduler).unwrap_or_else(|| panic!("{told}"));
        assert_eq!(one["service"], "muster-scheduler");
        let setting = |name: &str| one["items"].as_array()?.iter().find(|it| it["name"] == name).cloned();
        let interval = setting("loop_config_interval").expect("it is told");
        assert_eq!((&interval["value"], &interval["source"]), (&json!("1h"), &json!("environment")), "{interval}");
        assert_eq!(setting("loop_scrub_interval").expect("it is told")["source"], "default");
    }
    assert!(!told.to_string().contains(stack.state().api_key.as_str()), "secrets stay masked everywhere");

    let limits = json!({"rate_limit_rps": 0.001, "rate_limit_burst": 5});
    let first = put(&one, "/config", &limits, Some("\"0\"")).await;
    assert_eq!((first.status.as_u16(), &first.body["settings"]["rate_limit_rps"]), (200, &json!("0.001")));
    until(LONG, "the news", async || (effective(&two, "rate_limit_rps").await.1 == "run time").then_some(())).await;
    // A gateway that Redis does not answer for a quarter of a second admits its own share. On a busy machine that may
    // happen, but not every time.
    let mut taken = Vec::new();
    while !taken.contains(&5) {
        assert!(taken.len() < 4, "one limit for both gateways, at once: {taken:?}");
        let spender = format!("spender-{}", taken.len());
        let spenders = [one.for_tenant(&spender), two.for_tenant(&spender)];
        let mut admitted = 0;
        for n in 0..10 {
            admitted += usize::from(spenders[n % 2].post("/jobs", &json!({"topic": "t"})).await.status == 202);
        }
        taken.push(admitted);
    }

    // A request with an old version, with invalid settings or without permission changes nothing.
    assert_eq!(put(&two, "/config", &json!({}), Some("\"0\"")).await.status, 412);
    for (body, pointer) in [
        (json!({"rate_limit_rps": "fast"}), "/rate_limit_rps"),
        (json!({"redis_url": "redis://elsewhere"}), "/redis_url"),
        (json!({"rate_limit": 1}), "/rate_limit"),
    ] {
        let answer = put(&two, "/config", &body, None).await;
        assert_eq!((answer.status.as_u16(), &answer.body["errors"][0]["pointer"]), (422, &json!(pointer)));
    }
    let made = one.post("/keys", &json!({"scopes": ["admin"]})).await;
    let own = one.with_key(made.body["key"].as_str());
    assert_eq!(own.get("/config").await.status, 403, "a key of one tenant");
    assert_eq!(put(&own, "/config", &json!({}), None).await.status, 403);
    assert_eq!(one.get("/config").await.body["version"], first.body["version"]);

    let tag = first.header("etag").unwrap();
    assert_eq!(put(&two, "/config", &json!({"topics": "declared"}), Some(tag)).await.status, 200);
    until(LONG, "the news", async || (effective(&one, "topics").await.1 == "run time").then_some(())).await;
    assert_eq!(effective(&one, "rate_limit_rps").await, before, "what is no longer told is as it was started");
    assert_eq!(one.post("/jobs", &json!({"topic": "undeclared"})).await.status, 422);
    // A gateway that starts later obeys too.
    let old = stack.kill9("gateway-1");
    stack.replaced("gateway-1", old).await;
    let refused = until(LONG, "the new gateway", async || {
        let again = stack.gateway(1);
        let body = Some(br#"{"topic": "undeclared"}"#.to_vec());
        again.send(Method::POST, "/api/v1/jobs", &[], body).await.ok().filter(|answer| answer.status != 503)
    })
    .await;
    assert_eq!(refused.status, 422, "{}", refused.text);
}

#[tokio::test]
async fn the_command_line_tells_topics_what_to_do() {
    let stack = Stack::start().await;
    let muster = |args: &[&str]| {
        let said = std::process::Command::new(muster_testkit::bin("muster"))
            .args(args)
            .env("MUSTER_URL", stack.process("gateway-1").http.unwrap())
            .env("MUSTER_API_KEY", stack.state().api_key)
            .output()
            .expect("muster runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (said.status.code(), text(&said.stdout), text(&said.stderr))
    };
    let (code, said, fault) = muster(&["topic", "set", "mail", "rate.per_s=5", "max_backlog=9"]);
    assert_eq!(code, Some(0), "{fault}");
    assert!(said.contains("max_backlog") && said.contains('9'), "{said}");
    let (_, said, _) = muster(&["topic", "set", "mail", "max_backlog=", "lease_ms=60000", "-o", "json"]);
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&told["rate"]["per_s"], &told["lease_ms"]), (&json!(5.0), &json!(60000)), "{said}");
    assert!(told["max_backlog"].is_null(), "{said}");
    let (code, _, fault) = muster(&["topic", "set", "mail", "rate.per_s=-1"]);
    assert!(code == Some(1) && fault.contains("/rate/per_s"), "{fault}");
    assert_eq!(muster(&["topic", "set", "mail", "rate"]).0, Some(2));
    assert!(muster(&["topic", "pause", "mail", "--reason", "tea"]).1.contains(": tea"));
    assert!(
        muster(&["topic", "list"])
            .1
            .lines()
            .any(|line| line.trim_start().starts_with("mail") && line.contains("paused"))
    );
    assert_eq!(
        serde_json::from_str::<Value>(&muster(&["topic", "resume", "mail", "-o", "json"]).1).unwrap()["paused"],
        false
    );
    assert_eq!(muster(&["topic", "get", "Mail"]).0, Some(3));

    assert_eq!(muster(&["config", "set", "rate_limit_burst=77", "topics=open"]).0, Some(0));
    assert_eq!(muster(&["config", "set", "topics="]).0, Some(0));
    let (_, said, _) = muster(&["config", "get", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["settings"], json!({"rate_limit_burst": "77"}));
    let of_a_scheduler =
        |line: &str| line.trim_start().starts_with("loop_scrub_interval") && line.contains("scheduler-1");
    let said = until(LONG, "the scheduler to tell its settings", async || {
        let (_, said, _) = muster(&["config", "effective"]);
        said.lines().any(of_a_scheduler).then_some(said)
    })
    .await;
    assert!(
        said.lines().any(|line| line.trim_start().starts_with("rate_limit_burst") && line.contains("run time")),
        "{said}"
    );
}
