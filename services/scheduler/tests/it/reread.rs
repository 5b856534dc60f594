//! A Redis that comes back without its last writes: the loop `reread` restores them from the bus, and changes nothing
//! else.

use std::{collections::BTreeMap, time::Duration};

use muster_bus::subjects;
use muster_domain::{
    JobId, State, Tenant,
    job::{PENDING_LOOK, When},
};
use muster_flow::Cancelled;
use muster_store::{Deleted, Fields, KEEP_STUB, ListFilter, NewJob};
use muster_testkit::until;
use muster_wire::{
    Body,
    v1::{Submit, SubmitGroup},
};

use crate::{
    path::submit_of,
    stack::{SOON, Stack, job, new_job},
    worker::Worker,
};

const S: Duration = Duration::from_secs(1);
const MARK: &str = "muster:scheduler:reread:mark";

/// Two schedulers that check each second whether Redis has restarted.
async fn stack() -> Stack {
    let stack = Stack::without_scheduler().await;
    for name in ["s1", "s2"] {
        stack.scheduler_with(name, &[("--loop-reread-interval", "1s"), ("--loop-scrub-interval", "1s")]).await;
    }
    all_is_whole(&stack).await;
    stack
}

/// Waits until a pass is complete, so that everything this run of Redis had lost is restored.
async fn all_is_whole(stack: &Stack) {
    let info = stack.redis.cli(&["INFO", "server"]).await;
    let run = info.lines().find_map(|line| line.trim().strip_prefix("run_id:")).expect("a run").to_owned();
    until(SOON, "the bus to be read again", async || {
        stack.redis.cli(&["GET", MARK]).await.contains(&run).then_some(())
    })
    .await;
}

/// Kills and restarts Redis, and waits until everything is restored.
async fn dies_and_comes_back(stack: &Stack) {
    stack.redis.restart().await;
    all_is_whole(stack).await;
}

fn key(id: JobId) -> String {
    format!("muster:job:{id}")
}

/// Copies a record, so that `set_back` can restore it like a failover that lost the later writes.
async fn remember(stack: &Stack, id: JobId) {
    assert_eq!(stack.redis.cli(&["COPY", &key(id), &format!("then:{id}"), "REPLACE"]).await, "1");
}

async fn set_back(stack: &Stack, id: JobId) {
    assert_eq!(stack.redis.cli(&["COPY", &format!("then:{id}"), &key(id), "REPLACE"]).await, "1");
}

/// Deletes the record and the home of a job.
async fn forget(stack: &Stack, id: JobId) {
    assert_eq!(stack.redis.cli(&["DEL", &key(id)]).await, "1");
    stack.store().drop_homes(&[id]).await.unwrap();
}

async fn listed(stack: &Stack) -> Vec<JobId> {
    let filter = ListFilter::default();
    let page = stack.store().list(&Tenant::default(), None, 100, &filter, Fields::NONE).await.unwrap();
    page.items.iter().map(|record| record.id).collect()
}

#[tokio::test]
async fn jobs_that_redis_forgot_come_back_and_run_once() {
    let stack = stack().await;
    let mut later = job("t");
    later.run_at = Some(When::In(5 * S));
    let jobs = stack.submit_all([vec![job("t"); 30], vec![later; 10]].concat()).await;
    let mut accepted = BTreeMap::new();
    for id in &jobs {
        let record = until(SOON, "it to be decided", async || {
            Some(stack.record(*id).await).filter(|record| record.head.state() != State::Pending)
        })
        .await;
        accepted.insert(*id, record);
    }
    let (lost, kept): (Vec<JobId>, Vec<JobId>) = jobs.iter().partition(|id| id.shard() % 4 != 0);
    assert!(lost.len() >= 15);
    for id in &lost {
        forget(&stack, *id).await;
    }
    assert!(stack.redis.cli(&["KEYS", "muster:idx:*"]).await.lines().count() >= 3);
    for list in stack.redis.cli(&["KEYS", "muster:idx:*"]).await.lines() {
        stack.redis.cli(&["DEL", list]).await;
    }
    dies_and_comes_back(&stack).await;
    for id in &lost {
        let (record, before) = (stack.record(*id).await, &accepted[id]);
        assert_eq!((record.head.created_at, &record.spec), (before.head.created_at, &before.spec));
        assert_eq!(record.payload, before.payload);
        assert!(record.history[1].note.contains("forgotten"), "{:?}", record.history);
    }
    for id in &kept {
        let history = stack.record(*id).await.history;
        assert!(history.iter().all(|line| !line.note.contains("forgotten")), "who was there is left alone");
    }

    let worker = Worker::on(&stack, "w1", "t").await;
    let mut starts: BTreeMap<JobId, u32> = BTreeMap::new();
    for _ in &jobs {
        let attempt = worker.start_next(4 * SOON).await;
        assert_eq!(starts.insert(attempt.job, attempt.number), None, "nobody runs twice");
        worker.succeed(&attempt, "1").await;
    }
    for id in &jobs {
        assert_eq!(stack.ends(*id, State::Succeeded, SOON).await.head.attempt, 1);
    }
    assert!(worker.try_offered(S).await.is_none_or(|offered| starts.contains_key(&offered.job())));
    let mut all = jobs.clone();
    all.sort();
    until(SOON, "each to be listed once", async || {
        let mut shown = listed(&stack).await;
        shown.sort();
        (shown == all).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_key_of_a_forgotten_job_still_leads_to_it() {
    let stack = stack().await;
    let id = JobId::derive("job", &Tenant::default(), "k");
    let mut keyed = [NewJob { id, body_hash: Some([4; 16]), ..new_job(job("t")) }];
    stack.submit_new(keyed.to_vec()).await;
    let before = stack.reaches(id, State::Dispatched, SOON).await;
    forget(&stack, id).await;
    dies_and_comes_back(&stack).await;
    let again = stack.flow.submit(&mut keyed).await.remove(0).unwrap();
    assert!(again.replayed);
    assert_eq!(again.head.created_at, before.head.created_at);
    keyed[0].body_hash = Some([5; 16]);
    assert!(stack.flow.submit(&mut keyed).await.remove(0).is_err(), "another body is refused as before");
}

#[tokio::test]
async fn a_job_that_was_deleted_stays_deleted() {
    let stack = stack().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let id = stack.submit(job("t")).await;
    let attempt = worker.start_next(SOON).await;
    worker.succeed(&attempt, "1").await;
    stack.ends(id, State::Succeeded, SOON).await;
    assert_eq!(stack.store().delete_ended(id).await, Ok(Deleted::Deleted));
    dies_and_comes_back(&stack).await;
    assert!(stack.record(id).await.deleted);
    assert_eq!(listed(&stack).await, []);
    assert!(worker.try_offered(S).await.is_none());
}

/// A job that was accepted while NATS was down, and its submit, which is not published yet.
async fn deferred(stack: &Stack) -> (JobId, Submit) {
    let mut jobs = [new_job(job("t"))];
    stack.store().prepare(&mut jobs, PENDING_LOOK).await.remove(0).unwrap();
    stack.store().submit(&jobs).await.remove(0).unwrap();
    (jobs[0].id, submit_of(stack, jobs[0].id).await)
}

#[tokio::test]
async fn a_submit_that_comes_after_its_job_was_forgotten_makes_it_again_unless_it_may_have_been_deleted() {
    let stack = stack().await;
    let (lost, late) = deferred(&stack).await;
    forget(&stack, lost).await;
    let (deleted, repeated) = deferred(&stack).await;
    assert!(matches!(stack.flow.cancel(&Tenant::default(), deleted, "").await, Ok(Cancelled::Now(_))));
    stack.ends(deleted, State::Cancelled, SOON).await;
    assert_eq!(stack.store().delete_ended(deleted).await, Ok(Deleted::Deleted));
    // A job that may have ended so long ago that even the stub of a deleted job has expired.
    let (old, mut ancient) = deferred(&stack).await;
    forget(&stack, old).await;
    ancient.pending_since = stack.store().now().before(KEEP_STUB).0;

    let body = Body::Submit(SubmitGroup { items: vec![ancient, repeated, late] });
    stack.bus().publish(&subjects::submit(), None, None, body).await.unwrap();
    let worker = Worker::on(&stack, "w1", "t").await;
    let attempt = worker.start_next(SOON).await;
    assert_eq!(attempt.job, lost);
    worker.succeed(&attempt, "1").await;
    let record = stack.ends(lost, State::Succeeded, SOON).await;
    assert_eq!(record.head.attempt, 1);
    assert!(record.history[1].note.contains("forgotten"), "{:?}", record.history);
    // All three submits were decided in one batch.
    assert!(stack.record(deleted).await.deleted);
    assert_eq!(stack.store().are_gone(&[old]).await, [Ok(true)]);
    assert_eq!(listed(&stack).await, [lost]);
    assert!(worker.try_offered(S).await.is_none());
}

#[tokio::test]
async fn a_result_that_redis_forgot_is_settled_again_and_the_job_does_not_run_again() {
    let stack = stack().await;
    let worker = Worker::on(&stack, "w1", "t").await;
    let jobs = stack.submit_all(vec![job("t"); 3]).await;
    for _ in &jobs {
        let attempt = worker.start_next(SOON).await;
        remember(&stack, attempt.job).await;
        match attempt.job == jobs[2] {
            true => worker.fail(&attempt, false).await,
            false => worker.succeed(&attempt, "7").await,
        }
    }
    let ends = [State::Succeeded, State::Succeeded, State::Failed];
    for (id, end) in jobs.iter().zip(ends) {
        stack.ends(*id, end, SOON).await;
    }
    for id in [jobs[0], jobs[2]] {
        set_back(&stack, id).await;
        assert_eq!(stack.state(id).await, State::Running);
    }
    dies_and_comes_back(&stack).await;
    for (id, end) in jobs.iter().zip(ends) {
        let record = stack.ends(*id, end, SOON).await;
        assert_eq!((record.head.attempt, record.head.version), (1, 4), "{:?}", record.history);
    }
    assert_eq!(stack.record(jobs[0]).await.result.unwrap().json.as_ref(), b"7");
    assert!(stack.is_dead_letter(jobs[2]).await);
    assert!(worker.try_offered(S).await.is_none(), "nobody is asked again");
}

#[tokio::test]
async fn a_cancel_that_redis_forgot_is_applied_again_and_never_to_another_job_of_that_id() {
    let stack = stack().await;
    let (tenant, mut later) = (Tenant::default(), job("t"));
    later.run_at = Some(When::In(3600 * S));
    let ids = ["a", "b"].map(|name| JobId::derive("job", &tenant, name));
    let new = |id: JobId| NewJob { id, body_hash: Some([1; 16]), ..new_job(later.clone()) };
    for id in ids {
        stack.submit_new(vec![new(id)]).await;
        stack.reaches(id, State::Scheduled, SOON).await;
        remember(&stack, id).await;
        let cancelled = stack.flow.cancel(&tenant, id, "not wanted").await.unwrap();
        assert!(matches!(cancelled, Cancelled::Now(_)), "{cancelled:?}");
        stack.ends(id, State::Cancelled, SOON).await;
    }
    set_back(&stack, ids[0]).await;
    // The second job is completely gone, and a client has used its key again.
    forget(&stack, ids[1]).await;
    stack.submit_new(vec![new(ids[1])]).await;
    stack.reaches(ids[1], State::Scheduled, SOON).await;
    dies_and_comes_back(&stack).await;
    let record = stack.ends(ids[0], State::Cancelled, SOON).await;
    assert_eq!(record.history.last().unwrap().note, "not wanted");
    assert_eq!(stack.state(ids[1]).await, State::Scheduled);
}

#[tokio::test]
async fn a_redis_that_forgot_everything_is_filled_again_from_the_bus() {
    let stack = stack().await;
    let jobs = stack.submit_all(vec![job("t"); 20]).await;
    stack.redis.flushall().await;
    until(SOON, "all of them to be back", async || {
        let back = stack.store().read(&jobs, Fields::NONE).await;
        back.iter().all(|record| matches!(record, Ok(Some(_)))).then_some(())
    })
    .await;
    let worker = Worker::on(&stack, "w1", "t").await;
    for _ in &jobs {
        let attempt = worker.start_next(4 * SOON).await;
        worker.succeed(&attempt, "1").await;
    }
    for id in &jobs {
        assert_eq!(stack.ends(*id, State::Succeeded, SOON).await.head.attempt, 1);
    }
}
