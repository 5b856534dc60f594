//! The processes of a stack: starts them, restarts those that die, stops them in order.
//!
//! Each process has a process group of its own, so that Ctrl-C reaches only the supervisor. Each dies with the
//! supervisor, even if that is killed with -9. The kernel binds a process to the *thread* that started it: everything
//! here must run on the main thread.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use futures_util::{StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{process::Command, time::Instant};

use crate::{outcome::Failure, programs, stack::Process};

/// After a process has lived this long, its earlier deaths no longer count.
const SOUND: Duration = Duration::from_secs(10);
/// The first wait before a restart; it doubles with each death.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait before a restart, unless configured otherwise.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// After this many deaths before it was ever ready, the start of a process has failed.
const HOPELESS: u32 = 3;

/// The order in which a stack is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wave {
    Worker,
    Service,
    Bus,
    Store,
}

/// How to start one process.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) wave: Wave,
    /// Its entry in the state file; the pid is filled in.
    pub(crate) shown: Process,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) dir: PathBuf,
    /// How long it may take to stop before it is killed.
    pub(crate) patience: Duration,
}

struct Member {
    recipe: Recipe,
    pid: Option<u32>,
    started: Instant,
    deaths: u32,
    restart_at: Option<Instant>,
    proven: bool,
    /// Whether it stays down when it dies, until `let_go`.
    held: bool,
}

type Exit = (usize, io::Result<ExitStatus>);

/// All processes of the stack.
pub(crate) struct Fleet {
    members: Vec<Member>,
    exits: FuturesUnordered<LocalBoxFuture<'static, Exit>>,
    logs: PathBuf,
    setpriv: Option<PathBuf>,
    /// Whether it prints deaths to standard error.
    talks: bool,
    longest_wait: Duration,
}

impl Fleet {
    /// An empty fleet that logs into the given folder, a file per process.
    pub(crate) fn new(logs: PathBuf) -> Fleet {
        Fleet {
            members: Vec::new(),
            exits: FuturesUnordered::new(),
            logs,
            setpriv: programs::find("setpriv"),
            talks: true,
            longest_wait: LONGEST_WAIT,
        }
    }

    /// Starts a process and supervises it from now on.
    pub(crate) fn start(&mut self, recipe: Recipe) -> anyhow::Result<()> {
        let member = Member {
            recipe,
            pid: None,
            started: Instant::now(),
            deaths: 0,
            restart_at: None,
            proven: false,
            held: false,
        };
        self.members.push(member);
        let index = self.members.len() - 1;
        self.spawn(index).with_context(|| format!("cannot start {}", self.members[index].recipe.shown.name))
    }

    /// Limits how long a process that keeps dying stays down.
    pub(crate) fn restarting_within(mut self, longest: Duration) -> Fleet {
        self.longest_wait = longest;
        self
    }

    /// Prints nothing about deaths: the caller reports them.
    pub(crate) fn silent(mut self) -> Fleet {
        self.talks = false;
        self
    }

    /// From now on this process stays down when it dies.
    pub(crate) fn hold(&mut self, name: &str) {
        for member in self.members.iter_mut().filter(|m| m.recipe.shown.name == name) {
            member.held = true;
            // It may be dead already: its death and this order arrive by different ways.
            member.restart_at = None;
        }
    }

    /// Restarts it if it died meanwhile, and from now on whenever it dies.
    pub(crate) fn let_go(&mut self, name: &str) {
        for member in self.members.iter_mut().filter(|m| m.recipe.shown.name == name) {
            member.held = false;
            member.deaths = 0;
            if member.pid.is_none() {
                member.restart_at = Some(Instant::now());
            }
        }
    }

    /// Notes that all running processes have been ready once: from here on deaths only lead to restarts.
    pub(crate) fn proven(&mut self) {
        self.members.iter_mut().for_each(|m| m.proven = true);
    }

    /// The running processes, for the state file.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let shown = |m: &Member| m.pid.map(|pid| Process { pid, ..m.recipe.shown.clone() });
        self.members.iter().filter_map(shown).collect()
    }

    /// Restarts processes that die until the next one has been replaced, and returns its name. Fails only for a
    /// process that keeps dying before it was ever ready. Cancel-safe.
    pub(crate) async fn next_replaced(&mut self) -> anyhow::Result<String> {
        loop {
            let due = self.members.iter().enumerate().filter_map(|(i, m)| Some((m.restart_at?, i))).min();
            tokio::select! {
                Some((index, status)) = self.exits.next() => self.bury(index, &status)?,
                () = sleep_until(due) => if let Some((_, index)) = due {
                    let name = self.members[index].recipe.shown.name.clone();
                    match self.spawn(index) {
                        Ok(()) => {
                            let pid = self.members[index].pid.unwrap_or_default();
                            return Ok(format!("{name} runs again, pid {pid}"));
                        }
                        Err(error) => self.bury(index, &Err(error))?,
                    }
                },
            }
        }
    }

    /// Stops everything, wave by wave, each process within its patience. `hurry` ends all patience.
    pub(crate) async fn stop(&mut self, hurry: impl Future<Output = ()>) {
        let mut hurry = std::pin::pin!(hurry);
        let mut hurried = false;
        for wave in [Wave::Worker, Wave::Service, Wave::Bus, Wave::Store] {
            self.members.iter_mut().for_each(|m| m.restart_at = None);
            self.signal(wave, if hurried { Signal::SIGKILL } else { Signal::SIGTERM });
            let patience = self.alive(wave).map(|m| m.recipe.patience).max().unwrap_or_default();
            let mut limit = Instant::now() + patience;
            while self.alive(wave).next().is_some() {
                tokio::select! {
                    Some((index, _)) = self.exits.next() => self.members[index].pid = None,
                    () = &mut hurry, if !hurried => {
                        hurried = true;
                        self.signal(wave, Signal::SIGKILL);
                    }
                    () = tokio::time::sleep_until(limit) => {
                        for late in self.alive(wave) {
                            eprintln!("{} did not stop within {:?}: killed", late.recipe.shown.name, patience);
                        }
                        self.signal(wave, Signal::SIGKILL);
                        limit = Instant::now() + patience;
                    }
                }
            }
        }
    }

    fn alive(&self, wave: Wave) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |m| m.recipe.wave == wave && m.pid.is_some())
    }

    fn signal(&self, wave: Wave, signal: Signal) {
        for pid in self.alive(wave).filter_map(|m| i32::try_from(m.pid?).ok()) {
            // It may have died this instant; then its exit is handled next.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    fn spawn(&mut self, index: usize) -> io::Result<()> {
        let recipe = &self.members[index].recipe;
        let log = OpenOptions::new().create(true).append(true).open(self.log_of(&recipe.shown.name))?;
        let mut command = bound_to_parent(self.setpriv.as_deref(), &recipe.program);
        command.args(&recipe.args).current_dir(&recipe.dir).process_group(0).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        command.env_remove("MUSTER_API_KEY_FILE").envs(recipe.env.iter().map(|(k, v)| (k, v)));
        let mut child = command.spawn()?;
        let member = &mut self.members[index];
        member.pid = child.id();
        member.started = Instant::now();
        member.restart_at = None;
        self.exits.push(Box::pin(async move { (index, child.wait().await) }));
        Ok(())
    }

    fn bury(&mut self, index: usize, status: &io::Result<ExitStatus>) -> anyhow::Result<()> {
        let member = &mut self.members[index];
        member.pid = None;
        member.deaths = if member.started.elapsed() >= SOUND { 1 } else { member.deaths + 1 };
        let wait = back_off(member.deaths).min(self.longest_wait);
        member.restart_at = (!member.held).then(|| Instant::now() + wait);
        let name = member.recipe.shown.name.clone();
        let how = match status {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        if !member.proven && member.deaths >= HOPELESS {
            let log = self.log_of(&name);
            let failure = Failure::new(format!("{name} keeps dying ({how})\n{}", tail(&log, 1_500)));
            return Err(failure.hint(format!("its log is {}", log.display())).into());
        }
        if member.proven && self.talks {
            eprintln!("{name} died ({how}), starting it again in {wait:?}");
        }
        Ok(())
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }
}

/// A command whose process gets SIGTERM when the thread that started it ends. `setpriv` replaces
/// itself by the program, so the pid stays the same.
pub(crate) fn bound_to_parent(setpriv: Option<&Path>, program: &Path) -> Command {
    match setpriv {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "TERM", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

async fn sleep_until(due: Option<(Instant, usize)>) {
    match due {
        Some((at, _)) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn back_off(deaths: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << deaths.saturating_sub(1).min(16)).min(LONGEST_WAIT)
}

/// The last lines of a log, at most `limit` bytes.
fn tail(log: &Path, limit: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(limit)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let whole = if size > limit { text.split_once('\n').map_or("", |(_, rest)| rest).to_owned() } else { text };
        Ok(whole.trim_end().to_owned())
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(name: &str, wave: Wave, script: &str, dir: &Path) -> Recipe {
        Recipe {
            wave,
            shown: Process { name: name.into(), service: "test".into(), ..Process::default() },
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: Vec::new(),
            dir: dir.to_owned(),
            patience: Duration::from_secs(5),
        }
    }

    #[test]
    fn waits_double_up_to_a_limit() {
        assert_eq!(back_off(1), FIRST_WAIT);
        assert_eq!(back_off(2), FIRST_WAIT * 2);
        assert_eq!(back_off(40), LONGEST_WAIT);
    }

    #[tokio::test]
    async fn a_killed_process_is_replaced_by_one_with_another_pid() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = Fleet::new(dir.path().to_owned());
        fleet.start(recipe("a", Wave::Service, "exec sleep 1000", dir.path())).unwrap();
        fleet.proven();
        let before = fleet.processes()[0].pid;
        kill(Pid::from_raw(i32::try_from(before).unwrap()), Signal::SIGKILL).unwrap();
        let said = fleet.next_replaced().await.unwrap();
        let after = fleet.processes()[0].pid;
        assert_ne!(before, after);
        assert_eq!(said, format!("a runs again, pid {after}"));
        fleet.stop(std::future::pending()).await;
        assert!(fleet.processes().is_empty());
    }

    #[tokio::test]
    async fn one_that_is_held_stays_down_though_it_died_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = Fleet::new(dir.path().to_owned());
        fleet.start(recipe("a", Wave::Service, "exec sleep 1000", dir.path())).unwrap();
        fleet.proven();
        // On a busy machine it may come back before the test looks: then it is killed once more.
        while let Some(process) = fleet.processes().first() {
            let _ = kill(Pid::from_raw(i32::try_from(process.pid).unwrap()), Signal::SIGKILL);
            let _ = tokio::time::timeout(FIRST_WAIT / 10, fleet.next_replaced()).await;
        }
        assert!(fleet.members[0].restart_at.is_some(), "nobody had held it when it died");
        fleet.hold("a");
        assert!(fleet.members[0].restart_at.is_none());
        fleet.let_go("a");
        fleet.next_replaced().await.unwrap();
        assert_eq!(fleet.processes().len(), 1);
        fleet.stop(std::future::pending()).await;
    }

    #[tokio::test]
    async fn one_that_never_comes_up_fails_the_start_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = Fleet::new(dir.path().to_owned());
        fleet.start(recipe("b", Wave::Service, "echo no such luck; exit 3", dir.path())).unwrap();
        let error = loop {
            if let Err(error) = fleet.next_replaced().await {
                break error.to_string();
            }
        };
        assert!(error.contains("b keeps dying") && error.contains("no such luck"), "{error}");
    }

    #[tokio::test]
    async fn workers_stop_before_services_and_stores_last() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = Fleet::new(dir.path().to_owned());
        for (name, wave) in [("store", Wave::Store), ("worker", Wave::Worker), ("service", Wave::Service)] {
            let script =
                format!("trap 'echo {name} >> order; exit' TERM; echo > {name}.up; while :; do sleep 0.01; done");
            fleet.start(recipe(name, wave, &script, dir.path())).unwrap();
        }
        while !["store", "worker", "service"].iter().all(|n| dir.path().join(format!("{n}.up")).exists()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fleet.stop(std::future::pending()).await;
        let order = std::fs::read_to_string(dir.path().join("order")).unwrap();
        assert_eq!(order, "worker\nservice\nstore\n");
    }
}
