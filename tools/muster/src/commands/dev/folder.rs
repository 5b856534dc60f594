//! The folder of a stack: its lock, its API key, and the data folders of its parts. One supervisor at a time; the key
//! is created once and only its owner may read it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    outcome::Failure,
    stack::{Process, Stack, replace_private},
};

/// A killed supervisor leaves children that still drain; they get this long.
const ORPHANS: Duration = Duration::from_secs(30);

/// A stack's folder, locked by this process until it is dropped.
pub(crate) struct Folder {
    dir: PathBuf,
    state_file: PathBuf,
}

impl Folder {
    /// Takes the folder, unless a live supervisor has it. Waits for the processes that a dead one left.
    pub(crate) async fn take(dir: &Path, state_file: Option<&Path>) -> anyhow::Result<Folder> {
        fs::create_dir_all(dir.join("logs")).with_context(|| format!("cannot make {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let state_file = match state_file {
            Some(file) => std::path::absolute(file)?,
            None => dir.join("stack.json"),
        };
        if let Some(parent) = state_file.parent() {
            fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        }
        let owner = dir.join("dev.pid");
        if let Some(pid) = fs::read_to_string(&owner).ok().and_then(|text| living(text.trim())) {
            let failure = Failure::new(format!("a stack already runs in {} (pid {pid})", dir.display()));
            return Err(failure
                .hint("stop it with Ctrl-C, or start this stack with another --dir and with --port 0")
                .into());
        }
        replace_private(&owner, identity(std::process::id()).unwrap_or_default().as_bytes())?;
        let folder = Folder { dir, state_file };
        folder.await_orphans().await?;
        let _ = fs::remove_file(&folder.state_file);
        Ok(folder)
    }

    /// The full path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// The folder of the processes' logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// The path of the state file.
    pub(crate) fn state_file(&self) -> &Path {
        &self.state_file
    }

    /// The folder of the stores' data. A cluster and a single server never share it.
    pub(crate) fn data(&self, clustered: bool) -> anyhow::Result<PathBuf> {
        let data = self.dir.join("data").join(if clustered { "cluster" } else { "single" });
        fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
        Ok(data)
    }

    /// The stack's API key; created on first use.
    pub(crate) fn api_key(&self) -> anyhow::Result<String> {
        let file = self.dir.join("api-key");
        match fs::read_to_string(&file) {
            Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
            Ok(_) => (),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => (),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", file.display())),
        }
        let key = format!("dev-{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        replace_private(&file, format!("{key}\n").as_bytes())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(key)
    }

    /// Waits for the processes of a killed supervisor, which stop by themselves: two servers on the same files would
    /// be worse than a wait.
    async fn await_orphans(&self) -> anyhow::Result<()> {
        let Some(stack) = Stack::read(&self.state_file).unwrap_or_default() else {
            return Ok(());
        };
        let limit = Instant::now() + ORPHANS;
        while let Some(orphan) = stack.processes.iter().find(|p| is_ours(p)) {
            if Instant::now() >= limit {
                let failure =
                    Failure::new(format!("{} (pid {}) of an earlier stack still runs", orphan.name, orphan.pid));
                return Err(failure.hint(format!("stop it first: kill {}", orphan.pid)).into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.dir.join("dev.pid"));
    }
}

/// A pid and its start time: together they identify a process uniquely.
fn identity(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
    Some(format!("{pid} {started}"))
}

/// The pid, if the process that this identity names is alive.
fn living(named: &str) -> Option<u32> {
    let pid = named.split(' ').next()?.parse().ok()?;
    match identity(pid) {
        Some(now) => (now == named).then_some(pid),
        // Without /proc only the pid can be checked.
        None => (!Path::new("/proc/self/stat").exists() && exists(pid)).then_some(pid),
    }
}

fn exists(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

/// Whether the pid still belongs to that process: its program has the right name.
fn is_ours(process: &Process) -> bool {
    let Ok(line) = fs::read_to_string(format!("/proc/{}/cmdline", process.pid)) else {
        return false;
    };
    let program = line.split('\0').next().unwrap_or_default();
    match process.service.as_str() {
        "redis" => program.contains("redis-server"),
        "nats" => program.contains("nats-server"),
        _ => program.contains("muster"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn the_key_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::take(dir.path(), None).await.unwrap();
        let key = folder.api_key().unwrap();
        assert_eq!(folder.api_key().unwrap(), key);
        assert!(key.len() >= 64);
        let mode = fs::metadata(dir.path().join("api-key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_folder_has_one_supervisor_and_is_free_again_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::take(dir.path(), None).await.unwrap();
        let refused = Folder::take(dir.path(), None).await.map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("already"), "{refused}");
        drop(folder);
        Folder::take(dir.path(), None).await.unwrap();
    }

    #[test]
    fn a_recycled_pid_is_not_the_supervisor() {
        let me = identity(std::process::id()).unwrap();
        assert_eq!(living(&me), Some(std::process::id()));
        assert_eq!(living(&format!("{} 1", std::process::id())), None);
        assert_eq!(living("nonsense"), None);
    }
}
