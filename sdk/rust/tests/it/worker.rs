//! Tests of a worker's guarantees, seen from the scheduler's side.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use muster_sdk::{Context, HandlerError, MAX_RESULT, RESULT_PREVIEW, StopReason, WorkerError};
use muster_testkit::until;
use muster_wire::{v1, v1::result::Kind};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::scheduler::{SOON, Scheduler, beside, job_of, left, settle};

fn success(result: &v1::Result) -> &v1::Success {
    match result.kind.as_ref() {
        Some(Kind::Success(success)) => success,
        other => panic!("not a success: {other:?}"),
    }
}

fn failure(result: &v1::Result) -> &v1::Failure {
    match result.kind.as_ref() {
        Some(Kind::Failed(failed)) => failed.failure.as_ref().unwrap(),
        other => panic!("not a failure: {other:?}"),
    }
}

async fn forever() -> Result<Value, HandlerError> {
    std::future::pending().await
}

#[tokio::test]
async fn jobs_run_with_their_context_and_their_results_are_settled() {
    let scheduler = Scheduler::start().await;
    let worker = scheduler
        .worker("w1")
        .handle("square", |ctx: Context, n: u64| async move {
            assert_eq!((ctx.attempt(), ctx.max_attempts(), ctx.labels()["k"].as_str()), (1, 5, "v"));
            assert_eq!((ctx.topic().as_str(), ctx.tenant().as_str()), ("square", "default"));
            assert!(ctx.traceparent().is_some() && ctx.deadline().is_none() && !ctx.is_cancelled());
            Ok(json!({ "square": n * n, "fence": ctx.fence() }))
        })
        .handle_raw("raw", |_, bytes| async move { Ok(bytes) })
        .build()
        .unwrap();
    let (handle, running) = beside(worker);
    let jobs = scheduler.offer("square", ["3", "4"]).await;
    let [raw] = scheduler.offer("raw", ["{\"n\": 123456789012345678901234567890}"]).await;
    let results = scheduler.results(3).await;
    for result in &results {
        let job = job_of(result);
        assert_eq!((result.fence, result.worker.as_str()), (scheduler.heard.fence(job), "w1"));
        if job == raw {
            assert_eq!(&success(result).result[..], b"{\"n\": 123456789012345678901234567890}");
        } else {
            let square = if job == jobs[0] { 9 } else { 16 };
            let value: Value = serde_json::from_slice(&success(result).result).unwrap();
            assert_eq!(value, json!({ "square": square, "fence": result.fence }));
        }
    }
    scheduler.all_taken("square").await;
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.succeeded, summary.failed, summary.unsettled), (3, 0, 0));
    let starts = scheduler.heard.starts.lock().unwrap();
    let asked_together = |request: &v1::StartRequest| {
        jobs.iter().all(|job| request.items.iter().any(|ask| ask.job_id[..] == job.as_bytes()[..]))
    };
    assert!(starts.iter().any(asked_together), "offers of one message are asked for in one request");
}

#[tokio::test]
async fn a_lost_start_reply_is_asked_again_with_the_same_start_id() {
    let scheduler = Scheduler::start().await;
    scheduler.wishes.deaf_to_starts.store(2, Ordering::SeqCst);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let worker = scheduler.worker("w1").handle("t", move |_, (): ()| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let (_handle, _running) = beside(worker.build().unwrap());
    let [job] = scheduler.offer("t", ["null"]).await;
    scheduler.results(1).await;
    let ids = scheduler.start_ids(job);
    assert!(ids.len() >= 3, "two were not answered: {ids:?}");
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    scheduler.all_taken("t").await;
}

#[tokio::test]
async fn an_offer_delivered_again_while_its_start_is_asked_is_not_asked_separately() {
    let scheduler = Scheduler::start().await;
    scheduler.wishes.deaf_to_starts.store(2, Ordering::SeqCst);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let worker = scheduler.worker("w1").handle("t", move |_, (): ()| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let (handle, running) = beside(worker.build().unwrap());
    let [job] = scheduler.offer("t", ["null"]).await;
    until(SOON, "the first ask", async || (!scheduler.start_ids(job).is_empty()).then_some(())).await;
    scheduler.offer_again("t", &[job], &["null"]).await;
    scheduler.results(1).await;
    scheduler.all_taken("t").await;
    let ids = scheduler.start_ids(job);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    handle.drain();
    assert_eq!(left(running).await.succeeded, 1);
}

#[tokio::test]
async fn a_job_without_a_record_is_given_back_and_asked_anew() {
    let scheduler = Scheduler::start().await;
    scheduler.wishes.unknown_starts.store(1, Ordering::SeqCst);
    let worker = scheduler.worker("w1").handle("t", |_, (): ()| async { Ok(1) });
    let (_handle, _running) = beside(worker.build().unwrap());
    let began = Instant::now();
    let [job] = scheduler.offer("t", ["null"]).await;
    scheduler.results(1).await;
    assert!(began.elapsed() >= Duration::from_millis(900), "it was left alone for a second");
    let ids = scheduler.start_ids(job);
    assert_ne!(ids.first(), ids.last(), "a new delivery is a new ask");
}

#[tokio::test]
async fn a_result_is_published_again_until_it_is_settled_and_its_lease_kept() {
    let scheduler = Scheduler::start().await;
    scheduler.wishes.mute_about_results.store(true, Ordering::SeqCst);
    let worker = scheduler.worker("w1").handle("t", |_, (): ()| async { Ok(1) });
    let (handle, running) = beside(worker.build().unwrap());
    let [job] = scheduler.offer("t", ["null"]).await;
    let results = scheduler.results(3).await;
    assert!(results.iter().all(|result| *result == results[0] && job_of(result) == job));
    until(SOON, "the lease to be extended", async || {
        let extensions = scheduler.heard.extensions.lock().unwrap();
        extensions.iter().any(|ask| ask.job_id[..] == job.as_bytes()[..]).then_some(())
    })
    .await;
    settle(&scheduler.bus, &results[0]).await;
    handle.drain();
    assert_eq!(left(running).await.unsettled, 0);
}

#[tokio::test]
async fn a_result_that_nobody_wants_any_more_is_forgotten() {
    let scheduler = Scheduler::start().await;
    scheduler.wishes.mute_about_results.store(true, Ordering::SeqCst);
    let worker = scheduler.worker("w1").handle("t", |_, (): ()| async { Ok(1) });
    let (handle, running) = beside(worker.build().unwrap());
    let [job] = scheduler.offer("t", ["null"]).await;
    scheduler.results(1).await;
    scheduler.wishes.standings.lock().unwrap().insert(job, v1::Standing::Lost);
    handle.drain();
    assert_eq!(left(running).await.unsettled, 0, "the extension told it");
}

#[tokio::test]
async fn a_settled_notice_that_was_lost_is_made_up_for_by_the_extension() {
    let scheduler = Scheduler::start().await;
    scheduler.wishes.mute_about_results.store(true, Ordering::SeqCst);
    scheduler.wishes.ended_by_worker.store(true, Ordering::SeqCst);
    let worker = scheduler.worker("w1").handle("t", |_, (): ()| async { Ok(1) });
    let (handle, running) = beside(worker.build().unwrap());
    scheduler.offer("t", ["null"]).await;
    scheduler.results(1).await;
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.succeeded, summary.unsettled), (1, 0));
}

#[tokio::test]
async fn a_cancel_reaches_its_handler_at_once_and_its_result_is_dropped() {
    let scheduler = Scheduler::start().await;
    let told = Arc::new(std::sync::Mutex::new(None));
    let saw = Arc::clone(&told);
    let worker = scheduler.worker("w1").handle("t", move |ctx: Context, (): ()| {
        let saw = Arc::clone(&saw);
        async move {
            ctx.cancelled().await;
            *saw.lock().unwrap() = Some((Instant::now(), ctx.stop_reason()));
            Ok("too late")
        }
    });
    let (handle, running) = beside(worker.build().unwrap());
    let [job] = scheduler.offer("t", ["null"]).await;
    scheduler.all_taken("t").await;
    let cancelled = v1::CancelNotice {
        job_id: job.as_bytes().to_vec().into(),
        fence: scheduler.heard.fence(job),
        standing: v1::Standing::Cancelled.into(),
    };
    let sent = Instant::now();
    scheduler.tell("w1", v1::Control { cancelled: vec![cancelled], ..v1::Control::default() }).await;
    let (at, reason) = until(SOON, "the handler to be told", async || *told.lock().unwrap()).await;
    assert!(at.duration_since(sent) < Duration::from_secs(5));
    assert_eq!(reason, Some(StopReason::Cancelled));
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.lost, summary.succeeded), (1, 0));
    assert!(scheduler.heard.results.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_job_longer_than_its_lease_is_extended_and_one_that_is_lost_is_stopped() {
    let scheduler = Scheduler::start().await;
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    let worker = scheduler.worker("w1").handle("t", move |ctx: Context, (): ()| {
        let flag = Arc::clone(&flag);
        async move {
            ctx.cancelled().await;
            flag.store(ctx.stop_reason() == Some(StopReason::Lost), Ordering::SeqCst);
            forever().await
        }
    });
    let (handle, running) = beside(worker.grace(Duration::from_millis(100)).build().unwrap());
    let [job] = scheduler.offer("t", ["null"]).await;
    until(SOON, "four extensions", async || (scheduler.heard.extensions.lock().unwrap().len() >= 4).then_some(()))
        .await;
    assert!(!stopped.load(Ordering::SeqCst));
    assert_eq!(scheduler.start_ids(job).len(), 1);
    scheduler.wishes.standings.lock().unwrap().insert(job, v1::Standing::Lost);
    until(SOON, "the handler to be stopped", async || stopped.load(Ordering::SeqCst).then_some(())).await;
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.lost, summary.released), (1, 0), "what was lost is not given back");
    assert!(scheduler.heard.results.lock().unwrap().is_empty());
}

#[tokio::test]
async fn progress_travels_with_the_lease_soon_after_it_was_reported() {
    let scheduler = Scheduler::start().await;
    let worker = scheduler.worker("w1").lease(Duration::from_secs(60)).handle("t", |ctx: Context, (): ()| async move {
        for percent in 0..=100u8 {
            ctx.progress(f64::from(percent), "counting", Some(json!({ "n": percent })));
        }
        forever().await
    });
    let (handle, running) = beside(worker.build().unwrap());
    let began = Instant::now();
    scheduler.offer("t", ["null"]).await;
    let last = until(SOON, "the last report", async || {
        let extensions = scheduler.heard.extensions.lock().unwrap();
        extensions.iter().filter_map(|ask| ask.progress.clone()).find(|report| report.percent == Some(100.0))
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(10), "long before a third of the lease");
    assert_eq!((last.message.as_str(), last.data.as_str()), ("counting", "{\"n\":100}"));
    assert!(scheduler.heard.extensions.lock().unwrap().len() < 10, "reports are grouped");
    handle.stop();
    assert_eq!(left(running).await.released, 1);
}

#[tokio::test]
async fn draining_finishes_what_is_short_releases_what_is_long_and_gives_back_what_is_not_begun() {
    let scheduler = Scheduler::start().await;
    let drains = Arc::new(Notify::new());
    let told = Arc::clone(&drains);
    let handler = move |ctx: Context, long: bool| {
        let told = Arc::clone(&told);
        async move {
            if long {
                ctx.cancelled().await;
                return Err(HandlerError::retryable("told to stop"));
            }
            told.notified().await;
            Ok(1)
        }
    };
    let worker = scheduler.worker("w1").concurrency(2).drain(Duration::from_secs(5)).handle("t", handler);
    let (handle, running) = beside(worker.build().unwrap());
    let [short, long] = scheduler.offer("t", ["false", "true"]).await;
    scheduler.all_taken("t").await;
    handle.drain();
    let [late] = scheduler.offer("t", ["false"]).await;
    drains.notify_one();
    let summary = left(running).await;
    assert_eq!((summary.succeeded, summary.released, summary.failed, summary.unsettled), (1, 1, 0, 0));
    let results = scheduler.results(2).await;
    for result in &results {
        match result.kind.as_ref().unwrap() {
            Kind::Success(_) => assert_eq!(job_of(result), short),
            Kind::Release(_) => assert_eq!(job_of(result), long),
            Kind::Failed(failed) => panic!("{failed:?}"),
        }
    }
    scheduler.goodbye("w1").await;

    let second = scheduler.worker("w2").handle("t", |_, _: bool| async { Ok(2) });
    let (_handle, _running) = beside(second.build().unwrap());
    let results = scheduler.results(3).await;
    assert_eq!((job_of(&results[2]), results[2].worker.as_str()), (late, "w2"));
}

#[tokio::test]
async fn a_handler_that_never_yields_to_its_token_is_aborted_and_released() {
    let scheduler = Scheduler::start().await;
    let worker = scheduler.worker("w1").handle("t", |_, (): ()| forever());
    let (handle, running) = beside(worker.grace(Duration::from_millis(100)).build().unwrap());
    scheduler.offer("t", ["null"]).await;
    scheduler.all_taken("t").await;
    handle.stop();
    let summary = left(running).await;
    assert_eq!((summary.released, summary.unsettled), (1, 0));
    assert!(matches!(scheduler.results(1).await[0].kind, Some(Kind::Release(_))));
}

#[tokio::test]
async fn no_more_handlers_run_than_there_are_slots() {
    let scheduler = Scheduler::start().await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running_now, most_seen) = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Context, _: Value| {
        let (now, most) = (Arc::clone(&running_now), Arc::clone(&most_seen));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    };
    let worker = scheduler.worker("w1").concurrency(5).handle("a", handler.clone()).handle("b", handler);
    let (handle, running) = beside(worker.build().unwrap());
    for _ in 0..8 {
        scheduler.offer("a", ["1"; 8]).await;
        scheduler.offer("b", ["2"; 3]).await;
    }
    scheduler.results(88).await;
    scheduler.all_taken("a").await;
    scheduler.all_taken("b").await;
    assert_eq!(most.load(Ordering::SeqCst), 5, "all slots are used, and no more");
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.succeeded, summary.unsettled), (88, 0), "each ran once");
}

#[tokio::test]
async fn bad_ends_are_told_as_what_they_are() {
    let scheduler = Scheduler::start().await;
    let worker = scheduler.worker("w1").handle("t", |_, how: String| async move {
        match how.as_str() {
            "panic" => panic!("oh no"),
            "error" => Err(std::io::Error::other("disk full").into()),
            "permanent" => Err(HandlerError::permanent("never").code("nope").details(&json!([1]))),
            "later" => Err(HandlerError::retryable("ü€".repeat(4000)).retry_in(Duration::from_secs(7))),
            "large" => Ok("€".repeat(MAX_RESULT)),
            _ => Ok(how),
        }
    });
    let (handle, running) = beside(worker.build().unwrap());
    let kinds = ["\"panic\"", "\"error\"", "\"permanent\"", "\"later\"", "\"large\"", "17"];
    let jobs = scheduler.offer("t", kinds).await;
    let results = scheduler.results(6).await;
    let result_of = |n: usize| results.iter().find(|result| job_of(result) == jobs[n]).unwrap();

    let panic = failure(result_of(0));
    assert_eq!((panic.code.as_str(), panic.retryable), ("handler_error", true));
    assert!(panic.message.contains("oh no"), "{}", panic.message);
    assert_eq!((failure(result_of(1)).message.as_str(), failure(result_of(1)).retryable), ("disk full", true));
    let permanent = failure(result_of(2));
    assert_eq!((permanent.code.as_str(), permanent.details.as_str(), permanent.retryable), ("nope", "[1]", false));
    assert!(failure(result_of(3)).message.len() <= 4000);
    let Some(Kind::Failed(later)) = &result_of(3).kind else { panic!() };
    assert_eq!(later.retry_in_ms, Some(7000));
    let large = success(result_of(4));
    assert!(large.truncated && large.result.is_empty() && large.preview.len() > RESULT_PREVIEW - 4);
    assert_eq!(large.size, (MAX_RESULT * 3 + 2) as u64);
    let invalid = failure(result_of(5));
    assert_eq!((invalid.code.as_str(), invalid.retryable), ("invalid_payload", false));
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.succeeded, summary.failed), (1, 5), "a panic ends one attempt and nothing else");
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_stopped_and_told() {
    let scheduler = Scheduler::start().await;
    scheduler.wishes.timeout_ms.store(300, Ordering::SeqCst);
    let reason = Arc::new(std::sync::Mutex::new(None));
    let saw = Arc::clone(&reason);
    let worker = scheduler.worker("w1").handle("t", move |ctx: Context, (): ()| {
        let saw = Arc::clone(&saw);
        async move {
            assert_eq!(ctx.timeout(), Some(Duration::from_millis(300)));
            ctx.cancelled().await;
            *saw.lock().unwrap() = ctx.stop_reason();
            Ok("too late")
        }
    });
    let (handle, running) = beside(worker.build().unwrap());
    scheduler.offer("t", ["null"]).await;
    let results = scheduler.results(1).await;
    assert_eq!((failure(&results[0]).code.as_str(), failure(&results[0]).retryable), ("attempt_timeout", true));
    handle.drain();
    let summary = left(running).await;
    assert_eq!((summary.failed, summary.succeeded), (1, 0));
    assert_eq!(*reason.lock().unwrap(), Some(StopReason::TimedOut));
    assert_eq!(scheduler.heard.results.lock().unwrap().len(), 1, "the late result is not published");
}

#[tokio::test]
async fn what_runs_survives_an_outage_of_nats_and_its_result_arrives_afterwards() {
    let scheduler = Scheduler::start().await;
    let go = Arc::new(tokio::sync::Notify::new());
    let (gate, done) = (Arc::clone(&go), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&done);
    let worker = scheduler.worker("w1").handle("t", move |ctx: Context, (): ()| {
        let (gate, flag) = (Arc::clone(&gate), Arc::clone(&flag));
        async move {
            gate.notified().await;
            flag.store(!ctx.is_cancelled(), Ordering::SeqCst);
            Ok(1)
        }
    });
    let (_handle, _running) = beside(worker.build().unwrap());
    let [job] = scheduler.offer("t", ["null"]).await;
    scheduler.all_taken("t").await;
    scheduler.nats.kill9();
    let outage = Instant::now();
    until(SOON, "the lease to run out", async || (outage.elapsed() > Duration::from_secs(3)).then_some(())).await;
    go.notify_one();
    until(SOON, "the handler to end", async || done.load(Ordering::SeqCst).then_some(())).await;
    scheduler.nats.restart().await;
    assert_eq!(job_of(&scheduler.results(1).await[0]), job);
    let [next] = scheduler.offer("t", ["null"]).await;
    go.notify_one();
    until(SOON, "the next job's result", async || {
        scheduler.heard.results.lock().unwrap().iter().any(|result| job_of(result) == next).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_introduces_itself_and_obeys_a_drain_from_muster() {
    let scheduler = Scheduler::start().await;
    let worker = scheduler.worker("w1").concurrency(3).provides("zone", "a").handle("t", |_, (): ()| async { Ok(1) });
    let (_handle, running) = beside(worker.build().unwrap());
    let beat = until(SOON, "a heartbeat", async || scheduler.heard.beats.lock().unwrap().first().cloned()).await;
    assert_eq!((beat.worker.as_str(), beat.tenant.as_str(), beat.slots), ("w1", "default", 3));
    assert_eq!((beat.topics, beat.consuming, beat.leaving), (vec!["t".to_owned()], true, false));
    assert_eq!(beat.labels["zone"], "a");
    assert_eq!(scheduler.heard.handshakes.load(Ordering::SeqCst), 1);
    scheduler.tell("w1", v1::Control { drain: true, ..v1::Control::default() }).await;
    left(running).await;
    scheduler.goodbye("w1").await;
}

#[test]
fn a_worker_that_makes_no_sense_says_everything_that_is_wrong_with_it() {
    let builder = muster_sdk::Worker::builder("nats://x").tenant("A B").id("w~1").concurrency(0).lease(Duration::ZERO);
    let builder = builder.handle("t..", |_, (): ()| async { Ok(()) });
    let Err(WorkerError::Invalid(faults)) = builder.build() else { panic!("it was built") };
    assert_eq!(faults.len(), 5, "{faults:?}");
    let twice = muster_sdk::Worker::builder("nats://x")
        .handle("t", |_, (): ()| async { Ok(()) })
        .handle("t", |_, (): ()| async { Ok(()) });
    assert!(twice.build().unwrap_err().to_string().contains("two handlers"));
}
