//! Jobs of workflow runs: the run hears of each end, whatever ends the job, and a cancel may come before the submit.

use std::{collections::BTreeMap, time::Duration};

use muster_bus::{Bus, Consumer, ConsumerSpec};
use muster_domain::{JobId, JobSpec, RunId, State, Tenant};
use muster_flow::{Cancelled, SubmitRefused};
use muster_store::{ListFilter, NewJob};
use muster_testkit::until;
use muster_wire::{
    Body,
    v1::{JobDone, StartAsk},
};

use crate::{
    stack::{SOON, Stack, job, new_job},
    worker::Worker,
};

fn of(run: RunId) -> JobSpec {
    JobSpec { run: Some(run), ..job("t") }
}

/// The owner of one shard of runs.
struct Owner {
    consumer: Consumer,
    heard: BTreeMap<JobId, JobDone>,
}

impl Owner {
    async fn of(bus: &Bus, shard: u8) -> Owner {
        let consumer = bus.consumer(ConsumerSpec::job_done(shard)).await.unwrap();
        Owner { consumer, heard: BTreeMap::new() }
    }

    async fn listen(&mut self, patience: Duration) {
        for delivery in self.consumer.fetch(64, patience).await.unwrap_or_default() {
            let Body::JobDone(group) = &delivery.body else { panic!("another message") };
            for item in &group.items {
                self.heard.insert(JobId::from_slice(&item.job_id).unwrap(), item.clone());
            }
            delivery.ack().await;
        }
    }

    /// Waits until this end was told.
    async fn hears(&mut self, job: JobId, run: RunId, state: State) {
        let until = tokio::time::Instant::now() + SOON;
        while !self.heard.contains_key(&job) {
            assert!(tokio::time::Instant::now() < until, "the end of {job} as {state}");
            self.listen(Duration::from_millis(200)).await;
        }
        let told = &self.heard[&job];
        assert_eq!(RunId::from_slice(&told.run_id), Some(run));
        assert_eq!((told.state, told.at > 0), (state.code().into(), true), "{job}");
    }
}

#[tokio::test]
async fn a_run_hears_of_the_end_of_its_jobs_whatever_ends_them() {
    let stack = Stack::start().await;
    let (run, other) = (RunId::mint(11), RunId::mint(12));
    let mut owner = Owner::of(stack.bus(), 11).await;
    let worker = Worker::on(&stack, "w1", "t").await;

    let well = stack.submit(of(run)).await;
    let attempt = worker.start_next(SOON).await;
    assert_eq!(attempt.job, well);
    worker.succeed(&attempt, "1").await;
    owner.hears(well, run, State::Succeeded).await;
    stack.ends(well, State::Succeeded, SOON).await;

    let badly = stack.submit(of(run)).await;
    let attempt = worker.start_next(SOON).await;
    worker.fail(&attempt, false).await;
    owner.hears(badly, run, State::Failed).await;

    let unread = stack.submit(of(run)).await;
    let offered = worker.offered(SOON).await;
    let ask = StartAsk {
        job_id: offered.offer.job_id.clone(),
        version: offered.offer.version,
        undecodable: true,
        tenant: "default".into(),
        topic: "t".into(),
        ..Default::default()
    };
    worker.ask_raw(ask).await;
    offered.delivery.ack().await;
    owner.hears(unread, run, State::Failed).await;

    let cancelled = stack.submit(of(run)).await;
    stack.flow.cancel(&Tenant::default(), cancelled, "no longer wanted").await.unwrap();
    owner.hears(cancelled, run, State::Cancelled).await;

    let late =
        stack.submit(JobSpec { deadline: Some(muster_domain::job::When::In(Duration::from_secs(1))), ..of(run) });
    let late = late.await;
    owner.hears(late, run, State::Expired).await;

    // A job without a run, and one of a run in another shard, are told to nobody here.
    let alone = stack.submit(job("t")).await;
    stack.flow.cancel(&Tenant::default(), alone, "").await.unwrap();
    let elsewhere = stack.submit(of(other)).await;
    stack.flow.cancel(&Tenant::default(), elsewhere, "").await.unwrap();
    Owner::of(stack.bus(), 12).await.hears(elsewhere, other, State::Cancelled).await;
    owner.listen(Duration::from_millis(300)).await;
    assert_eq!(owner.heard.len(), 5, "{:?}", owner.heard);

    let filter = ListFilter { run: Some(run), ..ListFilter::default() };
    let page = stack.store().list(&Tenant::default(), None, 100, &filter, muster_store::Fields::NONE).await.unwrap();
    let listed: Vec<JobId> = page.items.iter().map(|record| record.id).collect();
    assert_eq!(listed, [late, cancelled, unread, badly, well]);
}

#[tokio::test]
async fn a_run_is_looked_at_if_the_bus_does_not_take_the_end_of_its_job() {
    let stack = Stack::without_scheduler().await;
    let run = RunId::mint(3);
    let id = stack.submit(of(run)).await;
    stack.store().set_homes(&[run], Duration::from_secs(3600)).await.unwrap();
    stack.nats.pause();
    stack.flow.cancel(&Tenant::default(), id, "").await.unwrap();
    let home = stack.store().home_of(run).await.unwrap().expect("its home");
    assert!(home.reached(stack.store().ping().await.unwrap()), "it is due");
    assert_eq!(stack.store().home_of(id).await, Ok(None), "after that the job's home may leave");
    stack.nats.resume();
}

fn named(run: RunId) -> NewJob {
    let id = JobId::derive("step", &Tenant::default(), &format!("{run}/a/1"));
    NewJob { id, body_hash: Some([7; 16]), ..new_job(of(run)) }
}

#[tokio::test]
async fn a_cancel_that_comes_before_the_submit_ends_the_job() {
    let stack = Stack::start().await;
    let run = RunId::mint(5);
    let mut owner = Owner::of(stack.bus(), 5).await;
    let new = named(run);
    let done = stack.flow.cancel_or_create(new.clone(), "the run has ended").await.unwrap();
    assert!(matches!(done, Cancelled::Now(_)), "{done:?}");
    owner.hears(new.id, run, State::Cancelled).await;
    let record = stack.ends(new.id, State::Cancelled, SOON).await;
    assert_eq!((record.head.attempt, record.spec.run), (0, Some(run)));
    assert!(record.history.last().unwrap().note.contains("the run has ended"));
    let again = stack.flow.cancel_or_create(new.clone(), "again").await.unwrap();
    assert!(matches!(again, Cancelled::Before(_)), "{again:?}");

    // The submit finds it ended, whatever its body.
    let answer = stack.flow.submit(&mut [new.clone()]).await.remove(0).unwrap();
    assert_eq!((answer.replayed, answer.head.state()), (true, State::Cancelled));
    let other = NewJob { body_hash: Some([8; 16]), ..new.clone() };
    assert!(matches!(stack.flow.submit(&mut [other]).await.remove(0), Err(SubmitRefused::Mismatch)));
    stack.ends(new.id, State::Cancelled, SOON).await;

    // A job that exists is cancelled as any other.
    let run = RunId::mint(5);
    let live = named(run);
    stack.submit_new(vec![live.clone()]).await;
    let done = stack.flow.cancel_or_create(live.clone(), "").await.unwrap();
    assert!(matches!(done, Cancelled::Now(_)), "{done:?}");
    owner.hears(live.id, run, State::Cancelled).await;
}

#[tokio::test]
async fn a_cancel_that_came_before_the_submit_survives_a_redis_that_forgot_it() {
    let stack = Stack::without_scheduler().await;
    let new = named(RunId::mint(9));
    stack.flow.cancel_or_create(new.clone(), "").await.unwrap();
    // A scheduler that knows of no complete pass reads all that the bus kept.
    assert_eq!(stack.redis.cli(&["DEL", &format!("muster:job:{}", new.id)]).await, "1");
    stack.scheduler_with("s1", &[("--loop-reread-interval", "1s")]).await;
    until(4 * SOON, "the job to be cancelled again", async || {
        let record = stack.store().read_one(new.id, muster_store::Fields::NONE).await.unwrap()?;
        (record.head.state() == State::Cancelled).then_some(())
    })
    .await;
    let answer = stack.flow.submit(&mut [new.clone()]).await.remove(0).unwrap();
    assert_eq!(answer.head.state(), State::Cancelled);
}
