//! What else must not wait for a sick scheduler: bulk submits, cancels, retries, wakes, extends, settles and events.
//!
//! The acts take turns at a steady rate, before the fault, during it and after it. Each kind is compared with itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use muster_sdk::HandlerError;
use muster_store::LEADER_TTL;
use muster_testkit::until;
use muster_tests::{
    Executions, Probe, Setup, Stack, TestWorker,
    sick::{Sick, Times, timed},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// What any scheduler does takes no longer than normal by more than this.
const LATE: Duration = Duration::from_secs(3);
/// The same where only a leader acts: its lock may have to run out first.
const LED: Duration = LEADER_TTL.saturating_add(Duration::from_secs(2));
/// How long the handler of a long job works, and the lease that it has to extend meanwhile.
const LONG: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(2);
/// The delay of a delayed job, and the pause before a second attempt.
const PAUSE: Duration = Duration::from_millis(300);

/// One kind of act.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Five jobs in one batch, to the last end.
    Batch,
    /// The cancel of a job that waits, to its end.
    CancelWaiting,
    /// The cancel of a job that runs, to its end.
    CancelRunning,
    /// The retry of an ended job by hand, to the end of the new one.
    RetryByHand,
    /// A job that runs longer than its lease, without that time.
    Extend,
    /// A job, to the event that announces its end.
    Event,
    /// A delayed job, without its delay.
    Wake,
    /// A job whose first attempt fails, without the pause.
    SecondAttempt,
}

const ACTS: [Act; 8] = [
    Act::Batch,
    Act::CancelWaiting,
    Act::CancelRunning,
    Act::RetryByHand,
    Act::Extend,
    Act::Event,
    Act::Wake,
    Act::SecondAttempt,
];

impl Act {
    fn bound(self) -> Duration {
        match self {
            Act::Wake | Act::SecondAttempt => LED,
            _ => LATE,
        }
    }
}

/// The stack with its workers, and the events that one client has received.
struct Scene {
    gateway: Probe,
    runs: Executions,
    ended: Mutex<HashMap<String, Instant>>,
    _workers: Vec<TestWorker>,
}

impl Scene {
    fn on(stack: &Stack) -> Arc<Scene> {
        let runs = Executions::default();
        let setup = |topic: &str, lease| Setup { slots: 32, lease, ..Setup::new(topic, topic) };
        let usual = Duration::from_secs(10);
        let workers = vec![
            runs.worker(stack, setup("echo", usual), |_, payload| async move { Ok(payload) }),
            runs.worker(stack, setup("held", usual), |ctx, _| async move {
                ctx.cancelled().await;
                Ok(json!("stopped"))
            }),
            runs.worker(stack, setup("long", LEASE), |_, payload| async move {
                tokio::time::sleep(LONG).await;
                Ok(payload)
            }),
            runs.worker(stack, setup("flaky", usual), |ctx, payload| async move {
                if ctx.attempt() == 1 { Err(HandlerError::retryable("not yet")) } else { Ok(payload) }
            }),
        ];
        Arc::new(Scene { gateway: stack.gateway(1), runs, ended: Mutex::default(), _workers: workers })
    }

    /// Notes when the end of each job on the topic `echo` is announced.
    async fn watch(&self) {
        let mut watch = self.gateway.watch("topic=echo", None).await;
        while let Some(event) = watch.next(SOON).await {
            if event["type"].as_str().is_some_and(|kind| kind.ends_with("succeeded"))
                && let Some(job) = event["subject"].as_str()
            {
                let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                ended.insert(job.to_owned(), Instant::now());
            }
        }
    }

    /// Waits for the end of a job, which must be this one.
    async fn ends(&self, id: &str, state: &str, attempt: u64) {
        let job = self.gateway.ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!(state), &json!(attempt)), "{job}");
    }

    async fn act(&self, act: Act) -> Duration {
        let (gateway, once) = (&self.gateway, json!({"max_attempts": 1}));
        let mut at = Instant::now();
        match act {
            Act::Batch => {
                for id in gateway.submit_many(5, &json!({"topic": "echo", "retry": once})).await {
                    self.ends(&id, "succeeded", 1).await;
                }
                at.elapsed()
            }
            Act::CancelWaiting => {
                let id = gateway.submit(json!({"topic": "unserved", "retry": once})).await;
                at = Instant::now();
                self.cancel(&id).await;
                self.ends(&id, "cancelled", 0).await;
                at.elapsed()
            }
            Act::CancelRunning => {
                let id = gateway.submit(json!({"topic": "held", "retry": once})).await;
                gateway.reaches(&id, "running", SOON).await;
                at = Instant::now();
                self.cancel(&id).await;
                self.ends(&id, "cancelled", 1).await;
                at.elapsed()
            }
            Act::RetryByHand => {
                let id = gateway.submit(json!({"topic": "echo", "retry": once})).await;
                self.ends(&id, "succeeded", 1).await;
                at = Instant::now();
                let again = gateway.post(&format!("/jobs/{id}/retry"), &json!({})).await;
                assert!(again.status.is_success(), "{}", again.text);
                self.ends(&again.id(), "succeeded", 1).await;
                at.elapsed()
            }
            Act::Extend => {
                let id = gateway.submit(json!({"topic": "long", "retry": once})).await;
                self.ends(&id, "succeeded", 1).await;
                at.elapsed().saturating_sub(LONG)
            }
            Act::Event => {
                let id = gateway.submit(json!({"topic": "echo", "retry": once})).await;
                let heard = until(SOON, "the event of the end", async || {
                    self.ended.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
                });
                heard.await - at
            }
            Act::Wake => {
                let delay = u64::try_from(PAUSE.as_millis()).expect("short");
                let id = gateway.submit(json!({"topic": "echo", "delay_ms": delay, "retry": once})).await;
                self.ends(&id, "succeeded", 1).await;
                at.elapsed().saturating_sub(PAUSE)
            }
            Act::SecondAttempt => {
                let backoff = json!({"initial_ms": PAUSE.as_millis() as u64, "jitter": 0});
                let retry = json!({"max_attempts": 2, "backoff": backoff});
                let id = gateway.submit(json!({"topic": "flaky", "retry": retry})).await;
                self.ends(&id, "succeeded", 2).await;
                at.elapsed().saturating_sub(PAUSE)
            }
        }
    }

    async fn cancel(&self, id: &str) {
        let answer: Value = self.gateway.post(&format!("/jobs/{id}/cancel"), &json!({})).await.body;
        assert_eq!(answer["id"], json!(id), "{answer}");
    }
}

/// Lets the acts take turns around this fault, and judges each kind.
async fn nothing_waits(fault: impl AsyncFn(&Sick), mend: impl AsyncFn(&Sick)) {
    let stack = Stack::start().await;
    let sick = Sick::beside(&stack).await;
    let scene = Scene::on(&stack);
    let watching = scene.clone();
    #[expect(clippy::disallowed_methods, reason = "a test's own watcher")]
    let watcher = tokio::spawn(async move { watching.watch().await });
    // Every topic is known, and the watcher watches.
    for act in ACTS {
        scene.act(act).await;
    }
    let act = |n: usize| scene.act(ACTS[n % ACTS.len()]);
    let all = timed(act, async || fault(&sick).await, async || mend(&sick).await).await;
    watcher.abort();
    for (nth, act) in ACTS.into_iter().enumerate() {
        let times = Times::of(&format!("{act:?}"), all.iter().filter(|(n, _)| n % ACTS.len() == nth).map(|(_, t)| *t));
        times.slowest_within(act.bound());
        times.normal_while_sick();
        times.normal_afterwards();
    }
    let twice = scene.runs.counts().into_values().filter(|runs| *runs > 2).count();
    assert_eq!(twice, 0, "no job of a live worker was rescued");
}

#[tokio::test]
async fn nothing_waits_for_a_frozen_scheduler() {
    nothing_waits(async |s| s.signal(Signal::SIGSTOP), async |s| s.signal(Signal::SIGCONT)).await;
}

#[tokio::test]
async fn nothing_waits_for_a_scheduler_that_redis_does_not_answer() {
    nothing_waits(async |s| s.redis.stall(), async |s| s.redis.heal().await).await;
}

#[tokio::test]
async fn nothing_waits_for_a_scheduler_that_nats_does_not_answer() {
    nothing_waits(async |s| s.nats.stall(), async |s| s.nats.heal().await).await;
}
