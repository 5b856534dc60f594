//! One program started by hand, for tests that need no whole stack. It dies with its test.

use std::{
    ffi::OsStr,
    fs::File,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use muster_testkit::until;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::stack::spawn_forever;

/// A running program.
pub struct Program {
    child: Child,
}

impl Program {
    /// Starts the program with only these settings; its output goes to `log`.
    pub fn start(program: impl AsRef<OsStr>, args: &[&str], env: &[(&str, &str)], log: &Path) -> Program {
        let log = File::options().create(true).append(true).open(log).expect("a log file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).args(args);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin").envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        Program { child: spawn_forever(command) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends any signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal);
    }

    /// Waits until the program has ended by itself, and returns its exit status.
    pub async fn exited(&mut self, within: Duration) -> ExitStatus {
        until(within, "the program to end", async || self.child.try_wait().ok().flatten()).await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
