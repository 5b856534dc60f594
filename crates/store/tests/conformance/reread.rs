//! Jobs that Redis forgot: made again under their own id, unless something of them is left.

use std::time::Duration;

use muster_domain::{Event, JobId, JobSpec, State, Time, job::When};
use muster_store::{Deleted, Fields, ListFilter, NewJob, Submitted};

use crate::bench::{Bench, HOUR, Job, job_key, new_job, spec, tenant};

const MINUTE: Duration = Duration::from_secs(60);

async fn recreate(bench: &Bench, job: NewJob, accepted: Time) -> (NewJob, Submitted) {
    let mut jobs = [(job, accepted)];
    let made = bench.store.recreate(&mut jobs, HOUR).await.remove(0).expect("redis answers");
    let [(job, _)] = jobs;
    (job, made)
}

async fn gone(bench: &Bench, id: JobId) -> bool {
    bench.store.are_gone(&[id]).await.remove(0).expect("redis answers")
}

pub(crate) async fn a_forgotten_job_is_made_again_as_old_as_it_was(bench: &Bench) {
    let tenant = tenant();
    let asked = JobSpec {
        run_at: Some(When::In(HOUR)),
        start_by: Some(When::At(bench.store.now() + 3 * HOUR)),
        deadline: Some(When::In(2 * HOUR)),
        ..spec(&tenant)
    };
    let accepted = bench.store.ping().await.unwrap().before(5 * MINUTE);
    let asked = NewJob { body_hash: Some([7; 16]), ..new_job(asked) };
    assert!(gone(bench, asked.id).await);
    let (job, made) = recreate(bench, asked, accepted).await;
    let Submitted::Created(head) = made else { panic!("{made:?}") };
    assert!(!gone(bench, job.id).await);
    assert_eq!((head.state(), head.version, head.attempt), (State::Pending, 1, 0));
    assert_eq!(head.created_at, accepted);
    assert!(head.since > accepted, "pending from now on");
    assert_eq!(head.deadline, Some(accepted + 2 * HOUR), "not two hours from now");
    assert_eq!(When::signed(job.spec.start_by), i64::try_from(head.start_by.unwrap().0).unwrap());
    let record = bench.record(job.id).await;
    assert_eq!(
        (record.spec, record.payload, record.body_hash),
        (job.spec.clone(), Some(job.payload.clone()), job.body_hash)
    );
    assert_eq!((record.place, record.history.len()), (job.place, 2));
    assert_eq!(record.history[0].at, accepted);
    assert!(record.history[1].note.contains("forgotten"), "{:?}", record.history);
    assert!(bench.store.home_of(job.id).await.unwrap().is_some());
    // Its key is its own again, and it goes its way as any other.
    let same = bench.store.submit(std::slice::from_ref(&job)).await.remove(0).unwrap();
    assert_eq!(same, Submitted::Exists(head.clone()));
    let moved = bench.go(&Job { id: job.id, head }, Job { id: job.id, head: record.head }.step(Event::Schedule)).await;
    assert_eq!(muster_domain::job::next_look(&moved.head, accepted), accepted + HOUR);
    // Listed among those of its time.
    let filter = ListFilter { created_before: Some(accepted + MINUTE), ..ListFilter::default() };
    let page = bench.store.list(&tenant, None, 10, &filter, Fields::NONE).await.unwrap();
    assert_eq!(page.items.iter().map(|record| record.id).collect::<Vec<_>>(), [job.id]);
}

pub(crate) async fn what_is_there_or_was_deleted_is_not_made_again(bench: &Bench) {
    for state in [State::Running, State::Succeeded, State::Cancelled] {
        let job = bench.calm(state).await;
        assert!(!gone(bench, job.id).await, "{state}");
        let asked = NewJob { id: job.id, ..new_job(bench.record(job.id).await.spec) };
        let before = bench.raw(job.id).await;
        assert_eq!(recreate(bench, asked.clone(), job.head.created_at).await.1, Submitted::Exists(job.head.clone()));
        assert_eq!(bench.raw(job.id).await, before, "{state}");
        if !state.is_end() {
            continue;
        }
        assert_eq!(bench.store.delete_ended(job.id).await, Ok(Deleted::Deleted));
        assert!(!gone(bench, job.id).await, "its stub is there");
        recreate(bench, asked, job.head.created_at).await;
        let record = bench.record(job.id).await;
        assert_eq!((record.deleted, record.head.state(), record.payload), (true, state, None));
    }
}

pub(crate) async fn a_stub_stays_as_long_as_a_submit_may_be_read_again(bench: &Bench) {
    let ended_ago = async |ago: Duration| {
        let job = bench.calm(State::Succeeded).await;
        // When it entered its state, as the packed head has it.
        bench.patch(job.id, 26..34, bench.store.ping().await.unwrap().before(ago).0).await;
        assert_eq!(bench.store.delete_ended(job.id).await, Ok(Deleted::Deleted));
        let ttl = bench.command("PTTL", &job_key(job.id), &[]).await;
        u64::try_from(redis::from_redis_value::<i64>(ttl).unwrap()).ok().map(Duration::from_millis)
    };
    // Twice the ten minutes for which the bus keeps submits, from its end on.
    for (ago, left) in [(0, 20), (10, 10)] {
        let stays = ended_ago(ago * MINUTE).await.expect("a stub");
        assert!(stays > (left - 1) * MINUTE && stays <= left * MINUTE, "{stays:?}");
    }
    assert_eq!(ended_ago(21 * MINUTE).await, None, "of one that ended long ago nothing is left");
}
