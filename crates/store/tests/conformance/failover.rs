//! `kill -9` of a primary under load, on a cluster of its own: what replicas acknowledged is still
//! there, nothing was applied twice, and the other shards never noticed.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use muster_domain::{Event, Head, JobId, Outcome, State, job::transition};
use muster_store::{Fields, Kept, NewJob, Record, RedisSettings, Store, StoreError, Submitted, router::slot_of};
use muster_testkit::{RedisCluster, until};
use tokio::task::JoinSet;

use crate::bench::{Bench, Job, job_key, new_job, spec, tenant};

const TASKS_PER_SHARD: usize = 10;
/// How long nobody takes over: far longer than a busy machine holds anybody up, so that whoever waited for the
/// dead node is told from that.
const OUTAGE: Duration = Duration::from_secs(10);
const LONGEST_GAP: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

/// What was promised to the submitter of one job.
#[derive(Clone)]
struct Promise {
    job: JobId,
    /// As answered; only if a replica had it.
    created: Option<Head>,
}

/// What one task of the load was promised, and how long it went without any answer.
#[derive(Default)]
struct Load {
    promises: Mutex<Vec<Promise>>,
    progress: Mutex<(Option<Instant>, Duration)>,
}

impl Load {
    /// Takes note of an answer; none while Redis is away.
    fn heard<T>(&self, outcome: Result<T, StoreError>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.answered();
                Some(value)
            }
            Err(fault) => {
                assert!(fault.is_retryable(), "{fault}");
                None
            }
        }
    }

    fn answered(&self) {
        let mut progress = self.progress.lock().unwrap();
        let now = Instant::now();
        if let Some(last) = progress.0.replace(now) {
            progress.1 = progress.1.max(now - last);
        }
    }
}

/// The slots of the first three nodes, which are the primaries.
pub(crate) async fn slots(cluster: &RedisCluster) -> Vec<RangeInclusive<u16>> {
    let mut ranges = Vec::new();
    for node in 0..3 {
        let nodes = cluster.cli(node, &["CLUSTER", "NODES"]).await;
        let own = nodes.lines().find(|line| line.contains("myself")).expect("a node knows itself");
        let (first, last) = own.split_ascii_whitespace().last().and_then(|word| word.split_once('-')).expect("a range");
        ranges.push(first.parse().unwrap()..=last.parse().unwrap());
    }
    ranges
}

fn job_in(slots: &RangeInclusive<u16>) -> NewJob {
    loop {
        let job = new_job(spec(&tenant()));
        if slots.contains(&slot_of(job_key(job.id).as_bytes())) {
            return job;
        }
    }
}

/// Submits a job and takes it to its end, whatever happens on the way.
async fn live(store: &Store, load: &Load, asked: NewJob) {
    let id = asked.id;
    let wait = Duration::from_millis(200);
    let (submitted, replicas) = loop {
        let outcome = store.submit_durable(std::slice::from_ref(&asked), Kept::ByReplicas(1), wait).await.remove(0);
        if let Some(answer) = load.heard(outcome) {
            break answer;
        }
    };
    let (Submitted::Created(head) | Submitted::Exists(head)) = submitted else { panic!("nobody else has this id") };
    let created = (replicas >= 1).then(|| head.clone());
    load.promises.lock().unwrap().push(Promise { job: id, created: created.clone() });
    let mut job = Job { id, head };
    while !job.head.state().is_end() {
        let event = match job.head.state() {
            State::Pending => Event::Dispatch,
            State::Dispatched => Event::Start,
            _ => Event::Succeed,
        };
        let step = job.step(event);
        let before = job.head.clone();
        let moved = loop {
            if let Some(moved) = load.heard(store.apply_one(step.clone()).await) {
                break moved;
            }
        };
        match (moved.outcome, moved.head) {
            (Outcome::Applied | Outcome::Already, Some(head)) => {
                assert_eq!(Some(head.state()), transition(before.state(), event));
                assert_eq!(head.version, before.version + 1);
                job.head = head;
            }
            // A failover has lost what no replica had: the record stands where it stood before.
            (Outcome::Stale | Outcome::Illegal, Some(head)) => {
                assert!(head.version < before.version, "{event}: from {before:?} to {head:?}");
                job.head = head;
            }
            (Outcome::Missing, None) => {
                assert!(created.is_none(), "{id} was acknowledged by a replica and is gone");
                return;
            }
            other => panic!("{event}: {other:?}"),
        }
    }
}

/// One life, in order, each step once.
fn is_one_life(record: &Record) {
    let events: Vec<_> = record.history.iter().map(|line| line.event).collect();
    assert_eq!(events, [None, Some(Event::Dispatch), Some(Event::Start), Some(Event::Succeed)], "{}", record.id);
    assert_eq!((record.head.state(), record.head.version, record.head.attempt), (State::Succeeded, 4, 1));
}

#[tokio::test]
async fn a_killed_primary_loses_nothing_that_a_replica_had_and_stalls_no_other_shard() {
    let cluster = RedisCluster::start().await;
    let bench = Bench::at(cluster.url()).await;
    let store = Store::connect(RedisSettings::new(cluster.url())).await.unwrap();
    let slots = slots(&cluster).await;
    let stop = Arc::new(AtomicBool::new(false));
    // One list of tasks per shard.
    let loads: Vec<Vec<Arc<Load>>> = (0..3).map(|_| (0..TASKS_PER_SHARD).map(|_| Arc::default()).collect()).collect();
    let mut tasks = JoinSet::new();
    for (slots, loads) in slots.iter().zip(&loads) {
        for load in loads {
            let (store, slots, load, stop) = (store.clone(), slots.clone(), Arc::clone(load), Arc::clone(&stop));
            tasks.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    live(&store, &load, job_in(&slots)).await;
                }
            });
        }
    }
    let count = |shard: usize| loads[shard].iter().map(|load| load.promises.lock().unwrap().len()).sum::<usize>();
    let warm = async || (0..3).all(|shard| count(shard) > 200).then_some(());
    until(PATIENCE, "a warm load", warm).await;
    cluster.set_node_timeout(OUTAGE).await;
    cluster.kill9(0);
    let before = count(0);
    let recovered = async || (count(0) > before + 100).then_some(());
    until(PATIENCE, "the killed shard's recovery", recovered).await;
    stop.store(true, Ordering::SeqCst);
    let end = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, end).await.expect("no task is wedged");

    for (shard, loads) in loads.iter().enumerate() {
        let promises: Vec<Promise> = loads.iter().flat_map(|load| load.promises.lock().unwrap().clone()).collect();
        let acknowledged = are_kept(&bench, shard == 0, &promises).await;
        assert!(acknowledged > 100, "shard {shard}: {acknowledged} of {}", promises.len());
        let gap = loads.iter().map(|load| load.progress.lock().unwrap().1).max().unwrap();
        assert!(shard == 0 || gap < LONGEST_GAP, "a task on shard {shard}, which is healthy, waited {gap:?}");
        let jobs = promises.len();
        eprintln!("shard {shard}: {jobs} jobs, {acknowledged} acknowledged by a replica, longest gap {gap:?}");
    }
}

/// Holds what was promised against what is there; returns how many replicas had acknowledged.
async fn are_kept(bench: &Bench, killed: bool, promises: &[Promise]) -> usize {
    let mut acknowledged = 0;
    for chunk in promises.chunks(500) {
        let ids: Vec<JobId> = chunk.iter().map(|promise| promise.job).collect();
        for (promise, record) in chunk.iter().zip(bench.store.read(&ids, Fields::NONE).await) {
            let record = record.unwrap();
            if let Some(created) = &promise.created {
                acknowledged += 1;
                let record = record.as_ref().unwrap_or_else(|| panic!("{} is lost", promise.job));
                assert_eq!(record.head.created_at, created.created_at, "not a second submit of the same");
            }
            // A job that ended just before the kill may have been set back, but never ran two lives.
            match record {
                Some(record) if !killed || record.head.state().is_end() => is_one_life(&record),
                Some(record) => {
                    let lines = record.history.len();
                    assert_eq!(usize::try_from(record.head.version).unwrap(), lines, "{}", record.id);
                    assert!(record.head.attempt <= 1 && lines < 4, "{:?}", record.history);
                }
                None => assert!(killed && promise.created.is_none(), "{} is lost", promise.job),
            }
        }
    }
    acknowledged
}
