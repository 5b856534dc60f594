//! The settings that every service has.

use std::{net::SocketAddr, time::Duration};

use super::Setting;

crate::settings! {
    /// Stores, names, logs, threads: the same for every service.
    pub const COMMON = these;

    /// Where Redis is.
    pub const REDIS_URL: Setting<String> = Setting::url(
        "redis_url",
        "REDIS_URL",
        &["redis", "rediss", "redis+cluster", "rediss+cluster"],
        "Address of Redis. Several comma-separated URLs or `redis+cluster://` mean a cluster, `rediss://` means TLS.",
    )
    .or("redis://127.0.0.1:6379");

    /// The most connections to Redis.
    pub const REDIS_POOL_SIZE: Setting<usize> = Setting::count(
        "redis_pool_size",
        "REDIS_POOL_SIZE",
        1..=10_000,
        "Maximum number of connections that a replica opens, over all nodes.",
    )
    .or("20");

    /// The fewest connections to Redis.
    pub const REDIS_MIN_IDLE_CONNS: Setting<usize> = Setting::count(
        "redis_min_idle_conns",
        "REDIS_MIN_IDLE_CONNS",
        0..=10_000,
        "Connections that a replica keeps open even when they are idle.",
    )
    .or("5");

    /// How long a connection to Redis may take.
    pub const REDIS_CONNECT_TIMEOUT: Setting<Duration> = redis_connect_timeout("1000");

    /// How long Redis may take for one answer.
    pub const REDIS_RESPONSE_TIMEOUT: Setting<Duration> = redis_response_timeout("1000");

    /// How long a whole call to Redis may take.
    pub const REDIS_CALL_TIMEOUT: Setting<Duration> = redis_call_timeout("2000");

    /// Where NATS is.
    pub const NATS_URL: Setting<String> = Setting::url(
        "nats_url",
        "NATS_URL",
        &["nats", "tls"],
        "Address of NATS; several servers are separated by commas. `tls://` means TLS.",
    )
    .or("nats://127.0.0.1:4222");

    /// Replicas of each stream.
    pub const NATS_REPLICAS: Setting<usize> =
        Setting::count("nats_replicas", "NATS_REPLICAS", 1..=5, "Copies of each stream; 3 on a NATS cluster.").or("1");

    /// Always true.
    pub const NATS_USE_JETSTREAM: Setting<bool> = Setting::only_true(
        "nats_use_jetstream",
        "NATS_USE_JETSTREAM",
        "without JetStream an offer could be lost",
        "Always true: without JetStream an offer could be lost.",
    )
    .or("true");

    /// This replica's name.
    pub const INSTANCE_ID: Setting<String> = Setting::name(
        "instance_id",
        "MUSTER_INSTANCE_ID",
        "This replica's name: label `pod` on every metric, owner name in locks.",
    )
    .or_host_name();

    /// The admin port; services have defaults of their own.
    pub const ADMIN_ADDR: Setting<SocketAddr> = admin_addr("0.0.0.0:9090");

    /// The address at which other processes reach the admin port.
    pub const ADVERTISE_ADDR: Setting<Option<String>> = Setting::host_port(
        "advertise_addr",
        "MUSTER_ADVERTISE_ADDR",
        "Address at which other processes reach the admin port: a host, or host:port. Without it, `MUSTER_ADMIN_ADDR`; \
         if that means all addresses, the local address of the connection to Redis or NATS.",
    );

    /// What to log.
    pub const LOG: Setting<String> = Setting::log_filter(
        "log",
        "MUSTER_LOG",
        "What to log: a level, or levels by target like `info,muster_store=debug`. The format is JSON unless the \
         output is a terminal.",
    )
    .or("info");

    /// Where traces go.
    pub const OTLP_ENDPOINT: Setting<Option<String>> = Setting::http_url(
        "otel_exporter_otlp_endpoint",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Address of the trace collector, for OTLP over HTTP; spans go to `/v1/traces` there. Without it nothing is \
         traced.",
    );

    /// Threads of the runtime.
    pub const RUNTIME_THREADS: Setting<usize> = Setting::count(
        "runtime_threads",
        "MUSTER_RUNTIME_THREADS",
        1..=256,
        "Threads that run this service's tasks. One was the fastest in measurements.",
    )
    .or("1");
}

/// The admin port, with the service's own default.
pub const fn admin_addr(default: &'static str) -> Setting<SocketAddr> {
    Setting::addr(
        "admin_addr",
        "MUSTER_ADMIN_ADDR",
        "Address that serves `/metrics`, `/livez`, `/readyz` and `/loops`.",
    )
    .or(default)
}

/// A setting for a Redis timeout. The bounds exclude shorter values, which would cut off a healthy
/// Redis, and longer ones, which would let callers hang.
const fn patience(key: &'static str, env: &'static str, doc: &'static str, default: &'static str) -> Setting<Duration> {
    Setting::millis(key, env, 50..=60_000, doc).or(default)
}

/// How long a connection to Redis may take, with the service's own default.
pub const fn redis_connect_timeout(default: &'static str) -> Setting<Duration> {
    let doc = "Milliseconds that opening a connection to Redis may take.";
    patience("redis_connect_timeout_ms", "REDIS_CONNECT_TIMEOUT_MS", doc, default)
}

/// How long Redis may take for one answer, with the service's own default.
pub const fn redis_response_timeout(default: &'static str) -> Setting<Duration> {
    let doc = "Milliseconds that Redis may take for one answer before the command is sent again.";
    patience("redis_response_timeout_ms", "REDIS_RESPONSE_TIMEOUT_MS", doc, default)
}

/// How long a whole call may take, with the service's own default.
pub const fn redis_call_timeout(default: &'static str) -> Setting<Duration> {
    let doc = "Milliseconds that a call to Redis may take, with all tries. It also limits the other two timeouts. \
               After this time a gateway answers 503.";
    patience("redis_call_timeout_ms", "REDIS_CALL_TIMEOUT_MS", doc, default)
}

/// A loop's fallback interval; due work wakes the loop earlier. Values below a second are refused.
pub const fn loop_interval(key: &'static str, env: &'static str, default: &'static str) -> Setting<Duration> {
    let within = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
    Setting::duration(key, env, within, "How often the loop runs when nothing wakes it earlier.").or(default)
}
