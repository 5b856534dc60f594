//! The settings of a gateway.

use std::{net::SocketAddr, ops::RangeInclusive, time::Duration};

use muster_chassis::{
    Setting, Values,
    settings::{admin_addr, redis_call_timeout, redis_connect_timeout, redis_response_timeout},
};
use muster_store::{AuditRetention, Retention};
use muster_telemetry::Secret;

/// At least twice as long as the streams keep messages, because jobs that Redis lost are restored from there; at most
/// ten years.
const KEPT: RangeInclusive<Duration> = Duration::from_secs(20 * 60)..=TEN_YEARS;
const TEN_YEARS: Duration = Duration::from_secs(3650 * 24 * 3600);

muster_chassis::settings! {
    pub(crate) const OWN = these;

    pub(crate) const HTTP_ADDR: Setting<SocketAddr> =
        Setting::addr("http_addr", "MUSTER_HTTP_ADDR", "Where the API is served.").or("0.0.0.0:8081");

    const ADMIN_ADDR: Setting<SocketAddr> = admin_addr("0.0.0.0:9092");

    // A request must be answered within two seconds while Redis does not answer, so one call gets less.
    const REDIS_CONNECT_TIMEOUT: Setting<Duration> = redis_connect_timeout("600");
    const REDIS_RESPONSE_TIMEOUT: Setting<Duration> = redis_response_timeout("600");
    const REDIS_CALL_TIMEOUT: Setting<Duration> = redis_call_timeout("850");

    pub(crate) const API_KEY: Setting<Vec<Secret>> = Setting::keys(
        "api_key",
        "MUSTER_API_KEY",
        8,
        "Bootstrap key(s) for all tenants and scopes, comma-separated while rotating. Never stored.",
    );

    pub(crate) const TOPICS: Setting<String> = Setting::choice(
        muster_flow::admission::TOPICS,
        "MUSTER_TOPICS",
        &["open", "declared"],
        "`open`: topics appear on first use. `declared`: those that nobody has told anything are refused.",
    )
    .or("open")
    .live();

    pub(crate) const RATE_LIMIT_SHARED: Setting<bool> = Setting::flag(
        "rate_limit_shared",
        "REDIS_RATE_LIMIT",
        "Whether rate limits are shared by all replicas; otherwise each counts for itself.",
    )
    .or("true");

    const RATE_LIMIT_RPS: Setting<f64> = Setting::number(
        "rate_limit_rps",
        "API_RATE_LIMIT_RPS",
        0.0..=1e9,
        "Submitted jobs per second and tenant, across replicas; 0 = no limit. May be a fraction.",
    )
    .or("2000")
    .live();

    const RATE_LIMIT_BURST: Setting<usize> = Setting::count(
        "rate_limit_burst",
        "API_RATE_LIMIT_BURST",
        1..=10_000_000,
        "Submitted jobs per tenant at once, across replicas.",
    )
    .or("4000")
    .live();

    pub(crate) const MAX_SUBMIT_LAG: Setting<Duration> = Setting::duration(
        "max_submit_lag",
        "MUSTER_MAX_SUBMIT_LAG",
        Duration::ZERO..=Duration::from_secs(3600),
        "How far schedulers may be behind with submits before new ones get 503 `overloaded`; 0 = no limit.",
    )
    .or("60s");

    pub(crate) const EVENT_STREAMS: Setting<usize> = Setting::count(
        "event_streams",
        "MUSTER_EVENT_STREAMS",
        1..=100_000,
        "How many clients may watch events on one gateway at the same time; for one tenant a quarter of them.",
    )
    .or("1000");

    const AUDIT_TRANSPORT: Setting<String> = Setting::choice(
        "audit_transport",
        "AUDIT_TRANSPORT",
        &["local", "nats"],
        "`local`: the audit log stays in Redis. `nats`: each entry is also published on `sys.audit.export`.",
    )
    .or("local");

    const AUDIT_RETENTION: Setting<Duration> = Setting::duration(
        "audit_retention",
        "MUSTER_AUDIT_RETENTION",
        Duration::from_secs(3600)..=TEN_YEARS,
        "How long entries of the audit log are kept.",
    )
    .or("2160h");

    const AUDIT_MAX_ENTRIES: Setting<usize> = Setting::count(
        "audit_max_entries",
        "MUSTER_AUDIT_MAX_ENTRIES",
        1_000..=100_000_000,
        "How many entries of the audit log are kept at most, however young.",
    )
    .or("500000");

    const RETENTION_SUCCEEDED: Setting<Duration> = Setting::duration(
        "retention_succeeded",
        "MUSTER_RETENTION_SUCCEEDED",
        KEPT,
        "How long jobs that succeeded or were cancelled are kept after their end, at least.",
    )
    .or("168h")
    .live();

    const RETENTION_FAILED: Setting<Duration> = Setting::duration(
        "retention_failed",
        "MUSTER_RETENTION_FAILED",
        KEPT,
        "How long jobs that ended badly, and their dead letters, are kept after their end, at least.",
    )
    .or("720h")
    .live();

    const RETENTION_RUNS: Setting<Duration> = Setting::duration(
        "retention_runs",
        "MUSTER_RETENTION_RUNS",
        KEPT,
        "How long runs of workflows, and with them their jobs, are kept after their end, at least.",
    )
    .or("720h")
    .live();

    pub(crate) const PUBLIC_URL: Setting<Option<String>> = Setting::url(
        "public_url",
        "MUSTER_PUBLIC_URL",
        &["http", "https"],
        "How others see this API; shown in its OpenAPI document.",
    );

    const GRPC_ADDR: Setting<Option<SocketAddr>> =
        Setting::addr("grpc_addr", "MUSTER_GRPC_ADDR", "Where the API is served by gRPC.")
            .not_yet_used("there is no gRPC yet, the API is served by HTTP alone");

    const TRUSTED_PROXIES: Setting<Vec<String>> = Setting::list(
        "trusted_proxies",
        "MUSTER_TRUSTED_PROXIES",
        "Networks of proxies whose word about a client's address is believed.",
    )
    .not_yet_used("no limit, log line or audit entry is about a client's address");
}

/// How long ended jobs are kept.
pub(crate) fn retention(values: &Values) -> Retention {
    Retention::of_all(values.get(RETENTION_SUCCEEDED), values.get(RETENTION_FAILED))
}

/// How long ended runs are kept.
pub(crate) fn run_retention(values: &Values) -> Duration {
    values.get(RETENTION_RUNS)
}

/// How much of the audit log is kept.
pub(crate) fn audit_retention(values: &Values) -> AuditRetention {
    AuditRetention { age: values.get(AUDIT_RETENTION), entries: values.get(AUDIT_MAX_ENTRIES) as u64 }
}

/// Whether entries of the audit log are also published on the bus.
pub(crate) fn audit_is_relayed(values: &Values) -> bool {
    values.get(AUDIT_TRANSPORT) == "nats"
}

/// The bootstrap keys; more than one during a rotation.
pub(crate) fn bootstrap_keys(values: &Values) -> Vec<Secret> {
    values.get(API_KEY)
}

/// The rate limit in jobs per second.
pub(crate) fn rate(values: &Values) -> f64 {
    values.get(RATE_LIMIT_RPS)
}

/// The burst of the rate limit: jobs at once.
pub(crate) fn burst(values: &Values) -> u32 {
    u32::try_from(values.get(RATE_LIMIT_BURST)).unwrap_or(u32::MAX)
}

/// Whether only topics with stored settings may be used.
pub(crate) fn topics_are_declared(values: &Values) -> bool {
    values.get(TOPICS) == "declared"
}

#[cfg(test)]
mod tests {
    use muster_chassis::settings::load;

    use super::*;

    fn values(env: &[(&str, &str)]) -> Values {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        load("muster-gateway", crate::SETTINGS, &[], &env).unwrap().values
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let values = values(&[]);
        assert_eq!(values.get(HTTP_ADDR).port(), 8081);
        assert_eq!(values.get(ADMIN_ADDR).port(), 9092);
        assert_eq!(rate(&values), 2000.0);
        assert_eq!(values.get(RATE_LIMIT_BURST), 4000);
        assert!(values.get(RATE_LIMIT_SHARED));
        assert_eq!(values.get(MAX_SUBMIT_LAG), Duration::from_secs(60));
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(retention(&values), Retention::of_all(7 * day, 30 * day));
        assert_eq!(run_retention(&values), 30 * day);
        assert!(bootstrap_keys(&values).is_empty());
        let (patience, ms) = (muster_replica::stores::redis(&values), Duration::from_millis);
        assert_eq!((patience.connect_timeout, patience.response_timeout, patience.budget), (ms(600), ms(600), ms(850)));
    }

    #[test]
    fn what_is_promised_and_not_there_yet_is_warned_of_by_name() {
        let env = [("MUSTER_GRPC_ADDR", ":8080"), ("MUSTER_TRUSTED_PROXIES", "10.0.0.0/8")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let loaded = load("muster-gateway", crate::SETTINGS, &[], &env).unwrap();
        let said: Vec<_> = loaded.warnings.iter().map(|warning| (warning.event(), warning.setting())).collect();
        assert_eq!(said, [("unused_setting", "MUSTER_GRPC_ADDR"), ("unused_setting", "MUSTER_TRUSTED_PROXIES")]);
        let shown = loaded.values.shown();
        assert!(shown.iter().all(|it| it.key != "grpc_addr"), "nothing that has no effect is in effect");
    }

    #[test]
    fn keys_come_as_a_list_while_rotating() {
        let keys = bootstrap_keys(&values(&[("MUSTER_API_KEY", "first-key, second-key")]));
        assert_eq!(keys.iter().map(Secret::expose).collect::<Vec<_>>(), ["first-key", "second-key"]);
        assert!(bootstrap_keys(&values(&[("MUSTER_API_KEY", "")])).is_empty());
    }

    #[test]
    fn bad_keys_and_rates_are_faults_of_the_settings_and_told_together() {
        assert_eq!(rate(&values(&[("API_RATE_LIMIT_RPS", "0.5")])), 0.5);
        let keys = ["short", "first-key,", " ", "with a space"];
        for (key, rate) in keys.into_iter().zip(["x", "-5", "NaN", "inf"]) {
            let env = [("MUSTER_API_KEY", key), ("API_RATE_LIMIT_RPS", rate)];
            let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let faults = load("muster-gateway", crate::SETTINGS, &[], &env).unwrap_err().faults;
            let places: Vec<&str> = faults.iter().map(|fault| fault.place.as_str()).collect();
            assert_eq!(places, ["MUSTER_API_KEY", "API_RATE_LIMIT_RPS"], "{key:?} {rate}");
        }
    }
}
