//! What must hold after all rows.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use muster_bus::{ConsumerSpec, subjects};
use muster_domain::{State, Tenant, Time, Topic, slot::Limit};
use muster_store::{Fields, Record};
use muster_testkit::until;
use muster_tests::{Probe, by_hand::bus_of};
use muster_wire::Body;
use serde_json::{Value, json};

use crate::{
    Expected, Ground, LONG, SOON,
    loads::{WORK, once},
};

/// How long a slot may stay taken after everything has ended before another job needs it.
const UNWANTED: Duration = Duration::from_secs(10);
/// Transitions that a loop makes, and must write to the audit log.
const TOLD: [&str; 8] = ["wake", "reoffer", "rescue", "abandon", "poison", "cut_short", "time_out", "expire"];

pub(crate) async fn all(ground: &Ground) {
    let gateway = &ground.gateways[0];
    let store = ground.stack.store().await;
    let mut owed = BTreeSet::new();
    for job in &ground.jobs {
        owed.extend(one_end(gateway, job).await);
    }
    until(LONG, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
    each_ran_as_often_as_it_should(ground);
    each_is_listed_once(ground).await;
    bad_ends_are_dead_letters_once(ground).await;
    watchers_heard_each_end(ground).await;
    each_run_was_told_of_its_jobs(ground).await;
    one_ran_at_a_time(ground).await;
    nothing_is_held(ground).await;
    each_act_is_told_once(ground, owed).await;
    people_got_what_they_asked_for(ground).await;
    each_retry_is_known_to_the_job_it_repeats(ground).await;
    what_was_deleted_is_gone(ground).await;
    each_key_was_made_once(ground).await;
    nothing_is_left_of_what_was_removed(ground).await;
    every_entry_is_exported(ground).await;
    each_unreadable_message_is_kept_once(ground).await;
}

/// Checks that the job ended once, in the right state. Returns the ids of the audit entries that loops owe for it.
async fn one_end(gateway: &Probe, expected: &Expected) -> Vec<String> {
    let Expected { row, id, state, attempts, .. } = expected;
    let job = gateway.ended(id, LONG).await;
    let end = (job["state"].as_str(), job["attempt"].as_u64());
    let story = gateway.history(id).await;
    assert_eq!(end, (Some(*state), Some(*attempts)), "{row}: {job} {story}");
    let lines = story["transitions"].as_array().expect("transitions");
    let is_end = |line: &&Value| line["state"].as_str().and_then(State::parse).is_some_and(State::is_end);
    assert_eq!(lines.iter().filter(is_end).count(), 1, "{row}: {story}");
    assert!(lines.last().as_ref().is_some_and(is_end), "{row}: {story}");
    let mut acts = Vec::new();
    for (n, pair) in lines.windows(2).enumerate() {
        let event = pair[1]["event"].as_str().unwrap_or_default();
        // Waking a job that waited for its time is no repair.
        if TOLD.contains(&event) && (event != "wake" || pair[0]["state"] == "retrying") {
            acts.push(format!("job:{id}:{}", n + 2));
        }
    }
    acts
}

fn each_ran_as_often_as_it_should(ground: &Ground) {
    let counts = ground.runs.counts();
    for Expected { row, id, runs, .. } in &ground.jobs {
        assert_eq!(counts.get(id).copied().unwrap_or(0), *runs, "{row}: runs of {id}");
    }
    let all = ground.runs.all();
    let attempts: HashSet<(&str, u32)> = all.iter().map(|run| (run.job.as_str(), run.attempt)).collect();
    // Compare fences per job: two nodes of a cluster may mint the same fence for two jobs.
    let fences: HashSet<(&str, u64)> = all.iter().map(|run| (run.job.as_str(), run.fence)).collect();
    assert_eq!((attempts.len(), fences.len()), (all.len(), all.len()), "no attempt ran twice, each had its own fence");
    // Submits that were not answered and not repeated ran once or not at all.
    let known: HashSet<&str> =
        ground.jobs.iter().map(|job| &job.id).chain(&ground.deleted).map(String::as_str).collect();
    let others = counts.iter().filter(|(id, _)| !known.contains(id.as_str()));
    let others: Vec<usize> = others.map(|(_, n)| *n).collect();
    assert!(others.iter().all(|n| *n == 1) && others.len() <= ground.unanswered.len(), "{others:?}");
}

async fn pages(gateway: &Probe, path: &str) -> Vec<Value> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = gateway.get(&format!("{path}?limit=100{cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        items.extend(page.body["items"].as_array().expect("items").iter().cloned());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}

fn ids(items: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = items.iter().filter_map(|item| item["id"].as_str()).map(str::to_owned).collect();
    ids.sort();
    ids
}

async fn each_is_listed_once(ground: &Ground) {
    let ran = ground.runs.counts().into_keys().filter(|id| !ground.deleted.contains(id));
    let wanted: BTreeSet<String> = ground.jobs.iter().map(|job| job.id.clone()).chain(ran).collect();
    let shown = ids(&pages(&ground.gateways[1], "/jobs").await);
    assert_eq!(shown, wanted.into_iter().collect::<Vec<_>>(), "each is listed, once, and nothing else is");
}

async fn bad_ends_are_dead_letters_once(ground: &Ground) {
    let bad = |job: &&Expected| State::parse(job.state).is_some_and(State::is_bad_end);
    let mut wanted: Vec<String> = ground.jobs.iter().filter(bad).map(|job| job.id.clone()).collect();
    wanted.sort();
    assert_eq!(ids(&pages(&ground.gateways[1], "/dlq").await), wanted);
    // There are also no dead letters that are only hidden because their job is gone.
    let kept = ground.stack.store().await.count_dead_letters(&Tenant::default()).await;
    assert_eq!(kept, Ok(wanted.len() as u64), "dead letters in Redis");
}

async fn watchers_heard_each_end(ground: &Ground) {
    for Expected { row, id, state, .. } in &ground.jobs {
        let wanted = BTreeSet::from([State::parse(state).expect("a state")]);
        let heard = || ground.heard.lock().expect("no panic while noting").get(id).cloned();
        until(SOON, &format!("{row}: the end of {id} to be heard"), async || heard()).await;
        assert_eq!(heard(), Some(wanted), "{row}: {id}");
    }
}

async fn one_ran_at_a_time(ground: &Ground) {
    let at = |line: &Value| line["at"].as_str().and_then(Time::parse_rfc3339).expect("a moment");
    for jobs in &ground.in_turn {
        let mut spans = Vec::new();
        for id in jobs {
            let story = ground.gateways[0].history(id).await;
            let lines = story["transitions"].as_array().expect("transitions");
            spans.extend(
                lines.windows(2).filter(|pair| pair[0]["state"] == "running").map(|pair| (at(&pair[0]), at(&pair[1]))),
            );
        }
        spans.sort_unstable();
        assert!(spans.is_sorted_by(|before, after| before.1 <= after.0), "two at once: {spans:?} of {jobs:?}");
    }
}

async fn nothing_is_held(ground: &Ground) {
    let (store, tenant) = (ground.stack.store().await, Tenant::default());
    for limit in &ground.limits {
        let mut wanted_at = Instant::now() + UNWANTED;
        until(SOON, &format!("{limit:?} to be free"), async || {
            let (_, held, waiting) = store.read_slots(&tenant, limit).await.ok()?;
            if held + waiting > 0 && Instant::now() > wanted_at {
                want(ground, limit).await;
                wanted_at = Instant::now() + UNWANTED;
            }
            (held + waiting == 0).then_some(())
        })
        .await;
    }
    let line = |topic: &String| (tenant.clone(), Topic::parse(topic).expect("a topic").into());
    let lines: Vec<_> = ground.topics.iter().map(line).collect();
    until(SOON, "the backlog to be empty", async || {
        store.queue_lens(&lines).await.ok()?.iter().all(|n| *n == 0).then_some(())
    })
    .await;
}

/// A job that needs a slot finds one that a crash left behind; so submit such a job.
async fn want(ground: &Ground, limit: &Limit) {
    let job = match limit {
        Limit::Topic(topic) => once(topic.as_str(), "succeed"),
        Limit::Key(key) => {
            let mut job = once(WORK, "succeed");
            job["concurrency_key"] = json!(key);
            job
        }
    };
    for id in ground.submit_many(6, &job).await {
        ground.gateways[0].ended(&id, LONG).await;
    }
}

async fn each_act_is_told_once(ground: &Ground, owed: BTreeSet<String>) {
    let entries = pages(&ground.gateways[1], "/audit").await;
    let all = ids(&entries);
    let distinct: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(distinct.len(), all.len(), "each id once");
    let known: HashSet<&str> = ground.jobs.iter().map(|job| job.id.as_str()).collect();
    // `job:<id>:<version>` is a transition; an id with one more part is a repair that changed no state.
    let moved =
        |id: &&String| id.split(':').count() == 3 && id.split(':').nth(1).is_some_and(|job| known.contains(job));
    let told: BTreeSet<String> = distinct.iter().filter(moved).cloned().collect();
    assert_eq!(told, owed, "what loops did, and what the jobs' own stories tell");
    let verdict = ground.gateways[0].get("/audit/verify").await.body;
    assert_eq!((&verdict["valid"], &verdict["complete"]), (&json!(true), &json!(true)), "{verdict}");
    // A run cancels its jobs itself: that is no act of a person.
    let by_a_run = |job: &&Expected| ground.of_runs.iter().any(|(_, of)| of.to_string() == job.id);
    let cancelled = ground.jobs.iter().filter(|job| job.state == "cancelled" && !by_a_run(job));
    let by: HashMap<&str, Vec<&str>> = entries.iter().filter(|entry| entry["action"] == "job_cancel").fold(
        HashMap::new(),
        |mut by: HashMap<&str, Vec<&str>>, entry| {
            let word = |name: &str| entry[name].as_str().expect("a word");
            by.entry(word("job_id")).or_default().push(word("id"));
            by
        },
    );
    for Expected { row, id, .. } in cancelled {
        assert!(by.contains_key(id.as_str()), "{row}: the cancel of {id} is told");
    }
    let set =
        |topic: &str| entries.iter().any(|e| e["action"] == "topic_set" && e["target"] == format!("topic/{topic}"));
    assert!(ground.told.iter().all(|(topic, _)| set(topic)));
}

async fn people_got_what_they_asked_for(ground: &Ground) {
    for id in &ground.operations {
        let gateway = &ground.gateways[0];
        let operation = until(LONG, "the operation to end", async || {
            let operation = gateway.get(&format!("/operations/{id}")).await.body;
            (operation["done"] == json!(true)).then_some(operation)
        })
        .await;
        let wanted = json!({"matched": 6, "done": 6, "skipped": 0, "failed": 0});
        assert_eq!((&operation["status"], &operation["counts"]), (&json!("done"), &wanted), "{operation}");
    }
    for (topic, bound) in &ground.told {
        for gateway in &ground.gateways {
            until(SOON, &format!("a gateway to know what {topic} was told"), async || {
                let known = gateway.get("/topics").await.body;
                let known = known["items"].as_array()?.iter().find(|item| item["topic"] == topic.as_str())?.clone();
                (known["max_backlog"] == json!(bound)).then_some(())
            })
            .await;
        }
    }
}

async fn each_retry_is_known_to_the_job_it_repeats(ground: &Ground) {
    for (old, new) in &ground.retried {
        let (was, is) = (ground.gateways[0].job(old).await, ground.gateways[1].job(new).await);
        assert_eq!((was["retried_as"].as_str(), is["retry_of"].as_str()), (Some(new.as_str()), Some(old.as_str())));
    }
}

async fn what_was_deleted_is_gone(ground: &Ground) {
    for id in &ground.deleted {
        assert_eq!(ground.gateways[0].get(&format!("/jobs/{id}")).await.status, 404, "{id}");
        let told = ground.gateways[1].get(&format!("/audit?job_id={id}&action=job_delete")).await;
        assert!(told.body["items"].as_array().is_some_and(|items| !items.is_empty()), "{id}: {}", told.text);
    }
}

/// A crash between the audit entry and the creation left no key, and every key that was answered works.
async fn each_key_was_made_once(ground: &Ground) {
    let all = ground.gateways[0].get("/keys").await;
    for (name, secret) in &ground.keys {
        let made = all.body["items"].as_array().expect("items").iter().filter(|key| key["name"] == name.as_str());
        assert_eq!(made.count(), 1, "{name}: {}", all.text);
        assert_eq!(ground.gateways[1].with_key(Some(secret)).get("/jobs").await.status, 200, "{name}");
    }
}

async fn nothing_is_left_of_what_was_removed(ground: &Ground) {
    let store = ground.stack.store().await;
    for (tenant, ids) in &ground.removed {
        until(LONG, &format!("all of {tenant} to leave"), async || {
            let records = store.read(ids, Fields::NONE).await;
            let left = |record: &Record| !record.deleted;
            let gone = records.iter().all(|record| matches!(record, Ok(record) if !record.as_ref().is_some_and(left)));

            (gone && store.count_dead_letters(tenant).await == Ok(0)).then_some(())
        })
        .await;
        for kind in ["buckets", "kept"] {
            let key = format!("muster:idx:{tenant}:{kind}");
            until(LONG, &format!("{key} to leave"), async || (ground.redis(&["EXISTS", &key]) == "0").then_some(()))
                .await;
        }
    }
}

/// By a message, or else by a home that is due.
async fn each_run_was_told_of_its_jobs(ground: &Ground) {
    let store = ground.stack.store().await;
    for (run, job) in &ground.of_runs {
        let told = ground.told_runs.lock().expect("no panic while noting").contains(&job.to_string());
        assert!(told || store.home_of(*run).await.expect("redis answers").is_some(), "{run} of {job}");
    }
}

async fn every_entry_is_exported(ground: &Ground) {
    let wanted: BTreeSet<String> = ids(&pages(&ground.gateways[0], "/audit").await).into_iter().collect();
    let bus = bus_of(&ground.stack, "exporter").await;
    let consumer = bus.consumer(ConsumerSpec::audit_exporters()).await.expect("a consumer");
    let mut got: BTreeMap<String, String> = BTreeMap::new();
    until(LONG, "every entry to be exported", async || {
        for delivery in consumer.fetch(100, std::time::Duration::from_millis(300)).await.unwrap_or_default() {
            let Body::Audit(entry) = &delivery.body else { panic!("something else on the subject") };
            let before = got.insert(entry.id.clone(), entry.hash.clone());
            assert!(before.is_none_or(|hash| hash == entry.hash), "{}: the same entry under its id", entry.id);
            delivery.receipt.ack().await;
        }
        wanted.iter().all(|id| got.contains_key(id)).then_some(())
    })
    .await;
    let left = || ground.redis(&["XPENDING", "muster:audit", "export"]);
    until(SOON, "all to be confirmed", async || left().starts_with('0').then_some(())).await;
}

/// Waits until each message is acked: until then it is delivered again.
async fn each_unreadable_message_is_kept_once(ground: &Ground) {
    let (bus, keepers) = (bus_of(&ground.stack, "undertaker").await, ConsumerSpec::gateway(subjects::dlq()));
    until(LONG, "every unreadable message to be kept", async || {
        let state = bus.consumer_state(&keepers).await.ok()?;
        (state.pending + state.unacked == 0).then_some(())
    })
    .await;
    let kept = ground.gateways[0].get("/dlq?kind=message&limit=100").await;
    let mut reasons: Vec<&str> =
        kept.body["items"].as_array().expect("items").iter().filter_map(|item| item["reason"].as_str()).collect();
    let mut wanted: Vec<&str> = ground.unreadable.iter().map(String::as_str).collect();
    reasons.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(reasons, wanted, "each once, and nothing else is");
}
