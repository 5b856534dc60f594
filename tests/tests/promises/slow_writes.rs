//! Every place between two writes takes seconds, with every loop running: whoever looks meanwhile
//! sees a job half-way, and nothing is lost or run twice.

use std::time::Duration;

use futures_util::future::join_all;
use muster_domain::JobId;
use muster_sdk::{Client, HandlerError, JobRequest};
use muster_testkit::until;
use muster_tests::{Executions, Failpoints, Options, Probe, Setup, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{LONG, all_ran_once, one_end};

/// Every place of a scheduler on a job's way: each takes this long, each time.
const SCHEDULER: [&str; 14] = [
    "dispatch.after_apply",
    "dispatch.after_offer",
    "hold.after_apply",
    "release.after_claim",
    "release.after_apply",
    "release.after_offer",
    "release.after_forward",
    "start.after_apply",
    "start.before_answer",
    "settle.after_apply",
    "settle.after_finish",
    "wake.after_apply",
    "finish.after_dead_letters",
    "finish.before_home",
];
/// Those of the reconciler's pass, of which each shard has its own.
const LOOKS: [&str; 2] = ["look.after_read", "look.before_rescore"];
/// Those of a gateway: longer than a request may take, so that its client hears 503 and repeats.
const GATEWAY: [&str; 4] = ["submit.after_home", "submit.after_record", "submit.before_answer", "cancel.after_apply"];

/// Posts until it is accepted, as a client that repeats does.
async fn insist(gateway: &Probe, key: &str, job: &Value) -> String {
    until(LONG, "the submit to be accepted", async || {
        let body = Some(job.to_string().into_bytes());
        let answer = gateway.send(Method::POST, "/api/v1/jobs", &[("Idempotency-Key", key)], body).await.unwrap();
        assert!([202, 503].contains(&answer.status.as_u16()), "{}", answer.text);
        (answer.status == 202).then(|| answer.id())
    })
    .await
}

async fn submit_all(client: &Client, n: usize, what: &str, change: impl Fn(JobRequest) -> JobRequest) -> Vec<String> {
    let request = || change(JobRequest::new("slow").payload(&json!({ "do": what })).max_attempts(1));
    let all = (0..n).map(|_| async { client.submit(request()).await.expect("accepted at last").job.id.to_string() });
    join_all(all).await
}

#[tokio::test]
async fn writes_that_take_seconds_lose_nothing_and_repeat_nothing() {
    let once = Failpoints::asleep(&GATEWAY.map(|point| (point, "delay:3000")));
    let always = SCHEDULER.map(|point| format!("{point}=delay:1500")).join(";");
    let always = format!("{always};{}", LOOKS.map(|point| format!("{point}=delay:500")).join(";"));
    let options = Options::two().env("MUSTER_FAILPOINTS", format!("{always};{}", once.setting()));
    let options = options.env("MUSTER_LOOP_SCRUB_INTERVAL", "1s").env("MUSTER_LOOP_RECONCILER_INTERVAL", "1s");
    let stack = Stack::with(options.env("MUSTER_OUTAGE_WAIT", "2s")).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let gateways = [1, 2].map(|n| stack.process(&format!("gateway-{n}")).http.unwrap());
    let client = Client::builder().gateway(&gateways[0]).gateway(&gateways[1]).api_key(stack.state().api_key);
    let client = client.retry_for(LONG).build().unwrap();
    let runs = Executions::default();
    let setup = |id: &str| Setup { slots: 32, ..Setup::new(id, "slow") };
    let obey = |_, payload: Value| async move {
        match payload["do"].as_str() {
            Some("fail") => Err(HandlerError::retryable("not yet")),
            Some("refuse") => Err(HandlerError::permanent("never")),
            _ => Ok(payload),
        }
    };
    let _workers = [runs.worker(&stack, setup("w1"), obey), runs.worker(&stack, setup("w2"), obey)];

    // One key, fifty times over two gateways, while each of its writes takes seconds once.
    for point in &GATEWAY[..3] {
        once.arm(point);
    }
    let job = json!({"topic": "slow", "retry": {"max_attempts": 1}});
    let same = join_all((0..50).map(|n| insist(if n % 2 == 0 { &one } else { &two }, "same", &job)));
    let (same, crowd, refused, failing, delayed, cancelled) = tokio::join!(
        same,
        submit_all(&client, 100, "succeed", |job| job),
        submit_all(&client, 4, "refuse", |job| job),
        submit_all(&client, 4, "fail", |job| {
            let backoff = muster_sdk::Backoff { initial: Duration::from_millis(50), jitter: 0.0, ..Default::default() };
            job.max_attempts(2).backoff(backoff)
        }),
        submit_all(&client, 10, "succeed", |job| job.delay(Duration::from_secs(2))),
        submit_all(&client, 4, "succeed", |job| job.delay(Duration::from_secs(600))),
    );
    assert!(same.iter().all(|id| *id == same[0]), "{same:?}");
    once.arm(GATEWAY[3]);
    for id in &cancelled {
        client.cancel(id.parse::<JobId>().expect("an id"), None).await.expect("cancelled at last");
    }

    let all: Vec<String> = [vec![same[0].clone()], crowd, delayed].concat();
    all_ran_once(&two, &runs, &all).await;
    for (ids, state, attempts) in [(&refused, "failed", 1), (&failing, "failed", 2), (&cancelled, "cancelled", 0)] {
        for id in ids {
            let job = one_end(&one, id).await;
            assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some(state), Some(attempts)), "{job}");
            assert_eq!(runs.of(id).len() as u64, attempts, "once per attempt");
        }
    }
    for point in GATEWAY {
        once.has_acted(point).await;
    }
    let store = stack.store().await;
    until(LONG, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
    let dead = one.get("/dlq?limit=100").await.body["items"].as_array().map(Vec::len);
    assert_eq!(dead, Some(refused.len() + failing.len()), "one dead letter of each");
}
