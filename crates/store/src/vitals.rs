//! Describes each Redis node and its settings, for checks of whether Muster's guarantees can be kept on it.
//!
//! It only reads. A node that does not answer is reported and hides no other node. A setting that the server does not
//! disclose (managed servers forbid `CONFIG`) is absent. The caller judges the result.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use muster_domain::{Time, time::wall_clock};

use crate::{Store, StoreError, router::NodeAddr, script::bytes};

/// Settings that `INFO` does not show.
const SETTINGS: [&str; 3] = ["appendfsync", "hash-max-listpack-value", "cluster-require-full-coverage"];

/// How many requests are timed, for the clock and the latency.
const TIMED: usize = 5;

/// The state of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeVitals {
    /// The server's version, such as `7.0.15`.
    pub version: String,
    /// The node follows another one and takes no writes.
    pub follows: bool,
    /// The node keeps a log of every write on disk.
    pub append_only: bool,
    /// The last write of that log failed.
    pub log_fails: bool,
    /// The eviction policy when the memory is full.
    pub eviction: String,
    /// How much memory the node may use; 0: as much as there is.
    pub max_memory: u64,
    /// The number of replicas of the node.
    pub replicas: u64,
    /// How often the log is synced to disk, if the server discloses it.
    pub fsync: Option<String>,
    /// The largest value in a packed hash, if the server discloses it.
    pub packed_values: Option<u64>,
    /// Whether one missing shard stops the others, if the server discloses it.
    pub full_coverage: Option<bool>,
    /// How far the node's clock is from that of this process, not counting the round trip.
    pub clock_off: Duration,
    /// By how many microseconds the node's clock is ahead of that of this process, if the way back took half of the
    /// round trip.
    pub clock_ahead_us: i64,
    /// The median response time.
    pub latency: Duration,
}

impl NodeVitals {
    fn parse(info: &str, settings: &HashMap<String, String>) -> NodeVitals {
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let number = |name: &str| field(name).and_then(|text| text.parse().ok()).unwrap_or_default();
        NodeVitals {
            version: field("redis_version").unwrap_or_default().to_owned(),
            follows: field("role") == Some("slave"),
            append_only: field("aof_enabled") == Some("1"),
            log_fails: field("aof_last_write_status").is_some_and(|status| status != "ok"),
            eviction: field("maxmemory_policy").unwrap_or_default().to_owned(),
            max_memory: number("maxmemory"),
            replicas: number("connected_slaves"),
            fsync: settings.get("appendfsync").cloned(),
            packed_values: settings.get("hash-max-listpack-value").and_then(|text| text.parse().ok()),
            full_coverage: settings.get("cluster-require-full-coverage").map(|text| text == "yes"),
            ..NodeVitals::default()
        }
    }
}

impl Store {
    /// Reads the state of every primary. Fails only if no primary is known.
    pub async fn vitals(&self) -> Result<Vec<(NodeAddr, Result<NodeVitals, StoreError>)>, StoreError> {
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
        let mut asked = Vec::with_capacity(TIMED);
        for _ in 0..TIMED {
            let before = wall_clock();
            let theirs = self.time_of(node).await?;
            asked.push((before, theirs, wall_clock()));
        }
        // The quickest answer gives the most precise clock.
        asked.sort_by_key(|(before, _, after)| after.since(*before));
        let (before, theirs, after) = asked[0];
        let middle = u64::midpoint(before.0, after.0);
        let clock_ahead_us = i64::try_from(i128::from(theirs.0) - i128::from(middle)).unwrap_or(i64::MAX);
        let latency = asked[TIMED / 2].2.since(asked[TIMED / 2].0);
        let vitals = NodeVitals::parse(&String::from_utf8_lossy(&info), &settings);
        Ok(NodeVitals { clock_off: apart(theirs, before, after), clock_ahead_us, latency, ..vitals })
    }
}

/// How far a moment lies outside of the span in which it was read.
fn apart(theirs: Time, before: Time, after: Time) -> Duration {
    let early = before.0.saturating_sub(theirs.0);
    let late = theirs.0.saturating_sub(after.0);
    Duration::from_micros(early.max(late))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_parsed_from_its_info() {
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
