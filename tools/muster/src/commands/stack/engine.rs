//! What other commands ask of the engine that runs a compose stack: the running containers, and keeping a container
//! down when it dies.

use super::{compose, docker};
use crate::stack::Stack;

/// The current stack of a compose project.
pub(crate) async fn describe(project: &str, api_key: &str) -> anyhow::Result<Stack> {
    let containers = docker::containers().await?;
    Ok(compose::describe(&containers, Some(project), Some(api_key))?.stack)
}

/// Keeps the container down when it dies; returns its restart policy.
pub(crate) async fn hold(container: &str) -> anyhow::Result<String> {
    let policy = docker::docker(&["inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", container]).await?;
    docker::docker(&["update", "--restart=no", container]).await?;
    Ok(match policy.trim() {
        "" => "no".to_owned(),
        policy => policy.to_owned(),
    })
}

/// Starts the container again, under this restart policy.
pub(crate) async fn let_go(container: &str, policy: &str) -> anyhow::Result<()> {
    docker::docker(&["update", &format!("--restart={policy}"), container]).await?;
    docker::docker(&["start", container]).await.map(drop)
}
