//! A Docker Compose stack as a drill uses it: the processes of its services, and how to keep one down. The engine
//! restarts containers that die. Signals go to the process on this host, because the engine does not restart a
//! container after `docker kill`.
//!
//! `release` starts every process that was kept down.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use tokio::time::sleep;

use crate::{
    commands::stack::engine,
    outcome::Failure,
    stack::{Process, Stack},
};

/// The interval of polling the processes.
const LOOK: Duration = Duration::from_millis(100);

/// The running stack.
pub(super) struct Attached {
    /// The state file; it is rewritten when a process was replaced.
    path: PathBuf,
    stack: RefCell<Stack>,
    /// The number of services when none is down.
    whole: usize,
    /// Restart policies of the containers that are kept down.
    held: RefCell<BTreeMap<String, String>>,
}

impl Attached {
    /// Attaches to the stack of a state file of `muster stack from-compose`.
    pub(super) async fn read(path: &Path) -> anyhow::Result<Attached> {
        let Some(known) = Stack::read(path)? else {
            let failure = Failure::new(format!("there is no state file {}", path.display()));
            return Err(failure.hint("`muster stack from-compose` writes it").into());
        };
        let Some(project) = known.project.as_deref().filter(|_| known.kind.as_deref() == Some("compose")) else {
            let failure = Failure::usage(format!("{} does not describe a compose stack", path.display()));
            return Err(failure.hint("without --state-file a drill starts a separate stack").into());
        };
        // The pids of the file may be old.
        let stack = engine::describe(project, &known.api_key).await?;
        let services = services(&stack);
        for service in &services {
            if kill(pid(service)?, None) == Err(Errno::EPERM) {
                let failure = Failure::new(format!("no permission to signal {} (pid {})", service.name, service.pid));
                return Err(failure.hint("run the drill as root").into());
            }
        }
        let attached = Attached {
            path: path.to_owned(),
            whole: services.len(),
            stack: RefCell::new(stack),
            held: RefCell::default(),
        };
        attached.stack.borrow().write(&attached.path)?;
        Ok(attached)
    }

    /// The current content of the state file.
    pub(super) fn stack(&self) -> Stack {
        self.stack.borrow().clone()
    }

    /// The services that run now.
    pub(super) fn services(&self) -> Vec<Process> {
        services(&self.stack.borrow())
    }

    /// Waits until a service was replaced, has died or has come back. Cancel-safe.
    pub(super) async fn changed(&self) -> anyhow::Result<()> {
        loop {
            sleep(LOOK).await;
            let before = self.stack();
            let known = services(&before);
            let whole =
                known.len() == self.whole && known.iter().all(|p| pid(p).is_ok_and(|pid| kill(pid, None).is_ok()));
            if whole {
                continue;
            }
            // A stack without a gateway cannot be described; try again.
            let project = before.project.as_deref().unwrap_or_default();
            let Ok(now) = engine::describe(project, &before.api_key).await else { continue };
            if now != before {
                now.write(&self.path)?;
                self.stack.replace(now);
                return Ok(());
            }
        }
    }

    /// Whether this is a service of the stack, running or down.
    pub(super) fn has(&self, name: &str) -> bool {
        self.held.borrow().contains_key(name) || self.services().iter().any(|p| p.name == name)
    }

    /// Makes the engine not restart this service when it dies.
    pub(super) async fn hold(&self, name: &str) -> anyhow::Result<()> {
        let process =
            self.services().into_iter().find(|p| p.name == name).with_context(|| format!("no {name} runs"))?;
        let container = process.container.with_context(|| format!("{name} has no container"))?;
        let policy = engine::hold(&container).await?;
        self.held.borrow_mut().insert(name.to_owned(), format!("{container} {policy}"));
        Ok(())
    }

    /// Starts the service, and makes the engine restart it when it dies.
    pub(super) async fn let_go(&self, name: &str) -> anyhow::Result<()> {
        let held = self.held.borrow().get(name).cloned();
        if let Some((container, policy)) = held.as_deref().and_then(|held| held.split_once(' ')) {
            engine::let_go(container, policy).await?;
            self.held.borrow_mut().remove(name);
        }
        Ok(())
    }

    /// Starts everything that is kept down; prints a warning for what cannot be started.
    pub(super) async fn release(&self) {
        let names: Vec<String> = self.held.borrow().keys().cloned().collect();
        for name in names {
            if let Err(error) = self.let_go(&name).await {
                eprintln!("warning: {name} stays down: {error:#}");
            }
        }
    }
}

/// The processes with an admin port: the replicas of all services.
fn services(stack: &Stack) -> Vec<Process> {
    stack.processes.iter().filter(|process| process.admin.is_some()).cloned().collect()
}

fn pid(process: &Process) -> anyhow::Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(process.pid)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_state_file_of_a_compose_stack_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stack.json");
        let said = |found: anyhow::Result<Attached>| found.err().expect("it is refused").to_string();
        assert!(said(Attached::read(&path).await).contains("there is no state file"));
        Stack::default().write(&path).unwrap();
        assert!(said(Attached::read(&path).await).contains("does not describe a compose stack"));
    }

    #[test]
    fn stores_and_workers_are_no_services() {
        let process = |name: &str, admin: Option<&str>| Process {
            name: name.into(),
            admin: admin.map(str::to_owned),
            ..Process::default()
        };
        let processes =
            vec![process("gateway-1", Some("http://127.0.0.1:9092")), process("redis", None), process("worker", None)];
        let names: Vec<String> =
            services(&Stack { processes, ..Stack::default() }).into_iter().map(|process| process.name).collect();
        assert_eq!(names, ["gateway-1"]);
    }
}
