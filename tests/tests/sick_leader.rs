//! What leads falls sick: the scheduler that leads every loop, and the NATS node that leads the streams.
//!
//! Wakes and second attempts may wait until the leader's lock has run out, and 2 s more. Everything else is as little
//! affected as when another replica leads (`sick`).

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use muster_store::LeaderLock;
use muster_testkit::until;
use muster_tests::{
    Options, Stack,
    sick::{
        self, Fault, Sick,
        acts::{Act, Scene, TURNS},
        times::{AFTER, BEFORE, DURING, DURING_LED, Span, TRIES, fall_and_recover, slowest, too_long},
    },
};
use nix::sys::signal::Signal;
use tokio::time::{sleep, sleep_until};

const SOON: Duration = Duration::from_secs(60);
/// How much longer a job may take while the node that leads the streams is frozen, or after it, than when it is killed:
/// the servers elect a leader once more when the node comes back. An election takes them 4 to 9 s, so two may take 14 s
/// longer than one.
const ANOTHER_ELECTION: Duration = Duration::from_secs(16);
/// How long it may take at all.
const ELECTIONS: Duration = Duration::from_secs(30);

/// Has the sick scheduler lead all loops of the schedulers: the other one stops in order, and comes back.
async fn leads(stack: &Stack) {
    let old = stack.signal("scheduler-1", Signal::SIGTERM);
    stack.replaced("scheduler-1", old).await;
    let gateway = stack.gateway(1);
    until(SOON, "the sick scheduler to lead, and the other to be ready", async || {
        let locks = gateway.get("/locks").await.body;
        let locks = locks["items"].as_array().cloned().unwrap_or_default();
        let holds = |lock: &LeaderLock| locks.iter().any(|l| l["key"] == lock.as_str() && l["holder"] == sick::NAME);
        let of_others = [LeaderLock::Retention, LeaderLock::RunReread];
        let of_schedulers = LeaderLock::ALL.iter().filter(|lock| !of_others.contains(lock));
        (of_schedulers.clone().all(holds) && stack.ready("scheduler-1").await).then_some(())
    })
    .await;
}

/// Has the leader fall sick, and judges how long acts took: in one of the tries none may be late.
async fn nothing_waits_longer_than_the_lock(fault: Fault) {
    let stack = Stack::start().await;
    let sick = Sick::beside(&stack).await;
    let scene = Scene::on(&stack).await;
    let mut late = Vec::new();
    for _ in 0..TRIES {
        leads(&stack).await;
        let (all, spans) = scene.timed(&TURNS, fall_and_recover(&sick, &[fault], DURING_LED)).await;
        scene.nothing_ran_twice();
        late = too_long(&all, &spans, true);
        if late.is_empty() {
            return;
        }
    }
    panic!("these took too long each time: {late:#?}");
}

#[tokio::test]
async fn wakes_and_retries_wait_for_the_lock_of_a_frozen_leader_and_nothing_else_waits() {
    nothing_waits_longer_than_the_lock(Fault::Frozen).await;
}

#[tokio::test]
async fn wakes_and_retries_wait_for_the_lock_of_a_leader_that_redis_does_not_answer_and_nothing_else_waits() {
    nothing_waits_longer_than_the_lock(Fault::RedisSilent).await;
}

#[tokio::test]
async fn wakes_and_retries_wait_for_the_lock_of_a_leader_that_nats_does_not_answer_and_nothing_else_waits() {
    nothing_waits_longer_than_the_lock(Fault::NatsSilent).await;
}

#[tokio::test]
async fn a_nats_node_that_leads_the_streams_costs_seconds_and_no_job_frozen_or_killed() {
    let stack = Stack::with(Options { replicas: 2, cluster: true, ..Options::default() }).await;
    let scene = Scene::on(&stack).await;
    let servers: Vec<String> = stack.state().nats_url.split(',').map(str::to_owned).collect();
    let streams = async_nats::jetstream::new(async_nats::connect(servers).await.expect("NATS"));
    let leader = async || {
        until(SOON, "a leader of the stream", async || {
            streams.get_stream("MUSTER_SYS").await.ok()?.cached_info().cluster.as_ref()?.leader.clone()
        })
        .await
    };
    let began = Cell::new(Instant::now());
    let begins = || began.set(Instant::now());
    let lasts = async || sleep_until((began.get() + DURING).into()).await;
    let ends = async |name: &str| {
        let span = Span { name: name.to_owned(), began: began.get(), ended: Instant::now() };
        sleep_until((span.ended + AFTER).into()).await;
        span
    };
    let script = async {
        sleep(BEFORE).await;
        let first = leader().await;
        begins();
        stack.signal(&first, Signal::SIGSTOP);
        lasts().await;
        stack.signal(&first, Signal::SIGCONT);
        let frozen = ends("frozen").await;
        let second = leader().await;
        begins();
        let away = stack.take_down(&second);
        lasts().await;
        away.comes_back().await;
        [frozen, ends("killed").await]
    };
    let (all, spans) = scene.timed(&[Act::Job], script).await;
    // Each job has ended by now. The servers elect another leader of the streams twice: when its node freezes, and once
    // more when the node comes back and believes that it still leads. How long that takes is theirs to say.
    let (frozen, killed) = (slowest(&all, &spans, 0, Act::Job), slowest(&all, &spans, 1, Act::Job));
    eprintln!("slowest job with a NATS node frozen: {frozen:.1?}, with one killed: {killed:.1?}");
    assert!(frozen <= killed + ANOTHER_ELECTION, "frozen {frozen:?}, killed {killed:?}");
    assert!(frozen <= ELECTIONS && killed <= ELECTIONS, "frozen {frozen:?}, killed {killed:?}");
    scene.nothing_ran_twice();
}
