//! A transition's script and the rules of the look agree on when a home must be forwarded. The
//! bench compares them exactly at every step; here are the steps that make a difference.

use std::time::Duration;

use futures_util::future::join_all;
use muster_domain::{
    Event, JobSpec, State,
    job::{DISPATCHED_LOOK, PENDING_LOOK, QUEUED_LOOK, When},
};
use muster_store::{Extension, Step};

use crate::bench::{Bench, Course, HOUR, Job, spec, tenant};

const S: Duration = Duration::from_secs(1);

/// Walks through every living state and back, under one set of bounds.
async fn walk(bench: &Bench, asked: JobSpec, lease: Duration, wait: Duration) {
    use Event::{Approve, AskApproval, Dispatch, Hold, Recall, Release, Reoffer, Rescue, Retry, Schedule, Start, Wake};
    let step = async |job: Job, event: Event, lease: Duration, wait: Duration| {
        bench.go(&job, Step { lease, wait, ..job.step(event) }).await
    };
    let mut job = bench.submit(asked.clone()).await;
    for event in [AskApproval, Approve, Hold, Hold, Dispatch, Reoffer, Recall, Dispatch, Start, Release] {
        job = step(job, event, lease, wait).await;
    }
    let mut job = bench.submit(asked.clone()).await;
    for event in [Dispatch, Start, Retry] {
        job = step(job, event, lease, wait).await;
    }
    let mut job = bench.submit(asked.clone()).await;
    for event in [Hold, Dispatch, Start, Rescue, Wake, Hold, Dispatch, Start, Retry, Wake, Dispatch, Start] {
        let (lease, wait) =
            if matches!(event, Start | Retry) { (Duration::ZERO, Duration::ZERO) } else { (lease, wait) };
        // A rescue may come back at once whatever the backoff of a failure is.
        let wait = if event == Rescue { Duration::ZERO } else { wait };
        job = step(job, event, lease, wait).await;
    }
    let mut job = bench.submit(JobSpec { run_at: Some(When::In(45 * S)), ..asked }).await;
    for event in [Schedule, Event::Cancel] {
        job = step(job, event, lease, wait).await;
    }
}

pub(crate) async fn the_script_forwards_exactly_when_the_rules_say_so(bench: &Bench) {
    let mut walks = Vec::new();
    let bounds = [None, Some(When::In(20 * S)), Some(When::In(40 * S)), Some(When::In(2 * HOUR))];
    for deadline in bounds {
        for start_by in bounds {
            for (timeout_ms, lease, wait) in
                [(0, S, 5 * S), (0, 60 * S, S), (5_000, 60 * S, 45 * S), (60_000, 5 * S, 2 * HOUR), (1, HOUR, S)]
            {
                walks.push(walk(bench, JobSpec { deadline, start_by, timeout_ms, ..spec(&tenant()) }, lease, wait));
            }
        }
    }
    assert_eq!(walks.len(), 80);
    join_all(walks).await;
}

pub(crate) async fn a_home_is_forwarded_when_the_next_look_comes_nearer(bench: &Bench) {
    let forward = async |job: &Job, step: Step| {
        let moved = bench.apply(step).await;
        assert!(moved.done().is_some(), "{moved:?}");
        (moved.forward, Job { id: job.id, head: moved.head.unwrap() })
    };
    // From the backlog, looked at every quarter of an hour, to an offer, looked at in 30 s.
    let queued = bench.calm(State::Queued).await;
    let (nearer, offered) = forward(&queued, queued.step(Event::Dispatch)).await;
    assert_eq!(nearer, Some(DISPATCHED_LOOK));
    // Held again: a fresh look is earlier than the latest that the old one can be.
    let held = bench.calm(State::Queued).await;
    assert_eq!(forward(&held, held.step(Event::Hold)).await.0, Some(QUEUED_LOOK));
    // A start with a lease of 15 s is looked at before the offer would have been; one of an hour is not.
    let (nearer, running) = forward(&offered, Step { lease: 15 * S, ..offered.step(Event::Start) }).await;
    assert_eq!(nearer, Some(15 * S));
    // A retry in 2 s comes before that lease's end, one in 50 s does not come before one of 40.
    assert_eq!(forward(&running, Step { wait: 2 * S, ..running.step(Event::Retry) }).await.0.unwrap(), 2 * S);
    let offered = bench.calm(State::Dispatched).await;
    let (none, running) = forward(&offered, Step { lease: 40 * S, ..offered.step(Event::Start) }).await;
    assert_eq!(none, None);
    assert_eq!(forward(&running, Step { wait: 50 * S, ..running.step(Event::Retry) }).await.0, None);
    // An extended lease may be looked at only at its new end: the script knows the extended one.
    let offered = bench.calm(State::Dispatched).await;
    let (_, running) = forward(&offered, Step { lease: S, ..offered.step(Event::Start) }).await;
    let longer = Extension { job: running.id, fence: running.head.fence, lease: HOUR, progress: None };
    assert!(bench.store.extend(vec![longer]).await.remove(0).unwrap().held);
    assert_eq!(forward(&running, Step { wait: 60 * S, ..running.step(Event::Retry) }).await.0, Some(60 * S));
    // A fresh pending job has a look ahead that is at least as near as any offer's.
    let pending = bench.calm(State::Pending).await;
    assert_eq!(forward(&pending, pending.step(Event::Dispatch)).await.0, None);
    // A deadline that is nearer than every look stays what it was.
    let mut course = Course::calm(false);
    course.spec.deadline = Some(When::In(20 * S));
    let queued = bench.drive(State::Queued, &course).await.unwrap();
    assert_eq!(forward(&queued, queued.step(Event::Dispatch)).await.0, None);
    // An attempt's time-out counts like a lease's end.
    let mut course = Course::calm(false);
    course.spec.timeout_ms = 3_000;
    let offered = bench.drive(State::Dispatched, &course).await.unwrap();
    assert_eq!(forward(&offered, offered.step(Event::Start)).await.0, Some(3 * S));
}

pub(crate) async fn an_old_pending_job_may_be_due_late(bench: &Bench) {
    // Looks at a pending job get rarer with its age, so an older one may have its home minutes ahead.
    let pending = bench.calm(State::Pending).await;
    for (age, wanted) in [(PENDING_LOOK - 10 * S, None), (PENDING_LOOK + S, Some(DISPATCHED_LOOK))] {
        let mut job = bench.submit(spec(&tenant())).await;
        job.head.since = pending.head.since.before(age);
        bench.patch(job.id, 26..34, job.head.since.0).await;
        let moved = bench.apply(job.step(Event::Dispatch)).await;
        assert!(moved.now.since(job.head.since) >= age);
        assert_eq!(moved.forward, wanted, "a pending job of {age:?}");
        crate::bench::moved_on(&job, Event::Dispatch, &moved);
    }
}
