//! Tests of one job from submit to deletion, as far as a gateway works without a scheduler; and of lists.

use std::{collections::BTreeSet, time::Duration};

use muster_domain::{Event, JobId, Outcome, Tenant};
use muster_store::{RedisSettings, Step, Store};
use muster_testkit::until;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::gate::Gate;

#[tokio::test]
async fn the_answer_says_how_well_a_job_is_kept() {
    let gate = Gate::start(&[]).await;
    for asked in ["memory", "replicated", "fsynced"] {
        let made = gate.post("/api/v1/jobs", &json!({"topic": "t", "durability": asked})).await;
        assert_eq!(made.status, 202, "{}", made.text);
        let reached = made.json["durability"].as_str().unwrap();
        // The server has no replica, and before version 7.2 it cannot report what is on its disk.
        assert!(reached == "memory" || (asked, reached) == ("fsynced", "fsynced"), "{asked}: {}", made.text);
    }
}

#[tokio::test]
async fn without_a_replica_jobs_that_ask_for_one_are_accepted_as_they_come() {
    let job = json!({"topic": "t", "durability": "replicated"});
    // Three tries, each with a gateway that has to find out: a busy machine may stand still.
    let mut accepted = Vec::new();
    while accepted.iter().all(|accepted| *accepted < 55) {
        assert!(accepted.len() < 3, "of 60 each time {accepted:?} were accepted");
        let gate = Gate::start(&[]).await;
        // Thirty submits a second, the first of which wait a second for a replica that does not exist.
        let asks = (0..60_u32).map(|n| {
            let (gate, job) = (&gate, &job);
            async move {
                tokio::time::sleep(n * Duration::from_millis(33)).await;
                gate.post("/api/v1/jobs", job).await.status == 202
            }
        });
        // A few may not be answered within two seconds.
        accepted.push(futures_util::future::join_all(asks).await.into_iter().filter(|accepted| *accepted).count());
    }
}

/// A gateway that knows that no replica follows does not wait a second for each group.
#[tokio::test]
async fn without_a_replica_no_job_of_a_burst_is_refused() {
    let gate = Gate::start(&[]).await;
    let job = json!({"topic": "t", "durability": "replicated"});
    assert_eq!(gate.post("/api/v1/jobs", &job).await.status, 202, "after this one the gateway knows");
    let mut took = Vec::new();
    // Three tries, because the machine may be busy. None is refused, and in one of them all are answered sooner than
    // any could be that waits for a replica.
    while took.iter().all(|took| *took >= Duration::from_secs(1)) {
        assert!(took.len() < 3, "{took:?}");
        let began = Instant::now();
        for answer in futures_util::future::join_all((0..60).map(|_| gate.post("/api/v1/jobs", &job))).await {
            assert_eq!(
                (answer.status.as_u16(), &answer.json["durability"]),
                (202, &json!("memory")),
                "{}",
                answer.text
            );
        }
        took.push(began.elapsed());
    }
}

#[tokio::test]
async fn a_job_comes_back_exactly_as_it_was_sent() {
    let gate = Gate::start(&[]).await;
    let payload = r#"{"big":123456789012345678901234567890,"f":1.50,"e":1E+2,"s":"\u0000é","d":{"b":1,"a":[ ]}}"#;
    let body = format!(
        r#"{{"topic":"a.b","payload":{payload},"priority":"high","labels":{{"team/x":"y"}},"delay_ms":60000,"retry":{{"max_attempts":2}}}}"#
    );
    let headers = [("content-type", "application/json")];
    let made = gate.send(Method::POST, "/api/v1/jobs", &headers, Some(body.into_bytes())).await;
    assert_eq!(made.status, 202, "{}", made.text);
    assert_eq!(made.json["done"], false);
    assert_eq!(made.json["attempt"], 0);
    let id = made.json["id"].as_str().unwrap();
    let read = gate.get(&format!("/api/v1/jobs/{id}")).await;
    assert!(read.text.contains(&format!(r#""payload":{payload}"#)), "{}", read.text);
    assert_eq!(read.json["tenant"], gate.tenant());
    assert_eq!((&read.json["priority"], &read.json["max_attempts"]), (&json!("high"), &json!(2)));
    assert_eq!(read.json["labels"]["team/x"], "y");
    assert!(read.json["run_at"].as_str() > read.json["created_at"].as_str());
    let without = gate.get(&format!("/api/v1/jobs/{id}?include=result")).await;
    assert!(without.json.get("payload").is_none());
    let story = gate.get(&format!("/api/v1/jobs/{id}/history")).await;
    assert_eq!(story.json["transitions"][0]["event"], "submit", "{}", story.text);
    for nothing in ["not-an-id", "0198c0de-0000-7000-8000-000000000000", "%ff"] {
        assert_eq!(gate.get(&format!("/api/v1/jobs/{nothing}")).await.code(), "not_found");
    }
}

#[tokio::test]
async fn cancel_then_retry_then_delete() {
    let gate = Gate::start(&[]).await;
    let made = gate.post("/api/v1/jobs", &json!({"topic": "t", "payload": 5, "priority": "low"})).await;
    let path = format!("/api/v1/jobs/{}", made.json["id"].as_str().unwrap());
    assert_eq!(gate.post(&format!("{path}/retry"), &json!({})).await.code(), "job_not_done");
    assert_eq!(gate.delete(&path).await.code(), "job_not_done");

    let cancelled = gate.post(&format!("{path}/cancel"), &json!({"reason": "not needed"})).await;
    assert_eq!((cancelled.status.as_u16(), &cancelled.json["state"]), (200, &json!("cancelled")));
    assert_eq!(gate.post(&format!("{path}/cancel"), &json!({})).await.status, 200, "again is fine");

    let retried = gate.send(Method::POST, &format!("{path}/retry"), &[], None).await;
    assert_eq!(retried.status, 202, "{}", retried.text);
    assert_eq!(retried.json["retry_of"], made.json["id"]);
    assert_eq!(retried.json["priority"], "low");
    let double = gate.post(&format!("{path}/retry"), &json!({})).await;
    assert_eq!(double.json["id"], retried.json["id"], "a double click makes one job");
    let other = gate.post(&format!("{path}/retry"), &json!({"payload": 6})).await;
    assert_eq!((other.status.as_u16(), other.code()), (409, "already_retried"));
    assert_eq!(gate.get(&path).await.json["retried_as"], retried.json["id"]);
    let new = gate.get(&format!("/api/v1/jobs/{}", retried.json["id"].as_str().unwrap())).await;
    assert_eq!(new.json["payload"], 5);

    assert_eq!(gate.delete(&path).await.status, 204);
    assert_eq!(gate.get(&path).await.code(), "not_found");
    assert_eq!(gate.delete(&path).await.code(), "not_found");
    assert_eq!(gate.post(&format!("{path}/cancel"), &json!({})).await.code(), "not_found");
}

#[tokio::test]
async fn a_waiting_read_hears_of_an_end_on_another_gateway() {
    let (one, other) = (Gate::start(&[]).await, Gate::start(&[]).await);
    let other = other.for_tenant(one.tenant());
    let made = one.post("/api/v1/jobs", &json!({"topic": "t"})).await;
    let path = format!("/api/v1/jobs/{}", made.json["id"].as_str().unwrap());
    let (wait, cancel) = (format!("{path}?wait_ms=20000"), format!("{path}/cancel"));
    let began = Instant::now();
    let (waited, _) = tokio::join!(one.get(&wait), async {
        // Gives the read time to start waiting. If it is late, it finds the job ended, which is fine too.
        tokio::time::sleep(Duration::from_millis(300)).await;
        other.post(&cancel, &json!({})).await
    });
    assert_eq!((&waited.json["state"], &waited.json["done"]), (&json!("cancelled"), &json!(true)));
    assert!(began.elapsed() < Duration::from_secs(15), "woken, not timed out: {:?}", began.elapsed());

    let short = one.post("/api/v1/jobs?wait_ms=200", &json!({"topic": "t"})).await;
    assert_eq!((short.status.as_u16(), &short.json["done"]), (202, &json!(false)), "nobody runs it");
}

#[tokio::test]
async fn a_stop_answers_waiting_reads_at_once() {
    let gate = Gate::start(&[]).await;
    let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
    let path = format!("/api/v1/jobs/{}", made.json["id"].as_str().unwrap());
    let (wait, short) = (format!("{path}?wait_ms=30000"), format!("{path}?wait_ms=500"));
    let began = Instant::now();
    let (waited, late) = tokio::join!(gate.get(&wait), async {
        // A request that arrives after the stop is not served. Once this later request is answered, the waiting read
        // is in progress.
        assert_eq!(gate.get(&short).await.status, 200);
        gate.chassis.stop.request();
        gate.chassis.run_until_stopped().await
    });
    assert_eq!(waited.status, 200);
    assert!(late.is_empty(), "{late:?}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test]
async fn filtered_pages_show_every_match_once_while_jobs_are_added() {
    let gate = Gate::start(&[]).await;
    let mut expected = BTreeSet::new();
    for n in 0..60 {
        let colour = if n % 3 == 0 { "red" } else { "blue" };
        let made = gate.post("/api/v1/jobs", &json!({"topic": "t", "labels": {"colour": colour}})).await;
        if colour == "red" {
            expected.insert(made.json["id"].as_str().unwrap().to_owned());
        }
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        gate.post("/api/v1/jobs", &json!({"topic": "t", "labels": {"colour": "green"}})).await;
        let page =
            gate.get(&format!("/api/v1/jobs?label.colour=red&limit=7&topic=t&state=pending,cancelled{cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let items = page.json["items"].as_array().unwrap();
        assert!(items.iter().all(|job| job.get("payload").is_none()));
        seen.extend(items.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        match &page.json["next_cursor"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            _ => break,
        }
    }
    assert_eq!(seen.len(), expected.len(), "none twice");
    assert_eq!(seen.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(gate.get("/api/v1/jobs?cursor=nonsense").await.pointers(), ["/query/cursor"]);
}

#[tokio::test]
async fn a_job_is_deleted_only_after_the_effects_of_its_end() {
    let gate = Gate::start(&[]).await;
    let store = Store::connect(RedisSettings::new(muster_testkit::redis().await.url())).await.unwrap();
    let tenant = Tenant::parse(gate.tenant()).unwrap();
    for bulk in [false, true] {
        let made = gate.post("/api/v1/jobs", &json!({"topic": "t"})).await;
        let id: JobId = made.json["id"].as_str().unwrap().parse().unwrap();
        // The process that wrote the end has died before any further step.
        let moved = store.apply_one(Step::new(id, Event::Deny, 1)).await.unwrap();
        assert_eq!(moved.outcome, Outcome::Applied);
        assert!(store.home_of(id).await.unwrap().is_some());
        if bulk {
            // A filter with only bad ends uses the dead letters, which are not written yet.
            let filter = json!({"topic": "t", "state": ["denied", "succeeded"]});
            let asked = gate.post("/api/v1/jobs/bulk", &json!({"action": "delete", "filter": filter})).await;
            assert_eq!(asked.status, 202, "{}", asked.text);
            // Any gateway on this Redis may carry out the operation, also one whose test has just ended: then this
            // gateway continues.
            let path = format!("/api/v1/operations/{}", asked.json["id"].as_str().unwrap());
            let over = async || (gate.get(&path).await.json["done"] == true).then_some(());
            until(Duration::from_secs(60), "the deletion", over).await;
            assert_eq!(gate.get(&format!("/api/v1/jobs/{id}")).await.status, 404);
        } else {
            assert_eq!(gate.delete(&format!("/api/v1/jobs/{id}")).await.status, 204);
        }
        assert_eq!(store.home_of(id).await.unwrap(), None, "nobody looks for a job that is gone");
        assert_eq!(store.count_dead_letters(&tenant).await.unwrap(), 0, "nor lists it");
    }
}
