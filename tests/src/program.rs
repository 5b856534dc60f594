//! One program started by hand, for tests that need no whole stack. It dies with its test.

use std::{
    ffi::OsStr,
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::stack::spawn_forever;

/// A running program.
pub struct Program {
    child: Child,
}

impl Program {
    /// Starts it with these settings and nothing else; what it writes goes to `log`.
    pub fn start(program: impl AsRef<OsStr>, args: &[&str], env: &[(&str, &str)], log: &Path) -> Program {
        let log = File::options().create(true).append(true).open(log).expect("a log file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).args(args);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin").envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        Program { child: spawn_forever(command) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
