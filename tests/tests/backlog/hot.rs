//! A hot topic, whose jobs are offered and stand in line as they were accepted, without a word in their
//! records. Whatever meets them there, a pause, a cancel, a stream that vanishes: each ends once. Two of
//! each service.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(120);

/// Whether a job went from its submit straight to its start.
async fn was_offered_as_it_was(gateway: &Probe, id: &str) -> bool {
    let history = gateway.history(id).await;
    let events = history["transitions"].as_array().expect("transitions").iter();
    events.map(|line| line["event"].as_str().unwrap_or_default()).eq(["submit", "start", "succeed"])
}

async fn ended(gateway: &Probe, ids: &[String]) -> Vec<Value> {
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

        // A pause holds what stands on the bus as well as what comes.
        assert_eq!(one.post("/topics/hot/pause", &json!({})).await.status, 200);
        let held = until(LONG, "starts to cease", async || {
            let before = runs.all().len();
            tokio::time::sleep(Duration::from_secs(1)).await;
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

        // The offers vanish, and with them the only sign of those that stand there as they are.
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
