//! Asks the `docker` program for the containers. Knows the output of `docker inspect`, as far as a state file needs
//! it, and the meaning of its errors.

use std::{collections::BTreeMap, process::Stdio};

use anyhow::Context;
use serde::Deserialize;
use tokio::process::Command;

use crate::{outcome::Failure, programs};

/// One container, as `docker inspect` describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) config: Config,
    pub(super) host_config: HostConfig,
    pub(super) network_settings: NetworkSettings,
    #[serde(default)]
    pub(super) mounts: Vec<Mount>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct State {
    pub(super) status: String,
    pub(super) pid: u32,
    pub(super) exit_code: i32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Config {
    #[serde(default)]
    pub(super) env: Option<Vec<String>>,
    #[serde(default)]
    pub(super) labels: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostConfig {
    pub(super) restart_policy: RestartPolicy,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct RestartPolicy {
    pub(super) name: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkSettings {
    #[serde(default)]
    pub(super) ports: Option<BTreeMap<String, Option<Vec<Published>>>>,
    #[serde(default)]
    pub(super) networks: Option<BTreeMap<String, Network>>,
}

/// The address of a container's port on the host.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Published {
    pub(super) host_ip: String,
    pub(super) host_port: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Network {
    #[serde(rename = "IPAddress", default)]
    pub(super) ip_address: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Mount {
    #[serde(default)]
    pub(super) source: String,
    pub(super) destination: String,
}

impl Container {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.config.labels.as_ref()?.get(&format!("com.docker.compose.{name}")).map(String::as_str)
    }

    pub(super) fn env(&self, name: &str) -> Option<&str> {
        let pairs = self.config.env.as_ref()?.iter().filter_map(|pair| pair.split_once('='));
        pairs.filter(|(known, value)| *known == name && !value.is_empty()).map(|(_, value)| value).next_back()
    }

    pub(super) fn runs(&self) -> bool {
        self.state.status == "running" && self.state.pid > 0
    }
}

/// All containers that compose created, running or not.
pub(super) async fn containers() -> anyhow::Result<Vec<Container>> {
    let listed = docker(&["ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project"]).await?;
    let ids: Vec<&str> = listed.split_whitespace().collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let text = docker(&[&["inspect", "--type", "container"], ids.as_slice()].concat()).await?;
    read(&text)
}

pub(super) fn read(text: &str) -> anyhow::Result<Vec<Container>> {
    serde_json::from_str(text).context("docker inspect gave an answer that cannot be read")
}

/// Runs `docker`, and returns its output.
pub(super) async fn docker(args: &[&str]) -> anyhow::Result<String> {
    let Some(program) = programs::find("docker") else {
        return Err(Failure::new("docker is not installed").hint("`muster dev` starts a stack without docker").into());
    };
    let said = Command::new(program).args(args).stdin(Stdio::null()).output().await.context("cannot run docker")?;
    let complaint = String::from_utf8_lossy(&said.stderr).into_owned();
    // A container that was removed since it was listed is missing from the output; the others are there.
    let only_gone = !said.stdout.is_empty() && complaint.lines().all(|line| line.contains("No such container"));
    if said.status.success() || only_gone {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    Err(refusal(complaint.trim()).into())
}

/// Turns docker's error into a message for a person.
fn refusal(said: &str) -> Failure {
    if said.contains("permission denied") {
        return Failure::new("no permission to ask the Docker engine")
            .hint("run this as root, or as a member of the group docker");
    }
    if said.contains("Cannot connect to the Docker daemon") {
        return Failure::new("the Docker engine does not answer").hint("start it, or set DOCKER_HOST");
    }
    Failure::new(format!("docker refused: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_docker_are_said_in_our_words() {
        let denied = refusal("permission denied while trying to connect to the Docker daemon socket at unix:///x");
        assert_eq!(denied.to_string(), "no permission to ask the Docker engine");
        let away = refusal("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?");
        assert_eq!(away.to_string(), "the Docker engine does not answer");
        assert_eq!(refusal("Error: No such object: x").to_string(), "docker refused: Error: No such object: x");
    }
}
