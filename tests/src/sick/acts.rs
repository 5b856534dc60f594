//! What clients and workers do all the time: single and bulk submits, HTTP workers, cancels, retries by hand, extends,
//! events, wakes and second attempts. Each act waits for its end with long polls, and says how long it took.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_sdk::HandlerError;
use muster_testkit::until;
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use super::{stalls::Stalls, times::Took};
use crate::{Answer, Executions, Probe, Setup, Stack, TestWorker, WorkerProcess};

const SOON: Duration = Duration::from_secs(60);
/// Between two acts.
const EVERY: Duration = Duration::from_millis(40);
/// How long the handler of a long job works, and the lease that it has to extend meanwhile.
const LONG: Duration = Duration::from_secs(4);
const LEASE: Duration = Duration::from_secs(3);
/// The delay of a delayed job, and the pause before a second attempt.
const PAUSE: Duration = Duration::from_millis(300);
/// An act that began so long before a fault may still be under way when the fault begins.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// One kind of act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// One job, to its end.
    Job,
    /// One job of a worker that speaks HTTP to the gateway.
    HttpJob,
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

/// Every kind.
pub const ACTS: [Act; 10] = [
    Act::Job,
    Act::HttpJob,
    Act::Batch,
    Act::CancelWaiting,
    Act::CancelRunning,
    Act::RetryByHand,
    Act::Extend,
    Act::Event,
    Act::Wake,
    Act::SecondAttempt,
];

/// The order in which the kinds take turns. Single jobs come often. Long jobs come twice, because those that a fault
/// may meet are no part of what is normal.
pub const TURNS: [Act; 15] = [
    Act::Job,
    Act::Batch,
    Act::HttpJob,
    Act::Extend,
    Act::Job,
    Act::CancelWaiting,
    Act::CancelRunning,
    Act::Job,
    Act::HttpJob,
    Act::RetryByHand,
    Act::Extend,
    Act::Job,
    Act::Event,
    Act::Wake,
    Act::SecondAttempt,
];

impl Act {
    /// Whether only the leader of a loop does what the act waits for.
    pub fn is_led(self) -> bool {
        matches!(self, Act::Wake | Act::SecondAttempt)
    }

    /// How long before a fault an act of this kind may begin and still be under way in the fault.
    pub fn under_way(self) -> Duration {
        if self == Act::Extend { LONG + UNDER_WAY } else { UNDER_WAY }
    }
}

/// A stack with its workers, and the events that one client has received.
pub struct Scene {
    gateway: Probe,
    runs: Executions,
    ended: Arc<Mutex<HashMap<String, Instant>>>,
    /// How many requests the gateway was too busy for.
    refused: AtomicUsize,
    stalls: Stalls,
    watcher: JoinHandle<()>,
    _workers: Vec<TestWorker>,
    _http_worker: WorkerProcess,
}

impl Scene {
    /// Starts the workers and the client of events, and has each kind of act done once.
    pub async fn on(stack: &Stack) -> Scene {
        let (runs, gateway) = (Executions::default(), stack.gateway(1));
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
        let http = ["--http", "--builtin", "echo", "--topic", "http", "--concurrency", "16", "--id", "http"];
        let http_worker = WorkerProcess::start(stack, &http);
        let ended = Arc::<Mutex<_>>::default();
        #[expect(clippy::disallowed_methods, reason = "a test's own watcher")]
        let watcher = tokio::spawn(watch(gateway.clone(), ended.clone()));
        let (refused, stalls) = (AtomicUsize::default(), Stalls::watch());
        let scene =
            Scene { gateway, runs, ended, refused, stalls, watcher, _workers: workers, _http_worker: http_worker };
        for act in ACTS {
            scene.act(act).await;
        }
        scene
    }

    /// Begins the acts in these turns at a steady rate until `script` is done, and waits until each has ended. An act
    /// is not charged with the time in which the machine held up the test.
    pub async fn timed<T>(&self, turns: &[Act], script: impl Future<Output = T>) -> (Vec<Took>, T) {
        let mut clock = interval(EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut acts, mut all, mut next) = (FuturesUnordered::new(), Vec::new(), turns.iter().copied().cycle());
        tokio::pin!(script);
        let told = loop {
            tokio::select! {
                biased;
                told = &mut script => break told,
                Some(ended) = acts.next(), if !acts.is_empty() => all.push(ended),
                _ = clock.tick() => if let Some(act) = next.next() {
                    let at = Instant::now();
                    acts.push(async move {
                        let took = self.act(act).await;
                        Took { act, at, took: took.saturating_sub(self.stalls.between(at, Instant::now())) }
                    });
                },
            }
        };
        while let Some(ended) = acts.next().await {
            all.push(ended);
        }
        eprintln!("{} requests were refused and sent again", self.refused.load(Ordering::Relaxed));
        (all, told)
    }

    /// Fails if a job was begun more often than it had attempts: a live worker's job was rescued, or two were told to
    /// start it.
    pub fn nothing_ran_twice(&self) {
        let mut runs: HashMap<(String, String), usize> = HashMap::new();
        self.runs.all().into_iter().for_each(|run| *runs.entry((run.worker, run.job)).or_default() += 1);
        let most = |worker: &str| if worker == "flaky" { 2 } else { 1 };
        runs.retain(|(worker, _), times| *times > most(worker));
        assert!(runs.is_empty(), "begun more often than they had attempts: {runs:?}");
    }

    /// Sends a request as a client does: again, if the gateway is too busy for it. The time until it is accepted counts.
    async fn accepted(&self, path: &str, body: Value) -> Answer {
        let answer = until(SOON, &format!("{path} to be accepted"), async || {
            let answer = self.gateway.post(path, &body).await;
            let busy = matches!(answer.status.as_u16(), 429 | 503);
            self.refused.fetch_add(usize::from(busy), Ordering::Relaxed);
            (!busy).then_some(answer)
        })
        .await;
        assert!(answer.status.is_success(), "{path}: {} {}", answer.status, answer.text);
        answer
    }

    /// Submits a job, and returns its id.
    async fn submitted(&self, job: Value) -> String {
        self.accepted("/jobs", job).await.id()
    }

    /// Submits `n` equal jobs in one batch, those that were refused in another, and returns their ids.
    async fn submitted_together(&self, n: usize, job: &Value) -> Vec<String> {
        let mut ids = Vec::new();
        until(SOON, "all jobs of a batch to be accepted", async || {
            let answer = self.accepted("/jobs/batch", json!({"items": vec![job; n - ids.len()]})).await;
            for item in answer.body["items"].as_array().expect("items") {
                match item["job"]["id"].as_str() {
                    Some(id) => ids.push(id.to_owned()),
                    None => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
                }
            }
            (ids.len() == n).then_some(())
        })
        .await;
        ids
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
            Act::Job | Act::HttpJob => {
                let topic = if act == Act::Job { "echo" } else { "http" };
                let id = self.submitted(json!({"topic": topic, "retry": once})).await;
                self.ends(&id, "succeeded", 1).await;
                at.elapsed()
            }
            Act::Batch => {
                for id in self.submitted_together(5, &json!({"topic": "echo", "retry": once})).await {
                    self.ends(&id, "succeeded", 1).await;
                }
                at.elapsed()
            }
            Act::CancelWaiting => {
                let id = self.submitted(json!({"topic": "unserved", "retry": once})).await;
                at = Instant::now();
                self.cancel(&id).await;
                self.ends(&id, "cancelled", 0).await;
                at.elapsed()
            }
            Act::CancelRunning => {
                let id = self.submitted(json!({"topic": "held", "retry": once})).await;
                gateway.reaches(&id, "running", SOON).await;
                at = Instant::now();
                self.cancel(&id).await;
                self.ends(&id, "cancelled", 1).await;
                at.elapsed()
            }
            Act::RetryByHand => {
                let id = self.submitted(json!({"topic": "echo", "retry": once})).await;
                self.ends(&id, "succeeded", 1).await;
                at = Instant::now();
                let again = self.accepted(&format!("/jobs/{id}/retry"), json!({})).await;
                self.ends(&again.id(), "succeeded", 1).await;
                at.elapsed()
            }
            Act::Extend => {
                let id = self.submitted(json!({"topic": "long", "retry": once})).await;
                self.ends(&id, "succeeded", 1).await;
                at.elapsed().saturating_sub(LONG)
            }
            Act::Event => {
                let id = self.submitted(json!({"topic": "echo", "retry": once})).await;
                let heard = until(SOON, "the event of the end", async || {
                    self.ended.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
                });
                heard.await - at
            }
            Act::Wake => {
                let delay = u64::try_from(PAUSE.as_millis()).expect("short");
                let id = self.submitted(json!({"topic": "echo", "delay_ms": delay, "retry": once})).await;
                self.ends(&id, "succeeded", 1).await;
                at.elapsed().saturating_sub(PAUSE)
            }
            Act::SecondAttempt => {
                let backoff = json!({"initial_ms": PAUSE.as_millis() as u64, "jitter": 0});
                let retry = json!({"max_attempts": 2, "backoff": backoff});
                let id = self.submitted(json!({"topic": "flaky", "retry": retry})).await;
                self.ends(&id, "succeeded", 2).await;
                at.elapsed().saturating_sub(PAUSE)
            }
        }
    }

    async fn cancel(&self, id: &str) {
        let answer = self.accepted(&format!("/jobs/{id}/cancel"), json!({})).await.body;
        assert_eq!(answer["id"], json!(id), "{answer}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Notes when the end of each job on the topic `echo` is announced.
async fn watch(gateway: Probe, ended: Arc<Mutex<HashMap<String, Instant>>>) {
    let mut watch = gateway.watch("topic=echo", None).await;
    while let Some(event) = watch.next(SOON).await {
        if event["type"].as_str().is_some_and(|kind| kind.ends_with("succeeded"))
            && let Some(job) = event["subject"].as_str()
        {
            ended.lock().unwrap_or_else(PoisonError::into_inner).insert(job.to_owned(), Instant::now());
        }
    }
}
