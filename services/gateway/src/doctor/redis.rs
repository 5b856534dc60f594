//! Requirements for a Redis node.

use std::time::Duration;

use muster_store::{NodeVitals, StoreError, router::NodeAddr};

use super::{Chart, Finding, Level, at_least, latency};

/// The oldest version with all the features that the scripts use.
const VERSION: (u32, u32) = (7, 0);
/// A clock that is off by more than this is a fault.
const CLOCK_OFF: Duration = Duration::from_secs(1);
/// Redis should keep hashes packed up to this size of their values.
const PACKED: u64 = 512;

/// Limits for the skew between the clocks of two primaries. Beyond the first, jobs are checked early or late; beyond
/// the second, leases are wrong too.
const SKEW: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

type NodesVitals = Result<Vec<(NodeAddr, Result<NodeVitals, StoreError>)>, StoreError>;

/// Checks every node in turn.
pub(super) fn judge(nodes: &NodesVitals, cluster: bool) -> Vec<Finding> {
    match nodes {
        Ok(nodes) => {
            let each = nodes.iter().flat_map(|(addr, vitals)| node(&format!("redis {addr}"), vitals, cluster));
            each.chain(skew(nodes)).collect()
        }
        Err(fault) => silent("redis", fault),
    }
}

/// Checks the skew between the clocks of the primaries: each primary judges by its own clock what is due.
fn skew(nodes: &[(NodeAddr, Result<NodeVitals, StoreError>)]) -> Option<Finding> {
    let ahead: Vec<i64> = nodes.iter().filter_map(|(_, vitals)| Some(vitals.as_ref().ok()?.clock_ahead_us)).collect();
    if ahead.len() < 2 {
        return None;
    }
    let apart = ahead.iter().max()?.abs_diff(*ahead.iter().min()?);
    let apart = Duration::from_micros(apart);
    let mend = "synchronize the clocks of all Redis nodes by NTP: each node decides by its own clock when a job is due";
    let fault = match apart {
        apart if apart > SKEW.1 => Some((Level::Error, mend)),
        apart if apart > SKEW.0 => Some((Level::Warn, mend)),
        _ => None,
    };
    let mut chart = Chart::of("redis");
    chart.note("skew", format!("the clocks of {} primaries are {} ms apart", ahead.len(), apart.as_millis()), fault);
    chart.findings.pop()
}

fn silent(place: &str, fault: &StoreError) -> Vec<Finding> {
    let mut chart = Chart::of(place);
    chart.note("answers", fault.to_string(), Some((Level::Error, "start Redis, or correct REDIS_URL and the network")));
    chart.findings
}

fn node(place: &str, vitals: &Result<NodeVitals, StoreError>, cluster: bool) -> Vec<Finding> {
    let vitals = match vitals {
        Ok(vitals) => vitals,
        Err(fault) => return silent(place, fault),
    };
    let mut chart = Chart::of(place);
    let old = (Level::Error, "use Redis 7.0 or later");
    chart.note("version", &vitals.version, (!at_least(&vitals.version, VERSION)).then_some(old));
    let role = if vitals.follows { "it is a replica of another server and takes no writes" } else { "it takes writes" };
    let follower = (Level::Error, "name the primary in REDIS_URL, or give all nodes of a cluster");
    chart.note("role", role, vitals.follows.then_some(follower));
    log(&mut chart, vitals);
    eviction(&mut chart, vitals);
    replicas(&mut chart, vitals, cluster);
    clock(&mut chart, vitals);
    latency(&mut chart, vitals.latency);
    if let Some(size) = vitals.packed_values {
        let loose = (Level::Warn, "set hash-max-listpack-value 512: records then take less memory");
        chart.note("memory", format!("hash-max-listpack-value {size}"), (size < PACKED).then_some(loose));
    }
    if let Some(full) = vitals.full_coverage.filter(|_| cluster) {
        let word = if full { "yes" } else { "no" };
        let all_or_none =
            (Level::Warn, "set cluster-require-full-coverage no: a missing shard then does not stop the others");
        chart.note("coverage", format!("cluster-require-full-coverage {word}"), full.then_some(all_or_none));
    }
    chart.findings
}

fn log(chart: &mut Chart, vitals: &NodeVitals) {
    let sync = vitals.fsync.as_deref();
    let found = match (vitals.append_only, sync) {
        (false, _) => "appendonly no: Redis loses every job when it restarts".to_owned(),
        (true, Some(sync)) => format!("appendonly yes, appendfsync {sync}"),
        (true, None) => "appendonly yes".to_owned(),
    };
    let fault = match (vitals.append_only, vitals.log_fails, sync) {
        (false, ..) => Some((Level::Error, "set appendonly yes and appendfsync everysec")),
        (true, true, _) => Some((Level::Error, "its last write to the log failed: is the disk full?")),
        (true, false, Some("no")) => Some((Level::Warn, "set appendfsync to everysec or always")),
        (true, false, _) => None,
    };
    chart.note("log", found, fault);
}

fn eviction(chart: &mut Chart, vitals: &NodeVitals) {
    const MEND: &str = "set maxmemory-policy noeviction: an evicted key is a lost job";
    let limit =
        if vitals.max_memory == 0 { "no maxmemory".to_owned() } else { format!("maxmemory {}", vitals.max_memory) };
    // Without a memory limit, Redis evicts nothing yet.
    let fault = match (vitals.eviction == "noeviction", vitals.max_memory) {
        (true, _) => None,
        (false, 0) => Some((Level::Warn, MEND)),
        (false, _) => Some((Level::Error, MEND)),
    };
    chart.note("eviction", format!("maxmemory-policy {}, {limit}", vitals.eviction), fault);
}

fn replicas(chart: &mut Chart, vitals: &NodeVitals, cluster: bool) {
    let found = match vitals.replicas {
        0 => "it has no replica".to_owned(),
        1 => "one replica".to_owned(),
        n => format!("{n} replicas"),
    };
    let fault = match (vitals.replicas, cluster) {
        (0, true) => Some((Level::Error, "give each primary a replica: without one, a dead node loses its jobs")),
        (0, false) => Some((Level::Warn, "a single server is enough for tests; otherwise use a cluster with replicas")),
        _ => None,
    };
    chart.note("replicas", found, fault);
}

fn clock(chart: &mut Chart, vitals: &NodeVitals) {
    let ms = vitals.clock_off.as_millis();
    let off = (
        Level::Warn,
        "synchronize both clocks by NTP: jobs use the clock of Redis, logs and traces use the clock of the gateway",
    );
    chart.note("clock", format!("{ms} ms off this gateway's clock"), (vitals.clock_off > CLOCK_OFF).then_some(off));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> NodeVitals {
        NodeVitals {
            version: "7.0.15".to_owned(),
            append_only: true,
            eviction: "noeviction".to_owned(),
            replicas: 1,
            fsync: Some("everysec".to_owned()),
            packed_values: Some(512),
            full_coverage: Some(false),
            ..NodeVitals::default()
        }
    }

    /// The faults of a changed node, as a cluster node if `cluster` is set.
    fn faults(change: impl FnOnce(&mut NodeVitals), cluster: bool) -> Vec<(&'static str, Level)> {
        let mut vitals = sound();
        change(&mut vitals);
        let findings = node("redis x", &Ok(vitals), cluster).into_iter();
        findings.filter(|it| it.level != Level::Ok).map(|it| (it.check, it.level)).collect()
    }

    #[test]
    fn each_fault_is_found_as_itself() {
        use Level::{Error, Warn};
        type Row = (fn(&mut NodeVitals), bool, &'static [(&'static str, Level)]);
        let rows: [Row; 16] = [
            (|_| (), true, &[]),
            (|_| (), false, &[]),
            (|v| v.version = "6.2.7".into(), true, &[("version", Error)]),
            (|v| v.version = String::new(), true, &[("version", Error)]),
            (|v| v.version = "10.1".into(), true, &[]),
            (|v| v.follows = true, false, &[("role", Error)]),
            (|v| v.append_only = false, true, &[("log", Error)]),
            (|v| v.log_fails = true, true, &[("log", Error)]),
            (|v| v.fsync = Some("no".into()), true, &[("log", Warn)]),
            (|v| (v.eviction, v.max_memory) = ("allkeys-lru".into(), 1), true, &[("eviction", Error)]),
            (|v| v.eviction = "allkeys-lru".into(), true, &[("eviction", Warn)]),
            (|v| v.replicas = 0, true, &[("replicas", Error)]),
            (|v| v.replicas = 0, false, &[("replicas", Warn)]),
            (|v| v.latency = Duration::from_millis(20), true, &[("latency", Warn)]),
            (|v| v.clock_off = Duration::from_millis(1_001), true, &[("clock", Warn)]),
            (
                |v| (v.packed_values, v.full_coverage) = (Some(64), Some(true)),
                true,
                &[("memory", Warn), ("coverage", Warn)],
            ),
        ];
        for (n, (change, cluster, wanted)) in rows.into_iter().enumerate() {
            assert_eq!(faults(change, cluster), wanted, "row {n}");
        }
    }

    #[test]
    fn clocks_of_primaries_that_differ_are_told() {
        let level = |ahead: &[i64]| {
            let nodes = ahead.iter().enumerate().map(|(n, ahead)| {
                let addr = NodeAddr::new("127.0.0.1", 7000 + n as u16);
                (addr, Ok(NodeVitals { clock_ahead_us: *ahead, ..sound() }))
            });
            skew(&nodes.collect::<Vec<_>>()).map(|finding| finding.level)
        };
        assert_eq!(level(&[9_000_000]), None, "one alone differs from none");
        assert_eq!(level(&[0, 400_000, -90_000]), Some(Level::Ok));
        assert_eq!(level(&[0, 400_000, -200_000]), Some(Level::Warn));
        assert_eq!(level(&[3_000_000, -3_000_000]), Some(Level::Error));
    }

    #[test]
    fn what_a_server_keeps_to_itself_is_no_fault() {
        let silent = faults(|v| (v.fsync, v.packed_values, v.full_coverage) = (None, None, None), true);
        assert_eq!(silent, []);
    }

    #[test]
    fn a_node_that_does_not_answer_is_a_fault() {
        let findings = node("redis x", &Err(StoreError::Unavailable { detail: "gone".to_owned() }), false);
        assert_eq!((findings.len(), findings[0].check, findings[0].level), (1, "answers", Level::Error));
        let findings = judge(&Err(StoreError::Unavailable { detail: "nobody known".to_owned() }), true);
        assert_eq!((findings.len(), findings[0].place.as_str(), findings[0].level), (1, "redis", Level::Error));
    }
}
