//! Redis for a stack: one server, or a cluster of three primaries and three replicas. Knows its configuration and
//! when it is ready, but not its data.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use tokio::process::Command;

use super::{
    fleet::{Recipe, Wave},
    ports::Ports,
    probe,
};
use crate::{outcome::Failure, programs, stack::Process};

/// The size from which a log on disk is rewritten. The default is 64 MB, which thousands of jobs a second fill in
/// seconds: each time a child of Redis uses a core to write every job again.
pub(crate) const LATE_REWRITE: &str = "auto-aof-rewrite-min-size 512mb\n";
/// The primaries, and as many replicas.
const CLUSTER_NODES: usize = 6;

/// The Redis side of a stack.
pub(crate) struct Redis {
    clustered: bool,
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    port: u16,
    dir: PathBuf,
}

impl Node {
    fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn config(&self, clustered: bool) -> String {
        // Paths are left out on purpose: everything is relative to the node's own folder.
        let mut text = format!(
            "# Written by `muster dev`; changes are lost.\n\
             bind 127.0.0.1\nport {}\ndaemonize no\nappendonly yes\nappendfsync everysec\nsave \"\"\n\
             maxmemory-policy noeviction\nhash-max-listpack-value 512\n{LATE_REWRITE}",
            self.port
        );
        if clustered {
            text += "cluster-enabled yes\ncluster-config-file nodes.conf\n\
                     cluster-node-timeout 1500\ncluster-require-full-coverage no\n";
        }
        text
    }
}

impl Redis {
    /// Chooses ports and writes the configuration under `data`; starts nothing yet.
    pub(crate) fn plan(data: &Path, clustered: bool, ports: &mut Ports) -> anyhow::Result<Redis> {
        let mut nodes = Vec::new();
        for n in 1..=if clustered { CLUSTER_NODES } else { 1 } {
            let name = format!("redis-{n}");
            let port = if clustered { ports.keep_redis_node(&name)? } else { ports.keep(&name)? };
            let node = Node { dir: data.join(&name), name, port };
            fs::create_dir_all(&node.dir)?;
            fs::write(node.dir.join("redis.conf"), node.config(clustered))?;
            nodes.push(node);
        }
        Ok(Redis { clustered, nodes })
    }

    /// The URL that services connect to.
    pub(crate) fn url(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(|node| format!("redis://{}", node.addr())).collect();
        urls.join(",")
    }

    /// The name and address of each node.
    pub(crate) fn addrs(&self) -> Vec<(String, String)> {
        self.nodes.iter().map(|node| (node.name.clone(), node.addr())).collect()
    }

    /// How to start the nodes.
    pub(crate) fn recipes(&self) -> anyhow::Result<Vec<Recipe>> {
        let program = programs::server("redis-server", "redis-server")?;
        if self.clustered {
            programs::server("redis-cli", "redis-tools")?;
        }
        let recipe = |node: &Node| Recipe {
            wave: Wave::Store,
            shown: Process {
                name: node.name.clone(),
                service: "redis".into(),
                addr: Some(node.addr()),
                ..Process::default()
            },
            program: program.clone(),
            args: vec!["redis.conf".into()],
            env: Vec::new(),
            dir: node.dir.clone(),
            patience: Duration::from_secs(15),
        };
        Ok(self.nodes.iter().map(recipe).collect())
    }

    /// Waits until every node serves; forms the cluster if the nodes are not one yet.
    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            let addr = node.addr();
            probe::until_ready(&node.name, || ping(&addr)).await?;
        }
        if self.clustered {
            self.form().await?;
            for node in &self.nodes {
                let addr = node.addr();
                probe::until_ready(&node.name, || in_cluster(&addr)).await?;
            }
        }
        Ok(())
    }

    /// Forms the cluster once; nodes with data from an earlier run find each other by themselves.
    async fn form(&self) -> anyhow::Result<()> {
        let info = probe::redis_ask(&self.nodes[0].addr(), "CLUSTER INFO").await?;
        if !info.contains("cluster_slots_assigned:0\r") || !info.contains("cluster_known_nodes:1\r") {
            return Ok(());
        }
        let output = Command::new(programs::server("redis-cli", "redis-tools")?)
            .args(["--cluster", "create"])
            .args(self.nodes.iter().map(Node::addr))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdin(Stdio::null())
            .output()
            .await
            .context("cannot run redis-cli")?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        let failure = Failure::new(format!("redis-cli could not form the cluster:\n{said}"));
        Err(failure
            .hint("an interrupted start may have left an incomplete cluster: remove the data and try again")
            .into())
    }
}

async fn ping(addr: &str) -> anyhow::Result<()> {
    probe::redis_ask(addr, "PING").await.map(drop)
}

/// Checks that the node sees all slots served and, if it is a replica, follows its primary.
async fn in_cluster(addr: &str) -> anyhow::Result<()> {
    let info = probe::redis_ask(addr, "CLUSTER INFO").await?;
    let whole = ["cluster_state:ok\r", "cluster_slots_ok:16384\r", &format!("cluster_known_nodes:{CLUSTER_NODES}\r")];
    anyhow::ensure!(whole.iter().all(|part| info.contains(part)), "the cluster has not formed yet");
    let role = probe::redis_ask(addr, "INFO replication").await?;
    let follows = role.contains("role:master\r") || role.contains("master_link_status:up\r");
    anyhow::ensure!(follows, "the replica is not connected to its primary yet");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_server_keeps_a_log_on_disk_and_evicts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut ports = Ports::load(dir.path().join("ports.json"));
        let redis = Redis::plan(dir.path(), false, &mut ports).unwrap();
        let config = fs::read_to_string(dir.path().join("redis-1/redis.conf")).unwrap();
        for line in ["appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction", "save \"\""] {
            assert!(config.lines().any(|l| l == line), "{line}");
        }
        assert!(!config.contains("cluster"));
        assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.nodes[0].port));
    }

    #[test]
    fn a_cluster_has_six_nodes_that_tolerate_a_missing_shard() {
        let dir = tempfile::tempdir().unwrap();
        let mut ports = Ports::load(dir.path().join("ports.json"));
        let redis = Redis::plan(dir.path(), true, &mut ports).unwrap();
        assert_eq!(redis.url().split(',').count(), 6);
        let config = fs::read_to_string(dir.path().join("redis-6/redis.conf")).unwrap();
        for line in ["cluster-enabled yes", "cluster-node-timeout 1500", "cluster-require-full-coverage no"] {
            assert!(config.lines().any(|l| l == line), "{line}");
        }
    }
}
