//! The settings of the workflow service, besides those that every service has. Those of admission have the names and the
//! defaults of the gateway, because steps are submitted under the same limits.

use std::{net::SocketAddr, time::Duration};

use muster_chassis::{Setting, Values, settings::admin_addr};

muster_chassis::settings! {
    pub(crate) const OWN = these;

    const ADMIN_ADDR: Setting<SocketAddr> = admin_addr("0.0.0.0:9093");

    const TOPICS: Setting<String> = Setting::choice(
        muster_flow::admission::TOPICS,
        "MUSTER_TOPICS",
        &["open", "declared"],
        "`open`: topics appear on first use. `declared`: a step's job is refused if its topic has no settings.",
    )
    .or("open");

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
    .or("2000");

    const RATE_LIMIT_BURST: Setting<usize> = Setting::count(
        "rate_limit_burst",
        "API_RATE_LIMIT_BURST",
        1..=10_000_000,
        "Submitted jobs per tenant at once, across replicas.",
    )
    .or("4000");

    pub(crate) const MAX_SUBMIT_LAG: Setting<Duration> = Setting::duration(
        "max_submit_lag",
        "MUSTER_MAX_SUBMIT_LAG",
        Duration::ZERO..=Duration::from_secs(3600),
        "How far schedulers may be behind with submits before steps wait with theirs; 0 = no limit.",
    )
    .or("60s");
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
