//! Every call may be sent twice: the second changes nothing and says the same, or that it was done.

use std::time::Duration;

use bytes::Bytes;
use muster_domain::{
    Backoff, Durability, Event, JobError, JobId, JobSpec, OnLostLease, Outcome, Priority, Progress, RetryPolicy, State,
    TraceParent, job::When,
};
use muster_store::{Deleted, Extension, Fields, Kept, NewJob, RedisSettings, Step, Store, StoredResult, Submitted};
use muster_testkit::RedisServer;

use crate::bench::{Bench, HOUR, job_key, new_job, spec, tenant};

fn keyed(body: u8) -> NewJob {
    let tenant = tenant();
    NewJob { id: JobId::derive("job", &tenant, "key"), body_hash: Some([body; 16]), ..new_job(spec(&tenant)) }
}

async fn submit(bench: &Bench, job: &NewJob) -> Submitted {
    bench.store.submit(std::slice::from_ref(job)).await.remove(0).unwrap()
}

pub(crate) async fn a_submit_sent_twice_creates_once(bench: &Bench) {
    for job in [new_job(spec(&tenant())), keyed(7)] {
        let Submitted::Created(head) = submit(bench, &job).await else { panic!("it is new") };
        let before = bench.raw(job.id).await;
        assert_eq!(submit(bench, &job).await, Submitted::Exists(head));
        assert_eq!(bench.raw(job.id).await, before);
    }
    let job = keyed(1);
    let other = NewJob { body_hash: Some([2; 16]), payload: Bytes::from_static(b"{}"), ..job.clone() };
    assert!(matches!(submit(bench, &job).await, Submitted::Created(_)));
    let before = bench.raw(job.id).await;
    assert_eq!(submit(bench, &other).await, Submitted::Mismatch);
    assert_eq!(bench.raw(job.id).await, before);

    // Fifty at once, over two replicas: one creates, the others find it.
    let (job, replica) = (keyed(3), bench.replica().await);
    let sends = (0..50).map(|n| {
        let store = if n % 2 == 0 { &bench.store } else { &replica };
        store.submit(std::slice::from_ref(&job))
    });
    let all: Vec<_> = futures_util::future::join_all(sends).await.into_iter().flatten().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|s| matches!(s, Submitted::Created(_))).count(), 1);
    assert_eq!(all.iter().filter(|s| matches!(s, Submitted::Exists(_))).count(), 49);

    // A repeat long after finds the job as it is by then.
    let mut ended = crate::bench::Job { id: job.id, head: bench.record(job.id).await.head };
    for event in [Event::Dispatch, Event::Start, Event::Succeed] {
        ended = bench.go(&ended, ended.step(event)).await;
    }
    assert_eq!(submit(bench, &job).await, Submitted::Exists(ended.head));
}

pub(crate) async fn a_submit_is_prepared_by_a_home_and_a_place(bench: &Bench) {
    let tenant = tenant();
    let mut jobs: Vec<NewJob> = (0..20).map(|_| NewJob { id: JobId::mint(15), ..new_job(spec(&tenant)) }).collect();
    let look = Duration::from_secs(30);
    for round in 0..2 {
        // A repeat, as by a client whose answer was lost: prepared again, found again.
        assert!(bench.store.prepare(&mut jobs, look).await.iter().all(Result::is_ok));
        for (job, outcome) in jobs.iter().zip(bench.store.submit(&jobs).await) {
            let head = match outcome {
                Ok(Submitted::Created(head)) if round == 0 => head,
                Ok(Submitted::Exists(head)) if round == 1 => head,
                other => panic!("round {round}: {other:?}"),
            };
            let home = bench.store.home_of(job.id).await.unwrap().expect("a home");
            assert!(home.remaining(head.created_at) > look - Duration::from_secs(10));
        }
        // Whatever the size of a page, the list shows each of them once.
        for limit in [3, 7, 500] {
            let (mut shown, mut cursor) = (Vec::new(), None::<String>);
            loop {
                let filter = muster_store::ListFilter::default();
                let page = bench.store.list(&tenant, cursor.as_deref(), limit, &filter, Fields::NONE).await.unwrap();
                shown.extend(page.items.into_iter().map(|record| record.id));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            shown.sort();
            let mut ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
            ids.sort();
            assert_eq!(shown, ids, "round {round}, pages of {limit}");
        }
    }
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    for _ in 0..2 {
        bench.store.drop_homes(&ids).await.unwrap();
        assert_eq!(bench.store.home_of(ids[3]).await, Ok(None));
    }
}

pub(crate) async fn an_extension_sent_twice_is_one_lease(bench: &Bench) {
    let job = bench.calm(State::Running).await;
    let until = job.head.lease().unwrap().until;
    let extend = async |fence, lease, progress: Option<&str>| {
        let progress = progress.map(|text| Progress { message: Some(text.into()), ..Progress::default() });
        bench.store.extend(vec![Extension { job: job.id, fence, lease, progress }]).await.remove(0).unwrap()
    };
    for _ in 0..2 {
        let longer = extend(job.head.fence, 2 * HOUR, Some("half")).await;
        assert!(longer.held);
        assert_eq!(longer.remaining, 2 * HOUR);
        let head = longer.head.unwrap();
        assert!(head.lease().unwrap().until > until);
        assert_eq!((head.version, head.attempt, head.since), (job.head.version, 1, job.head.since));
    }
    let before = bench.raw(job.id).await;
    assert_eq!(bench.record(job.id).await.progress.unwrap().message.as_deref(), Some("half"));
    // Never shorter, and progress stays what it was when none is told.
    assert!(extend(job.head.fence, Duration::from_secs(1), None).await.held);
    assert_eq!(bench.raw(job.id).await, before);
    for fence in [job.head.fence + 1, job.head.fence - 1, 0] {
        assert!(!extend(fence, 3 * HOUR, Some("no")).await.held);
    }
    assert_eq!(bench.raw(job.id).await, before);
    // One that has run out but was not ended can be extended; then it cannot be ended for silence.
    let lost = bench.ripe(State::Running, Event::Rescue, false).await;
    let late = Extension { job: lost.id, fence: lost.head.fence, lease: HOUR, progress: None };
    assert!(bench.store.extend(vec![late]).await.remove(0).unwrap().held);
    assert_eq!(bench.apply(lost.step(Event::Rescue)).await.outcome, Outcome::Early);
}

pub(crate) async fn a_release_sent_twice_gives_one_attempt_back(bench: &Bench) {
    let running = bench.calm(State::Running).await;
    let step = running.step(Event::Release);
    let given = bench.go(&running, step.clone()).await;
    assert_eq!((given.head.attempt, given.head.released, given.head.state()), (0, 1, State::Scheduled));
    let repeated = bench.apply(step.clone()).await;
    assert_eq!((repeated.outcome, repeated.head.as_ref()), (Outcome::Already, Some(&given.head)));
    // Still so after the job has moved on, until somebody else starts it.
    let awake = bench.go(&given, given.step(Event::Wake)).await;
    assert_eq!(bench.apply(step.clone()).await.outcome, Outcome::Already);
    let offered = bench.go(&awake, awake.step(Event::Dispatch)).await;
    let started = bench.go(&offered, offered.step(Event::Start)).await;
    assert_eq!((started.head.attempt, started.head.released), (1, 1));
    assert_eq!(bench.apply(step).await.outcome, Outcome::Stale);
    // A release and a result of the same attempt cross: the first one counts.
    let ended = bench.go(&started, started.step(Event::Succeed)).await;
    assert_eq!(bench.apply(started.step(Event::Release)).await.outcome, Outcome::Illegal);
    assert_eq!(bench.record(started.id).await.head, ended.head);
}

pub(crate) async fn a_delete_sent_twice_deletes_once(bench: &Bench) {
    for &state in State::ALL {
        let job = bench.ripe(state, Event::Approve, true).await;
        let before = bench.raw(job.id).await;
        let deleted = bench.store.delete_ended(job.id).await.unwrap();
        if state.is_end() {
            assert_eq!(deleted, Deleted::Deleted, "{state}");
            assert!(bench.record(job.id).await.deleted, "its submit may still be read again");
            assert_eq!(bench.store.delete_ended(job.id).await, Ok(Deleted::Missing));
        } else {
            assert_eq!(deleted, Deleted::Alive, "{state}");
            assert_eq!(bench.raw(job.id).await, before);
        }
    }
    assert_eq!(bench.store.delete_ended(JobId::mint(1)).await, Ok(Deleted::Missing));
}

pub(crate) async fn a_deleted_job_keeps_its_idempotency_key(bench: &Bench) {
    let asked = keyed(9);
    let Submitted::Created(head) = submit(bench, &asked).await else { panic!("it is new") };
    let mut job = crate::bench::Job { id: asked.id, head };
    for event in [Event::Dispatch, Event::Start, Event::Fail] {
        let step = job.step(event).with_error(JobError::new("e", "text", false));
        job = bench.go(&job, step).await;
    }
    for wanted in [Deleted::Deleted, Deleted::Missing] {
        assert_eq!(bench.store.delete_ended(job.id).await, Ok(wanted));
        let record = bench.record(job.id).await;
        assert!(record.deleted);
        assert_eq!((record.payload, record.result, record.error), (None, None, None));
        let ttl: i64 = redis::from_redis_value(bench.command("PTTL", &job_key(job.id), &[]).await).unwrap();
        assert!((23 * 3_600_000..=24 * 3_600_000).contains(&ttl), "{ttl}");
    }
    assert_eq!(submit(bench, &asked).await, Submitted::Exists(job.head.clone()));
    assert_eq!(submit(bench, &NewJob { body_hash: Some([8; 16]), ..asked }).await, Submitted::Mismatch);
    assert_eq!(bench.apply(job.step(Event::Wake)).await.outcome, Outcome::Illegal, "it never moves again");
}

pub(crate) async fn a_retry_mark_sent_twice_is_one_mark(bench: &Bench) {
    let (old, new) = (bench.calm(State::Cancelled).await, JobId::mint(2));
    for _ in 0..2 {
        bench.store.mark_retried(old.id, new).await.unwrap();
        let record = bench.record(old.id).await;
        assert_eq!((record.retried_as, record.head), (Some(new), old.head.clone()));
    }
    let none = JobId::mint(3);
    bench.store.mark_retried(none, new).await.unwrap();
    assert!(bench.raw(none).await.is_empty(), "a mark makes no record");
}

pub(crate) async fn every_submit_keeps_what_was_asked_for(bench: &Bench) {
    let full = JobSpec {
        principal: "key-1".into(),
        priority: Priority::Critical,
        labels: [("a".to_owned(), "ü€😀".to_owned()), ("b/c".to_owned(), String::new())].into(),
        run_at: Some(When::In(HOUR)),
        start_by: Some(When::In(2 * HOUR)),
        deadline: Some(When::At(bench.store.now() + 3 * HOUR)),
        timeout_ms: u32::MAX,
        retry: RetryPolicy {
            max_attempts: u16::MAX,
            backoff: Backoff { initial: HOUR, factor: 1.5, max: 2 * HOUR, jitter: 0.25 },
        },
        on_lost_lease: OnLostLease::Fail,
        durability: Durability::Replicated,
        trace: TraceParent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        retry_of: Some(JobId::mint(4)),
        ..spec(&tenant())
    };
    assert!(full.trace.is_some());
    for (asked, payload) in [(full, &b"\0\xff{\r\n"[..]), (spec(&tenant()), b"")] {
        let job = NewJob { payload: Bytes::from_static(payload), ..new_job(asked.clone()) };
        let Submitted::Created(head) = submit(bench, &job).await else { panic!("it is new") };
        let record = bench.record(job.id).await;
        assert_eq!(record.head, head);
        assert_eq!(record.spec, asked);
        assert_eq!(record.payload.unwrap_or_default(), payload);
        let moment = |when: Option<When>| when.map(|when| when.resolve(head.created_at));
        assert_eq!((head.start_by, head.deadline), (moment(asked.start_by), moment(asked.deadline)));
        assert_eq!(head.max_attempts, asked.retry.max_attempts);
        assert_eq!(head.timeout.map_or(0, |t| t.as_millis()), u128::from(asked.timeout_ms));
        assert_eq!((head.version, head.attempt, head.fence), (1, 0, 0));
        let slim = bench.store.read_one(job.id, Fields::NONE).await.unwrap().unwrap();
        assert_eq!((slim.payload, slim.spec), (None, asked));
    }
}

pub(crate) async fn a_replicated_submit_says_how_many_replicas_have_it(bench: &Bench) {
    let jobs: Vec<NewJob> = (0..30).map(|_| new_job(spec(&tenant()))).collect();
    let replicas = if bench.store.router().is_cluster() { 1 } else { 0 };
    let wait = Duration::from_millis(if replicas == 1 { 5_000 } else { 20 });
    for round in 0..2 {
        for outcome in bench.store.submit_durable(&jobs, Kept::ByReplicas(1), wait).await {
            let (submitted, reached) = outcome.unwrap();
            assert_eq!(matches!(submitted, Submitted::Created(_)), round == 0, "{submitted:?}");
            assert_eq!(reached, replicas);
        }
    }
}

#[tokio::test]
async fn the_first_durable_submit_on_a_server_waits_once() {
    let server = RedisServer::start().await;
    // Time for one wait and not for two: the server does not know the script yet.
    let (budget, wait) = (Duration::from_secs(2), Duration::from_secs(3));
    let store = Store::connect(RedisSettings { budget, ..RedisSettings::new(server.url()) }).await.unwrap();
    let job = new_job(spec(&tenant()));
    let outcome = store.submit_durable(&[job], Kept::ByReplicas(1), wait).await.remove(0);
    assert!(matches!(outcome, Ok((Submitted::Created(_), 0))), "{outcome:?}");
}

/// A step with everything that a settle can carry.
pub(crate) fn rich(step: Step) -> Step {
    let result = StoredResult { json: Bytes::from_static(b"[1]"), truncated: true, size: 7, preview: "ü".into() };
    Step { result: Some(result), note: "done".into(), ..step }
}
