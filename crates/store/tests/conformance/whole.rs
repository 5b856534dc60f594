//! A small job whose node's time is known is written by one command, whole. Nobody can tell it from one that was
//! written by the script, whatever happens to it. On a cluster every job is written by the script.

use std::time::{Duration, Instant};

use bytes::Bytes;
use muster_domain::{Event, Head, JobId, JobSpec, Labels, Outcome, Phase, RetryPolicy, State, Time, job::When};
use muster_store::{Deleted, Extension, Fields, NewJob, Step, Submitted};

use crate::{
    bench::{Bench, HOUR, Job, job_key, new_job, spec, tenant},
    transitions::relative,
};

const LOOK: Duration = Duration::from_secs(30);

/// Prepared and submitted, as a gateway does it, by a machine that is not too busy to do both within a second.
async fn submit(bench: &Bench, job: NewJob) -> Job {
    loop {
        let mut jobs = [NewJob { id: JobId::mint(job.id.shard()), ..job.clone() }];
        bench.store.prepare(&mut jobs, LOOK).await.remove(0).unwrap();
        let prepared = Instant::now();
        match bench.store.submit(&jobs).await.remove(0) {
            Ok(Submitted::Created(_)) if prepared.elapsed() > Duration::from_millis(500) => {}
            Ok(Submitted::Created(head)) => return Job { id: jobs[0].id, head },
            other => panic!("{other:?}"),
        }
    }
}

/// Whether it is one field.
async fn is_whole(bench: &Bench, id: JobId) -> bool {
    bench.raw(id).await.keys().eq([b"j"])
}

fn demanding() -> JobSpec {
    JobSpec {
        labels: Labels::from([("colour".to_owned(), "blue".to_owned())]),
        timeout_ms: 40_000,
        retry: RetryPolicy { max_attempts: 7, ..RetryPolicy::default() },
        ..spec(&tenant())
    }
}

/// As [`relative`], for more of the phases.
fn comparable(head: Head) -> Head {
    let mut head = relative(head);
    if let Phase::AwaitingApproval { expires } = &mut head.phase {
        *expires = Time::NONE;
    }
    head
}

pub(crate) async fn every_event_makes_of_it_what_it_makes_of_one_by_the_script(bench: &Bench) {
    let alone = !bench.store.router().is_cluster();
    for (asked, event) in [spec(&tenant()), demanding()].iter().flat_map(|s| Event::ALL.iter().map(move |e| (s, *e))) {
        let whole = submit(bench, new_job(asked.clone())).await;
        let script = bench.submit(asked.clone()).await;
        assert_eq!(is_whole(bench, whole.id).await, alone);
        assert!(!is_whole(bench, script.id).await);
        let mut outcomes = Vec::new();
        for job in [&whole, &script] {
            let moved = bench.store.apply_one(job.step(event)).await.unwrap();
            let head = moved.head.expect("it is there");
            let record = bench.record(job.id).await;
            assert_eq!(record.head, head, "{event}: what is told is what is stored");
            assert_eq!(record.payload, Some(Bytes::from_static(b"{\"n\":1}")), "{event}");
            assert_eq!(record.history.len(), if moved.outcome == Outcome::Applied { 2 } else { 1 }, "{event}");
            let forward = moved.forward.map(|after| after.as_secs());
            outcomes.push((moved.outcome, forward, comparable(head), record.spec));
        }
        assert_eq!(outcomes[0], outcomes[1], "{event}");
    }
    // A start that is not in good time goes the long way, and leads to the same.
    let leases = [HOUR, Duration::from_secs(20)];
    for (lease, timeout_ms) in leases.into_iter().flat_map(|lease| [0, 20_000, 40_000].map(|limit| (lease, limit))) {
        let asked = JobSpec { timeout_ms, ..spec(&tenant()) };
        let jobs = [submit(bench, new_job(asked.clone())).await, bench.submit(asked).await];
        let mut heads = Vec::new();
        for job in jobs {
            let moved = bench.store.apply_one(Step { lease, ..job.step(Event::Start) }).await.unwrap();
            assert_eq!(moved.outcome, Outcome::Applied);
            let record = bench.record(job.id).await;
            assert_eq!((Some(&record.head), record.history.len()), (moved.head.as_ref(), 2));
            assert_eq!(record.history[1].note, "w-1");
            heads.push((comparable(record.head), moved.forward.map(|after| after.as_secs())));
        }
        assert_eq!(heads[0], heads[1], "a lease of {lease:?}, a limit of {timeout_ms} ms");
    }
    // A stranger's extension is refused, and the whole way is open to it.
    let mut job = submit(bench, new_job(spec(&tenant()))).await;
    let ask = Extension { job: job.id, fence: 7, lease: HOUR, progress: None };
    let refused = bench.store.extend(vec![ask]).await.remove(0).unwrap();
    assert!(!refused.held && refused.head.is_some());
    for event in [Event::Hold, Event::Dispatch, Event::Start, Event::Succeed] {
        job = bench.go(&job, job.step(event)).await;
    }
    assert_eq!(bench.record(job.id).await.history.len(), 5);
}

pub(crate) async fn it_keeps_what_was_asked_for(bench: &Bench) {
    for (asked, payload) in [(demanding(), &b"\0\xff{\r\n"[..]), (spec(&tenant()), b"")] {
        let job = NewJob { payload: Bytes::from_static(payload), ..new_job(asked.clone()) };
        let Job { id, head } = submit(bench, job).await;
        let record = bench.record(id).await;
        assert_eq!((&record.head, &record.spec), (&head, &asked));
        assert_eq!(record.payload.unwrap_or_default(), payload);
        assert_eq!((record.history.len(), record.history[0].at), (1, head.created_at));
        assert_eq!(head.max_attempts, asked.retry.max_attempts);
        assert_eq!(head.timeout.map_or(0, |t| t.as_millis()), u128::from(asked.timeout_ms));
        let slim = bench.store.read_one(id, Fields::NONE).await.unwrap().unwrap();
        assert_eq!((slim.payload, slim.spec), (None, asked));
        assert!(bench.store.now().since(head.created_at) < Duration::from_secs(5));
    }
}

pub(crate) async fn large_ones_late_ones_and_those_with_moments_are_written_by_the_script(bench: &Bench) {
    let alone = !bench.store.router().is_cluster();
    let soon = Some(When::In(HOUR));
    for asked in [
        JobSpec { run_at: soon, ..spec(&tenant()) },
        JobSpec { start_by: soon, ..spec(&tenant()) },
        JobSpec { deadline: soon, ..spec(&tenant()) },
    ] {
        let job = submit(bench, new_job(asked.clone())).await;
        assert!(!is_whole(bench, job.id).await, "{asked:?}");
        assert_eq!(bench.record(job.id).await.head, job.head);
    }
    for (bytes, whole) in [(0, alone), (300, alone), (480, false), (100_000, false)] {
        let job = NewJob { payload: vec![b'7'; bytes].into(), ..new_job(spec(&tenant())) };
        let job = submit(bench, job).await;
        assert_eq!(is_whole(bench, job.id).await, whole, "{bytes} bytes");
        assert_eq!(bench.record(job.id).await.payload.unwrap_or_default().len(), bytes);
    }
    // None of those that come together is taken for as old as one before it, or older, whatever shard it is in.
    for first in [480, 0] {
        let sizes = [first, 0, 300, 0, 0, 0, 0, 0];
        let new = |bytes| NewJob { payload: vec![b'7'; bytes].into(), ..new_job(spec(&tenant())) };
        let mut together = sizes.map(new);
        assert!(bench.store.prepare(&mut together, LOOK).await.iter().all(Result::is_ok));
        assert!(bench.store.submit(&together).await.iter().all(Result::is_ok));
        let mut created = Vec::new();
        for job in &together {
            assert!(first == 0 || !is_whole(bench, job.id).await, "all of them or none");
            created.push(bench.record(job.id).await.head.created_at);
        }
        assert!(!alone || created.is_sorted_by(|one, next| one < next), "{created:?}");
    }
    // One that was held up between its home and its record is as old as its record.
    let mut late = [new_job(spec(&tenant()))];
    bench.store.prepare(&mut late, LOOK).await.remove(0).unwrap();
    let prepared = bench.store.now();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let Ok(Submitted::Created(head)) = bench.store.submit(&late).await.remove(0) else { panic!("it is new") };
    assert!(!is_whole(bench, late[0].id).await);
    assert!(head.created_at.since(prepared) > Duration::from_secs(1));
}

pub(crate) async fn one_that_is_deleted_leaves_a_stub_without_its_payload(bench: &Bench) {
    let mut job = submit(bench, new_job(demanding())).await;
    assert_eq!(bench.store.delete_ended(job.id).await.unwrap(), Deleted::Alive);
    let before = bench.record(job.id).await;
    job = bench.go(&job, job.step(Event::Cancel)).await;
    for outcome in [Deleted::Deleted, Deleted::Missing] {
        assert_eq!(bench.store.delete_ended(job.id).await.unwrap(), outcome);
        let stub = bench.record(job.id).await;
        assert!(stub.deleted && stub.head.state() == State::Cancelled);
        assert_eq!((stub.spec, stub.place, stub.payload), (before.spec.clone(), before.place, None));
    }
}

pub(crate) async fn its_place_is_the_one_that_was_noted_last(bench: &Bench) {
    let job = submit(bench, new_job(spec(&tenant()))).await;
    let first = bench.record(job.id).await.place.expect("it is listed");
    bench.command("HSET", &job_key(job.id), &[b"l", &[0, 0, 0, 1, 0, 0, 0, 9]]).await;
    let noted = bench.record(job.id).await.place.expect("it is listed");
    assert_ne!(noted, first);
    let moved = bench.go(&job, job.step(Event::Hold)).await;
    assert_eq!(bench.record(moved.id).await.place, Some(noted));
}

pub(crate) async fn one_that_is_cut_short_is_unreadable(bench: &Bench) {
    if bench.store.router().is_cluster() {
        return;
    }
    let job = submit(bench, new_job(spec(&tenant()))).await;
    let whole = bench.raw(job.id).await.remove(&b"j"[..]).expect("one field");
    for cut in [0, 8, 14, 22, 23, 24, 30] {
        bench.command("HSET", &job_key(job.id), &[b"j", &whole[..cut]]).await;
        let read = bench.store.read_one(job.id, Fields::NONE).await;
        assert!(read.is_err_and(|fault| fault.is_unreadable()), "{cut} bytes of it");
    }
    bench.command("HSET", &job_key(job.id), &[b"j", &whole]).await;
    assert_eq!(bench.record(job.id).await.head, job.head);
}
