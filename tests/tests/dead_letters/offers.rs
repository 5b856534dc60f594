//! Offers that no worker can decode: their jobs end as `undecodable` without a single start, over NATS and over HTTP,
//! and the other offers in the same messages are run.

use std::collections::HashSet;

use async_nats::HeaderMap;
use muster_bus::subjects;
use muster_domain::{Tenant, Topic};
use muster_testkit::until;
use muster_tests::{Executions, Probe, Stack, by_hand::HandWorker};
use muster_wire::{
    Body,
    v1::{Offer, OfferGroup},
};
use serde_json::{Value, json};

use crate::{SOON, all, ids};

/// Jobs whose offers were taken off the bus and put back changed.
struct Broken {
    /// The first is offered under another topic, the second in an undecodable message.
    bad: [String; 2],
    /// Offered correctly, in one message with the first and with an offer without a job id.
    good: String,
}

async fn broken(stack: &Stack, topic: &str) -> Broken {
    let (gateway, hand) = (stack.gateway(1), HandWorker::on(stack, "thief", topic).await);
    let stolen = async || {
        let id = gateway.submit(json!({"topic": topic, "payload": 7})).await;
        let (offer, delivery) = hand.offered().await;
        delivery.ack().await;
        (id, offer)
    };
    let ((astray, first), (garbled, second), (good, third)) = (stolen().await, stolen().await, stolen().await);
    let subject = subjects::offer(&Tenant::default(), Topic::parse(topic).unwrap());
    let nameless = Offer { job_id: b"none".to_vec().into(), ..first.clone() };
    let items = vec![Offer { topic: "elsewhere".into(), ..first }, nameless, third];
    hand.bus.publish(&subject, None, None, Body::Offer(OfferGroup { items })).await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("Muster-Jobs", format!("{}:{}", garbled.replace('-', ""), second.version));
    let nats = async_nats::jetstream::new(async_nats::connect(stack.state().nats_url).await.unwrap());
    let sent = nats.publish_with_headers(subject.to_string(), headers, b"\xff\xff no offer".to_vec().into()).await;
    sent.unwrap().await.unwrap();
    Broken { bad: [astray, garbled], good }
}

/// Checks what becomes of these jobs, whichever worker took the good one.
async fn are_seen_to(gateway: &Probe, jobs: &Broken) {
    for id in &jobs.bad {
        let job = gateway.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("failed"), &json!(0)), "{job}");
        assert_eq!(job["error"]["code"], "undecodable", "{job}");
        let said = gateway.get(&format!("/jobs/{id}/explain")).await.body;
        assert!(said["summary"].to_string().contains("could not read its offer"), "{said:#}");
    }
    let dead =
        until(SOON, "their dead letters", async || Some(all(gateway, "/dlq").await).filter(|dead| dead.len() >= 2))
            .await;
    assert_eq!(ids(&dead), jobs.bad.iter().cloned().collect::<HashSet<_>>());
    let messages: Vec<Value> = until(SOON, "both messages", async || {
        Some(all(gateway, "/dlq?kind=message").await).filter(|found| found.len() >= 2)
    })
    .await;
    let reasons: Vec<&str> = messages.iter().filter_map(|message| message["reason"].as_str()).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons.contains(&"offer 2 of 3: field job_id: 4 bytes instead of 16"), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.starts_with("not a message of ours")), "{reasons:?}");
    let good = gateway.ended(&jobs.good, SOON).await;
    assert_eq!((&good["state"], &good["attempt"]), (&json!("succeeded"), &json!(1)), "{good}");
}

#[tokio::test]
async fn a_job_whose_offer_no_worker_can_read_ends_as_undecodable_over_nats() {
    let stack = Stack::start().await;
    let jobs = broken(&stack, "t").await;
    let runs = Executions::default();
    let _worker = runs.echo(&stack, "w1", "t");
    are_seen_to(&stack.gateway(1), &jobs).await;
    assert_eq!(runs.all().into_iter().map(|run| run.job).collect::<Vec<_>>(), [jobs.good]);
}

#[tokio::test]
async fn a_job_whose_offer_no_worker_can_read_ends_as_undecodable_over_http() {
    let stack = Stack::start().await;
    let (gateway, jobs) = (stack.gateway(1), broken(&stack, "t").await);
    let mut asked = 0;
    let held = until(SOON, "the good one", async || {
        asked += 1;
        let request = format!("r{asked}");
        let body = json!({"worker_id": "h1", "request_id": request, "topics": ["t"], "max": 5, "wait_ms": 5_000});
        let answer = gateway.post("/worker/lease", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let items = answer.body["items"].as_array().expect("items").clone();
        assert!(items.iter().all(|item| item["job_id"] == jobs.good), "no other is ever handed out: {items:?}");
        items.into_iter().next()
    })
    .await;
    let done = json!({"worker_id": "h1", "items": [{"job_id": held["job_id"], "fence": held["fence"], "result": 7}]});
    assert_eq!(gateway.post("/worker/complete", &done).await.status, 200);
    are_seen_to(&gateway, &jobs).await;
}
