//! One stack: `muster dev` in a folder of its own, read through its state file.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use muster_store::{RedisSettings, Store};
use muster_testkit::{bin, until};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::Probe;

/// How long it may take until every replica has polled the settings, on a busy machine.
const KNOWN: Duration = Duration::from_secs(60);

/// The kind of stack to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of replicas of each service.
    pub replicas: usize,
    /// Six Redis nodes and three NATS nodes.
    pub cluster: bool,
    /// Settings and failpoints for every process.
    pub env: Vec<(String, String)>,
    /// The longest time that a process that keeps dying stays down; `None` for the default of `muster dev`.
    pub restart_within: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Options {
        Options { replicas: 1, cluster: false, env: Vec::new(), restart_within: None }
    }
}

impl Options {
    /// Two of each service.
    pub fn two() -> Options {
        Options { replicas: 2, ..Options::default() }
    }

    /// Adds a setting.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Options {
        self.env.push((name.to_owned(), value.into()));
        self
    }
}

/// The content of the state file.
#[derive(Clone, Debug, Deserialize)]
pub struct State {
    /// The bootstrap key.
    pub api_key: String,
    /// The URL of Redis.
    pub redis_url: String,
    /// The URL of NATS.
    pub nats_url: String,
    /// The running processes.
    pub processes: Vec<ProcessState>,
}

/// One process of the stack.
#[derive(Clone, Debug, Deserialize)]
pub struct ProcessState {
    /// `gateway-1` and so on.
    pub name: String,
    /// The service that the process runs.
    pub service: String,
    /// Its process id.
    pub pid: i32,
    /// The address of its API.
    pub http: Option<String>,
    /// The address of its admin port.
    pub admin: Option<String>,
}

/// A running stack.
pub struct Stack {
    dir: TempDir,
    dev: Child,
    cluster: bool,
}

impl Stack {
    /// Starts one of each service.
    pub async fn start() -> Stack {
        Stack::with(Options::default()).await
    }

    /// Starts a stack with these options.
    pub async fn with(options: Options) -> Stack {
        let dir = tempfile::Builder::new().prefix("muster-e2e-").tempdir().expect("a folder");
        let log = File::create(dir.path().join("dev.log")).expect("a log file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(bin("muster")).args(["dev", "--no-worker", "--port", "0"]);
        command.arg("--dir").arg(dir.path().join("data")).arg("--replicas").arg(options.replicas.to_string());
        if options.cluster {
            command.arg("--cluster");
        }
        if let Some(longest) = options.restart_within {
            command.args(["--restart-within", longest]);
        }
        command.envs(options.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        let stack = Stack { dir, dev: spawn_forever(command), cluster: options.cluster };
        let within = Duration::from_secs(if options.cluster { 180 } else { 120 });
        until(within, "the stack to be ready", async || {
            let state = stack.read_state()?;
            let replicas = |service: &str| state.processes.iter().filter(|p| p.service == service).count();
            if ["gateway", "scheduler", "workflow"].iter().any(|service| replicas(service) < options.replicas) {
                return None;
            }
            for process in state.processes.iter().filter(|p| p.admin.is_some()) {
                if !stack.ready(&process.name).await {
                    return None;
                }
            }
            Some(())
        })
        .await;
        stack
    }

    fn read_state(&self) -> Option<State> {
        serde_json::from_slice(&fs::read(self.folder().join("stack.json")).ok()?).ok()
    }

    /// The folder of the stack's data and logs.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Whether both stores are clusters.
    pub fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// The current state file.
    pub fn state(&self) -> State {
        self.read_state().expect("a state file")
    }

    /// The current entry of one process.
    pub fn process(&self, name: &str) -> ProcessState {
        let state = self.state();
        let found = state.processes.into_iter().find(|p| p.name == name);
        found.unwrap_or_else(|| panic!("no process {name}"))
    }

    /// A client of the n-th gateway, counted from 1.
    pub fn gateway(&self, n: usize) -> Probe {
        let http = self.process(&format!("gateway-{n}")).http.expect("a gateway has an address");
        Probe::new(http, self.state().api_key)
    }

    /// A connection to the stack's Redis, to look behind the API.
    pub async fn store(&self) -> Store {
        Store::connect(RedisSettings::new(self.state().redis_url)).await.expect("a store")
    }

    /// Sends `kill -9`, and returns the pid of the process.
    pub fn kill9(&self, name: &str) -> i32 {
        self.signal(name, Signal::SIGKILL)
    }

    /// Sends any signal, and returns the pid that it went to.
    pub fn signal(&self, name: &str, signal: Signal) -> i32 {
        let pid = self.process(name).pid;
        let _ = kill(Pid::from_raw(pid), signal);
        pid
    }

    /// Waits until a process that died has a successor.
    pub async fn replaced(&self, name: &str, old: i32) {
        until(Duration::from_secs(60), "a successor", async || {
            let state = self.read_state()?;
            state.processes.iter().any(|p| p.name == name && p.pid != old).then_some(())
        })
        .await;
    }

    /// Kills a server with `kill -9` and keeps it down: without its configuration it cannot be started again.
    pub fn take_down(&self, name: &str) -> Away<'_> {
        let service = name.split('-').next().expect("a name");
        let kind = if self.cluster { "cluster" } else { "single" };
        let config = self.folder().join(format!("data/{kind}/{name}/{service}.conf"));
        let kept = self.folder().join(format!("{name}.kept"));
        fs::rename(&config, &kept).expect("its configuration");
        Away { stack: self, name: name.to_owned(), config, kept, died: self.kill9(name) }
    }

    /// Ends a service with this signal and keeps it down: its successors find the admin port taken.
    pub async fn shut_out(&self, name: &str, signal: Signal) -> ShutOut<'_> {
        let admin = self.process(name).admin.expect("an admin port");
        let addr = admin.trim_start_matches("http://");
        let old = self.signal(name, signal);
        let port = until(Duration::from_secs(30), &format!("{name} to leave its port"), async || {
            let taken = TcpListener::bind(addr).ok();
            // A successor was quicker.
            let running = self.read_state().into_iter().flat_map(|state| state.processes);
            for successor in running.filter(|p| p.name == name && p.pid != old && taken.is_none()) {
                let _ = kill(Pid::from_raw(successor.pid), Signal::SIGKILL);
            }
            taken
        })
        .await;
        until(Duration::from_secs(30), &format!("{name} to end"), async || {
            (kill(Pid::from_raw(old), None) == Err(Errno::ESRCH)).then_some(())
        })
        .await;
        ShutOut { stack: self, name: name.to_owned(), port }
    }

    /// Whether a replica reports that all of its parts are ready.
    pub async fn ready(&self, name: &str) -> bool {
        // For a moment, a process that has died and is about to be started again is in no state file.
        let Some(process) = self.state().processes.into_iter().find(|p| p.name == name) else { return false };
        let admin = process.admin.expect("an admin port");
        reqwest_get(&format!("{admin}/readyz")).await.is_some_and(|body| {
            body.contains("\"ready\"") && !body.contains("\"degraded\"") && !body.contains("\"unready\"")
        })
    }

    /// The loops of a replica as it reports them, by name.
    pub async fn loops(&self, name: &str) -> BTreeMap<String, Value> {
        let admin = self.process(name).admin.expect("an admin port");
        let text = reqwest_get(&format!("{admin}/loops")).await.unwrap_or_default();
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
        rows.into_iter().map(|row| (row["name"].as_str().unwrap_or_default().to_owned(), row)).collect()
    }

    /// Waits until every replica has polled the settings of topics twice: a request that changes a topic is answered
    /// just before the other replicas learn of the change. Needs a short `MUSTER_LOOP_CONFIG_INTERVAL`.
    pub async fn settings_are_known(&self) {
        let replicas = self.state().processes.into_iter().filter(|process| process.admin.is_some()).count();
        let gateway = self.gateway(1);
        let polls = async || {
            let rows = gateway.get("/loops").await.body["items"].as_array().cloned().unwrap_or_default();
            let watches = rows.into_iter().filter(|row| row["loop"] == "config watch");
            let ticks = |row: Value| Some((row["instance"].as_str()?.to_owned(), row["ticks"].as_u64()?));
            watches.filter_map(ticks).collect::<BTreeMap<_, _>>()
        };
        let all = async || Some(polls().await).filter(|polls| polls.len() == replicas);
        let before = until(KNOWN, "the polls of every replica", async || all().await).await;
        until(KNOWN, "two more polls of every replica", async || {
            let now = all().await?;
            before.iter().all(|(name, ticks)| now.get(name) >= Some(&(ticks + 2))).then_some(())
        })
        .await;
    }

    /// The log of a process so far.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder().join("logs").join(format!("{name}.log"))).unwrap_or_default()
    }

    /// The sum of a metric over all replicas of this service. A replica that does not answer is asked again: one that
    /// counted as 0 would make a sum that no replica has told.
    pub async fn metric(&self, service: &str, name: &str) -> f64 {
        until(Duration::from_secs(60), &format!("{name} of every {service}"), async || {
            let mut sum = 0.0;
            for process in self.state().processes.iter().filter(|p| p.service == service) {
                if let Some(admin) = &process.admin {
                    sum += crate::metric_sum(&reqwest_get(&format!("{admin}/metrics")).await?, name);
                }
            }
            Some(sum)
        })
        .await
    }
}

/// A server that was taken down.
pub struct Away<'a> {
    stack: &'a Stack,
    name: String,
    config: PathBuf,
    kept: PathBuf,
    died: i32,
}

impl Away<'_> {
    /// Starts the server again, with its data.
    pub async fn comes_back(self) {
        fs::rename(&self.kept, &self.config).expect("its configuration");
        self.stack.replaced(&self.name, self.died).await;
    }
}

/// A service that is kept down.
pub struct ShutOut<'a> {
    stack: &'a Stack,
    name: String,
    port: TcpListener,
}

impl ShutOut<'_> {
    /// Frees the port, and waits until the service is ready.
    pub async fn comes_back(self) {
        drop(self.port);
        until(Duration::from_secs(60), &format!("{} to be ready again", self.name), async || {
            self.stack.ready(&self.name).await.then_some(())
        })
        .await;
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if thread::panicking() {
            let dev = fs::read_to_string(self.dir.path().join("dev.log")).unwrap_or_default();
            eprintln!("--- dev.log\n{}", tail(&dev));
            for entry in fs::read_dir(self.folder().join("logs")).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if ["gateway", "scheduler", "workflow"].iter().any(|service| name.starts_with(service)) {
                    eprintln!("--- {name}\n{}", tail(&fs::read_to_string(entry.path()).unwrap_or_default()));
                }
            }
        }
        let pid = i32::try_from(self.dev.id()).map(Pid::from_raw);
        if let Ok(pid) = pid {
            let _ = kill(pid, Signal::SIGTERM);
        }
        for _ in 0..400 {
            if matches!(self.dev.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.dev.kill();
        let _ = self.dev.wait();
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

async fn reqwest_get(url: &str) -> Option<String> {
    crate::probe::http().get(url).send().await.ok()?.text().await.ok()
}

/// Spawns a process from a thread that never ends, because the kernel sends the death signal when the parent thread
/// ends.
pub fn spawn_forever(command: Command) -> Child {
    type Order = (Command, mpsc::Sender<Child>);
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn().expect("muster dev can be started"));
            }
        });
        orders
    });
    let (answer, child) = mpsc::channel();
    spawner.send((command, answer)).expect("the spawner lives");
    child.recv().expect("a child")
}
