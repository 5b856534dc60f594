//! Finds settings of the replicas that do not fit each other.
//!
//! Knows: which settings must be equal on all replicas, and which settings must not be combined on one replica.
//! Promises: pure; it reads what each replica announced, so it also judges replicas that are not ready. Leaves to
//! others: whether a single value is valid (a service refuses to start with an invalid value).

use std::collections::{BTreeMap, BTreeSet};

use muster_store::{Replica, StoreError};

use super::{Chart, Finding, Level};

/// Settings that must be equal on every replica that has them, and the remedy when they differ.
const EQUAL: &[(&str, &str)] = &[
    (
        "nats_replicas",
        "set NATS_REPLICAS to the same value everywhere: the highest value wins, in whatever order the replicas start",
    ),
    (
        "rate_limit_shared",
        "set REDIS_RATE_LIMIT to the same value on all gateways: otherwise the limit depends on the gateway",
    ),
    (
        "rate_limit_rps",
        "set API_RATE_LIMIT_RPS to the same value on all gateways: otherwise the limit depends on the gateway",
    ),
    (
        "rate_limit_burst",
        "set API_RATE_LIMIT_BURST to the same value on all gateways: otherwise the limit depends on the gateway",
    ),
    ("topics", "set MUSTER_TOPICS to the same value on all gateways: otherwise only some refuse an undeclared topic"),
    (
        "retention_succeeded",
        "set MUSTER_RETENTION_SUCCEEDED to the same value everywhere: only the value of the leader counts",
    ),
    (
        "retention_failed",
        "set MUSTER_RETENTION_FAILED to the same value everywhere: only the value of the leader counts",
    ),
    ("audit_retention", "set MUSTER_AUDIT_RETENTION to the same value everywhere: only the value of the leader counts"),
    (
        "audit_transport",
        "set AUDIT_TRANSPORT to the same value on all gateways: otherwise only some export the audit log",
    ),
    (
        "decide_topics",
        "set MUSTER_DECIDE_TOPICS to the same value on all schedulers: otherwise some start jobs without asking the \
         decider",
    ),
    (
        "outage_wait",
        "set MUSTER_OUTAGE_WAIT to the same value on all schedulers: only the value of the reconciler's leader counts",
    ),
];
/// How often loops renew their leases, in milliseconds.
const RENEWED_MS: u64 = 5_000;
/// How long a submit stays on its stream, in milliseconds.
const SUBMITS_KEPT_MS: u64 = 600_000;

/// Reports the settings that do not fit; if all fit, one finding without a fault.
pub(super) fn judge(replicas: &Result<Vec<Replica>, StoreError>) -> Vec<Finding> {
    let mut chart = Chart::of("replicas");
    match replicas {
        // Another check reports that Redis does not answer.
        Err(_) => {}
        Ok(replicas) => {
            for (key, mend) in EQUAL {
                equal(&mut chart, replicas, key, mend);
            }
            versions(&mut chart, replicas);
            replicas.iter().for_each(|replica| together(&mut chart, replica));
            if chart.findings.is_empty() {
                chart.note("settings", format!("the settings of {} replicas agree", replicas.len()), None);
            }
        }
    }
    chart.findings
}

/// The value of a setting on a replica, or `None` if the replica does not have the setting.
fn value<'a>(replica: &'a Replica, key: &str) -> Option<&'a str> {
    let told = replica.settings.iter().find(|setting| setting["name"] == key)?;
    Some(told["value"].as_str().unwrap_or("not set"))
}

fn equal(chart: &mut Chart, replicas: &[Replica], key: &str, mend: &'static str) {
    let mut by_value: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for replica in replicas {
        if let Some(value) = value(replica, key) {
            by_value.entry(value).or_default().push(&replica.instance);
        }
    }
    if by_value.len() > 1 {
        let each = by_value.iter().map(|(value, who)| format!("{value} on {}", who.join(", ")));
        let found = format!("{key} is {}", each.collect::<Vec<_>>().join("; "));
        chart.note("settings", found, Some((Level::Warn, mend)));
    }
}

fn versions(chart: &mut Chart, replicas: &[Replica]) {
    let versions: BTreeSet<&str> = replicas.iter().map(|replica| replica.version.as_str()).collect();
    if versions.len() > 1 {
        let found = format!("versions {} run together", versions.into_iter().collect::<Vec<_>>().join(", "));
        chart.note("settings", found, Some((Level::Warn, "finish the upgrade: replace the replicas one by one")));
    }
}

fn together(chart: &mut Chart, replica: &Replica) {
    let number = |key: &str| value(replica, key).and_then(|text| text.parse::<u64>().ok());
    let who = &replica.instance;
    let call = number("redis_call_timeout_ms");
    if let Some(call) = call.filter(|call| *call > RENEWED_MS) {
        let found = format!("{who}: a call to Redis may take {call} ms, but leases are renewed every {RENEWED_MS} ms");
        let mend = "set REDIS_CALL_TIMEOUT_MS to 5000 or less: otherwise one slow call can lose the lease of a loop";
        chart.note("settings", found, Some((Level::Warn, mend)));
    }
    if let Some((call, answer)) = call.zip(number("redis_response_timeout_ms")).filter(|(call, answer)| answer > call) {
        let found = format!("{who}: one answer of Redis may take {answer} ms, but a whole call {call} ms");
        let mend = "set REDIS_RESPONSE_TIMEOUT_MS below REDIS_CALL_TIMEOUT_MS: otherwise no command is tried again";
        chart.note("settings", found, Some((Level::Warn, mend)));
    }
    let pool = number("redis_pool_size").zip(number("redis_min_idle_conns"));
    if let Some((most, warm)) = pool.filter(|(most, warm)| warm > most) {
        let found = format!("{who}: {warm} connections to Redis should stay open, but at most {most} are allowed");
        chart.note("settings", found, Some((Level::Warn, "set REDIS_MIN_IDLE_CONNS to at most REDIS_POOL_SIZE")));
    }
    let lag = value(replica, "max_submit_lag").and_then(millis);
    if lag.is_some_and(|lag| lag == 0 || lag >= SUBMITS_KEPT_MS) {
        let found = format!(
            "{who}: accepts submits however far behind the schedulers are, but submits leave their stream after 10 min"
        );
        let mend = "set MUSTER_MAX_SUBMIT_LAG below 10m: a submit that leaves its stream unhandled waits for a check \
                    by the reconciler";
        chart.note("settings", found, Some((Level::Warn, mend)));
    }
}

/// Parses a duration as the settings show it, into milliseconds.
fn millis(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use muster_domain::Time;
    use serde_json::json;

    use super::*;

    fn replica(instance: &str, settings: &[(&str, &str)]) -> Replica {
        let one = |(name, value): &(&str, &str)| json!({ "name": name, "value": value });
        Replica {
            service: "muster-gateway".into(),
            instance: instance.into(),
            version: "1.0.0".into(),
            admin: String::new(),
            started_at: Time(1),
            seen_at: Time(1),
            loops: Vec::new(),
            deciding: Vec::new(),
            settings: settings.iter().map(one).collect(),
        }
    }

    fn faults(replicas: Vec<Replica>) -> Vec<String> {
        let findings = judge(&Ok(replicas)).into_iter().filter(|it| it.level != Level::Ok);
        findings.map(|it| it.found).collect()
    }

    #[test]
    fn a_setting_that_must_be_equal_and_is_not_is_named_with_who_has_what() {
        let (one, three) = (replica("g1", &[("nats_replicas", "1")]), replica("s1", &[("nats_replicas", "3")]));
        assert_eq!(faults(vec![one.clone(), three]), ["nats_replicas is 1 on g1; 3 on s1"]);
        // A replica without the setting does not count, and some settings may differ.
        let other = replica("s1", &[("log", "debug")]);
        assert_eq!(faults(vec![one, other, replica("g2", &[("log", "info")])]), Vec::<String>::new());
    }

    #[test]
    fn values_that_do_not_fit_on_one_replica_are_found() {
        for (settings, says) in [
            (vec![("redis_call_timeout_ms", "6000")], "may take 6000 ms, but leases"),
            (vec![("redis_call_timeout_ms", "500"), ("redis_response_timeout_ms", "600")], "a whole call 500 ms"),
            (vec![("redis_pool_size", "4"), ("redis_min_idle_conns", "5")], "5 connections"),
            (vec![("max_submit_lag", "10m")], "however far"),
            (vec![("max_submit_lag", "0ms")], "however far"),
        ] {
            let found = faults(vec![replica("g1", &settings)]);
            assert!(found.len() == 1 && found[0].contains(says) && found[0].starts_with("g1: "), "{found:?}");
        }
        let fine = [("redis_call_timeout_ms", "850"), ("redis_response_timeout_ms", "600"), ("max_submit_lag", "60s")];
        assert_eq!(faults(vec![replica("g1", &fine)]), Vec::<String>::new());
    }

    #[test]
    fn replicas_of_two_versions_are_an_upgrade_under_way() {
        let newer = Replica { version: "1.1.0".into(), ..replica("g2", &[]) };
        assert_eq!(faults(vec![replica("g1", &[]), newer]), ["versions 1.0.0, 1.1.0 run together"]);
    }
}
