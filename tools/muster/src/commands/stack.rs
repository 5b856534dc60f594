//! `muster stack`: writes the state file of a stack that Docker Compose runs, and shows the content of a state file.
//! Drills, benches and every other command then work on that stack as on one of `muster dev`.

mod compose;
mod docker;
pub(crate) mod engine;

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::{
    outcome::Failure,
    output::{self, Format},
    redis::mask,
    stack::{Process, Stack},
    target::Target,
};

#[derive(Subcommand, Debug)]
pub(crate) enum StackCommand {
    FromCompose(FromCompose),
    Show(Show),
}

/// Write the state file for a stack under Docker Compose
#[derive(Args, Debug)]
pub(crate) struct FromCompose {
    /// The compose project [default: the only one that has a gateway]
    #[arg(long, short, env = "COMPOSE_PROJECT_NAME", value_name = "NAME")]
    project: Option<String>,

    /// Fail if a replica does not run, instead of omitting it with a warning
    #[arg(long)]
    all: bool,
}

/// Show the state file, and which of its processes run
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Show the API key and the passwords too
    #[arg(long)]
    secrets: bool,
}

impl StackCommand {
    pub(crate) async fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        match self {
            StackCommand::FromCompose(from) => from.run(target, format).await,
            StackCommand::Show(show) => show.run(target, format),
        }
    }
}

impl FromCompose {
    async fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        let path = target.state_file.clone().unwrap_or_else(Stack::default_path);
        refuse_a_living_dev(&path)?;
        let containers = docker::containers().await?;
        let found = compose::describe(&containers, self.project.as_deref(), target.api_key.as_deref())?;
        for gone in &found.left_out {
            if self.all {
                return Err(Failure::new(gone.clone()).hint("`docker-compose ps` and `logs` show why").into());
            }
            eprintln!("warning: {gone}: omitted");
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        found.stack.write(&path)?;
        match format {
            Format::Json => output::json(&shown(&found.stack, false)),
            Format::Table => {
                output::line(format_args!(
                    "{}: {} processes of the compose project {}",
                    path.display(),
                    found.stack.processes.len(),
                    found.stack.project.as_deref().unwrap_or_default(),
                ));
            }
        }
        Ok(())
    }
}

/// Refuses to replace the state file of a running `muster dev`.
fn refuse_a_living_dev(path: &Path) -> anyhow::Result<()> {
    // A file that cannot be parsed is replaced.
    let Ok(Some(old)) = Stack::read(path) else { return Ok(()) };
    if old.kind.is_none() && old.processes.iter().any(is_alive) {
        let failure = Failure::new(format!("{} describes a running stack of `muster dev`", path.display()));
        return Err(failure.hint("use another file with --state-file").into());
    }
    Ok(())
}

impl Show {
    fn run(self, target: &Target, format: Format) -> anyhow::Result<()> {
        let Some(stack) = target.stack()? else {
            let failure = Failure::new(format!("there is no state file {}", Stack::default_path().display()));
            return Err(failure.hint("`muster dev` or `muster stack from-compose` writes it").into());
        };
        let value = shown(&stack, self.secrets);
        if format == Format::Json {
            output::json(&value);
            return Ok(());
        }
        let text = |name: &str| output::cell(&value[name]);
        output::facts(&[
            ("project", text("project")),
            ("api key", text("api_key")),
            ("redis", text("redis_url")),
            ("nats", text("nats_url")),
        ]);
        output::line("");
        let row = |p: &Process| {
            let place = [&p.http, &p.grpc, &p.addr].into_iter().flatten().cloned().collect::<Vec<_>>().join(" ");
            let state = if is_alive(p) { "up" } else { "gone" };
            let admin = p.admin.clone().or_else(|| p.monitor.clone()).unwrap_or_default();
            vec![p.name.clone(), p.service.clone(), p.pid.to_string(), state.to_owned(), place, admin]
        };
        output::rows(&["PROCESS", "SERVICE", "PID", "STATE", "ADDRESS", "ADMIN"], stack.processes.iter().map(row));
        Ok(())
    }
}

fn is_alive(process: &Process) -> bool {
    Path::new(&format!("/proc/{}", process.pid)).exists()
}

/// The state file as JSON, with its secrets masked unless they are requested.
fn shown(stack: &Stack, secrets: bool) -> serde_json::Value {
    let mut value = json!(stack);
    if !secrets {
        value["api_key"] = json!("***");
        value["redis_url"] = json!(mask(&stack.redis_url));
        value["nats_url"] = json!(mask(&stack.nats_url));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_dev_that_runs_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stack.json");
        let me = Process { name: "gateway-1".into(), pid: std::process::id(), ..Process::default() };
        let mut stack = Stack { processes: vec![me], ..Stack::default() };
        stack.write(&path).unwrap();
        assert!(refuse_a_living_dev(&path).unwrap_err().to_string().contains("running stack of `muster dev`"));
        stack.kind = Some("compose".into());
        stack.write(&path).unwrap();
        refuse_a_living_dev(&path).unwrap();
        stack.kind = None;
        stack.processes[0].pid = u32::MAX;
        stack.write(&path).unwrap();
        refuse_a_living_dev(&path).unwrap();
    }

    #[test]
    fn secrets_are_shown_only_when_asked_for() {
        let stack = Stack {
            api_key: "hush".into(),
            redis_url: "redis://:hush@h:1".into(),
            nats_url: "nats://me:hush@h:2".into(),
            ..Stack::default()
        };
        assert!(!shown(&stack, false).to_string().contains("hush"));
        assert_eq!(shown(&stack, true)["redis_url"], "redis://:hush@h:1");
    }
}
