//! Many want one job: exactly one gets it, and every attempt has a fence of its own that grows.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use muster_domain::{Event, Outcome, StartId, State, WorkerId};
use muster_store::{Moved, Step, Store};
use muster_testkit::RedisServer;

use crate::bench::{Bench, Course, HOUR, Job, tenant};

const CLAIMANTS: usize = 64;

/// Sends all steps at once, spread over four replicas.
async fn at_once(bench: &Bench, steps: Vec<Step>) -> Vec<Moved> {
    let replicas: Vec<Store> = join_all((0..4).map(|_| bench.replica())).await;
    let sends = steps.into_iter().enumerate().map(|(n, step)| {
        let store = replicas[n % replicas.len()].clone();
        async move { store.apply_one(step).await.expect("redis answers") }
    });
    join_all(sends).await
}

fn count(moves: &[Moved], outcome: Outcome) -> usize {
    moves.iter().filter(|moved| moved.outcome == outcome).count()
}

pub(crate) async fn of_64_dispatchers_one_dispatches_and_all_know_the_offer(bench: &Bench) {
    let job = bench.calm(State::Pending).await;
    let moves = at_once(bench, vec![job.step(Event::Dispatch); CLAIMANTS]).await;
    assert_eq!((count(&moves, Outcome::Applied), count(&moves, Outcome::Already)), (1, CLAIMANTS - 1));
    let offers: HashSet<_> = moves.iter().map(|moved| moved.head.as_ref().map(|h| (h.version, h.since))).collect();
    assert_eq!(offers.len(), 1, "one offer: {offers:?}");
    let record = bench.record(job.id).await;
    assert_eq!((record.head.version, record.head.state()), (2, State::Dispatched));
    assert_eq!(record.history.len(), 2);
}

pub(crate) async fn of_64_workers_one_starts_and_hears_go_again(bench: &Bench) {
    let offer = bench.calm(State::Dispatched).await;
    let ask = |n: usize| {
        let worker = Some(WorkerId::parse(&format!("worker-{n}")).unwrap());
        Step { worker, start_id: StartId::random(), lease: HOUR, ..offer.step(Event::Start) }
    };
    let asks: Vec<Step> = (0..CLAIMANTS).map(ask).collect();
    let moves = at_once(bench, asks.clone()).await;
    assert_eq!((count(&moves, Outcome::Applied), count(&moves, Outcome::Stale)), (1, CLAIMANTS - 1));
    let winner = moves.iter().position(|moved| moved.outcome == Outcome::Applied).unwrap();
    let won = moves[winner].head.clone().unwrap();
    assert_eq!((won.attempt, won.state()), (1, State::Running));

    // All ask once more, as after lost replies: only the winner hears go, and it is the same go.
    let again = at_once(bench, asks.clone()).await;
    assert_eq!((count(&again, Outcome::Already), count(&again, Outcome::Stale)), (1, CLAIMANTS - 1));
    assert_eq!((again[winner].outcome, again[winner].head.as_ref()), (Outcome::Already, Some(&won)));
    let record = bench.record(offer.id).await;
    assert_eq!(record.head, won);
    let lease = record.head.lease().unwrap();
    assert_eq!((Some(&lease.worker), lease.start_id), (asks[winner].worker.as_ref(), asks[winner].start_id));
    assert_eq!(record.history.iter().filter(|line| line.event == Some(Event::Start)).count(), 1);
    let running = Job { id: offer.id, head: won };
    bench.go(&running, running.step(Event::Succeed)).await;
    let late = at_once(bench, asks).await;
    assert_eq!(count(&late, Outcome::Stale), CLAIMANTS, "not even its own start holds after the end");
}

/// Rounds of offer, start, lost lease, wake. Their versions are known beforehand and one node runs
/// a pipeline in order, so many go at once.
async fn rounds(bench: &Bench, mut job: Job, rounds: usize, fences: &mut Vec<u64>) -> Job {
    const AT_ONCE: usize = 100;
    const ROUND: [Event; 4] = [Event::Dispatch, Event::Start, Event::Rescue, Event::Wake];
    for done in (0..rounds).step_by(AT_ONCE) {
        let events = ROUND.iter().copied().cycle().take(ROUND.len() * AT_ONCE.min(rounds - done));
        let steps = events.zip(u64::from(job.head.version)..).map(|(event, seen)| {
            let lease = Duration::from_micros(1);
            Step { seen, lease, ..job.step(event) }
        });
        for moved in bench.store.apply(steps.collect()).await {
            let moved = moved.expect("redis answers");
            job = crate::bench::moved_on(&job, moved.head.as_ref().and_then(|h| h.last_event).unwrap(), &moved);
            if job.head.last_event == Some(Event::Start) {
                fences.push(job.head.fence);
            }
        }
    }
    job
}

fn strictly_grow(fences: &[u64]) -> bool {
    fences.windows(2).all(|pair| pair[0] < pair[1])
}

pub(crate) async fn fences_grow_over_ten_thousand_rescues(bench: &Bench) {
    const ROUNDS: usize = 10_000;
    let mut course = Course::calm(false);
    course.spec.retry.max_attempts = u16::MAX;
    let job = bench.submit(course.spec).await;
    let mut fences = Vec::new();
    let job = rounds(bench, job, ROUNDS, &mut fences).await;
    assert_eq!(fences.len(), ROUNDS);
    assert!(strictly_grow(&fences));
    assert_eq!((usize::from(job.head.attempt), usize::from(job.head.lost)), (ROUNDS, ROUNDS));
    assert_eq!(job.head.version, 1 + 4 * u32::try_from(ROUNDS).unwrap());
    let record = bench.record(job.id).await;
    assert_eq!((record.head, record.history.len()), (job.head, 64));
}

pub(crate) async fn a_fence_grows_even_when_the_clock_was_set_back(bench: &Bench) {
    let mut fences = Vec::new();
    let job = bench.submit(Course::calm(false).spec).await;
    let mut job = rounds(bench, job, 1, &mut fences).await;
    // As if an earlier start had happened on a node whose clock is a day ahead.
    let ahead = job.head.fence + 86_400_000_000;
    bench.patch(job.id, 18..26, ahead).await;
    job.head.fence = ahead;
    fences.push(ahead);
    rounds(bench, job, 3, &mut fences).await;
    assert!(strictly_grow(&fences), "{fences:?}");
    assert_eq!(fences[2..], [ahead + 1, ahead + 2, ahead + 3]);
}

#[tokio::test]
async fn fences_grow_over_ten_thousand_rescues_across_restarts_of_redis() {
    let redis = RedisServer::start().await;
    let bench = Bench::at(redis.url()).await;
    let mut spec = crate::bench::spec(&tenant());
    spec.retry.max_attempts = u16::MAX;
    let mut job = bench.submit(spec).await;
    let mut fences = Vec::new();
    for _ in 0..4 {
        job = rounds(&bench, job, 2_500, &mut fences).await;
        // A stop writes the file out, so that nothing is lost and only the restart is tested.
        redis.stop();
        redis.restart().await;
    }
    let job = rounds(&bench, job, 1, &mut fences).await;
    assert_eq!((fences.len(), usize::from(job.head.attempt)), (10_001, 10_001));
    assert!(strictly_grow(&fences));
}
