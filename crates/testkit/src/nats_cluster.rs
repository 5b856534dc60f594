//! Three nats-servers that form one JetStream cluster, for streams with three replicas.

use anyhow::Result;

use crate::{NatsServer, off_runtime, ports::free_port};

const NODES: usize = 3;
const START_TRIES: usize = 4;

/// Three running nats-servers.
pub struct NatsCluster {
    /// The nodes.
    pub nodes: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts a cluster and waits until JetStream has a leader that every node can reach.
    pub async fn start() -> NatsCluster {
        off_runtime(|| {
            for _ in 1..START_TRIES {
                if let Ok(cluster) = Self::try_start() {
                    return cluster;
                }
            }
            Self::try_start().expect("a NATS cluster starts")
        })
        .await
    }

    fn try_start() -> Result<NatsCluster> {
        let ports: Vec<u16> = (0..NODES).map(|_| free_port()).collect();
        let routes = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect::<Vec<_>>().join(", ");
        let block = |port: &u16| {
            format!("cluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{routes}], no_advertise: true }}")
        };
        let nodes: Vec<NatsServer> = ports.iter().map(|port| NatsServer::launch(block(port))).collect();
        for node in &nodes {
            node.wait_ready()?;
        }
        Ok(NatsCluster { nodes })
    }

    /// The URLs of all nodes, comma-separated, as `NATS_URL` takes them.
    pub fn url(&self) -> String {
        self.nodes.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }

    /// `kill -9` of one node.
    pub fn kill9(&self, node: usize) {
        self.nodes[node].kill9();
    }

    /// Brings one node back with its streams.
    pub async fn restart(&self, node: usize) {
        self.nodes[node].restart().await;
    }
}
