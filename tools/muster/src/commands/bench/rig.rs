//! The stack under test, and the workers of a bench. The bench's own stack is `muster dev` in a temporary folder,
//! with the programs beside this one, and ends with the bench.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tokio::{
    process::Child,
    time::{Instant, sleep, timeout},
};
use uuid::Uuid;

use super::{keep_alive::KeepAlive, load, requests};
use crate::{commands::dev, outcome::Failure, programs, stack::Stack, target::Door};

/// The longest time that a stack may take to start.
const START: Duration = Duration::from_secs(120);
/// The longest time that a stack may take to stop by itself.
const STOP: Duration = Duration::from_secs(60);
/// The longest time that a worker may take to run its first job.
const FIRST_JOB: Duration = Duration::from_secs(30);

/// The parts of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) replicas: u16,
    pub(super) cluster: bool,
}

/// Two of each service on one Redis and one NATS.
pub(super) const STANDARD: Shape = Shape { replicas: 2, cluster: false };

/// A running stack and its addresses.
pub(super) struct Rig {
    pub(super) stack: Stack,
    pub(super) door: Door,
    pub(super) addrs: Vec<SocketAddr>,
    scratch: TempDir,
    dev: Option<Child>,
}

/// The workers of a load.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    /// The number of processes.
    pub(super) processes: u16,
    /// The number of workers in each process.
    pub(super) copies: u16,
    /// The number of jobs that a worker runs at once.
    pub(super) concurrency: u32,
    /// Whether the workers use HTTP instead of NATS.
    pub(super) http: bool,
}

impl Default for Crew {
    fn default() -> Crew {
        Crew { processes: 1, copies: 1, concurrency: 512, http: false }
    }
}

/// Running workers. Dropping this kills them.
pub(super) struct Workers {
    children: Vec<Child>,
    pub(super) pids: Vec<u32>,
    /// The file in which they record what they ran.
    pub(super) record: PathBuf,
}

impl Rig {
    /// Starts a stack of the bench's own and waits until it is ready.
    pub(super) async fn start(shape: Shape) -> anyhow::Result<Rig> {
        let scratch = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
        let (dir, log) = (scratch.path().join("stack"), scratch.path().join("dev.log"));
        let out = std::fs::File::create(&log)?;
        let mut command = dev::bound_to_parent(programs::find("setpriv").as_deref(), &std::env::current_exe()?);
        command.args(["dev", "--no-worker", "--port", "0", "--replicas", &shape.replicas.to_string()]);
        command.arg("--dir").arg(&dir);
        if shape.cluster {
            command.arg("--cluster");
        }
        // Settings of the shell about another stack do not apply to this one.
        ["MUSTER_URL", "MUSTER_API_KEY", "MUSTER_TENANT"].iter().for_each(|name| {
            command.env_remove(name);
        });
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let mut dev = command.spawn().context("cannot start `muster dev`")?;
        let limit = Instant::now() + START;
        let stack = loop {
            if let Some(stack) = Stack::read(&dir.join("stack.json"))? {
                break stack;
            }
            let ended = dev.try_wait()?.map(|status| status.to_string());
            let late = (Instant::now() >= limit).then(|| format!("not ready within {START:?}"));
            if let Some(how) = ended.or(late) {
                stop(&mut dev).await;
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(Failure::new(format!("the stack did not start ({how})\n{}", said.trim())).into());
            }
            sleep(Duration::from_millis(50)).await;
        };
        let door = Door { urls: stack.gateways(), api_key: stack.api_key.clone(), tenant: None };
        let addrs = load::addresses(&door).await?;
        Ok(Rig { stack, door, addrs, scratch, dev: Some(dev) })
    }

    /// Uses a stack that runs already, and leaves it running.
    pub(super) async fn attach(stack: Stack, door: Door) -> anyhow::Result<Rig> {
        let addrs = load::addresses(&door).await?;
        let scratch = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
        Ok(Rig { stack, door, addrs, scratch, dev: None })
    }

    /// Stops the bench's own stack, in order.
    pub(super) async fn stop(mut self) {
        if let Some(mut dev) = self.dev.take() {
            stop(&mut dev).await;
        }
    }

    /// A file or folder of the bench's own.
    pub(super) fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Topics that were never used before.
    pub(super) fn topics(&self, count: usize) -> Vec<String> {
        let run = Uuid::new_v4().simple().to_string();
        (0..count).map(|n| format!("bench-{}-{n}", &run[..12])).collect()
    }

    /// Starts workers for these topics and waits until every topic is served.
    pub(super) async fn hire(&self, crew: &Crew, topics: &[String]) -> anyhow::Result<Workers> {
        let workers = self.hire_unseen(crew, topics)?;
        // A job that has been run proves that the topic's consumer and its worker are ready.
        let request = |topic: &String| {
            let wait = FIRST_JOB.as_millis();
            requests::post(&self.door, &format!("/jobs?wait_ms={wait}"), &format!(r#"{{"topic":"{topic}"}}"#))
        };
        let mut connection = KeepAlive::open(self.addrs[0]).await?;
        for topic in topics {
            let answer = connection.exchange(&request(topic)).await?;
            if answer.status != 200 {
                let said = String::from_utf8_lossy(answer.body);
                let log = std::fs::read_to_string(self.scratch("worker-0.log")).unwrap_or_default();
                let how =
                    format!("no worker ran a first job of {topic} within {FIRST_JOB:?} ({}): {said}", answer.status);
                return Err(Failure::new(format!("{how}\n{}", log.trim_end())).into());
            }
        }
        Ok(workers)
    }

    /// Starts workers without waiting for them.
    pub(super) fn hire_unseen(&self, crew: &Crew, topics: &[String]) -> anyhow::Result<Workers> {
        let record = self.scratch(&format!("{}.record", Uuid::new_v4().simple()));
        std::fs::File::create(&record)?;
        let (mut children, mut pids) = (Vec::new(), Vec::new());
        for n in 0..crew.processes {
            let child = self.worker(crew, topics, &record, &self.scratch(&format!("worker-{n}.log")))?;
            pids.push(child.id().context("the worker of the bench has ended")?);
            children.push(child);
        }
        Ok(Workers { children, pids, record })
    }

    fn worker(&self, crew: &Crew, topics: &[String], record: &Path, log: &Path) -> anyhow::Result<Child> {
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        // Over HTTP one lease call brings no more.
        let concurrency = if crew.http { crew.concurrency.min(100) } else { crew.concurrency };
        let mut command = dev::bound_to_parent(programs::find("setpriv").as_deref(), &std::env::current_exe()?);
        command
            .args(["worker", "run", "--builtin", "record", "--drain", "5s", "--log", "warn"])
            .args(["--tenant", self.door.tenant.as_deref().unwrap_or("default")])
            .args(["--concurrency", &concurrency.to_string(), "--copies", &crew.copies.to_string()])
            .args(topics.iter().flat_map(|topic| ["--topic", topic.as_str()]))
            .arg("--count-file")
            .arg(record);
        if crew.http {
            command.arg("--http");
        }
        let nats = self.stack.processes.iter().filter(|process| process.service == "nats").count();
        command
            .env("NATS_URL", &self.stack.nats_url)
            .env("NATS_REPLICAS", nats.max(1).to_string())
            .env("MUSTER_URL", self.door.urls.join(","))
            .env("MUSTER_API_KEY", &self.door.api_key)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        command.spawn().context("cannot start the bench's worker")
    }
}

impl Workers {
    /// The number of executions so far.
    pub(super) fn executed(&self) -> u64 {
        std::fs::metadata(&self.record).map_or(0, |file| file.len() / crate::record::ENTRY as u64)
    }

    /// Lets the workers drain; a worker that does not end is killed when this is dropped.
    pub(super) async fn dismiss(mut self) {
        for pid in &self.pids {
            signal(*pid, Signal::SIGTERM);
        }
        for child in &mut self.children {
            let _ = timeout(Duration::from_secs(15), child.wait()).await;
        }
    }
}

async fn stop(dev: &mut Child) {
    if let Some(pid) = dev.id() {
        signal(pid, Signal::SIGTERM);
    }
    if timeout(STOP, dev.wait()).await.is_err() {
        let _ = dev.kill().await;
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
