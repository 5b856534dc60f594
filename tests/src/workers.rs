//! Workers of the SDK that record what they run, so that a test knows every execution.

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use muster_sdk::{Context, HandlerError, Worker};
use muster_testkit::{bin, until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::Stack;

/// One execution of a handler.
#[derive(Clone, Debug)]
pub struct Run {
    /// The job.
    pub job: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// The worker that ran it.
    pub worker: String,
    /// When the handler began.
    pub at: Instant,
}

/// Every execution of all workers that share this.
#[derive(Clone, Debug, Default)]
pub struct Executions(Arc<Mutex<Vec<Run>>>);

impl Executions {
    /// Records one execution.
    pub fn note(&self, run: Run) {
        self.0.lock().expect("no test panics while noting").push(run);
    }

    /// All executions so far.
    pub fn all(&self) -> Vec<Run> {
        self.0.lock().expect("no test panics while noting").clone()
    }

    /// The executions of one job.
    pub fn of(&self, job: &str) -> Vec<Run> {
        self.all().into_iter().filter(|r| r.job == job).collect()
    }

    /// How often each job was begun.
    pub fn counts(&self) -> HashMap<String, usize> {
        self.all().into_iter().fold(HashMap::new(), |mut counts, run| {
            *counts.entry(run.job).or_default() += 1;
            counts
        })
    }

    /// Waits until this many executions were begun.
    pub async fn reach(&self, n: usize, within: Duration) {
        until(within, &format!("{n} executions"), async || (self.all().len() >= n).then_some(())).await;
    }
}

/// A worker in this process. Dropping it acts as a crash: nothing is given back.
pub struct TestWorker {
    handle: muster_sdk::WorkerHandle,
    task: tokio::task::JoinHandle<()>,
}

impl TestWorker {
    /// Drains the worker and waits until it has left.
    pub async fn drain(self) {
        self.handle.drain();
        let mut this = self;
        let _ = (&mut this.task).await;
    }
}

impl TestWorker {
    /// Waits until the worker has left by itself.
    pub async fn left(&mut self, within: Duration) {
        let left = tokio::time::timeout(within, &mut self.task).await;
        left.expect("it leaves in time").expect("it leaves in order");
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The configuration of a test's worker.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The worker's name.
    pub id: String,
    /// The tenant whose jobs it takes.
    pub tenant: String,
    /// The topic whose jobs it takes.
    pub topic: String,
    /// The number of jobs that it runs at once.
    pub slots: usize,
    /// Its lease.
    pub lease: Duration,
    /// How long its drain may take.
    pub drain: Duration,
    /// How long a handler may take to stop.
    pub grace: Duration,
    /// Whether it takes the jobs of every tenant on a shared topic.
    pub all_tenants: bool,
    /// The labels that it provides to jobs with requirements.
    pub provides: Vec<(String, String)>,
}

impl Setup {
    /// Four slots, a lease of ten seconds.
    pub fn new(id: &str, topic: &str) -> Setup {
        Setup {
            id: id.into(),
            tenant: "default".into(),
            topic: topic.into(),
            slots: 4,
            lease: Duration::from_secs(10),
            drain: Duration::from_secs(5),
            grace: Duration::from_millis(500),
            all_tenants: false,
            provides: Vec::new(),
        }
    }
}

impl Executions {
    /// Starts a worker. Every run is recorded before its handler begins.
    #[expect(clippy::disallowed_methods, reason = "a test's own worker")]
    pub fn worker<F, Fut>(&self, stack: &Stack, setup: Setup, handler: F) -> TestWorker
    where
        F: Fn(Context, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, HandlerError>> + Send + 'static,
    {
        let Setup { id: name, tenant, topic, slots, lease, drain, grace, all_tenants, provides } = setup;
        let notes = self.clone();
        let mut builder = Worker::builder(stack.state().nats_url);
        if all_tenants {
            builder = builder.all_tenants();
        }
        let worker = provides
            .into_iter()
            .fold(builder, |builder, (key, value)| builder.provides(key, value))
            .id(&name)
            .tenant(&tenant)
            .concurrency(slots)
            .lease(lease)
            .drain(drain)
            .grace(grace)
            .stream_replicas(if stack.is_cluster() { 3 } else { 1 })
            .handle(&topic, move |ctx: Context, payload: Value| {
                notes.note(Run {
                    job: ctx.job_id().to_string(),
                    attempt: ctx.attempt(),
                    fence: ctx.fence(),
                    worker: name.clone(),
                    at: Instant::now(),
                });
                handler(ctx, payload)
            })
            .build()
            .expect("a worker");
        let handle = worker.handle();
        let task = tokio::spawn(async move {
            worker.run().await.expect("the worker runs");
        });
        TestWorker { handle, task }
    }

    /// Starts a worker that returns its payload.
    pub fn echo(&self, stack: &Stack, id: &str, topic: &str) -> TestWorker {
        self.worker(stack, Setup::new(id, topic), |_, payload| async move { Ok(payload) })
    }
}

/// A worker in a process of its own, usually `muster worker run`.
pub struct WorkerProcess {
    child: Child,
    folder: tempfile::TempDir,
}

impl WorkerProcess {
    /// Starts a worker whose log the test does not read: `tests/src/bin/loud_worker.rs`. Its loop hangs as soon as
    /// the pipe is full.
    pub fn unheard(stack: &Stack, id: &str, topic: &str) -> WorkerProcess {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(bin("loud_worker")).args([&stack.state().nats_url, id, topic]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        WorkerProcess { child: crate::stack::spawn_forever(command), folder: tempfile::tempdir().expect("a folder") }
    }

    /// Starts `muster worker run` with these arguments.
    pub fn start(stack: &Stack, args: &[&str]) -> WorkerProcess {
        let folder = tempfile::tempdir().expect("a folder");
        let log = std::fs::File::create(folder.path().join("log")).expect("a log file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(bin("muster")).args(["worker", "run"]).args(args);
        command.env("NATS_URL", stack.state().nats_url);
        let gateways: Vec<String> = stack.state().processes.into_iter().filter_map(|process| process.http).collect();
        command.env("MUSTER_URL", gateways.join(","));
        command.env("MUSTER_API_KEY", stack.state().api_key);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        WorkerProcess { child: crate::stack::spawn_forever(command), folder }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the worker has ended by itself, and returns its exit status.
    pub async fn exited(&mut self, within: Duration) -> std::process::ExitStatus {
        until(within, "the worker to end", async || self.child.try_wait().ok().flatten()).await
    }

    /// Sends any signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid()), signal);
    }

    /// Sends `kill -9`.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The log of the worker.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

/// Whether a process runs. A zombie that nobody has reaped does not.
pub fn process_runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits until a command has written its process id to this file.
pub async fn pid_in(file: &std::path::Path, within: Duration) -> i32 {
    until(within, "a command to begin", async || std::fs::read_to_string(file).ok()?.trim().parse().ok()).await
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.kill9();
    }
}
