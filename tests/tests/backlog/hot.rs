//! A hot topic, whose jobs are offered and put into the backlog without a change of their records. Whatever happens
//! to them there, a pause, a cancel, a deleted stream: each ends once. Two of each service.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack};
use serde_json::{Value, json};
use tokio::sync::watch;

pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Whether a job went from its submit straight to its start.
async fn was_offered_as_it_was(gateway: &Probe, id: &str) -> bool {
    let history = gateway.history(id).await;
    let events = history["transitions"].as_array().expect("transitions").iter();
    events.map(|line| line["event"].as_str().unwrap_or_default()).eq(["submit", "start", "succeed"])
}

pub(crate) async fn ended(gateway: &Probe, ids: &[String]) -> Vec<Value> {
    let mut jobs = Vec::with_capacity(ids.len());
    for some in ids.chunks(32) {
        jobs.extend(join_all(some.iter().map(|id| gateway.ended(id, LONG))).await);
    }
    jobs
}

#[tokio::test]
async fn what_is_offered_as_it_is_ends_once_through_pauses_cancels_and_lost_streams() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let setup = Setup { slots: 64, ..Setup::new("w1", "hot") };
    let _worker = runs.worker(&stack, setup, |_, payload| async move { Ok(payload) });
    let job = json!({"topic": "hot", "retry": {"max_attempts": 1}});

    let (enough, ids) = (AtomicBool::new(false), RefCell::new(Vec::new()));
    let flood = async {
        while !enough.load(Ordering::Relaxed) {
            let (a, b) = tokio::join!(one.submit_many(50, &job), two.submit_many(50, &job));
            ids.borrow_mut().extend([a, b].concat());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let trouble = async {
        let seen = async || {
            let id: String = ids.borrow().last().cloned()?;
            one.ended(&id, LONG).await;
            was_offered_as_it_was(&one, &id).await.then_some(())
        };
        until(LONG, "a job that is offered as it is", seen).await;

        // A pause holds the offers on the bus as well as new jobs.
        assert_eq!(one.post("/topics/hot/pause", &json!({})).await.status, 200);
        let held = until(LONG, "starts to cease", async || {
            let before = runs.all().len();
            tokio::time::sleep(Duration::from_secs(2)).await;
            (runs.all().len() == before).then_some(before)
        })
        .await;
        let waiting = two.submit_many(20, &job).await;
        for id in &waiting {
            two.reaches(id, "queued", LONG).await;
        }
        assert_eq!(runs.all().len(), held, "nothing starts while it is paused");
        for id in &waiting[..10] {
            assert_eq!(one.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
        }
        assert_eq!(two.post("/topics/hot/resume", &json!({})).await.status, 200);
        runs.reach(held + 500, LONG).await;

        // The offers vanish, and with them the only sign that jobs with unchanged records were offered.
        let nats = async_nats::connect(stack.state().nats_url).await.unwrap();
        async_nats::jetstream::new(nats).delete_stream("MUSTER_JOBS").await.unwrap();
        enough.store(true, Ordering::Relaxed);
        waiting
    };
    let ((), waiting) = tokio::join!(flood, trouble);

    let flooded = ids.into_inner();
    for job in ended(&one, &[&flooded[..], &waiting[10..]].concat()).await {
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
    }
    for job in ended(&two, &waiting[..10]).await {
        assert_eq!(job["state"], "cancelled");
    }
    let counts = runs.counts();
    assert_eq!(counts.len(), flooded.len() + 10, "all but the cancelled ones ran");
    assert!(counts.values().all(|n| *n == 1), "each once");
}

#[tokio::test]
async fn a_job_that_stands_on_the_bus_as_it_is_is_explained_as_waiting_for_a_worker() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let (runs, gate) = (Executions::default(), watch::Sender::new(true));
    let waits = gate.subscribe();
    let setup = Setup { slots: 32, ..Setup::new("w1", "hot") };
    let _worker = runs.worker(&stack, setup, move |_, payload| {
        let mut gate = waits.clone();
        async move {
            gate.wait_for(|open| *open).await.expect("the test holds it");
            Ok(payload)
        }
    });
    let job = json!({"topic": "hot"});
    let (id, said) = until(LONG, "a job that stands there as it is", async || {
        // Hundreds of jobs start each second and none is left waiting; then no worker is free.
        gate.send_replace(true);
        for _ in 0..4 {
            let some = gateway.submit_many(400, &job).await;
            gateway.ended(&some[399], LONG).await;
        }
        gate.send_replace(false);
        for id in gateway.submit_many(80, &job).await {
            let said = gateway.get(&format!("/jobs/{id}/explain")).await.body;
            if said["state"] == "pending" && said["waits_for"] == "worker" {
                return Some((id, said));
            }
        }
        None
    })
    .await;
    let summary = said["summary"].as_str().expect("a summary");
    assert!(summary.starts_with("It has probably been offered and waits for a worker to start it"), "{summary}");
    assert!(said["offers"]["messages"].as_u64() > Some(0), "{said:#}");
    assert!(said.get("backlog").is_none() && said["sentences"].to_string().contains("takes this topic"), "{said:#}");
    // The history confirms it.
    gate.send_replace(true);
    gateway.ended(&id, LONG).await;
    assert!(was_offered_as_it_was(&gateway, &id).await, "{said:#} {:#}", gateway.history(&id).await);
}
