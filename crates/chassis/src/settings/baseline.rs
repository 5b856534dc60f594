//! The settings that every service has.

use std::time::Duration;

use super::{Fallback, Kind, Setting};

/// Stores, names, logs, threads: the same for every service.
pub const COMMON: &[Setting] = &[
    Setting::new(
        "redis_url",
        "REDIS_URL",
        Kind::Url(&["redis", "rediss", "redis+cluster", "rediss+cluster"]),
        "Where Redis is. Several comma-separated URLs or `redis+cluster://` mean a cluster, `rediss://` means TLS.",
    )
    .or("redis://127.0.0.1:6379"),
    Setting::new(
        "redis_pool_size",
        "REDIS_POOL_SIZE",
        Kind::Int { min: 1, max: 10_000 },
        "Ceiling of the connections that a replica opens, over all nodes.",
    )
    .or("20"),
    Setting::new(
        "redis_min_idle_conns",
        "REDIS_MIN_IDLE_CONNS",
        Kind::Int { min: 0, max: 10_000 },
        "Connections kept warm.",
    )
    .or("5"),
    redis_connect_timeout("1000"),
    redis_response_timeout("1000"),
    redis_call_timeout("2000"),
    Setting::new(
        "nats_url",
        "NATS_URL",
        Kind::Url(&["nats", "tls"]),
        "Where NATS is; several servers comma-separated. `tls://` means TLS.",
    )
    .or("nats://127.0.0.1:4222"),
    Setting::new(
        "nats_replicas",
        "NATS_REPLICAS",
        Kind::Int { min: 1, max: 5 },
        "Replicas of each stream; 3 on a NATS cluster.",
    )
    .or("1"),
    Setting::new(
        "nats_use_jetstream",
        "NATS_USE_JETSTREAM",
        Kind::OnlyTrue { why: "the promises need it" },
        "Always true: without JetStream an offer could be lost.",
    )
    .or("true"),
    Setting {
        fallback: Fallback::HostName,
        ..Setting::new(
            "instance_id",
            "MUSTER_INSTANCE_ID",
            Kind::Name,
            "This replica's name: label `pod` on every metric, owner name in locks.",
        )
    },
    admin_addr("0.0.0.0:9090"),
    Setting::new(
        "log",
        "MUSTER_LOG",
        Kind::LogFilter,
        "What to log: a level, or levels by target like `info,muster_store=debug`. JSON when not a terminal.",
    )
    .or("info"),
    Setting::new(
        "otel_exporter_otlp_endpoint",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        Kind::HttpUrl,
        "Where traces go, by OTLP over HTTP: to `/v1/traces` there. Nothing is traced without it.",
    ),
    Setting::new(
        "runtime_threads",
        "MUSTER_RUNTIME_THREADS",
        Kind::Int { min: 1, max: 256 },
        "Threads that run this service's tasks. One was the fastest where it was measured.",
    )
    .or("1"),
];

/// The admin port, with the service's own default.
pub const fn admin_addr(default: &'static str) -> Setting {
    Setting::new(
        "admin_addr",
        "MUSTER_ADMIN_ADDR",
        Kind::Addr,
        "Where `/metrics`, `/livez`, `/readyz` and `/loops` are served.",
    )
    .or(default)
}

/// Shorter ones would cut off a Redis that is well, longer ones would let callers hang.
const PATIENCE_MS: Kind = Kind::Int { min: 50, max: 60_000 };

/// How long a connection to Redis may take, with the service's own default.
pub const fn redis_connect_timeout(default: &'static str) -> Setting {
    let doc = "Milliseconds that opening a connection to Redis may take.";
    Setting::new("redis_connect_timeout_ms", "REDIS_CONNECT_TIMEOUT_MS", PATIENCE_MS, doc).or(default)
}

/// How long Redis may take for one answer, with the service's own default.
pub const fn redis_response_timeout(default: &'static str) -> Setting {
    let doc = "Milliseconds that Redis may take for one answer, before the question is asked again.";
    Setting::new("redis_response_timeout_ms", "REDIS_RESPONSE_TIMEOUT_MS", PATIENCE_MS, doc).or(default)
}

/// How long a whole call may take, with the service's own default.
pub const fn redis_call_timeout(default: &'static str) -> Setting {
    let doc = "Milliseconds that a call to Redis may take with all its tries; it ends the other two as well. A gateway \
               answers 503 after it.";
    Setting::new("redis_call_timeout_ms", "REDIS_CALL_TIMEOUT_MS", PATIENCE_MS, doc).or(default)
}

/// A loop's fallback interval; due work wakes it earlier. Below a second is refused.
pub const fn loop_interval(key: &'static str, env: &'static str, default: &'static str) -> Setting {
    let kind = Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(24 * 3600) };
    Setting::new(key, env, kind, "How often the loop looks when nothing wakes it.").or(default)
}
