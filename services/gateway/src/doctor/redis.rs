//! What a Redis node has to be.

use std::time::Duration;

use muster_store::{NodeVitals, StoreError, router::NodeAddr};

use super::{Chart, Finding, Level, at_least};

/// The oldest version that has all that the scripts use.
const VERSION: (u32, u32) = (7, 0);
/// A clock this far off is wrong.
const CLOCK_OFF: Duration = Duration::from_secs(1);
/// Up to this size our hashes' values should be packed.
const PACKED: u64 = 512;

type Checkup = Result<Vec<(NodeAddr, Result<NodeVitals, StoreError>)>, StoreError>;

/// Every node in turn.
pub(super) fn judge(checkup: &Checkup, cluster: bool) -> Vec<Finding> {
    match checkup {
        Ok(nodes) => nodes.iter().flat_map(|(addr, vitals)| node(&format!("redis {addr}"), vitals, cluster)).collect(),
        Err(fault) => silent("redis", fault),
    }
}

fn silent(place: &str, fault: &StoreError) -> Vec<Finding> {
    let mut chart = Chart::of(place);
    chart.note("answers", fault.to_string(), Some((Level::Error, "start it, or mend REDIS_URL and the way there")));
    chart.findings
}

fn node(place: &str, vitals: &Result<NodeVitals, StoreError>, cluster: bool) -> Vec<Finding> {
    let vitals = match vitals {
        Ok(vitals) => vitals,
        Err(fault) => return silent(place, fault),
    };
    let mut chart = Chart::of(place);
    let old = (Level::Error, "Redis 7.0 or later");
    chart.note("version", &vitals.version, (!at_least(&vitals.version, VERSION)).then_some(old));
    let role = if vitals.follows { "it follows another server and takes no writes" } else { "it takes writes" };
    let follower = (Level::Error, "name the primary in REDIS_URL, or give all nodes of a cluster");
    chart.note("role", role, vitals.follows.then_some(follower));
    log(&mut chart, vitals);
    eviction(&mut chart, vitals);
    replicas(&mut chart, vitals, cluster);
    clock(&mut chart, vitals);
    if let Some(size) = vitals.packed_values {
        let loose = (Level::Warn, "hash-max-listpack-value 512: records then take less memory");
        chart.note("memory", format!("hash-max-listpack-value {size}"), (size < PACKED).then_some(loose));
    }
    if let Some(full) = vitals.full_coverage.filter(|_| cluster) {
        let word = if full { "yes" } else { "no" };
        let all_or_none = (Level::Warn, "cluster-require-full-coverage no: one missing shard then stops no other");
        chart.note("coverage", format!("cluster-require-full-coverage {word}"), full.then_some(all_or_none));
    }
    chart.findings
}

fn log(chart: &mut Chart, vitals: &NodeVitals) {
    let sync = vitals.fsync.as_deref();
    let found = match (vitals.append_only, sync) {
        (false, _) => "appendonly no: a restart forgets every job".to_owned(),
        (true, Some(sync)) => format!("appendonly yes, appendfsync {sync}"),
        (true, None) => "appendonly yes".to_owned(),
    };
    let fault = match (vitals.append_only, vitals.log_fails, sync) {
        (false, ..) => Some((Level::Error, "appendonly yes, appendfsync everysec")),
        (true, true, _) => Some((Level::Error, "its last write to the log failed: is the disk full?")),
        (true, false, Some("no")) => Some((Level::Warn, "appendfsync everysec, or always")),
        (true, false, _) => None,
    };
    chart.note("log", found, fault);
}

fn eviction(chart: &mut Chart, vitals: &NodeVitals) {
    const MEND: &str = "maxmemory-policy noeviction: an evicted key is a lost job";
    let limit =
        if vitals.max_memory == 0 { "no maxmemory".to_owned() } else { format!("maxmemory {}", vitals.max_memory) };
    // Without a limit nothing is evicted yet.
    let fault = match (vitals.eviction == "noeviction", vitals.max_memory) {
        (true, _) => None,
        (false, 0) => Some((Level::Warn, MEND)),
        (false, _) => Some((Level::Error, MEND)),
    };
    chart.note("eviction", format!("maxmemory-policy {}, {limit}", vitals.eviction), fault);
}

fn replicas(chart: &mut Chart, vitals: &NodeVitals, cluster: bool) {
    let found = match vitals.replicas {
        0 => "nobody follows it".to_owned(),
        1 => "one replica".to_owned(),
        n => format!("{n} replicas"),
    };
    let fault = match (vitals.replicas, cluster) {
        (0, true) => Some((Level::Error, "a replica for each primary: without one a dead node takes its jobs with it")),
        (0, false) => Some((Level::Warn, "one server is enough to try things out; otherwise a cluster with replicas")),
        _ => None,
    };
    chart.note("replicas", found, fault);
}

fn clock(chart: &mut Chart, vitals: &NodeVitals) {
    let ms = vitals.clock_off.as_millis();
    let off = (Level::Warn, "set both clocks by NTP: jobs go by that of Redis, logs and traces by that of the gateway");
    chart.note("clock", format!("{ms} ms from this gateway's"), (vitals.clock_off > CLOCK_OFF).then_some(off));
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

    /// What is not as it should be, on a cluster.
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
        let rows: [Row; 15] = [
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
