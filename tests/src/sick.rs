//! A scheduler that is sick and not dead, beside the schedulers of a stack.
//!
//! This module knows the faults of a single scheduler, and how to begin and end each. `acts` knows what clients and
//! workers do meanwhile, `times` how long that took and how long it may take, `stalls` when the machine was the cause.

pub mod acts;
mod stalls;
pub mod times;

use std::{
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use muster_testkit::{Proxy, bin, free_port, until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::Method;

use crate::{Answer, Probe, Stack, metric_sum, spawn_forever};

const READY: Duration = Duration::from_secs(60);
/// What a slow line adds to each call.
const DELAY: Duration = Duration::from_millis(300);
/// The name of the scheduler that falls sick.
pub const NAME: &str = "sick";

/// What can be wrong with one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process is stopped.
    Frozen,
    /// The process and a busy loop share one core.
    BusyCore,
    /// The connections to Redis stay open, and nothing comes through.
    RedisSilent,
    /// The connections to Redis drop, and new ones are refused.
    RedisRefused,
    /// Each call to Redis arrives late.
    RedisSlow,
    /// The connections to NATS stay open, and nothing comes through.
    NatsSilent,
    /// The connections to NATS drop, and new ones are refused.
    NatsRefused,
    /// Each message to NATS arrives late.
    NatsSlow,
    /// Neither store answers.
    BothSilent,
}

impl Fault {
    /// Why the scheduler stands down: for one of these reasons, or not at all. Which of them it is can depend on the
    /// machine: the first unanswered probe is a silent node of a Redis that answers the other scheduler, and a slow
    /// Redis may be too slow for a probe.
    pub fn reasons(self) -> &'static [&'static str] {
        match self {
            Fault::RedisSilent | Fault::RedisRefused | Fault::BothSilent => &["redis_silent", "node_silent"],
            Fault::RedisSlow => &["redis_slow", "redis_silent", "node_silent"],
            Fault::NatsSlow => &["nats_slow"],
            Fault::Frozen | Fault::BusyCore | Fault::NatsSilent | Fault::NatsRefused => &[],
        }
    }
}

/// The scheduler that falls sick.
pub struct Sick {
    child: Child,
    admin: Probe,
    redis: Proxy,
    nats: Proxy,
    busy: Mutex<Option<Busy>>,
    folder: tempfile::TempDir,
}

impl Sick {
    /// Starts the scheduler, and waits until it is ready.
    pub async fn beside(stack: &Stack) -> Sick {
        let state = stack.state();
        let port = |url: &str| url.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok());
        let redis = Proxy::start(port(&state.redis_url).expect("a port")).await;
        let nats = Proxy::start(port(&state.nats_url).expect("a port")).await;
        let admin = tokio::task::spawn_blocking(free_port).await.expect("a port");
        let folder = tempfile::tempdir().expect("a folder");
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(bin("muster-scheduler")).current_dir(folder.path());
        command.env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.url_port()));
        command.env("NATS_URL", format!("nats://127.0.0.1:{}", nats.url_port()));
        command.env("MUSTER_INSTANCE_ID", NAME).env("MUSTER_ADMIN_ADDR", format!("127.0.0.1:{admin}"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let admin = Probe::new(format!("http://127.0.0.1:{admin}"), String::new());
        let sick = Sick { child: spawn_forever(command), admin, redis, nats, busy: Mutex::default(), folder };
        until(READY, "the second scheduler to be ready", async || sick.is_ready().await.then_some(())).await;
        sick
    }

    /// The fault begins.
    pub async fn falls(&self, fault: Fault) {
        match fault {
            Fault::Frozen => self.signal(Signal::SIGSTOP),
            Fault::BusyCore => *self.busy() = Some(Busy::beside(self.child.id())),
            Fault::RedisSilent => self.redis.stall(),
            Fault::RedisRefused => self.redis.cut().await,
            Fault::RedisSlow => self.redis.slow(DELAY),
            Fault::NatsSilent => self.nats.stall(),
            Fault::NatsRefused => self.nats.cut().await,
            Fault::NatsSlow => self.nats.slow(DELAY),
            Fault::BothSilent => {
                self.redis.stall();
                self.nats.stall();
            }
        }
    }

    /// The fault ends.
    pub async fn recovers(&self, fault: Fault) {
        match fault {
            Fault::Frozen => self.signal(Signal::SIGCONT),
            Fault::BusyCore => drop(self.busy().take()),
            Fault::RedisSilent | Fault::RedisRefused | Fault::RedisSlow => self.redis.heal().await,
            Fault::NatsSilent | Fault::NatsRefused | Fault::NatsSlow => self.nats.heal().await,
            Fault::BothSilent => {
                self.redis.heal().await;
                self.nats.heal().await;
            }
        }
    }

    /// Whether all of its parts are ready.
    pub async fn is_ready(&self) -> bool {
        self.ask("/readyz").await.is_some_and(|answer| answer.body["status"] == "ready")
    }

    /// Whether `/readyz` says that the part `fitness` is not ready.
    pub async fn stands_down(&self) -> bool {
        let readyz = self.ask("/readyz").await;
        readyz.is_some_and(|said| said.status == 503 && said.body["parts"]["fitness"]["ready"] == false)
    }

    /// How often it has stood down for one of these reasons.
    pub async fn times_stood_down(&self, reasons: &[&str]) -> f64 {
        let scrape = until(READY, "a scrape", async || self.ask("/metrics").await).await.text;
        let labels: Vec<String> = reasons.iter().map(|reason| format!("reason=\"{reason}\"")).collect();
        let own: Vec<&str> = scrape.lines().filter(|line| labels.iter().any(|label| line.contains(label))).collect();
        metric_sum(&own.join("\n"), "muster_stood_down_total")
    }

    async fn ask(&self, path: &str) -> Option<Answer> {
        self.admin.send(Method::GET, path, &[], None).await.ok()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("it lives");
    }

    fn busy(&self) -> std::sync::MutexGuard<'_, Option<Busy>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sick {
    fn drop(&mut self) {
        self.busy().take();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- sick scheduler\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// A loop that uses up one core, and a process that may run on no other core meanwhile.
struct Busy {
    looping: Child,
    pinned: u32,
    /// The cores that the process could use before.
    cores: String,
}

impl Busy {
    fn beside(process: u32) -> Busy {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("its cores").trim();
        // The first of the cores that it may use: a container may have been given others than core 0.
        let first = cores.split([',', '-']).next().expect("a core");
        assert!(pin(process, first), "{process} is pinned to core {first}");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "taskset", "-c", first, "sh", "-c", "while :; do :; done"]);
        Busy { looping: spawn_forever(command), pinned: process, cores: cores.to_owned() }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.looping.kill();
        let _ = self.looping.wait();
        if !pin(self.pinned, &self.cores) {
            eprintln!("{} could not be given back the cores {}", self.pinned, self.cores);
        }
    }
}

/// Lets all threads of a process run on these cores only. False if the system refused.
fn pin(process: u32, cores: &str) -> bool {
    let mut command = Command::new("taskset");
    command.args(["--all-tasks", "-cp", cores, &process.to_string()]).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
