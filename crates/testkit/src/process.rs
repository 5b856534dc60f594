//! One child process that dies with the test: by `Drop`, and by the kernel when the test process is
//! killed (`setpriv --pdeathsig`). The kernel's signal follows the thread that spawned the child, so
//! one thread that never ends spawns them all.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A running server.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with its output in `log`.
    pub(crate) fn spawn(program: &str, args: &[String], log: &Path) -> io::Result<Process> {
        let mut command = if has_setpriv() {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).arg(find(program));
            command
        } else {
            Command::new(find(program))
        };
        let out = File::options().create(true).append(true).open(log)?;
        command.args(args).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        Ok(Process { child: spawn_forever(command)?, log: log.to_path_buf() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has ended.
    pub(crate) fn exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGKILL and reaps the process.
    pub(crate) fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and reaps the process; sends SIGKILL after five seconds.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.exited() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        self.kill9();
    }

    /// Stops the process with SIGSTOP; returns when it has stopped.
    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.pid());
        let deadline = Instant::now() + Duration::from_secs(1);
        let stopped = || std::fs::read_to_string(&stat).is_ok_and(|line| line.contains(") T "));
        while !stopped() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Continues the process.
    pub(crate) fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The end of its output, for the message of a failure.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.pid()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Debian keeps some servers out of an ordinary user's PATH.
fn find(program: &str) -> PathBuf {
    let system = Path::new("/usr/sbin").join(program);
    if system.is_file() { system } else { PathBuf::from(program) }
}

fn has_setpriv() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let quiet = Command::new("setpriv").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    })
}

struct Order {
    command: Command,
    answer: mpsc::Sender<io::Result<Child>>,
}

fn spawn_forever(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("server-parent".into())
            .spawn(move || {
                for mut order in inbox {
                    let _ = order.answer.send(order.command.spawn());
                }
            })
            .expect("a thread can be started");
        orders
    });
    let (answer, result) = mpsc::channel();
    spawner.send(Order { command, answer }).expect("the parent thread never ends");
    result.recv().expect("the parent thread never ends")
}
