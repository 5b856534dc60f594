//! NATS for a stack: one server with JetStream on disk, or three that replicate. Knows its configuration and when it
//! is ready; the services create their streams themselves.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    fleet::{Recipe, Wave},
    ports::Ports,
    probe,
};
use crate::{programs, stack::Process};

const CLUSTER_NODES: usize = 3;

/// The NATS side of a stack.
pub(crate) struct Nats {
    nodes: Vec<Node>,
}

struct Node {
    name: String,
    port: u16,
    monitor: u16,
    route: u16,
    dir: PathBuf,
}

impl Node {
    fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Nats {
    /// Chooses ports and writes the configuration under `data`; starts nothing yet.
    pub(crate) fn plan(data: &Path, clustered: bool, ports: &mut Ports) -> anyhow::Result<Nats> {
        let mut nodes = Vec::new();
        for n in 1..=if clustered { CLUSTER_NODES } else { 1 } {
            let name = format!("nats-{n}");
            let node = Node {
                port: ports.keep(&name)?,
                monitor: ports.free()?,
                route: if clustered { ports.keep(&format!("{name}-route"))? } else { 0 },
                dir: data.join(&name),
                name,
            };
            nodes.push(node);
        }
        let nats = Nats { nodes };
        for node in &nats.nodes {
            fs::create_dir_all(&node.dir)?;
            fs::write(node.dir.join("nats.conf"), nats.config(node))?;
        }
        Ok(nats)
    }

    /// The URL that services connect to.
    pub(crate) fn url(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(|node| format!("nats://{}", node.addr())).collect();
        urls.join(",")
    }

    /// The client address of each node.
    pub(crate) fn addrs(&self) -> Vec<String> {
        self.nodes.iter().map(Node::addr).collect()
    }

    /// The folder of each node's streams, by the node's name.
    pub(crate) fn stores(&self) -> Vec<(String, PathBuf)> {
        self.nodes.iter().map(|node| (node.name.clone(), node.dir.join("jetstream"))).collect()
    }

    /// How many copies of a stream there can be.
    pub(crate) fn replicas(&self) -> usize {
        self.nodes.len()
    }

    /// How to start the nodes.
    pub(crate) fn recipes(&self) -> anyhow::Result<Vec<Recipe>> {
        let program = programs::server("nats-server", "nats-server")?;
        let threads: Vec<_> = threads().map(|n| ("GOMAXPROCS", n.to_string())).into_iter().collect();
        let recipe = |node: &Node| Recipe {
            wave: Wave::Bus,
            shown: Process {
                name: node.name.clone(),
                service: "nats".into(),
                addr: Some(node.addr()),
                monitor: Some(format!("http://127.0.0.1:{}", node.monitor)),
                ..Process::default()
            },
            program: program.clone(),
            args: vec!["-c".into(), "nats.conf".into()],
            env: threads.clone(),
            dir: node.dir.clone(),
            patience: Duration::from_secs(15),
        };
        Ok(self.nodes.iter().map(recipe).collect())
    }

    /// Waits until JetStream serves on every node; in a cluster that means it has a leader.
    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            let addr = format!("127.0.0.1:{}", node.monitor);
            let healthy = || async { probe::http_get(&addr, "/healthz").await.map(drop) };
            probe::until_ready(&node.name, healthy).await?;
        }
        Ok(())
    }

    fn config(&self, node: &Node) -> String {
        let mut text = format!(
            "# Written by `muster dev`; changes are lost.\n\
             server_name: {}\nlisten: \"127.0.0.1:{}\"\nhttp: \"127.0.0.1:{}\"\n\
             ping_interval: \"2s\"\nping_max: 2\n\
             jetstream {{ store_dir: \"jetstream\" }}\n",
            node.name, node.port, node.monitor
        );
        if self.nodes.len() > 1 {
            let routes: Vec<String> =
                self.nodes.iter().map(|other| format!("\"nats-route://127.0.0.1:{}\"", other.route)).collect();
            text += &format!(
                "cluster {{ name: muster, listen: \"127.0.0.1:{}\", routes: [{}], no_advertise: true }}\n",
                node.route,
                routes.join(", ")
            );
        }
        text
    }
}

/// How many threads a server uses, unless it is configured: half of the cores, because the other processes of the
/// stack share them. On two cores a job then costs NATS a sixth less than with two threads that wake each other.
fn threads() -> Option<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::env::var_os("GOMAXPROCS").is_none().then_some((cores / 2).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_nodes_know_each_other_and_one_stands_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut ports = Ports::load(dir.path().join("ports.json"));
        let nats = Nats::plan(dir.path(), true, &mut ports).unwrap();
        assert_eq!((nats.replicas(), nats.url().split(',').count()), (3, 3));
        let config = fs::read_to_string(dir.path().join("nats-2/nats.conf")).unwrap();
        assert!(nats.nodes.iter().all(|n| config.contains(&format!("nats-route://127.0.0.1:{}", n.route))));

        let alone = tempfile::tempdir().unwrap();
        let nats = Nats::plan(alone.path(), false, &mut ports).unwrap();
        assert_eq!(nats.replicas(), 1);
        assert!(!fs::read_to_string(alone.path().join("nats-1/nats.conf")).unwrap().contains("cluster"));
    }
}
