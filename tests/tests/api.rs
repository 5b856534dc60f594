//! The API as clients see it, over two gateways: idempotency, batches, lists, waits, limits, payloads and results.
//! `access` covers permissions, `refusals` covers invalid requests, and `client` the SDK's client.

#[path = "api/access.rs"]
mod access;
#[path = "api/client.rs"]
mod client;
#[path = "api/refusals.rs"]
mod refusals;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use muster_sdk::HandlerError;
use muster_testkit::until;
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack};
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// Long enough that nothing runs during a test.
const LATER_MS: u64 = 3_600_000;

/// Sends a POST below `/api/v1` with an idempotency key and this exact body.
async fn post_keyed(gateway: &Probe, path: &str, key: &str, body: &str) -> Answer {
    let path = format!("/api/v1{path}");
    gateway.send(Method::POST, &path, &[("Idempotency-Key", key)], Some(body.into())).await.expect("an answer")
}

/// Every job of a list, page by page, with the pages taken from all gateways in turn.
async fn listed(gateways: &[&Probe], query: &str) -> Vec<Value> {
    let (mut jobs, mut cursor) = (Vec::new(), String::new());
    for gateway in gateways.iter().cycle() {
        let page = gateway.get(&format!("/jobs?{query}{cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        jobs.extend(page.body["items"].as_array().expect("items").iter().cloned());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    jobs
}

fn ids(jobs: &[Value]) -> Vec<String> {
    jobs.iter().map(|job| job["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn fifty_posts_under_one_idempotency_key_over_two_gateways_are_one_job() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "once");

    let body = r#"{"topic":"once","payload":{"a":1,"b":12345678901234567890},"labels":{"x":"y"}}"#;
    let posts = (0..50).map(|n| post_keyed(if n % 2 == 0 { &one } else { &two }, "/jobs", "order-7", body));
    let answers = join_all(posts).await;
    assert!(
        answers.iter().all(|a| a.status.is_success()),
        "{:?}",
        answers.iter().map(|a| a.status).collect::<Vec<_>>()
    );
    let made: BTreeSet<String> = answers.iter().map(Answer::id).collect();
    assert_eq!(made.len(), 1, "one id");
    let id = answers[0].id();
    let repeats = answers.iter().filter(|a| a.header("idempotency-replayed") == Some("true")).count();
    assert_eq!(repeats, 49, "all but the first are told so");
    assert!(answers.iter().all(|a| a.header("location") == Some(format!("/api/v1/jobs/{id}").as_str())));
    assert_eq!(two.ended(&id, SOON).await["state"], "succeeded");

    // The same request spelled differently, after the end, with the key quoted: still the same job.
    let same = r#"{ "labels": {"x": "\u0079"}, "payload": {"b": 12345678901234567890, "a": 1}, "topic": "once" }"#;
    let late = post_keyed(&two, "/jobs", "\"order-7\"", same).await;
    assert_eq!((late.status.as_u16(), late.id(), late.field("state")), (202, id.clone(), &json!("succeeded")));
    assert_eq!(late.header("idempotency-replayed"), Some("true"));

    for other in [r#"{"topic":"once","payload":{"a":2}}"#, r#"{"topic":"once"}"#] {
        let refused = post_keyed(&one, "/jobs", "order-7", other).await;
        assert_eq!((refused.status.as_u16(), refused.field("code")), (422, &json!("idempotency_mismatch")));
    }
    let elsewhere = post_keyed(&one.for_tenant("acme"), "/jobs", "order-7", body).await;
    assert_eq!(elsewhere.status, 202);
    assert_ne!(elsewhere.id(), id, "a key belongs to its tenant");
    assert_eq!(elsewhere.header("idempotency-replayed"), None);

    // When this job has ended, every other job that runs at all has run.
    let last = one.submit(json!({"topic": "once"})).await;
    one.ended(&last, SOON).await;
    assert_eq!(runs.of(&id).len(), 1, "runs once");
    assert_eq!(listed(&[&one], "topic=once").await.len(), 2);
}

#[tokio::test]
async fn filtered_lists_show_every_match_once_while_jobs_are_added() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "bad"), |_, _| async {
        Err::<Value, _>(HandlerError::permanent("no").code("boom"))
    });
    let wanted = json!({"topic": "lists", "delay_ms": LATER_MS, "labels": {"team": "red", "part": "a/b"}});
    let others = json!({"topic": "lists", "delay_ms": LATER_MS, "labels": {"team": "blue"}});
    let mut rounds: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..8 {
        let (a, _, b) =
            tokio::join!(one.submit_many(10, &wanted), two.submit_many(25, &others), two.submit_many(5, &wanted));
        rounds.extend([a, b].concat().into_iter().map(|id| (id, round)));
    }
    let before: BTreeSet<String> = rounds.keys().cloned().collect();
    let bad: BTreeSet<String> = one.submit_many(60, &json!({"topic": "bad"})).await.into_iter().collect();
    for id in &bad {
        assert_eq!(one.ended(id, SOON).await["state"], "failed");
    }

    let adding = async |job: &Value| {
        for _ in 0..15 {
            tokio::join!(one.submit_many(3, job), two.submit_many(3, job));
        }
    };
    let filter = "limit=7&topic=lists&state=scheduled,pending&label.team=red&label.part=a%2Fb";
    let ends = "limit=7&state=failed,quarantined&error_code=boom&worker=w1";
    let (both, bads) = ([&one, &two], json!({"topic": "bad"}));
    let (red, failed, (), ()) =
        tokio::join!(listed(&both, filter), listed(&both, ends), adding(&wanted), adding(&bads));
    for (shown, expected) in [(&red, &before), (&failed, &bad)] {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        ids(shown).into_iter().for_each(|id| *counts.entry(id).or_default() += 1);
        assert!(counts.values().all(|n| *n == 1), "none twice");
        assert!(expected.iter().all(|id| counts.contains_key(id)), "none missing");
    }
    assert!(red.iter().all(|job| job["labels"] == json!({"team": "red", "part": "a/b"})));
    assert!(failed.iter().all(|job| job["error"]["code"] == "boom" && job["state"] == "failed"));
    assert!(red.iter().chain(&failed).all(|job| job.get("payload").is_none()), "no payload unless asked for");

    // While no job is added, a list is exact and has the newest first.
    let all = listed(&[&one, &two], "limit=50&topic=lists&label.team=red").await;
    assert_eq!(all.len(), 8 * 15 + 15 * 6);
    // A job that was answered before another was sent is older. Concurrent submits may be in either order.
    let told: Vec<usize> = ids(&all).iter().map(|id| rounds.get(id).copied().unwrap_or(usize::MAX)).collect();
    assert!(told.is_sorted_by(|a, b| a >= b), "newest first: {told:?}");
    let middle = all[all.len() / 2]["created_at"].as_str().unwrap();
    let newer = listed(&[&two], &format!("limit=500&topic=lists&label.team=red&created_after={middle}")).await;
    let older = listed(&[&two], &format!("limit=500&topic=lists&label.team=red&created_before={middle}")).await;
    assert_eq!(newer.len() + older.len(), all.len());
}

#[tokio::test]
async fn a_burst_over_two_gateways_is_admitted_by_one_limit() {
    let options = Options::two().env("API_RATE_LIMIT_RPS", "0.0166667").env("API_RATE_LIMIT_BURST", "10");
    let stack = Stack::with(options).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let job = json!({"topic": "burst", "delay_ms": LATER_MS});
    let admitted = |answers: &[Answer]| answers.iter().filter(|a| a.status == 202).count();
    let (mut taken, mut answers) = (0, Vec::new());
    // If Redis does not answer a gateway for a quarter of a second, the gateway admits its own share. On a busy
    // machine that may happen, but not every time.
    for tenant in ["default", "second", "third", "fourth"] {
        let gateways = [one.for_tenant(tenant), two.for_tenant(tenant)];
        answers.extend(join_all((0..100).map(|n| gateways[n % 2].post("/jobs", &job))).await);
        taken = admitted(&answers[answers.len() - 100..]);
        if taken == 10 {
            break;
        }
    }
    assert_eq!(taken, 10, "one burst for all replicas");
    for refused in answers[answers.len() - 100..].iter().filter(|a| a.status != 202) {
        assert_eq!((refused.status.as_u16(), refused.field("code")), (429, &json!("rate_limited")));
        assert_eq!(refused.field("retryable"), true);
        let wait: u64 = refused.header("retry-after").expect("Retry-After").parse().unwrap();
        assert!((1..=60).contains(&wait), "the next token comes within a minute, not after {wait} s");
    }
    let refused = answers.len() - admitted(&answers);
    assert_eq!(stack.metric("gateway", "muster_rate_limit_hits_total").await, refused as f64);

    // Another tenant has a bucket of its own. A batch takes all the tokens that it needs, or none.
    let acme = one.for_tenant("acme");
    let eleven = acme.post("/jobs/batch", &json!({"items": vec![&job; 11]})).await;
    assert_eq!((eleven.status.as_u16(), eleven.header("retry-after").is_some()), (429, true), "{}", eleven.text);
    assert_eq!(acme.get("/jobs").await.body["items"], json!([]), "nothing was stored");
    let nine = acme.post("/jobs/batch", &json!({"items": vec![&job; 9]})).await;
    assert_eq!((nine.status.as_u16(), nine.body["items"].as_array().map(Vec::len)), (200, Some(9)));
    let two_more = acme.post("/jobs/batch", &json!({"items": vec![&job; 2]})).await;
    assert_eq!(two_more.status, 429, "{}", two_more.text);
    assert!(two_more.header("retry-after").is_some());
    assert_eq!(acme.post("/jobs", &job).await.status, 202, "what was refused cost nothing");
    assert_eq!(two.for_tenant("acme").post("/jobs", &job).await.status, 429);

    // Calls of workers are never limited, neither of those with a lease nor of those that wait for jobs.
    for n in 0..15 {
        let lease = json!({"request_id": format!("r{n}"), "worker_id": "w", "topics": ["burst"]});
        let extend = json!({"worker_id": "w", "items": [{"job_id": answers[0].body["id"].as_str().unwrap_or("0198c0de-0000-7000-8000-000000000000"), "fence": 1}]});
        assert_eq!(two.post("/worker/lease", &lease).await.status, 200);
        assert_eq!(two.post("/worker/extend", &extend).await.status, 200);
    }
    assert_eq!(stack.store().await.count_homes().await.unwrap() as usize, admitted(&answers) + 10);
}

#[tokio::test]
async fn a_batch_is_answered_item_by_item_in_order() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let body = json!({"items": [
        {"topic": "batch", "payload": 0, "delay_ms": LATER_MS},
        {"topic": "No Topic"},
        {"topic": "batch", "payload": 2, "delay_ms": LATER_MS, "idempotency_key": "two"},
        {"topic": "batch", "payload": 3, "delay_ms": LATER_MS, "idempotency_key": "two"},
        {"topic": "batch", "retry": {"max_attempts": 1, "often": true}},
        "no job at all",
        {"topic": "batch", "payload": 6, "delay_ms": LATER_MS},
    ]});
    let answer = one.post("/jobs/batch", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<u64> = items.iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [202, 422, 202, 422, 422, 422, 202]);
    for (place, code, pointer) in [
        (1, "invalid_request", "/items/1/topic"),
        (4, "unknown_field", "/items/4/retry/often"),
        (5, "invalid_request", "/items/5"),
    ] {
        let error = &items[place]["error"];
        assert_eq!((error["code"].as_str(), error["errors"][0]["pointer"].as_str()), (Some(code), Some(pointer)));
    }
    assert_eq!(items[3]["error"]["code"], "idempotency_mismatch");
    for place in [0, 2, 6] {
        let job = two.job(items[place]["job"]["id"].as_str().unwrap()).await;
        assert_eq!(job["payload"], json!(place), "in order");
    }
    let single = r#"{"topic":"batch","payload":2,"delay_ms":3600000}"#;
    let again = post_keyed(&two, "/jobs", "two", single).await;
    assert_eq!(again.id(), items[2]["job"]["id"].as_str().unwrap(), "an item's key is a key like any other");

    // With one key for the whole request, a repeat creates nothing new.
    let whole = json!({"items": vec![json!({"topic": "batch", "delay_ms": LATER_MS}); 3]}).to_string();
    let first = post_keyed(&one, "/jobs/batch", "whole", &whole).await.body;
    let second = post_keyed(&two, "/jobs/batch", "whole", &whole).await.body;
    for place in 0..3 {
        assert_eq!(first["items"][place]["job"]["id"], second["items"][place]["job"]["id"]);
        assert_eq!(second["items"][place]["replayed"], true);
    }

    // A batch that is too long or too large is refused as a whole.
    let many = one.post("/jobs/batch", &json!({"items": vec![json!({"topic": "batch"}); 1001]})).await;
    assert_eq!((many.status.as_u16(), many.body["errors"][0]["pointer"].as_str()), (422, Some("/items")));
    let large = json!({"items": vec![json!({"topic": "batch", "payload": "x".repeat(500_000)}); 34]});
    let large = one.post("/jobs/batch", &large).await;
    assert_eq!((large.status.as_u16(), large.field("code")), (413, &json!("payload_too_large")));
    assert_eq!(listed(&[&one], "topic=batch").await.len(), 6);
    assert_eq!(stack.store().await.count_homes().await.unwrap(), 6);
}

#[tokio::test]
async fn a_wait_on_one_gateway_ends_with_the_job_of_the_other() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let (open, gate) = tokio::sync::watch::channel(false);
    let _worker = runs.worker(&stack, Setup::new("w1", "gated"), move |_, _| {
        let mut gate = gate.clone();
        async move {
            let _ = gate.wait_for(|open| *open).await;
            Ok(json!("done"))
        }
    });
    // The time is up before the end: the answer is the current job.
    let begun = Instant::now();
    let body = Some(json!({"topic": "gated"}).to_string().into_bytes());
    let early = one.send(Method::POST, "/api/v1/jobs?wait_ms=400", &[], body).await.unwrap();
    assert_eq!((early.status.as_u16(), early.field("done")), (202, &json!(false)));
    assert!(begun.elapsed() >= Duration::from_millis(400));
    let id = early.id();
    runs.reach(1, SOON).await;

    let path = format!("/jobs/{id}?wait_ms=30000");
    let ended = async {
        let job = two.get(&path).await;
        (job, Instant::now())
    };
    // The waits on both gateways are in progress before the gate opens: this third request ends after they began.
    let opened = async {
        let short = two.get(&format!("/jobs/{id}?wait_ms=500")).await;
        assert_eq!(short.field("state"), "running");
        open.send_replace(true);
        Instant::now()
    };
    let ((job, at), (other, other_at), opened) = tokio::join!(
        ended,
        async {
            let job = one.get(&path).await;
            (job, Instant::now())
        },
        opened
    );
    for (job, at) in [(job, at), (other, other_at)] {
        assert_eq!((job.field("state"), job.field("result")), (&json!("succeeded"), &json!("done")));
        assert!(at - opened < Duration::from_secs(15), "answered when it ended, not when the time was up");
    }
    let begun = Instant::now();
    assert_eq!(two.get(&path).await.field("done"), true);
    assert!(begun.elapsed() < Duration::from_secs(15), "an ended job is shown at once");
}

#[tokio::test]
async fn payloads_and_results_are_kept_to_the_byte_and_large_results_are_cut() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "sized"), |_, payload| async move {
        let n = payload["n"].as_u64().unwrap_or(0);
        Ok(json!("€".repeat(usize::try_from(n).unwrap())))
    });
    let odd =
        r#"{"n":2, "z":1.50,"a":[1e3,-0.0, 123456789012345678901234567890],"e":"\u00e9\/\ud83d\ude00","n2":null}"#;
    let body = format!(r#"{{"payload":{odd} ,"topic":"sized"}}"#);
    let answer = gateway.send(Method::POST, "/api/v1/jobs?wait_ms=30000", &[], Some(body.into())).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.field("result")), (200, &json!("€€")), "{}", answer.text);
    assert!(answer.text.contains(&format!(r#""payload":{odd}"#)), "{}", answer.text);
    for payload in ["null", "false", "0", "\"\"", "[]", "{}"] {
        let body = format!(r#"{{"topic":"nobody","payload":{payload}}}"#);
        let made = gateway.send(Method::POST, "/api/v1/jobs", &[], Some(body.into())).await.unwrap();
        let job = gateway.get(&format!("/jobs/{}", made.id())).await;
        assert!(job.text.contains(&format!(r#""payload":{payload}"#)), "{payload} in {}", job.text);
    }

    // A result of 262,144 bytes is complete; one byte more is a success with its size and its beginning.
    let fits = gateway.submit(json!({"topic": "sized", "payload": {"n": (256 * 1024 - 2) / 3}})).await;
    let large = gateway.submit(json!({"topic": "sized", "payload": {"n": 256 * 1024 / 3 + 1}})).await;
    let job = gateway.ended(&fits, SOON).await;
    assert_eq!((job["state"].as_str(), job.get("result_truncated")), (Some("succeeded"), None));
    assert_eq!(job["result"].as_str().map(str::len), Some((256 * 1024 - 2) / 3 * 3));
    let job = gateway.ended(&large, SOON).await;
    assert_eq!((job["state"].as_str(), job["result_truncated"].as_bool()), (Some("succeeded"), Some(true)));
    assert_eq!(job["result_size"], json!((256 * 1024 / 3 + 1) * 3 + 2));
    assert_eq!((job.get("result"), job["attempt"].as_u64()), (None, Some(1)));
    let preview = job["result_preview"].as_str().unwrap();
    assert!(preview.len() > 4096 - 4 && preview.len() <= 4096, "{}", preview.len());
    assert!(preview.starts_with("\"€€") && preview.ends_with('€'), "cut between two characters");

    let page = gateway.get("/jobs?topic=sized&include=payload,result").await;
    assert!(page.text.contains(odd) && page.text.contains("result_preview"));
    let bare = gateway.get("/jobs?topic=sized").await;
    assert!(!bare.text.contains(odd) && !bare.text.contains("€"), "neither payload nor result unless asked for");
}

#[tokio::test]
async fn an_ended_job_can_be_deleted_and_stays_done() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "gone"), |_, payload| async move {
        if payload == json!("bad") { Err(HandlerError::permanent("bad")) } else { Ok(payload) }
    });
    let alive = one.submit(json!({"topic": "gone", "delay_ms": LATER_MS})).await;
    let path = |id: &str| format!("/api/v1/jobs/{id}");
    let refused = two.send(Method::DELETE, &path(&alive), &[], None).await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.field("code")), (409, &json!("job_not_done")));

    let good = r#"{"topic":"gone","payload":"good"}"#;
    let good_id = post_keyed(&one, "/jobs", "mine", good).await.id();
    let bad_id = one.submit(json!({"topic": "gone", "payload": "bad"})).await;
    for id in [&good_id, &bad_id] {
        one.ended(id, SOON).await;
        assert_eq!(two.send(Method::DELETE, &path(id), &[], None).await.unwrap().status, 204);
        let again = one.send(Method::DELETE, &path(id), &[], None).await.unwrap();
        assert_eq!((again.status.as_u16(), again.field("code")), (404, &json!("not_found")));
        for gateway in [&one, &two] {
            assert_eq!(gateway.get(&format!("/jobs/{id}")).await.status, 404);
            assert_eq!(gateway.get(&format!("/jobs/{id}/history")).await.status, 404);
            assert_eq!(gateway.post(&format!("/jobs/{id}/retry"), &json!({})).await.status, 404);
            assert_eq!(gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 404);
        }
    }
    assert_eq!(ids(&listed(&[&one], "").await), [alive]);
    assert_eq!(listed(&[&two], "state=failed").await, Vec::<Value>::new(), "no dead letter either");

    // The key stays taken: a repeat of a deleted job does not run again.
    let repeat = post_keyed(&two, "/jobs", "mine", good).await;
    assert_eq!((repeat.status.as_u16(), repeat.id()), (202, good_id.clone()), "{}", repeat.text);
    let waiting = post_keyed(&one, "/jobs?wait_ms=10000", "mine", good).await;
    assert_eq!((waiting.status.as_u16(), waiting.id()), (200, good_id.clone()), "{}", waiting.text);
    for answer in [&repeat, &waiting] {
        assert_eq!(answer.header("idempotency-replayed"), Some("true"));
        assert_eq!(answer.field("state"), "succeeded");
    }
    let other = post_keyed(&two, "/jobs", "mine", r#"{"topic":"gone","payload":"other"}"#).await;
    assert_eq!((other.status.as_u16(), other.field("code")), (422, &json!("idempotency_mismatch")));
    let last = one.submit(json!({"topic": "gone"})).await;
    one.ended(&last, SOON).await;
    assert_eq!(runs.of(&good_id).len(), 1);
    let store = stack.store().await;
    until(SOON, "only the living to have a home", async || (store.count_homes().await.unwrap() == 1).then_some(()))
        .await;
}
