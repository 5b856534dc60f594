//! What each Redis node is and is set to, for whoever asks whether the promises can be kept on it.
//!
//! Promises: only reads; a node that does not answer is told and hides no other; a setting that the
//! server keeps to itself (managed ones forbid `CONFIG`) is absent. Leaves to others: what is well
//! and what is not.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use muster_domain::{Time, time::wall_clock};

use crate::{Store, StoreError, router::NodeAddr, script::bytes};

/// Settings that `INFO` does not tell.
const SETTINGS: [&str; 3] = ["appendfsync", "hash-max-listpack-value", "cluster-require-full-coverage"];

/// One node, as it tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeVitals {
    /// Of the server: `7.0.15`.
    pub version: String,
    /// It follows another one and takes no writes.
    pub follows: bool,
    /// It keeps a log of every write on disk.
    pub append_only: bool,
    /// The last write of that log failed.
    pub log_fails: bool,
    /// What it does with keys when its memory is full.
    pub eviction: String,
    /// How much memory it may use; 0: as much as there is.
    pub max_memory: u64,
    /// How many replicas follow it.
    pub replicas: u64,
    /// How often its log is synced to disk, if it tells.
    pub fsync: Option<String>,
    /// Up to which size of values hashes are packed, if it tells.
    pub packed_values: Option<u64>,
    /// Whether one missing shard stops the others, if it tells.
    pub full_coverage: Option<bool>,
    /// How far its clock is from this process's, give or take the way there.
    pub clock_off: Duration,
}

impl NodeVitals {
    fn parse(info: &str, settings: &HashMap<String, String>) -> NodeVitals {
        let told = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let number = |name: &str| told(name).and_then(|text| text.parse().ok()).unwrap_or_default();
        NodeVitals {
            version: told("redis_version").unwrap_or_default().to_owned(),
            follows: told("role") == Some("slave"),
            append_only: told("aof_enabled") == Some("1"),
            log_fails: told("aof_last_write_status").is_some_and(|status| status != "ok"),
            eviction: told("maxmemory_policy").unwrap_or_default().to_owned(),
            max_memory: number("maxmemory"),
            replicas: number("connected_slaves"),
            fsync: settings.get("appendfsync").cloned(),
            packed_values: settings.get("hash-max-listpack-value").and_then(|text| text.parse().ok()),
            full_coverage: settings.get("cluster-require-full-coverage").map(|text| text == "yes"),
            clock_off: Duration::ZERO,
        }
    }
}

impl Store {
    /// Asks every primary how it is. Fails only if no primary is known.
    pub async fn checkup(&self) -> Result<Vec<(NodeAddr, Result<NodeVitals, StoreError>)>, StoreError> {
        let examine = async |node: NodeAddr| {
            let vitals = self.examine(&node).await;
            (node, vitals)
        };
        Ok(join_all(self.router().primaries().await?.into_iter().map(examine)).await)
    }

    async fn examine(&self, node: &NodeAddr) -> Result<NodeVitals, StoreError> {
        let info = bytes(self.router().call_node(node, &redis::cmd("INFO")).await?)?;
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(&SETTINGS[..]);
        let settings = self.router().call_node(node, &get).await.ok();
        let settings = settings.and_then(|reply| redis::from_redis_value(reply).ok()).unwrap_or_default();
        let before = wall_clock();
        let theirs = self.time_of(node).await?;
        let after = wall_clock();
        let vitals = NodeVitals::parse(&String::from_utf8_lossy(&info), &settings);
        Ok(NodeVitals { clock_off: apart(theirs, before, after), ..vitals })
    }
}

/// How far a moment lies outside of the span in which it was told.
fn apart(theirs: Time, before: Time, after: Time) -> Duration {
    let early = before.0.saturating_sub(theirs.0);
    let late = theirs.0.saturating_sub(after.0);
    Duration::from_micros(early.max(late))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_from_what_it_tells() {
        let info = "# Server\r\nredis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_human:0B\r\n\
                    maxmemory_policy:noeviction\r\naof_enabled:1\r\naof_last_write_status:ok\r\nrole:master\r\n\
                    connected_slaves:2\r\n";
        let settings = HashMap::from([("appendfsync".to_owned(), "everysec".to_owned())]);
        let vitals = NodeVitals::parse(info, &settings);
        let wanted = NodeVitals {
            version: "7.0.15".to_owned(),
            append_only: true,
            eviction: "noeviction".to_owned(),
            replicas: 2,
            fsync: Some("everysec".to_owned()),
            ..NodeVitals::default()
        };
        assert_eq!(vitals, wanted);
        let vitals = NodeVitals::parse("role:slave\r\naof_last_write_status:err\r\n", &HashMap::new());
        assert!(vitals.follows && vitals.log_fails && !vitals.append_only && vitals.fsync.is_none());
    }

    #[test]
    fn a_clock_is_off_by_what_the_way_does_not_explain() {
        let off = |theirs| apart(Time(theirs), Time(1_000), Time(3_000)).as_micros();
        assert_eq!([off(400), off(1_000), off(2_000), off(3_000), off(3_500)], [600, 0, 0, 0, 500]);
    }
}
