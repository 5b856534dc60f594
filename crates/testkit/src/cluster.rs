//! A Redis Cluster of six nodes, three primaries with a replica each. Failovers are quick (node
//! time-out 1.5 s), and a shard that is down does not take the others with it.

use std::{ops::Range, process::Command, time::Duration};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    off_runtime,
    ports::free_port,
    redis::{RedisServer, ask, cli},
    wait::{poll, until},
};

const NODES: usize = 6;
const START_TRIES: usize = 4;
const HEALING_TIME: Duration = Duration::from_secs(40);
const STEADY: Duration = Duration::from_secs(30);

/// Six running redis-servers that form one cluster.
pub struct RedisCluster {
    /// The nodes. The first three begin as primaries; failovers change that.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a cluster and waits until all slots are served and all replicas follow.
    pub async fn start() -> RedisCluster {
        off_runtime(|| Self::start_at(None)).await
    }

    /// The same, but the clock of the last node, which begins as a replica, is off by `offset`.
    pub async fn start_with_a_replica_at(offset: &'static str) -> RedisCluster {
        off_runtime(move || Self::start_at(Some(offset))).await
    }

    /// Starts a cluster for tests that kill no node: no node is taken for dead because a busy machine delayed it.
    /// That would lose the writes that its replica does not have yet.
    pub async fn start_steady() -> RedisCluster {
        off_runtime(Self::start_steady_blocking).await
    }

    pub(crate) fn start_steady_blocking() -> RedisCluster {
        let cluster = Self::start_at(None);
        set_node_timeout(&cluster.running_ports(), STEADY);
        cluster
    }

    /// Sets how long a node is silent before the others take it for dead.
    pub async fn set_node_timeout(&self, timeout: Duration) {
        let ports = self.running_ports();
        off_runtime(move || set_node_timeout(&ports, timeout)).await;
    }

    fn start_at(last: Option<&'static str>) -> RedisCluster {
        for _ in 1..START_TRIES {
            if let Ok(cluster) = Self::try_start(last) {
                return cluster;
            }
        }
        Self::try_start(last).expect("a Redis Cluster starts")
    }

    fn try_start(last: Option<&'static str>) -> Result<RedisCluster> {
        let nodes: Vec<RedisServer> = (0..NODES)
            .map(|n| {
                let options = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]
                    .into_iter()
                    .chain(["--cluster-node-timeout", "1500", "--repl-diskless-sync-delay", "0"])
                    .chain(["--cluster-port", &free_port().to_string()])
                    .map(str::to_owned)
                    .collect::<Vec<_>>();
                RedisServer::launch_at(last.filter(|_| n == NODES - 1), &options)
            })
            .collect();
        for node in &nodes {
            node.wait_ready()?;
        }
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .context("redis-cli is installed")?;
        ensure!(created.status.success(), "cluster create: {}", String::from_utf8_lossy(&created.stdout));
        let cluster = RedisCluster { nodes };
        let ports: Vec<u16> = cluster.nodes.iter().map(RedisServer::port).collect();
        match poll(HEALING_TIME, || healthy(&ports).then_some(())) {
            Some(()) => Ok(cluster),
            None => bail!("the cluster did not become healthy within {HEALING_TIME:?}"),
        }
    }

    /// The URLs of all nodes, comma-separated, as `REDIS_URL` takes them.
    pub fn url(&self) -> String {
        self.nodes.iter().map(RedisServer::url).collect::<Vec<_>>().join(",")
    }

    /// The index of the node that serves `key` now, as a running node sees it.
    pub async fn primary_of(&self, key: &str) -> usize {
        let what = format!("a primary that serves {key}");
        until(HEALING_TIME, &what, async || {
            let (ports, key) = (self.running_ports(), key.to_owned());
            let port = off_runtime(move || ports.into_iter().find_map(|port| served_by(port, &key))).await?;
            self.nodes.iter().position(|node| node.port() == port)
        })
        .await
    }

    /// `kill -9` of one node.
    pub fn kill9(&self, node: usize) {
        self.nodes[node].kill9();
    }

    /// Brings one node back with its data.
    pub async fn restart(&self, node: usize) {
        self.nodes[node].restart().await;
    }

    /// Waits until every running node sees all slots served by primaries that run, and every
    /// running replica follows its primary.
    pub async fn wait_healthy(&self) {
        until(HEALING_TIME, "a healthy cluster", async || {
            let ports = self.running_ports();
            off_runtime(move || healthy(&ports)).await.then_some(())
        })
        .await;
    }

    /// What redis-cli prints for a command on one node, trimmed.
    pub async fn cli(&self, node: usize, args: &[&str]) -> String {
        self.nodes[node].cli(args).await
    }

    fn running_ports(&self) -> Vec<u16> {
        self.nodes.iter().filter(|node| node.running()).map(RedisServer::port).collect()
    }
}

fn set_node_timeout(ports: &[u16], timeout: Duration) {
    let set = ["CONFIG", "SET", "cluster-node-timeout", &timeout.as_millis().to_string()].map(str::to_owned);
    for &port in ports {
        assert_eq!(cli(port, &set), "OK", "the time-out of the node on port {port}");
    }
}

fn healthy(ports: &[u16]) -> bool {
    let mut primaries = 0;
    for &port in ports {
        let (Ok(cluster), Ok(replication)) = (ask(port, "CLUSTER INFO"), ask(port, "INFO replication")) else {
            return false;
        };
        if !cluster.contains("cluster_state:ok\r") || !cluster.contains("cluster_slots_ok:16384\r") {
            return false;
        }
        if replication.contains("role:master\r") {
            primaries += 1;
        } else if !replication.contains("master_link_status:up\r") {
            return false;
        }
        // If all nodes run, each primary has its replica: a failover is possible again.
        if ports.len() == NODES && replication.contains("role:master\r") && replication.contains("connected_slaves:0\r")
        {
            return false;
        }
    }
    primaries == NODES / 2
}

/// The port of the node that serves the key's slot, as the node at `port` sees it.
fn served_by(port: u16, key: &str) -> Option<u16> {
    let slot: u32 = cli(port, &["CLUSTER".into(), "KEYSLOT".into(), key.into()]).parse().ok()?;
    let nodes = ask(port, "CLUSTER NODES").ok()?;
    nodes.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let flags = words.get(2)?;
        if !flags.split(',').any(|flag| flag == "master") || flags.contains("fail") {
            return None;
        }
        let serves = words.get(8..)?.iter().filter_map(|word| range(word)).any(|range| range.contains(&slot));
        serves.then(|| words[1].split(['@', ',']).next()?.rsplit(':').next()?.parse().ok()).flatten()
    })
}

fn range(word: &str) -> Option<Range<u32>> {
    if word.starts_with('[') {
        return None;
    }
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..last.parse::<u32>().ok()? + 1)
}
