//! What a gateway can be told.

use std::time::Duration;

use muster_bus::BusSettings;
use muster_chassis::{
    Kind, Setting, Values,
    settings::{admin_addr, loop_interval, redis_call_timeout, redis_connect_timeout, redis_response_timeout},
};
use muster_store::{AuditRetention, RedisSettings, Retention};
use muster_telemetry::Secret;

/// Not less than twice as long as the streams remember, because what Redis forgot is found there; ten
/// years at most.
const KEPT: Kind = Kind::Duration { min: Duration::from_secs(20 * 60), max: Duration::from_secs(3650 * 24 * 3600) };

/// The gateway's own settings; the shared ones are the chassis's.
pub const SETTINGS: &[Setting] = &[
    Setting::new("http_addr", "MUSTER_HTTP_ADDR", Kind::Addr, "Where the API is served.").or("0.0.0.0:8081"),
    admin_addr("0.0.0.0:9092"),
    // A store that is away has to be answered for within two seconds, so a call gets less.
    redis_connect_timeout("600"),
    redis_response_timeout("600"),
    redis_call_timeout("850"),
    Setting::new(
        "api_key",
        "MUSTER_API_KEY",
        Kind::Keys { min: 8 },
        "Bootstrap key(s) for all tenants and scopes, comma-separated while rotating. Never stored.",
    )
    .secret(),
    Setting::new(
        "topics",
        "MUSTER_TOPICS",
        Kind::Choice(&["open", "declared"]),
        "`open`: topics appear on first use. `declared`: those that nobody has told anything are refused.",
    )
    .or("open")
    .live(),
    Setting::new(
        "rate_limit_shared",
        "REDIS_RATE_LIMIT",
        Kind::Bool,
        "Whether rate limits are shared by all replicas; otherwise each counts for itself.",
    )
    .or("true"),
    Setting::new(
        "rate_limit_rps",
        "API_RATE_LIMIT_RPS",
        Kind::Number { min: 0.0, max: 1e9 },
        "Submitted jobs per second and tenant, across replicas; 0 = no limit. May be a fraction.",
    )
    .or("2000")
    .live(),
    Setting::new(
        "rate_limit_burst",
        "API_RATE_LIMIT_BURST",
        Kind::Int { min: 1, max: 10_000_000 },
        "Submitted jobs per tenant at once, across replicas.",
    )
    .or("4000")
    .live(),
    Setting::new(
        "max_submit_lag",
        "MUSTER_MAX_SUBMIT_LAG",
        Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(3600) },
        "How far schedulers may be behind with submits before new ones get 503 `overloaded`; 0 = no limit.",
    )
    .or("60s"),
    Setting::new(
        "event_streams",
        "MUSTER_EVENT_STREAMS",
        Kind::Int { min: 1, max: 100_000 },
        "How many clients may watch events on one gateway at the same time; for one tenant a quarter of them.",
    )
    .or("1000"),
    loop_interval("loop_bulk_interval", "MUSTER_LOOP_BULK_INTERVAL", "5s"),
    Setting::new(
        "audit_transport",
        "AUDIT_TRANSPORT",
        Kind::Choice(&["local", "nats"]),
        "`local`: the audit log stays in Redis. `nats`: each entry is also published on `sys.audit.export`.",
    )
    .or("local"),
    Setting::new(
        "audit_retention",
        "MUSTER_AUDIT_RETENTION",
        Kind::Duration { min: Duration::from_secs(3600), max: Duration::from_secs(3650 * 24 * 3600) },
        "How long entries of the audit log are kept.",
    )
    .or("2160h"),
    Setting::new(
        "audit_max_entries",
        "MUSTER_AUDIT_MAX_ENTRIES",
        Kind::Int { min: 1_000, max: 100_000_000 },
        "How many entries of the audit log are kept at most, however young.",
    )
    .or("500000"),
    loop_interval("loop_audit_retention_interval", "MUSTER_LOOP_AUDIT_RETENTION_INTERVAL", "60s"),
    loop_interval("loop_audit_relay_interval", "MUSTER_LOOP_AUDIT_RELAY_INTERVAL", "5s"),
    loop_interval("loop_retention_interval", "MUSTER_LOOP_RETENTION_INTERVAL", "1h"),
    loop_interval("loop_config_interval", "MUSTER_LOOP_CONFIG_INTERVAL", "30s"),
    Setting::new(
        "retention_succeeded",
        "MUSTER_RETENTION_SUCCEEDED",
        KEPT,
        "How long jobs that succeeded or were cancelled are kept after their end, at least.",
    )
    .or("168h")
    .live(),
    Setting::new(
        "retention_failed",
        "MUSTER_RETENTION_FAILED",
        KEPT,
        "How long jobs that ended badly, and their dead letters, are kept after their end, at least.",
    )
    .or("720h")
    .live(),
    Setting::new(
        "public_url",
        "MUSTER_PUBLIC_URL",
        Kind::Url(&["http", "https"]),
        "How others see this API; shown in its OpenAPI document.",
    ),
    Setting::new("grpc_addr", "MUSTER_GRPC_ADDR", Kind::Addr, "Where the API is served by gRPC.")
        .not_yet_used("there is no gRPC yet, the API is served by HTTP alone"),
    Setting::new(
        "trusted_proxies",
        "MUSTER_TRUSTED_PROXIES",
        Kind::List,
        "Networks of proxies whose word about a client's address is believed.",
    )
    .not_yet_used("no limit, log line or audit entry is about a client's address"),
];

pub(crate) fn redis(values: &Values) -> RedisSettings {
    RedisSettings {
        pool_size: values.count("redis_pool_size"),
        min_idle: values.count("redis_min_idle_conns"),
        connect_timeout: values.millis("redis_connect_timeout_ms"),
        response_timeout: values.millis("redis_response_timeout_ms"),
        budget: values.millis("redis_call_timeout_ms"),
        ..RedisSettings::new(values.text("redis_url"))
    }
}

pub(crate) fn nats(values: &Values, instance: &str) -> BusSettings {
    BusSettings { replicas: values.count("nats_replicas"), ..BusSettings::new(values.text("nats_url"), instance) }
}

/// How long what has ended is kept.
pub(crate) fn retention(values: &Values) -> Retention {
    Retention::of_all(values.duration("retention_succeeded"), values.duration("retention_failed"))
}

/// How much of the audit log is kept.
pub(crate) fn audit_retention(values: &Values) -> AuditRetention {
    AuditRetention { age: values.duration("audit_retention"), entries: values.count("audit_max_entries") as u64 }
}

/// The bootstrap keys; several while they are rotated.
pub(crate) fn bootstrap_keys(values: &Values) -> Vec<Secret> {
    values.secrets("api_key")
}

/// Jobs per second.
pub(crate) fn rate(values: &Values) -> f64 {
    values.number("rate_limit_rps")
}

/// Jobs at once.
pub(crate) fn burst(values: &Values) -> u32 {
    u32::try_from(values.count("rate_limit_burst")).unwrap_or(u32::MAX)
}

/// Whether only topics that were told something may be used.
pub(crate) fn topics_are_declared(values: &Values) -> bool {
    values.text("topics") == "declared"
}

#[cfg(test)]
mod tests {
    use muster_chassis::settings::load;

    use super::*;

    fn values(env: &[(&str, &str)]) -> Values {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        load("muster-gateway", SETTINGS, &[], &env).unwrap().values
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let values = values(&[]);
        assert_eq!(values.addr("http_addr").port(), 8081);
        assert_eq!(values.addr("admin_addr").port(), 9092);
        assert_eq!(rate(&values), 2000.0);
        assert_eq!(values.count("rate_limit_burst"), 4000);
        assert!(values.flag("rate_limit_shared"));
        assert_eq!(values.duration("max_submit_lag"), Duration::from_secs(60));
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(retention(&values), Retention::of_all(7 * day, 30 * day));
        assert!(bootstrap_keys(&values).is_empty());
        let (patience, ms) = (redis(&values), Duration::from_millis);
        assert_eq!((patience.connect_timeout, patience.response_timeout, patience.budget), (ms(600), ms(600), ms(850)));
    }

    #[test]
    fn what_is_promised_and_not_there_yet_is_warned_of_by_name() {
        let env = [("MUSTER_GRPC_ADDR", ":8080"), ("MUSTER_TRUSTED_PROXIES", "10.0.0.0/8")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let loaded = load("muster-gateway", SETTINGS, &[], &env).unwrap();
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
            let faults = load("muster-gateway", SETTINGS, &[], &env).unwrap_err().faults;
            let places: Vec<&str> = faults.iter().map(|fault| fault.place.as_str()).collect();
            assert_eq!(places, ["MUSTER_API_KEY", "API_RATE_LIMIT_RPS"], "{key:?} {rate}");
        }
    }
}
