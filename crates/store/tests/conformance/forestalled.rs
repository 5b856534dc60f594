//! Jobs that are cancelled before their submit: created as ended, once, and never by a later submit.

use muster_domain::{Event, JobId, Outcome, RunId, State, job::birth};
use muster_store::{Fields, ListFilter, NewJob, Submitted};

use crate::bench::{Bench, HOUR, new_job, spec, tenant};

async fn prepared(bench: &Bench, mut job: NewJob) -> NewJob {
    for prepared in bench.store.prepare(std::slice::from_mut(&mut job), HOUR).await {
        prepared.unwrap();
    }
    job
}

pub(crate) async fn an_absent_job_is_created_by_the_events_of_the_table_and_by_no_other(bench: &Bench) {
    for &event in Event::ALL {
        let job = prepared(bench, new_job(spec(&tenant()))).await;
        let moved = bench.store.forestall(&job, event, "why").await.unwrap();
        match birth(event) {
            None => assert_eq!((moved.outcome, moved.head), (Outcome::Missing, None), "{event}"),
            Some(state) => {
                let head = moved.head.expect("a head");
                assert_eq!((moved.outcome, head.state(), head.version), (Outcome::Applied, state, 2), "{event}");
            }
        }
    }
}

pub(crate) async fn a_job_that_was_cancelled_before_its_submit_is_like_one_cancelled_right_after_it(bench: &Bench) {
    let tenant = tenant();
    let mut spec = spec(&tenant);
    spec.run = Some(RunId::mint(0));
    let body_hash = Some([3; 16]);
    let job = prepared(bench, NewJob { body_hash, ..new_job(spec.clone()) }).await;
    let first = bench.store.forestall(&job, Event::Cancel, "not wanted").await.unwrap();
    let again = bench.store.forestall(&job, Event::Cancel, "not wanted").await.unwrap();
    assert_eq!((first.outcome, again.outcome, &first.head), (Outcome::Applied, Outcome::Already, &again.head));

    let other = bench.submit(spec).await;
    let cancelled = bench.go(&other, other.step(Event::Cancel)).await;
    let (record, like) = (bench.record(job.id).await, bench.record(cancelled.id).await);
    let seen = |record: &muster_store::Record| {
        let head = &record.head;
        let events: Vec<_> = record.history.iter().map(|line| (line.event, line.to)).collect();
        (head.state(), head.version, head.attempt, head.last_event, head.fence, events, record.spec.run)
    };
    assert_eq!(seen(&record), seen(&like));
    assert_eq!(record.history.last().unwrap().note, "not wanted");
    assert_eq!((record.payload.is_none(), record.head.finished_at(), record.place), (true, Some(first.now), job.place));

    // It is listed, by its run too, and its submit finds it.
    let filter = ListFilter { run: record.spec.run, states: vec![State::Cancelled], ..ListFilter::default() };
    let page = bench.store.list(&tenant, None, 10, &filter, Fields::NONE).await.unwrap();
    assert_eq!(page.items.iter().map(|job| job.id).collect::<Vec<_>>(), [job.id]);
    let submitted = bench.store.submit(std::slice::from_ref(&job)).await.remove(0).unwrap();
    assert!(matches!(submitted, Submitted::Exists(head) if head.state() == State::Cancelled));
    let another = NewJob { body_hash: Some([4; 16]), ..job.clone() };
    assert_eq!(bench.store.submit(&[another]).await.remove(0), Ok(Submitted::Mismatch));
}

pub(crate) async fn a_job_that_exists_is_not_created_by_a_cancel(bench: &Bench) {
    for state in [State::Pending, State::Running, State::Succeeded] {
        let job = bench.calm(state).await;
        let new = NewJob { id: job.id, ..prepared(bench, new_job(spec(&tenant()))).await };
        let moved = bench.store.forestall(&new, Event::Cancel, "").await.unwrap();
        assert_eq!((moved.outcome, moved.head.as_ref()), (Outcome::Already, Some(&job.head)), "{state}");
    }
    // One that is stored as a single field too.
    let job = prepared(bench, new_job(spec(&tenant()))).await;
    bench.store.submit(std::slice::from_ref(&job)).await.remove(0).unwrap();
    let moved = bench.store.forestall(&job, Event::Cancel, "").await.unwrap();
    assert_eq!((moved.outcome, moved.head.unwrap().state()), (Outcome::Already, State::Pending));
    assert_eq!(bench.store.home_of(JobId::mint(7)).await, Ok(None));
}
