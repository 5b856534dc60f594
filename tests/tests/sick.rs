//! A scheduler that is sick and not dead: frozen, cut off, or slow. Nothing must wait for it.
//!
//! Each test runs two or three schedulers. One of them reaches its stores through proxies of its own. All kinds of acts
//! take turns at a steady rate, before the fault, during it and after it, and each kind is compared with itself. Here
//! the sick scheduler leads no loop; `sick_leader` has those tests.

use muster_tests::{
    Options, Stack,
    sick::{
        Fault, Sick,
        acts::{Scene, TURNS},
        times::{DURING, TRIES, fall_and_recover, too_long},
    },
};

/// Has the second or third scheduler fall sick in each of these ways, and judges how long acts took. A fault that made
/// acts late is tried again: in one of its tries none may be.
async fn nothing_waits(options: Options, faults: &[Fault]) {
    let stack = Stack::with(options).await;
    let sick = Sick::beside(&stack).await;
    let scene = Scene::on(&stack).await;
    let (mut open, mut late) = (faults.to_vec(), Vec::new());
    for _ in 0..TRIES {
        let (all, spans) = scene.timed(&TURNS, fall_and_recover(&sick, &open, DURING)).await;
        scene.nothing_ran_twice();
        late = too_long(&all, &spans, false);
        let mut again: Vec<usize> = late.iter().map(|(nth, _)| *nth).collect();
        again.dedup();
        open = again.into_iter().map(|nth| open[nth]).collect();
        if open.is_empty() {
            return;
        }
    }
    panic!("these took too long each time: {late:#?}");
}

#[tokio::test]
async fn nothing_waits_for_a_scheduler_that_redis_does_not_answer_refuses_or_answers_late() {
    nothing_waits(Options::default(), &[Fault::RedisSilent, Fault::RedisRefused, Fault::RedisSlow]).await;
}

#[tokio::test]
async fn nothing_waits_for_a_scheduler_that_nats_does_not_answer_refuses_or_answers_late() {
    nothing_waits(Options::default(), &[Fault::NatsSilent, Fault::NatsRefused, Fault::NatsSlow]).await;
}

#[tokio::test]
async fn nothing_waits_for_a_scheduler_that_is_frozen_alone_or_without_a_core() {
    nothing_waits(Options::default(), &[Fault::Frozen, Fault::BothSilent, Fault::BusyCore]).await;
}

#[tokio::test]
async fn nothing_waits_for_a_frozen_scheduler_of_three() {
    nothing_waits(Options::two(), &[Fault::Frozen]).await;
}
