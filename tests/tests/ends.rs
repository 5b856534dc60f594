//! Retries, time-outs, cancels, deadlines: every way in which a job ends.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use muster_domain::{JobId, Time};
use muster_sdk::HandlerError;
use muster_testkit::until;
use muster_tests::{
    Executions, Options, Setup, Stack,
    by_hand::{bus_of, offer_again, offers_are_gone},
};
use muster_wire::v1::Offer;
use serde_json::{Value, json};

/// How late a transition may come on a busy machine: far less than the longest back-off.
const LATE: Duration = Duration::from_secs(6);
const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_job_that_always_fails_is_tried_as_often_as_asked_at_the_asked_times() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "broken"), |_, _| async {
        Err(HandlerError::retryable("ü€".repeat(5000)).code("boom"))
    });
    let backoff = json!({"initial_ms": 1000, "factor": 2, "max_ms": 60000, "jitter": 0});
    let id = gateway.submit(json!({"topic": "broken", "retry": {"max_attempts": 3, "backoff": backoff}})).await;
    let job = gateway.ended(&id, SOON).await;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("failed"), Some(3)));
    assert_eq!(job["error"]["code"], "boom");
    let message = job["error"]["message"].as_str().unwrap();
    assert!(message.len() <= 4000 && message.len() > 3990, "cut on a character boundary");

    let at: Vec<_> = runs.of(&id).iter().map(|r| r.at).collect();
    assert_eq!(at.len(), 3);
    let wanted = [Duration::from_secs(1), Duration::from_secs(2)];
    for (pair, wanted) in at.windows(2).zip(wanted) {
        let gap = pair[1] - pair[0];
        assert!((wanted..wanted + LATE).contains(&gap), "waited {gap:?} instead of {wanted:?}");
    }
    // The same by the clock of Redis: from each failure to the wake-up for the next attempt.
    let story = gateway.history(&id).await;
    let lines = story["transitions"].as_array().unwrap();
    let at = |line: &Value| Time::parse_rfc3339(line["at"].as_str().unwrap()).unwrap();
    let wakes = lines.windows(2).filter(|pair| pair[1]["event"] == "wake");
    let waits: Vec<Duration> = wakes.map(|pair| at(&pair[1]).since(at(&pair[0]))).collect();
    assert_eq!(waits.len(), 2, "{story}");
    assert!(waits.iter().zip(wanted).all(|(wait, wanted)| (wanted..wanted + LATE).contains(wait)), "{waits:?}");

    // The job is offered a thousand times more, under every version that it ever had: it stays ended.
    let bus = bus_of(&stack, "repeater").await;
    let offers = (0..1_000_u32).map(|n| Offer {
        job_id: id.parse::<JobId>().unwrap().as_bytes().to_vec().into(),
        version: 1 + n % (lines.len() as u32 + 1),
        dispatched_at: Time::parse_rfc3339(job["created_at"].as_str().unwrap()).unwrap().0,
        tenant: "default".into(),
        topic: "broken".into(),
        max_attempts: 3,
        ..Default::default()
    });
    stream::iter(offers).for_each_concurrent(50, async |offer| offer_again(&bus, &offer).await).await;
    offers_are_gone(&bus, "broken", SOON).await;
    assert_eq!((runs.all().len(), gateway.job(&id).await), (3, job), "never run again");

    // There is one dead letter, and the list of bad ends shows it.
    let dead = gateway.get("/jobs?state=failed").await;
    assert_eq!(dead.body["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_must_not_be_retried_is_not() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "once"), |_, payload| async move {
        if payload["permanent"] == json!(true) {
            return Err(HandlerError::permanent("no"));
        }
        Err(HandlerError::retryable("try again"))
    });
    let permanent = gateway.submit(json!({"topic": "once", "payload": {"permanent": true}})).await;
    let single = gateway.submit(json!({"topic": "once", "payload": {}, "retry": {"max_attempts": 1}})).await;
    for id in [&permanent, &single] {
        let job = gateway.ended(id, SOON).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("failed"), Some(1)));
        assert_eq!(job["error"]["code"], "handler_error");
        assert_eq!(runs.of(id).len(), 1);
    }
}

#[tokio::test]
async fn a_cancel_reaches_a_running_worker_at_once_and_its_late_result_changes_nothing() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let heard = Executions::default();
    let notes = heard.clone();
    // The worker's next extension would also report the cancel, ten seconds after the start.
    let setup = Setup { lease: Duration::from_secs(30), ..Setup::new("w1", "stoppable") };
    let _worker = runs.worker(&stack, setup, move |ctx, _| {
        let notes = notes.clone();
        async move {
            ctx.cancelled().await;
            notes.note(muster_tests::Run {
                job: ctx.job_id().to_string(),
                attempt: ctx.attempt(),
                fence: ctx.fence(),
                worker: "w1".into(),
                at: std::time::Instant::now(),
            });
            Ok(json!("too late"))
        }
    });
    let id = gateway.submit(json!({"topic": "stoppable"})).await;
    // A cancel may overtake the message that a job is started: then the job is never run.
    runs.reach(1, SOON).await;
    let asked = std::time::Instant::now();
    let answer = gateway.post(&format!("/jobs/{id}/cancel"), &json!({"reason": "changed my mind"})).await;
    assert_eq!((answer.status.as_u16(), answer.field("state")), (200, &json!("cancelled")));
    heard.reach(1, SOON).await;
    assert!(heard.all()[0].at - asked < Duration::from_secs(5), "told at once");

    let again = gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await;
    assert_eq!(again.status, 200, "asking again is fine");
    assert_eq!(gateway.job(&id).await["state"], "cancelled");
    assert!(gateway.job(&id).await.get("result").is_none());
}

#[tokio::test]
async fn a_cancelled_pending_job_never_runs_and_an_ended_one_cannot_be_cancelled() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let id = gateway.submit(json!({"topic": "later", "delay_ms": 1500})).await;
    assert_eq!(gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
    let waiting = gateway.submit(json!({"topic": "later"})).await;
    assert_eq!(gateway.post(&format!("/jobs/{waiting}/cancel"), &json!({})).await.status, 200);

    let _worker = runs.echo(&stack, "w1", "later");
    let last = gateway.submit(json!({"topic": "later", "delay_ms": 2500})).await;
    assert_eq!(gateway.ended(&last, SOON).await["state"], "succeeded");
    assert_eq!(runs.all().len(), 1, "only the last one ran");
    let done = gateway.post(&format!("/jobs/{last}/cancel"), &json!({})).await;
    assert_eq!((done.status.as_u16(), done.field("code")), (409, &json!("job_done")));
}

#[tokio::test]
async fn delays_deadlines_start_by_and_time_outs_are_kept() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let expired = gateway.submit(json!({"topic": "nobody", "expire_in_ms": 1500})).await;
    let unstarted = gateway.submit(json!({"topic": "nobody", "start_within_ms": 1500})).await;

    let _worker = runs.worker(&stack, Setup::new("w1", "slow"), |ctx, payload| async move {
        let ms = payload["ms"].as_u64().unwrap_or(0);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(json!("done")),
            () = ctx.cancelled() => Ok(json!("stopped")),
        }
    });
    // Make sure that a worker is there to start jobs that must not be late.
    let first = gateway.submit(json!({"topic": "slow", "payload": {"ms": 0}})).await;
    gateway.ended(&first, SOON).await;
    let begin = std::time::Instant::now();
    let delayed = gateway.submit(json!({"topic": "slow", "payload": {"ms": 0}, "delay_ms": 2000})).await;
    let over = gateway
        .submit(json!({"topic": "slow", "payload": {"ms": 60000}, "timeout_ms": 1000, "retry": {"max_attempts": 2, "backoff": {"initial_ms": 100}}}))
        .await;
    let late = gateway.submit(json!({"topic": "slow", "payload": {"ms": 60000}, "expire_in_ms": 4000})).await;

    let job = gateway.ended(&delayed, SOON).await;
    assert_eq!(job["state"], "succeeded");
    assert!(begin.elapsed() >= Duration::from_secs(2), "not before its time");
    assert!(runs.of(&delayed)[0].at - begin < Duration::from_secs(2) + LATE, "soon after its time");

    let job = gateway.ended(&over, SOON).await;
    assert_eq!((job["state"].as_str(), job["error"]["code"].as_str()), (Some("timed_out"), Some("attempt_timeout")));
    assert_eq!(job["attempt"], 2);
    let job = gateway.ended(&late, SOON).await;
    assert_eq!((job["state"].as_str(), job["error"]["code"].as_str()), (Some("timed_out"), Some("deadline_exceeded")));
    let job = gateway.ended(&expired, SOON).await;
    assert_eq!((job["state"].as_str(), job["error"]["code"].as_str()), (Some("expired"), Some("deadline_exceeded")));
    let job = gateway.ended(&unstarted, SOON).await;
    assert_eq!((job["state"].as_str(), job["error"]["code"].as_str()), (Some("expired"), Some("start_by_passed")));
}

#[tokio::test]
async fn a_draining_worker_gives_its_job_back_with_the_attempt() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let mut setup = Setup::new("leaver", "handover");
    setup.drain = Duration::from_millis(300);
    let leaver = runs.worker(&stack, setup, |_, _| std::future::pending());
    let id = gateway.submit(json!({"topic": "handover", "retry": {"max_attempts": 1}})).await;
    runs.reach(1, SOON).await;
    leaver.drain().await;
    let _stayer = runs.echo(&stack, "stayer", "handover");
    let job = gateway.ended(&id, SOON).await;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)));
    assert_eq!(job["worker"], "stayer");
}

#[tokio::test]
async fn an_ended_job_is_retried_as_a_new_one_exactly_once() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "again"), |_, payload| async move {
        if payload["bad"] == json!(true) { Err(HandlerError::permanent("bad")) } else { Ok(payload) }
    });
    let old = gateway.submit(json!({"topic": "again", "payload": {"bad": true}})).await;
    let early = gateway.submit(json!({"topic": "again", "delay_ms": 60000})).await;
    assert_eq!(gateway.post(&format!("/jobs/{early}/retry"), &json!({})).await.field("code"), "job_not_done");
    gateway.ended(&old, SOON).await;

    let change = json!({"payload": {"bad": false}});
    let path = format!("/jobs/{old}/retry");
    let (a, b) = tokio::join!(gateway.post(&path, &change), gateway.post(&path, &change));
    assert_eq!((a.status.as_u16(), b.status.as_u16()), (202, 202));
    assert_eq!(a.id(), b.id(), "a double click makes one");
    let job = gateway.ended(&a.id(), SOON).await;
    assert_eq!((job["state"].as_str(), job["retry_of"].as_str()), (Some("succeeded"), Some(old.as_str())));
    until(SOON, "the old one to name the new", async || {
        (gateway.job(&old).await["retried_as"].as_str() == Some(a.id().as_str())).then_some(())
    })
    .await;
    let other = gateway.post(&path, &json!({"payload": {"bad": 3}})).await;
    assert_eq!((other.status.as_u16(), other.field("code")), (409, &json!("already_retried")));
}
