//! A policy hook takes 35 s to answer. It is asked about a job once, under a lock that is renewed; and the job runs
//! once even if that lock is deleted again and again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use muster_testkit::until;
use muster_tests::{Executions, Options, Stack};
use serde_json::{Value, json};

use crate::{SOON, all_ran_once, redis};

/// Longer than a lock lives without a renewal.
const STALL: Duration = Duration::from_secs(35);
/// Returns the holder of the first lock and its remaining time; deletes the second lock.
const GLANCE: &str = "redis.call('DEL', KEYS[2])
    return {redis.call('GET', KEYS[1]) or '-', redis.call('PTTL', KEYS[1])}";

#[tokio::test]
async fn a_decision_that_stalls_is_made_under_a_lock_that_is_renewed_and_once_without_it() {
    let stack = Stack::with(Options::two().env("MUSTER_DECIDE_TOPICS", "asked")).await;
    let (gateway, runs) = (stack.gateway(1), Executions::default());
    let _worker = runs.echo(&stack, "w1", "asked");
    let nats = async_nats::connect(stack.state().nats_url).await.unwrap();
    let mut questions = nats.subscribe("sys.job.decide").await.unwrap();
    nats.flush().await.unwrap();
    let job = json!({"topic": "asked", "retry": {"max_attempts": 1}});
    let (kept, robbed) = (gateway.submit(job.clone()).await, gateway.submit(job).await);
    let locks = [&kept, &robbed].map(|id| format!("muster:scheduler:job:{id}"));
    let glance = || {
        let said = redis(&stack, &["EVAL", GLANCE, "2", &locks[0], &locks[1]]);
        let (owner, left) = said.split_once('\n').expect("two lines");
        (owner.trim().to_owned(), left.trim().parse::<i64>().expect("milliseconds"))
    };
    let (owner, mut last) = until(SOON, "the lock", async || Some(glance()).filter(|(_, left)| *left > 0)).await;
    let (begun, mut renewals) = (Instant::now(), 0);
    until(STALL + SOON, "the stall to be over", async || {
        let (now, left) = glance();
        assert_eq!(now, owner, "held without a break");
        assert!(left > 14_000, "renewed at a third of its 30 s; {left} ms are left");
        renewals += usize::from(left > last + 5_000);
        last = left;
        (begun.elapsed() > STALL).then_some(())
    })
    .await;
    assert!((3..=4).contains(&renewals), "every ten seconds: {renewals} in {STALL:?}");
    for id in [&kept, &robbed] {
        assert_eq!(gateway.job(id).await["state"], "pending", "nobody has answered yet");
    }

    let asked: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let notes = asked.clone();
    #[expect(clippy::disallowed_methods, reason = "a test's own answerer")]
    let answering = tokio::spawn(async move {
        while let Some(question) = questions.next().await {
            let said: Value = serde_json::from_slice(&question.payload).expect("a question");
            let job = said["job_id"].as_str().expect("a job").to_owned();
            *notes.lock().expect("no panic while noting").entry(job).or_default() += 1;
            let answer = json!({"decision": "allow"}).to_string();
            let _ = nats.publish(question.reply.expect("who asks"), answer.into()).await;
        }
    });
    all_ran_once(&gateway, &runs, &[kept.clone(), robbed.clone()]).await;
    assert_eq!(runs.all().len(), 2, "nothing else ran");
    assert_eq!(asked.lock().expect("no panic while noting").get(&kept), Some(&1), "asked once in all that time");
    until(SOON, "the lock to be let go", async || (glance().1 == -2).then_some(())).await;
    answering.abort();
}
